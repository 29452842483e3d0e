//! States that no run of nodekeeper makes. They come from a person, another program, a wrong clock, or tables that were
//! restored to different moments. Each state, alone and with another one, is put into a living cluster. Then it must
//! become right, or its row must be quarantined and named, within the stated time. The neighbours must not notice.
//!
//! Every case has two nodes with one job each. The state concerns the first job and its node. The second job and its
//! node are the neighbours, and their rows must stay as they are. A third job is submitted after the break, and must
//! run to its end: while a row cannot be read (`unreadable`), or otherwise after the state was put right.

mod states;
mod town;
mod unreadable;

use self::states::{Delete, Edit, Put, Quarantine, Right, STATES, Set, State, Unreadable};
use self::town::{Life, Town};
use crate::world::job;
use crate::world::raw::{Item, without_pulse};
use aws_sdk_dynamodb::types::AttributeValue;
use model::{AllocId, JobId, JobState, NodeState, Span};
use runtime::answer::ActionOutcome;
use runtime::observation::Observation;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

impl Town {
    /// Makes these edits. `false` if there is no such row: in a pair, the first state may have deleted the row of the
    /// second.
    async fn edit(&self, edits: &[Edit], is_first: bool) -> bool {
        for edit in edits {
            match edit {
                Set(table, key, values) => {
                    let row = self.raw.get(table, key).await;
                    assert!(row.is_some() || !is_first, "{table} has no {key:?}");
                    let Some(mut row) = row else { return false };
                    for (name, value) in values {
                        let within = match name.split_once('.') {
                            Some((map, _)) => row.get_mut(map).and_then(as_map).unwrap(),
                            None => &mut row,
                        };
                        let name = name.rsplit('.').next().unwrap();
                        within.remove(name);
                        within.extend(value.iter().map(|v| (name.to_owned(), v.clone())));
                    }
                    self.raw.put(table, &row).await;
                }
                Put(table, row) => self.raw.put(table, row).await,
                Delete(table, key) => self.raw.delete(table, key).await,
            }
        }
        true
    }

    /// Gives the first node an order about something else. So the node asks for the list of its allocs, and would end
    /// allocs that the list does not name.
    async fn raise_seq(&self) {
        let record = self.world.record(self.broken.node).await;
        let told = record.bump_seq(self.world.now()).unwrap();
        self.world.look.write(Some(&record), &told, Vec::new()).await.unwrap();
    }

    /// Runs poll-and-scale while a table has this row. The run must leave the subject of the row alone. Returns what
    /// the run says.
    async fn decides(&self) -> String {
        let run = self.world.poll().await.unwrap();
        let failed: Vec<_> = run.actions.iter().filter(|a| a.outcome == ActionOutcome::Failed).collect();
        assert!(failed.is_empty(), "the subject of the row is not left alone: {failed:?}");
        run.actions.iter().map(|a| format!("{}: {}\n", a.subject, a.reason)).collect()
    }

    /// The work of the first life goes on, and the other job has ended.
    async fn goes_on(&self, other: JobId, name: &str) {
        let ended = self.world.look.job(other).await.unwrap().unwrap();
        assert_eq!(ended.summary.state, JobState::Complete, "{name}: the other job: {:?}", ended.reason);
        let Life { instance, alloc, .. } = &self.broken;
        let up = |i: &ec2_stand_in::Ec2Instance| {
            i.instance_id == *instance && i.state == ec2_stand_in::InstanceState::Running
        };
        assert!(self.world.ec2.instances().iter().any(up), "{name}: the instance of the broken life was ended");
        let runs = self.world.nodes[instance].protocol.unfinished().contains(alloc);
        assert!(runs, "{name}: the work of the node was ended");
    }

    /// Every row of the tables that decisions use, by table and key.
    async fn rows(&self) -> BTreeMap<String, Item> {
        let mut all = BTreeMap::new();
        let keys = [("nodes", "slot", None), ("jobs", "job_id", None), ("allocs", "alloc_id", None)];
        let more = [("handles", "node_id", Some("handle")), ("control", "key", None)];
        for (table, hash, range) in keys.into_iter().chain(more) {
            for row in self.raw.rows(table).await {
                let text = |name: &str| match row.get(name) {
                    Some(AttributeValue::S(text) | AttributeValue::N(text)) => text.clone(),
                    other => format!("{other:?}"),
                };
                let range = range.map(|range| format!("/{}", text(range))).unwrap_or_default();
                all.insert(format!("{table} {}{range}", text(hash)), row);
            }
        }
        all
    }

