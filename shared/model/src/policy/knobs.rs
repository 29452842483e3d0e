//! Every knob of the policy: its name, values, default and meaning, in one table.

use crate::ids::SLOT_CEILING;

/// The most bytes of user data EC2 takes, before encoding.
pub const MAX_USER_DATA_BYTES: usize = 16 * 1024;
/// What our own part of the user data may take of that.
pub const OWN_USER_DATA_BYTES: usize = 2 * 1024;

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
