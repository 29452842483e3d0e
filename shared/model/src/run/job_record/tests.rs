use super::*;
use crate::enums::{AfterEnd, MarketNeed};
use crate::files::Form;
use crate::fixtures::{self, at};
use crate::{Alloc, AllocIds, Content, Needs, Ranges, RunReport, Usage};

const KEEP: Span = Span::from_s(7 * 86_400);

fn placed(nodes: u32, retry_failed: u32, retry_lost: u32) -> (Job, Vec<AllocSummary>) {
    let spec = JobSpec {
        needs: Needs { nodes, ..Needs::default() },
        failure_policy: FailurePolicy { retry_failed, retry_lost, ..FailurePolicy::default() },
        ..JobSpec::running(["true"])
    };
    let job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap();
    let allocs: Vec<_> = (0..nodes)
        .map(|n| {
            let id = AllocId { job_id: job.summary.job_id, member: n, copy: n };
            crate::alloc::Alloc::place(id, &job, &fixtures::ready(n), at(1)).unwrap().summary
        })
        .collect();
    let ids: Vec<_> = allocs.iter().map(|a| a.alloc_id).collect();
    (job.with_placed(&ids).unwrap(), allocs)
}

#[test]
fn a_job_is_complete_when_every_member_is() {
    let (job, allocs) = placed(2, 0, 0);
    let one = job.after_end(&allocs[0], &Ending::exited(0), &allocs[1..], JobSet::Leaves, KEEP.into(), at(5));
    assert_eq!(one.summary.state, JobState::Placed);
    assert_eq!(one.expires_at, None);
    let both = one.after_end(&allocs[1], &Ending::exited(0), &[], JobSet::Leaves, KEEP.into(), at(6));
    assert_eq!((both.summary.state, both.finished_at), (JobState::Complete, Some(at(6))));
    assert!(both.expires_at.is_some() && both.summary.allocs.is_empty());
}

#[test]
fn a_failure_is_retried_as_often_as_allowed() {
    let (job, allocs) = placed(1, 1, 0);
    let again = job.after_end(&allocs[0], &Ending::exited(1), &[], JobSet::Leaves, KEEP.into(), at(5));
    assert_eq!((again.summary.state, again.failed_count), (JobState::Queued, 1));
    let placed = again.with_placed(&[allocs[0].alloc_id]).unwrap();
    let failed = placed.after_end(&allocs[0], &Ending::exited(1), &[], JobSet::Leaves, KEEP.into(), at(6));
    assert_eq!(failed.summary.state, JobState::Failed);
    // With retry_lost = 0 a lost node ends the job.
    let lost = job.after_end(&allocs[0], &Ending::lost("its node is gone"), &[], JobSet::Leaves, KEEP.into(), at(5));
    assert_eq!(lost.summary.state, JobState::Failed);
}

#[test]
fn each_rule_counts_its_own_uses_and_says_how_the_next_try_differs() {
    let (mut job, allocs) = placed(1, 0, 3);
    job.summary.needs.memory_mib = 1000;
    let rules = ["exit:75=again*2,pause=30s,elsewhere", "memory=again*2,memory*1.5,on-demand"];
    job.failure_policy.retry = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let times = JobTimes { keep: KEEP, pause: Span::from_s(10), most: Span::from_s(60) };
    let over = EndCause::OverMemory { allowed_mib: 1000, used_mib: None };
    for (cause, uses, wait, memory_mib) in [
        (EndCause::Exited { code: 75 }, vec![1], 30, 1000),
        (over.clone(), vec![1, 1], 20, 1500),
        (EndCause::Lost { why: "x".into() }, vec![1, 1, 0, 1], 40, 1500),
        (over.clone(), vec![1, 2, 0, 1], 60, 2250),
        (EndCause::Exited { code: 75 }, vec![2, 2, 0, 1], 30, 2250),
    ] {
        let ended = job.after_end(&allocs[0], &Ending::new(cause.clone()), &[], JobSet::Leaves, times, at(5));
        let JobSummary { tries, needs, state, .. } = &ended.summary;
        assert_eq!((*state, &tries.rule_uses), (JobState::Queued, &uses), "{cause}");
        assert_eq!((ended.summary.begins_at(at(5)), needs.memory_mib), (Some(at(5 + wait)), memory_mib), "{cause}");
        job = ended.with_placed(&[allocs[0].alloc_id]).unwrap();
    }
    let JobSummary { tries, needs, .. } = &job.summary;
    assert_eq!((needs.machine.market, tries.elsewhere, tries.avoids.len()), (Some(MarketNeed::OnDemand), true, 1));
    let failed = job.after_end(&allocs[0], &Ending::new(over), &[], JobSet::Leaves, times, at(9));
    let spent = "none of 2 retries by the rule memory=again*2,on-demand,memory*1.5 is left";
    assert!(failed.reason.unwrap().ends_with(spent) && failed.summary.state == JobState::Failed);
}

