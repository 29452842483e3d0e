//! Tests of the plan: jobs that wait before their next try, and the nodes on which they were lost.

use super::*;
use model::ids::NodeId;

/// Three idle nodes, and a job of 2 vCPUs that was lost on the first two of them.
fn lost_twice(not_before_s: i64) -> Given {
    let mut given = given(json!({"nodes": {"max": 3}}));
    for n in 0..3 {
        given = given.node(idle_long(n));
    }
    let spec = JobSpec { needs: model::Needs { vcpus: 2, ..model::Needs::default() }, ..JobSpec::running(["true"]) };
    let mut job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap().summary;
    job.tries.lost_on = vec![fixtures::node_id(0), fixtures::node_id(1)];
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
    given.seen.jobs[0].tries.lost_on.push(fixtures::node_id(2));
    assert_eq!(placed_on(&given).len(), 1, "there is no other one");
    given.seen.jobs[0].tries.lost_on.clear();
    assert_eq!(placed_on(&given), [fixtures::node_id(0)]);
}
