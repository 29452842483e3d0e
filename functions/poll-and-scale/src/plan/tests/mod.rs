//! Tests of the plan: cases from the reference systems, translated into this model and named by their ids (see
//! `tests/scenarios.md`). D, J, K, M, X: Arvados node manager; HB, NS, CL: Nomad.
//! The crate `tests` has the cases of whole lives, such as crashes and races.

mod after;
mod arrays;
mod caps;
mod explained;
mod machines;
mod next;
mod outage;
mod put_off;
mod reconnects;
mod reservations;
mod retries;
mod sets;
mod several;
mod shares;
mod silence;
mod suspected;

use super::actions::ShutdownBasis;
use super::{Action, FleetPlan, plan};
use model::fixtures::{self, at};
use model::node::Idleness;
use model::policy::example_json;
use model::{
    ActionName, Alloc, Capacity, ClientStatus, InstanceState, Intent, Job, JobSpec, JobSummary, NodeId, NodeRecord,
    NodeState, NodeStatus, Policy, Time, Usd,
};
use runtime::observation::Observation;
use serde_json::{Value, json};

/// An observation: nodes with running instances, unless a test changes that.
#[derive(Clone)]
struct Given {
    seen: Observation,
}

fn given(policy: Value) -> Given {
    let mut document = example_json();
    for (section, knobs) in policy.as_object().unwrap() {
        if knobs.is_array() {
            document[section] = knobs.clone();
        } else {
            for (knob, value) in knobs.as_object().unwrap() {
                document[section][knob] = value.clone();
            }
        }
    }
    Given { seen: Observation::empty(Policy::from_json(&document).unwrap(), 1, at(100)) }
}

impl Given {
    fn node(mut self, record: NodeRecord) -> Self {
        if let Some(life) = record.life()
            && let Some(id) = &life.instance_id
        {
            self.seen.instances.push(fixtures::running(id, &record));
        }
        self.seen.nodes.push(record);
        self
    }

    fn unlisted(mut self, record: NodeRecord) -> Self {
        self.seen.nodes.push(record);
        self
    }

    fn job(mut self, n: u32, change: impl FnOnce(&mut JobSpec)) -> Self {
        let mut spec = JobSpec::running(["true"]);
        change(&mut spec);
        self.seen.jobs.push(Job::submit(fixtures::job_id(n), spec, at(0)).unwrap().summary);
        self.seen.jobs.sort_by_key(|j| (std::cmp::Reverse(j.priority), j.job_id));
        self
    }

    /// Adds a node that is heard, takes no work and stays. It shows that heartbeat-ingest works.
    fn witnessed(self) -> Self {
        self.node(idle_long(40).with_intent(Intent::Hold, None, at(90)).unwrap())
    }

    /// Node `n` ready, with job `n` on it.
    fn working(mut self, n: u32) -> Self {
        let job = fixtures::job(n);
        let node = fixtures::ready(n);
        let alloc = Alloc::place(fixtures::alloc_id(n), &job, &node, at(70)).unwrap();
        let node = node.with_alloc(alloc.id(), at(70)).unwrap();
        let placed = job.with_placed(&[alloc.id()]).unwrap();
        self.seen.jobs.push(placed.summary);
        let mut summary = alloc.summary;
        summary.client = ClientStatus::Running;
        self.seen.allocs.push(summary);
        self.node(node)
    }

    fn actions(&self, now: Time) -> Vec<String> {
        let plan = plan(&self.seen, now);
        self.is_the_same_when_saved(&plan, now);
        plan.actions
            .iter()
            .map(|p| {
                let row = p.row();
                match row.size.clone() {
                    Some(size) => format!("{} {} {size}", row.action, row.subject),
                    None => format!("{} {}", row.action, row.subject),
                }
            })
            .collect()
    }