#[test]
fn a_job_says_what_its_last_try_used() {
    let (job, allocs) = placed(2, 1, 0);
    let used = |cpu_ms| Some(Usage { ran_ms: 9, cpu_ms, ..Usage::default() });
    let end = |job: &Job, n: usize, code, usage| {
        let ending = Ending { run: RunReport { usage, ..RunReport::default() }, ..Ending::exited(code) };
        job.after_end(&allocs[n], &ending, &[], JobSet::Leaves, KEEP.into(), at(5))
    };
    let both = end(&end(&job, 0, 0, used(7)), 1, 0, used(3));
    assert_eq!((both.summary.state, both.summary.tries.usage), (JobState::Complete, used(7)));
    let again = end(&end(&job, 0, 0, used(7)), 1, 1, None);
    assert_eq!(again.summary.tries.usage, used(7));
    assert_eq!(again.with_placed(&[allocs[0].alloc_id]).unwrap().summary.tries.usage, None, "a new try");
}

#[test]
fn the_first_digest_of_its_image_stays_with_the_job() {
    let (mut job, allocs) = placed(1, 0, 3);
    job.work.image = Some("alpine".into());
    let digest = |n: u8| format!("sha256:{}", n.to_string().repeat(64)).parse().ok();
    let lost = |job: &Job, image_digest| {
        let ending = Ending { run: RunReport { image_digest, ..RunReport::default() }, ..Ending::lost("gone") };
        job.after_end(&allocs[0], &ending, &[], JobSet::Leaves, KEEP.into(), at(5))
    };
    assert_eq!(lost(&job, None).work.image_digest, None, "its node did not get so far");
    let pinned = lost(&job, digest(1));
    assert_eq!(pinned.work.image_digest, digest(1));
    let again = pinned.with_placed(&[allocs[0].alloc_id]).unwrap();
    assert_eq!(lost(&again, digest(2)).work.image_digest, digest(1));
}

#[test]
fn the_checkpoint_of_the_latest_try_of_each_member_stays_with_the_job() {
    let (job, allocs) = placed(2, 0, 9);
    let content = |n: u8| Content::new(Form::Tree, &n.to_string().repeat(64), 1);
    let end = |job: &Job, member: usize, copy: u32, left: Option<Content>| {
        let mut alloc = allocs[member].clone();
        alloc.alloc_id.copy = copy;
        let checkpoint = left.map(|content| Checkpoint { alloc_id: alloc.alloc_id, place: 0, content });
        let ending = Ending { run: RunReport { checkpoint, ..RunReport::default() }, ..Ending::lost("gone") };
        job.after_end(&alloc, &ending, &[], JobSet::Leaves, KEEP.into(), at(5))
    };
    let mut known = job;
    for (member, copy, checkpoint, of_first, of_second) in [
        (0, 0, None, None, None),
        (0, 1, content(1), content(1), None),
        (1, 0, content(2), content(1), content(2)),
        (0, 3, content(3), content(3), content(2)),
        // It was silent, and ends after the try that took its place.
        (0, 2, content(4), content(3), content(2)),
        (0, 4, None, content(3), content(2)),
    ] {
        known = end(&known, member, copy, checkpoint);
        let of = |member| known.checkpoint(member).map(|known| known.content.clone());
        assert_eq!((of(0), of(1)), (of_first, of_second), "{member}.{copy}");
    }
}

#[test]
fn what_its_node_could_not_start_is_no_failure_of_a_job_and_costs_no_retry() {
    let (mut job, allocs) = placed(1, 0, 0);
    let times = JobTimes { keep: KEEP, pause: Span::from_s(10), most: Span::from_s(60) };
    let cannot = Ending::new(EndCause::NotStarted { why: "the disk is full".into() });
    for (n, wait) in [10, 20, 40, 60, 60, 60].into_iter().enumerate() {
        let mut alloc = allocs[0].clone();
        alloc.node_id = fixtures::node_id(n as u32);
        job = job.after_end(&alloc, &cannot, &[], JobSet::Leaves, times, at(5));
        assert_eq!((job.summary.state, job.lost_count, job.failed_count), (JobState::Queued, 0, 0));
        assert_eq!(job.summary.begins_at(at(5)), Some(at(5 + wait)), "try {n}");
        assert_eq!(job.summary.begins_at(at(5 + wait)), None);
        job = job.with_placed(&[alloc.alloc_id]).unwrap();
    }
    assert_eq!(job.summary.tries.avoids, [3, 4, 5].map(fixtures::node_id), "the last ones");
    assert_eq!(job.summary.begins_at(at(5)), None, "it is placed");
}

