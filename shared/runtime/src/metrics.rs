//! The metrics and the log line of a run: one line each, made from the run's answer.
//!
//! Guarantees: metrics have CloudWatch's embedded metric format (EMF), so that the log carries them and no call or
//! permission is needed. A new metric needs one row in `COUNTS`.
//! Does not: write anything for a dry run, for a run that an event started too soon, for a request of a node, or for a
//! run without anything to tell: CloudWatch bills a metric for each hour in which it has a value, so an idle cluster
//! pays for none. It also does not count runs, errors and durations, because Lambda does.

use crate::answer::{ActionOutcome, Ran, RunAnswer, count};
use crate::signs;
use model::functions::{self, POLL_AND_SCALE};
use model::{ActionName, ClusterName, Function, Time};
use serde_json::{Map, Value, json};

const NAMESPACE: &str = "nodekeeper";

/// A metric: its name, and its value of a run.
type Metric = (&'static str, fn(&RunAnswer) -> u64);

/// The counts of a run of poll-and-scale, unless all are 0. The other functions see only parts of the same things.
const COUNTS: &[Metric] = &[
    ("Nodes", |a| a.observed.nodes as u64),
    ("Instances", |a| a.observed.instances as u64),
    ("Jobs", |a| a.observed.jobs as u64),
    ("Allocs", |a| a.observed.allocs as u64),
    ("NodesNotReady", |a| u64::from(a.unready)),
];

/// How many signs are wrong. Without a wrong sign there is no value, so that a healthy cluster does not pay for it.
const SIGNS_WRONG: &str = "SignsWrong";

fn counts(function: &str) -> &'static [Metric] {
    if function == POLL_AND_SCALE.name { COUNTS } else { &[] }
}

/// The names of the metrics that each scheduled function can have, their namespace, and the alarms of the signs, for the
/// template's check.
pub fn to_json() -> Value {
    let all = |f: &Function| counts(f.name).iter().map(|(name, _)| *name).chain([SIGNS_WRONG]).collect::<Value>();
    let names: Map<String, Value> = functions::scheduled().map(|(f, _)| (f.name.to_owned(), all(f))).collect();
    json!({"namespace": NAMESPACE, "names": names, "signs": signs::to_json()})
}

fn actions(answer: &RunAnswer, action: ActionName) -> u64 {
    answer.actions.iter().filter(|a| a.action == action).count() as u64
}

/// The metrics of a run as one EMF object; `None` for a run that did not act, like a dry run, and for a run that has
/// nothing to tell.
pub fn of_run(answer: &RunAnswer, cluster: &ClusterName, now: Time) -> Option<Value> {
    let counted: Vec<_> = counts(answer.function).iter().map(|(name, value)| (*name, value(answer))).collect();
    let any = counted.iter().any(|(_, value)| *value > 0);
    let wrong = Some(answer.wrong.len() as u64).filter(|wrong| *wrong > 0);
    let told: Vec<_> = counted.into_iter().filter(|_| any).chain(wrong.map(|wrong| (SIGNS_WRONG, wrong))).collect();
    (answer.ran == Ran::Whole && !told.is_empty()).then(|| emf(answer.function, cluster, now, &told))
}

fn emf(function: &str, cluster: &ClusterName, now: Time, metrics: &[(&'static str, u64)]) -> Value {
    let mut line = json!({"Cluster": cluster.as_str(), "Function": function});
    if let Some(fields) = line.as_object_mut() {
        fields.extend(metrics.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))));
        let names: Value = metrics.iter().map(|(name, _)| json!({"Name": name, "Unit": "Count"})).collect();
        let directive = json!({"Namespace": NAMESPACE, "Dimensions": [["Cluster", "Function"]], "Metrics": names});
        fields.insert("_aws".to_owned(), json!({"Timestamp": now.as_ms(), "CloudWatchMetrics": [directive]}));
    }
    line
}

