//! The loop that compares orders with this machine: reads the state of allocs, and starts and stops them.
//!
//! New orders and ends wake it. Each round looks at everything, so a wake-up that is lost costs at most [`INTERVAL`].
//!
//! Guarantees: a step that failed is tried again in the next round.
//! Does not: call the control plane; it wakes the loops that do.

use super::runner::Runner;
use crate::contact::shared_node::SharedNode;
use crate::machine::guard;
use crate::protocol::{AllocProgress, MachineTask, Node, Observed};
use crate::runtime::TIMEOUT;
use model::AllocId;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

/// The time between two rounds, if nothing wakes the loop.
pub const INTERVAL: Duration = Duration::from_millis(500);

/// The time beyond its kill timeout that an alloc may take to end, when all allocs must end.
const STOP_ALL_GRACE: Duration = Duration::from_secs(10);

/// Runs rounds without end, at least one in each `interval`. Give it a task of its own: each start waits for the disk. Stops all work if
/// the control plane has not answered for longer than `stop_after`.
pub async fn run(state: Arc<SharedNode>, runner: Arc<Mutex<Runner>>, interval: Duration, stop_after: Option<Duration>) {
    loop {
        run_once(&state, &mut *runner.lock().await).await;
        if let Some(limit) = stop_after
            && state.last_answer_at().elapsed() > limit
        {
            let why = format!("stopped: no answer from the control plane for {} s", limit.as_secs_f64());
            let allocs = state.stop_all(&why).await;
            if allocs > 0 {
                tracing::error!(allocs, "{why}");
            }
        }
        let _not_woken = timeout(interval, state.reconcile_now.notified()).await;
    }
}

pub async fn run_once(state: &SharedNode, runner: &mut Runner) {
    let mut unended = BTreeSet::new();
    for id in state.read(Node::unfinished) {
        match runner.observe(id).await {
            Ok(seen) => {
                let is_running = matches!(seen, Observed::Preparing | Observed::Running);
                unended.extend((is_running && runner.dir(id).is_unended()).then_some(id));
                let reader = &mut runner.progress;
                let progress = state.read(|n| {
                    let alloc = n.durable.allocs.get(&id).filter(|_| is_running)?;
                    reader.sample(&alloc.order, Instant::now())
                });
                if let Some(taken) = state.read(|n| n.taken_checkpoint(id)) {
                    runner.dir(id).note_taken_checkpoint(&taken);
                }
                // One report tells both.
                note_progress(state, id, progress).await;
                apply(state, id, seen).await;
            }
            Err(error) => tracing::warn!(alloc_id = %id, %error, "cannot read the directory of the alloc"),
        }
    }
    if state.read(|n| n.unended != unended) {
        state.update_and_beat(|n| n.unended = unended).await;
    }
    // This comes before the stops, so that allocs that end now store their checkpoints.
    for id in state.read(Node::leaving) {
        if let Err(error) = runner.dir(id).leave() {
            tracing::warn!(alloc_id = %id, %error, "the checkpoint of the alloc is not stored");
        }
    }
    guard::note(state, runner.refusal(), |refuses| &mut refuses.starts).await;
    runner.know(state.read(|n| n.gpus.clone()));
    let refuses = state.read(|n| n.refuses.reason().map(str::to_owned));
    for work in state.read(Node::work) {
        match work {
            MachineTask::Run(order) => runner.start(&order, refuses.as_deref()),
            MachineTask::Stop(order, why) => runner.stop(&order, &why),
        }
    }
    // A start that has just failed may say something about the node. The node must know that before it gets more work.
    guard::note(state, runner.refusal(), |refuses| &mut refuses.starts).await;
    runner.forget_all_but(|id| state.read(|n| n.durable.allocs.contains_key(&id)));
}

async fn apply(state: &SharedNode, id: AllocId, seen: Observed) {
    if state.read(|n| *n.observed(id) == seen) {
        return;
    }
    let ended = matches!(seen, Observed::Ended(_));
    if state.update_or_log(|n| n.observe(id, seen)).await.is_some() {
        state.allocs_changed.notify_one();
    }
    if ended {
        tracing::info!(alloc_id = %id, "the alloc ended");
        state.handles_changed.notify_one();
        state.store_now.notify_one();
    }
}

/// Notes the progress of an alloc, for the next report.
async fn note_progress(state: &SharedNode, id: AllocId, progress: Option<AllocProgress>) {
    let Some(progress) = progress.filter(|progress| state.read(|n| n.has_news(id, progress))) else { return };
    if state.update_or_log(|n| n.observe_progress(id, progress)).await.is_some() {
        state.allocs_changed.notify_one();
    }
}

/// Stops every alloc and waits until all have ended. Each gets TERM, and KILL after its kill timeout.
pub async fn stop_everything(state: &SharedNode, runner: &mut Runner, why: &str) {
    state.stop_all(why).await;
    let longest = state.read(|n| n.durable.allocs.values().map(|a| a.order.failure_policy.stop_time().as_ms()).max());
    let longest = Duration::from_millis(u64::try_from(longest.unwrap_or(0)).unwrap_or(0).min(86_400_000));
    // The client of a container ends late, and the container is removed then.
    let of_containers = if runner.settings.containers.listed().is_empty() { Duration::ZERO } else { 2 * TIMEOUT };
    let deadline = Instant::now() + longest + of_containers + STOP_ALL_GRACE;
    loop {
        run_once(state, runner).await;
        let left = state.read(Node::unfinished);
        if left.is_empty() {
            return;
        }
        if Instant::now() > deadline {
            tracing::error!(left = left.len(), "these allocs do not end in time: killing them");
            for id in left {
                runner.kill(id).await;
            }
            return;
        }
        sleep(INTERVAL / 10).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::data_dir::DataDir;
    use crate::protocol::testing::{alloc_id, durable, order, runner};
    use crate::protocol::{Identity, LocalAlloc};
    use crate::work::alloc_dir::ExitRecord;
    use model::EndCause;
    use tokio::task::{JoinSet, yield_now};

    #[tokio::test]
    async fn an_order_and_an_end_wake_the_loop_and_without_that_it_looks_a_little_later() {
        for (interval, is_woken) in [(Duration::from_secs(3600), true), (Duration::from_millis(10), false)] {
            let root = tempfile::tempdir().unwrap();
            let data = DataDir::open(root.path()).unwrap();
            let runner = runner(&data, "/bin/true".into());
            let dir = runner.dir(alloc_id(0));
            let node = Node::new(Identity { instance_id: "i-1".into(), address: None }, durable());
            let state = Arc::new(SharedNode::new(node, data));
            let mut rounds = JoinSet::new();
            rounds.spawn(run(Arc::clone(&state), Arc::new(Mutex::new(runner)), interval, None));
            for _ in 0..100 {
                // The first round ends during these yields.
                yield_now().await;
            }
            let new = LocalAlloc::new(order(0, 1));
            state.update(|n| n.durable.allocs.insert(alloc_id(0), new)).await.unwrap();
            let is_there = async {
                while !dir.path().exists() {
                    yield_now().await;
                }
            };
            timeout(Duration::from_secs(30), is_there).await.expect("the order wakes the loop");
            dir.write_exit_record(&ExitRecord::of(EndCause::Exited { code: 0 })).unwrap();
            if is_woken {
                state.reconcile_now.notify_one();
            }
            timeout(Duration::from_secs(30), state.allocs_changed.notified()).await.expect("the end is seen");
        }
    }
}
