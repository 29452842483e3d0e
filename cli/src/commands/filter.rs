//! The filter of a command: jobs by state, by name, by age, by submitter, by label.
//!
//! Guarantees: all given conditions must hold; of several states, one must.
//! Does not: read anything.

use super::submit::named;
use crate::console::Cluster;
use crate::view::stored::Among;
use clap::{ArgAction, Args};
use model::amounts::Moment;
use model::names::matches;
use model::{EndedAlloc, JobState, JobSummary, Time};
use std::collections::BTreeMap;
use store::End;

/// `--state`, `--name`, `--since`, `--label` and `--mine`
#[derive(Args, Clone, Debug, Default)]
pub(super) struct JobFilter {
    /// Only jobs in this state: queued, placing, placed (or running), regrouping, complete, failed, cancelled or rejected; may
    /// be given several times, or with commas
    #[arg(long = "state", value_name = "STATE", action = ArgAction::Append, value_delimiter = ',', value_parser = state)]
    states: Vec<JobState>,
    /// Only jobs with this name; `*` stands for any characters
    #[arg(long = "name", value_name = "NAME")]
    name: Option<String>,
    /// Only jobs that were submitted since then: 30m, 2d, a date or a time
    #[arg(long, value_name = "WHEN")]
    since: Option<Moment>,
    #[command(flatten)]
    pub(super) owner: OwnerFilter,
}

/// `--mine`, `--label`
#[derive(Args, Clone, Debug, Default)]
pub(super) struct OwnerFilter {
    /// Only jobs that you submitted
    #[arg(long)]
    mine: bool,
    /// Only jobs with this label; `*` in VALUE stands for any characters. Of several, all must be there
    #[arg(long = "label", short = 'l', value_name = "KEY=VALUE", value_parser = named)]
    labels: Vec<(String, String)>,
    /// Who gives the command, once that is known.
    #[arg(skip)]
    me: Option<String>,
}

impl OwnerFilter {
    pub(super) const fn is_empty(&self) -> bool {
        !self.mine && self.labels.is_empty()
    }

    /// The filter, with who gives the command.
    pub(super) async fn of(&self, cluster: &Cluster) -> anyhow::Result<Self> {
        let me = if self.mine { Some(cluster.reach.who.name().await?.to_owned()) } else { None };
        Ok(Self { me, ..self.clone() })
    }

    pub(super) fn takes(&self, by: Option<&str>, labels: &BTreeMap<String, String>) -> bool {
        let has = |(key, wanted): &(String, String)| labels.get(key).is_some_and(|value| matches(wanted, value));
        (!self.mine || by == self.me.as_deref()) && self.labels.iter().all(has)
    }
}

/// Parses a state, by its name or by the word of other schedulers.
fn state(text: &str) -> Result<JobState, String> {
    let word = text.to_ascii_lowercase();
    let word = match word.as_str() {
        "running" | "r" => "placed",
        "pending" | "waiting" | "pd" => "queued",
        "completed" | "succeeded" => "complete",
        "canceled" => "cancelled",
        other => other,
    };
    word.parse().map_err(|_| {
        "it must be queued (or pending), placing, placed (or running), regrouping, complete, failed, cancelled or rejected".to_owned()
    })
}

impl JobFilter {
    /// The filter, with who gives the command.
    pub(super) async fn of(&self, cluster: &Cluster) -> anyhow::Result<Self> {
        Ok(Self { owner: self.owner.of(cluster).await?, ..self.clone() })
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.states.is_empty() && self.name.is_none() && self.since.is_none() && self.owner.is_empty()
    }

    /// The states that the filter names; none for all.
    pub(super) fn states(&self) -> &[JobState] {
        &self.states
    }

    /// Whether the filter names ended states.
    pub(super) fn wants_ended(&self) -> bool {
        self.states.iter().any(|state| state.is_ended())
    }

    /// The names that the filter takes.
    pub(super) fn among(&self) -> Among<'_> {
        match self.name.as_deref().map(|name| name.split_once('*').map_or((name, false), |(begin, _)| (begin, true))) {
            Some((name, false)) => Among::Named(name),
            None | Some(("", true)) => Among::Stored,
            Some((beginning, true)) => Among::NamesBeginning(beginning),
        }
    }

    /// The kinds of ends that the filter names.
    pub(super) fn ends(&self) -> Vec<End> {
        End::ALL.into_iter().filter(|end| self.states.iter().any(|state| End::of(*state) == Some(*end))).collect()
    }

    /// Whether the filter takes live jobs.
    pub(super) fn wants_live(&self) -> bool {
        self.states.is_empty() || self.states.iter().any(|state| !state.is_ended())
    }

    /// The filter takes no job that was submitted before this.
    pub(super) fn since(&self, now: Time) -> Time {
        self.since.map_or(Time::from_ms(0), |since| since.before(now))
    }

    /// Whether the job of this alloc has such a name and owner.
    pub(super) fn takes_ended(&self, alloc: &EndedAlloc) -> bool {
        self.takes_name(alloc.name.as_deref()) && self.owner.takes(alloc.by.as_deref(), &alloc.labels)
    }

    fn takes_name(&self, name: Option<&str>) -> bool {
        self.name.as_ref().is_none_or(|wanted| matches(wanted, name.unwrap_or_default()))
    }

    pub(super) fn takes(&self, job: &JobSummary, now: Time) -> bool {
        let state = self.states.is_empty() || self.states.contains(&job.state);
        let name = self.takes_name(job.name.as_deref());
        let owner = self.owner.takes(job.by.as_deref(), &job.labels);
        state && name && owner && self.since.is_none_or(|since| job.submitted_at >= since.before(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_words_of_other_schedulers_too() {
        assert_eq!(
            ["RUNNING", "pending", "Completed", "failed"].map(|s| state(s).unwrap()),
            [JobState::Placed, JobState::Queued, JobState::Complete, JobState::Failed]
        );
        assert!(state("lost").is_err());
    }
}
