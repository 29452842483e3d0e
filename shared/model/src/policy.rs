//! The policy: what an operator decides, checked as a whole and stored as one versioned item.
//!
//! Guarantees: every knob is documented, bounded and given its default in one table
//! ([`KNOBS`], [`SIZE_KNOBS`]); a [`Policy`] exists only if the whole document is right; a
//! wrong one lists every mistake with its path and what is allowed.
//! Does not: read files, or know where the document is kept (the store does).

use crate::ids::SLOT_CEILING;
use crate::money::Usd;
use crate::node::Capacity;
use crate::time::Span;
use crate::words::Market;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The most bytes of user data EC2 takes, before encoding.
pub const MAX_USER_DATA_BYTES: usize = 16 * 1024;
/// What our own part of the user data may take of that.
pub const OWN_USER_DATA_BYTES: usize = 2 * 1024;

/// A checked policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each knob is documented in KNOBS, the one place")]
pub struct Policy {
    pub nodes: Nodes,
    pub size: Vec<Size>,
    pub launch: Launch,
    pub boot: Boot,
    pub idle: Idle,
    pub shutdown: Shutdown,
    pub stale: Stale,
    pub heartbeat: HeartbeatPolicy,
    pub poll: Poll,
    pub shortage: Shortage,
    pub quota: Quota,
    pub sweep: Sweep,
    pub history: History,
    pub watchdog: Watchdog,
}

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $t:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[allow(missing_docs, reason = "each knob is documented in KNOBS, the one place")]
        pub struct $name { $(pub $field: $t),* }
    )*};
}

sections! {
    /// `[nodes]`
    Nodes { min: u32, max: u32, max_price_per_hour: Usd, memory_usable: f64 }
    /// `[launch]`
    Launch {
        template: Option<String>, subnets: Vec<String>, tags: BTreeMap<String, String>, user_data: String,
        max_per_run: u32, calls_per_second: f64,
    }
    /// `[boot]`
    Boot { timeout_s: i64, failures_before_pause: u32 }
    /// `[idle]`
    Idle { timeout_s: i64, confirmations: u32 }
    /// `[shutdown]`
    Shutdown { windows_min: Vec<u32>, down_after_s: i64 }
    /// `[stale]`
    Stale {
        after_s: i64, orphan_after_s: i64, orphan_brake_min: u32, brake_fraction: f64, brake_min: u32, brake_hold_s: i64,
    }
    /// `[heartbeat]`
    HeartbeatPolicy {
        ttl_s: i64, idle_s: i64, grace_s: i64, max_per_second: f64, brake_fraction: f64, brake_min: u32,
        brake_hold_s: i64, blackout_s: i64,
    }
    /// `[poll]`
    Poll { stale_after_s: i64, min_gap_s: i64 }
    /// `[shortage]`
    Shortage { ttl_s: i64 }
    /// `[quota]`
    Quota { retry_s: i64 }
    /// `[sweep]`
    Sweep {
        missing_grace_s: i64, creating_s: i64, failed_keep_s: i64, cache_unused_s: i64, max_in_flight: u32,
        report_s: i64, cap_fraction: f64, cap_min: u32,
    }
    /// `[history]`
    History { finished_days: i64, events_days: i64 }
    /// `[watchdog]`
    Watchdog { multiplier: f64, reserve_ms: u64 }
}

/// `[[size]]`: a kind of machine that may be launched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "each knob is documented in SIZE_KNOBS, the one place")]
pub struct Size {
    pub name: String,
    pub instance_type: String,
    #[serde(flatten)]
    pub capacity: Capacity,
    pub price_per_hour: Usd,
    pub market: Market,
    pub fallback: Fallback,
    pub max: Option<u32>,
    pub template: Option<String>,
}

/// What a spot size may fall back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// Nothing: wait for spot capacity.
    None,
    /// The same machine at the fixed price.
    OnDemand,
}

/// What values a knob takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number in a range.
    Whole(i64, i64),
    /// A number in a range.
    Number(f64, f64),
    /// Text of at most so many bytes.
    Text(usize),
    /// A name: 1 to 64 letters, digits, `-`, `_` or `.`.
    Name,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A list of texts.
    Texts,
    /// A table of texts.
    TextTable,
    /// A list of minutes, alternately closed and open.
    Windows,
}

