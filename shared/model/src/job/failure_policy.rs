//! How failures of a job are treated: how its allocs are stopped, what happens when a node is silent, and when it is tried
//! again.
//!
//! Guarantees: each default stands here, and nowhere else; every end that is not a success is named by a rule.
//! Does not: carry anything out. `job` and the plan of poll-and-scale do.

use crate::enums::{CauseWord, Reconcile};
use crate::mistakes::{Mistakes, shown};
use crate::retry::{MAX_RULES, RetryDecision};
use crate::{EndCause, Needs, RetryRule, Signal, Span};
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

/// How often a job is tried again after its nodes could not start it, if no rule of the job names that. With the default pauses,
/// the tries take two to three hours. If the machines are at fault, an operator has seen it by then. Each try keeps away from the
/// nodes of the last ones, because what one node has no room for may fit on another.
const STARTS: u32 = 20;

/// Copied from the job to each of its allocs, without the rules for retries: the job's row has them.
#[derive(Clone, Debug, SmartDefault, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailurePolicy {
    /// The time from TERM to KILL, in seconds.
    #[default = 30]
    pub kill_timeout_s: u64,
    /// The signal that tells an alloc that it will be stopped; `None`: it hears of it by TERM.
    pub stop_signal: Option<Signal>,
    /// How long before TERM an alloc hears of its stop, in seconds.
    pub stop_notice_s: u64,
    /// How long the job waits for a running alloc on a silent node, in seconds; 0 for not at all.
    #[default = 600]
    pub lost_after_s: u64,
    /// Whether a copy is placed on another node while the job waits.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
    /// Which copy stays if the node comes back and both run.
    #[default(Reconcile::Best)]
    pub reconcile: Reconcile,
    /// The rules for retries, in order: the first one that names the cause of an end decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub retry: Vec<RetryRule>,
    /// How often the job is retried after a process of the job failed, if no rule of `retry` names the cause.
    pub retry_failed: u32,
    /// How often the job is retried after it lost a node, if no rule of `retry` names the cause.
    #[default = 3]
    pub retry_lost: u32,
}

impl FailurePolicy {
    /// All retry rules, in order: those of the job, and behind them the defaults. A command that its node could not start has never
    /// run, so it is tried often. But the tries end: otherwise a job that no node can start would cause launches for ever.
    pub fn rules(&self) -> impl Iterator<Item = RetryRule> {
        let [failed, lost] = [(CauseWord::Failed, self.retry_failed), (CauseWord::Lost, self.retry_lost)]
            .map(|(cause, times)| RetryRule::of(cause, times));
        self.retry.iter().cloned().chain([failed, lost, RetryRule::of(CauseWord::Node, STARTS).elsewhere()])
    }

    /// What follows from an end, for a job with these needs. `uses` says how often each rule was used. `None` for a success.
    pub fn judge(&self, cause: &EndCause, uses: &[u32], needs: &Needs) -> Option<RetryDecision> {
        let (place, rule) = self.rules().enumerate().find(|(_, rule)| rule.names(cause))?;
        let follows = rule.follows(uses.get(place).copied().unwrap_or(0), needs);
        Some(RetryDecision { rule: place, text: rule.to_string(), is_own: place < self.retry.len(), follows })
    }

    /// The signal by which an alloc hears that it will be asked to stop.
    pub fn notice_signal(&self) -> Signal {
        self.stop_signal.unwrap_or(Signal::TERM)
    }

    /// The signal that asks an alloc to stop: its own, or TERM after a notice, which says that the time is over.
    pub fn ask_signal(&self) -> Signal {
        if self.stop_notice_s == 0 { self.notice_signal() } else { Signal::TERM }
    }

    /// How long an alloc may take to stop, from the order to KILL.
    pub fn stop_time(&self) -> Span {
        let s = self.stop_notice_s.saturating_add(self.kill_timeout_s);
        Span::from_s(i64::try_from(s).unwrap_or(i64::MAX))
    }

    /// The policy as an alloc has it: without the retry rules.
    #[must_use]
    pub fn of_alloc(&self) -> Self {
        Self { retry: Vec::new(), ..self.clone() }
    }

