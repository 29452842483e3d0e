//! The metrics and the log line of a run: one line each, made from the run's answer.
//!
//! Guarantees: metrics have CloudWatch's embedded metric format (EMF), so that the log carries them and no
//! call or permission is needed. A new metric needs one row in `METRICS`, or is one of a
//! sign.
//! Does not: write anything for a dry run, for a run that an event started too soon, for a request of a node, or for a
//! run without anything to see, to do or to tell: CloudWatch bills a metric for each hour in which it has a value, so an
//! idle cluster pays for none.

use crate::answer::{Outcome, Ran, RunAnswer, count};
use crate::observation::Observed;
use crate::signs;
use model::ActionName;
use model::functions::{self, Function};
use model::ids::ClusterName;
use model::time::Time;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// The namespace of all metrics.
pub const NAMESPACE: &str = "nodekeeper";

/// One metric of a run: its name, its unit in CloudWatch, and its value.
type Metric = (&'static str, &'static str, fn(&RunAnswer) -> u64);

/// The metrics of every run, besides those of the [`signs`]. Dimensions: `Cluster` and `Function`.
const METRICS: &[Metric] = &[
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

/// The metrics of the signs that this function counts, each once.
fn of_signs(function: &Function) -> BTreeSet<&'static str> {
    signs::alarms().filter(|alarm| alarm.by == *function).map(|alarm| alarm.metric).collect()
}

/// The names of the metrics that the runs of a scheduled function have.
pub fn names(function: &Function) -> impl Iterator<Item = &'static str> {
    METRICS.iter().map(|(name, ..)| *name).chain(of_signs(function))
}

/// The names of all metrics of each scheduled function, their namespace, and the alarms of the signs, for the template's
/// check.
pub fn to_json() -> Value {
    let all = |f: &Function| names(f).chain([RUNS_FAILED]).map(Value::from).collect::<Value>();
    let names: Map<String, Value> = functions::scheduled().map(|(f, _)| (f.name.to_owned(), all(f))).collect();
    json!({"namespace": NAMESPACE, "names": names, "alarms": signs::to_json()})
}

fn outcomes(answer: &RunAnswer, outcome: Outcome) -> u64 {
    count(&answer.actions, outcome) as u64
}

fn actions(answer: &RunAnswer, action: ActionName) -> u64 {
    answer.actions.iter().filter(|a| a.action == action).count() as u64
}

/// The metrics of a run as one EMF object; `None` for a run that did not act, like a dry run, and for a run that saw
/// nothing, did nothing and found nothing unusual.
pub fn of_run(answer: &RunAnswer, cluster: &ClusterName, now: Time) -> Option<Value> {
    let of_each = METRICS.iter().map(|(name, unit, value)| (*name, *unit, value(answer)));
    let of_signs = answer.measured.iter().map(|(name, value)| (*name, "Count", *value));
    let Observed { nodes, instances, jobs, allocs, unread: _ } = answer.observed;
    let something =
        nodes + instances + jobs + allocs + answer.actions.len() > 0 || signs::must_be_told(&answer.measured);
    (answer.ran == Ran::Whole && something).then(|| emf(answer.function, cluster, now, of_each.chain(of_signs)))
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
    use crate::answer::{ActionAnswer, ActionResult};
    use crate::clock::RunClock;
    use model::action::About;
    use model::events::Subject;
    use model::functions::{CLEAN_STALE_RECORDS, SWEEP_DISPATCH};
    use model::reason::Reason;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn answer_of(function: &'static str, ran: Ran) -> RunAnswer {
        let clock = RunClock::new(Time::from_ms(0), None, Duration::from_secs(1));
        let row = |action| About::Said(Subject::Cluster).row(action, &Reason::DrainedAndIdle {});
        let actions = vec![
            ActionAnswer::new(row(ActionName::Launch), ActionResult::of(Outcome::Done)),
            ActionAnswer::new(row(ActionName::Launch), ActionResult::of(Outcome::Left)),
            ActionAnswer::new(row(ActionName::HoldBack), ActionResult::of(Outcome::Said)),
        ];
        let observed = Observed { nodes: 7, ..Observed::default() };
        RunAnswer::new(function, Time::from_ms(5), observed, actions, &clock, ran)
    }

    fn answer(ran: Ran) -> RunAnswer {
        answer_of("poll-and-scale", ran)
    }

    /// An answer of a run that saw nothing and did nothing.
    fn idle(function: &'static str) -> RunAnswer {
        let observed = Observed::default();
        RunAnswer { observed, actions: Vec::new(), ..answer_of(function, Ran::Whole) }
    }

    fn line(answer: &RunAnswer) -> Option<Value> {
        of_run(answer, &"c".parse().unwrap(), Time::from_ms(9))
    }

    #[test]
    fn a_run_has_every_metric_once_and_names_each_in_its_directive() {
        let line = line(&answer(Ran::Whole)).unwrap();
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
    fn each_number_of_a_sign_is_a_metric_of_the_functions_that_count_it() {
        let measured = BTreeMap::from([("HeldByBrakes", 1), ("FailedStarts", 4), ("RowsQuarantined", 5)]);
        let line = line(&answer(Ran::Whole).finding(measured)).unwrap();
        assert_eq!(
            (&line["HeldByBrakes"], &line["FailedStarts"], &line["RowsQuarantined"]),
            (&json!(1), &json!(4), &json!(5))
        );
        let of = |function: Function| of_signs(&function).into_iter().collect::<Vec<_>>();
        assert_eq!(of(SWEEP_DISPATCH), ["FunctionsOverdue", "RowsQuarantined"]);
        assert_eq!(of(CLEAN_STALE_RECORDS), ["JobsFailing", "Orphans", "RowsQuarantined", "Strangers"]);
    }

    #[test]
    fn what_a_sign_measured_is_told_also_when_nothing_else_is_there() {
        let told = |metric, value| line(&idle("poll-and-scale").finding(BTreeMap::from([(metric, value)]))).is_some();
        assert!(!told("HeldByBrakes", 0), "an idle cluster pays for no metric");
        assert!(told("HeldByBrakes", 1));
        assert!(!told("FailedStarts", 9), "without work, their number stays for ever");
    }

    #[test]
    fn the_contract_names_the_metrics_of_each_scheduled_function() {
        let names = &to_json()["names"];
        let functions: Vec<&String> = names.as_object().unwrap().keys().collect();
        assert_eq!(functions, ["clean-stale-records", "poll-and-scale", "sweep-dispatch"]);
        let has = |function: &str, name: &str| names[function].as_array().unwrap().contains(&json!(name));
        assert!(has("clean-stale-records", "Orphans") && !has("poll-and-scale", "Orphans"));
        assert!(has("sweep-dispatch", "Nodes") && has("sweep-dispatch", RUNS_FAILED));
    }

    #[test]
    fn only_a_run_that_acted_has_metrics_but_a_failed_one_has_its_own() {
        let cluster = "c".parse().unwrap();
        for ran in [Ran::DryRun, Ran::NotItsTurn] {
            assert_eq!(line(&answer(ran)), None);
        }
        let mut nothing = answer(Ran::Whole);
        nothing.actions.clear();
        assert!(line(&nothing).is_some(), "there are nodes");
        nothing.observed = Observed::default();
        assert_eq!(line(&nothing), None, "an idle cluster pays for no metric");
        let failed = of_failed_run("poll-and-scale", &cluster, Time::from_ms(9));
        assert_eq!(failed[RUNS_FAILED], 1);
    }
}