/// One knob: its name, values, default and meaning. The reference is made from these.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// `section.name`, or the name alone for a size's.
    pub path: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// Its default as JSON; `None` if it has none and must be given, `Some("null")` if it is optional.
    pub default: Option<&'static str>,
    /// What it means.
    pub doc: &'static str,
}

const fn knob(path: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Knob {
    Knob { path, kind, default: Some(default), doc }
}

const fn required(path: &'static str, kind: Kind, doc: &'static str) -> Knob {
    Knob { path, kind, default: None, doc }
}

const DAY_S: i64 = 86_400;
const SECONDS: Kind = Kind::Whole(0, 366 * DAY_S);
const SECONDS_1: Kind = Kind::Whole(1, 366 * DAY_S);
const COUNT: Kind = Kind::Whole(0, 1_000_000);
const COUNT_1: Kind = Kind::Whole(1, 1_000_000);
const FRACTION: Kind = Kind::Number(0.0, 1.0);

/// Every knob outside `[[size]]`.
pub const KNOBS: &[Knob] = &[
    knob(
        "nodes.min",
        Kind::Whole(0, SLOT_CEILING as i64),
        "0",
        "nodes kept up when there is no work, of the cheapest size",
    ),
    knob(
        "nodes.max",
        Kind::Whole(0, SLOT_CEILING as i64),
        "64",
        "the most nodes at any time: the number of slots, a hard cap",
    ),
    knob(
        "nodes.max_price_per_hour",
        Kind::Number(0.0, 1e6),
        "0",
        "the most all nodes together may cost an hour, in US dollars; 0 for no cap",
    ),
    knob(
        "nodes.memory_usable",
        Kind::Number(0.01, 1.0),
        "0.95",
        "the share of a size's memory that jobs get; the rest is the system's",
    ),
    knob(
        "launch.template",
        Kind::Text(128),
        "null",
        "the launch template's id (lt-…) or name, for sizes that name none; image, instance profile and security groups stand there",
    ),
    knob("launch.subnets", Kind::Texts, "[]", "subnets to launch in, tried in order; empty: the template's"),
    knob("launch.tags", Kind::TextTable, "{}", "further tags for every instance"),
    knob(
        "launch.user_data",
        Kind::Text(MAX_USER_DATA_BYTES - OWN_USER_DATA_BYTES),
        "\"\"",
        "shell commands run at the first boot, after the node's configuration is written: start the agent here unless the image does",
    ),
    knob("launch.max_per_run", COUNT_1, "60", "the most launches a run"),
    knob(
        "launch.calls_per_second",
        Kind::Number(0.01, 1000.0),
        "2",
        "launch calls a second; EC2 refills RunInstances at 2 a second",
    ),
    knob("boot.timeout_s", SECONDS_1, "1800", "a node not heard from for so long after its launch is given up"),
    knob("boot.failures_before_pause", COUNT_1, "10", "failed starts in a row that pause launching"),
    knob("idle.timeout_s", SECONDS, "120", "a node is shut down after being idle for so long"),
    knob("idle.confirmations", Kind::Whole(1, 1000), "2", "and after being seen idle by so many runs"),
    knob(
        "shutdown.windows_min",
        Kind::Windows,
        "[]",
        "minutes since the launch, alternately closed and open, repeated: [54, 5, 1] opens from minute 54 to 59 of every hour; empty: always open",
    ),
    knob("shutdown.down_after_s", SECONDS, "600", "a silent node is shut down after so long"),
    knob(
        "stale.after_s",
        SECONDS_1,
        "7200",
        "a record without a live instance, neither written nor pinged for so long, is cleaned",
    ),
    knob("stale.orphan_after_s", SECONDS_1, "600", "an instance that no record claims is terminated when it is older"),
    knob("stale.orphan_brake_min", COUNT, "3", "more orphans than this at once wait for an operator"),
    knob(
        "stale.brake_fraction",
        FRACTION,
        "0.5",
        "when more than this share of the records would be cleaned as missing at once, they wait",
    ),
    knob("stale.brake_min", COUNT, "3", "and more than this many"),
    knob("stale.brake_hold_s", SECONDS, "300", "for so long"),
    knob("heartbeat.ttl_s", SECONDS_1, "60", "a working node's heartbeats are so far apart, up to 1.5 times that"),
    knob("heartbeat.idle_s", SECONDS_1, "10", "an idle node's heartbeats are so far apart: how fast new work starts"),
    knob("heartbeat.grace_s", SECONDS, "30", "how much later a heartbeat may come"),
    knob(
        "heartbeat.max_per_second",
        Kind::Number(0.1, 1e6),
        "1000",
        "heartbeats of the whole fleet a second; beyond that each node calls less often",
    ),
    knob(
        "heartbeat.brake_fraction",
        FRACTION,
        "0.33",
        "when more than this share of the leases expires at once, none is expired",
    ),
    knob("heartbeat.brake_min", COUNT, "3", "and more than this many"),
    knob("heartbeat.brake_hold_s", SECONDS, "300", "for so long"),
    knob(
        "heartbeat.blackout_s",
        SECONDS,
        "1800",
        "when all nodes are silent it is our fault rather than theirs: none is expired for so long",
    ),
    knob("poll.stale_after_s", SECONDS_1, "45", "a run does not act on what it read longer ago"),
    knob("poll.min_gap_s", SECONDS, "5", "runs woken by events are at least so far apart"),
    knob(
        "shortage.ttl_s",
        SECONDS_1,
        "180",
        "an offering that was short is tried again after so long, doubled at each success of waiting",
    ),
    knob("quota.retry_s", SECONDS_1, "60", "after a quota refusal nothing is launched for so long"),
    knob("sweep.missing_grace_s", SECONDS, "300", "a handle that reports miss for so long is gone"),
    knob("sweep.creating_s", Kind::Whole(1, DAY_S), "600", "a handle must have appeared after so long"),
    knob(
        "sweep.failed_keep_s",
        Kind::Whole(0, DAY_S),
        "3600",
        "what a failed alloc left is kept for so long; `nodekeeper keep` keeps it longer",
    ),
    knob("sweep.cache_unused_s", SECONDS, "86400", "a cache unused for so long is destroyed"),
    knob("sweep.max_in_flight", Kind::Whole(1, 1000), "20", "handles a node is told to destroy at once"),
    knob("sweep.report_s", SECONDS_1, "30", "a node reports its handles so far apart, up to 1.5 times that"),
    knob(
        "sweep.cap_fraction",
        FRACTION,
        "0.25",
        "a report by which more than this share of a node's handles would be destroyed as unknown or dropped as missing is held",
    ),
    knob("sweep.cap_min", COUNT, "10", "if they are more than this many"),
    knob("history.finished_days", Kind::Whole(1, 3650), "7", "ended jobs and allocs are kept for so long"),
    knob("history.events_days", Kind::Whole(1, 3650), "14", "events are kept for so long"),
    knob(
        "watchdog.multiplier",
        Kind::Number(1.0, 1000.0),
        "5",
        "a function is overdue after so many of its periods without a success",
    ),
    knob(
        "watchdog.reserve_ms",
        Kind::Whole(0, 30_000),
        "5000",
        "no action is begun with less than this left before the deadline",
    ),
];

/// Every knob of a `[[size]]`.
pub const SIZE_KNOBS: &[Knob] = &[
    required("name", Kind::Name, "its name in this policy"),
    required("instance_type", Kind::Name, "EC2's name, like m7a.large"),
    required("vcpus", Kind::Whole(1, 1 << 20), "vCPUs"),
    required("memory_mib", Kind::Whole(1, 1 << 32), "memory, in MiB"),
    knob("scratch_gib", Kind::Whole(0, 1 << 32), "0", "scratch space, in GiB"),
    knob("gpus", Kind::Whole(0, 1 << 20), "0", "GPUs"),
    required(
        "price_per_hour",
        Kind::Number(0.0, 1e6),
        "what it costs, in US dollars: decides which fitting size is cheapest",
    ),
    knob("market", Kind::OneOf(&["on_demand", "spot"]), "\"on_demand\"", "how it is bought"),
    knob(
        "fallback",
        Kind::OneOf(&["none", "on_demand"]),
        "\"none\"",
        "what a spot size falls back to when spot is short",
    ),
    knob("max", Kind::Whole(0, SLOT_CEILING as i64), "null", "the most nodes of this size; none: no cap of its own"),
    knob("template", Kind::Text(128), "null", "its launch template; none: launch.template"),
];

/// One thing that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Where, like `size[2].vcpus`.
    pub path: String,
    /// What is there and what is allowed.
    pub message: String,
}

