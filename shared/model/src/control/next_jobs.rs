//! The jobs that start next, on the room that an end frees (`docs/rules.md#next`).
//!
//! A run that leaves jobs waiting lists them. Whoever takes the end of an alloc draws the next job that may use exactly this
//! room, and places it in the transaction of the end.
//!
//! Guarantees: alike jobs are drawn in the order of the queue, each once; an array stays within its limit, because its jobs in
//! the list replace one another, and so does what is under a limit; no node gets work that the plan gave none, or kept for a job that waits.
//! Does not: hold anything that is needed. If a list is lost, or a drawn job is not placed, the next run places the jobs.

use super::entries::{Entry, EntryRow};
use crate::enums::ClientStatus;
use crate::{Alloc, Array, Capacity, JobId, JobSummary, Machine, MachineNeed, NodeRecord, Policy, Slot, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The fewest and the most jobs of a list: each takes some 60 bytes of the row, and DynamoDB bills its kilobytes.
const LENGTH: (usize, usize) = (128, 4000);

/// The most kinds of jobs in a list: it ends before the next kind.
const MOST_KINDS: usize = 100;

pub type NextList = EntryRow<NextJobs>;
pub type NextDraw = EntryRow<NextTurn>;

/// What starts next on freed room, as a run listed it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NextJobs {
    pub until_at: Option<Time>,
    /// The policy by which the run decided.
    pub policy_version: u64,
    pub alike: Vec<AlikeJobs>,
    /// The nodes that the plan gives no work, although their records take some.
    pub closed: BTreeSet<Slot>,
    /// The nodes that are kept for a job that waits.
    pub kept: BTreeSet<Slot>,
    /// The number in `alike` of the jobs that may start on kept nodes.
    pub kept_for: Option<u32>,
    /// Whether jobs wait for others to end, so that a run must see each end.
    pub follows: bool,
}

impl Entry for NextJobs {
    fn until_at(&self) -> Option<Time> {
        self.until_at
    }
}

/// How many jobs were drawn of each kind in the list with this version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NextTurn {
    list: u64,
    drawn: Vec<u32>,
}

impl Entry for NextTurn {}

/// Jobs that need the same, in the order of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlikeJobs {
    #[serde(flatten)]
    takes: Capacity,
    #[serde(flatten)]
    machine: MachineNeed,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    exclusive: bool,
    /// The first job of the array whose limit keeps these jobs waiting: each takes the place of one that is complete.
    array: Option<JobId>,
    /// Under a limit: only a job of the same share and person, with the same licences, makes way for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limited: Option<LimitOwner>,
    /// Whether a failure may end their array, so that a run has to look first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    may_be_rejected: bool,
    jobs: Vec<NextJob>,
}

/// For whom a job counts where a limit is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LimitOwner {
    share: Option<String>,
    by: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    licences: BTreeMap<String, u32>,
}

/// A job that waits, with the version in which the run read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextJob {
    /// Its place in the list.
    pub place: u32,
    pub job_id: JobId,
    pub version: u64,
}

/// An alloc that ends, and the record of its node without it.
#[derive(Clone, Copy, Debug)]
pub struct FreedRoom<'a> {
    pub alloc: &'a Alloc,
    pub client: ClientStatus,
    pub node: &'a NodeRecord,
    pub machine: Machine<'a>,
}

impl AlikeJobs {
    fn of(job: &JobSummary, array: Option<Array>, is_limited: bool) -> Self {
        let may_be_rejected = job.max_failures.is_some();
        let (takes, machine, exclusive) = (job.needs.capacity(), job.needs.machine.clone(), job.needs.exclusive);
        let array = array.map(|array| array.job(0));
        let limited = is_limited.then(|| LimitOwner {
            share: job.share.clone(),
            by: job.by.clone(),
            licences: job.needs.licences.clone(),
        });
        Self { takes, machine, exclusive, array, limited, may_be_rejected, jobs: Vec::new() }
    }

    fn is_like(&self, other: &Self) -> bool {
        let key = |of: &Self| (of.takes, of.exclusive, of.array, of.may_be_rejected);
        key(self) == key(other) && self.machine == other.machine && self.limited == other.limited
    }

