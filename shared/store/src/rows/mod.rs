//! Records as rows: how the model's types become attributes and back, and what changed.
//!
//! Guarantees: optional attributes without a value are left out, never null or empty; a write sets only
//! what changed, so that it never overwrites the pulse by accident.
//! Does not: know any condition except the version.

pub(crate) mod compressed;
#[cfg(test)]
pub(crate) mod defaults;
pub(crate) mod end;
pub(crate) mod job_event;
pub(crate) mod json;
pub(crate) mod listed;

use crate::db::DbError;
use crate::tables::Table;
use crate::write::{Cond, Effect, Item, Key, Write};
use aws_sdk_dynamodb::types::AttributeValue;
use end::End;
use json::{attribute, plain, to_json};
use model::control::{Entry, EntryRow};
use model::events::{Event, Once};
use model::{
    Alloc, AllocId, Array, ControlKey, FailurePolicy, Handle, Job, JobId, JobState, Needs, NodeId, NodeRecord, Slot,
    Time, Version, Work,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Counts that are 0 when they are absent.
const COUNTS: &[&str] = &["failed_count", "lost_count"];

pub(crate) fn s(value: impl ToString) -> AttributeValue {
    AttributeValue::S(value.to_string())
}

pub(crate) fn n(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// The attributes of a value that serializes to an object, defaults included.
fn object(value: &impl Serialize) -> Item {
    match serde_json::to_value(value).map(attribute) {
        Ok(AttributeValue::M(item)) => item,
        // This cannot happen: the model's types are objects, and everything in them has a form in JSON.
        _ => Item::new(),
    }
}

/// The row of a value that serializes to an object, without defaults and without empty attributes.
pub(crate) fn to_item(value: &impl Serialize) -> Item {
    let mut item = object(value);
    leave_out_defaults(&mut item);
    item.retain(|name, value| {
        if let Some(bytes) = compressed::of(name, value) {
            *value = bytes;
        }
        !is_nothing(value)
    });
    item
}

/// Leaves out the parts of a job or an alloc that have their default. Most jobs set few parts, so most of their ends
/// fit into one write unit.
fn leave_out_defaults(item: &mut Item) {
    static DEFAULTS: LazyLock<[(&str, Item); 3]> = LazyLock::new(|| {
        [
            ("needs", object(&Needs::default())),
            ("work", object(&Work::default())),
            ("failure_policy", object(&FailurePolicy::default())),
        ]
    });
    for (name, defaults) in DEFAULTS.iter() {
        if let Some(AttributeValue::M(said)) = item.get_mut(*name) {
            said.retain(|part, value| defaults.get(part) != Some(value));
        }
    }
    item.retain(|name, value| !(COUNTS.contains(&name.as_str()) && *value == n(0)));
}

fn is_nothing(value: &AttributeValue) -> bool {
    match value {
        AttributeValue::S(text) => text.is_empty(),
        AttributeValue::L(list) => list.is_empty(),
        AttributeValue::M(map) => map.is_empty(),
        _ => false,
    }
}

pub(crate) fn from_item<R: DeserializeOwned>(table: Table, item: &Item) -> Result<R, DbError> {
    serde_json::from_value(to_json(item)).map_err(|error| {
        let (table, key) = (table.suffix(), key_text(table, item));
        DbError::Corrupt { table, key, detail: error.to_string() }
    })
}

pub(crate) fn key_text(table: Table, item: &Item) -> String {
    let schema = table.definition().key;
    let value = |name: &str| item.get(name).map(|v| plain(v).to_string()).unwrap_or_default();
    match schema.range {
        Some(range) => format!("{} / {}", value(schema.hash.name), value(range.name)),
        None => value(schema.hash.name),
    }
}

/// A versioned row.
pub trait Record: Serialize + DeserializeOwned + Clone + Send + Sync {
    const TABLE: Table;
    fn key(&self) -> Key;
    fn version(&self) -> Version;
    /// Sets the version that a write gives.
    fn set_version(&mut self, version: Version);
    /// The attributes that only an index needs.
    const INDEXED: &'static [&'static str] = &[];
    /// Adds the attributes that follow from the record, for an index or for the table's stream.
    fn index(&self, _item: &mut Item) {}
}

/// The methods of the version, for a record that keeps it in this field.
macro_rules! versioned {
    ($($field:ident).+) => {
        fn version(&self) -> Version {
            self.$($field).+
        }
        fn set_version(&mut self, version: Version) {
            self.$($field).+ = version;
        }
    };
}

impl Record for NodeRecord {
    const TABLE: Table = Table::Nodes;
    fn key(&self) -> Key {
        node_key(self.slot)
    }
    versioned!(version);
}

impl Record for Job {
    const TABLE: Table = Table::Jobs;
    fn key(&self) -> Key {
        job_key(self.summary.job_id)
    }
    versioned!(summary.version);
    const INDEXED: &'static [&'static str] = &["due", "due_at", "named", "queue", "rank", "tail"];
    fn index(&self, item: &mut Item) {
        item.extend(job_event::end(self).map(|end| (job_event::END.to_owned(), end)));
        let id = self.summary.job_id;
        item.insert("tail".into(), s(tail(id)));
        item.extend(self.summary.name.as_ref().map(|name| ("named".to_owned(), s(named(name, id)))));
        let failed = self.summary.max_failures.map_or(0, |_| self.failed_elements());
        let due = self.summary.due_at().map(|at| (s("due"), n(at.as_ms())));
        if let Some((due, due_at)) = due.or((failed > 0).then(|| (s(failures_of(Array::of(id))), n(failed)))) {
            item.extend([("due".to_owned(), due), ("due_at".to_owned(), due_at)]);
        }
        let (queue, rank): (Cow<'_, str>, String) = match (self.summary.state, self.finished_at) {
            (JobState::Queued, _) if self.summary.follows() => (FOLLOWING.into(), self.summary.rank()),
            (JobState::Queued, _) if self.summary.is_put_off() => (PUT_OFF.into(), self.summary.rank()),
            (JobState::Queued, _) => match &self.summary.share {
                Some(share) => (queue_of(share).into(), self.summary.rank()),
                None => (queued(id).into(), self.summary.rank()),
            },
            (JobState::Placing | JobState::Placed | JobState::Regrouping, _) => ("placed".into(), self.summary.rank()),
            (state, Some(at)) => match End::of(state) {
                Some(end) => (end.of_job(id).into(), ended_rank(at)),
                None => return,
            },
            _ => return,
        };
        item.insert("queue".into(), s(queue));
        item.insert("rank".into(), s(rank));
    }
}

