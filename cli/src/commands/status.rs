//! `status`: whether all is well, and what to do if not.
//!
//! Guarantees: it judges from the one list of signs (`runtime::signs`), as the page and the alarms do; the exit code says
//! whether all is well.
//! Does not: repair anything. The functions do. If EC2 cannot be read, what the functions stored is judged, and a sign says
//! what is not known.

use super::show::{self, Rows, counted};
use super::{Context, Next, Outcome};
use clap::Args;
use model::cloud::Cloud;
use model::control::Control;
use model::events::{Event, Subject};
use model::functions;
use model::handle::STUCK_AFTER;
use model::money::Usd;
use model::time::{Span, Time};
use model::{AllocSummary, Handle, JobSummary, NodeRecord};
use runtime::observation::ObserveError;
use runtime::signs::{self, BadRow, Facts, Stopping};
pub(crate) use runtime::signs::{Level, Raised as Check};
use serde::Serialize;
use std::collections::BTreeMap;
use store::{DbError, Ended, Store, Unreadable, placed_last};

/// How many waiting jobs are counted.
const COUNTED: usize = 20_000;
/// How many events of a subject are searched for warnings.
const LOOK_BACK: i32 = 20;

/// `status`
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The status in JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Status {
    pub(crate) well: bool,
    pub(crate) checks: Vec<Check>,
    pub(crate) nodes: BTreeMap<String, usize>,
    pub(crate) jobs: BTreeMap<String, usize>,
    /// Whether more jobs wait than were counted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) more_jobs_wait: bool,
    /// What the nodes that are there cost in an hour, by the prices of the policy at their launches.
    pub(crate) price_per_hour: Usd,
}

/// What `status` and the page read.
pub(crate) struct Seen {
    pub(crate) control: Control,
    pub(crate) nodes: Vec<NodeRecord>,
    /// The jobs that have not ended, in the order of the queue. Of very long queues only the beginning.
    pub(crate) jobs: Vec<JobSummary>,
    /// Whether more jobs wait behind these.
    more_jobs_wait: bool,
    pub(crate) next: Result<Next, ObserveError>,
    /// The jobs that ended last, the newest first.
    ended: Vec<Ended>,
    /// Allocs that were told to stop.
    stopping: Vec<Stopping>,
    /// The newest events of the cluster and of the functions.
    events: Vec<Event>,
    unreadable: Vec<Unreadable>,
    /// The handles that their nodes do not destroy.
    stuck: Vec<Handle>,
}

impl Seen {
    pub(crate) async fn read(store: &Store, cloud: &dyn Cloud, now: Time) -> Result<Self, DbError> {
        let (control, listed) = (store.control().await?.as_of(now), store.nodes_listed(1).await?);
        let (nodes, mut unreadable) = (listed.rows, listed.unreadable);
        let waiting = store.waiting(None, COUNTED).await?;
        let placed = store.placed().await?;
        unreadable.extend(waiting.unreadable.into_iter().chain(placed.unreadable));
        let more_jobs_wait = waiting.end.is_some();
        let jobs = placed_last(waiting.jobs, placed.rows);
        let mut events = store.history(&Subject::Cluster.to_string(), LOOK_BACK).await?;
        for (function, _) in functions::scheduled() {
            events.extend(store.history(&Subject::Function(function.name.to_owned()).to_string(), LOOK_BACK).await?);
        }
        // Those that their nodes do not destroy are looked at again and again.
        let handles = store.handles_due(now + STUCK_AFTER).await?;
        unreadable.extend(handles.unreadable);
        let stuck = handles.rows.into_iter().filter(|handle| handle.is_stuck(now)).collect();
        let ended = store.ended(now - signs::RECENT, signs::ENDED).await?;
        let next = Next::read(store, cloud, now).await;
        let stopping = stopping(&next);
        Ok(Self { control, nodes, jobs, more_jobs_wait, next, ended, stopping, events, unreadable, stuck })
    }

