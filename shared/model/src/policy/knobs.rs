//! Every knob of the policy: its name, values, default and meaning, in one table.
//!
//! Guarantees: the check, the defaults and the printed reference all come from this table.
//! Does not: hold values; [`super::Policy`] does.

use crate::batch::MAX_BATCH;
use crate::ids::SLOT_CEILING;

/// The most bytes of user data that EC2 accepts, before encoding.
pub const MAX_USER_DATA_BYTES: usize = 16 * 1024;
/// How many of these bytes nodekeeper's own part of the user data may take.
pub const OWN_USER_DATA_BYTES: usize = 8 * 1024;

/// The values that a knob allows.
#[derive(Clone, Copy, Debug)]
pub enum KnobKind {
    /// A whole number in this range, both ends included.
    Whole(i64, i64),
    /// A number in this range, both ends included.
    Number(f64, f64),
    /// Text of at most this many bytes.
    Text(usize),
    /// A name: 1 to 64 letters, digits, `-`, `_` or `.`.
    Name,
    /// A label of a size, or a type of GPUs.
    Label,
    /// A list of labels, each once.
    Labels,
    Flag,
    OneOf(&'static [&'static str]),
    /// A launch template: its id or its name, and perhaps `:7` for a version.
    Template,
    /// A list of ids that EC2 gave to things of this kind, like `subnet`, each once.
    Ids(&'static str),
    /// A list of names of instance types, in which `*` is any text, each once.
    InstanceTypes,
    /// The least and the most, as a list of two numbers in this range.
    Range(f64, f64),
    TextTable,
    /// How many there are of each name.
    CountTable,
    /// A list of names of people, in which `*` is any text, each once.
    People,
    /// A list of ARNs of roles, each with another name.
    Roles,
    /// A bucket of S3 and perhaps a prefix: see [`crate::stored::S3Prefix`].
    S3Prefix,
    /// The agent for one architecture: see [`super::AgentFile`].
    AgentFile,
    /// A list of minutes: in turn, how long the window is closed and how long it is open.
    Windows,
}

/// One knob. The check and the printed reference are made from the knobs.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// `section.name`, or the name alone for a knob of a size.
    pub path: &'static str,
    pub kind: KnobKind,
    /// The default as JSON. `None`: the knob must be given. `Some("null")`: it is optional.
    pub default: Option<&'static str>,
    /// The meaning, as the reference prints it.
    pub doc: &'static str,
}

/// A table of knobs. A row is `"path", kind, "default": "meaning";`, with `required` for a knob without a default, or the
/// name of a knob that several tables have: a `const`.
macro_rules! knobs {
    (@default required) => { None };
    (@default $default:literal) => { Some($default) };
    (@knob $path:literal, $kind:expr, $default:tt, $doc:literal) => {
        Knob { path: $path, kind: $kind, default: knobs!(@default $default), doc: $doc }
    };
    ($(const $name:ident: $path:literal, $kind:expr, $default:tt: $doc:literal;)+) => {
        $(const $name: Knob = knobs!(@knob $path, $kind, $default, $doc);)+
    };
    ($($($shared:ident)? $($path:literal, $kind:expr, $default:tt: $doc:literal)?;)*) => {
        &[$($($shared,)? $(knobs!(@knob $path, $kind, $default, $doc),)?)*]
    };
}

const DAY_S: i64 = 86_400;
const SECONDS: KnobKind = KnobKind::Whole(0, 366 * DAY_S);
const SECONDS_1: KnobKind = KnobKind::Whole(1, 366 * DAY_S);
const COUNT: KnobKind = KnobKind::Whole(0, 1_000_000);
const COUNT_1: KnobKind = KnobKind::Whole(1, 1_000_000);
const FRACTION: KnobKind = KnobKind::Number(0.0, 1.0);

