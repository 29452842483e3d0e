//! Tests of the plan: GPUs, which are packed as vCPUs are, and which machine work may use.

use super::*;
use model::{Arch, MachineKind, MachineNeed};

fn sizes() -> Value {
    json!([
        {"name": "small", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.1},
        {"name": "four", "instance_type": "g5.12xlarge", "vcpus": 48, "memory_mib": 196608, "gpus": 4, "gpu_type": "a10g",
         "gpu_memory_gib": 24, "labels": ["nvme"], "price_per_hour": 4}])
}

fn one_gpu(spec: &mut JobSpec) {
    spec.needs.gpus = 1;
}

/// A ready node of the size `four` with this many usable GPUs.
fn four(n: u32, usable: u32) -> NodeRecord {
    let mut record = idle_long(n);
    if let NodeState::InUse(node) = &mut record.state {
        let offering = &mut node.life.offering;
        (offering.size, offering.instance_type) = ("four".into(), "g5.12xlarge".into());
        offering.capacity = Capacity { vcpus: 48, memory_mib: 196_608, scratch_gib: 0, gpus: 4 };
        offering.price_per_hour = Usd::from_micros(4_000_000);
        offering.kind = MachineKind {
            gpu_type: Some("a10g".into()),
            gpu_memory_gib: 24,
            labels: ["nvme".to_owned()].into(),
            ..MachineKind::default()
        };
        node.contact.health.gpus_usable = usable;
    }
    record
}

fn launches(given: &Given) -> Vec<String> {
    given.actions(at(100)).into_iter().filter(|action| action.starts_with("launch")).collect()
}

/// Why jobs are rejected.
fn rejected(given: &Given) -> Vec<String> {
    let plan = plan(&given.seen, at(100));
    let rejected = plan.actions.iter().filter(|planned| matches!(planned.action, Action::Reject(_)));
    rejected.map(|planned| planned.reason.to_string()).collect()
}

#[test]
fn four_jobs_with_a_gpu_each_share_one_machine_with_four() {
    let jobs = |policy: Value, jobs: u32, change: fn(&mut JobSpec)| {
        (5..5 + jobs).fold(given(policy), |given, n| given.job(n, change))
    };
    let policy = |price: f64| json!({"size": sizes(), "nodes": {"max_price_per_hour": price}});
    assert_eq!(launches(&jobs(policy(0.0), 4, one_gpu)), ["launch slot#0 four"]);
    assert_eq!(launches(&jobs(policy(0.0), 5, one_gpu)), ["launch slot#0 four", "launch slot#1 four"]);
    // The price of one machine is enough for four jobs, and not for the fifth.
    assert_eq!(launches(&jobs(policy(4.0), 4, one_gpu)).len(), 1);
    let fifth = plan(&jobs(policy(4.0), 5, one_gpu).seen, at(100));
    assert_eq!(fifth.wanted, [("four".to_owned(), 1)].into());
    // A job has a machine alone only if it is exclusive.
    let alone = |spec: &mut JobSpec| (spec.needs.gpus, spec.needs.exclusive) = (1, true);
    assert_eq!(launches(&jobs(policy(0.0), 4, alone)).len(), 4);
    // The members of one job get different machines.
    let two = |spec: &mut JobSpec| (spec.needs.gpus, spec.needs.nodes) = (2, 2);
    assert_eq!(launches(&jobs(policy(0.0), 2, two)).len(), 2);
}

#[test]
fn work_is_placed_on_the_gpus_that_can_be_used_beside_work_that_is_there() {
    let policy = || json!({"size": sizes()});
    let (placed, launched) = (|given: &Given| given.count(at(100), "place"), |given: &Given| launches(given).len());
    let jobs = |usable: u32, jobs: u32| {
        (5..5 + jobs).fold(given(policy()).node(four(0, usable)), |given, n| given.job(n, one_gpu))
    };
    for (usable, of, places, more) in [(4, 4, 4, 0), (3, 4, 3, 1), (1, 2, 1, 1), (9, 5, 4, 1)] {
        let given = jobs(usable, of);
        assert_eq!((placed(&given), launched(&given)), (places, more), "{usable} usable, {of} jobs");
    }
    // The alloc that runs there keeps its three GPUs.
    let mut given = given(policy()).node(four(1, 4));
    let job = Job::submit(
        fixtures::job_id(1),
        {
            let mut spec = JobSpec::running(["true"]);
            spec.needs.gpus = 3;
            spec
        },
        at(0),
    )
    .unwrap();
    let alloc = Alloc::place(fixtures::alloc_id(1), &job, &given.seen.nodes[0], at(70)).unwrap();
    given.seen.nodes[0] = given.seen.nodes[0].with_alloc(alloc.id(), at(70)).unwrap();
    given.seen.allocs.push(alloc.summary.clone());
    given.seen.jobs.push(job.with_placed(&[alloc.id()]).unwrap().summary);
    assert_eq!(placed(&given.clone().job(5, one_gpu)), 1);
    let two = given.job(5, |spec| spec.needs.gpus = 2);
    assert_eq!((placed(&two), launched(&two)), (0, 1));
}