/// Everything that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the policy has {} mistake(s):\n{}", .0.len(), list(.0))]
pub struct BadPolicy(pub Vec<Mistake>);

fn list(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(|m| format!("  {}: {}", m.path, m.message)).collect::<Vec<_>>().join("\n")
}

impl History {
    /// How long ended jobs and allocs are kept.
    pub const fn keep_finished(&self) -> Span {
        Span::from_s(self.finished_days.saturating_mul(86_400))
    }

    /// How long events are kept.
    pub const fn keep_events(&self) -> Span {
        Span::from_s(self.events_days.saturating_mul(86_400))
    }
}

impl Policy {
    /// Reads and checks a TOML document.
    pub fn from_toml(text: &str) -> Result<Self, BadPolicy> {
        let table: toml::Table = toml::from_str(text).map_err(|e| {
            let message = e.to_string().trim_end().replace('\n', "\n    ");
            BadPolicy(vec![Mistake { path: "the file".into(), message: format!("is not TOML: {message}") }])
        })?;
        let value = serde_json::to_value(table).map_err(|e| unreadable(&e))?;
        Self::from_json(&value)
    }

    /// Checks a document in its JSON form: the same names, sections as objects, `size` as a list.
    pub fn from_json(document: &Value) -> Result<Self, BadPolicy> {
        let mut checker = Checker { mistakes: Vec::new() };
        let complete = checker.document(document);
        if checker.mistakes.is_empty() {
            let policy: Self = serde_json::from_value(complete).map_err(|e| unreadable(&e))?;
            checker.whole(&policy);
            if checker.mistakes.is_empty() {
                return Ok(policy);
            }
        }
        Err(BadPolicy(checker.mistakes))
    }