/// Every knob outside `[[size]]`.
pub const KNOBS: &[Knob] = knobs! {
    "nodes.min", KnobKind::Whole(0, SLOT_CEILING as i64), "0":
        "nodes kept up when there is no work, of the cheapest size";
    "nodes.max", KnobKind::Whole(0, SLOT_CEILING as i64), "64":
        "the most nodes at any time: the number of slots, a hard cap";
    "nodes.max_price_per_hour", KnobKind::Number(0.0, 1e6), "0":
        "the most that all nodes together may cost in an hour, in US dollars; 0 for no cap";
    "nodes.memory_usable", KnobKind::Number(0.01, 1.0), "0.95":
        "the share of a size's memory that jobs get; the rest is for the system";
    "launch.template", KnobKind::Template, "null":
        "the launch template's id (lt-…) or name, for sizes that name none; :7 at the end pins version 7, otherwise it is the template's default version; the template sets image, instance profile and security groups";
    "launch.subnets", KnobKind::Ids("subnet"), "[]":
        "subnets to launch in, tried in order; a launch call names one of each zone: that with the most free addresses; empty: the subnet of the template";
    "launch.reservations", KnobKind::Ids("cr"), "[]":
        "capacity reservations and capacity blocks of EC2 for this cluster: as long as one has a free machine, a size of its type is launched there, for every market, and costs nothing";
    "launch.reservation_drain_s", SECONDS, "900":
        "how long before a reservation ends its nodes get no new jobs; a capacity block ends for its instances half an hour before its end date: what runs then is stopped, while nodes of other reservations finish their jobs first";
    "launch.zone_share", KnobKind::Number(0.01, 1.0), "1":
        "the largest share of the nodes in one zone, so that the loss of a zone is the loss of this share; 1: any; it needs subnets in several zones";
    "launch.drain_at_risk", KnobKind::Flag, "false":
        "whether a spot node is drained when EC2 says that it may soon take its instance (a rebalance recommendation): what runs there goes on, and new jobs start elsewhere";
    "launch.tags", KnobKind::TextTable, "{}": "more tags for every instance";
    "launch.user_data", KnobKind::Text(MAX_USER_DATA_BYTES - OWN_USER_DATA_BYTES), "\"\"":
        "shell commands run at the first boot, after the node's configuration is written and before the agent of `[agent]` is started";
    "launch.max_per_run", COUNT_1, "1000":
        "the most nodes that one run launches; a new account of EC2 may ask for 1000 instances at once, and 2 more in each second";
    "launch.max_per_call", KnobKind::Whole(1, MAX_BATCH as i64), "99":
        "the most nodes of one launch call; 1: a call for each node, for agents that know no batches";
    "launch.calls_per_second", KnobKind::Number(0.01, 1000.0), "2":
        "launch calls in a second; EC2 allows about 2 RunInstances calls in a second over time";
    "agent.x86_64", KnobKind::AgentFile, "null":
        "what nodes of x86_64 fetch and start at the first boot: `nodekeeper up` stores it; not set: the image or launch.user_data starts an agent";
    "agent.arm64", KnobKind::AgentFile, "null": "the same for nodes of arm64";
    "agent.options", KnobKind::Text(512), "\"\"": "more options of the agent, like --containers podman";
    "boot.timeout_s", SECONDS_1, "1800":
        "a node that sends no heartbeat within this time after its launch is given up, and so is one that still lacks GPUs of its size this long after its first heartbeat";
    "boot.failures_before_pause", COUNT_1, "10": "failed starts in a row that pause launching";
    "idle.timeout_s", SECONDS, "120": "a node is shut down only after it was idle for this time";
    "idle.confirmations", KnobKind::Whole(1, 1000), "2": "and only after this many runs saw it idle";
    "shutdown.windows_min", KnobKind::Windows, "[]":
        "when idle nodes may be shut down: minutes since the launch, alternately closed and open, repeated; [54, 5, 1] is open from minute 54 to 59 of every hour; empty: always open";
    "shutdown.down_after_s", SECONDS, "600":
        "a node that is down is shut down after this time of silence";
    "stale.after_s", SECONDS_1, "7200":
        "a record without a live instance is cleaned if it was neither written nor pinged for this time";
    "stale.orphan_after_s", SECONDS_1, "600":
        "an instance that no record claims is terminated if it is older than this";
    "stale.orphan_brake_min", COUNT, "3":
        "if there are more orphans than this at once, they wait for an operator";
    "stale.brake_fraction", FRACTION, "0.5":
        "if more than this share of the records would be cleaned at once because EC2 does not list their instances, they wait";
    "stale.brake_min", COUNT, "3": "and more records than this";
    "stale.brake_hold_s", SECONDS, "300": "how long they wait";
    "heartbeat.ttl_s", SECONDS_1, "60":
        "the time between heartbeats of a working node; at random up to 1.5 times as long";
    "heartbeat.idle_s", SECONDS_1, "5":
        "the time between heartbeats of an idle node: it decides how fast new work starts";
    "heartbeat.grace_s", SECONDS, "30": "how late a heartbeat may be before the lease expires";
    "heartbeat.max_per_second", KnobKind::Number(0.1, 1e6), "1000":
        "the most heartbeats of the whole fleet in a second; a larger fleet calls less often";
    "heartbeat.brake_fraction", FRACTION, "0.33":
        "if more than this share of the leases expires at once, no node is treated as silent yet";
    "heartbeat.brake_min", COUNT, "3": "and more leases than this";
    "heartbeat.brake_hold_s", SECONDS, "300": "for how long";
    "heartbeat.blackout_s", SECONDS, "1800":
        "if all nodes are silent at once, heartbeat-ingest is more likely down than the nodes: none is treated as silent for this time";
    "poll.stale_after_s", KnobKind::Whole(10, 366 * DAY_S), "45":
        "a run does not act on anything that it read longer ago than this";
    "poll.min_gap_s", KnobKind::Whole(0, 20), "1": "the shortest time between two runs that events start";
    "poll.list_nodes", COUNT, "100":
        "up to this many nodes in use, poll-and-scale reads EC2's list of all instances of the cluster; in a larger fleet it asks EC2 by id for the instances of nodes that boot, shut down or have a late heartbeat";
    "poll.queue_rows", KnobKind::Whole(4, 100_000), "20000":
        "the most waiting jobs that a run reads from the head of the queue; if there are more, a quarter as many are read from a place that moves on from run to run";
    "shortage.ttl_s", SECONDS_1, "180":
        "an offering that EC2 was short of is tried again after this time, doubled with each further refusal";
    "quota.retry_s", SECONDS_1, "60":
        "after EC2 refused a launch for a quota, no launch that counts for this quota is tried for this time; doubled up to 15 min";
    "retry.pause_s", SECONDS, "10":
        "how long a job that failed or was lost waits before it is tried again; each wait is twice the one before";
    "retry.most_s", SECONDS, "600": "the longest of these waits";
    "sweep.missing_grace_s", SECONDS, "300":
        "a handle counts as gone after it was missing from reports for this time";
    "sweep.creating_s", KnobKind::Whole(1, DAY_S), "600": "a new handle must appear within this time";
    "sweep.failed_keep_s", KnobKind::Whole(0, DAY_S), "3600":
        "what a failed alloc left on its node is kept for this time";
    "sweep.cache_unused_s", SECONDS, "86400":
        "a cache is destroyed after it was unused for this time";
    "sweep.max_in_flight", KnobKind::Whole(1, 1000), "20":
        "the most handles that a node is told to destroy at once";
    "sweep.report_s", SECONDS_1, "30":
        "the time between handle reports of a node; at random up to 1.5 times as long";
    "sweep.cap_fraction", FRACTION, "0.25":
        "a report takes no handle away if it would destroy as unknown, or drop as missing, more than this share of the handles of its node";
    "sweep.cap_min", COUNT, "10": "and more handles than this";
    "history.finished_days", KnobKind::Whole(1, 3650), "7":
        "for how many days ended jobs and allocs are kept";
    "history.events_days", KnobKind::Whole(1, 3650), "14": "for how many days events are kept";
    "jobs.roles", KnobKind::Roles, "[]":
        "the ARNs of the roles that jobs may take in AWS (submit --role NAME); each must carry the tag nodekeeper:cluster with the name of the cluster, and let grant-credentials assume it";
    "output.s3", KnobKind::S3Prefix, "null":
        "where nodes store the whole output of each alloc while it runs, and the files of jobs: the output OutputS3 of the stack; not set: nowhere";
    "watchdog.multiplier", KnobKind::Number(1.0, 1000.0), "5":
        "a function is overdue after this many of its periods without a success";
    "watchdog.reserve_ms", KnobKind::Whole(0, 30_000), "5000":
        "a run starts no action if less than this is left before its deadline";
    "shares.half_life_h", KnobKind::Number(0.1, 8760.0), "2":
        "after so many hours what a share has used counts half";
    "shares.gib_per_vcpu", KnobKind::Number(0.1, 1e6), "4":
        "so many GiB of memory count as much as a vCPU in what a share has used";
    "shares.vcpus_per_gpu", KnobKind::Number(0.0, 1e6), "16": "so many vCPUs count as much as a GPU";
    "person.running", MOST, "null": "the most jobs that each person may have placed at the same time; not set: no limit";
    "person.vcpus", MOST, "null": "the most vCPUs of these jobs";
    "person.gpus", MOST, "null": "the most GPUs of these jobs";
    "person.nodes", MOST, "null": "the most members of these jobs, each of which is on a node";
    "person.dollars_per_hour", KnobKind::Number(0.0, 1e6), "null":
        "the most that these jobs may cost in an hour, each by its part of its node";
    "limits.licences", KnobKind::CountTable, "{}":
        "how many jobs may use something at the same time, as {matlab = 4}: jobs ask for it by submit --needs matlab=2";
    "budget.dollars_per_month", KnobKind::Number(0.0, 1e9), "0":
        "nothing is launched once the nodes of this calendar month (UTC) have cost so many US dollars, and an alarm says so; 0 for no budget";
};