#[test]
fn a_machine_that_can_use_none_of_its_gpus_is_a_failed_start() {
    let given = given(json!({"size": sizes()})).node(four(0, 0)).job(5, one_gpu).job(6, |_| ());
    let actions = given.actions(at(100));
    assert!(!actions.iter().any(|action| action.starts_with("place")), "{actions:?}");
    assert_eq!(launches(&given), ["launch slot#1 four"], "the other job fits on it too");
    let late = plan(&given.seen, at(900));
    let shut_down = late.actions.iter().find_map(|planned| match &planned.action {
        Action::ShutDown { because, .. } => Some((*because, planned.reason.to_string())),
        _ => None,
    });
    let (because, why) = shut_down.unwrap();
    assert!(because == ShutdownBasis::FailedStart && why.contains("none of its GPUs can be used"), "{why}");
}

/// A node whose driver shows no GPU, or not all of them: what a run does with it and for the job that needs them, by the time since
/// its first heartbeat (at 60 s; `boot.timeout_s` is 600 s).
#[test]
fn a_node_whose_gpus_are_awaited_boots_and_nothing_is_launched_beside_it() {
    for (usable, s, launched, ends) in [
        (0, 100, 0, false),
        (3, 100, 0, false),
        (4, 100, 0, false),
        (0, 659, 0, false),
        (0, 660, 1, true),
        (3, 660, 1, true),
    ] {
        let mut record = four(0, usable);
        if let NodeState::InUse(node) = &mut record.state {
            let contact = &mut node.contact;
            (contact.status, contact.never_ready) = (NodeStatus::Syncing, true);
            (contact.syncing_since_at, contact.lease_expires_at) = (Some(at(60)), at(5_000));
        }
        let policy = json!({"size": sizes(), "boot": {"timeout_s": 600}});
        let given = given(policy).node(record).job(5, |spec| spec.needs.gpus = 4);
        let plan = plan(&given.seen, at(s));
        let launches = plan.actions.iter().filter(|p| matches!(p.action, Action::Launch { .. })).count();
        let ended = plan.actions.iter().find_map(|p| match &p.action {
            Action::ShutDown { because, .. } => Some((*because, p.reason.to_string())),
            _ => None,
        });
        assert_eq!((launches, ended.is_some()), (launched, ends), "{usable} usable at {s} s");
        if let Some((because, why)) = ended {
            let says = format!("boot.timeout_s is over, and {usable} of its 4 GPUs can be used");
            assert!(because == ShutdownBasis::FailedStart && why.starts_with(&says), "{why}");
        }
    }
}

#[test]
fn work_without_gpus_leaves_the_machines_that_have_some_to_those_that_need_them() {
    // The machine with GPUs is the fuller one.
    let mut full = four(0, 4);
    if let NodeState::InUse(node) = &mut full.state {
        node.life.offering.capacity.vcpus = 1;
    }
    let given = given(json!({"size": sizes()})).node(full).node(idle_long(1)).job(5, |_| ());
    let on = plan(&given.seen, at(100)).actions.into_iter().find_map(|planned| match planned.action {
        Action::Place { on, .. } => Some(on[0].1),
        _ => None,
    });
    assert_eq!(on, Some(fixtures::node_id(1)));
}

