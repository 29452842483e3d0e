//! The closed sets of words in tables, requests and policy.
//!
//! Guarantees: each word is spelled once; every table, request, metric and command uses that spelling.
//! Does not: say when a word applies; the records' transitions do. The glossary is `docs/glossary.md`.

use crate::BadText;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! string_enums {
    ($($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $word)] $variant),* }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &'static [$name] = &[$($name::$variant),*];

            /// The word in tables and on the wire.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl FromStr for $name {
            type Err = BadText;
            fn from_str(s: &str) -> Result<Self, BadText> {
                match s {
                    $($word => Ok($name::$variant),)*
                    _ => Err(BadText::of(s, concat!("is not one of ", $("`", $word, "` "),*))),
                }
            }
        }
    )*};
}

string_enums! {
    /// The state of an instance, in EC2's word for it.
    InstanceState {
        Pending = "pending",
        Running = "running",
        ShuttingDown = "shutting-down",
        Terminated = "terminated",
        /// Someone else is stopping the instance. nodekeeper never stops an instance, it terminates it.
        Stopping = "stopping",
        /// Someone else has stopped the instance.
        Stopped = "stopped",
    }

    /// The form of a stored content.
    Form {
        File = "file",
        /// A file that can be executed.
        Program = "program",
        /// A folder, as a tar archive.
        Tree = "tree",
    }

    /// A service that a node needs for its jobs.
    Service {
        /// S3, where inputs come from and outputs go.
        S3 = "s3",
        /// What gives a node the credentials of a job's role: its agent, and grant-credentials behind it.
        Credentials = "credentials",
        /// Secrets Manager or Parameter Store.
        Secrets = "secrets",
        /// The registry of an image, or what logs in there.
        Registry = "registry",
    }

    /// How a job that another job follows must end.
    AfterEnd {
        /// The followed job must be complete.
        Success = "success",
        /// In any way.
        Any = "any",
    }

    NodeStateName {
        /// Free to be assigned.
        Cleaned = "cleaned",
        /// The instance is launching or booting: the node has not registered yet.
        Assigned = "assigned",
        /// The node has registered.
        InUse = "in_use",
        /// The instance is being terminated, until EC2 confirms.
        ShuttingDown = "shutting_down",
    }

    /// Which ends a retry rule is about, as one word.
    CauseWord {
        /// The command ended with any exit code but 0, or its program could not be run.
        AnyExit = "exit:*",
        /// Any signal ended it.
        AnySignal = "signal:*",
        /// The alloc needed more memory than it may use.
        Memory = "memory",
        /// The alloc ran longer than it may.
        Timeout = "timeout",
        /// The alloc failed, for whatever cause.
        Failed = "failed",
        /// The node is gone, what ran there was lost, or a service did not answer.
        Lost = "lost",
        /// EC2 took the instance back, as it had announced.
        Spot = "spot",
        /// The node could not start the alloc.
        Node = "node",
    }

    /// How well a node in use is connected.
    NodeStatus {
        /// The node heartbeats, but has not reported yet what runs on it. It gets no new work.
        Syncing = "syncing",
        Ready = "ready",
        /// The lease expired, and some allocs may wait for the node.
        Disconnected = "disconnected",
        /// The lease expired, and no alloc waits for the node.
        Down = "down",
    }

    /// What the operator wants of a node.
    Intent {
        /// The ordinary case.
        Run = "run",
        /// The node is never shut down and gets no new work.
        Hold = "hold",
        /// The node gets no new work and is shut down as soon as it is idle.
        Drain = "drain",
    }

    /// How an instance is bought.
    Market {
        /// At a fixed price. The instance runs until nodekeeper terminates it.
        OnDemand = "on_demand",
        /// At a lower price. EC2 may take the instance back at any time.
        Spot = "spot",
        /// In a capacity reservation of the policy, which is paid whether it is used or not.
        Reserved = "reserved",
    }

    /// The launch in place of a spot size while EC2 is short of spot capacity.
    Fallback {
        /// Nothing: launches wait for spot capacity.
        None = "none",
        /// The same instance type, on demand.
        OnDemand = "on_demand",
    }

    /// Which generations of instance types a size takes.
    Generation {
        /// Only types of the generations that EC2 calls current.
        Current = "current",
        Any = "any",
    }

    /// The kind of a capacity reservation, in EC2's words.
    ReservationKind {
        OnDemand = "on-demand-capacity-reservation",
        /// Booked ahead for a fixed time. EC2 terminates its instances before that time ends.
        CapacityBlock = "capacity-block",
        /// Lent by another account, which may take it back at any time.
        Interruptible = "interruptible-capacity-reservation",
    }

    /// The market that work asks for.
    MarketNeed {
        OnDemand = "on_demand",
        Spot = "spot",
        /// Any market. A launch for it is spot where spot capacity is to be had, and otherwise on demand.
        SpotFirst = "spot_first",
    }

    /// The architecture of a machine's processors.
    Arch {
        X86_64 = "x86_64",
        /// Graviton, for example.
        Arm64 = "arm64",
    }

    JobState {
        /// Waiting to be placed.
        Queued = "queued",
        /// The job has more members than one transaction places. Some of them are on nodes, and none of them starts.
        Placing = "placing",
        /// All of the job's members were placed on nodes.
        Placed = "placed",
        /// The job lost a member. It waits until the other members have stopped, then it is queued again.
        Regrouping = "regrouping",
        /// Every member succeeded.
        Complete = "complete",
        /// The job failed, or lost a node, more often than its retries allow.
        Failed = "failed",
        /// Ended by the operator.
        Cancelled = "cancelled",
        /// The job can never run with this policy.
        Rejected = "rejected",
    }

    /// Which copy stays when a node comes back and a replacement runs as well.
    Reconcile {
        /// The copy that came back.
        KeepOriginal = "keep_original",
        /// The copy that was placed instead.
        KeepReplacement = "keep_replacement",
        /// The copy that started first. A copy that has not started comes last.
        Best = "best",
    }

    /// What the control plane wants of an alloc. Never goes back from stop to run.
    Desired {
        Run = "run",
        Stop = "stop",
    }

    /// How an alloc is: as its node last reported, or what the node's silence means for it.
    ClientStatus {
        /// Placed, not started.
        Pending = "pending",
        Running = "running",
        /// Its node is silent and the job waits for it.
        Unknown = "unknown",
        /// Ended with exit code 0.
        Complete = "complete",
        /// Ended otherwise.
        Failed = "failed",
        /// Its node is gone or could not start it, or the alloc is no longer on its node.
        Lost = "lost",
    }

    HandleKind {
        /// A container, or the directory and the processes of an alloc.
        Container = "container",
        /// A volume: it keeps data.
        Volume = "volume",
    }

    HandleState {
        /// Ordered with an alloc, not seen on the node yet.
        Creating = "creating",
        /// Seen on the node.
        Live = "live",
        /// Marked for destruction: the node is told to destroy it.
        Destroying = "destroying",
        /// The handle was missing for too long. The row is a tombstone: if the handle comes back within an hour, it is live again.
        Gone = "gone",
        /// Seen on the node with the node's label, but no row orders it.
        Unknown = "unknown",
    }

    /// How much of all launches a refusal of EC2 is about. The widest comes first.
    Reach {
        /// The account or the caller: no launch would succeed.
        Account = "account",
        Market = "market",
        /// The instance families that share a quota, in one market.
        Family = "family",
        /// An instance type in one market.
        Type = "type",
        Subnet = "subnet",
        /// A launch template with its image, its keys and its instance profile.
        Template = "template",
        /// An instance type in one market and place.
        Offering = "offering",
        /// A size in one market and place: the whole request, except for the node that it is for.
        Request = "request",
        /// Only the call of several ways, which EC2 does not take. Calls of one way go on.
        Fleet = "fleet",
    }

    /// The kind of a refusal. It decides how long launches wait.
    Class {
        /// EC2 is short of capacity or of free addresses.
        Short = "short",
        /// A limit of the account is reached.
        Quota = "quota",
        /// Too many calls.
        Throttled = "throttled",
        /// EC2 does not accept something now. It may pass by itself, or a person must correct it.
        Refused = "refused",
        /// The same request stays wrong until a person corrects something.
        Wrong = "wrong",
        /// EC2 did not say whether it launched.
        Unanswered = "unanswered",
    }

    /// The brakes, by what each holds back.
    BrakeKind {
        /// Nodes whose lease expired.
        Leases = "leases",
        /// Records whose instance EC2 does not list.
        Missing = "missing",
        /// Instances that no record claims.
        Orphans = "orphans",
    }

    /// What a run or an operator does: the action in a plan's row and in an event.
    ActionName {
        /// A slot is claimed and its instance launched.
        Launch = "launch",
        /// A launch without an answer is repeated.
        Relaunch = "relaunch",
        BindInstance = "bind_instance",
        /// A launch that gave no instance is given up.
        Abandon = "abandon",
        ShutDown = "shut_down",
        /// An instance is terminated again, until EC2 confirms.
        Terminate = "terminate",
        Clean = "clean",
        /// A lease expired and allocs wait for the node.
        Disconnect = "disconnect",
        /// A lease expired and no alloc waits for the node.
        MarkDown = "mark_down",
        LoseAlloc = "lose_alloc",
        /// A live alloc is put on the record of its node, which did not list it.
        ListAlloc = "list_alloc",
        /// An alloc is unknown, and its job waits for it.
        UnknownAlloc = "unknown_alloc",
        StopAlloc = "stop_alloc",
        /// One copy stays after a node came back.
        ResolveReconnect = "resolve_reconnect",
        /// Every member of a job is placed.
        Place = "place",
        Replace = "replace",
        /// A job can never run with this policy.
        Reject = "reject",
        /// A job without allocs is queued again.
        Requeue = "requeue",
        /// Jobs that a job follows have ended as they must, or a time has come: it no longer waits for them.
        Advance = "advance",
        /// A run counts that it saw a node idle, or resets the count because the node is needed.
        SetIdle = "set_idle",
        /// An operator drains a node, or an alloc is told to stop because its node's drain deadline is near.
        Drain = "drain",
        /// A person should know of something.
        Warn = "warn",
        /// Something is deliberately not done.
        HoldBack = "hold_back",
        /// A job waits, and the reason is new.
        Wait = "wait",
        /// The row of a slot above the maximum is deleted.
        DeleteRecord = "delete_record",
        /// An entry of the control table is deleted, because it ended long ago.
        ForgetEntry = "forget_entry",
        ReadOffers = "read_offers",
        /// An instance that no record claims is terminated.
        TerminateOrphan = "terminate_orphan",
        /// A handle is marked: its node is told to destroy it.
        MarkDestroying = "mark_destroying",
        /// The row of a handle is deleted, or becomes a tombstone.
        ForgetHandle = "forget_handle",
        /// The row of a handle is deleted, because the life of its node is over.
        Purge = "purge",
        LookLater = "look_later",
        /// A heartbeat changed a node.
        Heartbeat = "heartbeat",
        Ready = "ready",
        /// Jobs were submitted from a file. A single submission has no event: the row of the job shows it.
        Submit = "submit",
        /// An alloc ended. It has no event: its row shows it.
        EndAlloc = "end_alloc",
        /// A node reports an unknown alloc again: it runs.
        ReturnAlloc = "return_alloc",
        /// The end of an alloc changed the state of its job. There is an event if the job goes on; otherwise its row shows it.
        EndJob = "end_job",
        Cancel = "cancel",
        /// An operator pauses a job, or lets it go on.
        Pause = "pause",
        Continue = "continue",
        /// An operator changes a job that waits.
        Change = "change",
        /// An operator runs a command inside of an alloc.
        EnterAlloc = "enter_alloc",
        Hold = "hold",
        /// An operator lets a node run again.
        Resume = "resume",
        Release = "release",
        /// An operator said how many nodes another scheduler needs.
        DemandSet = "demand_set",
        PolicySet = "policy_set",
    }
}

impl MarketNeed {
    /// Whether a machine of this market may be used. A reserved one may be used for everything: it costs nothing more, and
    /// EC2 does not take it back.
    pub const fn accepts(self, market: Market) -> bool {
        match self {
            Self::OnDemand => matches!(market, Market::OnDemand | Market::Reserved),
            Self::Spot => matches!(market, Market::Spot | Market::Reserved),
            Self::SpotFirst => true,
        }
    }
}

impl JobState {
    /// Whether the job has ended: nothing changes it any more.
    pub const fn is_ended(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Cancelled | Self::Rejected)
    }
}

impl ClientStatus {
    /// Whether it is final: nothing overwrites it.
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Lost)
    }
}