const MOST: KnobKind = KnobKind::Whole(0, 1_000_000_000);

/// Every knob of a `[[share]]`.
pub const SHARE_KNOBS: &[Knob] = knobs! {
    "name", KnobKind::Name, required: "its name";
    "weight", KnobKind::Number(0.001, 1e6), "1":
        "its part of the cluster, against the weights of the other shares that have jobs";
    "members", KnobKind::People, "[]":
        "who may submit to it, as job --json shows them under by, where * is any text, like team-a/*";
    "default", KnobKind::Flag, "false": "whether it is also for everybody who is a member of no share";
    "running", MOST, "null": "the most jobs that it may have placed at the same time; not set: no limit";
    "vcpus", MOST, "null": "the most vCPUs of these jobs";
    "gpus", MOST, "null": "the most GPUs of these jobs";
    "nodes", MOST, "null": "the most members of these jobs, each of which is on a node";
    "dollars_per_hour", KnobKind::Number(0.0, 1e6), "null":
        "the most that these jobs may cost in an hour, each by its part of its node";
};

// The knobs of both kinds of sizes.
knobs! {
    const SCRATCH: "scratch_gib", KnobKind::Whole(0, 1 << 32), "0": "scratch space, in GiB";
    const ARCH: "arch", KnobKind::OneOf(&["x86_64", "arm64"]), "\"x86_64\"":
        "the architecture; jobs that name none go to x86_64, or to arm64 if no size is x86_64";
    const LABELS: "labels", KnobKind::Labels, "[]": "what jobs may require of it, like [\"nvme\", \"fast-net\"]";
    const CONTAINERS: "containers", KnobKind::Flag, "true":
        "whether its image has docker or podman: jobs with an image go nowhere else";
    const MARKET: "market", KnobKind::OneOf(&["on_demand", "spot"]), "\"on_demand\"": "how it is bought";
    const FALLBACK: "fallback", KnobKind::OneOf(&["none", "on_demand"]), "\"none\"":
        "what a spot size falls back to when spot is short";
    const MAX_NODES: "max", KnobKind::Whole(0, SLOT_CEILING as i64), "null":
        "the most nodes of this size; not set: no cap of its own";
    const TEMPLATE: "template", KnobKind::Template, "null": "its launch template; not set: launch.template";
}

