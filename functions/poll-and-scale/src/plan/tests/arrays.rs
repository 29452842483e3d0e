//! Tests of the plan: arrays whose jobs may not all be placed at the same time.

use super::*;
use model::AllocId;

/// Room for many jobs, and an array of this many jobs with this limit.
fn array_of(jobs: u32, limit: u32) -> Given {
    let mut given = given(json!({"nodes": {"max": 20}}));
    for n in 0..10 {
        given = given.node(idle_long(n));
    }
    let array = model::array::Array::new(at(0), 7 << 8);
    for n in 0..jobs {
        let spec = JobSpec {
            array_limit: std::num::NonZeroU32::new(limit),
            needs: model::Needs { vcpus: 2, ..model::Needs::default() },
            ..JobSpec::running(["true"])
        };
        given.seen.jobs.push(Job::submit(array.job(n), spec, at(0)).unwrap().summary);
    }
    given
}

fn job(given: &Given, n: usize) -> Job {
    let spec = JobSpec::running(["true"]);
    let mut job = Job::submit(given.seen.jobs[n].job_id, spec, at(0)).unwrap();
    job.summary = given.seen.jobs[n].clone();
    job
}

/// Places job `n` on the record of this slot. The indexes do not know it yet.
fn place_on(given: &mut Given, n: usize, slot: usize) {
    let id = AllocId { job_id: given.seen.jobs[n].job_id, member: 0, copy: 0 };
    given.seen.nodes[slot] = given.seen.nodes[slot].with_alloc(id, at(100)).unwrap();
}

fn placed(given: &Given) -> usize {
    given.count(at(150), "place")
}

#[test]
fn an_array_places_as_many_as_its_limit_and_wants_no_node_for_the_rest() {
    assert_eq!(placed(&array_of(15, 3)), 3);
    assert_eq!(array_of(15, 3).count(at(150), "launch"), 0);
    assert_eq!(placed(&array_of(15, 10)), 10);
    // The ten ready nodes take ten jobs, and nodes are launched for the other two.
    assert_eq!((placed(&array_of(15, 12)), array_of(15, 12).count(at(150), "launch")), (10, 2));
    let explained = plan(&array_of(15, 3).seen, at(150)).explained;
    assert_eq!((explained.waiting.len(), explained.waiting[0].jobs.len()), (1, 12));
    assert!(explained.waiting[0].reason().starts_with("its array may have 3 jobs placed at once"));
}

#[test]
fn what_runs_counts_although_the_indexes_are_behind() {
    let mut behind = array_of(15, 3);
    place_on(&mut behind, 0, 0);
    // The index shows the placed job as queued: placing it again is a conflict, and two others are placed.
    let places: Vec<String> = behind.actions(at(150)).into_iter().filter(|a| a.starts_with("place ")).collect();
    assert_eq!(places.len(), 3, "{places:?}");
    assert!(places[0].contains(&behind.seen.jobs[0].job_id.to_string()), "{places:?}");
    // The index does not show the placed job at all.
    let mut between = array_of(15, 3);
    place_on(&mut between, 14, 0);
    between.seen.jobs.truncate(14);
    assert_eq!(placed(&between), 2);
    // The index shows the job as placed, and its alloc is not known.
    let mut known = array_of(15, 3);
    let alloc = AllocId { job_id: known.seen.jobs[0].job_id, member: 0, copy: 0 };
    known.seen.jobs[0] = job(&known, 0).with_placed(&[alloc]).unwrap().summary;
    assert_eq!(placed(&known), 2);
}

#[test]
fn an_array_that_waits_holds_up_no_other_job() {
    let given = array_of(15, 1).job(5, |spec| spec.needs.vcpus = 2).job(6, |spec| spec.priority = 0);
    assert_eq!(placed(&given), 3);
    // Without a limit, the jobs of an array are like any others.
    let mut free = array_of(8, 1);
    free.seen.jobs.iter_mut().for_each(|job| job.array_limit = None);
    assert_eq!(placed(&free), 8);
}
