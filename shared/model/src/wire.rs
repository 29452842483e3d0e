//! The HTTP bodies that nodes and functions exchange, and the file that configures a node's agent.
//!
//! Guarantees: unknown fields are ignored on input, and a missing required field is an error; optional
//! fields without a value are left out, never null; the agent and the functions use the same type for
//! each body, so that they cannot disagree.
//! Does not: decide anything, or know how a body was sent.

use crate::enums::{ClientStatus, Desired, HandleKind, Intent, NodeStatus};
use crate::error_chain::short_reason;
use crate::{
    AllocId, Batch, ClusterName, EndCause, Environment, FailurePolicy, JobId, Needs, NodeId, RunReport, S3Place, Time,
    Work,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The largest request body that is read, in bytes; a larger one is answered 413.
pub const MAX_BODY_BYTES: usize = 2 * 1024 * 1024;

/// The longest `log_tail` that is kept, in bytes. A longer one loses its beginning.
pub const MAX_LOG_TAIL_BYTES: usize = 8 * 1024;

/// The most switches between standard output and standard error in a `log_tail`. A tail with more loses its beginning.
pub const MAX_TAIL_SWITCHES: usize = 200;

/// The first character of a `log_tail` that a node has cut shorter than [`MAX_LOG_TAIL_BYTES`], because it reported many ends
/// at once.
pub const CUT: char = '…';

/// Where a node's agent finds its configuration unless told otherwise.
pub const NODE_FILE: &str = "/etc/nodekeeper/node.json";

/// `/etc/nodekeeper/node.json`: written by the user data, read by the agent. It has the node id, or the batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFile {
    pub cluster: ClusterName,
    /// The node, if the instance was launched alone.
    pub node_id: Option<NodeId>,
    /// The batch that the instance was launched in.
    pub batch: Option<Batch>,
    /// The node's credential; `None` if the node signs its requests.
    pub token: Option<String>,
    /// Base URL of heartbeat-ingest, without `/v1/…`.
    pub heartbeat_url: String,
    /// Base URL of sweep-dispatch, without `/v1/…`.
    pub sweep_url: String,
}

impl LaunchFile {
    /// The node, or any of the batch: a request about the whole batch names one of its nodes.
    pub fn any_node(&self) -> Option<NodeId> {
        self.node_id.or_else(|| self.batch.as_ref()?.nodes().next())
    }

    /// The configuration of the agent of this node.
    pub fn of(self, node_id: NodeId) -> NodeFile {
        let Self { cluster, token, heartbeat_url, sweep_url, .. } = self;
        NodeFile { cluster, node_id, token, heartbeat_url, sweep_url }
    }
}

/// The configuration of an agent, from its [`LaunchFile`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFile {
    pub cluster: ClusterName,
    pub node_id: NodeId,
    /// The node's credential; `None` if the node signs its requests.
    pub token: Option<String>,
    /// Base URL of heartbeat-ingest, without `/v1/…`.
    pub heartbeat_url: String,
    /// Base URL of sweep-dispatch, without `/v1/…`.
    pub sweep_url: String,
}

/// `POST /v1/nodes/{node_id}/binding`, for any node of a batch: an instance of the batch asks which of its nodes it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingRequest {
    pub instance_id: String,
    pub batch: Batch,
}

/// The answer to [`BindingRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BindingAnswer {
    pub node_id: NodeId,
}

