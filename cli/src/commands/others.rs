//! The question before a job of somebody else is changed.
//!
//! Guarantees: a command changes no job of somebody else unless a person says yes, or `--yes` was given. A job without a submitter is
//! nobody's.
//! Does not: keep anybody from it: whoever may write the tables may change every job (`SECURITY.md`).

use crate::console::show::{self, Screen};
use crate::console::{Cluster, Context, UsageError, is_yes};
use model::Job;
use std::collections::BTreeMap;

/// How many of the others are named.
const NAMED: usize = 3;

/// How many of some jobs other people submitted.
pub(super) struct Others(BTreeMap<String, usize>);

impl Others {
    pub(super) async fn of(cluster: &Cluster, by: impl IntoIterator<Item = Option<&str>>) -> anyhow::Result<Self> {
        let (me, mut others) = (cluster.reach.who.name().await?, BTreeMap::new());
        for by in by.into_iter().flatten().filter(|by| *by != me) {
            *others.entry(show::one_line(by)).or_default() += 1;
        }
        Ok(Self(others))
    }

    pub(super) async fn of_jobs(cluster: &Cluster, jobs: &[Job]) -> anyhow::Result<Self> {
        Self::of(cluster, jobs.iter().map(|job| job.summary.by.as_deref())).await
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether their jobs may be changed so. Without a terminal, nobody can be asked: an error.
    pub(super) fn agree(&self, context: &mut Context<'_>, verb: &str, has_yes: bool) -> anyhow::Result<bool> {
        if has_yes || self.is_empty() {
            return Ok(true);
        }
        let jobs = if self.0.values().sum::<usize>() == 1 { "it" } else { "them" };
        if context.in_screen != Screen::Terminal {
            return Err(UsageError(format!("{}: give --yes to {verb} {jobs} all the same", self.text())).into());
        }
        let agrees = is_yes(&context.ask(&format!("{}: {verb} {jobs} all the same? [y/N]", self.text()))?);
        if !agrees {
            writeln!(context.err, "nothing was changed")?;
        }
        Ok(agrees)
    }

    /// `not yours: 2 jobs of bob, 1 of eve`
    fn text(&self) -> String {
        let of = |(at, (by, n)): (usize, (&String, &usize))| match at {
            0 => format!("not yours: {} of {by}", show::several(n, "job")),
            _ => format!(", {n} of {by}"),
        };
        let more: usize = self.0.values().skip(NAMED).sum();
        let more = (more > 0).then(|| format!(", {more} of others"));
        self.0.iter().enumerate().take(NAMED).map(of).chain(more).collect()
    }
}