    /// Checks that `plan --state` plans the same from what `plan --save` writes. Warnings of rows that cannot be used are left out.
    fn is_the_same_when_saved(&self, plan: &FleetPlan, now: Time) {
        let state = model::left_out::to_json(&self.seen.to_state(now)).unwrap();
        let (seen, at) = Observation::from_state(&state, Some(&self.seen.policy)).unwrap();
        // The rows of these tests have no policy among them, and their records do not always list their allocs.
        let Observation { observed_at, policy_version, ref partially_read, .. } = self.seen;
        let seen = Observation { observed_at, policy_version, partially_read: partially_read.clone(), ..seen };
        let mut answers = [plan.answer(), super::plan(&seen, at).answer()];
        answers.iter_mut().for_each(|answer| answer.actions.retain(|row| row.action != ActionName::Warn));
        let [planned, saved] = answers.map(|answer| serde_json::to_value(answer).unwrap());
        assert_eq!(planned, saved);
    }

    fn count(&self, now: Time, action: &str) -> usize {
        self.actions(now).iter().filter(|a| a.starts_with(&format!("{action} "))).count()
    }
}

/// A ready node that has been idle since second 60, and that enough runs have seen idle.
fn idle(n: u32) -> NodeRecord {
    let seen = |r: NodeRecord, s| r.counted_by_run(Idleness::Idle, at(s)).unwrap();
    seen(seen(fixtures::ready(n), 80), 90)
}

/// An idle node with a long lease.
fn idle_long(n: u32) -> NodeRecord {
    let mut record = idle(n);
    if let NodeState::InUse(node) = &mut record.state {
        node.contact.lease_expires_at = at(100_000);
    }
    record
}

fn down(n: u32) -> NodeRecord {
    fixtures::ready(n).expire_lease(NodeStatus::Down, at(151), "silent").unwrap()
}

fn whole(spec: &mut JobSpec) {
    spec.needs.vcpus = 2;
}

#[test]
fn d08_a_down_node_is_not_usable() {
    let given = given(json!({})).node(fixtures::ready(0)).node(down(1)).job(5, whole).job(6, whole);
    assert_eq!((given.count(at(100), "place"), given.count(at(100), "launch")), (1, 1));
}

#[test]
fn d09_a_down_node_still_counts_for_the_maximum() {
    let given = given(json!({"nodes": {"max": 2}})).node(fixtures::ready(0)).node(down(1)).job(5, whole).job(6, whole);
    assert_eq!((given.count(at(100), "place"), given.count(at(100), "launch")), (1, 0));
}

#[test]
fn d10_of_an_idle_and_a_down_node_the_down_one_is_shut_down() {
    let given = given(json!({})).node(idle_long(0)).node(down(1)).job(5, whole);
    assert_eq!(
        given.actions(at(900)).iter().filter(|a| a.starts_with("shut_down")).collect::<Vec<_>>(),
        ["shut_down slot#1"]
    );
}

#[test]
fn d14_wanted_first_then_the_cheapest_up_to_the_minimum() {
    let given = given(json!({"nodes": {"min": 2}})).job(5, |s| s.needs.vcpus = 8);
    assert_eq!(given.actions(at(100)), ["launch slot#0 large", "launch slot#1 small"]);
}

#[test]
fn d16_no_boot_beyond_the_maximum() {
    let given = given(json!({"nodes": {"max": 1}})).working(0).job(5, whole);
    assert_eq!(given.count(at(100), "launch"), 0);
}

#[test]
fn d20_d21_a_booted_node_that_is_not_listed_yet_is_counted() {
    let given = given(json!({})).unlisted(fixtures::bound(0)).job(5, whole);
    assert_eq!(given.actions(at(100)), Vec::<String>::new(), "no second launch, and nothing is cleaned");
    assert_eq!(plan(&given.seen, at(100)).wanted, [("small".to_owned(), 1)].into());
}

#[test]
fn d26_a_node_that_never_called_is_shut_down_after_the_boot_time() {
    let given = given(json!({})).node(fixtures::bound(0));
    assert_eq!(given.actions(at(1799)), Vec::<String>::new());
    assert_eq!(given.actions(at(1800)), ["shut_down slot#0"]);
}

#[test]
fn d29_a_busy_node_is_never_shut_down() {
    let mut busy = idle_long(0);
    if let NodeState::InUse(node) = &mut busy.state {
        node.contact.health.busy = true;
    }
    let mut given = given(json!({})).node(busy).working(1);
    for node in &mut given.seen.nodes {
        if let NodeState::InUse(node) = &mut node.state {
            node.contact.lease_expires_at = at(100_000);
        }
    }
    assert_eq!(given.count(at(5000), "shut_down"), 0);
}

