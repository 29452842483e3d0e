//! The invariants: what must hold after every single write and every call of EC2.
//!
//! Each is a function `invariant_…`, and its doc says what it checks. The checks read the attributes of the rows
//! and look at the machines themselves. They do not use the product's types, so that a mistake in those types
//! cannot hide here.
//!
//! Guarantees: every write, launch, termination, start and destruction is checked at the moment it happens.
//! Does not: check anything beyond the rules.

mod allocs;
mod brakes;
pub mod cloud;
mod demand;
mod events;
mod files;
mod gpus;
mod handles;
mod interruptions;
mod jobs;
mod ledger;
mod left;
mod next;
mod nodes;
mod row;
mod shutdown;
mod starts;
mod unreadable;

use crate::caller::{Caller, Kind};
use crate::core::{Core, Fault, lock};
use crate::database::{Change, Model};
use crate::ec2::Ec2;
use demand::Lately;
use ledger::Ledger;
use model::{AllocId, EndCause, JobId, NodeId, Policy, Span, Time};
use row::{
    alloc_id, count, done, is_back, is_ended, is_final, is_of_market, is_true, is_wanted, node_id, number, refuses,
    set, slot, text, time, usable_gpus, within,
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use store::{Item, Key, Row, Table, Write, alloc_key, job_key, node_key};
use tokio::sync::Notify;

/// How far the clocks of two functions may differ, and how old a run's observation may be.
const SLACK: Span = Span::from_s(8);

/// The longest time of an action whose calls are not slow.
const ACTION: Span = Span::from_s(5);

/// Checks of at most this many rows are made each time.
const LOOKED_AT: usize = 256;

/// How long a run may act on what it read at its beginning, which may already have been old.
const RUN: Span = Span::from_s(90);

/// How long a run may act on what an index shows, which may lag as well.
const INDEX: Span = Span::from_s(180);

/// How long after a restore the invariants do not apply to what began before it. The functions and the nodes put
/// everything right within this time, and then the invariants hold again for everything.
pub const RESTORE_EXCUSES: Span = Span::from_s(3600);

/// The faults that keep a run from writing what it decided.
const WRITES_FAIL: [Fault; 5] =
    [Fault::DbThrottles, Fault::DbFails, Fault::DbContended, Fault::DbAnswerLost, Fault::Restored];

/// What an observer of a machine sees.
#[derive(Debug)]
pub struct Ground {
    pub node_id: NodeId,
    /// The allocs that the node's agent knows.
    pub known: BTreeSet<AllocId>,
    pub running: BTreeSet<AllocId>,
    /// The GPUs of each running alloc that has some.
    pub gpus: BTreeMap<AllocId, Vec<String>>,
    /// The caches that the running allocs name.
    pub caches: BTreeSet<String>,
    pub handles: BTreeSet<String>,
    /// The time at which the last answer told the agent to call again.
    pub next_call_at: Option<Time>,
    /// When the agent last got an answer.
    pub answered_at: Option<Time>,
    /// Whether the agent's last answered heartbeat said that the node is busy.
    pub said_busy: bool,
}

#[derive(Default)]
struct Seen {
    up: usize,
    /// The recent policies, each with the time since which it holds. The current one is last.
    policies: VecDeque<(Time, Arc<Policy>)>,
    /// Recent numbers of queued members.
    queued: Lately,
    /// Recent numbers of unknown allocs.
    unknown: Lately,
    /// Recent sums of the counts of the demand sets.
    sets: Lately,
    /// Since when the demand set that must be satisfied has no node.
    unsatisfied_since: Option<Time>,
    /// Every life that ever existed.
    lives: HashSet<NodeId>,
    /// Lives whose records were cleaned.
    over: HashSet<NodeId>,
    /// For each member, the copies that are wanted and neither unknown nor awaiting.
    wanted: HashMap<(JobId, u32), BTreeSet<AllocId>>,
    machines: BTreeMap<String, Arc<Mutex<Ground>>>,
    by_node: BTreeMap<NodeId, Arc<Mutex<Ground>>>,
    /// When a row of a handle of each node was last written.
    handles_changed_at: HashMap<NodeId, Time>,
    jobs: usize,
    lists: next::Lists,
    /// The job of each key.
    keyed: HashMap<String, JobId>,
    /// Allocs of jobs of several members whose members are all placed.
    placed_together: HashSet<AllocId>,
    /// Allocs whose process was started.
    started: HashSet<AllocId>,
    /// The live allocs, each with its node.
    live: BTreeMap<AllocId, NodeId>,
    /// The time since which each job is queued.
    queued_since: HashMap<JobId, Time>,
    /// For each node that had no work yet: the job that it was launched for.
    launched_for: BTreeMap<NodeId, JobId>,
    /// The first job of the queue at the last look, and since when it is the first.
    first_since: Option<(JobId, Time)>,
    /// The cause that a node saw for each end of a process.
    exits: HashMap<(NodeId, AllocId), EndCause>,
    /// How elements of packs ended.
    elements_ran: HashMap<JobId, jobs::packs::Ran>,
    /// When each alloc was told to stop.
    stopped_at: HashMap<AllocId, Time>,
    /// For each drained node, when its current deadline was set.
    drained_at: HashMap<NodeId, Time>,
    /// For each alloc that came back, since when it awaits the decision on its copies.
    back_since: BTreeMap<AllocId, Time>,
    /// The unknown allocs of which a complete report said that they are not on their node.
    absent: BTreeSet<AllocId>,
    /// For each job of an array that is there: who placed it, and when.
    placed: HashMap<JobId, jobs::arrays::Placed>,
    /// Since when a share waits for others.
    share_waits: jobs::shares::ShareWaits,
    /// What all ended allocs have used.
    share_uses: Vec<jobs::shares::Used>,
    /// The array that has far fewer jobs placed than its limit although more could run, and since when.
    array_waits: Option<(u128, Time)>,
    /// For each brake: its rows before the last writes, who wrote, and when.
    brakes: HashMap<String, Vec<(u64, Time, Row)>>,
    heard_at: Option<Time>,
    /// When the tables were last restored.
    restored_at: Option<Time>,
    /// The rows that cannot be read.
    spoiled: Vec<unreadable::Spoiled>,
    /// The rows that were repaired within the time of a run, and when.
    repaired: Vec<(Key, Time)>,
    /// The rows of handles and allocs that could not be read at some time.
    once_spoiled: Vec<Key>,
    /// When an operator last set the intent of each node.
    intended_at: HashMap<NodeId, Time>,
    /// When the row of a handle stopped being marked for destruction.
    unmarked_at: HashMap<(NodeId, String), Time>,
    /// For each handle that waits to be destroyed: how many answers in a row named other handles and not this one.
    passed_over: BTreeMap<(NodeId, String), usize>,
}

/// The invariants, with what they remember.
///
/// A check gets the tables from its caller and has no other access to them, because most checks are made during a
/// write, when nobody else may look at the tables.
pub struct Check {
    core: Arc<Core>,
    seen: Mutex<Seen>,
    looked: AtomicUsize,
    ledger: Mutex<Ledger>,
    /// Notified when a job arrives or ends in a world that compares policies.
    pub wakes: Notify,
    ec2: OnceLock<Weak<Ec2>>,
}

/// The invariants, for callers who do not hold the tables.
pub struct Watch {
    check: Arc<Check>,
    model: Arc<Mutex<Model>>,
}

impl Watch {
    pub const fn new(check: Arc<Check>, model: Arc<Mutex<Model>>) -> Self {
        Self { check, model }
    }

    /// The tables, for one check.
    pub fn tables(&self) -> MutexGuard<'_, Model> {
        lock(&self.model)
    }
}

