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
mod launch;
mod launch_rate;
mod nodes;
mod reading;
mod start_failures;
mod terminate;
mod ways;

pub use reading::confirm;

use crate::plan::{Action, Plan, Planned};
use acting::{AT_ONCE, Acting};
use async_trait::async_trait;
use calls::Calls;
use model::NodeStatus;
use model::cloud::Cloud;
use model::ids::JobId;
use model::launch::LaunchSettings;
use model::time::Time;
use runtime::answer::{ActError, ActionAnswer, ActionResult, Outcome};
use runtime::run::{Perform, Run};
use std::sync::PoisonError;
use store::transactions;

/// Carries out a plan. The answers are in the order of the plan.
pub async fn act(run: Run<'_>, cloud: &dyn Cloud, settings: &LaunchSettings, plan: &Plan) -> Vec<ActionAnswer> {
    let acting = Acting::new(run, cloud, settings);
    acting.note_good_start().await;
    let mut answers = Vec::with_capacity(plan.actions.len());
    let calls = Calls::of(&acting, plan);
    answers.extend(acting.run.carry_out(&acting, calls.alone, AT_ONCE).await);
    if calls.terminate.is_empty() {
        acting.terminate(&[]).await;
    } else {
        answers.extend(acting.run.carry_out(&acting, vec![calls.terminate], 1).await);
    }
    answers.extend(acting.run.carry_out(&acting, calls.launches, AT_ONCE).await);
    acting.run.use_releases(plan, &answers).await;
    acting.quarantine_jobs().await;
    acting.announce_news(plan).await;
    acting.note_queue_place(plan).await;
    acting.note_after_place().await;
    let in_use = acting.run.seen.nodes.iter().filter(|n| n.status().is_some()).count();
    acting.run.finish(answers, Some(in_use as u64)).await
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
    async fn perform(&self, call: &[&Planned], now: Time) -> Vec<ActionResult> {
        match call {
            [Planned { action: Action::Launch { offerings, .. }, .. }, ..] => self.launch(call, offerings).await,
            [Planned { action: Action::Relaunch(_), .. }, ..] => self.relaunch(call).await,
            [Planned { action: Action::Terminate { .. }, .. }, ..] => self.terminate(call).await,
            [Planned { action: Action::BindInstance { .. }, .. }, ..] => self.bind_listed(call).await,
            // Every other action is a call of its own: see `calls`.
            _ => {
                let mut results = Vec::with_capacity(call.len());
                for planned in call {
                    results.push(self.perform_one(planned, now).await);
                }
                results
            }
        }
    }
}

impl Acting<'_> {
    async fn perform_one(&self, planned: &Planned, now: Time) -> ActionResult {
        let performed = self.try_one(planned, now).await;
        if let (Err(error), Some(job_id)) = (&performed, job_of(&planned.action))
            && error.is_unreadable("jobs")
        {
            self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).insert(job_id);
        }
        performed.map_or_else(ActionResult::from, ActionResult::of)
    }

    async fn try_one(&self, planned: &Planned, now: Time) -> Result<Outcome, ActError> {
        let reason = &planned.reason.to_string();
        match &planned.action {
            // These actions share calls: see `perform`.
            Action::Launch { .. } | Action::Relaunch(_) | Action::Terminate { .. } | Action::BindInstance { .. } => {
                return Ok(Outcome::Left);
            }
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
                transactions::reject_job(self.run.store, &self.reading().job(*job_id).await?, reason, self.keep, now)
                    .await?;
            }
            Action::Advance { job_id, ended } => {
                transactions::advance_job(self.run.store, &self.reading().job(*job_id).await?, ended).await?;
            }
            Action::Requeue(job_id) => {
                transactions::requeue_job(self.run.store, &self.reading().job(*job_id).await?, reason).await?;
            }
            Action::SetIdle(node_id, seen) => {
                let record = self.record(*node_id)?;
                self.write_node(&record, &record.seen_by_run(*seen, now)?, Vec::new()).await?;
            }
            Action::DrainNode { node_id, by } => self.drain(*node_id, *by, now).await?,
            Action::Drain(id, node_id) => self.stop_and_count_lost(*id, *node_id, reason, now).await?,
            Action::Warn(_) => return Ok(Outcome::Said),
            Action::HoldBack { note, .. } => {
                self.keep_note(note, now).await?;
                return Ok(Outcome::Said);
            }
        }
        Ok(Outcome::Done)
    }
}