#[test]
fn a_move_costs_no_try_until_it_was_moved_too_often() {
    let (mut job, allocs) = placed(1, 0, 0);
    job.failure_policy.retry = vec!["lost=fail".parse().unwrap()];
    let moved = || Ending::new(EndCause::Moved { why: "an operator drains its node".into() });
    let mut stopped = allocs[0].clone();
    stopped.desired = Desired::Stop;
    for n in 1..=FREE_MOVES {
        let moves = job.after_end(&allocs[0], &moved(), &[], JobSet::Stays, KEEP.into(), at(5));
        assert_eq!(moves.summary.state, JobState::Regrouping, "its alloc still runs");
        let again = moves.after_end(&stopped, &Ending::exited(143), &[], JobSet::Leaves, KEEP.into(), at(5));
        let JobSummary { tries, state, .. } = &again.summary;
        assert_eq!((*state, tries.moves, tries.rule_uses.len(), tries.pauses), (JobState::Queued, n, 0, 0));
        assert_eq!((again.lost_count, again.failed_count), (0, 0));
        // Each alloc is paid once, although the job hears twice of its end.
        let each = allocs[0].price_per_hour.in_time(at(5).since(allocs[0].placed_at));
        assert_eq!((again.usd, each.is_zero()), (each.times(n.into()), false));
        let free = format!("moved: an operator drains its node; this costs no try (move {n} of 20)");
        assert_eq!(again.reason.as_deref(), Some(&*free));
        job = again.with_placed(&[allocs[0].alloc_id]).unwrap();
    }
    let failed = job.after_end(&allocs[0], &moved(), &[], JobSet::Stays, KEEP.into(), at(6));
    assert_eq!((failed.summary.state, failed.lost_count), (JobState::Failed, 1));
    assert!(failed.usd > job.usd);
    let counted = "moved: an operator drains its node; it was moved 20 times: no retry by the rule lost=fail";
    assert_eq!(failed.reason.as_deref(), Some(counted));
    // What EC2 takes of the spot market is the choice of the job.
    let spot = Ending::new(EndCause::Interrupted { why: "x".into() });
    let (job, allocs) = placed(1, 0, 1);
    let lost = job.after_end(&allocs[0], &spot, &[], JobSet::Stays, KEEP.into(), at(5));
    assert_eq!((lost.lost_count, lost.summary.tries.moves), (1, 0));
}

#[test]
fn the_reason_of_an_end_names_its_cause_and_the_last_line_of_the_output() {
    let (job, allocs) = placed(1, 0, 1);
    let end = |cause, output: &str| {
        let ending = Ending {
            run: RunReport { log_tail: Some(output.to_owned()), ..RunReport::default() },
            ..Ending::new(cause)
        };
        let job = job.after_end(&allocs[0], &ending, &[], JobSet::Leaves, KEEP.into(), at(5));
        (job.summary.state, job.reason.clone().unwrap_or_default(), job.cause().and_then(EndCause::exit_code))
    };
    let failed = |reason: &str, code| (JobState::Failed, reason.to_owned(), Some(code));
    let with = "exit code 42; no retry is allowed; the last line of its output: boom";
    assert_eq!(end(EndCause::Exited { code: 42 }, "one\nboom\n\n"), failed(with, 42));
    let over = "it ran longer than its time limit of 2 s; no retry is allowed";
    assert_eq!(end(EndCause::OverTime { limit_s: 2 }, ""), failed(over, 124));
    let absent = "program \"x\" not found; no retry is allowed";
    assert_eq!(end(EndCause::NotFound { program: "x".into() }, "noise"), failed(absent, 127));
    let lost = "lost: its node is gone; retry 1 of 1, 0 left".to_owned();
    let ending = end(EndCause::Lost { why: "its node is gone".into() }, "noise");
    assert_eq!(ending, (JobState::Queued, lost, None));
    assert_eq!(end(EndCause::Exited { code: 0 }, "noise"), (JobState::Complete, String::new(), Some(0)));
}

#[test]
fn another_live_copy_stands_in_unless_it_is_told_to_stop() {
    let (job, allocs) = placed(1, 0, 0);
    let mut copy = allocs[0].clone();
    copy.alloc_id.copy = 7;
    let kept = job.after_end(
        &allocs[0],
        &Ending::lost("its node is gone"),
        &[copy.clone()],
        JobSet::Leaves,
        KEEP.into(),
        at(5),
    );
    assert_eq!((kept.summary.state, kept.lost_count), (JobState::Placed, 0));
    copy.desired = Desired::Stop;
    let ended =
        job.after_end(&allocs[0], &Ending::lost("its node is gone"), &[copy], JobSet::Leaves, KEEP.into(), at(5));
    assert_eq!(ended.summary.state, JobState::Failed);
}

