//! The metrics and the log line of a run: one line each, made from the run's answer.
//!
//! Guarantees: metrics have CloudWatch's embedded metric format (EMF), so that the log carries them and no
//! call or permission is needed. A new metric needs one row in [`METRICS`].
//! Does not: write anything for a dry run, for a run that an event started too soon, for a request of a node, or for a
//! run without anything to see or to do: CloudWatch bills a metric for each hour in which it has a value, so an idle
//! cluster pays for none.

use crate::answer::{Outcome, Ran, RunAnswer, count};
use crate::observation::Observed;
use model::ActionName;
use model::ids::ClusterName;
use model::time::Time;
use serde_json::{Value, json};

/// The namespace of all metrics.
pub const NAMESPACE: &str = "nodekeeper";

/// One metric of a run: its name, its unit in CloudWatch, and its value.
type Metric = (&'static str, &'static str, fn(&RunAnswer) -> u64);

/// Every metric of a run. Dimensions: `Cluster` and `Function`.
pub const METRICS: &[Metric] = &[
    ("Runs", "Count", |_| 1),
    ("ActionsDone", "Count", |a| outcomes(a, Outcome::Done)),
    ("ActionsConflicted", "Count", |a| outcomes(a, Outcome::Conflict)),
    ("ActionsFailed", "Count", |a| outcomes(a, Outcome::Failed)),
    ("ActionsLeft", "Count", |a| outcomes(a, Outcome::Left)),
    ("HeldBack", "Count", |a| actions(a, ActionName::HoldBack)),
    ("Warnings", "Count", |a| actions(a, ActionName::Warn)),
    ("Nodes", "Count", |a| a.observed.nodes as u64),
    ("Instances", "Count", |a| a.observed.instances as u64),
    ("Jobs", "Count", |a| a.observed.jobs as u64),
    ("JobsUnread", "Count", |a| a.observed.unread as u64),
    ("Allocs", "Count", |a| a.observed.allocs as u64),
    ("Duration", "Milliseconds", |a| u64::try_from(a.duration_ms).unwrap_or(0)),
];

/// The metric of a run that could not observe.
pub const RUNS_FAILED: &str = "RunsFailed";

fn outcomes(answer: &RunAnswer, outcome: Outcome) -> u64 {
    count(&answer.actions, outcome) as u64
}

fn actions(answer: &RunAnswer, action: ActionName) -> u64 {
    answer.actions.iter().filter(|a| a.action == action).count() as u64
}

/// The metrics of a run as one EMF object; `None` for a run that did not act, like a dry run, and for a run that saw
/// nothing and did nothing.
pub fn of_run(answer: &RunAnswer, cluster: &ClusterName, now: Time) -> Option<Value> {
    let metrics = METRICS.iter().map(|(name, unit, value)| (*name, *unit, value(answer)));
    let Observed { nodes, instances, jobs, allocs, unread: _ } = answer.observed;
    let something = nodes + instances + jobs + allocs + answer.actions.len() > 0;
    (answer.ran == Ran::Whole && something).then(|| emf(answer.function, cluster, now, metrics))
}

/// The metrics of a run that could not observe.
pub fn of_failed_run(function: &str, cluster: &ClusterName, now: Time) -> Value {
    emf(function, cluster, now, std::iter::once((RUNS_FAILED, "Count", 1)))
}

fn emf(
    function: &str,
    cluster: &ClusterName,
    now: Time,
    metrics: impl Iterator<Item = (&'static str, &'static str, u64)>,
) -> Value {
    let mut line = json!({"Cluster": cluster.as_str(), "Function": function});
    let mut names = Vec::new();
    if let Some(fields) = line.as_object_mut() {
        for (name, unit, value) in metrics {
            fields.insert(name.to_owned(), value.into());
            names.push(json!({"Name": name, "Unit": unit}));
        }
        let directive = json!({"Namespace": NAMESPACE, "Dimensions": [["Cluster", "Function"]], "Metrics": names});
        fields.insert("_aws".to_owned(), json!({"Timestamp": now.as_ms(), "CloudWatchMetrics": [directive]}));
    }
    line
}

/// Writes the log line of a run.
pub fn log(answer: &RunAnswer) {
    if answer.ran != Ran::Whole {
        return;
    }
    tracing::info!(
        function = answer.function,
        nodes = answer.observed.nodes,
        instances = answer.observed.instances,
        jobs = answer.observed.jobs,
        allocs = answer.observed.allocs,
        done = outcomes(answer, Outcome::Done),
        conflicts = outcomes(answer, Outcome::Conflict),
        failed = outcomes(answer, Outcome::Failed),
        left = answer.left_for_next_run,
        held_back = actions(answer, ActionName::HoldBack),
        duration_ms = answer.duration_ms,
        "run"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::ActionAnswer;
    use crate::clock::RunClock;
    use model::action::About;
    use model::events::Subject;
    use model::reason::Reason;
    use std::time::Duration;

    fn answer(ran: Ran) -> RunAnswer {
        let clock = RunClock::new(Time::from_ms(0), None, Duration::from_secs(1));
        let row = |action| About::Said(Subject::Cluster).row(action, &Reason::DrainedAndIdle {});
        let actions = vec![
            ActionAnswer::new(row(ActionName::Launch), Outcome::Done, None),
            ActionAnswer::new(row(ActionName::Launch), Outcome::Left, None),
            ActionAnswer::new(row(ActionName::HoldBack), Outcome::Said, None),
        ];
        let observed = Observed { nodes: 7, ..Observed::default() };
        RunAnswer::new("poll-and-scale", Time::from_ms(5), observed, actions, &clock, ran)
    }

    #[test]
    fn a_run_has_every_metric_once_and_names_each_in_its_directive() {
        let cluster = "c".parse().unwrap();
        let line = of_run(&answer(Ran::Whole), &cluster, Time::from_ms(9)).unwrap();
        let told = |name: &str| line[name].as_u64();
        assert_eq!(
            (told("ActionsDone"), told("ActionsLeft"), told("HeldBack"), told("Nodes")),
            (Some(1), Some(1), Some(1), Some(7))
        );
        let directive = &line["_aws"]["CloudWatchMetrics"][0];
        let named: Vec<&str> =
            directive["Metrics"].as_array().unwrap().iter().map(|m| m["Name"].as_str().unwrap()).collect();
        assert_eq!(named, METRICS.iter().map(|(name, ..)| *name).collect::<Vec<_>>());
        assert!(named.iter().all(|name| told(name).is_some()));
        assert_eq!(
            (line["_aws"]["Timestamp"].as_i64(), line["Cluster"].as_str(), line["Function"].as_str()),
            (Some(9), Some("c"), Some("poll-and-scale"))
        );
        assert_eq!(directive["Dimensions"], json!([["Cluster", "Function"]]));
    }

    #[test]
    fn only_a_run_that_acted_has_metrics_but_a_failed_one_has_its_own() {
        let cluster = "c".parse().unwrap();
        for ran in [Ran::DryRun, Ran::NotItsTurn] {
            assert_eq!(of_run(&answer(ran), &cluster, Time::from_ms(9)), None);
        }
        let mut nothing = answer(Ran::Whole);
        nothing.actions.clear();
        assert!(of_run(&nothing, &cluster, Time::from_ms(9)).is_some(), "there are nodes");
        nothing.observed = Observed::default();
        assert_eq!(of_run(&nothing, &cluster, Time::from_ms(9)), None, "an idle cluster pays for no metric");
        let failed = of_failed_run("poll-and-scale", &cluster, Time::from_ms(9));
        assert_eq!(failed[RUNS_FAILED], 1);
    }
}
