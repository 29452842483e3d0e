//! Makes a failing world small, and tells its story.
//!
//! Guarantees: the smaller world has the same failure, because it breaks the same invariant.
//! Does not: find the smallest world.

use crate::core::{Broken, Line};
use crate::scenario::Scenario;
use crate::world::{How, Outcome, STANDS_STILL, simulate};
use std::collections::BTreeSet;
use std::fmt::Write;

/// How many of the story's lines are printed.
const MOST: usize = 1200;

/// A smaller world that breaks the same invariant: with fewer kinds of faults, fewer hours and fewer jobs.
pub fn shrink(found: &Scenario, how: How, rule: &str, mut say: impl FnMut(&str)) -> Scenario {
    // Each try would wait as long as the first one did, until the world counts as standing still.
    if rule == STANDS_STILL {
        return found.clone();
    }
    let breaks = |scenario: &Scenario| simulate(scenario.clone(), how).broken.filter(|b| b.rule == rule);
    let mut small = found.clone();
    let Some(broken) = breaks(&small) else { return small };
    // What happens after the failure does not matter.
    small = shorter(&small, &broken);
    if breaks(&small).is_none() {
        small = found.clone();
    }
    for fault in found.faults().collect::<Vec<_>>() {
        let mut without = small.clone();
        without.set_chance(fault, 0.0);
        if let Some(broken) = breaks(&without) {
            say(&format!("without {fault:?}: still broken at {}", broken.at));
            let cut = shorter(&without, &broken);
            small = if breaks(&cut).is_some() { cut } else { without };
        }
    }
    let mut jobs = 256;
    while jobs > 1 {
        jobs /= 2;
        let fewer = Scenario { most_jobs: jobs, ..small.clone() };
        if breaks(&fewer).is_some() {
            small = fewer;
        }
    }
    small
}

fn shorter(scenario: &Scenario, broken: &Broken) -> Scenario {
    let hours = broken.at.since(crate::core::START).as_s() / 3600.0 + 0.02;
    Scenario { hours: scenario.hours.min(hours), ..scenario.clone() }
}

/// The story of a failure: who did what to the things that the failure names.
pub fn tell(scenario: &Scenario, how: How) -> String {
    let outcome = simulate(scenario.clone(), How { telling: true, ..how });
    let mut story = String::new();
    let Some(broken) = &outcome.broken else { return "it does not break".into() };
    let faults: Vec<String> = scenario.faults().map(|f| format!("{f:?}")).collect();
    let _ = writeln!(story, "seed {}: {:.2} h, faults: {}", scenario.seed, scenario.hours, faults.join(", "));
    let _ = writeln!(
        story,
        "runs {} s apart, jobs of {} s, {:.1} an hour, policy {}",
        scenario.period_s, scenario.job_s, scenario.jobs_per_hour, scenario.policy
    );
    let names = names(&broken.what);
    let about: Vec<&Line> = lines(&outcome, &names);
    let skipped = about.len().saturating_sub(MOST);
    if skipped > 0 {
        let _ = writeln!(story, "… {skipped} earlier lines");
    }
    for line in about.into_iter().skip(skipped) {
        let s = line.at.since(crate::core::START).as_s();
        let what: String = line.what.chars().take(1200).collect();
        let _ = writeln!(story, "{s:>10.3} s  {:<24} {what}", line.who);
    }
    let _ = writeln!(story, "\n{} does not hold:\n{}", broken.rule, broken.what);
    story
}

fn lines<'a>(outcome: &'a Outcome, names: &BTreeSet<String>) -> Vec<&'a Line> {
    let general = ["the world", "operator"];
    let concerns = |l: &&Line| {
        names.is_empty()
            || names.iter().any(|n| l.what.contains(n.as_str()))
            || (general.contains(&l.who.as_str()) && l.what.len() < 200 && !l.what.contains("release#"))
            || l.what == "killed"
    };
    outcome.lines.iter().filter(concerns).collect()
}

/// The ids that a failure names.
fn names(what: &str) -> BTreeSet<String> {
    let words = what.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let is_ulid = |w: &str| w.len() == 26 && w.chars().all(|c| c.is_ascii_digit() || c.is_ascii_uppercase());
    words
        .filter_map(|w| {
            if w.starts_with("i-") && w.len() > 6 {
                return Some(w.to_owned());
            }
            let id = w.rsplit('-').next().unwrap_or(w);
            is_ulid(id).then(|| id.to_owned())
        })
        .take(8)
        .collect()
}