#[test]
fn a_job_that_was_placed_does_not_wait_for_the_others_again() {
    let after = [(fixtures::job_id(7), AfterEnd::Success)].into();
    let spec = JobSpec { after, ..JobSpec::running(["true"]) };
    let job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap();
    let id = AllocId { job_id: job.summary.job_id, member: 0, copy: 0 };
    let alloc = crate::alloc::Alloc::place(id, &job, &fixtures::ready(0), at(1)).unwrap().summary;
    let placed = job.with_placed(&[id]).unwrap();
    let again = placed.after_end(&alloc, &Ending::lost("its node is gone"), &[], JobSet::Leaves, KEEP.into(), at(5));
    assert_eq!(again.summary.state, JobState::Queued);
    assert!(job.summary.follows() && !again.summary.follows());
}

#[test]
fn several_members_regroup_and_start_together() {
    let (job, allocs) = placed(3, 0, 3);
    let one_done = job.after_end(&allocs[0], &Ending::exited(0), &allocs[1..], JobSet::Leaves, KEEP.into(), at(4));
    let regrouping = one_done.after_end(
        &allocs[1],
        &Ending::lost("its node is gone"),
        &allocs[2..],
        JobSet::Leaves,
        KEEP.into(),
        at(5),
    );
    assert_eq!(regrouping.summary.state, JobState::Regrouping);
    let mut stopped = allocs[2].clone();
    stopped.desired = Desired::Stop;
    let queued = regrouping.after_end(&stopped, &Ending::exited(0), &[], JobSet::Leaves, KEEP.into(), at(6));
    assert_eq!(queued.summary.state, JobState::Queued);
    assert!(queued.summary.done.is_empty());
}

#[test]
fn an_alloc_told_to_stop_never_ends_a_job() {
    let (job, allocs) = placed(1, 0, 0);
    let mut stopped = allocs[0].clone();
    stopped.desired = Desired::Stop;
    for ending in [Ending::exited(0), Ending::exited(1), Ending::lost("gone")] {
        let after = job.after_end(&stopped, &ending, &[], JobSet::Leaves, KEEP.into(), at(5));
        assert_eq!((after.summary.state, after.failed_count, after.lost_count), (JobState::Placed, 0, 0));
    }
}

#[test]
fn an_ended_job_expires_only_when_its_allocs_are_gone() {
    let (job, allocs) = placed(1, 0, 0);
    let cancelled = job.cancel("ann", KEEP, at(5)).unwrap();
    assert_eq!(cancelled.expires_at, None);
    assert!(cancelled.cancel("bob", KEEP, at(6)).is_none());
    let gone = cancelled.after_end(&allocs[0], &Ending::exited(1), &[], JobSet::Leaves, KEEP.into(), at(7));
    assert_eq!((gone.summary.state, gone.expires_at), (JobState::Cancelled, Some((at(7) + KEEP).as_epoch_s())));
}

#[test]
fn a_job_counts_what_its_tries_cost_until_it_is_over() {
    // One of two vCPUs of a node for $0.10 an hour.
    let (job, allocs) = placed(1, 1, 0);
    let alloc = AllocSummary { started_at: Some(at(2)), ..allocs[0].clone() };
    let after = |job: &Job, code: i32, hours: i64| {
        job.after_end(&alloc, &Ending::exited(code), &[], JobSet::Leaves, KEEP.into(), at(1 + 3600 * hours))
    };
    let again = after(&job, 1, 1);
    assert_eq!((again.usd.micros(), again.started_at, again.is_over()), (50_000, Some(at(2)), false));
    let complete = after(&again.with_placed(&[alloc.alloc_id]).unwrap(), 0, 2);
    assert_eq!((complete.usd.micros(), complete.is_over()), (150_000, true));
    assert_eq!(after(&complete, 0, 9).usd, complete.usd, "its event has been told");
    let quick = AllocSummary { started_at: None, ..alloc.clone() };
    let usage = Some(Usage { ran_ms: 1000, ..Usage::default() });
    let ending = Ending { run: RunReport { usage, ..RunReport::default() }, ..Ending::exited(0) };
    let ended = job.after_end(&quick, &ending, &[], JobSet::Leaves, KEEP.into(), at(9));
    assert_eq!(ended.started_at, Some(at(8)), "it was never reported as running");
    // What a cancelled job costs is known when its alloc has stopped.
    let cancelled = job.cancel("ann", KEEP, at(5)).unwrap();
    assert!(!cancelled.is_over() && after(&cancelled, 1, 1).is_over());
    assert_eq!(after(&cancelled, 1, 1).usd.micros(), 50_000);
}

