//! Rows that cannot be read: such a row is left as it is, its subject is left alone, and everything else goes on.
//!
//! In each case, one job runs, and one attribute of one row of its life becomes nonsense, or a nonsense row appears. Then
//! another job must run to its end while the broken row stays untouched and is named. After the row is repaired, everything
//! ends as usual.

use crate::raw::{Item, Raw, n, s, without_pulse};
use crate::world::{World, job, lonely_job, patient_policy};
use aws_sdk_dynamodb::types::AttributeValue;
use model::ids::{AllocId, NodeId};
use model::{ClientStatus, Job, JobState};
use runtime::answer::Outcome;

/// A world in which one job runs alone on its node.
struct Broken {
    world: World,
    raw: Raw,
    job: Job,
    alloc: AllocId,
    node: NodeId,
    instance: String,
}

impl Broken {
    async fn new() -> Self {
        let mut world = World::with(patient_policy(), ec2_stand_in::Ec2Settings::default()).await;
        let job = world.submit(lonely_job()).await;
        for _ in 0..30 {
            world.step().await;
            let allocs = world.look.live_allocs().await.unwrap();
            if let [alloc] = allocs.as_slice()
                && alloc.client == ClientStatus::Running
            {
                let record = world.look.node(alloc.node_id.slot()).await.unwrap().unwrap();
                let instance = record.life().unwrap().instance_id.clone().unwrap();
                let (alloc, node) = (alloc.alloc_id, alloc.node_id);
                let raw = Raw::of(&world);
                return Self { world, raw, job, alloc, node, instance };
            }
        }
        panic!("the job never ran");
    }

