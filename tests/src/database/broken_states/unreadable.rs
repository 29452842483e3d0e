//! Rows that cannot be read: an attribute of the first life gets a nonsense value, or a nonsense row appears.

use super::states::{Edit, Put, Set, State, Unreadable, alloc_key, container, job_key, node_key};
use super::town::Town;
use crate::world::raw::{item, n, s};
use aws_sdk_dynamodb::types::AttributeValue;

/// An attribute and its nonsense value.
type Nonsense = (&'static str, Option<AttributeValue>);
type Row = Vec<(&'static str, AttributeValue)>;

/// The damaged attributes, by table.
fn attributes() -> Vec<(&'static str, Vec<Nonsense>)> {
    vec![
        (
            "nodes",
            vec![
                ("version", Some(s("seven"))),
                ("state", Some(s("asleep"))),
                ("state", None),
                ("node_id", Some(s("0-nonsense"))),
                ("attempt", None),
                ("seq", Some(n(-4))),
                ("allocs", Some(AttributeValue::Bool(true))),
                ("lease_expires_at", Some(s("tomorrow"))),
                ("market", Some(s("gift"))),
                ("vcpus", Some(n("1.5"))),
            ],
        ),
        (
            "jobs",
            vec![
                ("version", None),
                ("state", Some(s("tired"))),
                ("needs.nodes", Some(s("one"))),
                ("needs.vcpus", Some(n(-1))),
                ("priority", Some(AttributeValue::Bool(true))),
                ("submitted_at", None),
                ("allocs", Some(s("none"))),
            ],
        ),
        (
            "allocs",
            vec![
                ("placed_at", Some(s("x"))),
                ("client", Some(s("bored"))),
                ("desired", None),
                ("placed_seq", Some(s("x"))),
                ("slot", Some(n(100_000_000))),
                ("needs.vcpus", Some(AttributeValue::L(Vec::new()))),
            ],
        ),
        ("handles", vec![("state", Some(s("lost"))), ("kind", None), ("seq", Some(s("x")))]),
    ]
}

/// The nonsense rows, by table.
fn rows() -> Vec<(&'static str, Vec<Row>)> {
    let far = n(9_999_999_999_i64);
    let job = "01JD0000000000000000000000";
    vec![
        (
            "control",
            vec![
                vec![("key", s("limit#quota#account")), ("version", n(1)), ("count", s("many"))],
                vec![("key", s("limit#throttled#account")), ("version", s("x"))],
                vec![("key", s("brake#leases")), ("version", n(1)), ("since_at", s("x"))],
                vec![("key", s("release#orphans")), ("version", n(1)), ("until_at", AttributeValue::Bool(true))],
                vec![("key", s("queue_place")), ("version", n(1)), ("passed", AttributeValue::L(Vec::new()))],
                vec![("key", s("after_place")), ("version", n(1)), ("last", n(7))],
                vec![("key", s("of_the_future")), ("version", n(1))],
                vec![("key", s("run#poll-and-scale")), ("started_at", s("yesterday"))],
                vec![("key", s("last_run")), ("version", n(1)), ("since_at", s("x"))],
                vec![("key", s("ingest")), ("version", n(1)), ("since_at", s("x"))],
            ],
        ),
        (
            "nodes",
            vec![
                vec![("slot", n(3)), ("state", s("x"))],
                vec![("slot", n(999_999_999)), ("state", s("cleaned")), ("version", n(1)), ("modified_at", n(1))],
            ],
        ),
        (
            "jobs",
            vec![
                vec![("job_id", s("x")), ("queue", s("queued")), ("rank", s("0000#x"))],
                vec![("job_id", s(job)), ("queue", s("placed"))],
                vec![("job_id", s(job)), ("queue", s("queued#1")), ("rank", s(format!("0500#{job}")))],
            ],
        ),
        ("allocs", vec![vec![("alloc_id", s("x")), ("live_node", s("0-x"))]]),
        (
            "handles",
            vec![
                vec![("node_id", s("x")), ("handle", s("y")), ("due", s("due")), ("due_at", n(5))],
                vec![("node_id", s("x")), ("handle", s("y")), ("due", s("due")), ("due_at", far)],
            ],
        ),
    ]
}

/// The words of a run about rows of this table. poll-and-scale reads no handles, and only clean-stale-records sees a
/// job that appears only in an index.
fn words(table: &str, appears: bool) -> Option<&'static str> {
    match table {
        "nodes" => Some("of table nodes cannot be read"),
        "allocs" => Some("of table allocs cannot be read"),
        "control" => Some("of table control cannot be read"),
        "jobs" if !appears => Some("of table jobs cannot be read"),
        _ => None,
    }
}

fn state(
    name: String,
    table: &str,
    appears: bool,
    edits: impl Fn(&Town) -> Vec<Edit> + Send + Sync + 'static,
) -> State {
    let fate = Unreadable(words(table, appears));
    State { name: name.leak(), fate, edits: Box::leak(Box::new(edits)) }
}

pub fn unreadable() -> Vec<State> {
    let mut states = Vec::new();
    for (table, cases) in attributes() {
        for (attribute, value) in cases {
            states.push(state(format!("{table}: {attribute} becomes {value:?}"), table, false, move |town| {
                let key = match table {
                    "nodes" => node_key(town.broken.node),
                    "jobs" => job_key(town.broken.job),
                    "allocs" => alloc_key(town.broken.alloc),
                    _ => container(town),
                };
                vec![Set(table, key, vec![(attribute, value.clone())])]
            }));
        }
    }
    for (table, cases) in rows() {
        for row in cases {
            states.push(state(format!("{table}: {row:?}"), table, true, move |_| vec![Put(table, item(&row))]));
        }
    }
    states
}