#[test]
fn labels_are_few_and_plain() {
    let of = |labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Job::submit(fixtures::job_id(0), JobSpec { labels, ..JobSpec::running(["true"]) }, at(0))
    };
    let keys = ["a", "b", "c", "d", "e", "f", "g", "h", "i"].map(|key| (key, "x"));
    assert_eq!(of(&keys[..8]).unwrap().summary.labels.len(), 8);
    for (labels, says) in [
        (&keys[..], "a job has at most 8 labels (--label), this one has 9"),
        (&[("team", "a\u{1b}b")], "--label \"team=a\\u{1b}b\" must be KEY=VALUE: KEY has 1 to 64 letters"),
    ] {
        let BadJob(wrong) = of(labels).unwrap_err();
        assert!(wrong.len() == 1 && wrong[0].starts_with(says), "{wrong:?}");
    }
}

#[test]
fn a_bad_submission_lists_every_mistake() {
    let spec = JobSpec {
        priority: 1001,
        needs: Needs { vcpus: 0, nodes: 257, ..Needs::default() },
        work: Work { caches: vec!["a/b".into()], ..Work::default() },
        ..JobSpec::default()
    };
    let BadJob(wrong) = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap_err();
    assert!(wrong.iter().any(|w| w.contains("it has no command")) && wrong.len() >= 5, "{wrong:?}");
    let caches = |n: u32| (0..n).map(|n| format!("c{n}")).collect();
    let of_caches = |n| Work { command: vec!["x".into()], caches: caches(n), ..Work::default() };
    let submit = |nodes, caches| {
        let needs = Needs { nodes, ..Needs::default() };
        let spec = JobSpec { needs, work: of_caches(caches), ..JobSpec::default() };
        Job::submit(fixtures::job_id(0), spec, at(0)).map(drop).map_err(|BadJob(wrong)| wrong.join("; "))
    };
    assert_eq!(submit(256, 95), Ok(()));
    assert!(submit(257, 0).is_err_and(|wrong| wrong.contains("--nodes must be 1 to 256")));
    assert!(submit(1, 96).is_err_and(|wrong| wrong.contains("96 caches: at most 95")));
}

/// A job of three members, of which the first `members` are placed, and all three allocs.
fn placing(members: u32) -> (Job, Vec<AllocSummary>) {
    let (job, allocs) = placed(3, 0, 0);
    let ids: Vec<AllocId> = allocs.iter().map(|alloc| alloc.alloc_id).collect();
    let queued =
        Job { summary: JobSummary { state: JobState::Queued, allocs: AllocIds::default(), ..job.summary }, ..job };
    (queued.with_placed(&ids[..members as usize]).unwrap(), allocs)
}

#[test]
fn many_members_start_when_the_last_one_is_placed() {
    let (part, allocs) = placing(2);
    let lets_start = |job: &Job| allocs.iter().filter(|alloc| job.lets_start(alloc.alloc_id)).count();
    assert_eq!((part.summary.state, lets_start(&part)), (JobState::Placing, 0));
    let whole = part.with_placed(&[allocs[2].alloc_id]).unwrap();
    assert_eq!((whole.summary.state, lets_start(&whole)), (JobState::Placed, 3));
    assert_eq!(whole.cut_short("too late"), None);
    let cut = part.cut_short("a node changed").unwrap();
    assert_eq!((cut.summary.state, lets_start(&cut)), (JobState::Regrouping, 0));
    assert_eq!(cut.with_placed(&[allocs[2].alloc_id]), None);
    // A lost node is no loss of the job here, because no member has started.
    let after = |job: &Job, alloc: &AllocSummary| {
        job.after_end(alloc, &Ending::lost("gone"), &[], JobSet::Leaves, KEEP.into(), at(5))
    };
    let one_left = after(&part, &allocs[0]);
    assert_eq!((one_left.summary.state, one_left.lost_count), (JobState::Regrouping, 0));
    assert_eq!(after(&placing(1).0, &allocs[0]).summary.state, JobState::Queued);
}

/// The pack after its next alloc was placed, and this alloc.
fn placed_pack(job: &Job, copy: u32) -> (Job, AllocSummary) {
    let id = AllocId { job_id: job.summary.job_id, member: 0, copy };
    let placed = job.with_placed(&[id]).unwrap();
    let alloc = Alloc::place(id, &placed, &fixtures::ready(0), at(1)).unwrap();
    assert_eq!(alloc.work, placed.work_left());
    (placed, alloc.summary)
}