    /// Whether one of these jobs may start on this room and no other.
    fn fit(&self, freed: &FreedRoom<'_>) -> bool {
        let summary = &freed.alloc.summary;
        let is_complete = freed.client == ClientStatus::Complete;
        // An alloc with another copy, or other members, may end before its job does.
        let is_alone = summary.needs.nodes == 1 && summary.replaces.is_none() && summary.replaced_by.is_none();
        let is_empty = freed.node.life().is_some_and(|life| life.allocs.is_empty());
        freed.machine.fits(self.takes, &self.machine, summary.needs.capacity())
            && (is_empty || !self.exclusive)
            && (self.takes.gpus == 0 || freed.node.sick_gpus().is_none())
            && (is_complete || !self.may_be_rejected)
            && self.limited.as_ref().is_none_or(|owner| {
                summary.needs.nodes == 1
                    && (&owner.share, &owner.by, &owner.licences)
                        == (&summary.share, &summary.by, &summary.needs.licences)
            })
            && self
                .array
                .is_none_or(|array| is_complete && is_alone && array == Array::of(summary.alloc_id.job_id).job(0))
    }
}

impl NextJobs {
    /// Lists these jobs, in the order of the queue, as many as are useful in a fleet with this many live allocs. The array: its limit
    /// keeps the job waiting.
    pub fn fill<'a>(
        &mut self,
        policy: &Policy,
        jobs: impl Iterator<Item = (&'a JobSummary, Option<Array>)>,
        allocs: usize,
    ) {
        for ((job, array), place) in jobs.take(allocs.clamp(LENGTH.0, LENGTH.1)).zip(0..) {
            let next = NextJob { place, job_id: job.job_id, version: job.version.number() };
            let new = AlikeJobs::of(job, array, policy.limits_job(job));
            if let Some(alike) = self.alike.iter_mut().find(|alike| alike.is_like(&new)) {
                alike.jobs.push(next);
            } else if self.alike.len() < MOST_KINDS {
                self.alike.push(AlikeJobs { jobs: vec![next], ..new });
            } else {
                return;
            }
        }
    }

    /// Keeps these nodes for a job that waits: only jobs like it may start there. `None`: it is not in the list.
    pub fn keep(&mut self, policy: &Policy, nodes: impl Iterator<Item = Slot>, job: Option<&JobSummary>) {
        let like = job.map(|job| AlikeJobs::of(job, None, policy.limits_job(job)));
        let of = like.and_then(|like| self.alike.iter().position(|alike| alike.is_like(&like)));
        self.kept_for = of.and_then(|of| u32::try_from(of).ok());
        self.kept = nodes.collect();
    }

    /// The next job for this room: the first in the queue of those that may start there and were not drawn.
    fn next(&self, drawn: &[u32], freed: &FreedRoom<'_>) -> Option<(usize, NextJob)> {
        let slot = freed.node.slot;
        if !freed.node.takes_work()
            || freed.node.contact().is_none_or(|contact| contact.health.busy)
            || self.closed.contains(&slot)
        {
            return None;
        }
        let is_for = |n: usize| !self.kept.contains(&slot) || self.kept_for.is_some_and(|of| of as usize == n);
        let next = |(n, alike): (usize, &AlikeJobs)| {
            let at = drawn.get(n).copied().unwrap_or(0) as usize;
            alike.jobs.get(at).filter(|_| is_for(n) && alike.fit(freed)).map(|job| (n, *job))
        };
        self.alike.iter().enumerate().filter_map(next).min_by_key(|(_, job)| job.place)
    }
}

/// What a draw gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Draw {
    /// This job, if the turn is written.
    Job {
        job: NextJob,
        turn: NextDraw,
        /// Whether a run should make the next list: jobs follow others, or less than a quarter of the alike jobs is left.
        needs_run: bool,
    },
    /// The turn is about a newer list.
    IsOld,
    Nothing,
}

impl NextList {
    /// Whether a job that was listed fits this room, drawn or not.
    pub fn has_job_for(&self, freed: &FreedRoom<'_>) -> bool {
        self.alike.iter().any(|alike| alike.fit(freed))
    }

