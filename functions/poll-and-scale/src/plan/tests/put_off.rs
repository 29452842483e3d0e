//! Tests of the plan: jobs that are paused, not placed before a time, or that give up.

use super::*;
use model::amounts::Moment;
use model::{Array, EndCause, Pause, Time};
use std::num::NonZeroU32;

fn about(given: &Given, now: i64, action: &str) -> Vec<String> {
    given.actions(at(now)).into_iter().filter(|a| a.starts_with(&format!("{action} "))).collect()
}

fn why(given: &Given, now: i64) -> String {
    plan(&given.seen, at(now)).explained.waiting[0].reason()
}

fn not_before(s: i64) -> impl FnOnce(&mut JobSpec) {
    move |spec| spec.not_before_at = Some(Moment::At(at(s)))
}

#[test]
fn a_job_is_placed_in_the_run_that_sees_its_time_and_not_before() {
    let given = given(json!({})).node(idle_long(0)).job(5, not_before(160));
    assert_eq!((about(&given, 159, "place"), about(&given, 159, "launch")), (vec![], vec![]));
    let at: Time = at(160);
    assert_eq!(why(&given, 159), format!("it begins at {at} at the earliest (--not-before)"));
    assert_eq!(about(&given, 160, "place").len(), 1);
    assert_eq!(about(&given, 160, "advance"), Vec::<String>::new(), "the placement takes the time off");
}

#[test]
fn a_job_whose_time_has_come_goes_into_the_queue_if_there_is_no_room() {
    let given = given(json!({"nodes": {"max": 1}})).job(5, not_before(160));
    assert_eq!((about(&given, 159, "advance").len(), about(&given, 159, "launch").len()), (0, 0));
    assert_eq!((about(&given, 160, "advance").len(), about(&given, 160, "launch").len()), (1, 1));
}

#[test]
fn a_paused_job_costs_nothing_and_hides_nobody() {
    let mut given = given(json!({"nodes": {"max": 1}})).node(idle_long(0)).job(5, whole).job(6, whole);
    let paused = Job { summary: given.seen.jobs[0].clone(), ..fixtures::job(5) }.pause(Pause::Begins).unwrap();
    given.seen.jobs[0] = paused.summary;
    assert_eq!(about(&given, 150, "place"), [format!("place job#{}", fixtures::job_id(6))]);
    given.seen.jobs.truncate(1);
    assert_eq!(why(&given, 150), "it is paused: `nodekeeper continue` lets it go on");
    assert_eq!(about(&given, 150, "advance"), Vec::<String>::new());
}

#[test]
fn a_job_gives_up_wherever_it_waits_but_not_after_it_has_begun() {
    let waits = |change: fn(&mut JobSummary)| {
        let mut given = given(json!({"nodes": {"max": 0}})).job(5, |spec| spec.give_up_after_s = 100);
        change(&mut given.seen.jobs[0]);
        (about(&given, 99, "reject").len(), about(&given, 100, "reject").len())
    };
    assert_eq!(waits(|_| {}), (0, 1));
    assert_eq!(waits(|job| job.paused = true), (0, 1));
    assert_eq!(waits(|job| _ = job.after.insert(fixtures::job_id(7), model::AfterEnd::Any)), (0, 1));
    assert_eq!(waits(|job| job.tries.not_before_at = Some(at(900))), (0, 1));
    assert_eq!(waits(|job| job.tries.begun = true), (0, 0));
    let given = given(json!({})).job(5, |spec| spec.give_up_after_s = 100);
    let rejected = plan(&given.seen, at(100)).actions.remove(0);
    assert_eq!(rejected.reason.to_string(), "it had not begun 1 min 40 s after its submission (--give-up-after)");
}

#[test]
fn after_so_many_failures_no_element_begins() {
    let array = Array::new(at(0), 7 << 8);
    let mut given = given(json!({})).node(idle_long(0));
    for n in 0..3 {
        let spec = JobSpec { max_failures: NonZeroU32::new(2), ..JobSpec::running(["true"]) };
        given.seen.jobs.push(Job::submit(array.job(n), spec, at(0)).unwrap().summary);
    }
    let tries = &mut given.seen.jobs[0].tries;
    (tries.begun, tries.cause) = (true, Some(EndCause::Exited { code: 1 }));
    given.seen.failures.insert(array, 1);
    assert_eq!((about(&given, 150, "reject").len(), about(&given, 150, "place").len()), (0, 2));
    given.seen.failures.insert(array, 2);
    assert_eq!((about(&given, 150, "reject").len(), about(&given, 150, "place").len()), (2, 1), "one is tried again");
}