fn told(cause: EndCause, results: &[(&str, &str)]) -> Ending {
    let mut ending = Ending::new(cause);
    for (outcome, elements) in results {
        ending.run.elements.results.add(outcome.parse().unwrap(), &elements.parse().unwrap());
    }
    ending
}

fn left(job: &Job) -> String {
    job.work_left().pack.unwrap().elements.to_string()
}

#[test]
fn a_pack_goes_on_with_what_is_left_and_ends_with_its_last_element() {
    let mut spec = JobSpec::running(["true"]);
    spec.work.pack = Some(Pack::of(Ranges::of(0, 9)));
    spec.failure_policy = FailurePolicy { retry_failed: 1, retry_lost: 1, ..FailurePolicy::default() };
    let job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap();
    let end = |job: &Job, alloc: &AllocSummary, ending: &Ending| {
        job.after_end(alloc, ending, &[], JobSet::Leaves, KEEP.into(), at(5))
    };
    let gone = || EndCause::Lost { why: "its node is gone".into() };
    // Results that a lost node had reported count, and the job counts the loss.
    let (one, alloc) = placed_pack(&job, 0);
    let lost = end(&one, &alloc, &told(gone(), &[("exit:0", "0-3"), ("exit:1", "4")]));
    assert_eq!((lost.summary.state, left(&lost).as_str(), lost.lost_count), (JobState::Queued, "4-9", 1));
    // An alloc that ran to its end leaves what may be tried again.
    let (two, alloc) = placed_pack(&lost, 1);
    let failed = EndCause::ElementsFailed { failed: 2, elements: 6 };
    let again = end(&two, &alloc, &told(failed.clone(), &[("exit:0", "6-9"), ("exit:1", "4-5")]));
    assert_eq!((again.summary.state, left(&again).as_str()), (JobState::Queued, "5"), "4 has failed twice");
    assert_eq!(again.reason.as_deref(), Some("2 of 6 elements failed; 1 of its elements are left to run"));
    let (three, alloc) = placed_pack(&again, 2);
    let over = end(&three, &alloc, &told(EndCause::Exited { code: 0 }, &[("exit:0", "5")]));
    assert_eq!(over.summary.state, JobState::Failed);
    assert_eq!(over.reason.as_deref(), Some("1 of 10 elements failed: 4 (exit:1)"));
    // The same without a failure. The end comes after the job was queued again, because the node was drained.
    let (three, mut alloc) = placed_pack(&again, 2);
    alloc.desired = Desired::Stop;
    let queued = three.after_end(&alloc, &told(gone(), &[]), &[], JobSet::Stays, KEEP.into(), at(5));
    let late = end(&queued, &alloc, &told(EndCause::Stopped { why: "drained".into(), code: None }, &[("exit:0", "5")]));
    assert_eq!((late.summary.state, late.expires_at.is_some()), (JobState::Failed, true), "4 still failed");
    // Too much memory ends the elements that ran, and the others go on. If no element has this outcome, the end counts as for any
    // job.
    let (one, alloc) = placed_pack(&job, 0);
    let over = || EndCause::OverMemory { allowed_mib: 1, used_mib: None };
    let rest = end(&one, &alloc, &told(over(), &[("exit:0", "0"), ("memory", "1")]));
    assert_eq!((rest.summary.state, left(&rest).as_str()), (JobState::Queued, "1-9"), "it may fail once more");
    assert_eq!(end(&one, &alloc, &told(over(), &[])).summary.tries.rule_uses.iter().sum::<u32>(), 1);
    let all = end(&one, &alloc, &told(EndCause::Exited { code: 0 }, &[("exit:0", "0-9")]));
    assert_eq!((all.summary.state, all.reason), (JobState::Complete, None));
    // One loss more than allowed fails the job, although some elements never ran.
    let (two, alloc) = placed_pack(&lost, 1);
    assert_eq!(end(&two, &alloc, &told(gone(), &[])).summary.state, JobState::Failed);
}