impl Deref for Watch {
    type Target = Check;
    fn deref(&self) -> &Check {
        &self.check
    }
}

impl Check {
    pub fn new(core: Arc<Core>) -> Arc<Self> {
        Arc::new(Self {
            core,
            seen: Mutex::default(),
            looked: AtomicUsize::new(0),
            ledger: Mutex::default(),
            wakes: Notify::new(),
            ec2: OnceLock::new(),
        })
    }

    /// Connects the checks to the instances as they really are.
    pub fn watch(&self, ec2: &Arc<Ec2>) {
        let _ = self.ec2.set(Arc::downgrade(ec2));
    }

    fn broken(&self, rule: &'static str, what: String) {
        self.core.broken(rule, what);
    }

    /// Whether to make a check that looks at this many rows. Of a few rows, each check is made. Of many rows, only
    /// every n-th check is made, so that the checks of a large world cost no more than its rows.
    fn looks_at(&self, rows: usize) -> bool {
        let every = rows / LOOKED_AT + 1;
        self.looked.fetch_add(1, Ordering::Relaxed).is_multiple_of(every)
    }

    fn ec2(&self) -> Option<Arc<Ec2>> {
        self.ec2.get()?.upgrade()
    }

    /// How many records are not cleaned.
    pub fn up(&self) -> usize {
        lock(&self.seen).up
    }