fn refusing(n: u32) -> NodeRecord {
    let mut node = idle_long(n);
    if let NodeState::InUse(node) = &mut node.state {
        node.contact.health.refuses = Some("jobs reach the metadata".into());
    }
    node
}

#[test]
fn a_node_whose_agent_takes_no_work_gives_no_room_and_is_a_failed_start_when_idle() {
    let given = given(json!({"nodes": {"min": 1}})).node(refusing(0)).job(5, whole);
    // Idle since 60 s, in enough runs: `idle.timeout_s` is 120 s.
    let early = given.actions(at(100));
    assert_eq!(early.iter().filter(|a| a.starts_with("shut_down") || a.starts_with("place")).count(), 0, "{early:?}");
    assert_eq!(early.iter().filter(|a| a.starts_with("launch")).count(), 1, "{early:?}");
    let later = plan(&given.seen, at(900));
    let shut_down = later.actions.iter().find_map(|p| match &p.action {
        Action::ShutDown { node_id, because } => Some((*node_id, *because, p.reason.to_string())),
        _ => None,
    });
    let why = "it takes no work: jobs reach the metadata".to_owned();
    assert_eq!(shut_down, Some((fixtures::node_id(0), ShutdownBasis::FailedStart, why)));
    // With work on it, the node stays.
    let mut working = super::tests::given(json!({})).working(0).job(6, whole);
    for record in &mut working.seen.nodes {
        if let NodeState::InUse(node) = &mut record.state {
            node.contact.health.refuses = Some("jobs reach the metadata".into());
            node.contact.lease_expires_at = at(100_000);
        }
    }
    let actions = working.actions(at(900));
    assert!(!actions.iter().any(|a| a.starts_with("shut_down") || a.starts_with("place")), "{actions:?}");
}

/// A node that cannot reach a service: what follows if another node reaches it, and if none does.
#[test]
fn a_node_that_alone_cannot_reach_a_service_gives_no_room_and_is_a_failed_start_when_idle() {
    let with = |reaches: Option<&str>| {
        let mut given =
            given(json!({"nodes": {"min": 2}})).node(idle_long(0)).node(idle_long(1)).job(5, whole).job(6, whole);
        for (record, fails) in given.seen.nodes.iter_mut().zip([Some("s3: no route"), None]) {
            if let NodeState::InUse(node) = &mut record.state {
                node.contact.lease_expires_at = at(5000);
                let reaches = reaches.filter(|_| fails.is_none());
                let health = &mut node.contact.health;
                (health.fails, health.reaches) = (fails.map(str::to_owned), reaches.map(str::to_owned));
            }
        }
        let plan = plan(&given.seen, at(900));
        let placed = plan.actions.iter().flat_map(|p| p.action.placed_on()).map(NodeId::slot).collect::<Vec<_>>();
        let ended = plan.actions.iter().filter_map(|p| match &p.action {
            Action::ShutDown { node_id, because: ShutdownBasis::FailedStart } => {
                Some((node_id.slot(), p.reason.to_string()))
            }
            _ => None,
        });
        (placed, ended.collect::<Vec<_>>())
    };
    let (slot, why) =
        (fixtures::slot, "it takes no work: it cannot reach s3, and other nodes can: no route".to_owned());
    assert_eq!(with(Some("s3")), (vec![slot(1)], vec![(slot(0), why)]));
    for nobody in [None, Some("ssm")] {
        assert_eq!(with(nobody), (vec![slot(0), slot(1)], vec![]), "{nobody:?}");
    }
}

#[test]
fn d32_d40_as_many_idle_nodes_stay_as_are_needed() {
    let given = given(json!({})).node(idle_long(0)).node(idle_long(1)).job(5, whole);
    let actions = given.actions(at(900));
    assert_eq!(actions.iter().filter(|a| a.starts_with("place")).count(), 1);
    assert_eq!(actions.iter().filter(|a| a.starts_with("shut_down")).count(), 1);
}

