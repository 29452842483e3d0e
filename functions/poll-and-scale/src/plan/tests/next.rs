//! Tests of the plan: the list of the jobs that start next on freed room.

use super::*;
use model::control::NextJobs;
use model::enums::BrakeKind;
use model::{Array, JobId, Span};

/// Two nodes with one job each, and no room for a third node.
fn full() -> Given {
    given(json!({"nodes": {"max": 2}})).working(0).working(1)
}

fn next(given: &Given) -> NextJobs {
    plan(&given.seen, at(100)).next
}

/// The listed jobs, in the order of their places.
fn listed(given: &Given) -> Vec<JobId> {
    let list = serde_json::to_value(next(given)).unwrap();
    let alike = list["alike"].as_array().unwrap();
    let mut jobs: Vec<&Value> = alike.iter().flat_map(|alike| alike["jobs"].as_array().unwrap()).collect();
    jobs.sort_by_key(|job| job["place"].as_u64());
    jobs.into_iter().map(|job| job["job_id"].as_str().unwrap().parse().unwrap()).collect()
}

fn ids(of: &[u32]) -> Vec<JobId> {
    of.iter().map(|n| fixtures::job_id(*n)).collect()
}

#[test]
fn what_waits_is_listed_in_the_order_of_the_queue() {
    let given = full().job(7, whole).job(5, whole).job(6, |spec| (spec.priority, spec.needs.vcpus) = (900, 2));
    assert_eq!(listed(&given), ids(&[6, 5, 7]));
    assert_eq!(next(&full()), NextJobs::default());
    // One of the two has room beside its job.
    assert_eq!(listed(&full().job(5, |_| ()).job(6, |_| ()).job(7, |_| ())), ids(&[7]));
}

/// The change → the jobs that are listed.
#[test]
fn a_list_has_only_jobs_that_this_plan_would_place() {
    let both = || full().job(5, whole).job(6, whole);
    let changed = |change: fn(&mut JobSummary)| {
        let mut given = both();
        let job = given.seen.jobs.iter_mut().find(|job| job.job_id == fixtures::job_id(5)).unwrap();
        change(job);
        listed(&given)
    };
    assert_eq!(changed(|_| ()), ids(&[5, 6]));
    assert_eq!(changed(|job| job.needs.nodes = 2), ids(&[6]), "it has two members");
    assert_eq!(changed(|job| job.paused = true), ids(&[6]), "it is paused");
    assert_eq!(changed(|job| job.tries.not_before_at = Some(at(200))), ids(&[6]), "its time has not come");
    assert_eq!(changed(|job| job.tries.avoids = vec![fixtures::node_id(0)]), ids(&[6]), "it keeps away from a node");
    let mut behind = both();
    let part = runtime::observation::QueuePart {
        jobs: [fixtures::job_id(6)].into(),
        stays: model::control::ListPlace::new(&model::ControlKey::QueuePlace),
        moves: model::control::ListPlace::new(&model::ControlKey::QueuePlace),
    };
    behind.seen.queue.part = Some(part);
    assert_eq!(listed(&behind), ids(&[5]), "it is behind the head of the queue");
}

#[test]
fn nodes_that_get_no_work_are_closed_and_those_that_a_job_reserves_are_kept() {
    let fleet = given(json!({"nodes": {"max": 3}})).working(0).working(1);
    let list = next(&fleet.witnessed().job(5, whole).job(6, whole));
    assert_eq!(list.closed, [fixtures::slot(40)].into(), "on hold");
    assert_eq!((list.kept.len(), list.kept_for), (1, Some(0)), "one node is kept for the first job, and those like it");
    let members = full().job(5, |spec| (spec.needs.nodes, spec.needs.vcpus) = (2, 2)).job(6, |_| ()).job(7, |_| ());
    let list = next(&members);
    assert_eq!((list.kept.len(), list.kept_for), (2, None), "both are kept for two members");
    // The first job needs more than the others, and they do not get the node that is kept for it.
    let list = next(&full().job(5, whole).job(6, |_| ()).job(7, |_| ()).job(8, |_| ()));
    assert_eq!((list.kept.len(), list.kept_for, list.alike.len()), (1, Some(0), 2));
}

#[test]
fn an_array_at_its_limit_is_listed_for_its_own_places() {
    let array = Array::new(at(0), 7 << 8);
    let mut given = full();
    for n in 0..3 {
        let mut spec = JobSpec { array_limit: std::num::NonZeroU32::new(1), ..JobSpec::running(["true"]) };
        whole(&mut spec);
        given.seen.jobs.push(Job::submit(array.job(n), spec, at(0)).unwrap().summary);
    }
    let list = serde_json::to_value(next(&given)).unwrap();
    let kinds: Vec<_> = list["alike"].as_array().unwrap().iter().map(|alike| alike["array"].as_str()).collect();
    assert_eq!(
        kinds,
        [None, Some(array.job(0).to_string().as_str())],
        "the first one waits for room, the others for it"
    );
}

#[test]
fn nothing_starts_without_a_run_while_a_brake_holds_or_a_set_lacks_nodes() {
    let waits = || full().job(5, whole);
    let mut braked = waits();
    braked.seen.control.put(fixtures::brake(BrakeKind::Missing, "x", vec!["i-9".into()], at(90)));
    assert_eq!(listed(&braked), []);
    let mut lets_go = waits();
    lets_go.seen.control.put(fixtures::brake(BrakeKind::Missing, "x", vec!["i-9".into()], at(90) - Span::from_s(700)));
    assert_eq!(listed(&lets_go), ids(&[5]));
    let mut lacking = waits();
    let set = model::control::DemandSet::new(&model::ControlKey::Demand("ci".into()));
    lacking.seen.control.put(set.wanted("small", 3, at(9999), at(50)));
    assert_eq!(listed(&lacking), []);
}

#[test]
fn every_end_needs_a_run_while_jobs_follow_others() {
    assert!(!next(&full().job(5, whole)).follows);
    let after = |spec: &mut JobSpec| spec.follow(fixtures::job_id(0), model::enums::AfterEnd::Success);
    assert!(next(&full().job(5, whole).job(6, after)).follows);
}
