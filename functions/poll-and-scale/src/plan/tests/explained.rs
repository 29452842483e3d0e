//! Tests of the plan: why a job waits, why an idle node stays, and which limit applies.

use super::*;
use model::control::{EntryRow, LaunchWait};
use model::node::Idleness;
use model::{Class, ControlKey, Offering, Reach, Scope};

impl Given {
    /// With an entry of the control table that applies until second `until`.
    fn entry(mut self, key: ControlKey, until: i64) -> Self {
        let wait = LaunchWait { until_at: Some(at(until)), ..LaunchWait::default() };
        self.seen.control.put(EntryRow::<LaunchWait>::new(&key).with(wait));
        self
    }

    fn waits(&self, now: Time) -> Vec<String> {
        let id = |n: u32| fixtures::job_id(n).to_string();
        let lines = plan(&self.seen, now).explained.waiting;
        let lines = lines.iter().map(model::explain::Waiting::line);
        // The ids are long, and the numbers of the jobs say the same.
        lines.map(|line| (0..20).fold(line, |l, n| l.replace(&id(n), &n.to_string()))).collect()
    }

    fn stays(&self, now: Time) -> Vec<String> {
        let staying = plan(&self.seen, now).explained.staying;
        staying.iter().map(|(node_id, why)| format!("{}: {why}", node_id.slot())).collect()
    }

    fn limits(&self, now: Time) -> Vec<String> {
        plan(&self.seen, now).explained.limits.iter().map(ToString::to_string).collect()
    }

    fn wanted(&self, now: Time) -> Vec<(String, u32)> {
        plan(&self.seen, now).wanted.into_iter().collect()
    }
}

/// A policy with the size `small` alone.
fn only_small(more: Value) -> Value {
    let mut small = json!({"name": "small", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192,
        "price_per_hour": 0.1});
    for (name, value) in more.as_object().unwrap() {
        small[name] = value.clone();
    }
    json!([small])
}

#[test]
fn many_alike_jobs_wait_for_one_reason_in_one_line() {
    let mut given = given(json!({"nodes": {"max": 2}})).working(0).working(1);
    for n in 5..12 {
        given = given.job(n, whole);
    }
    assert_eq!(given.waits(at(100)), ["7 jobs like 5 wait: all 2 nodes that nodes.max allows are there"]);
    assert_eq!(given.limits(at(100)), ["all 2 nodes that nodes.max allows are there"]);
}

#[test]
fn every_limit_on_launches_is_named_by_the_job_that_waits_and_by_the_plan() {
    let busy = |policy: Value| given(policy).working(0).job(5, whole);
    let small = only_small(json!({}));
    let offering = || Offering { market: model::Market::OnDemand, ..fixtures::offering() };
    let refused = |mut given: Given| {
        let key = ControlKey::Limit(Class::Wrong, Scope::of(Reach::Request, &offering()));
        let wait = LaunchWait { policy_version: Some(1), until_at: Some(at(3700)), ..LaunchWait::default() };
        given.seen.control.put(EntryRow::<LaunchWait>::new(&key).with(wait));
        given
    };
    let mut paused = busy(json!({"size": small.clone()}));
    paused.seen.control.policy = Some(model::control::PolicyRow {
        version: model::Version::UNWRITTEN.next(),
        ..model::control::PolicyRow::of_policy(&paused.seen.policy)
    });
    let cases = [
        (busy(json!({"nodes": {"max": 0}})), "nodes.max is 0, which pauses the cluster"),
        (busy(json!({"nodes": {"max": 1}})), "the 1 node that nodes.max allows is there"),
        (
            busy(json!({"size": small.clone(), "nodes": {"max_price_per_hour": 0.15}})),
            "one more node costs $0.10 an hour, the nodes cost $0.10, and nodes.max_price_per_hour is $0.15",
        ),
        (
            busy(json!({"size": only_small(json!({"max": 1}))})),
            "the 1 node that the maximum of size small allows is there",
        ),
        (
            busy(json!({})).entry(ControlKey::Limit(Class::Quota, Scope::ACCOUNT), 160),
            "launching pauses for 1 min: a limit of the account is reached",
        ),
        (
            busy(json!({})).entry(ControlKey::Limit(Class::Throttled, Scope::ACCOUNT), 110),
            "launching pauses for 10 s: EC2 throttles launches",
        ),
        (
            busy(json!({})).entry(ControlKey::Limit(Class::Refused, Scope::ACCOUNT), 160),
            "launching pauses for 1 min: EC2 refuses every launch",
        ),
        (busy(json!({})).entry(ControlKey::FailedStarts, 160), "launching pauses for 1 min: 0 starts failed in a row"),
        (
            busy(json!({"size": small.clone()})).entry(ControlKey::shortage_of(&offering()), 280),
            "EC2 is short of on_demand m7a.large any: the next try is in 3 min",
        ),
        (refused(paused), "EC2 refuses launches with size small on_demand any: the next try is in 1 h"),
    ];
    for (given, why) in cases {
        assert_eq!(given.waits(at(100)), [format!("job 5 waits: {why}")]);
        assert_eq!(given.limits(at(100)), [why]);
        assert_eq!(given.count(at(100), "launch"), 0, "{why}");
    }
}

