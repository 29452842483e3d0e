//! Old reads: a decision is not carried out if the rows that it was made from have changed since.

use crate::world::all_rows::AllRows;
use crate::world::{World, job, quick_policy, set_policy};
use model::functions::{CLEAN_STALE_RECORDS, POLL_AND_SCALE};
use model::wire::AllocUpdate;
use model::{
    ActionName, Alloc, AllocId, ClientStatus, LaunchRequest, NodeRecord, NodeStatus, Policy, ReportOutcome, fixtures,
};
use poll_and_scale::{Action, act, plan};
use runtime::answer::{ActionAnswer, ActionOutcome};
use runtime::observation::Observation;
use runtime::run::Run;
use serde_json::json;
use std::collections::BTreeSet;
use store::Retention;
use store::placing::{Placing, place};

/// A world with two nodes: one runs a job, the other is idle.
async fn running() -> (World, AllocId) {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 4, "min": 2});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    let mut spec = job(&["forever"]);
    (spec.needs.exclusive, spec.failure_policy.replace, spec.failure_policy.lost_after_s) = (true, true, 600);
    let id = world.submit(spec).await.summary.job_id;
    for _ in 0..40 {
        world.step().await;
        let allocs = world.look.live_allocs().await.unwrap();
        let nodes = world.look.nodes().await.unwrap();
        let ready = nodes.iter().filter(|n| n.status() == Some(NodeStatus::Ready)).count();
        if let [alloc] = allocs.as_slice()
            && alloc.client == ClientStatus::Running
            && ready == 2
        {
            return (world, alloc.alloc_id);
        }
    }
    panic!("{id} never ran beside an idle node")
}

impl World {
    async fn observe(&self) -> Observation {
        Observation::read(&self.look, &*self.cloud, self.now()).await.unwrap()
    }

    /// Acts on `seen`, as a run that read it would. Returns the outcome of each action.
    async fn act_on(&self, seen: &Observation) -> Vec<ActionAnswer> {
        let plan = plan(seen, self.now());
        let run = Run::new(POLL_AND_SCALE, &self.look, seen, self.clock());
        act::act(run, &*self.cloud, &self.settings, &plan).await
    }

    /// The jobs, allocs and nodes: the rows that a run may change.
    async fn rows(&self) -> (Vec<model::Job>, Vec<Alloc>, Vec<NodeRecord>) {
        let jobs = self.look.jobs().await.unwrap();
        let mut allocs = Vec::new();
        for job in &jobs {
            allocs.extend(self.look.allocs_of([job]).await.unwrap().rows);
        }
        (jobs, allocs, self.look.nodes().await.unwrap())
    }
}

fn outcome(answers: &[ActionAnswer], action: ActionName) -> ActionOutcome {
    let found: Vec<_> = answers.iter().filter(|a| a.action == action).collect();
    assert_eq!(found.len(), 1, "{answers:?}");
    found[0].outcome
}

#[tokio::test]
async fn an_alloc_on_a_node_that_a_scan_did_not_show_yet_is_not_lost() {
    let (world, _) = running().await;
    // The scan of the nodes is older than the launch. The index of the allocs is not.
    let mut seen = world.observe().await;
    seen.nodes.clear();
    let before = world.rows().await;
    assert_eq!(outcome(&world.act_on(&seen).await, ActionName::LoseAlloc), ActionOutcome::Conflict);
    assert_eq!(world.rows().await.1, before.1);
    assert_eq!(world.rows().await.0, before.0);
}

#[tokio::test]
async fn the_copy_that_stays_is_chosen_among_all_copies() {
    let (world, original) = running().await;
    let (look, now) = (&world.look, world.now());
    // The node is silent, a copy is placed, and then the node comes back.
    let alloc = look.alloc(original).await.unwrap().unwrap();
    let node = alloc.summary.node_id;
    let unknown = look.write(Some(&alloc), &alloc.unknown(now).unwrap(), Vec::new()).await.unwrap();
    let nodes = look.nodes().await.unwrap();
    let other = nodes.iter().find(|n| n.node_id().is_some_and(|id| id != node)).unwrap();
    let before = look.job(original.job_id).await.unwrap().unwrap();
    let keep = Retention::of(&world.policy);
    let placing = Placing { replaces: Some(&unknown), output: None, keep, now, only_if: None };
    place(look, &before, &[(0, other)], &placing).await.unwrap();
    let update = AllocUpdate {
        alloc_id: original,
        client: ClientStatus::Running,
        cause: None,
        phase: None,
        run: Default::default(),
    };
    let replaced = look.alloc(original).await.unwrap().unwrap();
    let ReportOutcome::Changed(back) = replaced.reported(&update, node, now) else {
        panic!("{replaced:?} is not back")
    };
    look.write(Some(&replaced), &*back, Vec::new()).await.unwrap();

    // A run reads the original as it is now, and everything else as it was before the copy.
    let mut seen = world.observe().await;
    seen.allocs.retain(|a| a.alloc_id == original);
    seen.jobs = vec![before.summary.clone()];
    seen.nodes = nodes;
    let planned = plan(&seen, now);
    let alone = Action::ResolveReconnect { keep: original, stop: Vec::new(), on: vec![node] };
    assert!(planned.actions.iter().any(|p| p.action == alone), "{planned:?}");
    let rows = world.rows().await;
    assert_eq!(outcome(&world.act_on(&seen).await, ActionName::ResolveReconnect), ActionOutcome::Conflict);
    assert_eq!(world.rows().await, rows);

    // A run that reads all rows as they are tells one of the copies to stop.
    let seen = world.observe().await;
    assert_eq!(outcome(&world.act_on(&seen).await, ActionName::ResolveReconnect), ActionOutcome::Done);
    let wanted = |a: &&Alloc| a.summary.desired == model::Desired::Run;
    assert_eq!(world.rows().await.1.iter().filter(wanted).count(), 1);
}