/// The characters of a ULID, in their order. Each can be the last one of an id.
pub(crate) const TAILS: &str = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// The last character of a job's id, which is random.
fn tail(id: JobId) -> char {
    id.to_string().chars().next_back().unwrap_or('0')
}

/// A job's name with its id, so that jobs of one name are in the order of their ids.
pub(crate) fn named(name: &str, id: impl std::fmt::Display) -> String {
    format!("{name}#{id}")
}

/// The `rank` of a job that has ended: the time of its end.
pub(crate) fn ended_rank(at: Time) -> String {
    format!("{:015}", at.as_ms().max(0))
}

/// When a job ended, as its row in the index says.
pub(crate) fn ended_at(row: &Item) -> Option<Time> {
    row.get("rank")?.as_s().ok()?.parse().ok().map(Time::from_ms)
}

/// The values of `queue` that waiting jobs have. One value takes about 1,000 writes a second (DynamoDB developer guide,
/// "Partitions and data distribution"), so many submissions at once need several. A program that puts jobs itself may write
/// the first value.
pub(crate) const QUEUED: [&str; 9] =
    ["queued", "queued#0", "queued#1", "queued#2", "queued#3", "queued#4", "queued#5", "queued#6", "queued#7"];

/// The value of `queue` that a job has while it follows others. A run reads these jobs separately, so that they take no
/// room in its part of the queue.
pub(crate) const FOLLOWING: &str = "held";

/// The value of `queue` that a job has while it is put off: paused, or not placed before a time. No run reads these jobs before
/// they are due.
pub(crate) const PUT_OFF: &str = "put_off";

/// The value of `due` that the failed jobs of this array have, if it has a limit of failures.
pub(crate) fn failures_of(array: Array) -> String {
    format!("failed#{}", array.job(0))
}

/// The value of `queue` that the waiting jobs of a share have.
pub(crate) fn queue_of(share: &str) -> String {
    format!("share#{share}")
}

