//! What nodes and functions say to each other over HTTP, and the file a node starts from.
//!
//! Guarantees: unknown fields are ignored on input and missing required ones are errors;
//! optional fields are absent, never null. One type a body, used by the agent and by the
//! functions alike, so that they cannot disagree.
//! Does not: decide anything, or know how a body got here.

use crate::ids::{AllocId, ClusterName, JobId, NodeId};
use crate::time::Time;
use crate::words::{ClientStatus, Desired, HandleKind, Intent, NodeStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The largest request body that is read, in bytes; a larger one is answered 413.
pub const MAX_BODY_BYTES: usize = 2 * 1024 * 1024;

/// The longest `log_tail` that is kept, in bytes; the end of a longer one is kept.
pub const MAX_LOG_TAIL_BYTES: usize = 8 * 1024;

/// Where a node's agent finds its configuration unless told otherwise.
pub const NODE_FILE: &str = "/etc/nodekeeper/node.json";

/// `/etc/nodekeeper/node.json`: written by the user data, read by the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFile {
    /// The deployment.
    pub cluster: ClusterName,
    /// Who this node is.
    pub node_id: NodeId,
    /// Its credential; absent where the caller is known by IAM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    /// Base URL of heartbeat-ingest, without `/v1/…`.
    pub heartbeat_url: String,
    /// Base URL of sweep-dispatch, without `/v1/…`.
    pub sweep_url: String,
}

/// `POST /v1/nodes/{node_id}/heartbeat`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The EC2 instance the agent runs on.
    pub instance_id: String,
    /// Changes with every boot of the machine.
    pub boot_id: String,
    /// As minted at registration; absent to register.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<String>,
    /// The highest `seq` durably applied.
    pub as_of: u64,
    /// Whether something other than allocs (another scheduler) keeps the node busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<bool>,
    /// Where other members of a job reach this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// When EC2 will take the instance away, if it said so. EC2's clock, not the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupt_at: Option<Time>,
}

/// The answer to a heartbeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatAnswer {
    /// How the control plane sees the node.
    pub status: NodeStatus,
    /// The incarnation to send from now on.
    pub incarnation: String,
    /// The state of the node's orders this answer belongs to.
    pub seq: u64,
    /// When to call again, in seconds, jitter included.
    pub next_heartbeat_s: f64,
    /// What the operator wants of the node.
    pub intent: Intent,
    /// Whether a complete alloc report is due now.
    pub must_report: bool,
    /// Every live alloc, when the caller's `as_of` was below `seq`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocs: Option<Vec<AllocOrder>>,
}

/// One live alloc, as its node must know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocOrder {
    /// Its name.
    pub alloc_id: AllocId,
    /// Whether to run it or to stop it.
    pub desired: Desired,
    /// How the control plane knows it.
    pub client: ClientStatus,
    /// The node's `seq` at which it was placed.
    pub placed_seq: u64,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Added to the environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// The container image, where the agent runs containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Named volumes that outlive the alloc.
    #[serde(default)]
    pub caches: Vec<String>,
    /// Stop it after so long; 0 for never.
    pub timeout_s: u64,
    /// From TERM to KILL.
    pub kill_timeout_s: u64,
    /// Memory it may use, in MiB; 0 for no limit.
    pub memory_mib: u64,
    /// vCPUs it asked for.
    pub vcpus: u32,
    /// The number of members of its job.
    pub nodes: u32,
    /// The addresses of the members' nodes, in member order: one for each member, empty where none is known.
    #[serde(default)]
    pub hosts: Vec<String>,
}

impl AllocOrder {
    /// The job it belongs to.
    pub fn job_id(&self) -> JobId {
        self.alloc_id.job_id
    }
}

