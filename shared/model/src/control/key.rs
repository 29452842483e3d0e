//! The keys of the control table.
//!
//! Guarantees: every key is spelled here and nowhere else, and is read as it was written.
//! Does not: say what the rows contain.

use crate::enums::{BrakeKind, Class};
use crate::{BadText, Offering, Reach, Scope};
use std::fmt;
use std::str::FromStr;

/// The key of a row of the control table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ControlKey {
    Policy,
    /// `run#{function}`: the last run of a function.
    Run(String),
    /// `limit#{class}#{scope}`: EC2 refused launches within this scope.
    Limit(Class, Scope),
    /// `boot_failures`: failed starts in a row.
    FailedStarts,
    /// `brake#{kind}`: what a brake holds back.
    Brake(BrakeKind),
    /// `release#{kind}`: an operator's release of a brake.
    Release(BrakeKind),
    /// `ingest`: when heartbeat-ingest last accepted heartbeats.
    Ingest,
    /// `last_run`: when the last run of poll-and-scale began.
    LastRun,
    /// `queue_place`: where the next run goes on in a queue that is too long for one run.
    QueuePlace,
    /// `after_place`: where the next run goes on in a long list of jobs that follow others.
    AfterPlace,
    /// `jobs_place`: where the next run of clean-stale-records goes on in the jobs table.
    JobsPlace,
    /// `next_jobs`: the jobs that start next on freed room. See [`super::next_jobs`].
    NextJobs,
    /// `next_turn`: how many of them were drawn.
    NextTurn,
    /// `totals`: what shares have used, and what this month has cost. See [`super::Totals`].
    Totals,
    /// `limit_turn`: which run may place jobs under a limit.
    LimitTurn,
    /// `demand#{name}`: a demand set. See [`super::DemandSet`].
    Demand(String),
    /// `announced`: the events about waiting jobs and caps that poll-and-scale has written. See [`super::AnnouncedRow`].
    Announced,
    /// `catalogue`: what EC2 offers. See [`super::CatalogueRow`].
    Catalogue,
}

/// The keys that are one word.
const WORDS: [(ControlKey, &str); 13] = [
    (ControlKey::Policy, "policy"),
    (ControlKey::FailedStarts, "boot_failures"),
    (ControlKey::Ingest, "ingest"),
    (ControlKey::LastRun, "last_run"),
    (ControlKey::QueuePlace, "queue_place"),
    (ControlKey::AfterPlace, "after_place"),
    (ControlKey::JobsPlace, "jobs_place"),
    (ControlKey::NextJobs, "next_jobs"),
    (ControlKey::NextTurn, "next_turn"),
    (ControlKey::Totals, "totals"),
    (ControlKey::LimitTurn, "limit_turn"),
    (ControlKey::Announced, "announced"),
    (ControlKey::Catalogue, "catalogue"),
];

impl ControlKey {
    /// The key of the shortage of an offering.
    pub fn shortage_of(offering: &Offering) -> Self {
        Self::Limit(Class::Short, Scope::of(Reach::Offering, offering))
    }
}

impl fmt::Display for ControlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(function) => write!(f, "run#{function}"),
            Self::Limit(class, scope) => write!(f, "limit#{class}#{scope}"),
            Self::Brake(kind) => write!(f, "brake#{kind}"),
            Self::Release(kind) => write!(f, "release#{kind}"),
            Self::Demand(name) => write!(f, "demand#{name}"),
            word => f.write_str(WORDS.iter().find(|(key, _)| key == word).map_or("", |(_, word)| word)),
        }
    }
}

impl FromStr for ControlKey {
    type Err = BadText;
    fn from_str(key: &str) -> Result<Self, BadText> {
        let bad = || BadText::no("control key", key, "a key of the control table");
        let kind = |word: &str| word.parse().map_err(|_: BadText| bad());
        Ok(match key.split_once('#') {
            None => WORDS.iter().find(|(_, word)| *word == key).map(|(key, _)| key.clone()).ok_or_else(bad)?,
            Some(("run", function)) => Self::Run(function.to_owned()),
            Some(("limit", rest)) => {
                let (class, scope) = rest.split_once('#').ok_or_else(bad)?;
                Self::Limit(class.parse().map_err(|_: BadText| bad())?, scope.parse().map_err(|_| bad())?)
            }
            Some(("demand", name)) => Self::Demand(name.to_owned()),
            Some(("brake", word)) => Self::Brake(kind(word)?),
            Some(("release", word)) => Self::Release(kind(word)?),
            Some(_) => return Err(bad()),
        })
    }
}