/// Every knob of a `[[size]]` with `instance_type`.
pub const SIZE_KNOBS: &[Knob] = knobs! {
    "name", KnobKind::Name, required: "the name in this policy";
    "instance_type", KnobKind::Name, required: "the name in EC2, like m7a.large";
    "vcpus", KnobKind::Whole(1, 1 << 20), required: "vCPUs";
    "memory_mib", KnobKind::Whole(64, 1 << 26), required: "memory, in MiB";
    SCRATCH;
    "gpus", KnobKind::Whole(0, 1 << 20), "0": "GPUs";
    "gpu_type", KnobKind::Label, "null": "the model of its GPUs, like a10g: jobs may ask for it; not set: no job that asks";
    "gpu_memory_gib", KnobKind::Whole(0, 1 << 20), "0": "the memory of each GPU, in GiB; 0: no job that asks for some";
    ARCH;
    LABELS;
    CONTAINERS;
    "price_per_hour", KnobKind::Number(0.0, 1e6), required: "the price in US dollars: the cheapest fitting size is taken";
    MARKET;
    FALLBACK;
    MAX_NODES;
    TEMPLATE;
};

const MANY: f64 = (1_u32 << 20) as f64;

/// Every knob of a `[[size]]` with `instance_types`.
pub const SEVERAL_KNOBS: &[Knob] = knobs! {
    "name", KnobKind::Name, required: "the name in this policy";
    "instance_types", KnobKind::InstanceTypes, required:
        "the names in EC2, where * is any text, like [\"m7*.large\", \"c7a.*\"]: the cheapest that fit are taken";
    "exclude_types", KnobKind::InstanceTypes, "[]": "names that are not taken, where * is any text";
    "vcpus", KnobKind::Range(1.0, MANY), "[1, 1048576]": "the least and the most vCPUs";
    "memory_gib", KnobKind::Range(0.0, MANY), "[0, 1048576]": "the least and the most memory, in GiB";
    "memory_gib_per_vcpu", KnobKind::Range(0.0, MANY), "[0, 1048576]":
        "the least and the most memory for each vCPU, in GiB";
    "gpus", KnobKind::Range(0.0, MANY), "[0, 0]": "the least and the most GPUs";
    "gpu_type", KnobKind::Label, "null": "the model of its GPUs, like a10g; not set: any";
    "gpu_memory_gib", KnobKind::Whole(0, 1 << 20), "0": "the least memory of each GPU, in GiB";
    "local_disk_gib", KnobKind::Whole(0, 1 << 32), "0": "the least space on local disks, in GiB";
    "generation", KnobKind::OneOf(&["current", "any"]), "\"current\"":
        "whether only generations are taken that EC2 calls current";
    "burstable", KnobKind::Flag, "false": "whether types are taken that give a vCPU only a part of the time, like t3";
    "bare_metal", KnobKind::Flag, "false": "whether machines without a hypervisor are taken";
    SCRATCH;
    ARCH;
    LABELS;
    CONTAINERS;
    MARKET;
    FALLBACK;
    MAX_NODES;
    TEMPLATE;
};