/// The value of `queue` for a waiting job of no share. It follows from the id, so every version of the row has the same one.
fn queued(id: JobId) -> &'static str {
    let [first, shards @ ..] = &QUEUED;
    let shard = usize::from(id.random_byte()) % shards.len();
    shards.get(shard).unwrap_or(first)
}

impl Record for Alloc {
    const TABLE: Table = Table::Allocs;
    fn key(&self) -> Key {
        alloc_key(self.id())
    }
    versioned!(version);
    const INDEXED: &'static [&'static str] = &["ended", "live_node"];
    fn index(&self, item: &mut Item) {
        let (name, value) = match self.summary.client.is_final() {
            true => ("ended", s(tail(self.id().job_id))),
            false => ("live_node", s(self.summary.node_id)),
        };
        item.insert(name.into(), value);
    }
}

impl<E: Entry> Record for EntryRow<E> {
    const TABLE: Table = Table::Control;
    fn key(&self) -> Key {
        Key::hash(Table::Control, s(&self.key))
    }
    versioned!(version);
}

pub fn control_key(key: &ControlKey) -> Key {
    Key::hash(Table::Control, s(key))
}

pub fn node_key(slot: Slot) -> Key {
    Key::hash(Table::Nodes, n(slot))
}

pub fn job_key(job: JobId) -> Key {
    Key::hash(Table::Jobs, s(job))
}

pub fn alloc_key(alloc: AllocId) -> Key {
    Key::hash(Table::Allocs, s(alloc))
}

pub fn handle_key(node: NodeId, handle: &str) -> Key {
    Key { table: Table::Handles, hash: s(node), range: Some(s(handle)) }
}

pub(crate) fn event_key(subject: &str, id: &str) -> Key {
    Key { table: Table::Events, hash: s(subject), range: Some(s(id)) }
}

/// The row of an event. A row with the key of a submission is none, and is in no list of events.
pub(crate) fn event_row(event: &Event) -> Item {
    let kind = match event.subject.split_once('#') {
        Some(("key", _)) => None,
        Some((SLOT_EVENTS, _)) => Some(SLOT_EVENTS),
        _ => Some(OTHER_EVENTS),
    };
    let last = event.id.chars().next_back().and_then(|last| TAILS.find(last));
    let recent = kind.zip(last).map(|(kind, last)| ("recent".to_owned(), s(recent(kind, last % EVENTS_SPREAD))));
    to_item(event).into_iter().chain(recent).collect()
}

/// The kinds of `recent`: events of slots are read apart.
pub(crate) const SLOT_EVENTS: &str = "slot";
pub(crate) const OTHER_EVENTS: &str = "other";

/// Over how many values of `recent` the events of a kind are spread, by the last character of their ids.
pub(crate) const EVENTS_SPREAD: usize = 8;

pub(crate) fn recent(kind: &str, part: usize) -> String {
    format!("{kind}#{part}")
}

/// Notes that an event was written. The write is a conflict for as long as the event must not be repeated.
pub(crate) fn once_write(once: &Once) -> Write {
    let item = [
        ("subject".to_owned(), s(&once.subject)),
        ("id".to_owned(), s(&once.id)),
        ("expires_at".to_owned(), n(once.expires_at)),
    ];
    let key = Key { table: Table::Events, hash: s(&once.subject), range: Some(s(&once.id)) };
    // An expired row counts as absent: DynamoDB deletes it some time after `expires_at`.
    let is_over = Cond::Any(vec![Cond::Absent("id"), Cond::Lt("expires_at", n(once.written_at.saturating_add(1)))]);
    Write { key, when: vec![is_over], effect: Effect::Put(Item::from(item)) }
}

/// The whole row of a record, index attributes included.
pub fn row<R: Record>(record: &R) -> Item {
    let mut item = to_item(record);
    record.index(&mut item);
    item
}

pub(crate) fn handle_row(handle: &Handle) -> Item {
    let mut item = to_item(handle);
    item.insert("due".into(), s("due"));
    item
}

/// The effect that turns the row `before` into `after`.
pub(crate) fn difference(mut before: Item, after: Item) -> Effect {
    let set: BTreeMap<String, AttributeValue> =
        after.into_iter().filter(|(name, value)| before.remove(name).as_ref() != Some(value)).collect();
    let mut remove: Vec<String> = before.into_keys().collect();
    remove.sort_unstable();
    Effect::Update { set, remove }
}