    /// The document with every default filled in.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or(Value::Null)
    }

    /// The size with this name.
    pub fn size_named(&self, name: &str) -> Option<&Size> {
        self.size.iter().find(|s| s.name == name)
    }
}

fn unreadable(e: &serde_json::Error) -> BadPolicy {
    BadPolicy(vec![Mistake { path: "the document".into(), message: e.to_string() }])
}

struct Checker {
    mistakes: Vec<Mistake>,
}

impl Checker {
    fn wrong(&mut self, path: &str, message: impl Into<String>) {
        self.mistakes.push(Mistake { path: path.into(), message: message.into() });
    }

    /// The document with its defaults; what is wrong with it is in `mistakes`.
    fn document(&mut self, document: &Value) -> Value {
        let empty = Map::new();
        let given = document.as_object().unwrap_or_else(|| {
            self.wrong("the document", "must be a table of sections");
            &empty
        });
        let mut complete = Map::new();
        let sections: BTreeSet<&str> = KNOBS.iter().filter_map(|k| k.path.split_once('.')).map(|(s, _)| s).collect();
        for key in given.keys().filter(|k| *k != "size" && !sections.contains(k.as_str())) {
            self.wrong(key, format!("is no section; there are size, {}", join(sections.iter())));
        }
        for section in sections {
            let knobs: Vec<Knob> = KNOBS
                .iter()
                .filter_map(|k| k.path.strip_prefix(section)?.strip_prefix('.').map(|path| Knob { path, ..*k }))
                .collect();
            let table = self.table(section, given.get(section), &knobs);
            complete.insert(section.to_owned(), table);
        }
        let sizes = match given.get("size") {
            Some(Value::Array(sizes)) if !sizes.is_empty() => {
                sizes.iter().enumerate().map(|(n, s)| self.table(&format!("size[{n}]"), Some(s), SIZE_KNOBS)).collect()
            }
            None | Some(Value::Array(_)) => {
                self.wrong("size", "there must be at least one [[size]]");
                Vec::new()
            }
            Some(_) => {
                self.wrong("size", "must be a list of tables: write [[size]]");
                Vec::new()
            }
        };
        complete.insert("size".into(), Value::Array(sizes));
        Value::Object(complete)
    }

    fn table(&mut self, path: &str, given: Option<&Value>, knobs: &[Knob]) -> Value {
        let empty = Map::new();
        let given = match given {
            None => &empty,
            Some(Value::Object(map)) => map,
            Some(_) => {
                self.wrong(path, "must be a table");
                &empty
            }
        };
        for key in given.keys().filter(|k| !knobs.iter().any(|n| n.path == k.as_str())) {
            self.wrong(
                &format!("{path}.{key}"),
                format!("is no knob; there are {}", join(knobs.iter().map(|k| k.path))),
            );
        }
        let mut complete = Map::new();
        for knob in knobs {
            let path = || format!("{path}.{}", knob.path);
            let value = match (given.get(knob.path), knob.default) {
                // A JSON null is how an optional knob reads back: the same as leaving it out.
                (Some(value), default) if !(value.is_null() && default == Some("null")) => {
                    if !fits(knob.kind, value) {
                        let message = format!("{} is not allowed: it must be {}", shown(value), allowed(knob.kind));
                        self.wrong(&path(), message);
                    }
                    value.clone()
                }
                (_, Some(default)) => serde_json::from_str(default).unwrap_or(Value::Null),
                (_, None) => {
                    self.wrong(&path(), format!("is missing: {}", knob.doc));
                    Value::Null
                }
            };
            complete.insert(knob.path.to_owned(), value);
        }
        Value::Object(complete)
    }

