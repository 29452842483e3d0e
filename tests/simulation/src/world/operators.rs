//! The operators of one world: what they do to nodes and jobs, the policies that they store, and the backups that they
//! restore.

use super::World;
use crate::core::{Fault, lock};
use crate::database::Backup;
use model::control::{BrakeState, PolicyRow};
use model::{BrakeKind, ControlKey, Intent, JobId, JobState, Pause, Policy, Span};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use store::Table;
use tokio::time::sleep;

impl World {
    /// Stores a policy as an operator does.
    pub(super) async fn set_policy(&self, document: &Value) -> bool {
        let Ok(policy) = Policy::from_json(document) else {
            self.core.broken("the_world_has_a_right_policy", format!("{:?}", Policy::from_json(document)));
            return true;
        };
        let Ok(control) = self.store.control().await else { return false };
        let old = control.policy;
        let row = match &old {
            Some(old) => old.with(PolicyRow::of_document(&policy.to_json(), Some(old), self.core.now()).entry),
            None => PolicyRow::of_policy(&policy),
        };
        self.store.write(old.as_ref(), &row, Vec::new()).await.is_ok()
    }

    pub(super) async fn operators(self: Arc<Self>) {
        let mut backups = VecDeque::new();
        let mut document = self.core.scenario.policy.clone();
        let mut minutes = 0_u64;
        let mut healthy = 0;
        loop {
            sleep(Duration::from_secs(120)).await;
            minutes += 2;
            let core = &self.core;
            if core.is_healed() {
                if minutes.is_multiple_of(10) {
                    // This brake waits for an operator. The others end by themselves.
                    self.release(&[BrakeKind::Orphans]).await;
                    healthy += 10;
                    if healthy <= 60 {
                        self.intend(Intent::Drain).await;
                    }
                }
                continue;
            }
            if core.maybe(0.03) && core.scenario.releases {
                self.release(&[BrakeKind::Missing, BrakeKind::Leases, BrakeKind::Orphans]).await;
            }
            // A backup of an unreadable row would bring the row back for ever.
            if minutes.is_multiple_of(10) && !self.check.has_spoiled() {
                backups.push_back(lock(&self.tables.model).backup());
                if backups.len() > 4 {
                    backups.pop_front();
                }
            }
            if core.happens(Fault::Restored)
                && let Some(backup) = backups.front()
            {
                self.restore(backup).await;
                document = core.scenario.policy.clone();
            }
            self.interfere().await;
            let changed = self.with_policy_changes(&document, minutes);
            if changed != document && self.set_policy(&changed).await {
                core.tell(|| "operator".into(), || format!("stores a policy: {:?}", changed.get("nodes")));
                document = changed;
            }
        }
    }

    async fn restore(&self, backup: &Backup) {
        self.functions.stop_all();
        self.core.tell(|| "operator".into(), || "restores the tables as they were".into());
        self.tables.restore(backup);
        while !self.set_policy(&self.core.scenario.policy).await {}
    }

    /// The acts of operators on nodes, jobs and handles, and the loss of a zone.
    async fn interfere(&self) {
        let core = &self.core;
        if core.happens(Fault::ZoneLost) {
            self.ec2.lose_most();
        }
        if core.happens(Fault::ZoneGone) {
            self.ec2.lose_zone();
        }
        if core.happens(Fault::OperatorHolds) {
            self.intend(Intent::Hold).await;
        }
        if core.happens(Fault::OperatorDrains) {
            self.intend(Intent::Drain).await;
        }
        if core.maybe(0.05) {
            self.intend(Intent::Run).await;
        }
        if core.happens(Fault::OperatorCancels) {
            self.cancel_one().await;
        }
        if core.happens(Fault::OperatorPauses) {
            self.pause_some().await;
        }
    }