/// Returns the write that turns `before` into `after`, and `after` with its new version. The write requires the
/// version as read; if `before` is `None`, it requires that there is no row.
pub fn change<R: Record>(before: Option<&R>, after: &R) -> (Write, R) {
    let mut after = after.clone();
    after.set_version(before.map_or(Version::UNWRITTEN, Record::version).next());
    let key = after.key();
    let write = match before {
        None => {
            let hash = R::TABLE.definition().key.hash.name;
            Write { key, when: vec![Cond::Absent(hash)], effect: Effect::Put(row(&after)) }
        }
        Some(before) => {
            // A record does not show whether its row has the attributes of the index. So each write sets or removes them.
            let mut as_read_row = row(before);
            as_read_row.extend(R::INDEXED.iter().map(|name| ((*name).to_owned(), AttributeValue::Null(true))));
            Write { key, when: vec![as_read(before)], effect: difference(as_read_row, row(&after)) }
        }
    };
    (write, after)
}

/// The condition that a record is as it was read.
pub fn as_read<R: Record>(record: &R) -> Cond {
    Cond::Eq("version", n(record.version().number()))
}

/// A check, in a transaction, that a record is as it was read.
pub fn unchanged<R: Record>(record: &R) -> Write {
    Write { key: record.key(), when: vec![as_read(record)], effect: Effect::Check }
}

#[cfg(test)]
mod tests {
    use super::*;
    use json::to_json;
    use model::fixtures::{self, at};

    #[test]
    fn a_transition_writes_only_what_changed() {
        let before = fixtures::ready(0);
        let after = before.with_alloc(fixtures::alloc_id(0), at(90)).unwrap();
        let (write, after) = change(Some(&before), &after);
        let Effect::Update { set, remove } = &write.effect else { panic!("no update") };
        let set: Vec<&str> = set.keys().map(String::as_str).collect();
        assert_eq!(set, ["allocs", "modified_at", "reason", "seq", "version"]);
        assert_eq!(remove, &["idle_since_at"]);
        assert_eq!(write.when, [Cond::Eq("version", n(before.version.number()))]);
        assert_eq!(after.version, before.version.next());
    }

    #[test]
    fn rows_read_back_as_the_records_they_were() {
        let node = fixtures::ready(3).with_alloc(fixtures::alloc_id(0), at(90)).unwrap();
        assert_eq!(from_item::<NodeRecord>(Table::Nodes, &row(&node)).unwrap(), node);
        let job = fixtures::job(1).with_placed(&[fixtures::alloc_id(1)]).unwrap();
        assert_eq!(from_item::<Job>(Table::Jobs, &row(&job)).unwrap(), job);
        let alloc = Alloc::place(fixtures::alloc_id(1), &job, &fixtures::ready(1), at(1)).unwrap();
        assert_eq!(from_item::<Alloc>(Table::Allocs, &row(&alloc)).unwrap(), alloc);
    }

    #[test]
    fn everything_a_row_can_hold_reads_back() {
        let (kind, state) = (model::HandleKind::Container, model::HandleState::Live);
        let handle = Handle {
            deadline_at: Some(model::time::Time::from_ms(i64::MIN)),
            missing_ms: Some(-1),
            ..Handle::new(fixtures::node_id(1), "c".into(), kind, state, u64::MAX, at(0))
        };
        assert_eq!(from_item::<Handle>(Table::Handles, &handle_row(&handle)).unwrap(), handle);
        let detail = serde_json::json!({"list": [1, -2, 0.5, "x", null, true, {"empty": []}], "map": {"a": ""}});
        let rng = model::rng::Rng::seeded(1);
        let event = model::events::Event::new(
            &model::events::Subject::Cluster,
            model::ActionName::Warn,
            "",
            at(1),
            model::time::Span::ZERO,
            &rng,
        )
        .with("detail", detail);
        let item = to_item(&event);
        assert!(!item.contains_key("reason"));
        assert_eq!(from_item::<model::events::Event>(Table::Events, &item).unwrap(), event);
        assert_eq!(to_json(&item)["detail"]["detail"], event.detail["detail"]);
    }