    /// The key of the row of the life in this table.
    fn key(&self, table: &str) -> Item {
        let pairs = match table {
            "nodes" => vec![("slot", n(self.node.slot()))],
            "jobs" => vec![("job_id", s(self.job.summary.job_id))],
            "allocs" => vec![("alloc_id", s(self.alloc))],
            "handles" => vec![("node_id", s(self.node)), ("handle", s(self.alloc))],
            other => panic!("{other} has no row of a life"),
        };
        pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// The functions run for two minutes with this row in a table. `part` must be in what a run says about the row; with
    /// `None` the row is for people only.
    async fn hold(&mut self, what: &str, table: &str, key: &Item, broken: &Item, part: Option<&str>) {
        let other = self.world.submit(job(&["1"])).await.summary.job_id;
        let (mut said, mut wrote_over) = (String::new(), false);
        for _ in 0..26 {
            let run = self.world.poll().await.unwrap();
            let rows = run.actions.iter().filter(|a| a.reason.starts_with("the row is not used"));
            let failed: Vec<_> = run.actions.iter().filter(|a| a.outcome == Outcome::Failed).collect();
            assert!(failed.is_empty(), "{what}: the subject of the row is not left alone: {failed:?}");
            said.extend(rows.map(|a| format!("{}: {}\n", a.subject, a.reason)));
            self.world.step().await;
            wrote_over |=
                self.raw.get(table, key).await.map(without_pulse).as_ref() != Some(&without_pulse(broken.clone()));
        }
        assert!(!wrote_over, "{what}: the broken row was changed");
        assert!(part.is_none_or(|part| said.contains(part)), "{what}: nobody said so: {said:?}");
        let ended = self.world.look.job(other).await.unwrap().unwrap();
        assert_eq!(ended.summary.state, JobState::Complete, "{what}: the other job: {:?}", ended.reason);
        let up = |i: &ec2_stand_in::Instance| i.instance_id == self.instance && i.state == ec2_stand_in::State::Running;
        assert!(self.world.ec2.instances().iter().any(up), "{what}: the instance of the broken life was ended");
        let runs = self.world.nodes[&self.instance].protocol.unfinished().contains(&self.alloc);
        assert!(runs, "{what}: the work of the node was ended");
    }

    /// An order about something else on the node. So the node asks for the list of its allocs, and would end those that the
    /// list does not name.
    async fn raise_seq(&self) {
        let record = self.world.look.node(self.node.slot()).await.unwrap().unwrap();
        let told = record.bump_seq(self.world.now()).unwrap();
        self.world.look.write(Some(&record), &told, Vec::new()).await.unwrap();
    }

    /// The row is repaired, and the job is cancelled: everything ends.
    async fn ends(mut self, what: &str) {
        println!("{what}: held, now it ends");
        let job = self.world.look.job(self.job.summary.job_id).await.unwrap().unwrap();
        let policy = &self.world.policy;
        let keep = store::transactions::Retention::of(policy);
        store::transactions::cancel_job(&self.world.look, &job, what, keep, self.world.now()).await.unwrap();
        for _ in 0..300 {
            self.world.step().await;
            if self.world.is_quiet().await {
                return;
            }
        }
        self.world.until_quiet(1).await;
    }
}

/// Each of these attributes of the row of a life becomes nonsense.
async fn attributes(table: &str, cases: &[(&str, Option<AttributeValue>)]) {
    for (attribute, value) in cases {
        let what = format!("{table}: {attribute} becomes {value:?}");
        let mut broken = Broken::new().await;
        let key = broken.key(table);
        let sound = broken.raw.get(table, &key).await.unwrap();
        let mut row = sound.clone();
        // `needs.vcpus` is a part of `needs`.
        let (map, name) = attribute.split_once('.').map_or((None, *attribute), |(map, name)| (Some(map), name));
        let within = match map {
            Some(map) => {
                row.get_mut(map).and_then(|m| if let AttributeValue::M(m) = m { Some(m) } else { None }).unwrap()
            }
            None => &mut row,
        };
        within.remove(name);
        within.extend(value.iter().map(|v| (name.to_owned(), v.clone())));
        assert_ne!(row, sound, "{what}: nothing is broken");
        broken.raw.put(table, &row).await;
        if table == "allocs" {
            broken.raise_seq().await;
        }
        // poll-and-scale reads no handles.
        let part = if table == "handles" { None } else { Some(format!("of table {table} cannot be read")) };
        broken.hold(&what, table, &key, &row, part.as_deref()).await;
        broken.raw.put(table, &sound).await;
        broken.ends(&what).await;
    }
}

/// Each of these rows appears.
async fn rows(table: &str, cases: &[&[(&str, AttributeValue)]], keys: &[&str], part: Option<&str>) {
    for case in cases {
        let row: Item = case.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        let what = format!("{table}: {row:?}");
        let mut broken = Broken::new().await;
        let key: Item =
            row.iter().filter(|(k, _)| keys.contains(&k.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect();
        broken.raw.put(table, &row).await;
        broken.hold(&what, table, &key, &row, part).await;
        broken.raw.delete(table, &key).await;
        broken.ends(&what).await;
    }
}

#[tokio::test]
async fn a_node_record_that_cannot_be_read_is_left_alone() {
    attributes(
        "nodes",
        &[
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
    )
    .await;
}

#[tokio::test]
async fn a_job_that_cannot_be_read_is_left_alone() {
    attributes(
        "jobs",
        &[
            ("version", None),
            ("state", Some(s("tired"))),
            ("needs.nodes", Some(s("one"))),
            ("needs.vcpus", Some(n(-1))),
            ("priority", Some(AttributeValue::Bool(true))),
            ("submitted_at", None),
            ("allocs", Some(s("none"))),
        ],
    )
    .await;
}

#[tokio::test]
async fn an_alloc_that_cannot_be_read_is_left_alone() {
    attributes(
        "allocs",
        &[
            ("version", Some(s("x"))),
            ("client", Some(s("bored"))),
            ("desired", None),
            ("placed_seq", Some(s("x"))),
            ("slot", Some(n(100_000_000))),
            ("needs.vcpus", Some(AttributeValue::L(Vec::new()))),
        ],
    )
    .await;
}

#[tokio::test]
async fn a_handle_that_cannot_be_read_is_left_alone() {
    attributes("handles", &[("state", Some(s("lost"))), ("kind", None), ("seq", Some(s("x")))]).await;
}

#[tokio::test]
async fn an_entry_that_cannot_be_read_stops_nothing() {
    let part = Some("of table control cannot be read");
    rows(
        "control",
        &[
            &[("key", s("limit#quota#account")), ("version", n(1)), ("count", s("many"))],
            &[("key", s("limit#throttled#account")), ("version", s("x"))],
            &[("key", s("brake#leases")), ("version", n(1)), ("since_at", s("x"))],
            &[("key", s("release#orphans")), ("version", n(1)), ("until_at", AttributeValue::Bool(true))],
            &[("key", s("queue_place")), ("version", n(1)), ("count", AttributeValue::L(Vec::new()))],
            &[("key", s("after_place")), ("version", n(1)), ("message", n(7))],
            &[("key", s("of_the_future")), ("version", n(1))],
            &[("key", s("run#poll-and-scale")), ("started_at", s("yesterday"))],
            &[("key", s("last_run")), ("version", n(1)), ("since_at", s("x"))],
            &[("key", s("ingest")), ("version", n(1)), ("since_at", s("x"))],
        ],
        &["key"],
        part,
    )
    .await;
}

#[tokio::test]
async fn a_row_without_a_sensible_key_stops_nothing() {
    let part = |table: &str| format!("of table {table} cannot be read");
    let far = n(9_999_999_999_i64);
    rows(
        "nodes",
        &[
            &[("slot", n(3)), ("state", s("x"))],
            &[("slot", n(999_999_999)), ("state", s("cleaned")), ("version", n(1)), ("modified_at", n(1))],
        ],
        &["slot"],
        Some(&part("nodes")),
    )
    .await;
    rows(
        "jobs",
        &[
            &[("job_id", s("x")), ("queue", s("queued")), ("rank", s("0000#x"))],
            &[("job_id", s("01JD0000000000000000000000")), ("queue", s("placed")), ("rank", s(""))][..2],
            &[
                ("job_id", s("01JD0000000000000000000000")),
                ("queue", s("queued#1")),
                ("rank", s("0500#01JD0000000000000000000000")),
            ],
        ],
        &["job_id"],
        None,
    )
    .await;
    rows("allocs", &[&[("alloc_id", s("x")), ("live_node", s("0-x"))]], &["alloc_id"], Some(&part("allocs"))).await;
    rows(
        "handles",
        &[
            &[("node_id", s("x")), ("handle", s("y")), ("due", s("due")), ("due_at", n(5))],
            &[("node_id", s("x")), ("handle", s("y")), ("due", s("due")), ("due_at", far)],
        ],
        &["node_id", "handle"],
        None,
    )
    .await;
}