    /// Draws the next job for this room. `turn` is the row as read.
    pub fn draw(&self, turn: &NextDraw, freed: &FreedRoom<'_>, now: Time) -> Draw {
        let list = self.version.number();
        if turn.list > list {
            return Draw::IsOld;
        }
        let mut drawn = if turn.list == list { turn.drawn.clone() } else { Vec::new() };
        let Some((n, job)) = self.next(&drawn, freed).filter(|_| self.applies(now)) else { return Draw::Nothing };
        drawn.resize(self.alike.len().max(drawn.len()), 0);
        let (mut many, mut of) = (0, 0);
        if let (Some(count), Some(alike)) = (drawn.get_mut(n), self.alike.get(n)) {
            *count = count.saturating_add(1);
            (many, of) = (*count as usize, alike.jobs.len());
        }
        let needs_run = self.follows || (of.saturating_sub(many)) * 4 < of;
        Draw::Job { job, turn: turn.with(NextTurn { list, drawn }), needs_run }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, at};
    use crate::wire::NodeHealth;
    use crate::{Arch, ControlKey, Job, JobSpec, MachineKind, Market, Needs, NodeState};

    fn job(n: u32, change: impl FnOnce(&mut JobSpec)) -> JobSummary {
        let mut spec = JobSpec::running(["true"]);
        change(&mut spec);
        Job::submit(fixtures::job_id(n), spec, at(0)).unwrap().summary
    }

    fn policy() -> Policy {
        Policy::from_json(&crate::policy::example_json()).unwrap()
    }

    fn wide(spec: &mut JobSpec) {
        spec.needs.vcpus = 2;
    }

    /// Version 7 of the list of these jobs, in their order.
    fn list(jobs: &[(JobSummary, Option<Array>)]) -> NextList {
        let mut next = NextJobs { until_at: Some(at(100)), ..NextJobs::default() };
        next.fill(&policy(), jobs.iter().map(|(job, array)| (job, *array)), 0);
        let mut row = NextList::new(&ControlKey::NextJobs).with(next);
        row.version = crate::Version(7);
        row
    }

    fn turn() -> NextDraw {
        NextDraw::new(&ControlKey::NextTurn)
    }

    struct Ended {
        alloc: Alloc,
        client: ClientStatus,
        node: NodeRecord,
    }

    /// An alloc with these needs has ended as complete on node 1, beside another one.
    fn ended(needs: Needs) -> Ended {
        let other = fixtures::ready(1).with_alloc(fixtures::alloc_id(50), at(70)).unwrap();
        let mut job = fixtures::job(40);
        job.summary.needs = needs;
        let alloc = Alloc::place(fixtures::alloc_id(40), &job, &other, at(70)).unwrap();
        Ended { alloc, client: ClientStatus::Complete, node: other }
    }

    impl Ended {
        /// The size of the node has two GPUs, of which so many can be used.
        fn has_gpus(&mut self, usable: u32) {
            let NodeState::InUse(node) = &mut self.node.state else { panic!("it is in use") };
            node.life.offering.capacity.gpus = 2;
            node.contact.health.gpus_usable = usable;
            self.alloc.summary.needs.gpus = 1;
        }

        fn freed(&self) -> FreedRoom<'_> {
            static KIND: std::sync::LazyLock<MachineKind> = std::sync::LazyLock::new(MachineKind::default);
            let (market, default_arch) = (Market::OnDemand, Arch::X86_64);
            let machine = Machine { instance_type: "m7a.large", market, kind: &KIND, default_arch };
            FreedRoom { alloc: &self.alloc, client: self.client, node: &self.node, machine }
        }

        fn draws(&self, list: &NextList, turn: &NextDraw) -> Draw {
            list.draw(turn, &self.freed(), at(90))
        }

        fn wanted_by(&self, list: &NextList) -> bool {
            list.has_job_for(&self.freed())
        }

        fn health(&mut self) -> &mut NodeHealth {
            let NodeState::InUse(node) = &mut self.node.state else { panic!("it is in use") };
            &mut node.contact.health
        }