/// Writes the log line of a run that acted. Other runs leave none.
pub fn log(answer: &RunAnswer) {
    if answer.ran != Ran::Whole {
        return;
    }
    tracing::info!(
        function = answer.function,
        nodes = answer.observed.nodes,
        instances = answer.observed.instances,
        jobs = answer.observed.jobs,
        unread = answer.observed.unread,
        allocs = answer.observed.allocs,
        done = count(&answer.actions, ActionOutcome::Done),
        conflicts = count(&answer.actions, ActionOutcome::Conflict),
        failed = count(&answer.actions, ActionOutcome::Failed),
        left = count(&answer.actions, ActionOutcome::Left),
        held_back = actions(answer, ActionName::HoldBack),
        warnings = actions(answer, ActionName::Warn),
        wrong = answer.wrong.join(" "),
        duration_ms = answer.duration_ms,
        "run"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::ActionAnswer;
    use crate::clock::RunClock;
    use crate::observation::ObservedCounts;
    use model::functions::SWEEP_DISPATCH;
    use std::time::Duration;

    fn answer(function: Function, ran: Ran) -> RunAnswer {
        let clock = RunClock::new(Time::from_ms(0), None, Duration::from_secs(1));
        let observed = ObservedCounts { nodes: 7, ..ObservedCounts::default() };
        RunAnswer::new(function.name, Time::from_ms(5), observed, Vec::<ActionAnswer>::new(), &clock, ran)
    }

    /// An answer of a run that saw nothing.
    fn idle(function: Function) -> RunAnswer {
        RunAnswer { observed: ObservedCounts::default(), ..answer(function, Ran::Whole) }
    }

    fn line(answer: &RunAnswer) -> Option<Value> {
        of_run(answer, &"c".parse().unwrap(), Time::from_ms(9))
    }

    fn named(line: &Value) -> Vec<&str> {
        let metrics = line["_aws"]["CloudWatchMetrics"][0]["Metrics"].as_array().unwrap();
        metrics.iter().map(|m| m["Name"].as_str().unwrap()).collect()
    }

    #[test]
    fn a_run_has_every_metric_once_and_names_each_in_its_directive() {
        let line = line(&RunAnswer { wrong: vec!["brake", "row"], ..answer(POLL_AND_SCALE, Ran::Whole) }).unwrap();
        let told = |name: &str| line[name].as_u64();
        assert_eq!((told("Nodes"), told("NodesNotReady"), told("SignsWrong")), (Some(7), Some(0), Some(2)));
        assert_eq!(named(&line), ["Nodes", "Instances", "Jobs", "Allocs", "NodesNotReady", "SignsWrong"]);
        assert!(named(&line).iter().all(|name| told(name).is_some()));
        assert_eq!(
            (line["_aws"]["Timestamp"].as_i64(), line["Cluster"].as_str(), line["Function"].as_str()),
            (Some(9), Some("c"), Some("poll-and-scale"))
        );
        assert_eq!(line["_aws"]["CloudWatchMetrics"][0]["Dimensions"], json!([["Cluster", "Function"]]));
    }

    #[test]
    fn nobody_pays_for_a_metric_that_says_nothing() {
        assert_eq!(line(&idle(POLL_AND_SCALE)), None, "an idle cluster");
        assert!(!named(&line(&answer(POLL_AND_SCALE, Ran::Whole)).unwrap()).contains(&SIGNS_WRONG), "all is well");
        assert_eq!(line(&answer(SWEEP_DISPATCH, Ran::Whole)), None, "poll-and-scale counts the nodes");
        for ran in [Ran::DryRun, Ran::NotItsTurn] {
            assert_eq!(line(&RunAnswer { wrong: vec!["brake"], ..answer(POLL_AND_SCALE, ran) }), None);
        }
    }

    #[test]
    fn what_is_wrong_or_not_ready_is_told_also_when_nothing_else_is_there() {
        assert_eq!(named(&line(&RunAnswer { wrong: vec!["brake"], ..idle(POLL_AND_SCALE) }).unwrap()), ["SignsWrong"]);
        assert_eq!(
            named(&line(&RunAnswer { wrong: vec!["row"], ..answer(SWEEP_DISPATCH, Ran::Whole) }).unwrap()),
            ["SignsWrong"]
        );
        let unready = RunAnswer { unready: 1, ..idle(POLL_AND_SCALE) };
        assert_eq!(line(&unready).unwrap()["NodesNotReady"], 1);
    }

    #[test]
    fn the_contract_names_the_metrics_of_each_scheduled_function() {
        let names = &to_json()["names"];
        let functions: Vec<&String> = names.as_object().unwrap().keys().collect();
        assert_eq!(functions, ["clean-stale-records", "poll-and-scale", "sweep-dispatch"]);
        assert_eq!(names["sweep-dispatch"], json!(["SignsWrong"]));
        assert!(names["poll-and-scale"].as_array().unwrap().contains(&json!("NodesNotReady")));
    }
}