    /// What no single knob shows.
    fn whole(&mut self, policy: &Policy) {
        if policy.nodes.min > policy.nodes.max {
            self.wrong("nodes.min", format!("{} is more than nodes.max = {}", policy.nodes.min, policy.nodes.max));
        }
        let mut names = BTreeSet::new();
        for (n, size) in policy.size.iter().enumerate() {
            if !names.insert(&size.name) {
                self.wrong(&format!("size[{n}].name"), format!("{:?} is used twice", size.name));
            }
            if size.template.is_none() && policy.launch.template.is_none() {
                self.wrong(
                    &format!("size[{n}].template"),
                    "is missing, and so is launch.template: one of them must say what to launch",
                );
            }
            if size.market == Market::OnDemand && size.fallback != Fallback::None {
                self.wrong(&format!("size[{n}].fallback"), "is for market = \"spot\" only");
            }
        }
        if policy.launch.tags.len() > 40 {
            self.wrong("launch.tags", "EC2 takes 50 tags an instance, and some are ours: 40 at most");
        }
        for key in
            policy.launch.tags.keys().filter(|k| k.starts_with("aws:") || k.starts_with("nodekeeper:") || *k == "Name")
        {
            self.wrong(&format!("launch.tags.{key}"), "is not yours to set: aws:…, nodekeeper:… and Name are taken");
        }
    }
}

fn join(words: impl Iterator<Item = impl AsRef<str>>) -> String {
    words.map(|w| w.as_ref().to_owned()).collect::<Vec<_>>().join(", ")
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() > 60 { format!("{}…", text.chars().take(60).collect::<String>()) } else { text }
}

fn fits(kind: Kind, value: &Value) -> bool {
    match kind {
        Kind::Whole(min, max) => value.as_i64().is_some_and(|n| (min..=max).contains(&n)),
        Kind::Number(min, max) => value.as_f64().is_some_and(|n| (min..=max).contains(&n)),
        Kind::Text(max) => value.as_str().is_some_and(|t| t.len() <= max && !t.contains('\0')),
        Kind::Name => {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            value.as_str().is_some_and(|t| (1..=64).contains(&t.len()) && t.chars().all(fits))
        }
        Kind::OneOf(words) => value.as_str().is_some_and(|t| words.contains(&t)),
        Kind::Texts => value.as_array().is_some_and(|a| a.iter().all(|t| t.as_str().is_some_and(|t| !t.is_empty()))),
        Kind::TextTable => value.as_object().is_some_and(|t| {
            t.iter().all(|(k, v)| !k.is_empty() && k.len() <= 128 && v.as_str().is_some_and(|v| v.len() <= 256))
        }),
        Kind::Windows => {
            let minutes: Option<Vec<u64>> =
                value.as_array().and_then(|a| a.iter().map(|m| m.as_u64().filter(|m| *m <= 100_000)).collect());
            minutes.is_some_and(|m| m.len() <= 100 && (m.is_empty() || m.iter().skip(1).step_by(2).sum::<u64>() > 0))
        }
    }
}

/// What fits, in words.
fn allowed(kind: Kind) -> String {
    match kind {
        Kind::Whole(min, max) => format!("a whole number from {min} to {max}"),
        Kind::Number(min, max) => format!("a number from {min} to {max}"),
        Kind::Text(max) => format!("text of at most {max} bytes"),
        Kind::Name => "1 to 64 letters, digits, '-', '_' or '.'".into(),
        Kind::OneOf(words) => format!("one of {}", join(words.iter().map(|w| format!("{w:?}")))),
        Kind::Texts => "a list of texts".into(),
        Kind::TextTable => "a table of texts: keys of at most 128 bytes, values of at most 256".into(),
        Kind::Windows => {
            "a list of whole minutes, alternately closed and open, that opens at all: like [54, 5, 1]".into()
        }
    }
}