    /// Whether all is well.
    pub(crate) fn status(&self, now: Time) -> Status {
        let Self { control, nodes, jobs, .. } = self;
        let row = |row: &Unreadable| BadRow { table: None, what: row.to_string() };
        let next = match &self.next {
            Ok(next) => signs::Next::Known(&next.plan.explained, next.plan.unready),
            Err(ObserveError::Cloud(error)) => signs::Next::Unknown(error),
            // The sign of the policy says the same. Without the tables, there is no status.
            Err(ObserveError::Policy(_) | ObserveError::Db(_)) => signs::Next::NotAsked,
        };
        let checks = signs::judge(&Facts {
            nodes,
            jobs,
            ended: &self.ended,
            allocs: self.next.as_ref().map_or(&[], |next| &next.allocs),
            stopping: &self.stopping,
            stuck: &self.stuck,
            next,
            events: &self.events,
            rows: self.unreadable.iter().map(row).collect(),
            ..Facts::new(control, now)
        });
        Status {
            well: checks.iter().all(|c| c.level != Level::Wrong),
            checks,
            nodes: counts(nodes.iter().map(node_word)),
            jobs: counts(jobs.iter().map(|j: &JobSummary| j.state.to_string())),
            more_jobs_wait: self.more_jobs_wait,
            price_per_hour: nodes.iter().filter_map(|n| Some(n.life()?.offering.price_per_hour)).sum(),
        }
    }
}

/// The allocs that were told to stop.
fn stopping(next: &Result<Next, ObserveError>) -> Vec<Stopping> {
    let stopping = |alloc: &AllocSummary| {
        let kill_timeout = i64::try_from(alloc.failure_policy.kill_timeout_s).unwrap_or(i64::MAX);
        Some(Stopping {
            alloc_id: alloc.alloc_id,
            slot: alloc.slot,
            since: alloc.stopping_since_at?,
            kill_timeout: Span::from_s(kill_timeout),
        })
    };
    next.iter().flat_map(|next| &next.allocs).filter_map(stopping).collect()
}

pub(super) async fn run(context: &mut Context<'_>, args: &StatusArgs) -> anyhow::Result<Outcome> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let status = Seen::read(&cluster.store, cluster.cloud.as_ref(), now).await?.status(now);
    if args.json {
        show::json(context.out, &status)?;
    } else {
        print(context, &status)?;
    }
    Ok(Outcome::done_if(status.well))
}

fn print(context: &mut Context<'_>, status: &Status) -> anyhow::Result<()> {
    let mut rows = Rows::new(&[]);
    for check in &status.checks {
        let mark = match check.level {
            Level::Well => "ok",
            Level::Look => "look",
            Level::Wrong => "WRONG",
        };
        let to_do = if check.to_do.is_empty() { String::new() } else { format!(": {}", check.to_do) };
        rows.marked(mark, [check.what.clone(), format!("{}{to_do}", check.says)]);
    }
    rows.colours(context.colours).print(context.out)?;
    writeln!(context.out, "nodes: {}", none_or(&status.nodes))?;
    writeln!(context.out, "jobs: {}", status.counted_jobs())?;
    if !status.price_per_hour.is_zero() {
        let price = show::dollars(status.price_per_hour);
        writeln!(context.out, "cost: {price} an hour by the policy's list prices; `nodekeeper cost` says for what")?;
    }
    writeln!(context.out, "{}", status.verdict())?;
    Ok(())
}

/// These counts, in words.
pub(crate) fn none_or(counts: &BTreeMap<String, usize>) -> String {
    if counts.is_empty() { "none".to_owned() } else { counted(counts) }
}

impl Status {
    /// How many jobs have not ended, by their states.
    pub(crate) fn counted_jobs(&self) -> String {
        let at_least = if self.more_jobs_wait { "at least " } else { "" };
        format!("{at_least}{}", none_or(&self.jobs))
    }

    /// Whether all is well, in a sentence.
    pub(crate) fn verdict(&self) -> String {
        let count = |level| self.checks.iter().filter(|c| c.level == level).count();
        let all = self.checks.len();
        match (count(Level::Wrong), count(Level::Look)) {
            (0, 0) => "all is well".to_owned(),
            (0, looks) => format!("nothing is wrong; {looks} of {all} checks to look at"),
            (wrong, _) => format!("not all is well: {wrong} of {all} checks"),
        }
    }
}

fn counts(words: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    counts
}

/// A node's status if it is in use, otherwise its state.
pub(crate) fn node_word(record: &NodeRecord) -> String {
    record.status().map_or_else(|| record.state_name().to_string(), |s| s.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_goes_no_further_says_at_least() {
        let jobs = BTreeMap::from([("placed".to_owned(), 3), ("queued".to_owned(), COUNTED)]);
        let status = |more_jobs_wait| Status {
            well: true,
            checks: Vec::new(),
            nodes: BTreeMap::new(),
            jobs: jobs.clone(),
            more_jobs_wait,
            price_per_hour: Usd::ZERO,
        };
        assert_eq!(status(false).counted_jobs(), "3 placed, 20000 queued");
        assert_eq!(status(true).counted_jobs(), "at least 3 placed, 20000 queued");
    }
}