    /// The rows of the neighbour, without what changes in a quiet cluster: pulses, and the next look at a handle.
    fn of_neighbour(&self, rows: &BTreeMap<String, Item>) -> BTreeMap<String, Item> {
        let Life { job, node, .. } = &self.neighbour;
        let names = [format!("nodes {}", node.slot()), job.to_string(), node.to_string()];
        let is_its = |key: &&String| *key == &names[0] || names[1..].iter().any(|name| key.contains(name));
        let steady = |key: &String, row: &Item| {
            let mut row = without_pulse(row.clone());
            if key.starts_with("handles") {
                row.remove("due_at");
            }
            row
        };
        rows.iter().filter(|(key, _)| is_its(key)).map(|(key, row)| (key.clone(), steady(key, row))).collect()
    }

    /// Names everything that is wrong in the cluster. The text is empty if nothing is wrong.
    async fn wrongs(&self) -> String {
        let (world, mut wrongs) = (&self.world, String::new());
        let seen = Observation::read(&world.look, &*world.cloud, world.now()).await.unwrap();
        for row in &seen.quarantined.rows {
            writeln!(wrongs, "quarantined: {}: {}", row.subject, row.what).unwrap();
        }
        let live: BTreeSet<AllocId> = seen.allocs.iter().map(|alloc| alloc.alloc_id).collect();
        let of_nodes: BTreeSet<AllocId> =
            seen.nodes.iter().filter_map(|n| n.life()).flat_map(|life| life.allocs.iter().copied()).collect();
        let of_jobs: BTreeSet<AllocId> = seen.jobs.iter().flat_map(|job| job.allocs.iter().copied()).collect();
        if live != of_nodes || live != of_jobs {
            writeln!(wrongs, "live allocs {live:?}, of nodes {of_nodes:?}, of jobs {of_jobs:?}").unwrap();
        }
        for job in &seen.jobs {
            if job.state == JobState::Regrouping || (job.state == JobState::Placed) == job.allocs.is_empty() {
                writeln!(wrongs, "job {} is {} with allocs {:?}", job.job_id, job.state, job.allocs).unwrap();
            }
        }
        for alloc in seen.allocs.iter().filter(|alloc| alloc.client != model::ClientStatus::Running) {
            writeln!(wrongs, "alloc {} is {}", alloc.alloc_id, alloc.client).unwrap();
        }
        for record in &seen.nodes {
            if let NodeState::InUse(_) | NodeState::Cleaned { .. } = record.state {
                let Some(node_id) = record.node_id() else { continue };
                if record.is_cleaned() {
                    continue;
                }
                if !record.takes_work() {
                    writeln!(wrongs, "node {node_id} takes no work").unwrap();
                }
                let handles = world.look.handles_of(node_id).await.unwrap();
                let latest = world.now() + Span::from_s(2 * 86_400);
                let used: BTreeSet<String> = record.life().unwrap().allocs.iter().map(ToString::to_string).collect();
                if !handles.unreadable.is_empty() || handles.rows.iter().any(|row| row.due_at > latest) {
                    writeln!(wrongs, "handles of {node_id}: {handles:?}").unwrap();
                }
                for row in handles.rows.iter().filter(|row| used.contains(&row.handle)) {
                    if row.state != model::HandleState::Live {
                        writeln!(wrongs, "handle {} of a live alloc is {}", row.handle, row.state).unwrap();
                    }
                }
            }
        }
        for instance in world.ec2.instances() {
            let is_up = instance.state == ec2_stand_in::InstanceState::Running;
            let bound = seen
                .nodes
                .iter()
                .filter_map(|n| n.life())
                .any(|life| life.instance_id.as_ref() == Some(&instance.instance_id));
            if is_up && !bound {
                writeln!(wrongs, "instance {} has no record", instance.instance_id).unwrap();
            }
        }
        wrongs
    }

    /// Whether a run found a row that is not used, which raises the sign `row`, or an event names it: the rows of handles that are
    /// not due have only an event.
    async fn is_named(&self) -> bool {
        let seen = Observation::read(&self.world.look, &*self.world.cloud, self.world.now()).await.unwrap();
        let events = self.raw.rows("events").await;
        let reason = |event: &Item| {
            event.get("reason").and_then(|v| v.as_s().ok()).is_some_and(|r| r.contains("the row is not used"))
        };
        !seen.quarantined.rows.is_empty() || events.iter().any(reason)
    }
}