/// `POST /v1/nodes/{node_id}/heartbeat`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    pub instance_id: String,
    /// Changes with every boot of the machine.
    pub boot_id: String,
    /// The incarnation from the last registration; `None` to register.
    pub incarnation: Option<String>,
    /// The highest `seq` that the agent has durably applied.
    pub as_of: u64,
    /// The address at which other members of a job reach this node.
    pub address: Option<String>,
    /// When EC2 will take the instance away, by EC2's clock; `None` if EC2 has not announced it.
    pub interrupt_at: Option<Time>,
    #[serde(flatten)]
    pub health: NodeHealth,
    /// How long the machine has been up when the heartbeat is made, in milliseconds. This number orders the heartbeats of
    /// one boot. A heartbeat that the network delivers late must not replace what a newer heartbeat said.
    pub uptime_ms: Option<u64>,
    /// The text `settled` of the answer to the last report of handles, if the handles have not changed since.
    pub handles: Option<String>,
    /// Whether the agent only asks for orders, as the last answer allows it. Then the lease is not renewed, if it lasts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub asks: bool,
}

/// Defines a struct whose names others can list. What a field has by default is left out.
macro_rules! named_fields {
    ($(#[$doc:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct $name {
            $($(#[$of_field])* #[serde(default, skip_serializing_if = "crate::left_out::is_default")] pub $field: $type,)*
        }

        impl $name {
            pub const FIELDS: &[&str] = &[$(stringify!($field)),*];
        }
    };
}

named_fields! {
    /// What an agent says of its node, and the record keeps. A heartbeat that says the same as the record changes only the pulse.
    NodeHealth {
        /// Whether something other than allocs, such as another scheduler, keeps the node occupied.
        busy: bool,
        /// Why the node takes no work, for people; `None` if it does. For example, jobs could read the instance metadata.
        refuses: Option<String>,
        /// How many GPUs can be used. The agent does not know how many its size has.
        gpus_usable: u32,
        /// Which GPUs cannot be used, and why, for people; `None` if all can.
        gpus_sick: Option<String>,
        /// Which allocs cannot be ended, for people: their processes were killed, and do not die. `None` if there are none.
        unended: Option<String>,
        /// A service that the node cannot reach, and why: `s3: connection refused`.
        fails: Option<String>,
        /// The services that it has reached lately, with commas between them.
        reaches: Option<String>,
    }
}

impl NodeHealth {
    /// Cuts its texts to the length for which a record has room.
    #[must_use]
    pub fn clipped(mut self) -> Self {
        let Self { refuses, gpus_sick, unended, fails, reaches, .. } = &mut self;
        for text in [refuses, gpus_sick, unended, fails, reaches] {
            *text = text.as_deref().map(short_reason);
        }
        self
    }

    /// The service that fails, and why.
    pub(crate) fn failing(&self) -> Option<(&str, &str)> {
        self.fails.as_deref()?.split_once(": ")
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeartbeatAnswer {
    pub status: NodeStatus,
    /// The incarnation to send from now on.
    pub incarnation: String,
    /// The number of the newest order that this answer includes.
    pub seq: u64,
    /// When to call again, in seconds, jitter included.
    pub next_heartbeat_s: f64,
    /// The longest wait after a heartbeat that failed, in seconds.
    pub retry_s: f64,
    /// The uptime of the machine, in milliseconds, until which its heartbeats may only ask. `None`: the next heartbeat renews the lease.
    pub ask_until_ms: Option<u64>,
    pub intent: Intent,
    /// Whether a complete alloc report is due now.
    pub must_report: bool,
    /// Whether a report of handles is due now, although the agent's handles have not changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub report_handles: bool,
    /// The live allocs of the node, if the caller's `as_of` was below `seq`.
    pub orders: Option<OrderList>,
    /// The live allocs whose output somebody follows. The agent stores what is new of it each second.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub follows: BTreeSet<AllocId>,
}

/// Every live alloc of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OrderList {
    /// The orders that the caller may not have: those placed after its `as_of`, the oldest first, as many as one answer takes.
    pub allocs: Vec<AllocOrder>,
    /// Every other live alloc. The agent asks for the order of an alloc that it does not have with an `as_of` below its `placed_seq`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<AllocStatus>,
    /// The live allocs that neither list has because their rows cannot be read. The agent leaves them as they are, and
    /// asks for the list again.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unreadable: BTreeSet<AllocId>,
}

/// The shortest and the longest `retry_s`.
pub const SHORTEST_RETRY_S: f64 = 2.0;
pub const LONGEST_RETRY_S: f64 = 30.0;

/// How long an agent with this `retry_s` waits for the answer to a heartbeat, in seconds.
pub const fn heartbeat_timeout_s(retry_s: f64) -> f64 {
    retry_s.clamp(5.0, 10.0)
}

/// The order for one live alloc.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocOrder {
    pub alloc_id: AllocId,
    /// Whether the agent must run the alloc or stop it.
    pub desired: Desired,
    /// How the control plane sees the alloc.
    pub client: ClientStatus,
    /// The `seq` of the node when the alloc was placed.
    pub placed_seq: u64,
    #[serde(default)]
    pub needs: Needs,
    #[serde(default)]
    pub work: Work,
    /// Variables added to the environment.
    #[serde(default, skip_serializing_if = "Environment::is_empty")]
    pub env: Environment,
    #[serde(default)]
    pub failure_policy: FailurePolicy,
    /// The addresses of the members' nodes, in the order of the members' numbers. An address that is not known is
    /// empty; for a job of one member, the list is empty instead.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Where the node stores the whole output; `None`: nowhere.
    pub output_s3: Option<S3Place>,
    /// For a job with a role: the base URL of grant-credentials, without `/v1/…`. `None` if the cluster has no such function.
    pub grant_url: Option<String>,
}

/// `POST /v1/nodes/{node_id}/credentials`: the node asks for the credentials of the role of an alloc that it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialsRequest {
    pub incarnation: String,
    pub alloc_id: AllocId,
}

/// The answer to [`CredentialsRequest`]. It is written to no log and to no table.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCredentials {
    pub access_key_id: String,
    pub secret_access_key: String,
    pub session_token: String,
    /// When they were given, by the clock of the function: the node's own may be wrong.
    pub given_at: Time,
    /// When they end.
    pub expires_at: Time,
    pub role_arn: String,
}

