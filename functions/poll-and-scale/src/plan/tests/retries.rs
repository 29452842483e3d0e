//! Tests of the plan: jobs that wait before their next try, and the nodes on which they were lost.

use super::*;
use model::NodeId;

/// Three idle nodes, and a job of 2 vCPUs that was lost on the first two of them.
fn lost_twice(not_before_s: i64) -> Given {
    let mut given = given(json!({"nodes": {"max": 3}}));
    for n in 0..3 {
        given = given.node(idle_long(n));
    }
    let spec = JobSpec { needs: model::Needs { vcpus: 2, ..model::Needs::default() }, ..JobSpec::running(["true"]) };
    let mut job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap().summary;
    job.tries.avoids = vec![fixtures::node_id(0), fixtures::node_id(1)];
    job.tries.not_before_at = Some(at(not_before_s));
    job.tries.cause = Some(model::EndCause::Exited { code: 42 });
    given.seen.jobs.push(job);
    given
}

fn placed_on(given: &Given) -> Vec<NodeId> {
    plan(&given.seen, at(150)).actions.iter().flat_map(|planned| planned.action.placed_on()).collect()
}

#[test]
fn a_job_waits_for_its_next_try_reserves_nothing_meanwhile_and_says_why() {
    let mut given = lost_twice(160);
    assert_eq!((placed_on(&given), given.count(at(150), "launch")), (Vec::new(), 0));
    let explained = plan(&given.seen, at(150)).explained;
    let why = "its last try ended (exit code 42), and it is tried again in 10 s";
    assert_eq!(explained.waiting[0].reason(), why);
    // Another job takes the room.
    let other = JobSpec {
        needs: model::Needs { nodes: 3, exclusive: true, ..model::Needs::default() },
        ..JobSpec::running(["true"])
    };
    given.seen.jobs.push(Job::submit(fixtures::job_id(1), other, at(1)).unwrap().summary);
    assert_eq!(placed_on(&given).len(), 3);
    assert_eq!(placed_on(&lost_twice(150)).len(), 1, "its time has come");
}

#[test]
fn a_job_goes_to_a_ready_node_on_which_it_was_not_lost_if_there_is_one() {
    let mut given = lost_twice(100);
    assert_eq!(placed_on(&given), [fixtures::node_id(2)]);
    given.seen.jobs[0].tries.avoids.push(fixtures::node_id(2));
    assert_eq!(placed_on(&given).len(), 1, "there is no other one");
    given.seen.jobs[0].tries.avoids.clear();
    assert_eq!(placed_on(&given), [fixtures::node_id(0)]);
}

/// The idle node 0, and a job that failed on it by a rule with `elsewhere`.
fn failed_here(max: u32) -> Given {
    let mut given = given(json!({"nodes": {"max": max}})).node(idle_long(0)).job(0, |_| {});
    let tries = &mut given.seen.jobs[0].tries;
    (tries.avoids, tries.elsewhere) = (vec![fixtures::node_id(0)], true);
    given
}

#[test]
fn a_job_that_wants_to_run_elsewhere_gets_a_new_node_before_one_on_which_it_failed() {
    let given = failed_here(2);
    assert_eq!((placed_on(&given), given.count(at(150), "launch")), (Vec::new(), 1));
    // While the new node boots, the job waits for it.
    let booting = failed_here(2).node(fixtures::bound(1));
    assert_eq!((placed_on(&booting), booting.count(at(150), "launch")), (Vec::new(), 0));
    // If no other node can be had, the avoided one is better than none.
    assert_eq!(placed_on(&failed_here(1)), [fixtures::node_id(0)]);
}

#[test]
fn a_retry_with_more_memory_is_packed_by_its_new_need_and_rejected_if_no_size_has_that() {
    let size =
        json!([{"name": "small", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.1}]);
    let mut given = given(json!({"nodes": {"max": 1, "memory_usable": 1.0}, "size": size})).node(idle_long(0));
    let grows = |spec: &mut JobSpec| {
        spec.needs.memory_mib = 5000;
        spec.failure_policy.retry = vec!["memory=again*5,memory*1.5".parse().unwrap()];
    };
    given = given.job(0, grows).job(1, |spec| spec.needs.memory_mib = 3000);
    let grown = |given: &Given, times: usize| {
        let mut spec = JobSpec::running(["true"]);
        grows(&mut spec);
        let mut job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap();
        let over = model::Ending::new(model::EndCause::OverMemory { allowed_mib: 1, used_mib: None });
        for _ in 0..times {
            let alloc = Alloc::place(fixtures::alloc_id(0), &job, &fixtures::ready(0), at(1)).unwrap();
            let placed = job.with_placed(&[alloc.id()]).unwrap();
            job = placed.after_end(
                &alloc.summary,
                &over,
                &[],
                model::JobSet::Leaves,
                model::time::Span::ZERO.into(),
                at(5),
            );
        }
        let mut given = given.clone();
        given.seen.jobs[0] = job.summary;
        given
    };
    assert_eq!(placed_on(&given).len(), 2, "5000 and 3000 MiB");
    assert_eq!(placed_on(&grown(&given, 1)).len(), 1, "7500 and 3000 MiB");
    let too_large = grown(&given, 2);
    assert_eq!(too_large.count(at(150), "reject"), 1, "11250 MiB");
    let reason = plan(&too_large.seen, at(150)).actions.iter().map(|planned| planned.row().reason).collect::<String>();
    assert!(reason.contains("no size fits: it needs 1 vCPU, 11250 MiB"), "{reason}");
    let rejected = Job::submit(fixtures::job_id(0), JobSpec::running(["true"]), at(0)).unwrap();
    let rejected = Job { summary: too_large.seen.jobs[0].clone(), ..rejected };
    let rejected = rejected.reject("no size fits", model::time::Span::ZERO, at(9)).unwrap().reason.unwrap();
    assert!(rejected.starts_with("no size fits; its last try ended: out of memory"), "{rejected}");
}