    #[test]
    fn a_row_that_cannot_be_understood_says_why() {
        let good = row(&fixtures::ready(3));
        let detail = |name: &str, value: Option<AttributeValue>| {
            let mut bad = good.clone();
            bad.remove(name);
            bad.extend(value.map(|v| (name.to_owned(), v)));
            from_item::<NodeRecord>(Table::Nodes, &bad).unwrap_err().to_string()
        };
        let says = |why: &str| format!("row 3 of table nodes cannot be understood: {why}: repair or delete it");
        assert_eq!(detail("gate_seq", None), says("missing field `gate_seq`"));
        assert_eq!(detail("node_id", Some(s("x"))), says("node id \"x\" is not {slot}-{ULID}"));
        assert_eq!(detail("attempt", Some(s("two"))), says("invalid type: string \"two\", expected u32"));
        assert_eq!(detail("version", Some(n("1.5"))), says("invalid type: floating point `1.5`, expected u64"));
        assert_eq!(
            detail("market", Some(s("gift"))),
            says("unknown variant `gift`, expected one of `on_demand`, `spot`, `reserved`")
        );
        assert_eq!(
            detail("allocs", Some(AttributeValue::Bool(true))),
            says("invalid type: boolean `true`, expected a sequence")
        );
    }

    #[test]
    fn an_empty_set_disappears_and_a_cancelled_job_leaves_the_queue() {
        let job = fixtures::job(1);
        assert!(!row(&job).contains_key("allocs"));
        assert!(row(&job).contains_key("queue"));
        let cancelled = job.cancel("ann", model::time::Span::from_s(1), at(1)).unwrap();
        let (write, _) = change(Some(&job), &cancelled);
        let Effect::Update { set, remove } = write.effect else { panic!("no update") };
        assert!(
            remove == ["due", "due_at", "named"] && set["queue"].as_s().unwrap().starts_with("cancelled#"),
            "{set:?} {remove:?}"
        );
    }

    #[test]
    fn a_job_that_ended_is_in_the_index_by_the_time_of_its_end() {
        let rejected = fixtures::job(1).reject("too large", model::time::Span::from_s(1), at(7)).unwrap();
        let item = row(&rejected);
        assert!(End::Failed.values().contains(&item["queue"].as_s().unwrap().as_str()), "{item:?}");
        assert_eq!(ended_at(&item), Some(at(7)));
    }

    #[test]
    fn a_node_record_without_many_allocs_stays_under_one_write_unit() {
        // A write unit is 1 KiB of names and values (AWS: "DynamoDB item sizes and formats").
        let mut offering = fixtures::offering();
        offering.subnet_id = Some("subnet-0123456789abcdef0".into());
        offering.zone = Some("ap-southeast-2a".into());
        offering.template = "lt-0123456789abcdef0".into();
        offering.template_version = Some(12);
        offering.instance_type = "u7in-32tb.224xlarge".into();
        let life = model::NewLife { offering, request_digest: "0123456789abcdef".into(), ..fixtures::new_life(63) };
        let heartbeat = model::wire::Heartbeat {
            boot_id: "123e4567-e89b-12d3-a456-426614174000".into(),
            address: Some("255.255.255.255".into()),
            health: model::wire::NodeHealth {
                busy: true,
                gpus_usable: 8,
                reaches: Some("registry docker.io,s3,secretsmanager".into()),
                ..Default::default()
            },
            uptime_ms: Some(99_999_999_999),
            ..fixtures::heartbeat("i-0123456789abcdef0")
        };
        let mut node = NodeRecord::assign(fixtures::slot(63), None, life, at(0), "x")
            .unwrap()
            .register(&heartbeat, "01JD0000000000000000000000", at(1), at(1))
            .unwrap()
            .open_gate(at(2))
            .unwrap()
            .with_alloc(fixtures::alloc_id(1), at(3))
            .unwrap()
            .with_intent(model::Intent::Drain, Some(at(9)), at(4))
            .unwrap()
            .note_unlisted(Some(at(4)), at(4))
            .unwrap();
        node.reason = "r".repeat(model::MAX_REASON_BYTES);
        let mut item = row(&node);
        item.insert("settled".into(), s("123456#0123456789abcdef"));
        let size = |v: &AttributeValue| match v {
            AttributeValue::S(t) => t.len(),
            AttributeValue::N(t) => t.len() / 2 + 2,
            AttributeValue::L(l) => l.iter().map(|id| id.as_s().unwrap().len() + 1).sum::<usize>() + 3,
            _ => 1,
        };
        let bytes: usize = item.iter().map(|(k, v)| k.len() + size(v)).sum();
        assert!(bytes < 1024, "{bytes} bytes");
    }
}
