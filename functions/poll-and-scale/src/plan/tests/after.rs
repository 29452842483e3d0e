//! Tests of the plan: jobs that follow other jobs.

use super::*;
use model::after::Followed;
use model::{AfterEnd, JobState};

/// The job `n` follows these jobs, which must be complete.
fn follows(ids: &'static [u32]) -> impl FnOnce(&mut JobSpec) {
    move |spec| spec.after = ids.iter().map(|n| (fixtures::job_id(*n), AfterEnd::Success)).collect()
}

fn ended(mut given: Given, n: u32, state: JobState) -> Given {
    given.seen.ends.insert(fixtures::job_id(n), Followed::Ended(state));
    given
}

fn about(given: &Given, action: &str) -> Vec<String> {
    given.actions(at(150)).into_iter().filter(|a| a.starts_with(&format!("{action} "))).collect()
}

#[test]
fn a_job_is_placed_in_the_run_that_sees_the_end_of_the_jobs_that_it_follows() {
    let waits = given(json!({})).node(idle_long(0)).job(5, follows(&[7]));
    assert_eq!((about(&waits, "place"), about(&waits, "launch")), (vec![], vec![]));
    let why = plan(&waits.seen, at(150)).explained.waiting[0].reason();
    assert_eq!(why, format!("it runs after job {}, which has not ended", fixtures::job_id(7)));
    let free = ended(waits, 7, JobState::Complete);
    assert_eq!(about(&free, "place"), [format!("place job#{}", fixtures::job_id(5))]);
    assert_eq!(about(&free, "advance"), Vec::<String>::new(), "the placement takes the list off");
}

#[test]
fn a_free_job_without_room_goes_into_the_queue_and_gets_a_node() {
    let free = ended(given(json!({})).job(5, follows(&[7])), 7, JobState::Complete);
    assert_eq!((about(&free, "advance").len(), about(&free, "launch").len()), (1, 1));
    let held = given(json!({})).job(5, follows(&[7]));
    assert_eq!((about(&held, "advance").len(), about(&held, "launch").len()), (0, 0), "it costs nothing meanwhile");
}

#[test]
fn the_end_of_some_is_noted_so_that_their_rows_may_be_deleted() {
    let some = ended(given(json!({})).node(idle_long(0)).job(5, follows(&[7, 8])), 7, JobState::Complete);
    assert_eq!((about(&some, "advance").len(), about(&some, "place").len()), (1, 0));
    let reason = plan(&some.seen, at(150)).explained.waiting[0].reason();
    assert_eq!(reason, format!("it runs after job {}, which has not ended", fixtures::job_id(8)));
}

#[test]
fn a_job_that_can_never_run_is_rejected_as_soon_as_that_is_known() {
    let failed = ended(given(json!({})).node(idle_long(0)).job(5, follows(&[7, 8])), 7, JobState::Failed);
    assert_eq!(about(&failed, "reject"), [format!("reject job#{}", fixtures::job_id(5))]);
    let large = given(json!({})).job(5, |spec| {
        follows(&[7])(spec);
        spec.needs.vcpus = 10_000;
    });
    assert_eq!(about(&large, "reject").len(), 1, "no size fits it");
    // A job that may end in any way frees its follower with each end.
    let any = given(json!({})).node(idle_long(0)).job(5, |spec| {
        spec.after = [(fixtures::job_id(7), AfterEnd::Any)].into();
    });
    assert_eq!(about(&ended(any, 7, JobState::Cancelled), "place").len(), 1);
}

#[test]
fn a_free_job_keeps_its_place_in_the_queue_and_the_limit_of_its_array() {
    // There is room for one of the two jobs.
    let given_two = || given(json!({"nodes": {"max": 1}})).node(idle_long(0));
    let first = ended(given_two().job(5, |s| (follows(&[7])(s), whole(s)).1).job(6, whole), 7, JobState::Complete);
    assert_eq!(about(&first, "place"), [format!("place job#{}", fixtures::job_id(5))]);
    let later = given_two().job(5, |s| (follows(&[7])(s), whole(s)).1).job(6, whole);
    assert_eq!(about(&later, "place"), [format!("place job#{}", fixtures::job_id(6))]);
    let array = model::array::Array::new(at(0), 7 << 8);
    let mut limited = given(json!({})).node(idle_long(0));
    for n in 0..2 {
        let mut spec = JobSpec { array_limit: std::num::NonZeroU32::new(1), ..JobSpec::running(["true"]) };
        follows(&[7])(&mut spec);
        limited.seen.jobs.push(Job::submit(array.job(n), spec, at(0)).unwrap().summary);
    }
    assert_eq!(about(&ended(limited, 7, JobState::Complete), "place").len(), 1);
}
