//! Carrying out a plan: conditional writes and EC2 calls, one attempt for each action.
//!
//! Guarantees: nothing is decided here, except that an action whose condition fails is left to the next run
//! (`docs/rules.md#R2`).
//! Does not: repeat anything that failed (the next run does) or contain the loop (`runtime::run` does).

mod acting;
mod allocs;
mod announce;
mod bind;
mod calls;
mod dry_run;
mod launch;
mod launch_rate;
mod nodes;
mod reading;
mod start_failures;
mod terminate;
mod ways;

pub use dry_run::dry_run;

use crate::plan::{Action, FleetPlan, PlannedAction};
use acting::Acting;
use async_trait::async_trait;
use model::{Cloud, JobId, LaunchSettings, NodeStatus, Time};
use runtime::answer::{ActError, ActionAnswer, ActionResult};
use runtime::run::{CallStep, Perform, Run};
use std::sync::PoisonError;
use store::transactions;

/// Carries out a plan. The answers are in the order of the plan.
pub async fn act(run: Run<'_>, cloud: &dyn Cloud, settings: &LaunchSettings, plan: &FleetPlan) -> Vec<ActionAnswer> {
    let acting = Acting::new(run, cloud, settings);
    acting.note_good_start().await;
    acting.run.act(&acting, plan).await
}

const fn job_of(action: &Action) -> Option<JobId> {
    match action {
        Action::Place { job_id, .. }
        | Action::Advance { job_id, .. }
        | Action::Reject(job_id)
        | Action::Requeue(job_id) => Some(*job_id),
        Action::Replace { original, .. } => Some(original.job_id),
        _ => None,
    }
}

#[async_trait]
impl Perform<Action> for Acting<'_> {
    fn steps<'p>(&self, plan: &'p FleetPlan) -> Vec<CallStep<'p, Action>> {
        calls::steps(self, plan)
    }

    async fn perform(&self, call: &[&PlannedAction], now: Time) -> Result<Vec<ActionResult>, ActError> {
        // Without a planned termination, this is the call for the nodes that this run has shut down.
        let Some(planned) = call.first() else { return Ok(self.terminate(call).await) };
        let performed = self.attempt(planned, call, now).await;
        if let (Err(error), Some(job_id)) = (&performed, job_of(&planned.action))
            && error.is_unreadable("jobs")
        {
            self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).insert(job_id);
        }
        performed
    }

    async fn note(&self, plan: &FleetPlan) {
        self.quarantine_jobs().await;
        self.announce_news(plan).await;
        self.note_queue_place(plan).await;
        self.note_after_place().await;
        self.list_next(plan).await;
        self.note_totals().await;
        self.end_turn().await;
    }
}

impl Acting<'_> {
    /// Makes one attempt at a call, whose first action is `planned`.
    async fn attempt(
        &self,
        planned: &PlannedAction,
        call: &[&PlannedAction],
        now: Time,
    ) -> Result<Vec<ActionResult>, ActError> {
        let reason = &planned.reason.to_string();
        match &planned.action {
            Action::Launch { offerings, .. } => return self.launch(call, offerings).await,
            Action::Relaunch(_) => return Ok(self.relaunch(call).await),
            Action::Terminate { .. } => return Ok(self.terminate(call).await),
            Action::BindInstance { .. } => return Ok(self.bind_listed(call).await),
            Action::Abandon(node_id) => self.abandon(*node_id, reason).await?,
            Action::ShutDown { node_id, because } => self.shut_down(*node_id, *because, reason, now).await?,
            Action::Clean { node_id, unlisted } => self.clean_node(*node_id, unlisted.as_deref(), reason, now).await?,
            Action::Disconnect(node_id) => self.expire(*node_id, NodeStatus::Disconnected, reason).await?,
            Action::MarkDown(node_id) => self.expire(*node_id, NodeStatus::Down, reason).await?,
            Action::LoseAlloc(id, node_id) => self.lose(*id, *node_id, reason, now).await?,
            Action::ListAlloc(id, node_id) => self.list_again(*id, *node_id, now).await?,
            Action::UnknownAlloc(id, node_id) => self.unknown(*id, *node_id, now).await?,
            Action::StopAlloc(id, node_id) => self.stop(*id, *node_id).await?,
            Action::ResolveReconnect { keep, stop, .. } => self.resolve(*keep, stop).await?,
            Action::Place { job_id, on } => self.place(*job_id, on, now).await?,
            Action::Replace { original, on } => self.replace(*original, *on, now).await?,
            Action::Reject(job_id) => {
                transactions::reject_job(self.run.store, &self.job(*job_id).await?, reason, self.keep, now).await?;
            }
            Action::Advance { job_id, ended } => {
                transactions::advance_job(self.run.store, &self.job(*job_id).await?, ended, now).await?;
            }
            Action::Requeue(job_id) => {
                transactions::requeue_job(self.run.store, &self.job(*job_id).await?, reason).await?;
            }
            Action::SetIdle(node_id, seen) => {
                let record = self.record(*node_id)?;
                self.write_node(&record, &record.counted_by_run(*seen, now)?, Vec::new()).await?;
            }
            Action::DrainNode { node_id, by } => self.drain(*node_id, *by, now).await?,
            Action::Drain(id, node_id) => self.stop_and_count_lost(*id, *node_id, reason, now).await?,
            Action::Warn(_) => return Ok(vec![ActionResult::REPORTED]),
            Action::HoldBack { note, .. } => {
                self.keep_note(note, now).await?;
                return Ok(vec![ActionResult::REPORTED]);
            }
        }
        Ok(vec![ActionResult::DONE])
    }
}