    /// How many jobs have not ended, by the writes so far.
    pub fn jobs(&self) -> usize {
        lock(&self.seen).jobs
    }

    fn policy(&self, row: &Item) {
        let policy = text(row, "document").and_then(|d| serde_json::from_str(d).ok());
        let Some(Ok(policy)) = policy.map(|p: serde_json::Value| Policy::from_json(&p)) else { return };
        let mut seen = lock(&self.seen);
        seen.policies.push_back((self.core.now(), Arc::new(policy)));
    }

    /// The policies that held at some time in the last `span`.
    fn policies(&self, span: Span) -> Vec<Arc<Policy>> {
        let now = self.core.now();
        let policies = &mut lock(&self.seen).policies;
        while policies.get(1).is_some_and(|(at, _)| *at < now - INDEX) {
            policies.pop_front();
        }
        // The last policy from before the span still held at its beginning.
        let first = policies.iter().rposition(|(at, _)| *at < now - span).unwrap_or(0);
        policies.iter().skip(first).map(|(_, policy)| Arc::clone(policy)).collect()
    }

    fn present_policy(&self) -> Option<Arc<Policy>> {
        lock(&self.seen).policies.back().map(|(_, policy)| Arc::clone(policy))
    }

    /// Called when the tables were restored. Rows that the restore took away must not make a later write look wrong.
    pub fn restored(&self, model: &Model) {
        if let Some(row) = model.rows(Table::Control).find(|r| text(r, "key") == Some("policy")) {
            self.policy(row);
        }
        let mut seen = lock(&self.seen);
        seen.restored_at = Some(self.core.now());
        // A table that was not restored still has its unreadable rows.
        seen.spoiled.retain(|one| one.is_still_so(model));
        seen.up = model.rows(Table::Nodes).filter(|r| text(r, "state") != Some("cleaned")).count();
        seen.jobs = model.rows(Table::Jobs).filter(|r| !is_ended(r)).count();
        let queued: Vec<_> = model.rows(Table::Jobs).filter(|r| text(r, "state") == Some("queued")).collect();
        let members = queued.iter().map(|r| count(r, "nodes").max(1).unsigned_abs() as usize).sum();
        let now = self.core.now();
        seen.queued_since = queued.iter().filter_map(|r| Some((jobs::job_id(r)?, now))).collect();
        seen.queued.set(now, members);
        let unknown = model.rows(Table::Allocs).filter(|a| text(a, "client") == Some("unknown")).count();
        seen.unknown.set(now, unknown);
        seen.sets.set(now, demand::wanted_by_sets(model));
        // If the tables have forgotten an alloc, its id may be given a second time.
        seen.started.retain(|id| model.get(&alloc_key(*id)).is_some());
        seen.placed.clear();
        seen.keyed.clear();
        seen.wanted.clear();
        seen.live.clear();
        seen.back_since.clear();
        for row in model.rows(Table::Allocs) {
            if let Some(id) = alloc_id(row) {
                if is_back(row) {
                    seen.back_since.insert(id, now);
                }
                if is_wanted(row) {
                    seen.wanted.entry((id.job_id, id.member)).or_default().insert(id);
                }
                if let (false, Some(node)) = (is_final(row), node_id(row)) {
                    seen.live.insert(id, node);
                }
            }
        }
    }