/// `POST /v1/nodes/{node_id}/allocs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocReport {
    /// The reporter's incarnation.
    pub incarnation: String,
    /// The reporter's own counter within the incarnation.
    pub report_no: u64,
    /// The highest `seq` durably applied **before** the listing began.
    pub as_of: u64,
    /// Whether every alloc on the node is listed.
    pub complete: bool,
    /// The allocs.
    pub allocs: Vec<AllocUpdate>,
}

/// How one alloc is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocUpdate {
    /// Its name.
    pub alloc_id: AllocId,
    /// `pending`, `running`, `complete` or `failed`: a node cannot say more.
    pub client: ClientStatus,
    /// The exit code, once it ended; 128 + the signal's number for a signal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Why, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The end of its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_tail: Option<String>,
}

/// The answer to an alloc report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocReportAnswer {
    /// How the control plane sees the node now.
    pub status: NodeStatus,
    /// The state of the node's orders this answer belongs to.
    pub seq: u64,
    /// Taken over, or known already: the agent may forget those that ended.
    pub accepted: Vec<AllocId>,
    /// Not taken over, and why.
    pub refused: Vec<RefusedUpdate>,
    /// Every live alloc, when the reporter's `as_of` was below `seq`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocs: Option<Vec<AllocOrder>>,
}

/// An alloc update that was not taken over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedUpdate {
    /// The alloc.
    pub alloc_id: AllocId,
    /// Why, in words.
    pub reason: String,
}

/// `POST /v1/nodes/{node_id}/handles`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleReport {
    /// The reporter's incarnation.
    pub incarnation: String,
    /// The reporter's own counter within the incarnation.
    pub report_no: u64,
    /// The highest `seq` durably applied **before** the listing began.
    pub as_of: u64,
    /// Whether every handle on the node is listed.
    pub complete: bool,
    /// The handles.
    pub handles: Vec<ReportedHandle>,
}

/// One container or volume that exists on the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReportedHandle {
    /// Its name on the node.
    pub handle: String,
    /// What it is.
    pub kind: HandleKind,
    /// The node id written on it when it was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// The answer to a handle report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandleReportAnswer {
    /// The state of the node's orders this answer belongs to.
    pub seq: u64,
    /// What to destroy now.
    pub destroy: Vec<String>,
    /// Whether there is more to destroy than this answer lists.
    pub more: bool,
    /// Handles that carry another node's label: left alone.
    pub conflicts: Vec<String>,
    /// Whether the report asked for more destruction than is done without an operator.
    pub held: bool,
    /// When to report again, in seconds, jitter included.
    pub next_report_s: f64,
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// One of [`ErrorCode`]'s words.
    pub error: ErrorCode,
    /// What happened and what to do, for people.
    pub message: String,
}

/// The kinds of refusal. An agent stops its work for [`ErrorCode::Gone`] alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// 400: the request is not of the documented form.
    BadRequest,
    /// 401: the credential is not this node's. Says nothing else.
    Unauthorized,
    /// 404: no such path.
    NotFound,
    /// 405: the path takes another method.
    MethodNotAllowed,
    /// 409: the node belongs to another instance.
    ForeignInstance,
    /// 409: not the current incarnation; register anew.
    WrongIncarnation,
    /// 409: an older report than one already taken.
    StaleReport,
    /// 409: heartbeat first.
    NotReady,
    /// 410: this node is no more.
    Gone,
    /// 413: the body is too large.
    TooLarge,
    /// 500: our fault; try again.
    Internal,
    /// 503: not now; try again after `Retry-After`.
    Busy,
}

impl ErrorCode {
    /// Its HTTP status.
    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::ForeignInstance | Self::WrongIncarnation | Self::StaleReport | Self::NotReady => 409,
            Self::Gone => 410,
            Self::TooLarge => 413,
            Self::Internal => 500,
            Self::Busy => 503,
        }
    }
}

/// Which of an agent's two report counters, each within one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportCounter {
    /// Reports of allocs: `alloc_report_no` on the node record.
    Allocs,
    /// Reports of handles: `handle_report_no` on the node record.
    Handles,
}