#[tokio::test]
async fn a_job_that_the_index_shows_as_it_was_is_neither_placed_again_nor_are_its_allocs_stopped() {
    let (world, alloc) = running().await;
    // The index of the jobs lags: it shows the job as queued, and its alloc as unwanted.
    let mut behind = world.observe().await;
    for job in &mut behind.jobs {
        (job.state, job.version) = (model::JobState::Queued, model::Version::UNWRITTEN);
        job.allocs.clear();
    }
    let stop = Action::StopAlloc(alloc, world.look.alloc(alloc).await.unwrap().unwrap().summary.node_id);
    let planned = plan(&behind, world.now());
    assert!(planned.actions.iter().any(|p| p.action == stop), "{planned:?}");
    assert!(planned.actions.iter().any(|p| matches!(p.action, Action::Place { .. })), "{planned:?}");
    let rows = world.rows().await;
    let answers = world.act_on(&behind).await;
    assert_eq!(outcome(&answers, ActionName::StopAlloc), ActionOutcome::Conflict);
    assert_eq!(world.rows().await.1, rows.1);
}

/// The queue is read before the nodes. A run that overlaps placed the job between the two reads.
#[tokio::test]
async fn no_node_is_launched_for_a_job_that_was_placed_meanwhile() {
    let (world, alloc) = running().await;
    let mut behind = world.observe().await;
    behind.policy.nodes.min = 0;
    let job = &mut behind.jobs[0];
    (job.state, job.version) = (model::JobState::Queued, model::Version::UNWRITTEN);
    job.allocs.clear();
    for node in &mut behind.nodes {
        let model::NodeState::InUse(state) = &mut node.state else { panic!("{node:?} is not in use") };
        if !state.life.allocs.contains(&alloc) {
            state.life.intent = model::Intent::Drain;
        }
    }
    let launches = |p: &poll_and_scale::PlannedAction| matches!(p.action, Action::Launch { job_id: Some(_), .. });
    let planned = plan(&behind, world.now());
    assert!(planned.actions.iter().any(launches), "{planned:?}");
    let rows = world.rows().await;
    assert_eq!(outcome(&world.act_on(&behind).await, ActionName::Launch), ActionOutcome::Conflict);
    assert_eq!(world.rows().await.2.len(), rows.2.len());
}

/// Many instances belong to nobody. One only looks orphaned, because the scan of the records lags.
#[tokio::test]
async fn many_orphans_are_terminated_in_one_call_and_an_instance_that_has_a_record_is_not() {
    let (mut world, alloc) = running().await;
    let mut policy = quick_policy();
    (policy["nodes"], policy["stale"]["orphan_brake_min"]) = (json!({"max": 4, "min": 2}), json!(1000));
    set_policy(&world.look, &Policy::from_json(&policy).unwrap()).await;
    let node_id = world.look.alloc(alloc).await.unwrap().unwrap().summary.node_id;
    let theirs = world.record(node_id).await.life().unwrap().instance_id.clone().unwrap();
    let mut orphans = BTreeSet::new();
    for n in 10..40 {
        let request =
            LaunchRequest::render(&world.settings, &world.policy, fixtures::node_id(n), &[fixtures::offering()]);
        orphans
            .insert(world.cloud.launch(&request, &format!("token-{n}")).await.unwrap().instances.remove(0).instance_id);
    }
    world.machines();
    world.pass(1000);
    let mut behind = world.observe().await;
    behind.nodes.retain(|n| n.node_id() != Some(node_id));
    let plan = clean_stale_records::plan(&behind, world.now());
    let before = world.switch.log().len();
    let run = Run::new(CLEAN_STALE_RECORDS, &world.store, &behind, world.clock());
    let answers = clean_stale_records::act::act(run, &*world.cloud, &plan).await;
    let of_orphans = answers.iter().filter(|a| a.action == ActionName::TerminateOrphan);
    let outcomes: Vec<_> = of_orphans.map(|a| (a.outcome, a.subject == format!("slot#{}", node_id.slot()))).collect();
    assert_eq!(outcomes.iter().filter(|o| **o == (ActionOutcome::Done, false)).count(), 30, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|o| **o == (ActionOutcome::Conflict, true)).count(), 1, "{outcomes:?}");
    let log = world.switch.log().split_off(before);
    assert_eq!(log.iter().filter(|call| *call == "TerminateInstances").count(), 1, "{log:?}");
    let ended = |i: &ec2_stand_in::Ec2Instance| {
        matches!(i.state, ec2_stand_in::InstanceState::ShuttingDown | ec2_stand_in::InstanceState::Terminated)
    };
    let gone: BTreeSet<String> = world.ec2.instances().into_iter().filter(ended).map(|i| i.instance_id).collect();
    assert!(gone == orphans && !gone.contains(&theirs), "{gone:?}");
}