/// Makes the edits of these states. Returns the rows after them, and the keys of those that stay quarantined until a
/// person corrects them. `None` if the states are not possible together.
async fn put(
    town: &Town,
    states: &[&State],
    sound: &BTreeMap<String, Item>,
) -> Option<(BTreeMap<String, Item>, BTreeSet<String>)> {
    let mut broken = sound.clone();
    let mut keys: BTreeSet<String> = BTreeSet::new();
    for (i, state) in states.iter().enumerate() {
        let edits = (state.edits)(town);
        if !town.edit(&edits, i == 0).await {
            return None;
        }
        let rows = town.rows().await;
        let is_its = |key: &&String| rows.get(*key) != broken.get(*key);
        let changed: BTreeSet<String> = rows.keys().chain(broken.keys()).filter(is_its).cloned().collect();
        // The second state has replaced a row of the first state, so the first state is gone.
        if edits.iter().any(|edit| matches!(edit, Put(..) | Delete(..))) && !keys.is_disjoint(&changed) {
            return None;
        }
        broken = rows;
        if !matches!(state.fate, Right(_)) {
            if matches!(state.fate, Unreadable(_)) && changed.iter().any(|key| key.starts_with("allocs")) {
                town.raise_seq().await;
                broken = town.rows().await;
            }
            keys.extend(changed);
        }
    }
    Some((broken, keys))
}

/// Puts these states into a living cluster. Returns a row for the table of results.
async fn case(states: &[&State]) -> String {
    let name = states.iter().map(|state| state.name).collect::<Vec<_>>().join(" + ");
    let mut town = Town::new().await;
    let sound = town.rows().await;
    let neighbour = town.of_neighbour(&sound);
    assert!(neighbour.len() >= 4, "{neighbour:?}");
    let Some((broken, keys)) = put(&town, states, &sound).await else {
        return format!("| {name} | not possible together | |");
    };
    let aside = !keys.is_empty();
    let words = states.iter().find_map(|state| if let Unreadable(words) = state.fate { Some(words) } else { None });
    let most = states
        .iter()
        .map(|state| match state.fate {
            Right(most) => most,
            Quarantine => 12,
            Unreadable(_) => 26,
        })
        .max()
        .unwrap_or(0);
    let third = town.world.submit(job(&["1"])).await.summary.job_id;
    let mut steps = 0;
    let (mut wrongs, mut said) = (String::new(), String::new());
    while steps < most {
        if words.is_some() {
            said.push_str(&town.decides().await);
        }
        town.world.step().await;
        steps += 1;
        wrongs = town.wrongs().await;
        if wrongs.is_empty() && !aside {
            break;
        }
    }
    let mut fate = format!("right after {steps} steps");
    if aside {
        match words {
            Some(words) => {
                assert!(words.is_none_or(|words| said.contains(words)), "{name}: nobody said so: {said}");
                town.goes_on(third, &name).await;
            }
            None => assert!(town.is_named().await, "{name}: nobody said so"),
        }
        let now = town.rows().await;
        for key in keys.iter().filter(|_| states.len() == 1) {
            let steady = |rows: &BTreeMap<String, Item>| rows.get(key).cloned().map(without_pulse);
            assert_eq!(steady(&now), steady(&broken), "{name}: {key} was changed while it was quarantined");
        }
        // A person corrects the rows.
        for key in &keys {
            let (table, _) = key.split_once(' ').unwrap();
            let table = ["nodes", "jobs", "allocs", "handles", "control"].into_iter().find(|t| *t == table).unwrap();
            let (row, was) = (broken.get(key), sound.get(key));
            match (was, row) {
                (Some(was), _) => town.raw.put(table, was).await,
                (None, Some(row)) => town.raw.delete(table, &key_of(table, row)).await,
                (None, None) => {}
            }
        }
        fate = "quarantined and named".to_owned();
        let mut more = 0;
        while more < 60 {
            town.world.step().await;
            more += 1;
            wrongs = town.wrongs().await;
            if wrongs.is_empty() {
                break;
            }
        }
        write!(fate, ", right {more} steps after the correction").unwrap();
    }
    assert_eq!(wrongs, "", "{name}: it does not become right");
    for _ in 0..40 {
        if town.world.look.job(third).await.unwrap().unwrap().summary.state.is_ended() {
            break;
        }
        town.world.step().await;
    }
    let ended = town.world.look.job(third).await.unwrap().unwrap();
    assert_eq!(ended.summary.state, JobState::Complete, "{name}: the third job: {:?}", ended.reason);
    let after = town.rows().await;
    let neighbour_after = town.of_neighbour(&after);
    let differ: Vec<_> = neighbour.iter().filter(|(key, row)| neighbour_after.get(*key) != Some(row)).collect();
    assert!(differ.is_empty(), "{name}: the neighbour was changed: {differ:?}");
    let runs = &town.world.nodes[&town.neighbour.instance].protocol;
    assert!(runs.unfinished().contains(&town.neighbour.alloc), "{name}: the neighbour's work was ended");
    let others = [third.to_string(), "control ".to_owned()];
    let steady = |rows: &BTreeMap<String, Item>, key: &String| rows.get(key).cloned().map(without_pulse);
    let wrote: Vec<&String> = after
        .keys()
        .chain(broken.keys().filter(|key| !after.contains_key(*key)))
        .filter(|key| steady(&after, key) != steady(&broken, key) && !others.iter().any(|other| key.contains(other)))
        .collect();
    format!("| {name} | {fate} | {} |", wrote.iter().map(|key| format!("`{key}`")).collect::<Vec<_>>().join(", "))
}