    /// The policy with the changes that operators want now.
    fn with_policy_changes(&self, document: &Value, minutes: u64) -> Value {
        let core = &self.core;
        let mut changed = document.clone();
        if core.happens(Fault::OperatorResizes) {
            let max = core.of(Fault::OperatorResizes, 8, 40);
            let min = core.scenario.policy.pointer("/nodes/min").and_then(Value::as_i64).unwrap_or(0);
            set(&mut changed, "/nodes/max", json!(max));
            set(&mut changed, "/nodes/min", json!(min.min(max)));
        }
        if core.happens(Fault::OperatorRewrites) {
            set(&mut changed, "/launch/user_data", json!(format!("echo {minutes}")));
        }
        if core.happens(Fault::OperatorRewritesTimes) {
            let ttl = [30, 60, 300, 900].get(core.of(Fault::OperatorRewritesTimes, 0, 3).unsigned_abs() as usize);
            let ttl = ttl.copied().unwrap_or(60);
            set(&mut changed, "/heartbeat/ttl_s", json!(ttl));
            set(&mut changed, "/heartbeat/idle_s", json!((ttl / 3).max(10)));
            set(&mut changed, "/sweep/report_s", json!(core.of(Fault::OperatorRewritesTimes, 30, 600)));
        }
        self.change_sizes(&mut changed);
        changed
    }

    fn change_sizes(&self, document: &mut Value) {
        let core = &self.core;
        let first = core.scenario.policy.get("size");
        if core.happens(Fault::OperatorDropsSize) {
            let without: Vec<Value> = first
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter(|s| s.get("name").and_then(Value::as_str) != Some("small"))
                .cloned()
                .collect();
            set(document, "/size", Value::Array(without));
        } else if core.happens(Fault::OperatorRewritesSize) {
            let n = core.of(Fault::OperatorRewritesSize, 0, 2);
            let (name, value) = match core.of(Fault::OperatorRewritesSize, 0, 2) {
                0 => ("vcpus", json!(core.of(Fault::OperatorRewritesSize, 1, 8))),
                1 => ("memory_mib", json!(core.of(Fault::OperatorRewritesSize, 1024, 16_384))),
                _ => ("price_per_hour", json!(core.of(Fault::OperatorRewritesSize, 1, 90) as f64 / 100.0)),
            };
            set(document, &format!("/size/{n}/{name}"), value);
        } else if core.maybe(0.05)
            && let Some(sizes) = first
        {
            set(document, "/size", sizes.clone());
        }
    }

    async fn intend(&self, intent: Intent) {
        let Ok(nodes) = self.store.nodes().await else { return };
        let nodes: Vec<_> = nodes
            .into_iter()
            .filter(|n| n.life().is_some_and(|l| (l.intent == Intent::Run) != (intent == Intent::Run)))
            .collect();
        let Some(record) = self.core.one_of(&nodes) else { return };
        let by = (intent == Intent::Drain && self.core.maybe(0.5))
            .then(|| self.core.now() + Span::from_s(self.core.between(60, 3600)));
        if let Ok(after) = record.with_intent(intent, by, self.core.now()) {
            // An operator whose write loses a race would try again.
            let _ = self.store.write(Some(record), &after, Vec::new()).await;
        }
    }

    async fn cancel_one(&self) {
        // Any job that an operator may know, also an ended one.
        let jobs: Vec<JobId> = lock(&self.tables.model)
            .rows(Table::Jobs)
            .filter_map(|row| row.get("job_id")?.as_s().ok()?.parse().ok())
            .collect();
        let Some(job) = self.core.one_of(&jobs) else { return };
        self.cancel(*job).await;
    }

