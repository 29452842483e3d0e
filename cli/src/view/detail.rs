//! One job, and one node, with everything that is stored about it.
//!
//! Guarantees: the values of a job's environment are left out; their names are there.

use super::live::LiveView;
use super::rows::{JobRow, NodeRow, retry_rules};
use super::story::{self, Happening};
use crate::console::show::{self, without_nulls};
use history::History;
use model::events::{Event, Subject};
use model::ids::{JobId, Slot};
use model::{Alloc, Environment, Job, NodeRecord};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use store::{DbError, Store};

/// The most allocs of a job, and the most lives and events of a slot, that are shown: the newest.
const MOST: usize = 100;

#[derive(Debug, Serialize)]
pub(crate) struct JobDetail {
    #[serde(flatten)]
    pub(crate) row: JobRow,
    /// The values of its environment are removed, as in its allocs.
    #[serde(flatten, serialize_with = "job_fields")]
    pub(crate) job: Job,
    /// The newest first.
    #[serde(serialize_with = "alloc_rows")]
    pub(crate) all_allocs: Vec<Alloc>,
    /// The oldest happening first.
    pub(crate) story: Vec<Happening>,
}

impl JobDetail {
    pub(crate) async fn read(store: &Store, live: &LiveView, id: JobId) -> Result<Option<Self>, DbError> {
        let Some(job) = store.job(id).await? else { return Ok(None) };
        let mut allocs = store.allocs_of(&job).await?.rows;
        allocs.sort_by_key(|a| std::cmp::Reverse((a.summary.placed_at, a.id())));
        allocs.truncate(MOST);
        let story = story::of_job(store, id, story::WHOLE).await?;
        Ok(Some(Self::of(job, allocs, live.present.waits_because(id), story)))
    }

    pub(crate) fn of(job: Job, allocs: Vec<Alloc>, waits_because: Option<&str>, story: Vec<Happening>) -> Self {
        let row = JobRow { waits_because: waits_because.map(str::to_owned), ..JobRow::of(&job) };
        let env = job.env.into_keys().map(|name| (name, String::new())).collect();
        let all_allocs = allocs.into_iter().map(|alloc| Alloc { env: Environment::default(), ..alloc }).collect();
        Self { row, job: Job { env, ..job }, all_allocs, story }
    }
}

/// The fields of a job on the page besides its row. The command is quoted for a shell; the rules for retries are in order.
fn job_fields<S: Serializer>(job: &Job, to: S) -> Result<S::Ok, S::Error> {
    let Job { summary, work, failure_policy, env, .. } = job;
    let fields = without_nulls(json!({
        "whole_command": show::command(&work.command), "image": work.image, "image_digest": work.image_digest,
        "env_names": (!env.is_empty()).then(|| env.keys().collect::<Vec<_>>()),
        "caches": (!work.caches.is_empty()).then_some(&work.caches), "timeout_s": work.timeout_s,
        "exclusive": summary.needs.exclusive, "rules": retry_rules(job), "failed_count": job.failed_count,
        "lost_count": job.lost_count, "lost_after_s": failure_policy.lost_after_s, "replace": failure_policy.replace,
    }));
    fields.serialize(to)
}

/// The allocs for the page. Unknown values are left out.
fn alloc_rows<S: Serializer>(allocs: &[Alloc], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(allocs.iter().map(|alloc| {
        let seen = &alloc.summary;
        without_nulls(json!({
            "alloc_id": seen.alloc_id, "slot": seen.slot, "node_id": seen.node_id, "client": seen.client,
            "desired": seen.desired, "placed_at": seen.placed_at, "started_at": seen.started_at,
            "finished_at": alloc.finished_at, "exit_code": alloc.exit_code, "cause": alloc.cause,
            "message": alloc.cause.as_ref().map(ToString::to_string), "log_tail": alloc.log_tail,
            "usage": alloc.usage, "output_s3": alloc.output_s3,
            "kept": (!alloc.kept.is_empty()).then_some(&alloc.kept),
        }))
    }))
}

#[derive(Debug, Serialize)]
pub(crate) struct NodeDetail {
    #[serde(flatten)]
    pub(crate) row: NodeRow,
    pub(crate) record: NodeRecord,
    /// The newest first.
    pub(crate) events: Vec<Event>,
    /// The lives of the slot, the newest first.
    pub(crate) lives: Vec<Value>,
}

impl NodeDetail {
    /// Without `past`, there are no lives.
    pub(crate) async fn read(
        store: &Store,
        live: &LiveView,
        past: Option<&History>,
        slot: Slot,
    ) -> Result<Option<Self>, DbError> {
        let Some(record) = store.node(slot).await? else { return Ok(None) };
        let most = i32::try_from(MOST).unwrap_or(i32::MAX);
        let events = store.history(&Subject::Slot(slot).to_string(), most).await?;
        let told = past.into_iter().flat_map(|past| past.lives.iter().rev().map(move |life| (life, past)));
        let lives = told.filter(|(life, _)| life.slot == slot).take(MOST);
        let lives = lives.map(|(life, past)| {
            let phases = life.segments(past.uses_of(life), past.from, past.to);
            without_nulls(json!({
                "node_id": life.node_id, "size": life.size, "from": life.from, "to": life.to, "phases": phases,
            }))
        });
        let lives = lives.collect();
        Ok(Some(Self { row: live.node(&record), record, events, lives }))
    }
}