/// The architecture that jobs ask for, and the sizes of the policy × which size is launched, if any.
#[test]
fn a_job_runs_on_the_architecture_that_it_names_or_on_the_default_of_the_policy() {
    let size = |name: &str, kind: &str, arch: &str, price: f64| json!({"name": name, "instance_type": kind, "vcpus": 2, "memory_mib": 8192, "arch": arch, "price_per_hour": price});
    let (intel, arm) = (|price| size("intel", "m7a.large", "x86_64", price), size("arm", "m7g.large", "arm64", 0.08));
    let policies = [json!([intel(0.1)]), json!([arm]), json!([intel(0.1), arm])];
    for (asked, launched) in [
        (None, [Some("intel"), Some("arm"), Some("intel")]),
        (Some(Arch::X86_64), [Some("intel"), None, Some("intel")]),
        (Some(Arch::Arm64), [None, Some("arm"), Some("arm")]),
    ] {
        for (sizes, wanted) in policies.iter().zip(launched) {
            let given = given(json!({"size": sizes})).job(5, |spec| spec.needs.machine.arch = asked);
            let found = launches(&given);
            let found = found.first().and_then(|launch| launch.split(' ').next_back());
            assert_eq!(found, wanted, "{asked:?} with {sizes}");
            assert_eq!(rejected(&given).len(), usize::from(wanted.is_none()));
        }
    }
    // The job does not use a ready node of the other architecture.
    let mut node = idle_long(0);
    if let NodeState::InUse(node) = &mut node.state {
        node.life.offering.kind.arch = Arch::Arm64;
        node.life.offering.size = "arm".into();
    }
    let there = given(json!({"size": policies[2]})).node(node);
    assert_eq!(there.clone().job(5, |_| ()).count(at(100), "place"), 0);
    assert_eq!(there.job(5, |spec| spec.needs.machine.arch = Some(Arch::Arm64)).count(at(100), "place"), 1);
    // Only the other one is large enough.
    let large = json!([intel(0.1), size("arm", "m7g.large", "arm64", 1.0)]);
    let mut large = large;
    large[1]["vcpus"] = json!(64);
    let given = given(json!({"size": large})).job(5, |spec| spec.needs.vcpus = 64);
    let why = "no size fits: it needs 64 vCPU with x86_64, because it names no \
               architecture; 0.95 of a size's memory is usable";
    assert_eq!(rejected(&given), [why]);
}

#[test]
fn what_no_size_is_leads_to_a_rejection_that_says_what_was_asked_for() {
    let asks = |machine: MachineNeed, gpus: u32| {
        given(json!({"size": sizes()})).job(5, |spec| (spec.needs.machine, spec.needs.gpus) = (machine, gpus))
    };
    let any = || MachineNeed::default();
    let label = |label: &str| [label.to_owned()].into();
    for (machine, gpus) in [
        (MachineNeed { gpu_type: Some("A10G".into()), ..any() }, 1),
        (MachineNeed { gpu_memory_gib: 24, ..any() }, 4),
        (MachineNeed { require: label("nvme"), ..any() }, 0),
    ] {
        assert_eq!(launches(&asks(machine.clone(), gpus)), ["launch slot#0 four"], "{machine:?}");
        let there = asks(machine, gpus).node(four(0, 4));
        assert_eq!((there.count(at(100), "place"), launches(&there).len()), (1, 0));
    }
    for (machine, gpus, says) in [
        (MachineNeed { gpu_type: Some("h100".into()), ..any() }, 1, "1 GPU with GPUs of type h100;"),
        (MachineNeed { gpu_memory_gib: 80, ..any() }, 1, "with 80 GiB on each GPU;"),
        (MachineNeed { require: label("fast-net"), ..any() }, 0, "with label fast-net;"),
        (MachineNeed { arch: Some(Arch::Arm64), require: label("nvme"), ..any() }, 0, "with arm64, label nvme;"),
        (any(), 5, "5 GPU;"),
    ] {
        let why = rejected(&asks(machine, gpus));
        assert!(why.len() == 1 && why[0].contains(says), "{says}: {why:?}");
    }
}

#[test]
fn a_job_with_an_image_goes_only_where_containers_run() {
    let with_image = |spec: &mut JobSpec| spec.work.image = Some("alpine".into());
    let policy = |small: bool| {
        let mut sizes = sizes();
        sizes[0]["containers"] = json!(small);
        json!({"size": sizes})
    };
    // The node's record decides, and not the policy of today.
    let node = |containers: bool| {
        let mut record = idle_long(0);
        if let NodeState::InUse(node) = &mut record.state {
            node.life.offering.kind.containers = containers;
        }
        record
    };
    for (what, change, small, is_there, placed, launched) in [
        ("an image, on a node that runs it", with_image as fn(&mut JobSpec), false, true, 1, None),
        ("an image, beside a node that does not", with_image, true, false, 0, Some("launch slot#1 small")),
        ("an image, and the cheapest size does not", with_image, false, false, 0, Some("launch slot#1 four")),
        ("no image, on a node that runs none", |_| {}, false, false, 1, None),
    ] {
        let given = given(policy(small)).node(node(is_there)).job(5, change);
        assert_eq!(given.count(at(100), "place"), placed, "{what}");
        assert_eq!(launches(&given), launched.into_iter().collect::<Vec<_>>(), "{what}");
    }
    let mut none = policy(false);
    none["size"][1]["containers"] = json!(false);
    let why = rejected(&given(none).job(5, with_image));
    assert!(why.len() == 1 && why[0].contains(" with containers;"), "{why:?}");
}