#[test]
fn after_a_second_launch_without_an_answer_the_job_goes_another_way() {
    let sizes = json!([
        {"name": "small", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.1},
        {"name": "other", "instance_type": "c7a.large", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.2},
    ]);
    let launching = given(json!({"size": sizes})).node(fixtures::assigned(0)).job(5, whole);
    let key = ControlKey::Limit(Class::Unanswered, Scope::of(Reach::Offering, &fixtures::offering()));
    let limited = |wait_s| {
        let mut given = launching.clone().entry(key.clone(), 260);
        let wait = LaunchWait { until_at: Some(at(260)), wait_s: Some(wait_s), ..LaunchWait::default() };
        given.seen.control.put(EntryRow::<LaunchWait>::new(&key).with(wait));
        given
    };
    assert_eq!(limited(60).count(at(200), "launch"), 0, "its own launch is repeated after the wait");
    let again = limited(120);
    assert_eq!(again.count(at(200), "launch"), 1);
    assert_eq!(again.wanted(at(200)), [("other".to_owned(), 1)]);
    assert_eq!(again.count(at(200), "relaunch"), 0);
    assert_eq!(again.count(at(30), "launch"), 1, "also while the claim of the second call lasts");
    assert_eq!(again.count(at(261), "launch"), 0, "the wait is over, and the launch is repeated");
}

#[test]
fn what_a_pause_keeps_from_being_launched_is_still_wanted() {
    let given = given(json!({"nodes": {"max": 4}})).working(0).job(5, whole).job(6, whole);
    let one = vec![("small".to_owned(), 1)];
    let three = vec![("small".to_owned(), 3)];
    assert_eq!((given.count(at(100), "launch"), given.wanted(at(100))), (2, three.clone()));
    let paused = given.clone().entry(ControlKey::Limit(Class::Quota, Scope::ACCOUNT), 160);
    assert_eq!((paused.count(at(100), "launch"), paused.wanted(at(100))), (0, three));
    // One of the three is ready.
    assert_eq!((plan(&given.seen, at(100)).unready, plan(&paused.seen, at(100)).unready), (2, 2));
    // What a cap does not allow is not wanted.
    let mut capped = given.entry(ControlKey::Limit(Class::Quota, Scope::ACCOUNT), 160);
    capped.seen.policy.nodes.max = 1;
    assert_eq!((capped.wanted(at(100)), plan(&capped.seen, at(100)).unready), (one, 0));
}

#[test]
fn jobs_say_which_nodes_they_wait_for() {
    let booting = given(json!({})).node(fixtures::bound(0)).job(5, whole).job(6, whole);
    assert_eq!(
        booting.waits(at(100)),
        ["job 5 waits: it waits until slot 0 can take work", "job 6 waits: this run launches for it: slot 1"]
    );
    assert_eq!(plan(&booting.seen, at(100)).unready, 2, "one boots, one is launched");
    let row = plan(&booting.seen, at(100)).actions[0].row();
    assert_eq!((row.action, row.job_id), (ActionName::Launch, Some(fixtures::job_id(6))), "a launch names its job");
    let few = given(json!({"launch": {"max_per_run": 1}})).job(5, whole).job(6, whole);
    let later = "launch.max_per_run is 1: a later run makes the other launches";
    assert_eq!(
        few.waits(at(100)),
        ["job 5 waits: this run launches for it: slot 0".to_owned(), format!("job 6 waits: {later}")]
    );
    assert_eq!(few.limits(at(100)), [later]);
}

#[test]
fn a_job_says_which_earlier_job_the_room_is_kept_for() {
    let given = given(json!({"nodes": {"max": 2}}))
        .working(0)
        .node(fixtures::ready(1))
        .job(5, |s| {
            whole(s);
            s.needs.nodes = 2;
        })
        .job(6, whole);
    assert_eq!(
        given.waits(at(100)),
        [
            "job 5 waits: it keeps 1 of the 2 nodes that it needs; all 2 nodes that nodes.max allows are there",
            "job 6 waits: all 2 nodes that nodes.max allows are there",
        ]
    );
    assert_eq!(
        given.stays(at(100)),
        ["1: reserved for job 01MCC5RM01000000000000000A"]
            .map(|s| { s.replace("01MCC5RM01000000000000000A", &fixtures::job_id(5).to_string()) })
    );
}

