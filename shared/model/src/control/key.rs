//! The keys of the control table.
//!
//! Guarantees: every key is spelled here and nowhere else, and is read as it was written.
//! Does not: say what the rows contain.

use crate::enums::{BrakeKind, Class, Reach, UnknownWord};
use crate::ids::BadId;
use crate::node::Offering;
use crate::refusal::Scope;
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
    /// `demand#{name}`: a demand set. See [`super::DemandSet`].
    Demand(String),
    /// `announced`: what poll-and-scale has told about waiting jobs. See [`crate::announced::AnnouncedRow`].
    Announced,
    /// `catalogue`: what EC2 offers. See [`crate::catalogue::CatalogueRow`].
    Catalogue,
}

impl ControlKey {
    /// The key of the shortage of an offering.
    pub fn shortage_of(offering: &Offering) -> Self {
        Self::Limit(Class::Short, Scope::of(Reach::Offering, offering))
    }
}

impl fmt::Display for ControlKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Policy => f.write_str("policy"),
            Self::Run(function) => write!(f, "run#{function}"),
            Self::Limit(class, scope) => write!(f, "limit#{class}#{scope}"),
            Self::FailedStarts => f.write_str("boot_failures"),
            Self::Brake(kind) => write!(f, "brake#{kind}"),
            Self::Release(kind) => write!(f, "release#{kind}"),
            Self::Ingest => f.write_str("ingest"),
            Self::LastRun => f.write_str("last_run"),
            Self::QueuePlace => f.write_str("queue_place"),
            Self::AfterPlace => f.write_str("after_place"),
            Self::JobsPlace => f.write_str("jobs_place"),
            Self::Demand(name) => write!(f, "demand#{name}"),
            Self::Announced => f.write_str("announced"),
            Self::Catalogue => f.write_str("catalogue"),
        }
    }
}

impl FromStr for ControlKey {
    type Err = BadId;
    fn from_str(key: &str) -> Result<Self, BadId> {
        let bad = || BadId::new("control key", key, "a key of the control table");
        let kind = |word: &str| word.parse().map_err(|_: UnknownWord| bad());
        Ok(match key.split_once('#') {
            None => match key {
                "policy" => Self::Policy,
                "boot_failures" => Self::FailedStarts,
                "ingest" => Self::Ingest,
                "last_run" => Self::LastRun,
                "queue_place" => Self::QueuePlace,
                "after_place" => Self::AfterPlace,
                "jobs_place" => Self::JobsPlace,
                "announced" => Self::Announced,
                "catalogue" => Self::Catalogue,
                _ => return Err(bad()),
            },
            Some(("run", function)) => Self::Run(function.to_owned()),
            Some(("limit", rest)) => {
                let (class, scope) = rest.split_once('#').ok_or_else(bad)?;
                Self::Limit(class.parse().map_err(|_: UnknownWord| bad())?, scope.parse().map_err(|_| bad())?)
            }
            Some(("demand", name)) => Self::Demand(name.to_owned()),
            Some(("brake", word)) => Self::Brake(kind(word)?),
            Some(("release", word)) => Self::Release(kind(word)?),
            Some(_) => return Err(bad()),
        })
    }
}
