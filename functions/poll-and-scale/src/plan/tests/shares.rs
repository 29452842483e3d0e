//! Tests of the plan: shares take turns, and limits hold.

use super::*;
use model::{AllocId, NodeRecord, Reason};

/// Two shares with so many ready nodes of two vCPUs.
fn shared(nodes: u32, more: Value) -> Given {
    let mut policy = json!({
        "nodes": {"max": nodes}, "share": [{"name": "a", "members": ["*"]}, {"name": "b", "members": ["*"], "weight": 3}],
    });
    policy.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let mut given = given(policy);
    for n in 0..nodes {
        given = given.node(idle_long(n));
    }
    given
}

impl Given {
    /// Jobs of this share that need a whole node, the first with this number.
    fn jobs_of(mut self, share: &str, by: &str, first: u32, count: u32) -> Self {
        for n in first..first + count {
            self = self.job(n, |spec| (spec.share, spec.needs.vcpus) = (Some(share.to_owned()), 2));
            let id = fixtures::job_id(n);
            let job = self.seen.jobs.iter_mut().find(|job| job.job_id == id).unwrap();
            job.by = Some(by.to_owned());
        }
        self
    }

    fn used(mut self, used: &[(&str, f64)]) -> Self {
        self.seen.shares.used = used.iter().map(|(name, used)| ((*name).to_owned(), *used)).collect();
        self
    }

    /// How many jobs of each share are placed.
    fn placed_of(&self) -> (usize, usize) {
        let planned = plan(&self.seen, at(150));
        let placed: Vec<&JobSummary> = planned
            .actions
            .iter()
            .filter_map(|planned| match &planned.action {
                Action::Place { job_id, .. } => self.seen.jobs.iter().find(|job| job.job_id == *job_id),
                _ => None,
            })
            .collect();
        let of = |share: &str| placed.iter().filter(|job| job.share.as_deref() == Some(share)).count();
        (of("a"), of("b"))
    }

    fn waits_for(&self, n: u32) -> Vec<Reason> {
        let explained = plan(&self.seen, at(150)).explained;
        let of = explained.waiting.into_iter().find(|waiting| waiting.jobs.contains(&fixtures::job_id(n)));
        of.map(|waiting| waiting.why).unwrap_or_default()
    }

    /// Job `n` has an alloc on the node of this slot, which only the index and the record show.
    fn places(mut self, n: u32, slot: usize) -> Self {
        let mut job = fixtures::job(n);
        job.summary = self.seen.jobs.iter().find(|job| job.job_id == fixtures::job_id(n)).unwrap().clone();
        let id = AllocId { job_id: job.summary.job_id, member: 0, copy: 0 };
        self.seen.allocs.push(Alloc::place(id, &job, &self.seen.nodes[slot], at(100)).unwrap().summary);
        self.seen.allocs.sort_by_key(|alloc| alloc.alloc_id);
        self.seen.nodes[slot] = self.seen.nodes[slot].with_alloc(id, at(100)).unwrap();
        self.seen.jobs.retain(|other| other.job_id != id.job_id);
        self
    }
}

#[test]
fn a_flood_of_one_share_hides_no_job_of_another_and_weights_decide_between_two() {
    let flood = shared(8, json!({})).jobs_of("a", "ann", 100, 60);
    assert_eq!(flood.clone().jobs_of("b", "bob", 200, 1).placed_of(), (7, 1));
    assert_eq!(flood.jobs_of("b", "bob", 200, 60).placed_of(), (2, 6));
}

#[test]
fn who_has_used_less_against_the_weight_comes_first() {
    let given = shared(4, json!({})).jobs_of("a", "ann", 100, 9).jobs_of("b", "bob", 200, 9);
    assert_eq!(given.clone().used(&[("a", 1e6), ("b", 2.9e6)]).placed_of(), (0, 4));
    assert_eq!(given.clone().used(&[("a", 1e6), ("b", 3.1e6)]).placed_of(), (4, 0));
    // A priority is one within the share.
    let mut urgent = given.used(&[("a", 1e6), ("b", 3.1e6)]);
    urgent.seen.jobs.iter_mut().for_each(|job| job.priority = if job.share.as_deref() == Some("b") { 900 } else { 1 });
    urgent.seen.jobs.sort_by_key(|job| (std::cmp::Reverse(job.priority), job.job_id));
    assert_eq!(urgent.placed_of(), (4, 0));
}

#[test]
fn a_job_that_waits_for_the_turn_of_its_share_says_so() {
    let given = shared(4, json!({})).jobs_of("a", "ann", 100, 9).jobs_of("b", "bob", 200, 9);
    let given = given.used(&[("a", 1e6), ("b", 4e6)]);
    let said = given.waits_for(208).last().unwrap().to_string();
    assert_eq!(said, "share b has used 80 % of late, and its part is 75 %; before its first job: 5 of a");
    assert!(
        given.waits_for(108).iter().all(|why| why.word() != "share_turn"),
        "nothing of another share comes before it"
    );
}

