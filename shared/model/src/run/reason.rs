//! Why something is done, or deliberately not done: the closed list of reasons.
//!
//! Guarantees: a reason is data, so that programs can tell reasons apart; its text is made in one
//! place, so that the plan, events, records and commands say the same (`docs/rules.md#R11`).
//! Does not: influence anything. A decision never reads a reason.

use crate::enums::{BrakeKind, ClientStatus, JobState, NodeStatus, Reconcile};
use crate::{AllocId, Capacity, EndCause, InstanceState, JobId, NodeId, Slot, Span, Time, Usd};
use std::fmt;

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident $word:literal { $($field:ident: $t:ty),* } = $text:literal $(, $arg:expr)*;)*) => {
        /// Why something is done, or deliberately not done. Each has a word for programs
        /// ([`Reason::word`]) and a text for people (its `Display`).
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $variant { $($field: $t),* },)* }

        impl Reason {
            /// The word of each reason, in the order of this list.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// The word of this reason, whatever its fields are.
            pub const fn word(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $word,)* }
            }
        }

        impl fmt::Display for Reason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$variant { $($field),* } => write!(f, $text $(, $arg)*),)* }
            }
        }
    };
}

reasons! {
    // Instances

    InstanceTerminated "instance_terminated" { instance_id: String } = "instance {instance_id} is terminated";
    /// A record names an instance that has another node's tag, or none.
    ForeignInstance "foreign_instance" { instance_id: String, owner: String } = "its record names instance {instance_id}, which belongs to {owner}: nothing is terminated or cleaned; look at `nodekeeper nodes`, and correct or delete the record";
    /// EC2 does not list the instance that a record names, and lists another one with the tag of the node.
    AnotherTagged "another_tagged" { named: String, tagged: String } = "its record names instance {named}, which EC2 does not list, and instance {tagged} has its node id as a tag: the record is not cleaned; correct it, or drain the slot";
    /// A record names no instance, and EC2 lists an instance with the tag of its node or batch.
    CarriesNodeId "carries_node_id" { instance_id: String } = "instance {instance_id} has the tag of this node, or of its batch";
    TerminationNotDone "termination_not_done" { instance_id: String } = "shutting down, and EC2 lists {instance_id} as still up";
    TerminationUnderWay "termination_under_way" { instance_id: String } = "shutting down, and EC2 lists {instance_id} as shutting down too";
    TerminationUnlisted "termination_unlisted" { instance_id: String } = "shutting down, and EC2 does not list {instance_id}";
    ListedAgain "listed_again" { instance_id: String } = "EC2 lists {instance_id} again";
    RelaunchPaused "relaunch_paused" { limit: String } = "its launch is not repeated: {limit}";
    NobodyNeedsIt "nobody_needs_it" {} = "its launch is not repeated: nothing needs the node; it waits for its instance until boot.timeout_s";
    BatchNotWhole "batch_not_whole" {} = "its launch is not repeated: a node of its batch is gone; it waits for its instance until boot.timeout_s";
    LaunchUnanswered "launch_unanswered" { waited: Span } = "claimed {waited} ago, the claim has ended, and no instance has its node id as a tag";
    /// No instance appeared within the boot time-out.
    LaunchCameToNothing "launch_came_to_nothing" { waited: Span } = "its launch gave no instance within {waited}";
    /// The first of two observations that list no instance for the launch.
    LaunchMayHaveFailed "launch_may_have_failed" { waited: Span, confirm: Span } = "its launch gave no instance within {waited}: given up if there is still none in {confirm}";
    UnlistedButHeard "unlisted_but_heard" { instance_id: String } = "EC2 does not list {instance_id}, but its heartbeats arrive: left alone";
    /// The first of two observations that do not list the instance.
    Unlisted "unlisted" { instance_id: String, confirm: Span } = "EC2 does not list {instance_id}: cleaned if that stays so for {confirm}";
    /// Two observations did not list the instance.
    UnlistedFor "unlisted_for" { instance_id: String, unlisted: Span } = "EC2 has not listed {instance_id} for {unlisted}";
    /// An unusual share of the instances is unlisted.
    ManyUnlisted "many_unlisted" { unlisted: usize, up: usize } = "{unlisted} of {up} instances are not listed at once: more likely EC2's list is wrong than all of them are gone";

    /// A row contradicts the contract.
    RowInvalid "row_invalid" { what: String } = "the row is not used: {what}; correct or delete it";

    // Leases

    /// Every lease expired.
    AllSilent "all_silent" { nodes: usize } = "{} silent, and no other node is heard: more likely heartbeat-ingest is down", are(*nodes);
    /// An unusual share of the leases expired.
    ManyExpired "many_expired" { expired: usize, leases: usize } = "{expired} of {leases} leases expired at once";
    /// No heartbeat was accepted since the silent nodes should have called.
    IngestUnproven "ingest_unproven" { nodes: usize } = "{} silent, and no node was heard since, so heartbeat-ingest itself may be down: the status stays as it is until one is heard", are(*nodes);
    SilentWithWaitingAllocs "silent_with_waiting_allocs" { silent: Span } = "silent for {silent}, the lease expired; allocs wait for it";
    SilentWithoutWaitingAllocs "silent_without_waiting_allocs" { silent: Span } = "silent for {silent}, the lease expired; no alloc waits for it";
    LastWindowClosed "last_window_closed" {} = "no alloc waits for it any longer";

    // Allocs

    NoAllocLeft "no_alloc_left" {} = "it is placed, but no alloc of it is left";
    NotOnItsNode "not_on_its_node" { node_id: NodeId } = "the alloc is live, and the record of its node {node_id} does not list it";
    AllocWithoutRow "alloc_without_row" {} = "its node's record lists it, and it is not live in the allocs table";
    NodeGone "node_gone" { node_id: NodeId } = "the life of node {node_id} is over";
    /// The alloc was unknown for as long as its job waits.
    UnknownTooLong "unknown_too_long" { window_s: u64 } = "unknown for {window_s} s";
    SilentAndToldToStop "silent_and_told_to_stop" { status: NodeStatus } = "its node is {status}, and the alloc was told to stop: its job does not wait for it";
    SilentAndWaitedFor "silent_and_waited_for" { status: NodeStatus, window_s: u64 } = "its node is {status}; its job waits {window_s} s for it";
    SilentAndNotWaitedFor "silent_and_not_waited_for" { status: NodeStatus } = "its node is {status}, and its job does not wait for it";
    /// A node never sent the report that would make it ready.
    NeverReported "never_reported" {} = "its node never reported what runs on it";
    JobEnded "job_ended" {} = "its job has ended";
    JobIs "job_is" { state: JobState } = "its job is {state}";
    MemberDone "member_done" {} = "another copy has completed its member";
    /// Somebody has changed rows, or tables were restored.
    JobListsOthers "job_lists_others" {} = "its job does not list it";
    /// The drain's deadline is near.
    DrainEnds "drain_ends" { by: Time } = "what runs there stops before {by}";
    BackAlone "back_alone" {} = "its node is back, and there is no other copy";
    BackWithCopies "back_with_copies" { keep: AllocId, copies: usize, strategy: Reconcile } = "its node is back: {keep} stays of {copies} copies, by {strategy}";
    BackWithCopiesThatGo "back_with_copies_that_go" { keep: AllocId, copies: usize } = "its node is back: {keep} stays of {copies} copies, because its node stays longest";

    // Demand

    /// No size of the policy is large enough.
    NoSizeFits "no_size_fits" { needs: Capacity, narrowed: String, usable: String } = "no size fits: it needs {needs}{narrowed}; {usable} of a size's memory is usable";
    /// EC2 takes several spot instances of a pool back at the same time.
    PoolTakenBack "pool_taken_back" { pool: String, instances: usize } = "EC2 takes {instances} instances of {pool} back at once: nothing is launched there for a while";
    NoFreeAddress "no_free_address" { subnet: String } = "subnet {subnet} has no free address";
    ReservationUsed "reservation_used" { reservation: String, total: u32 } = "no machine of capacity reservation {reservation} is free, of {total}";
    /// A capacity reservation is over, or nearly.
    ReservationEnding "reservation_ending" { reservation: String, until: Time } = "capacity reservation {reservation} ends for its instances at {until} (launch.reservation_drain_s)";
    /// One more node in a zone would be more than the policy allows there.
    ZoneFull "zone_full" { zone: String, share: String } = "zone {zone} has launch.zone_share = {share} of the nodes";
    /// Parts of the catalogue are due to be read.
    OffersAreOld "offers_are_old" { parts: String } = "what EC2 offers is asked again: {parts}";
    /// The sizes of several instance types are not known yet.
    CatalogueMissing "catalogue_missing" { why: String } = "what EC2 offers for the sizes of several instance types is not known{why}";
    MoreThanMaximum "more_than_maximum" { nodes: u32, max: u32 } = "it needs {nodes} nodes at once and nodes.max is {max}";
    MoreThanSizesAllow "more_than_sizes_allow" { nodes: u32, most: u32 } = "it needs {nodes} nodes at once and the sizes that fit allow {most}";
    DearerThanCap "dearer_than_cap" { price: Usd, cap: Usd } = "it costs {price} an hour alone and nodes.max_price_per_hour is {cap}";
    /// There are nodes with room for every member.
    FitsOn "fits_on" { slots: Vec<Slot> } = "it fits on {}", listed(slots);
    CopyWanted "copy_wanted" { original: AllocId } = "{original} is unknown, and its job wants a copy meanwhile";
    JobNeedsNode "job_needs_node" { job: String } = "job {job} needs it";
    SetNeedsNode "set_needs_node" { set: String } = "demand set {set} needs it";
    NoSuchSize "no_such_size" { size: String } = "the policy has no size {size}";
    /// Not all demands of a set can have a node now.
    SetLacks "set_lacks" { set: String, lacking: u32, count: u32, why: String } = "demand set {set} lacks {lacking} of {count}: {why}";
    BelowMinimum "below_minimum" { min: u32 } = "the minimum is {min} now";

    // What a plan does not do

    /// Every slot below `nodes.max` has a node.
    NodesMax "nodes_max" { max: u32, there: u32 } = "{}", allowed("nodes.max", *max, *there);
    ClusterPaused "cluster_paused" {} = "nodes.max is 0, which pauses the cluster";
    PriceCap "price_cap" { spent: Usd, price: Usd, cap: Usd } = "one more node costs {price} an hour, the nodes cost {spent}, and nodes.max_price_per_hour is {cap}";
    SizeMaximum "size_maximum" { size: String, max: u32, there: u32 } = "{}", allowed(&format!("the maximum of size {size}"), *max, *there);
    /// A limit stops every launch.
    LaunchPaused "launch_paused" { limit: String, left: Span } = "launching pauses for {left}: {limit}";
    /// EC2 refused a part of a launch, for example its subnet.
    LaunchLimited "launch_limited" { limit: String, left: Span } = "{limit}: the next try is in {left}";
    /// After a shortage, a run makes few attempts.
    AttemptsSpent "attempts_spent" { offering: String, most: u64 } = "EC2 was short of {offering}: attempts in this run are limited to {most}, and each success doubles the limit";
    /// The queue is too long for one run.
    QueueNotRead "queue_not_read" { read: usize, least: usize } = "at least {least} jobs wait, and this run read {read} of them: the next runs read on where it stopped";
    KeptForUnread "kept_for_unread" {} = "kept for jobs that this run did not read";
    MaxPerRun "max_per_run" { max: u32 } = "launch.max_per_run is {max}: a later run makes the other launches";
    NodesLaunched "nodes_launched" { slots: Vec<Slot> } = "this run launches for it: {}", listed(slots);
    /// Nodes with room for the job boot.
    NodesBoot "nodes_boot" { slots: Vec<Slot> } = "it waits until {} can take work", listed(slots);
    /// Nodes with room for the job are silent or unlisted.
    NodesSuspected "nodes_suspected" { slots: Vec<Slot> } = "{} silent or not listed by EC2, which does not prove yet that it is gone: nothing is placed there, and nothing is launched instead", listed(slots);
    /// Other members of the job have nodes.
    PartFound "part_found" { found: usize, of: u32 } = "it keeps {found} of the {of} nodes that it needs";
    KeptForEarlier "kept_for_earlier" { job: String } = "job {job} comes first, and the rest of the room is kept for it";
    PlacedInPart "placed_in_part" { placed: usize, of: u32 } = "{placed} of its {of} members are on nodes: they start when all of them are";
    PlacingCutShort "placing_cut_short" {} = "its placing was cut short: those of its members that are on nodes stop first";
    RegroupingMembers "regrouping_members" {} = "what still runs of it is stopping: it starts again after that";
    IntentIsHold "intent_is_hold" { slot: Slot } = "an operator holds it: `nodekeeper resume {slot}` ends that";
    ReservedFor "reserved_for" { job: String } = "reserved for job {job}";
    KeptForSet "kept_for_set" { set: String } = "kept for demand set {set}";
    KeptForMinimum "kept_for_minimum" { min: u32 } = "kept for the minimum, which is {min} now";
    IdleUnconfirmed "idle_unconfirmed" { seen: u32, of: u32 } = "idle, seen by {seen} of the {of} runs that idle.confirmations asks for";
    IdleNotLongEnough "idle_not_long_enough" { left: Span } = "idle, and idle.timeout_s is over in {left}";
    WindowClosed "window_closed" { opens: Span } = "its shutdown window opens in {opens}";
    AgentSaysBusy "agent_says_busy" {} = "its agent says that it is busy";
    AgentRefuses "agent_refuses" { why: String } = "it takes no work: {why}";
    Awaited "awaited" { what: String } = "it boots: {what}";
    NotReportedYet "not_reported_yet" {} = "it has not reported yet what runs on it";
    DownNotLongEnough "down_not_long_enough" { left: Span } = "down, and shutdown.down_after_s is over in {left}";
    NodeSuspected "node_suspected" {} = "it is silent or unlisted, and this run does not believe that it is gone";
    InstanceNotRunning "instance_not_running" { state: InstanceState } = "EC2 lists its instance as {state}";
    AllocsUnclear "allocs_unclear" {} = "its allocs could not all be read in this run";

    // Shutdown

    DrainedUnheard "drained_unheard" {} = "drained before its first heartbeat";
    /// A node has never sent a heartbeat, but heartbeat-ingest may have been down.
    BootBlackout "boot_blackout" {} = "no heartbeat within boot.timeout_s, but heartbeat-ingest has not shown since then that it works: the node is left alone until it has";
    BootTimedOut "boot_timed_out" { waited: Span } = "no heartbeat within {waited} of its assignment";
    Interrupted "interrupted" { by: Time } = "EC2 takes its instance away at {by}";
    /// EC2 recommends to leave the instance of the node.
    AtRisk "at_risk" {} = "EC2 may soon take its instance away (launch.drain_at_risk)";
    DrainedAndIdle "drained_and_idle" {} = "drained and idle";
    DrainDeadlineOver "drain_deadline_over" {} = "its drain's deadline has passed";
    /// A node never became ready.
    NeverWhole "never_whole" { what: String } = "boot.timeout_s is over, and {what}";
    StuckSyncing "stuck_syncing" {} = "it never reported what runs on it";
    SizeLeftPolicy "size_left_policy" { size: String } = "idle, and size {size} is no longer in the policy";
    DownTooLong "down_too_long" { silent: Span } = "down: silent for {silent}";
    IdleTooLong "idle_too_long" { idle: Span } = "idle for {idle}, and nothing in the queue needs it";
    MakesWay "makes_way" { job: String } = "idle, and {job} waits for the room that it takes up";
    /// A run saw a node idle.
    IdleAndNotNeeded "idle_and_not_needed" {} = "idle and not needed";
    /// A node that was seen idle is needed.
    NeededAgain "needed_again" {} = "needed again";

    // Stale records

    /// A record has no instance, and it was neither written nor pinged for too long.
    Stale "stale" { quiet: Span } = "stale: EC2 lists no instance for it, and it was neither written nor pinged for {quiet}";
    /// An unusual share of the records is stale.
    ManyStale "many_stale" { stale: usize, up: usize } = "{stale} of {up} records are stale at once: more likely EC2's list is wrong than all of their instances are gone";
    SetOver "set_over" { key: String } = "{key} was not renewed, or was deleted";
    EntryOver "entry_over" { key: String } = "entry {key} of the control table ended more than a day ago";
    SlotBeyondMaximum "slot_beyond_maximum" { slot: Slot, max: u32 } = "slot {slot} is above the highest slot that nodes.max = {max} allows";
    ManyOrphans "many_orphans" { orphans: usize, shown: String } = "{orphans} orphaned instances at once ({shown}…)";
    /// No record claims an instance.
    Orphan "orphan" { instance_id: String, owner: String } = "{instance_id} was launched for {owner}, and no record claims it";

    // Handles

    RecordMissing "record_missing" {} = "the record of its node does not exist or is older than the node";
    NodeKnownAgain "node_known_again" {} = "its node is known again";
    /// Handles carry the label of another node.
    ForeignHandles "foreign_handles" { handles: usize, shown: String } = "{handles} handles carry the label of another node ({shown}): they stay while that node lives";
    /// The node was told to destroy handles and still has them.
    HandlesStay "handles_stay" { handles: usize, shown: String, why: String } = "its agent cannot remove {handles} handles ({shown}): {why}";
    Destroyed "destroyed" {} = "destroyed a while ago";
    /// The node has not confirmed the destruction.
    WaitsForReport "waits_for_report" {} = "waits for its node's report";
    /// The handle is unknown until a later report lists it again.
    NobodyOrdered "nobody_ordered" {} = "no row orders it: waits for a later report";
    AllocLive "alloc_live" {} = "its alloc is live";
    AllocEnded "alloc_ended" { alloc_id: AllocId } = "{alloc_id} has ended";
    CacheInUse "cache_in_use" {} = "an alloc of its node uses it";
    CacheUnused "cache_unused" { unused: Span } = "a cache unused for {unused}";
    /// A cache was not created before its deadline.
    NeverAppeared "never_appeared" {} = "it never appeared";
    NotUnusedLongEnough "not_unused_long_enough" {} = "it has not been unused for long enough";
    UnusedFromNow "unused_from_now" {} = "unused from now on";
    BelongsToNoAlloc "belongs_to_no_alloc" {} = "it belongs to no alloc";
    MissingTooLong "missing_too_long" { handles: usize, shown: String } = "{handles} handles were missing for too long ({shown})";
    /// A report listed handles again that no row orders.
    UnknownAgain "unknown_again" { handles: usize, shown: String } = "{handles} handles were listed twice although no row orders them ({shown})";
    ManyHandles "many_handles" { node_id: NodeId, unusual: usize, all: usize } = "node {node_id}: {unusual} of {all} handles would be destroyed as unknown or dropped as missing, so none is: if they may go, raise sweep.cap_min until they are gone, or drain the node";

    // Nodes and launches

    ReportedAgain "reported_again" {} = "its node reports it again";
    ReportTaken "report_taken" {} = "its complete report was taken";
    LaunchRefused "launch_refused" { size: String, error: String } = "{size}: {error}";
    /// Enough starts failed in a row to pause launching.
    StartsFailed "starts_failed" { count: u64, pause_s: i64, console: String } = "{count} starts failed in a row: launching pauses for {pause_s} s; console: {console}";

    // Brakes

    /// A brake holds back until its time has passed, or until an operator releases it.
    HeldFor "held_for" { why: Box<Reason>, left: Span, kind: BrakeKind } = "{why}; held for {left} more, or until `nodekeeper release {kind}`";
    /// A brake holds back until an operator releases it.
    Held "held" { why: Box<Reason>, kind: BrakeKind } = "{why}; held until `nodekeeper release {kind}`";
    /// What a brake held back is no longer there.
    TroubleOver "trouble_over" { kind: BrakeKind } = "the brake {kind} holds nothing any more";
    NoLongerHeld "no_longer_held" { why: Box<Reason> } = "{why}; no longer held";

    // Arrays

    /// As many jobs of an array are placed as its limit allows.
    ArrayLimit "array_limit" { limit: u32 } = "its array may have {limit} jobs placed at once, and they are: it waits for the end of one";

    /// As many elements have failed as the array allows.
    ArrayFailures "array_failures" { failed: u64, max: u32 } = "{failed} elements of its array have failed, and --max-failures {max} begins no other one then";

    // Jobs that are put off

    Paused "paused" {} = "it is paused: `nodekeeper continue` lets it go on";
    NotBefore "not_before" { at: Time } = "it begins at {at} at the earliest (--not-before)";
    TimeCame "time_came" {} = "its time has come";
    /// The limits of a share, or of each person.
    WorkLimit "work_limit" { whose: String, what: &'static str, most: String } = "{whose} may have {most} {what} at the same time: it waits for the end of some, or for a higher limit";
    NeverAllowed "never_allowed" { why: String } = "it cannot start before an operator raises a limit: {why}";
    LicencesUsed "licences_used" { name: String, needs: u32, free: u32, all: u32 } = "it needs {needs} of {name}, and {}", free_of(*free, *all);
    /// Another run places the jobs that are under a limit.
    LimitTurnTaken "limit_turn_taken" {} = "another run has the turn to place jobs that are under a limit: the next run places it, or one a minute later if that run failed";
    /// Other shares come first.
    ShareTurn "share_turn" { share: String, used: u32, part: u32, before: String } = "share {share} has used {used} % of late, and its part is {part} %; before its first job: {before}";
    BudgetSpent "budget_spent" { spent: Usd, budget: Usd } = "the nodes of this month have cost {spent}, and budget.dollars_per_month is {budget}: nothing is launched";
    GaveUp "gave_up" { after: Span } = "it had not begun {after} after its submission (--give-up-after)";

    // Retries

    /// A job that failed or was lost waits before its next try.
    RetryWaits "retry_waits" { why: String, left: Span } = "its last try ended ({why}), and it is tried again in {left}";

    // Jobs that follow others

    Follows "follows" { next: JobId, left: usize } = "it runs after {}", followed(*next, *left);
    FollowedEnded "followed_ended" { ended: usize, left: usize } = "{ended} of the jobs that it follows ended as they must, {left} are left";
    FollowedNotComplete "followed_not_complete" { job_id: JobId, state: JobState } = "it runs only if job {job_id} is complete, and that job is {state}";
    FollowedAbsent "followed_absent" { job_id: JobId } = "it runs only if job {job_id} is complete, and that job is no longer stored: nobody knows how it ended";

    // Ends

    /// How an alloc ended.
    AllocEndedAs "alloc_ended_as" { client: ClientStatus, cause: EndCause } = "{client}: {cause}";
    /// The state of a job after one of its allocs ended.
    JobNow "job_now" { state: JobState, message: String } = "{state}{message}";
}

/// The jobs that a job waits for, as words.
fn followed(next: JobId, left: usize) -> String {
    match left {
        1 => format!("job {next}, which has not ended"),
        _ => format!("{left} jobs that have not ended: {next} is one of them"),
    }
}

/// How many nodes a maximum allows, and how many of them are there.
fn allowed(maximum: &str, max: u32, there: u32) -> String {
    match max {
        _ if there < max => format!("{maximum} allows {max} nodes, and {there} of them are there"),
        1 => format!("the 1 node that {maximum} allows is there"),
        _ => format!("all {max} nodes that {maximum} allows are there"),
    }
}

/// The most slots that a reason names.
const SLOTS_NAMED: usize = 20;

fn listed(slots: &[Slot]) -> String {
    let named = slots.iter().take(SLOTS_NAMED).map(|slot| format!("slot {slot}")).collect::<Vec<_>>().join(", ");
    match slots.len().saturating_sub(SLOTS_NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// How many licences are free of all that the policy has.
fn free_of(free: u32, all: u32) -> String {
    match all {
        0 => "limits.licences of the policy has none".to_owned(),
        all => format!("{free} of {all} are free (limits.licences)"),
    }
}

fn are(nodes: usize) -> String {
    if nodes == 1 { "1 node is".to_owned() } else { format!("{nodes} nodes are") }
}

impl Reason {
    /// Whether this is a limit, and not only a reason of one job.
    pub const fn is_limit(&self) -> bool {
        self.is_unstored() || matches!(self, Self::LaunchPaused { .. } | Self::LaunchLimited { .. })
    }

    /// Whether a job waits for nodes that boot, or that this or a later run launches for it.
    pub const fn is_about_nodes_to_come(&self) -> bool {
        matches!(
            self,
            Self::NodesLaunched { .. } | Self::NodesBoot { .. } | Self::NodesSuspected { .. } | Self::MaxPerRun { .. }
        )
    }

    /// Whether this is a limit that no entry of the control table shows: a cap of the policy, the few attempts after a shortage, or
    /// a silence that is not believed yet.
    pub const fn is_unstored(&self) -> bool {
        matches!(
            self,
            Self::NodesMax { .. }
                | Self::SetLacks { .. }
                | Self::ClusterPaused {}
                | Self::BudgetSpent { .. }
                | Self::PriceCap { .. }
                | Self::SizeMaximum { .. }
                | Self::AttemptsSpent { .. }
                | Self::MaxPerRun { .. }
                | Self::QueueNotRead { .. }
                | Self::IngestUnproven { .. }
        )
    }

    /// The word, and what the reason is about if there can be several at once.
    pub fn key(&self) -> String {
        match self {
            Self::SizeMaximum { size, .. } => format!("{} {size}", self.word()),
            Self::SetLacks { set, .. } => format!("{} {set}", self.word()),
            Self::AttemptsSpent { offering, .. } => format!("{} {offering}", self.word()),
            Self::ManyHandles { node_id, .. } => format!("{} {node_id}", self.word()),
            _ => self.word().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_reason_has_a_word_of_its_own_and_a_text() {
        let words: BTreeSet<&str> = Reason::WORDS.iter().copied().collect();
        assert_eq!(words.len(), Reason::WORDS.len());
        let held = Reason::HeldFor {
            why: Box::new(Reason::ManyExpired { expired: 4, leases: 6 }),
            left: Span::from_s(90),
            kind: BrakeKind::Leases,
        };
        assert_eq!(held.word(), "held_for");
        let text = "4 of 6 leases expired at once; held for 1 min 30 s more, or until `nodekeeper release leases`";
        assert_eq!(held.to_string(), text);
        let needs = Capacity { vcpus: 8, memory_mib: 1024, scratch_gib: 0, gpus: 1 };
        let never = Reason::NoSizeFits { needs, narrowed: String::new(), usable: "0.95".to_owned() };
        assert!(never.to_string().starts_with("no size fits: it needs 8 vCPU, 1 GiB, 1 GPU;"));
    }
}