    /// Pauses a job that may wait, or changes its priority, or lets it go on.
    async fn pause_some(&self) {
        let jobs: Vec<JobId> = lock(&self.tables.model)
            .rows(Table::Jobs)
            .filter(|row| row.get("state").and_then(|v| v.as_s().ok()).is_some_and(|state| state == "queued"))
            .filter_map(|row| row.get("job_id")?.as_s().ok()?.parse().ok())
            .collect();
        for _ in 0..3 {
            let Some(id) = self.core.one_of(&jobs) else { return };
            let Ok(Some(job)) = self.store.job(*id).await else { continue };
            let draw = self.core.of(Fault::OperatorPauses, 0, 3);
            let after = match draw {
                0 => {
                    let mut after = job.clone();
                    after.summary.priority = 900;
                    Some(after)
                }
                1 => job.pause(Pause::Ends),
                _ => job.pause(Pause::Begins),
            };
            let Some(after) = after else { continue };
            if self.store.write(Some(&job), &after, Vec::new()).await.is_ok() && draw > 1 {
                self.core.count("a job was paused");
            }
        }
    }

    async fn cancel(&self, id: JobId) {
        for _ in 0..10 {
            let Ok(Some(job)) = self.store.job(id).await else { continue };
            let Some(after) = job.cancel("ann", Span::from_s(7 * 86_400), self.core.now()) else { return };
            if self.store.write(Some(&job), &after, Vec::new()).await.is_ok() {
                return;
            }
        }
    }

    async fn release(&self, kinds: &[BrakeKind]) {
        let now = self.core.now();
        for kind in kinds {
            let Ok(before) = self.store.entry::<BrakeState>(&ControlKey::Release(*kind)).await else { continue };
            let Ok(held) = self.store.entry::<BrakeState>(&ControlKey::Brake(*kind)).await else { continue };
            if !held.holds_back(now) {
                continue;
            }
            let after = before.given(&held, Span::from_s(600), now);
            let _ = self.store.write_entry(&before, &after).await;
        }
    }

    /// Ends the faults and everything unusual that operators asked for.
    pub(super) async fn heal(&self) {
        self.core.tell(|| "the world".into(), || "the faults are over".into());
        if self.core.maybe(0.3) && self.core.scenario.chance(Fault::ZoneLost) > 0.0 {
            // One last loss of a zone.
            self.ec2.lose_most();
        }
        self.core.heal();
        self.ec2.heal();
        self.functions.heal();
        self.until_all_is_readable().await;
        // Handles whose reports are refused wait for an operator, who allows more of them.
        let mut policy = self.core.scenario.policy.clone();
        policy.pointer_mut("/sweep/cap_min").into_iter().for_each(|most| *most = 100_000.into());
        while !self.set_policy(&policy).await {}
        for _ in 0..3 {
            let Ok(nodes) = self.store.nodes().await else { continue };
            for record in nodes.iter().filter(|n| n.life().is_some_and(|l| l.intent == Intent::Hold)) {
                if let Ok(after) = record.with_intent(Intent::Run, None, self.core.now()) {
                    let _ = self.store.write(Some(record), &after, Vec::new()).await;
                }
            }
        }
        if let Ok(jobs) = self.store.queue_listed(usize::MAX).await.map(|queue| queue.jobs) {
            for summary in jobs {
                for _ in 0..10 {
                    let Ok(job) = self.store.job(summary.job_id).await else { continue };
                    let Some((job, after)) = job.and_then(|job| Some((job.clone(), job.pause(Pause::Ends)?))) else {
                        break;
                    };
                    if self.store.write(Some(&job), &after, Vec::new()).await.is_ok() {
                        break;
                    }
                }
                if let Ok(Some(job)) = self.store.job(summary.job_id).await
                    && job.work.command.get(1).is_some_and(|s| s == "forever")
                    && job.summary.state != JobState::Cancelled
                {
                    self.cancel(summary.job_id).await;
                }
            }
        }
    }
}

fn set(document: &mut Value, path: &str, value: Value) {
    if let Some(place) = document.pointer_mut(path) {
        *place = value;
    } else if let Some((parent, name)) = path.rsplit_once('/')
        && let Some(Value::Object(fields)) = document.pointer_mut(parent)
    {
        fields.insert(name.to_owned(), value);
    }
}