#[test]
fn jobs_of_a_share_that_is_gone_count_for_the_default_one() {
    let shares = json!([{"name": "a", "members": ["ann"]}, {"name": "b", "default": true}]);
    let given = shared(4, json!({"share": shares})).jobs_of("gone", "eve", 100, 9).jobs_of("a", "ann", 200, 9);
    assert_eq!(given.clone().used(&[("a", 1.0), ("b", 9e9)]).placed_of().0, 4);
    assert_eq!(given.used(&[("a", 9e9), ("b", 1.0)]).placed_of().0, 0);
}

#[test]
fn a_limit_of_a_share_or_person_counts_what_is_live_and_what_the_plan_places() {
    let share = |limit: &str, most: Value| {
        let mut share = json!({"name": "a", "members": ["*"]});
        share[limit] = most;
        json!({"share": [share, {"name": "b", "members": ["*"]}]})
    };
    let placed = |more: Value| {
        let given = shared(8, more).jobs_of("a", "ann", 100, 9).jobs_of("b", "bob", 200, 1);
        (given.placed_of(), given.clone().places(100, 0).placed_of())
    };
    for (more, all) in [
        (share("running", json!(3)), 3),
        (share("vcpus", json!(7)), 3),
        (share("nodes", json!(3)), 3),
        // Each takes a whole node of $0.116.
        (share("dollars_per_hour", json!(0.35)), 3),
        (json!({"person": {"running": 3}}), 3),
        (json!({"person": {"vcpus": 6}}), 3),
        (share("running", json!(0)), 0),
    ] {
        let before: usize = if all == 0 { 0 } else { all - 1 };
        assert_eq!(placed(more.clone()), ((all, 1), (before, 1)), "{more}");
        let given = shared(8, more).jobs_of("a", "ann", 100, 9);
        assert_eq!(given.count(at(150), "launch"), 0, "nothing is launched for it");
        let why = given.waits_for(108)[0].to_string();
        assert!(why.contains(" at the same time: it waits for the end of some"), "{why}");
    }
}

#[test]
fn licences_are_used_by_jobs_as_long_as_they_are_placed() {
    let mut given = shared(8, json!({"limits": {"licences": {"matlab": 5}}})).jobs_of("a", "ann", 100, 4);
    given.seen.jobs.iter_mut().for_each(|job| job.needs.licences = [("matlab".to_owned(), 2)].into());
    assert_eq!(given.placed_of(), (2, 0));
    assert_eq!(given.waits_for(103)[0].to_string(), "it needs 2 of matlab, and 1 of 5 are free (limits.licences)");
    assert_eq!(given.clone().places(100, 0).placed_of(), (1, 0));
    given.seen.jobs[0].needs.licences = [("fluent".to_owned(), 1)].into();
    assert_eq!(
        given.waits_for(100)[0].to_string(),
        "it cannot start before an operator raises a limit: it needs fluent, and limits.licences of the policy has: matlab"
    );
}

/// An operator has taken out the last limit of the policy while a job waits for a licence.
#[test]
fn a_licence_that_no_policy_has_keeps_only_its_own_jobs_waiting() {
    let mut given = shared(8, json!({})).jobs_of("a", "ann", 100, 2);
    given.seen.jobs[0].needs.licences = [("matlab".to_owned(), 1)].into();
    given.seen.limit_turn = None;
    assert!(
        given.waits_for(100)[0].to_string().contains("it needs matlab, and limits.licences"),
        "{:?}",
        given.waits_for(100)
    );
    assert_eq!(given.placed_of(), (1, 0), "the other job has a node");
}

#[test]
fn a_run_without_the_turn_places_nothing_that_is_under_a_limit() {
    let limited = json!({"share": [{"name": "a", "members": ["*"], "running": 9}, {"name": "b", "members": ["*"]}]});
    let mut given = shared(8, limited).jobs_of("a", "ann", 100, 2).jobs_of("b", "bob", 200, 2);
    assert_eq!(given.placed_of(), (2, 2));
    given.seen.limit_turn = None;
    assert_eq!(given.placed_of(), (0, 2));
    assert_eq!(given.waits_for(100)[0].word(), "limit_turn_taken");
}

#[test]
fn nothing_is_launched_in_a_month_that_has_cost_its_budget() {
    let launches = |usd: f64, month_at: Time| {
        let node = NodeRecord { spent_month_at: Some(month_at), spent_usd: usd.try_into().unwrap(), ..idle_long(0) };
        let mut given = given(json!({"budget": {"dollars_per_month": 10}})).node(node);
        given = given.job(1, whole).job(2, whole);
        (given.count(at(150), "place"), given.count(at(150), "launch"), given)
    };
    let month = at(150).month();
    assert_eq!((launches(9.99, month).0, launches(9.99, month).1), (1, 1));
    let (placed, launched, given) = launches(10.0, month);
    assert_eq!((placed, launched), (1, 0), "what is there goes on");
    let why = given.waits_for(2)[0].to_string();
    assert!(why.starts_with("the nodes of this month have cost $10.0"), "{why}");
    assert_eq!(launches(10.0, month - model::Span::from_s(86_400)).1, 1, "that was another month");
}
