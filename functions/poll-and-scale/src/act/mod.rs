//! Carrying out a plan: conditional writes and EC2 calls, one attempt for each action.
//!
//! Guarantees: nothing is decided here, except that an action whose condition fails is left to the next run
//! (`docs/rules.md#R2`).
//! Does not: repeat anything that failed (the next run does) or contain the loop (`runtime::run` does).

mod acting;
mod allocs;
mod calls;
mod launch;
mod nodes;
mod pace;
mod reading;
mod starts;
mod telling;

pub use reading::confirm;

use crate::plan::{Action, Note, Plan, Planned};
use acting::{Acting, Why};
use async_trait::async_trait;
use model::NodeStatus;
use model::cloud::Cloud;
use model::ids::JobId;
use model::launch::LaunchSettings;
use model::time::Time;
use runtime::answer::{ActError, ActionAnswer, Outcome};
use runtime::run::{Numbered, Perform, Run};
use std::sync::PoisonError;
use store::steps;

/// How many actions run at the same time.
const AT_ONCE: usize = 8;

/// Carries out a plan. The answers are in the order of the plan.
pub async fn act(run: Run<'_>, cloud: &dyn Cloud, settings: &LaunchSettings, plan: &Plan) -> Vec<ActionAnswer> {
    let acting = Acting::new(run, cloud, settings);
    acting.note_good_start().await;
    // Launches come last: they wait for each other, and no other action should wait for them.
    let (launches, others): (Vec<Numbered<'_, Action>>, Vec<_>) =
        plan.actions.iter().enumerate().partition(|(_, p)| is_launch(&p.action));
    let mut answers = acting.run.at_once(&acting, others, AT_ONCE).await;
    let not_terminated = acting.terminate_batch().await;
    for (n, answer) in answers.iter_mut().filter(|(_, answer)| answer.done) {
        let Some(Action::Terminate { instance_id: id, .. }) = plan.actions.get(*n).map(|p| &p.action) else { continue };
        match not_terminated.iter().find(|of| of.instance_id == *id).map(|of| &of.why) {
            Some(Why::Failed(error)) => answer.fail(error.clone()),
            Some(Why::Foreign(why)) => answer.keep_back(why.clone()),
            None => {}
        }
    }
    let calls = calls::calls(&acting, launches);
    answers.extend(acting.run.calls_at_once(&acting, calls, AT_ONCE).await);
    let brakes = plan.actions.iter().filter_map(|planned| match &planned.action {
        Action::HoldBack { note: Note::Brake(change), .. } => Some(change.as_ref()),
        _ => None,
    });
    acting.run.use_releases(brakes, &answers).await;
    acting.set_jobs_aside().await;
    acting.tell_news(plan).await;
    acting.note_queue_place(plan).await;
    acting.note_after_place().await;
    let in_use = acting.run.seen.nodes.iter().filter(|n| n.status().is_some()).count();
    acting.run.finish(answers, Some(in_use as u64)).await
}

const fn is_launch(action: &Action) -> bool {
    matches!(action, Action::Launch { .. } | Action::Relaunch(_))
}

/// The job that an action places, rejects or queues.
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
    async fn perform(&self, planned: &Planned, now: Time) -> Result<Outcome, ActError> {
        let performed = self.perform_one(planned, now).await;
        if let (Err(error), Some(job_id)) = (&performed, job_of(&planned.action))
            && error.is_unreadable("jobs")
        {
            self.unreadable.lock().unwrap_or_else(PoisonError::into_inner).insert(job_id);
        }
        performed
    }
}

impl Acting<'_> {
    async fn perform_one(&self, planned: &Planned, now: Time) -> Result<Outcome, ActError> {
        let reason = &planned.reason.to_string();
        match &planned.action {
            // Launches are carried out together: see `calls`.
            Action::Launch { .. } | Action::Relaunch(_) => return Ok(Outcome::Left),
            Action::BindInstance { node_id, instance_id, zone } => {
                self.bind(&self.record(*node_id)?, instance_id, zone.as_deref()).await?;
            }
            Action::Abandon(node_id) => self.abandon(*node_id, reason).await?,
            Action::ShutDown { node_id, because } => self.shut_down(*node_id, *because, reason, now).await?,
            Action::Terminate { node_id, instance_id } => {
                self.record(*node_id)?;
                self.terminate_later(*node_id, instance_id.clone());
            }
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
                steps::reject_job(self.run.store, &self.reading().job(*job_id).await?, reason, self.keep, now).await?;
            }
            Action::Advance { job_id, ended } => {
                steps::advance_job(self.run.store, &self.reading().job(*job_id).await?, ended).await?;
            }
            Action::Requeue(job_id) => {
                steps::requeue_job(self.run.store, &self.reading().job(*job_id).await?, reason).await?;
            }
            Action::SetIdle(node_id, seen) => {
                let record = self.record(*node_id)?;
                self.write_node(&record, &record.seen_by_run(*seen, now)?, Vec::new()).await?;
            }
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
