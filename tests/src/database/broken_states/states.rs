//! The states: what each changes, and what must become of it.

use super::town::Town;
use crate::world::raw::{Item, item, n, s};
use aws_sdk_dynamodb::types::AttributeValue;
use model::{AllocId, NodeId};

/// What becomes of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The cluster is right again within this many steps of five seconds. poll-and-scale runs in each step,
    /// sweep-dispatch in every second one, clean-stale-records in every sixth one.
    Right(u32),
    /// The row is quarantined and named, and stays as it is until a person corrects it.
    Quarantine,
    /// As `Quarantine`, and everything else goes on meanwhile: running work, and new work. If poll-and-scale reads such
    /// rows, its run names the row by these words.
    Unreadable(Option<&'static str>),
}
pub use Fate::{Quarantine, Right, Unreadable};

/// One change of one row that no function makes.
pub enum Edit {
    /// Sets or removes attributes. `needs.vcpus` is a part of `needs`.
    Set(&'static str, Item, Vec<(&'static str, Option<AttributeValue>)>),
    Put(&'static str, Item),
    Delete(&'static str, Item),
}
pub use Edit::{Delete, Put, Set};

pub struct State {
    pub name: &'static str,
    pub fate: Fate,
    pub edits: &'static (dyn Fn(&Town) -> Vec<Edit> + Send + Sync),
}

pub fn node_key(node: NodeId) -> Item {
    item(&[("slot", n(node.slot()))])
}

pub fn job_key(job: impl ToString) -> Item {
    item(&[("job_id", s(job))])
}

pub fn alloc_key(alloc: AllocId) -> Item {
    item(&[("alloc_id", s(alloc))])
}

/// Makes the node report its handles again with its next heartbeat.
fn unsettled(town: &Town) -> Edit {
    Set("nodes", node_key(town.broken.node), vec![("settled", None)])
}

fn of_node(town: &Town, values: Vec<(&'static str, Option<AttributeValue>)>) -> Vec<Edit> {
    vec![Set("nodes", node_key(town.broken.node), values)]
}

fn of_job(town: &Town, values: Vec<(&'static str, Option<AttributeValue>)>) -> Vec<Edit> {
    vec![Set("jobs", job_key(town.broken.job), values)]
}

fn of_alloc(town: &Town, values: Vec<(&'static str, Option<AttributeValue>)>) -> Vec<Edit> {
    vec![Set("allocs", alloc_key(town.broken.alloc), values)]
}

fn of_handle(town: &Town, values: Vec<(&'static str, Option<AttributeValue>)>) -> Vec<Edit> {
    vec![Set("handles", container(town), values), unsettled(town)]
}

pub fn container(town: &Town) -> Item {
    item(&[("node_id", s(town.broken.node)), ("handle", s(town.broken.alloc))])
}

fn entry(values: &[(&str, AttributeValue)]) -> Vec<Edit> {
    vec![Put("control", item(values))]
}

fn other_alloc() -> AttributeValue {
    AttributeValue::L(vec![s("01JD0000000000000000000000.0.5")])
}

pub const STATES: &[State] = &[
    // Nodes.
    State {
        name: "a record lists no alloc that runs there",
        fate: Right(60),
        edits: &|t| of_node(t, vec![("allocs", None)]),
    },
    State {
        name: "a record lists an alloc without a row",
        fate: Right(4),
        edits: &|t| {
            let both = AttributeValue::L(vec![s(t.broken.alloc), s("01JD0000000000000000000000.0.5")]);
            of_node(t, vec![("allocs", Some(both))])
        },
    },
    State { name: "a record is gone", fate: Right(60), edits: &|t| vec![Delete("nodes", node_key(t.broken.node))] },
    State {
        name: "a record is of the time before its node",
        fate: Right(60),
        edits: &|t| {
            let (slot, at) = (n(t.broken.node.slot()), n(t.world.now().as_ms()));
            vec![Put("nodes", item(&[("slot", slot), ("version", n(1)), ("state", s("cleaned")), ("modified_at", at)]))]
        },
    },
    State {
        name: "a record lists an alloc that runs on another node",
        fate: Right(4),
        edits: &|t| {
            let both = AttributeValue::L(vec![s(t.broken.alloc), s(t.neighbour.alloc)]);
            of_node(t, vec![("allocs", Some(both))])
        },
    },
    State {
        name: "a machine is up for a million years",
        fate: Right(4),
        edits: &|t| of_node(t, vec![("uptime_ms", Some(n(31_536_000_000_000_000_u64)))]),
    },
    State { name: "a record without gate_seq", fate: Quarantine, edits: &|t| of_node(t, vec![("gate_seq", None)]) },
    State {
        name: "a record in an unknown state",
        fate: Quarantine,
        edits: &|t| of_node(t, vec![("state", Some(s("asleep")))]),
    },
    State { name: "a record with seq 0", fate: Right(60), edits: &|t| of_node(t, vec![("seq", Some(n(0)))]) },
    State {
        name: "a node that heartbeats is down",
        fate: Right(20),
        edits: &|t| of_node(t, vec![("status", Some(s("down")))]),
    },
    State {
        name: "a node is held by nobody's word",
        fate: Right(60),
        edits: &|t| of_node(t, vec![("busy", Some(AttributeValue::Bool(true)))]),
    },
    // Jobs.
    State { name: "a placed job lists no alloc", fate: Right(60), edits: &|t| of_job(t, vec![("allocs", None)]) },
    State {
        name: "a placed job lists an alloc without a row",
        fate: Right(60),
        edits: &|t| of_job(t, vec![("allocs", Some(other_alloc()))]),
    },
    State { name: "a job is gone", fate: Right(60), edits: &|t| vec![Delete("jobs", job_key(t.broken.job))] },
    State {
        name: "a job waits although its alloc runs",
        fate: Right(60),
        edits: &|t| of_job(t, vec![("state", Some(s("queued"))), ("allocs", None)]),
    },
    State {
        name: "a job has ended although its alloc runs",
        fate: Right(60),
        edits: &|t| {
            let ended = vec![
                ("state", Some(s("cancelled"))),
                ("allocs", None),
                ("finished_at", Some(n(t.world.now().as_ms()))),
            ];
            of_job(t, ended)
        },
    },
    State {
        name: "a job in an unknown state",
        fate: Quarantine,
        edits: &|t| of_job(t, vec![("state", Some(s("tired")))]),
    },
    State { name: "a job without a version", fate: Quarantine, edits: &|t| of_job(t, vec![("version", None)]) },
    // Allocs.
    State {
        name: "a live alloc without live_node",
        fate: Right(60),
        edits: &|t| of_alloc(t, vec![("live_node", None)]),
    },
    State { name: "an alloc is gone", fate: Right(60), edits: &|t| vec![Delete("allocs", alloc_key(t.broken.alloc))] },
    State {
        name: "an alloc has ended although it runs",
        fate: Right(60),
        edits: &|t| of_alloc(t, vec![("client", Some(s("complete"))), ("live_node", None)]),
    },
    State {
        name: "an alloc is told to stop by nobody",
        fate: Right(60),
        edits: &|t| of_alloc(t, vec![("desired", Some(s("stop")))]),
    },
    State {
        name: "an alloc is of another life",
        fate: Right(60),
        edits: &|t| {
            let other = format!("{}-01JD0000000000000000000000", t.broken.node.slot());
            of_alloc(t, vec![("node_id", Some(s(&other))), ("live_node", Some(s(&other)))])
        },
    },
    State {
        name: "an alloc in an unknown state",
        fate: Quarantine,
        edits: &|t| of_alloc(t, vec![("client", Some(s("bored")))]),
    },
    State { name: "an alloc without desired", fate: Quarantine, edits: &|t| of_alloc(t, vec![("desired", None)]) },
    // Handles.
    State {
        name: "the handle of a running alloc is to be destroyed",
        fate: Right(20),
        edits: &|t| of_handle(t, vec![("state", Some(s("destroying")))]),
    },
    State {
        name: "a handle of an unknown kind",
        fate: Quarantine,
        edits: &|t| of_handle(t, vec![("kind", Some(s("dream")))]),
    },
    // Control.
    State {
        name: "the place in the jobs table is behind its end",
        fate: Right(8),
        edits: &|_| entry(&[("key", s("jobs_place")), ("version", n(1)), ("last", s("ZZZZ"))]),
    },
    State {
        name: "the place in the queue is behind its end",
        fate: Right(2),
        edits: &|_| entry(&[("key", s("queue_place")), ("version", n(1)), ("last", s("9999#Z")), ("passed", n(4))]),
    },
    State {
        name: "the place in the list of jobs that follow others is behind its end",
        fate: Right(2),
        edits: &|_| {
            let rank = "9999#7ZZZZZZZZZZZZZZZZZZZZZZZZZ";
            entry(&[("key", s("after_place")), ("version", n(1)), ("last", s(rank))])
        },
    },
    State {
        name: "the places are no places",
        fate: Right(8),
        edits: &|_| {
            let place = |key| item(&[("key", s(key)), ("version", n(1)), ("last", s("")), ("passed", n(4))]);
            ["jobs_place", "queue_place", "after_place"].map(|key| Put("control", place(key))).into()
        },
    },
    State {
        name: "what was told cannot be read",
        fate: Right(8),
        edits: &|_| entry(&[("key", s("announced")), ("version", s("seven"))]),
    },
    State {
        name: "a limit that cannot be read",
        fate: Quarantine,
        edits: &|_| entry(&[("key", s("limit#quota#account")), ("version", n(1)), ("count", s("many"))]),
    },
    State {
        name: "an entry of newer code",
        fate: Quarantine,
        edits: &|_| entry(&[("key", s("of_the_future")), ("version", n(1))]),
    },
    // Events.
    State {
        name: "an event that cannot be read",
        fate: Right(2),
        edits: &|_| vec![Put("events", item(&[("subject", s("cluster")), ("id", s("x")), ("action", n(5))]))],
    },
];