#[test]
fn a_pack_ends_when_as_many_elements_have_failed_for_good_as_may() {
    let mut spec = JobSpec::running(["true"]);
    (spec.work.pack, spec.max_failures) = (Some(Pack::of(Ranges::of(0, 9))), NonZeroU32::new(3));
    spec.failure_policy.retry = vec!["exit:75=again*1".parse().unwrap()];
    let mut job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap();
    // What its alloc says, how many failures its next alloc may have, and the elements that are left.
    let some_failed = |failed| EndCause::ElementsFailed { failed, elements: 10 };
    for (copy, cause, results, next) in [
        (0, some_failed(3), vec![("exit:0", "0"), ("exit:1", "1"), ("exit:75", "2-3")], Some((2, "2-9"))),
        (1, EndCause::Lost { why: "gone".into() }, vec![("exit:0", "2"), ("exit:1", "3")], Some((1, "4-9"))),
        (2, some_failed(1), vec![("exit:0", "4"), ("exit:1", "5")], None),
    ] {
        let (placed, alloc) = placed_pack(&job, copy);
        job = placed.after_end(&alloc, &told(cause, &results), &[], JobSet::Leaves, KEEP.into(), at(5));
        let pack = job.work_left().pack.filter(|_| job.summary.state == JobState::Queued);
        let next = next.map(|(may, left)| (NonZeroU32::new(may), left.to_owned()));
        assert_eq!(pack.map(|pack| (pack.max_failures, pack.elements.to_string())), next, "{copy}");
    }
    assert_eq!(job.summary.state, JobState::Failed);
    let reason = "3 of 10 elements failed: 1,3,5 (exit:1); 4 did not run (--max-failures 3)";
    assert_eq!(job.reason.as_deref(), Some(reason));
}

#[test]
fn the_rules_of_elements_change_what_a_pack_needs_however_its_alloc_ended() {
    let mut spec = JobSpec::running(["true"]);
    spec.work.pack = Some(Pack::of(Ranges::of(0, 9)));
    spec.needs.memory_mib = 1000;
    let rules = ["memory=again*2,memory*4", "exit:75=again*2,memory*1.5", "lost=again*3"];
    spec.failure_policy.retry = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    let job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap();
    let results = [("memory", "3"), ("exit:75", "5")];
    let with = |results: &[(&str, &str)], cause: EndCause, desired: Desired| {
        let (placed, mut alloc) = placed_pack(&job, 0);
        alloc.desired = desired;
        placed.after_end(&alloc, &told(cause, results), &[], JobSet::Leaves, KEEP.into(), at(5))
    };
    let over = EndCause::ElementsFailed { failed: 2, elements: 10 };
    let gone = EndCause::Lost { why: "its node is gone".into() };
    let stopped = EndCause::Stopped { why: "drained".into(), code: None };
    for (cause, desired) in [(over, Desired::Run), (gone, Desired::Run), (stopped, Desired::Stop)] {
        let next = with(&results, cause.clone(), desired);
        assert_eq!(next.summary.needs.memory_mib, 4000, "{cause}: the most of both rules");
    }
}

#[test]
fn a_pack_that_is_complete_says_what_it_used() {
    let mut spec = JobSpec::running(["true"]);
    spec.work.pack = Some(Pack::of(Ranges::of(0, 1)));
    let job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap();
    let (placed, alloc) = placed_pack(&job, 0);
    let mut ending = told(EndCause::Exited { code: 0 }, &[("exit:0", "0-1")]);
    ending.run.usage = serde_json::from_value(serde_json::json!({"ran_ms": 90, "cpu_ms": 70})).unwrap();
    let ended = placed.after_end(&alloc, &ending, &[], JobSet::Leaves, KEEP.into(), at(5));
    assert_eq!((ended.summary.state, ended.summary.tries.usage), (JobState::Complete, ending.run.usage));
}

#[test]
fn a_pack_is_the_same_after_it_was_a_row() {
    let mut job = fixtures::job(0);
    job.work.pack = Some(Pack { at_once: 2, ..Pack::of(Ranges::of(0, 9)) });
    job.failure_policy.retry_failed = 2;
    let (placed, alloc) = placed_pack(&job, 0);
    let ending = told(EndCause::ElementsFailed { failed: 1, elements: 10 }, &[("exit:0", "0-8"), ("exit:1", "9")]);
    let job = placed.after_end(&alloc, &ending, &[], JobSet::Leaves, KEEP.into(), at(5));
    let row = serde_json::to_value(&job).unwrap();
    assert_eq!(row["elements"], serde_json::json!({"results": {"exit:0": "0-8"}, "failures": {"1": "9"}}));
    assert_eq!(serde_json::from_value::<Job>(row).unwrap(), job);
}

fn waiting(change: impl FnOnce(&mut JobSpec)) -> Job {
    let mut spec = JobSpec::running(["true"]);
    change(&mut spec);
    Job::submit(fixtures::job_id(0), spec, at(0)).unwrap()
}

#[test]
fn a_job_that_waits_is_paused_and_goes_on_at_its_place() {
    let job = waiting(|_| {});
    let paused = job.pause(Pause::Begins).unwrap();
    assert_eq!((paused.summary.is_put_off(), paused.summary.rank()), (true, job.summary.rank()));
    assert_eq!((paused.pause(Pause::Begins), job.pause(Pause::Ends)), (None, None));
    assert_eq!(paused.pause(Pause::Ends), Some(job.clone()));
    let (placed, _) = placed(1, 0, 0);
    assert_eq!(placed.pause(Pause::Begins), None);
    assert_eq!(job.cancel("ann", KEEP, at(1)).unwrap().pause(Pause::Begins), None);
}