impl std::fmt::Debug for JobCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobCredentials").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

/// A live alloc without its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocStatus {
    pub alloc_id: AllocId,
    pub desired: Desired,
    pub client: ClientStatus,
    pub placed_seq: u64,
}

impl AllocOrder {
    /// The order without the work to run.
    pub const fn status(&self) -> AllocStatus {
        let Self { alloc_id, desired, client, placed_seq, .. } = *self;
        AllocStatus { alloc_id, desired, client, placed_seq }
    }

    pub fn job_id(&self) -> JobId {
        self.alloc_id.job_id
    }
}

/// `POST /v1/nodes/{node_id}/allocs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocReport {
    pub incarnation: String,
    /// The agent's own count of reports within the incarnation.
    pub report_no: u64,
    /// The highest `seq` that the agent had durably applied **before** it began to list.
    pub as_of: u64,
    /// Whether every alloc on the node is listed.
    pub complete: bool,
    pub allocs: Vec<AllocUpdate>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocUpdate {
    pub alloc_id: AllocId,
    /// `pending`, `running`, `complete`, `failed` or `lost`: a node cannot report anything else.
    pub client: ClientStatus,
    /// Why the alloc ended. An end needs a cause that fits `client`.
    pub cause: Option<EndCause>,
    /// What the node does for the alloc before its command runs, or after it; `None` if that takes no time.
    pub phase: Option<String>,
    #[serde(flatten)]
    pub run: RunReport,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocReportAnswer {
    pub status: NodeStatus,
    /// The number of the newest order that this answer includes.
    pub seq: u64,
    /// The allocs whose updates were accepted or already known. The agent may forget those that have ended.
    pub accepted: Vec<AllocId>,
    /// The updates that were refused, and why.
    pub refused: Vec<RefusedUpdate>,
    /// When to ask for new work, in seconds, after a report that made room: the node became ready, or an alloc ended.
    pub next_heartbeat_s: Option<f64>,
    /// Whether jobs wait, so that it is worth to ask again soon.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub jobs_wait: bool,
    /// As in [`HeartbeatAnswer`].
    pub orders: Option<OrderList>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedUpdate {
    pub alloc_id: AllocId,
    pub reason: String,
}

/// `POST /v1/nodes/{node_id}/handles`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandleReport {
    pub incarnation: String,
    /// The agent's own count of reports within the incarnation.
    pub report_no: u64,
    /// The highest `seq` that the agent had durably applied **before** it began to list.
    pub as_of: u64,
    /// Whether every handle on the node is listed. A handle that a complete report does not list is not on the node.
    pub complete: bool,
    /// The agent's own digest of all handles on the node, at most [`MAX_DIGEST_BYTES`] long.
    pub digest: String,
    /// At most [`MAX_HANDLES`].
    pub handles: Vec<ReportedHandle>,
}

/// The most handles in one report. A node that has more reports some of them at a time, and its reports are not complete.
pub const MAX_HANDLES: usize = 5000;

/// The longest digest of a node's handles, in bytes.
pub const MAX_DIGEST_BYTES: usize = 64;

/// One container or volume that exists on the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ReportedHandle {
    /// The name on the node.
    pub handle: String,
    pub kind: HandleKind,
    /// The node id that was written on the container or volume when it was made.
    pub label: Option<String>,
    /// Why the node could not destroy it when it was last told to; `None` if it was not told, or is still destroying it.
    pub stays: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HandleReportAnswer {
    /// The number of the newest order that this answer includes.
    pub seq: u64,
    /// The handles to destroy now.
    pub destroy: Vec<String>,
    /// Whether there is more to destroy than this answer lists.
    pub more: bool,
    /// Handles with the label of another node: they are left alone.
    pub conflicts: Vec<String>,
    /// Whether nothing of this report is destroyed or dropped, because that would be an unusual share of the node's handles.
    pub refused: bool,
    /// When to report again, in seconds, jitter included.
    pub next_report_s: f64,
    /// How many changes this request left to the next reports, because it must end in time.
    #[serde(default, skip_serializing_if = "crate::left_out::is_default")]
    pub left: u64,
    /// Set if there is nothing to do about the handles on the node. The agent sends this text with its heartbeats, and reports
    /// again only after the handles have changed, or after a heartbeat is answered with `report_handles`.
    pub settled: Option<String>,
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    pub error: ErrorCode,
    /// What happened and what to do, for people.
    pub message: String,
}

/// The kinds of refusal. Only [`ErrorCode::Gone`] makes an agent stop its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// 400: the request is not of the documented form.
    BadRequest,
    /// 401: the credential does not belong to this node. The answer says nothing else.
    Unauthorized,
    /// 403: the job may not have what the node asks for it; to ask again is of no use.
    Denied,
    /// 404: the path does not exist.
    NotFound,
    /// 405: the path takes another method.
    MethodNotAllowed,
    /// 409: the node belongs to another instance.
    ForeignInstance,
    /// 409: not the current incarnation; register again.
    WrongIncarnation,
    /// 409: a newer report, or a newer heartbeat, was already taken.
    StaleReport,
    /// 409: the node is neither syncing nor ready; heartbeat first.
    NotReady,
    /// 410: the life of this node is over.
    Gone,
    /// 413: the body is too large.
    TooLarge,
    /// 500: a fault of the function; try again.
    Internal,
    /// 503: not now; try again after `Retry-After`.
    Busy,
}

impl ErrorCode {
    pub const fn status(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Denied => 403,
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

/// The two kinds of reports, each with a counter of its own within an incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportCounter {
    /// Reports of allocs: `alloc_report_no` on the node record.
    Allocs,
    /// Reports of handles: `handle_report_no` on the node record.
    Handles,
}