/// The reference of every knob, as a TOML document that is itself a valid beginning of a policy.
pub fn reference() -> String {
    let mut out = String::from("# Every knob with its default. What a knob has no default for is commented out.\n");
    let mut section = "";
    for knob in KNOBS {
        let (table, name) = knob.path.split_once('.').unwrap_or(("", knob.path));
        if table != section {
            section = table;
            out.push_str(&format!("\n[{table}]\n"));
        }
        line(&mut out, knob, name);
    }
    out.push_str("\n# One for each kind of machine; at least one.\n[[size]]\n");
    for knob in SIZE_KNOBS {
        line(&mut out, knob, knob.path);
    }
    out
}

fn line(out: &mut String, knob: &Knob, name: &str) {
    out.push_str(&format!("# {}\n", knob.doc));
    match knob.default {
        Some("null") | None => out.push_str(&format!("# {name} =\n")),
        Some(default) => out.push_str(&format!("{name} = {default}\n")),
    }
}

/// A small policy that works with the local stack; also what tests begin with.
pub fn example_json() -> Value {
    json!({
        "launch": {"template": "nodekeeper"},
        "size": [
            {"name": "small", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.116},
            {"name": "large", "instance_type": "m7a.2xlarge", "vcpus": 8, "memory_mib": 32768, "price_per_hour": 0.464},
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_right_and_complete() {
        let policy = Policy::from_json(&example_json()).unwrap();
        assert_eq!((policy.nodes.max, policy.heartbeat.ttl_s, policy.stale.after_s), (64, 60, 7200));
        assert_eq!(Policy::from_json(&policy.to_json()).unwrap(), policy, "it reads back as itself");
        let knobs: usize = policy
            .to_json()
            .as_object()
            .unwrap()
            .iter()
            .filter(|(k, _)| *k != "size")
            .map(|(_, v)| v.as_object().unwrap().len())
            .sum();
        assert_eq!(knobs, KNOBS.len(), "every knob in the table is in the type, and the other way round");
    }

    #[test]
    fn the_reference_is_a_policy_but_for_what_it_leaves_open() {
        let text = reference()
            .replace("# name =", "name = \"s\"")
            .replace("# instance_type =", "instance_type = \"x\"")
            .replace("# vcpus =", "vcpus = 1")
            .replace("# memory_mib =", "memory_mib = 1")
            .replace("# price_per_hour =", "price_per_hour = 1")
            .replacen("# template =", "template = \"t\"", 1);
        Policy::from_toml(&text).unwrap();
    }

    #[test]
    fn ten_mistakes_are_ten_messages() {
        let text = r#"
            surprise = 1
            [nodes]
            min = -1
            max = 1000000
            memory_usable = "most"
            nmax = 3
            [launch]
            template = "t"
            subnets = "subnet-1"
            [shutdown]
            windows_min = [60]
            [heartbeat]
            ttl_s = 0
            brake_fraction = 1.5
            [[size]]
            name = "a b"
            instance_type = "m7a.large"
            vcpus = 2
            memory_mib = 1
            price_per_hour = 1
        "#;
        let BadPolicy(mistakes) = Policy::from_toml(text).unwrap_err();
        let paths: BTreeSet<_> = mistakes.iter().map(|m| m.path.as_str()).collect();
        let expected = [
            "surprise",
            "nodes.min",
            "nodes.max",
            "nodes.memory_usable",
            "nodes.nmax",
            "launch.subnets",
            "shutdown.windows_min",
            "heartbeat.ttl_s",
            "heartbeat.brake_fraction",
            "size[0].name",
        ];
        assert_eq!(paths, expected.into_iter().collect(), "{mistakes:#?}");
    }

    #[test]
    fn what_no_single_knob_shows_is_checked_too() {
        let mut document = example_json();
        document["nodes"] = json!({"min": 5, "max": 4});
        document["launch"] = json!({"tags": {"nodekeeper:cluster": "mine"}});
        document["size"][1]["name"] = json!("small");
        let BadPolicy(mistakes) = Policy::from_json(&document).unwrap_err();
        assert_eq!(mistakes.len(), 5, "{mistakes:#?}");
    }

    #[test]
    fn not_toml_says_where() {
        let error = Policy::from_toml("[nodes\nmin = 1").unwrap_err().to_string();
        assert!(error.contains("line 1"), "{error}");
    }
}