    /// Whether the tables were restored after something began, not longer than [`RESTORE_EXCUSES`] ago. The restore may have
    /// taken away some of its rows, so the invariants do not apply to it. (They apply at once to everything that began after
    /// the restore.)
    fn forgets(&self, began: Option<Time>) -> bool {
        let restored_at = lock(&self.seen).restored_at;
        restored_at.is_some_and(|at| self.core.now().since(at) < RESTORE_EXCUSES) && self.was_restored_since(began)
    }

    /// Whether the tables were restored after something began, however long ago. Only for counts that a restore makes
    /// wrong for ever.
    fn was_restored_since(&self, began: Option<Time>) -> bool {
        let restored_at = lock(&self.seen).restored_at;
        restored_at.is_some_and(|at| began.is_none_or(|began| began <= at + SLACK))
    }

    /// As [`Self::forgets`], for a node's life.
    fn forgets_life(&self, node: NodeId) -> bool {
        self.forgets(i64::try_from(node.ulid().timestamp_ms()).ok().map(Time::from_ms))
    }

    /// As [`Self::forgets`], for a job.
    fn forgets_job(&self, model: &Model, job: JobId) -> bool {
        let restored = lock(&self.seen).restored_at.is_some();
        restored && self.forgets(model.get(&job_key(job)).cloned().and_then(|row| time(&row, "submitted_at")))
    }

    /// Called when a caller read a node record, in a list or alone.
    pub fn saw(caller: &Caller, item: &Item, listed: bool) {
        if let Some(slot) = slot(item) {
            caller.saw(slot, node_id(item), listed);
        }
        let leased = matches!(text(item, "status"), Some("ready" | "syncing"));
        if leased
            && text(item, "state") == Some("in_use")
            && time(item, "lease_expires_at").is_some_and(|at| at + SLACK >= caller.began())
        {
            caller.hears_somebody();
        }
        if text(item, "state") == Some("shutting_down") {
            text(item, "instance_id").into_iter().for_each(|id| caller.shuts_down(id));
        }
    }

    /// Adds a machine. From now on, the machine writes what an observer of it sees into the returned value.
    pub fn machine(&self, instance_id: &str, node_id: NodeId) -> Arc<Mutex<Ground>> {
        let ground = Ground {
            node_id,
            known: BTreeSet::new(),
            running: BTreeSet::new(),
            gpus: BTreeMap::new(),
            caches: BTreeSet::new(),
            handles: BTreeSet::new(),
            next_call_at: None,
            answered_at: None,
            said_busy: false,
        };
        let ground = Arc::new(Mutex::new(ground));
        let mut seen = lock(&self.seen);
        seen.machines.insert(instance_id.to_owned(), Arc::clone(&ground));
        seen.by_node.insert(node_id, Arc::clone(&ground));
        ground
    }

    /// Called when a machine is off: nothing runs on it any more.
    pub fn machine_gone(&self, instance_id: &str) {
        let mut seen = lock(&self.seen);
        if let Some(ground) = seen.machines.remove(instance_id) {
            let node = lock(&ground).node_id;
            seen.by_node.remove(&node);
        }
    }

