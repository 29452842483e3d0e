//! Invariants of retries: the rules of a job, as somebody reads them from its row.

use crate::check::Check;
use crate::check::row::{count, set, text, within};
use serde_json::Value;
use store::Item;

/// The rules that the job itself has.
pub(in crate::check) fn rules(row: &Item) -> Vec<String> {
    let rules = within(row, "failure_policy", "retry");
    rules.as_array().into_iter().flatten().filter_map(|rule| rule.as_str().map(str::to_owned)).collect()
}

/// All rules that apply to a job.
fn all_rules(row: &Item) -> Vec<String> {
    let mut all = rules(row);
    all.push(format!("failed=again*{}", count(row, "retry_failed")));
    all.push(format!("lost=again*{}", count(row, "retry_lost")));
    all.push("node=again*20,elsewhere".to_owned());
    all
}

fn uses(row: &Item) -> Vec<u64> {
    let uses = within(row, "tries", "rule_uses");
    uses.as_array().into_iter().flatten().map(|uses| uses.as_u64().unwrap_or(0)).collect()
}

/// How often a rule may be used.
fn bound(rule: &str) -> u64 {
    if rule.contains("=fail") {
        return 0;
    }
    let digits = rule.split("again*").nth(1).and_then(|times| times.split(',').next()).unwrap_or("1");
    digits.parse().unwrap_or(u64::MAX)
}

/// The words that name a cause.
fn words(cause: &Value) -> Vec<String> {
    let number = |name: &str| cause.get(name).and_then(Value::as_i64).unwrap_or(0);
    let own = match cause.get("kind").and_then(Value::as_str) {
        Some("exited") if (75..=78).contains(&number("code")) => "exit:75-78".to_owned(),
        Some("exited") => format!("exit:{}", number("code")),
        Some("signalled") => format!("signal:{}", number("signal")),
        Some("over_memory") => "memory".to_owned(),
        Some("over_time") => "timeout".to_owned(),
        Some("lost" | "moved") => return vec!["lost".to_owned()],
        Some("interrupted") => return vec!["spot".to_owned(), "lost".to_owned()],
        Some("not_started") => return vec!["node".to_owned()],
        _ => "failed".to_owned(),
    };
    vec![own, "failed".to_owned()]
}

impl Check {
    /// A job is not tried more often than its rules say: each retry is one use of the first rule that names the cause of the
    /// end, no rule is used more often than it allows, and the job fails only when that rule is used up.
    pub(in crate::check) fn invariant_rules_bound_the_retries(&self, before: &Item, after: &Item) {
        let rule = "invariant_rules_bound_the_retries";
        let (from, to) = (text(before, "state"), text(after, "state"));
        let (rules, was, is) = (all_rules(after), uses(before), uses(after));
        let of = |uses: &[u64], n: usize| uses.get(n).copied().unwrap_or(0);
        let cause = within(after, "tries", "cause");
        let words = words(&cause);
        let names = |rule: &String| {
            let causes = rule.split('=').next().unwrap_or_default();
            causes.split(',').any(|one| words.iter().any(|word| word == one))
        };
        // A move at no cost uses no rule.
        let is_move = super::moves(after) > super::moves(before);
        let first = rules.iter().position(names).filter(|_| !is_move).unwrap_or(rules.len());
        // If a restore took away a job's allocs, the job is queued again without a count.
        let requeued = from == Some("placed") && to == Some("queued") && set(before).is_empty();
        let is_retry = from == Some("placed") && matches!(to, Some("queued" | "regrouping"));
        let used = |n: usize| u64::from(is_retry && n == first);
        let right = (0..rules.len()).all(|n| {
            let (was, is) = (of(&was, n), of(&is, n));
            is == was + used(n) && is <= rules.get(n).map_or(0, |rule| bound(rule))
        });
        let is_spent =
            |n: usize| rules.get(n).is_some_and(|rule| of(&is, n) == bound(rule) || rule.contains("max-memory"));
        let fails_early = from == Some("placed") && to == Some("failed") && !is_spent(first);
        if (!right && !requeued) || fails_early {
            self.broken(rule, format!("{rules:?}: {before:?} → {after:?}"));
        }
    }
}
