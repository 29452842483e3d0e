//! The tries to run a job: how they ended, and when the next one may begin.
//!
//! Guarantees: each wait before a retry is as long as its rule says, or twice the one before, up to a bound; a job that is placed
//! waits for nothing.
//! Does not: count failures and losses against what is allowed (`job` does).

use crate::elements::ElementCounts;
use crate::{EndCause, NodeId, Span, Time, Usage};
use serde::{Deserialize, Serialize};

/// The times of the policy that matter after an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobTimes {
    /// How long ended jobs and allocs are kept.
    pub keep: Span,
    /// The wait before the first retry. Each later one is twice as long, up to `most`.
    pub pause: Span,
    /// The longest wait before a retry.
    pub most: Span,
}

impl From<Span> for JobTimes {
    /// Retries without a wait.
    fn from(keep: Span) -> Self {
        Self { keep, pause: Span::ZERO, most: Span::ZERO }
    }
}

/// The history of the tries to run a job: one attribute, because the index has no room for more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tries {
    /// The number of the next copy: higher than the number of every copy placed.
    #[serde(default)]
    pub copies: u32,
    /// How often the job waited before a next try. Each wait is twice the one before.
    #[serde(default, skip_serializing_if = "crate::left_out::is_default")]
    pub pauses: u32,
    /// How often the job was moved at no cost.
    #[serde(default, skip_serializing_if = "crate::left_out::is_default")]
    pub moves: u32,
    /// Whether its command has run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub begun: bool,
    /// The job is not placed before this time. When it has come, a run takes it off.
    pub not_before_at: Option<Time>,
    /// The last nodes on which the job was lost, or failed by a rule with `elsewhere`; the newest last. Another node is preferred.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub avoids: Vec<NodeId>,
    /// Whether a new node is preferred to the nodes in `avoids`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub elsewhere: bool,
    /// How often each retry rule was used, in the order of the rules. A missing number means 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rule_uses: Vec<u32>,
    /// Why the job ended, or why its last try did.
    pub cause: Option<EndCause>,
    /// The last line of the output of the try that failed.
    pub last_line: Option<String>,
    /// What its last try used. Of several members, each number is the highest.
    pub usage: Option<Usage>,
    /// How many elements of a pack have ended.
    pub elements: Option<ElementCounts>,
}

/// How many nodes a job keeps in [`Tries::avoids`].
const MAX_AVOIDED: usize = 3;

impl Tries {
    /// How long the next try waits: as long as its rule says, or by the policy.
    pub fn next_pause(&self, own_s: Option<u64>, times: JobTimes) -> Span {
        let factor = 1_i64.checked_shl(self.pauses.min(30)).unwrap_or(i64::MAX);
        let usual = Span::from_ms(times.pause.as_ms().saturating_mul(factor)).min(times.most);
        let own = own_s.map(|s| Span::from_s(i64::try_from(s).unwrap_or(i64::MAX)));
        own.unwrap_or(usual)
    }

    pub(crate) fn pause(&mut self, own_s: Option<u64>, times: JobTimes, now: Time) {
        let pause = self.next_pause(own_s, times);
        self.pauses = self.pauses.saturating_add(1);
        self.not_before_at = (pause > Span::ZERO).then(|| now + pause);
    }

    /// Notes what an alloc of this try used: the most of each.
    pub(crate) fn note_usage(&mut self, usage: Option<Usage>) {
        self.usage = usage.map(|used| self.usage.map_or(used, |other| other.most(used))).or(self.usage);
    }

    /// Notes a node that the next try keeps away from.
    pub(crate) fn avoid(&mut self, node_id: NodeId) {
        self.avoids.retain(|known| *known != node_id);
        self.avoids.push(node_id);
        let excess = self.avoids.len().saturating_sub(MAX_AVOIDED);
        self.avoids.drain(..excess);
    }

    pub(crate) fn count_use(&mut self, rule: usize, used: u32) {
        if self.rule_uses.len() <= rule {
            self.rule_uses.resize(rule.saturating_add(1), 0);
        }
        if let Some(uses) = self.rule_uses.get_mut(rule) {
            *uses = used;
        }
    }
}