        /// The jobs that ends like this one draw, one after the other.
        fn all(&self, list: &NextList) -> Vec<JobId> {
            let (mut turn, mut jobs) = (turn(), Vec::new());
            while let Draw::Job { job, turn: after, .. } = self.draws(list, &turn) {
                jobs.push(job.job_id);
                turn = after;
            }
            jobs
        }
    }

    fn ids(of: &[u32]) -> Vec<JobId> {
        of.iter().map(|n| fixtures::job_id(*n)).collect()
    }

    fn vcpus(many: u32) -> Needs {
        Needs { vcpus: many, ..Needs::default() }
    }

    #[test]
    fn jobs_are_drawn_in_the_order_of_the_queue_each_once_by_the_room_that_they_need() {
        let of = [job(1, |_| ()), job(2, wide), job(3, |_| ()), job(4, wide)].map(|job| (job, None));
        assert_eq!(ended(vcpus(1)).all(&list(&of)), ids(&[1, 3]));
        assert_eq!(ended(vcpus(2)).all(&list(&of)), ids(&[1, 2, 3, 4]));
        assert_eq!(ended(vcpus(2)).all(&list(&[])), []);
        let wide_ones = list(&[(job(2, wide), None)]);
        assert_eq!([1, 2].map(|many| ended(vcpus(many)).wanted_by(&wide_ones)), [false, true]);
    }

    #[test]
    fn a_turn_of_another_list_begins_anew_and_a_newer_one_says_so() {
        let of = list(&[(job(1, |_| ()), None)]);
        for (version, draws) in [(0, true), (6, true), (7, false), (8, false)] {
            let before = turn().with(NextTurn { list: version, drawn: vec![1] });
            let drawn = ended(vcpus(1)).draws(&of, &before);
            assert_eq!(matches!(&drawn, Draw::Job { turn, .. } if turn.drawn == [1] && turn.list == 7), draws);
            assert_eq!(drawn == Draw::IsOld, version == 8);
        }
        let over = of.with(NextJobs { until_at: Some(at(90)), ..of.entry.clone() });
        assert_eq!(ended(vcpus(1)).all(&over), [], "its time is over");
    }

    /// What is different about the list, the node or the end → whether the job starts.
    #[test]
    fn a_job_starts_only_where_the_plan_would_place_it() {
        type Change = fn(&mut NextList, &mut Ended);
        let array = Array::of(fixtures::job_id(40));
        let plain = list(&[(job(1, |_| ()), None)]);
        let in_array = list(&[(job(1, |_| ()), Some(array))]);
        let alone = list(&[(job(1, |spec| spec.needs.exclusive = true), None)]);
        let with_gpu = list(&[(job(1, |spec| spec.needs.gpus = 1), None)]);
        let careful = list(&[(job(1, |spec| spec.max_failures = std::num::NonZeroU32::new(1)), None)]);
        let labelled = list(&[(job(1, |spec| spec.needs.machine.require = ["nvme".to_owned()].into()), None)]);
        let cases: [(&str, &NextList, Change, bool); 18] = [
            ("as it is", &plain, |_, _| (), true),
            ("the node is closed", &plain, |list, _| list.entry.closed = [fixtures::slot(1)].into(), false),
            ("another node is closed", &plain, |list, _| list.entry.closed = [fixtures::slot(2)].into(), true),
            (
                "it is kept for another job",
                &plain,
                |list, _| list.entry.keep(&policy(), [fixtures::slot(1)].into_iter(), None),
                false,
            ),
            (
                "it is kept for a job like this one",
                &plain,
                |list, _| list.entry.keep(&policy(), [fixtures::slot(1)].into_iter(), Some(&job(9, |_| ()))),
                true,
            ),
            (
                "it is drained",
                &plain,
                |_, e| e.node = e.node.with_intent(crate::Intent::Drain, None, at(80)).unwrap(),
                false,
            ),
            ("it is busy", &plain, |_, e| e.health().busy = true, false),
            ("it refuses work", &plain, |_, e| e.health().refuses = Some("x".into()), false),
            ("it must not share", &alone, |_, _| (), false),
            ("it has the node alone", &alone, |_, e| e.node = fixtures::ready(1), true),
            ("it takes a GPU", &with_gpu, |_, e| e.has_gpus(2), true),
            ("another GPU is sick", &with_gpu, |_, e| e.has_gpus(1), false),
            ("it asks for a label", &labelled, |_, _| (), false),
            ("a failure may end its array", &careful, |_, _| (), true),
            ("there was a failure", &careful, |_, e| e.client = ClientStatus::Failed, false),
            ("one of its array is complete", &in_array, |_, _| (), true),
            ("one of its array has failed", &in_array, |_, e| e.client = ClientStatus::Failed, false),
            (
                "one of its array has a copy",
                &in_array,
                |_, e| e.alloc.summary.replaced_by = Some(fixtures::alloc_id(3)),
                false,
            ),
        ];
        for (what, of, change, starts) in cases {
            let (mut list, mut end) = (of.clone(), ended(vcpus(2)));
            change(&mut list, &mut end);
            assert_eq!(!end.all(&list).is_empty(), starts, "{what}");
        }
        let other = list(&[(job(1, |_| ()), Some(Array::new(at(0), 9 << 8)))]);
        assert_eq!(ended(vcpus(2)).all(&other), [], "it is of another array");
    }

    #[test]
    fn a_job_under_a_limit_takes_only_the_place_of_one_of_its_share_and_person_with_its_licences() {
        let mut document = crate::policy::example_json();
        document["share"] = serde_json::json!([{"name": "a", "members": ["*"], "running": 1}]);
        let limited = Policy::from_json(&document).unwrap();
        let of = |share: &str, by: &str, licences: &[(&str, u32)]| {
            let mut job = job(1, |_| ());
            (job.share, job.by) = (Some(share.to_owned()), Some(by.to_owned()));
            job.needs.licences = licences.iter().map(|(name, many)| ((*name).to_owned(), *many)).collect();
            job
        };
        let starts = |policy: &Policy, waits: &JobSummary, ended_as: &JobSummary, nodes: u32| {
            let mut end = ended(Needs { nodes, licences: ended_as.needs.licences.clone(), ..vcpus(2) });
            (end.alloc.summary.share, end.alloc.summary.by) = (ended_as.share.clone(), ended_as.by.clone());
            let mut next = NextJobs { until_at: Some(at(100)), ..NextJobs::default() };
            next.fill(policy, [(waits, None)].into_iter(), 0);
            !end.all(&NextList::new(&ControlKey::NextJobs).with(next)).is_empty()
        };
        let waits = of("a", "ann", &[("x", 1)]);
        for (other, is_like) in [
            (of("a", "ann", &[("x", 1)]), true),
            (of("b", "ann", &[("x", 1)]), false),
            (of("a", "bob", &[("x", 1)]), false),
            (of("a", "ann", &[]), false),
            (of("a", "ann", &[("x", 2)]), false),
        ] {
            assert_eq!(starts(&limited, &waits, &other, 1), is_like, "{other:?}");
            assert!(!starts(&limited, &waits, &other, 2), "another member of that job may go on");
        }
        let free = of("a", "ann", &[]);
        assert!(starts(&policy(), &free, &of("b", "bob", &[("x", 1)]), 2), "without a limit, anyone makes way");
    }

    #[test]
    fn a_run_is_wanted_before_the_list_is_used_up_and_while_jobs_follow_others() {
        let of: Vec<_> = (0..8).map(|n| (job(n, |_| ()), None)).collect();
        let wanted = |list: &NextList| {
            let mut turn = turn();
            let wants = |_| match ended(vcpus(1)).draws(list, &turn) {
                Draw::Job { turn: after, needs_run, .. } => {
                    turn = after;
                    needs_run
                }
                other => panic!("{other:?}"),
            };
            (0..8).map(wants).filter(|needs_run| *needs_run).count()
        };
        assert_eq!(wanted(&list(&of)), 2);
        let follows = list(&of);
        assert_eq!(wanted(&follows.with(NextJobs { follows: true, ..follows.entry.clone() })), 8);
    }

    #[test]
    fn a_list_is_as_long_as_is_useful() {
        let length = |many: u32, allocs: usize, memory: fn(u32) -> u64| {
            let jobs: Vec<JobSummary> = (0..many).map(|n| job(n, |spec| spec.needs.memory_mib = memory(n))).collect();
            let mut next = NextJobs::default();
            next.fill(&policy(), jobs.iter().map(|job| (job, None)), allocs);
            next.alike.iter().map(|alike| alike.jobs.len()).sum::<usize>()
        };
        assert_eq!([0, 300, 9999].map(|allocs| length(5000, allocs, |_| 0)), [128, 300, 4000]);
        assert_eq!(length(120, 0, u64::from), 100, "each is of another kind");
    }
}