#[test]
fn d37_d39_a_node_shutting_down_is_replaced_below_the_maximum_only() {
    let leaving = || fixtures::ready(0).shut_down(at(90), "idle").unwrap();
    let below = given(json!({"nodes": {"max": 2}})).node(leaving()).job(5, whole);
    assert_eq!(below.actions(at(100)), ["terminate slot#0", "launch slot#1 small"]);
    let at_most = given(json!({"nodes": {"max": 1}})).node(leaving()).job(5, whole);
    assert_eq!(at_most.actions(at(100)), ["terminate slot#0"]);
}

#[test]
fn d48_the_order_of_the_queue_decides_and_not_the_size() {
    let mut given = given(json!({"nodes": {"max": 3}}));
    for n in 5..8 {
        given = given.job(n, whole);
    }
    let given = given.job(8, |s| s.needs.vcpus = 8);
    assert_eq!(given.actions(at(100)), ["launch slot#0 small", "launch slot#1 small", "launch slot#2 small"]);
}

#[test]
fn d49_nodes_that_are_not_wanted_make_room_for_wanted_ones() {
    let mut large = idle_long(2);
    if let NodeState::InUse(node) = &mut large.state {
        node.life.offering.size = "large".into();
        node.life.offering.capacity = Capacity { vcpus: 8, memory_mib: 32768, scratch_gib: 0, gpus: 0 };
    }
    let given = given(json!({}))
        .node(idle_long(0))
        .node(idle_long(1))
        .node(large)
        .job(5, |s| s.needs.vcpus = 8)
        .job(6, |s| s.needs.vcpus = 8)
        .job(7, whole);
    let actions = given.actions(at(900));
    assert_eq!(actions.iter().filter(|a| a.starts_with("place")).count(), 2, "{actions:?}");
    assert_eq!(actions.iter().filter(|a| a.starts_with("launch")).collect::<Vec<_>>(), ["launch slot#3 large"]);
    assert_eq!(actions.iter().filter(|a| a.starts_with("shut_down")).count(), 1, "{actions:?}");
}

#[test]
fn d50_the_price_cap_applies_in_the_order_of_the_queue() {
    let sizes = json!([
        {"name": "small", "instance_type": "s", "vcpus": 1, "memory_mib": 1000, "price_per_hour": 1},
        {"name": "big", "instance_type": "b", "vcpus": 4, "memory_mib": 4000, "price_per_hour": 2}]);
    let mut given = given(json!({"size": sizes, "nodes": {"max": 4, "max_price_per_hour": 4}}));
    for n in 5..8 {
        given = given.job(n, |_| ());
    }
    let given = given.job(8, |s| s.needs.vcpus = 4);
    // Three small nodes cost 3. With the big one it would be 5.
    assert_eq!(given.count(at(100), "launch"), 3);
}

#[test]
fn j03_j04_a_share_of_the_memory_is_for_the_system() {
    let fits = |usable: f64, memory: u64| {
        let sizes = json!([{"name": "s", "instance_type": "s", "vcpus": 1, "memory_mib": 128, "price_per_hour": 1}]);
        let given =
            given(json!({"size": sizes, "nodes": {"memory_usable": usable}})).job(1, |s| s.needs.memory_mib = memory);
        given.count(at(100), "reject") == 0
    };
    assert!(!fits(0.95, 128) && fits(0.95, 121) && !fits(0.95, 122));
    assert!(!fits(0.5, 128) && fits(0.5, 64));
}

#[test]
fn j07_a_job_that_can_never_run_is_rejected_and_holds_up_no_other() {
    let given = given(json!({"nodes": {"max": 9}}))
        .job(1, |s| s.needs.vcpus = 99)
        .job(2, |s| s.needs.memory_mib = 1 << 30)
        .job(3, |s| s.needs.nodes = 12)
        .job(4, |s| s.needs.scratch_gib = 1)
        .job(5, whole);
    let actions = given.actions(at(100));
    assert_eq!(actions.iter().filter(|a| a.starts_with("reject")).count(), 4, "{actions:?}");
    assert_eq!(actions.iter().filter(|a| a.starts_with("launch")).collect::<Vec<_>>(), ["launch slot#0 small"]);
}