    fn ground(&self, node: NodeId) -> Option<Arc<Mutex<Ground>>> {
        lock(&self.seen).by_node.get(&node).cloned()
    }

    /// A live alloc of another node, if there is one.
    pub fn somebody_elses(&self, node: NodeId) -> Option<AllocId> {
        lock(&self.seen).live.iter().find(|(_, on)| **on != node).map(|(id, _)| *id)
    }

    /// Called after each write. Checks everything that must hold after it.
    pub fn wrote(&self, caller: &Caller, model: &Model, writes: &[Write], changes: &[Change]) {
        for change in changes {
            let (before, after) = (change.before.as_deref(), change.after.as_deref());
            self.brakes(caller, model, change);
            self.measure(change);
            match change.table {
                Table::Nodes => self.node(caller, model, before, after),
                Table::Jobs => {
                    self.job(model, before, after, changes);
                    self.array(caller, model, before, after);
                    self.pack(model, before, after);
                }
                Table::Allocs => self.alloc(caller, model, before, after),
                Table::Handles => self.handle(caller, model, before, after),
                Table::Control => {
                    after.filter(|r| text(r, "key") == Some("policy")).into_iter().for_each(|r| self.policy(r));
                    self.sets(model);
                }
                Table::Events => after.into_iter().for_each(|event| self.told(caller, event)),
            }
        }
        self.handed_on(caller, model, changes);
        self.needs_events(caller, changes);
        self.shares(caller, model, changes);
        self.unreadable(caller, changes);
        self.invariant_one_copy_of_a_member_is_wanted(changes);
        self.invariant_no_write_is_blind(caller, writes);
        self.invariant_nothing_is_done_by_an_old_observation(caller, changes);
        self.invariant_a_node_changes_only_its_own_rows(caller, changes);
        self.placed_all_at_once(model, changes);
        self.invariant_the_right_copy_stays(caller, model, changes);
        self.invariant_a_reconnect_is_decided_among_the_heard(caller, model, changes);
        self.invariant_every_member_is_wanted(model, changes);
    }

    /// Every write to a row, and every check of a row in a transaction, has a condition: the version that was read, or
    /// the absence of the row, or (for the pulse and the report counters) the same life.
    fn invariant_no_write_is_blind(&self, caller: &Caller, writes: &[Write]) {
        use store::Cond;
        for write in writes {
            let guards: &[&str] = match write.key.table {
                Table::Nodes => &["version", "node_id"],
                Table::Jobs | Table::Allocs | Table::Control => &["version"],
                Table::Handles => &["seq"],
                Table::Events => continue,
            };
            let hash = write.key.table.definition().key.hash.name;
            let guarded = write.when.iter().any(|cond| match cond {
                Cond::Eq(name, _) => guards.contains(name),
                Cond::Absent(name) => *name == hash || *name == "handle" || *name == "no",
                // A write that may replace a tombstone.
                Cond::Any(of) => write.key.table == Table::Handles && of.contains(&Cond::Absent("handle")),
                _ => false,
            });
            if !guarded {
                self.broken("invariant_no_write_is_blind", format!("{}: {write:?}", caller.name()));
            }
        }
    }

    /// No run begins an action if its observation is older than `poll.stale_after_s`. An action that has already begun
    /// may still write, for as long as an action takes, and after a slow call. (Not checked: launches, which may take
    /// longer.)
    fn invariant_nothing_is_done_by_an_old_observation(&self, caller: &Caller, changes: &[Change]) {
        if !matches!(caller.kind, Kind::Run(_)) {
            return;
        }
        let assigned = |row: Option<&Row>| row.is_some_and(|r| text(r, "state") == Some("assigned"));
        let launching = |c: &Change| assigned(c.before.as_ref());
        // The reaction to a spot warning uses its event, not the observation.
        let intent =
            |row: Option<&Row>| row.map(|r| (text(r, "intent").map(ToOwned::to_owned), time(r, "drain_by_at")));
        let warned = |c: &Change| c.table == Table::Nodes && intent(c.before.as_ref()) != intent(c.after.as_ref());
        let decided = |table| matches!(table, Table::Nodes | Table::Jobs | Table::Allocs | Table::Handles);
        let acting = |c: &&Change| decided(c.table) && !launching(c) && !warned(c);
        let Some(change) = changes.iter().find(acting) else { return };
        if self.is_too_late(caller) {
            let what = format!("{} began at {} and changed {:?}", caller.name(), caller.began(), change.after);
            self.broken("invariant_nothing_is_done_by_an_old_observation", what);
        }
    }