    pub(crate) fn check(&self, needs: &Needs, timeout_s: u64, mistakes: &mut Mistakes) {
        let rules = self.retry.len();
        mistakes
            .require(rules <= MAX_RULES, || format!("it has {rules} retry rules, at most {MAX_RULES} are possible"));
        for wrong in self.retry.iter().filter_map(|rule| rule.contradiction(needs, timeout_s)) {
            mistakes.require(false, || wrong);
        }
        let usual = Self::default();
        for (option, cause, times, usually) in [
            ("--retry-failed", CauseWord::Failed, self.retry_failed, usual.retry_failed),
            ("--retry-lost", CauseWord::Lost, self.retry_lost, usual.retry_lost),
        ] {
            let decides = times == usually || !RetryRule::of(cause, times).is_behind(&self.retry);
            mistakes.require(decides, || {
                format!("{option} {times} never decides: the retry rules name all its causes, so leave it out")
            });
        }
        for (n, rule) in self.retry.iter().enumerate() {
            let is_shadowed = rule.is_behind(self.retry.get(..n).unwrap_or_default());
            mistakes.require(!is_shadowed, || {
                format!(
                    "the retry rule {} never decides: rules before it name all its causes",
                    shown(&rule.to_string())
                )
            });
        }
        if let Some(signal) = self.stop_signal {
            mistakes.require(signal.is_heard(), || {
                format!(
                    "--stop-signal {signal} ends or halts a command before it can do anything: use USR1, for example"
                )
            });
        }
        mistakes.require(!self.replace || self.lost_after_s > 0, || {
            "--replace places a copy while the job waits for a silent node, and with --lost-after 0 it does not wait: \
             leave one of them out"
                .into()
        });
        mistakes.require(!self.replace || needs.nodes == 1, || {
            "--replace: a job of several nodes gets no copy of one of them; give --lost-after, after which all of it starts again"
                .into()
        });
        mistakes.require(self.replace || self.reconcile == usual.reconcile, || {
            "--reconcile chooses between an alloc and its copy, and only --replace makes copies: give both".into()
        });
        let notice_s = self.stop_notice_s;
        mistakes.require(timeout_s == 0 || notice_s < timeout_s, || {
            format!("--stop-notice ({notice_s} s) must be shorter than --timeout ({timeout_s} s)")
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::enums::MarketNeed;
    use crate::retry::{Retry, RetryOutcome, WhyNot};

    fn policy(rules: &[&str]) -> FailurePolicy {
        let retry = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        FailurePolicy { retry, retry_failed: 1, ..FailurePolicy::default() }
    }

    const AGAIN: Retry =
        Retry { used: 1, times: Some(1), pause_s: None, elsewhere: false, market: None, memory_mib: None };

    #[test]
    fn the_first_rule_that_names_a_cause_decides() {
        let policy = policy(&[
            "exit:1=fail",
            "exit:*,signal:SEGV=again*2,pause=30s,elsewhere",
            "memory=again*3,memory*1.5,max-memory=4G",
            "lost=again*5,on-demand",
            "exit:3,timeout=fail",
        ]);
        let needs = Needs { memory_mib: 1000, ..Needs::default() };
        let why = || "x".to_owned();
        let paused = Retry { times: Some(2), pause_s: Some(30), elsewhere: true, ..AGAIN };
        for (cause, rule, follows) in [
            (EndCause::Exited { code: 1 }, 0, RetryOutcome::Fails(WhyNot::Rule)),
            (EndCause::Exited { code: 3 }, 1, RetryOutcome::Again(paused)),
            (EndCause::NotFound { program: why() }, 1, RetryOutcome::Again(paused)),
            (EndCause::Signalled { signal: 11 }, 1, RetryOutcome::Again(paused)),
            (
                EndCause::OverMemory { allowed_mib: 1000, used_mib: None },
                2,
                RetryOutcome::Again(Retry { times: Some(3), memory_mib: Some(1500), ..AGAIN }),
            ),
            (
                EndCause::Lost { why: why() },
                3,
                RetryOutcome::Again(Retry { times: Some(5), market: Some(MarketNeed::OnDemand), ..AGAIN }),
            ),
            (EndCause::OverTime { limit_s: 1 }, 4, RetryOutcome::Fails(WhyNot::Rule)),
            // Behind the rules of the job come the defaults.
            (EndCause::Signalled { signal: 9 }, 5, RetryOutcome::Again(AGAIN)),
            (EndCause::Rejected { why: why() }, 5, RetryOutcome::Again(AGAIN)),
            (
                EndCause::NotStarted { why: why() },
                7,
                RetryOutcome::Again(Retry { times: Some(STARTS), elsewhere: true, ..AGAIN }),
            ),
        ] {
            let verdict = policy.judge(&cause, &[], &needs).unwrap();
            assert_eq!((verdict.rule, verdict.follows, verdict.is_own), (rule, follows, rule < 5), "{cause:?}");
        }
        assert_eq!(policy.judge(&EndCause::Exited { code: 0 }, &[], &needs), None);
        let lost = EndCause::Lost { why: why() };
        let used_up = policy.judge(&lost, &[9, 9, 9, 5], &needs).unwrap();
        assert_eq!(used_up.follows, RetryOutcome::Fails(WhyNot::UsedUp { times: 5 }));
        let left = policy.judge(&lost, &[9, 9, 9, 4], &needs).unwrap();
        assert_eq!(
            left.follows,
            RetryOutcome::Again(Retry { used: 5, times: Some(5), market: Some(MarketNeed::OnDemand), ..AGAIN })
        );
    }

    #[test]
    fn a_submission_that_contradicts_itself_is_refused() {
        let wrong = |policy: FailurePolicy, timeout_s| {
            let mut mistakes = Mistakes::default();
            policy.check(&Needs::default(), timeout_s, &mut mistakes);
            mistakes.into_list().unwrap_or_default().join("; ")
        };
        assert_eq!(wrong(FailurePolicy { stop_notice_s: 9, ..policy(&["exit:*=again*2"]) }, 10), "");
        assert!(
            wrong(FailurePolicy { stop_notice_s: 10, ..policy(&[]) }, 10).contains("must be shorter than --timeout")
        );
        let kill = FailurePolicy { stop_signal: Some("KILL".parse().unwrap()), ..policy(&[]) };
        assert!(wrong(kill, 0).contains("--stop-signal KILL ends or halts a command"));
        assert!(wrong(policy(&["memory=again,memory*2"]), 0).contains("give --memory"));
        assert!(wrong(policy(&["lost=fail"; MAX_RULES + 1]), 0).contains("17 retry rules, at most 16"));
        assert_eq!(wrong(policy(&["exit:1=fail", "exit:*=again*2", "exit:2,timeout=fail"]), 0), "");
        assert_eq!(wrong(policy(&["timeout=again*3"]), 9), "");
        assert!(wrong(policy(&["timeout=again*3"]), 0).contains("give --timeout"));
        assert_eq!(wrong(FailurePolicy { retry_lost: 5, ..policy(&["spot=again*9"]) }, 0), "");
        let behind = FailurePolicy { retry_lost: 5, retry_failed: 2, ..policy(&["failed,lost=again*9"]) };
        let never = "never decides: the retry rules name all its causes, so leave it out";
        assert_eq!(wrong(behind, 0), format!("--retry-failed 2 {never}; --retry-lost 5 {never}"));
        let keeps = FailurePolicy { reconcile: Reconcile::KeepOriginal, ..policy(&[]) };
        assert!(wrong(keeps.clone(), 0).contains("give both"));
        assert_eq!(wrong(FailurePolicy { replace: true, ..keeps }, 0), "");
        let never_waits = FailurePolicy { lost_after_s: 0, replace: true, ..policy(&[]) };
        assert!(wrong(never_waits, 0).contains("leave one of them out"));
        let shadowed =
            "the retry rule \"exit:1,signal:KILL=again*2\" never decides: rules before it name all its causes";
        assert_eq!(wrong(policy(&["exit:1=fail", "signal:KILL=fail", "exit:1,signal:KILL=again*2"]), 0), shadowed);
    }
}
