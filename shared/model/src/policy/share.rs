//! `[[share]]`: whose turn it is, and how much some may have at the same time (`docs/rules.md#shares`).
//!
//! Guarantees: work up to a limit, and equal to it, is within the limit.
//! Does not: say who has which share (`sharing` does), order the queue, or know what is in use; the plan of poll-and-scale does.

use crate::{Needs, Usd};
use serde::{Deserialize, Serialize};
use std::ops::AddAssign;

/// The most shares of a policy, with those that it had before: a run reads the queue of each.
pub const MAX_SHARES: usize = 100;

/// Where jobs count that have no share while the policy has no default one.
pub const NO_SHARE: &str = "(no share)";

/// A part of the cluster for some of its users.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    pub name: String,
    /// The part of the cluster that the share gets, in proportion to the weights of the others. No unit.
    pub weight: f64,
    /// Who may submit to the share: names, where `*` is any text.
    pub members: Vec<String>,
    /// Whether the share is also for everybody who is a member of no share.
    pub default: bool,
    #[serde(flatten)]
    pub limits: WorkLimits,
}

/// The most that jobs may have at the same time; `None` is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkLimits {
    pub running: Option<u64>,
    pub vcpus: Option<u64>,
    pub gpus: Option<u64>,
    pub nodes: Option<u64>,
    pub dollars_per_hour: Option<Usd>,
}

/// What jobs have at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkAmount {
    /// Jobs that are placed.
    pub running: u64,
    pub vcpus: u64,
    pub gpus: u64,
    /// Members: each is on a node, which it may share.
    pub nodes: u64,
    /// The part of the price of its node that each member takes.
    pub dollars_per_hour: Usd,
}

impl WorkAmount {
    /// What this many members with these needs take, without a job and without a price.
    pub fn of(needs: &Needs, members: u32) -> Self {
        let nodes = u64::from(members);
        let all = |each: u32| u64::from(each).saturating_mul(nodes);
        Self { vcpus: all(needs.vcpus), gpus: all(needs.gpus), nodes, ..Self::default() }
    }
}

impl AddAssign for WorkAmount {
    fn add_assign(&mut self, other: Self) {
        self.running = self.running.saturating_add(other.running);
        self.vcpus = self.vcpus.saturating_add(other.vcpus);
        self.gpus = self.gpus.saturating_add(other.gpus);
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.dollars_per_hour = self.dollars_per_hour + other.dollars_per_hour;
    }
}

impl WorkLimits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The limit that this amount exceeds: what it is of, and how much may be.
    pub fn exceeded(&self, amount: &WorkAmount) -> Option<(&'static str, String)> {
        let counts = [
            ("jobs", self.running, amount.running),
            ("vCPUs", self.vcpus, amount.vcpus),
            ("GPUs", self.gpus, amount.gpus),
            ("nodes", self.nodes, amount.nodes),
        ];
        let count = counts.into_iter().find_map(|(what, most, has)| Some((what, most.filter(|most| has > *most)?)));
        let dollars = self.dollars_per_hour.filter(|most| amount.dollars_per_hour > *most);
        let of_count = count.map(|(what, most)| (what, most.to_string()));
        of_count.or_else(|| dollars.map(|most| ("an hour", most.to_string())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_exceeded_by_one_more_than_it_and_says_of_what() {
        let limits = WorkLimits { running: Some(2), gpus: Some(0), ..WorkLimits::default() };
        let has = |running, gpus| limits.exceeded(&WorkAmount { running, gpus, ..WorkAmount::default() });
        assert_eq!(has(2, 0), None);
        assert_eq!(has(3, 0), Some(("jobs", "2".to_owned())));
        assert_eq!(has(0, 1), Some(("GPUs", "0".to_owned())));
        let dollars = WorkLimits { dollars_per_hour: Some(Usd::from_micros(5)), ..WorkLimits::default() };
        let costs = |micros| WorkAmount { dollars_per_hour: Usd::from_micros(micros), ..WorkAmount::default() };
        assert_eq!(dollars.exceeded(&costs(5)), None);
        assert_eq!(dollars.exceeded(&costs(6)).unwrap().0, "an hour");
    }
}