    /// Whether an action that writes now must have begun when the run's observation was already too old.
    fn is_too_late(&self, caller: &Caller) -> bool {
        let stale_after = self.policies(RUN).iter().map(|p| p.poll.stale_after_s).max().unwrap_or(0);
        let limit = caller.began() + Span::from_s(stale_after);
        let limit = caller.held_up_until().map_or(limit, |until| until.max(limit));
        self.core.now() > limit + ACTION
    }

    /// No request of a node changes another node's rows.
    fn invariant_a_node_changes_only_its_own_rows(&self, caller: &Caller, changes: &[Change]) {
        let Kind::Node { node, .. } = &caller.kind else { return };
        let mut jobs: BTreeSet<JobId> = BTreeSet::new();
        for change in changes.iter().filter(|c| c.table == Table::Allocs) {
            jobs.extend(change.after.as_deref().and_then(alloc_id).map(|a| a.job_id));
        }
        for change in changes {
            let rows = [change.before.as_deref(), change.after.as_deref()];
            let right = rows.into_iter().flatten().all(|row| match change.table {
                Table::Nodes | Table::Allocs | Table::Handles => node_id(row) == Some(*node),
                Table::Jobs => text(row, "job_id").and_then(|j| j.parse().ok()).is_some_and(|j| jobs.contains(&j)),
                Table::Control => matches!(text(row, "key"), Some("ingest" | "next_turn")),
                Table::Events => true,
            });
            if !right {
                let what = format!("{} changed {:?} {:?}", caller.name(), change.table, change.after);
                self.broken("invariant_a_node_changes_only_its_own_rows", what);
            }
        }
    }

    /// Called when a node was answered 410.
    pub fn told_gone(&self, model: &Model, node: NodeId) {
        self.core.count("a node was told that it is gone");
        self.invariant_gone_is_said_only_to_a_life_that_is_over(model, node);
    }

    /// A node is answered 410 only if its life was cleaned, or if its slot has a later life.
    fn invariant_gone_is_said_only_to_a_life_that_is_over(&self, model: &Model, node: NodeId) {
        let row = model.get(&node_key(node.slot())).cloned();
        let over = row.as_deref().is_some_and(|row| match node_id(row) {
            Some(current) => current.ulid() > node.ulid(),
            None => text(row, "last_node_id")
                .and_then(|l| l.parse::<NodeId>().ok())
                .is_some_and(|last| last.ulid() >= node.ulid()),
        });
        let seen = lock(&self.seen);
        // Between the answer and this look, the row may have been deleted because `nodes.max` was lowered, or the
        // tables may have been restored.
        let deleted = row.is_none() && seen.over.contains(&node);
        let restored = seen.restored_at.is_some_and(|at| self.core.now().since(at) < Span::from_s(60));
        drop(seen);
        if !over && !deleted && !restored {
            self.broken("invariant_gone_is_said_only_to_a_life_that_is_over", format!("{node}: {row:?}"));
        }
    }

    /// How many jobs have not ended, by the rows.
    pub fn jobs_left(model: &Model) -> usize {
        model.rows(Table::Jobs).filter(|r| !is_ended(r)).count()
    }

    fn job_row(model: &Model, job: JobId) -> Option<Row> {
        model.get(&job_key(job)).cloned()
    }
}