#[test]
fn j08_a_job_that_costs_more_than_the_cap_is_rejected() {
    let given = given(json!({"nodes": {"max_price_per_hour": 0.3}}))
        .job(1, |s| s.needs.nodes = 3)
        .job(2, |s| s.needs.nodes = 2);
    let actions = given.actions(at(100));
    assert_eq!(actions.iter().filter(|a| a.starts_with("reject")).count(), 1, "{actions:?}");
    assert_eq!(actions.iter().filter(|a| a.starts_with("launch")).count(), 2, "{actions:?}");
}

#[test]
fn more_members_than_a_run_launches_come_up_over_several_runs() {
    let given = given(json!({"launch": {"max_per_run": 3}}))
        .job(1, |s| {
            whole(s);
            s.needs.nodes = 5;
        })
        .job(2, whole);
    assert_eq!(given.actions(at(100)), ["launch slot#0 small", "launch slot#1 small", "launch slot#2 small"]);
}

#[test]
fn a_more_expensive_size_replaces_another_only_if_no_cap_applies() {
    let ways = |policy| {
        let given = given(policy).job(1, |_| ());
        let plan = plan(&given.seen, at(100));
        let Action::Launch { offerings, .. } = &plan.actions[0].action else { panic!("no launch") };
        offerings.iter().map(|o| o.size.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ways(json!({})), ["small", "large"]);
    assert_eq!(ways(json!({"nodes": {"max_price_per_hour": 5}})), ["small"]);
}

#[test]
fn j12_higher_priority_goes_first() {
    let given = given(json!({})).node(fixtures::ready(0)).job(5, whole).job(6, |s| {
        whole(s);
        s.priority = 900;
    });
    let plan = plan(&given.seen, at(100));
    let row = plan.actions[0].row();
    assert_eq!((row.action, row.job_id), (ActionName::Place, Some(fixtures::job_id(6))));
}

#[test]
fn a_large_job_that_waits_is_not_starved_by_small_jobs() {
    // There are two nodes, and one of them has work. A job needs both at once. A later small job must not take
    // the free node.
    let given = given(json!({"nodes": {"max": 2}}))
        .working(0)
        .node(fixtures::ready(1))
        .job(5, |s| {
            whole(s);
            s.needs.nodes = 2;
        })
        .job(6, whole);
    assert_eq!(given.count(at(100), "place"), 0, "{:?}", given.actions(at(100)));
}

#[test]
fn every_action_has_a_reason() {
    let given = given(json!({})).working(0).node(idle_long(1)).node(down(2)).node(fixtures::bound(3)).job(9, whole);
    for s in [100, 200, 2000, 9000] {
        for planned in plan(&given.seen, at(s)).actions {
            assert!(planned.reason.to_string().len() > 10, "{planned:?}");
        }
    }
}

#[test]
fn plan_reads_rows_as_they_are_in_the_table() {
    let node = fixtures::ready(0);
    let job: JobSummary = fixtures::job(1).summary;
    let state = json!({
        "now": at(100).as_ms(),
        "nodes": [serde_json::to_value(&node).unwrap()],
        "instances": [{"instance_id": "i-0", "state": "running", "launched_at": 1, "tags": {}}],
        "jobs": [serde_json::to_value(&job).unwrap()],
        "policy": example_json(),
    });
    let (seen, now) = Observation::from_state(&state, None).unwrap();
    let answer = serde_json::to_value(plan(&seen, now).answer()).unwrap();
    assert_eq!(answer["actions"][0]["action"], "place");
    assert_eq!(answer["actions"][0]["job_id"], job.job_id.to_string());
    assert!(Observation::from_state(&json!({"now": 1}), None).unwrap_err().to_string().contains("policy"));
}

#[test]
fn m20_a_listed_terminated_instance_is_gone_at_once() {
    let mut given = given(json!({})).working(0);
    given.seen.instances[0].state = InstanceState::Terminated;
    assert_eq!(given.actions(at(100)), ["clean slot#0"]);
}