fn as_map(value: &mut AttributeValue) -> Option<&mut Item> {
    if let AttributeValue::M(map) = value { Some(map) } else { None }
}

fn key_of(table: &str, row: &Item) -> Item {
    let names: &[&str] = match table {
        "nodes" => &["slot"],
        "jobs" => &["job_id"],
        "allocs" => &["alloc_id"],
        "handles" => &["node_id", "handle"],
        _ => &["key"],
    };
    row.iter().filter(|(name, _)| names.contains(&name.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Into how many tests the cases are divided, so that several threads share them.
const PARTS: usize = 4;

async fn part(part: usize) {
    each(all().into_iter().enumerate().filter(|(i, _)| i % PARTS == part).map(|(_, case)| case)).await;
}

/// Each state alone, and pairs of them.
fn all() -> Vec<Vec<&'static State>> {
    let singles = STATES.iter().map(|state| vec![state]);
    // Each state together with a state far away in the list, so that most pairs concern two tables.
    let pairs = (0..STATES.len()).map(|i| vec![&STATES[i], &STATES[(i * 7 + 13) % STATES.len()]]);
    let pairs = pairs.filter(|pair| pair[0].name != pair[1].name);
    singles.chain(pairs).collect()
}

async fn each(cases: impl Iterator<Item = Vec<&'static State>>) {
    let wanted = std::env::var("BROKEN").unwrap_or_default();
    let mut failed = 0;
    for states in cases.filter(|states| states.iter().any(|state| state.name.contains(&wanted))) {
        // A case that fails has printed its reason, and does not hide the others.
        match tokio::spawn(async move { case(&states).await }).await {
            Ok(row) => println!("{row}"),
            Err(_) => failed += 1,
        }
    }
    assert_eq!(failed, 0, "so many cases failed");
}

#[tokio::test]
async fn broken_states_become_right_or_are_quarantined_0() {
    part(0).await;
}

#[tokio::test]
async fn broken_states_become_right_or_are_quarantined_1() {
    part(1).await;
}

#[tokio::test]
async fn broken_states_become_right_or_are_quarantined_2() {
    part(2).await;
}

#[tokio::test]
async fn broken_states_become_right_or_are_quarantined_3() {
    part(3).await;
}

async fn unreadable(part: usize) {
    let cases: &'static [State] = unreadable::unreadable().leak();
    each(cases.iter().enumerate().filter(|(i, _)| i % 2 == part).map(|(_, state)| vec![state])).await;
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_left_alone_and_stops_nothing_0() {
    unreadable(0).await;
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_left_alone_and_stops_nothing_1() {
    unreadable(1).await;
}

/// The record and the job of a quarantined alloc name it, so a run reads its row again.
#[tokio::test]
async fn a_quarantined_alloc_is_no_part_of_what_a_run_decides_from() {
    let town = Town::new().await;
    let state = STATES.iter().find(|state| state.name == "an alloc in an unknown state").unwrap();
    assert!(town.edit(&(state.edits)(&town), true).await);
    let seen = Observation::read(&town.world.look, &*town.world.cloud, town.world.now()).await.unwrap();
    assert!(seen.quarantined.allocs.contains(&town.broken.alloc));
    assert!(seen.allocs.iter().all(|alloc| alloc.alloc_id != town.broken.alloc));
    assert!(seen.partially_read.contains(&town.broken.node), "nothing is placed or stopped there");
}