#[test]
fn a_time_that_has_come_is_taken_off_and_only_then() {
    let job = waiting(|spec| spec.not_before_at = Some(Moment::Away(Span::from_s(60))));
    assert_eq!((job.summary.due_at(), job.summary.is_put_off()), (Some(at(60)), true));
    assert_eq!(job.advance(&BTreeSet::new(), at(59)), None);
    let free = job.advance(&BTreeSet::new(), at(60)).unwrap();
    assert_eq!((free.summary.due_at(), free.summary.is_put_off()), (None, false));
    assert_eq!(free.not_before_at, Some(at(60)), "what was asked for stays");
    // A time that is over already is no wait.
    assert!(!waiting(|spec| spec.not_before_at = Some(Moment::At(at(-5)))).summary.is_put_off());
}

#[test]
fn a_job_has_begun_when_its_command_ran_and_not_when_its_node_could_not_start_it() {
    let job = waiting(|spec| spec.give_up_after_s = 50);
    let alloc = Alloc::place(fixtures::alloc_id(0), &job, &fixtures::ready(0), at(1)).unwrap().summary;
    let placed = job.with_placed(&[alloc.alloc_id]).unwrap();
    assert_eq!((job.summary.gives_up_at(), placed.summary.gives_up_at()), (Some(at(50)), None));
    let ended = |cause: EndCause, started_at: Option<Time>| {
        let alloc = AllocSummary { started_at, ..alloc.clone() };
        placed.after_end(&alloc, &Ending::new(cause), &[], JobSet::Leaves, KEEP.into(), at(5)).summary
    };
    let not_started = ended(EndCause::NotStarted { why: "no disk".into() }, None);
    assert_eq!((not_started.state, not_started.gives_up_at()), (JobState::Queued, Some(at(50))));
    let lost = ended(EndCause::Lost { why: "gone".into() }, Some(at(2)));
    assert_eq!((lost.state, lost.gives_up_at()), (JobState::Queued, None));
}

#[test]
fn a_change_keeps_the_place_and_what_runs_and_names_every_mistake() {
    let job = waiting(|spec| spec.not_before_at = Some(Moment::At(at(500))));
    let spec = |change: fn(&mut JobSpec)| {
        let mut spec = JobSpec { not_before_at: Some(Moment::At(at(500))), ..JobSpec::running(["true"]) };
        change(&mut spec);
        spec
    };
    let changed = job.changed(spec(|spec| (spec.priority, spec.needs.vcpus) = (900, 4)), at(100)).unwrap().unwrap();
    let JobSummary { job_id, priority, ref needs, ref tries, submitted_at, .. } = changed.summary;
    assert_eq!((job_id, priority, needs.vcpus, submitted_at), (job.summary.job_id, 900, 4, at(0)));
    assert_eq!(tries.not_before_at, Some(at(500)), "it stays put off");
    let later = job.changed(spec(|spec| spec.not_before_at = Some(Moment::Away(Span::from_s(7)))), at(100)).unwrap();
    assert_eq!(later.unwrap().summary.tries.not_before_at, Some(at(107)), "a length of time counts from now on");
    assert_eq!(job.changed(spec(|_| {}), at(100)).unwrap(), None, "nothing changes");
    let BadJob(mistakes) = job.changed(spec(|spec| (spec.priority, spec.needs.vcpus) = (1001, 0)), at(1)).unwrap_err();
    assert_eq!(mistakes.len(), 2, "{mistakes:?}");
    assert_eq!(placed(1, 0, 0).0.changed(spec(|spec| spec.priority = 9), at(1)).unwrap(), None);
}

#[test]
fn a_job_that_could_never_begin_is_refused() {
    let spec = |wait_s: i64, give_up_after_s: u64| {
        let not_before_at = Some(Moment::Away(Span::from_s(wait_s)));
        let spec = JobSpec { not_before_at, give_up_after_s, ..JobSpec::running(["true"]) };
        Job::submit(fixtures::job_id(0), spec, at(9)).map_err(|BadJob(mistakes)| mistakes.join("; "))
    };
    assert!(spec(60, 61).is_ok() && spec(60, 0).is_ok());
    assert!(spec(60, 60).unwrap_err().starts_with("--not-before is after the end of --give-up-after"));
    assert!(spec(400 * 86_400, 0).unwrap_err().contains("--not-before must be within a year"));
    assert!(spec(0, 400 * 86_400).unwrap_err().contains("--give-up-after must be at most a year"));
}