#[test]
fn room_below_a_cap_is_kept_for_the_first_job_that_waits() {
    let gang = |s: &mut JobSpec| {
        whole(s);
        s.needs.nodes = 2;
    };
    let kept = "job 6 waits: job 5 comes first, and the rest of the room is kept for it".to_owned();
    for policy in [
        json!({"nodes": {"max": 3}}),
        json!({"size": only_small(json!({"max": 3}))}),
        json!({"size": only_small(json!({})), "nodes": {"max_price_per_hour": 0.3}}),
    ] {
        let given = given(policy).working(0).working(1).job(5, gang).job(6, whole);
        let waits = given.waits(at(100));
        assert_eq!((waits.len(), waits.get(1)), (2, Some(&kept)), "{waits:?}");
        assert_eq!(given.count(at(100), "launch"), 0);
        // Without the earlier job, there is room.
        let mut alone = given.clone();
        alone.seen.jobs.retain(|j| j.job_id == fixtures::job_id(6) || j.job_id <= fixtures::job_id(1));
        assert_eq!(alone.count(at(100), "launch"), 1);
    }
}

#[test]
fn after_a_shortage_the_plan_itself_makes_as_few_launches_as_the_run_does() {
    let mut given = given(json!({"size": only_small(json!({}))})).job(5, whole).job(6, whole).job(7, whole);
    let key = ControlKey::shortage_of(&Offering { market: model::Market::OnDemand, ..fixtures::offering() });
    let wait = |count| LaunchWait { until_at: Some(at(90)), wait_s: Some(180), count, ..LaunchWait::default() };
    let entry = |count| EntryRow::<LaunchWait>::new(&key).with(wait(count));
    given.seen.control.put(entry(None));
    assert_eq!(given.count(at(100), "launch"), 1);
    let spent = "EC2 was short of on_demand m7a.large: attempts in this run are limited to 1, and each success doubles the limit";
    assert_eq!(given.waits(at(100))[1..], [format!("2 jobs like 6 wait: {spent}")]);
    assert_eq!(given.limits(at(100)), [spent]);
    assert_eq!(given.wanted(at(100)), [("small".to_owned(), 3)]);
    given.seen.control.put(entry(Some(2)));
    assert_eq!(given.count(at(100), "launch"), 2);
    // The members of a job are one call, and so one attempt. Where each node has a call of its own, they are many.
    let gang = |s: &mut JobSpec| {
        whole(s);
        s.needs.nodes = 4;
    };
    given.seen.jobs.clear();
    let mut gangs = given.job(5, gang).job(6, gang).job(7, gang);
    assert_eq!(gangs.count(at(100), "launch"), 8);
    gangs.seen.policy.launch.max_per_call = 1;
    assert_eq!(gangs.count(at(100), "launch"), 0);
}

#[test]
fn a_copy_that_fits_nowhere_says_why_its_job_waits_for_it() {
    let mut given = given(json!({})).working(0);
    given.seen.nodes[0] = given.seen.nodes[0].expire_lease(NodeStatus::Disconnected, at(151), "silent").unwrap();
    (given.seen.allocs[0].client, given.seen.allocs[0].unknown_since_at) = (ClientStatus::Unknown, Some(at(160)));
    given.seen.allocs[0].failure_policy.replace = true;
    given.seen.jobs[0].needs.vcpus = 1000;
    let waits = given.waits(at(200));
    assert!(waits.len() == 1 && waits[0].contains("wants a copy") && waits[0].contains("no size fits"), "{waits:?}");
}

#[test]
fn every_idle_node_that_stays_says_why() {
    let mut stopped = given(json!({})).node(idle_long(0));
    stopped.seen.instances[0].state = InstanceState::Stopped;
    assert_eq!(stopped.stays(at(900)), ["0: EC2 lists its instance as stopped"]);
    let held = idle_long(0).with_intent(Intent::Hold, None, at(95)).unwrap();
    assert_eq!(
        given(json!({})).node(held).stays(at(900)),
        ["0: an operator holds it: `nodekeeper resume 0` ends that"]
    );
    let minimum = given(json!({"nodes": {"min": 1}})).node(idle_long(0));
    assert_eq!(minimum.stays(at(900)), ["0: kept for the minimum, which is 1 now"]);
    let window = given(json!({"shutdown": {"windows_min": [54, 6]}})).node(idle_long(0));
    assert_eq!(window.stays(at(2521)), ["0: its shutdown window opens in 12 min"]);
    assert_eq!(window.stays(at(3241)), Vec::<String>::new());
    assert_eq!(window.count(at(3241), "shut_down"), 1);
    let once = fixtures::ready(0).counted_by_run(Idleness::Idle, at(80)).unwrap();
    let unconfirmed = given(json!({})).node(once);
    assert_eq!(unconfirmed.stays(at(100)), ["0: idle, seen by 2 of the 2 runs that idle.confirmations asks for"]);
    let young = given(json!({})).node(idle_long(0));
    assert_eq!(young.stays(at(100)), ["0: idle, and idle.timeout_s is over in 1 min 20 s"]);
    let dead = given(json!({})).node(down(0));
    assert_eq!(dead.stays(at(260)), ["0: down, and shutdown.down_after_s is over in 6 min 40 s"]);
    // A node that gets work in this run is not explained: its action says what happens.
    assert_eq!(young.clone().job(5, whole).stays(at(100)), Vec::<String>::new());
    assert_eq!(young.job(5, whole).count(at(100), "place"), 1);
}
