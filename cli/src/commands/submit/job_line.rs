//! A line of `submit --file`: a job as a JSON object.
//!
//! Guarantees: a line gives each field once, and an error names the field. null means that a field is not given. A number without
//! a fraction is whole, however it is written. What `job --json` shows is a line, which submits the same job anew.
//! Does not: look at other lines, or check what a job may ask for: `JobSpec` does.

use super::machine_options::market;
use super::strict_json;
use crate::commands::amounts;
use model::{AfterEnd, Arch, JobSpec, Reconcile, UnknownWord};
use serde_json::{Map, Number, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Parses an amount with a unit.
type Measure = fn(&str) -> Result<u64, String>;

#[derive(Clone, Copy)]
enum Form {
    Whole,
    /// A whole number, or a text with a unit. The field of the job has this suffix.
    Measured(&'static str, Measure),
    Text,
    /// A word from a closed list.
    Word(fn(&str) -> Result<Value, UnknownWord>),
    Flag,
    /// A list of texts, or a line for the shell.
    Command,
    Texts,
    TextTable,
    Pack,
    /// The jobs that this job follows, and how they must end.
    After(AfterEnd),
}

/// The fields of a line, by their form.
const FIELDS: &[(Form, &str)] = &[
    (Form::After(AfterEnd::Success), "after"),
    (Form::After(AfterEnd::Any), "after_any"),
    (Form::Command, "command"),
    (Form::Flag, "exclusive keep_failed replace"),
    (Form::Measured("_gib", amounts::gibibytes), "gpu_memory scratch"),
    (Form::Measured("_mib", amounts::mebibytes), "memory"),
    (Form::Measured("_s", amounts::seconds), "kill_timeout lost_after stop_notice timeout"),
    (Form::Pack, "pack"),
    (Form::Text, "entrypoint gpu_type image instance_type name registry_login role stop_signal"),
    (Form::TextTable, "env inputs secret_files secrets ulimits"),
    (Form::Texts, "caches outputs require retry"),
    (Form::Whole, "array_limit gpu_memory_gib gpus kill_timeout_s lost_after_s memory_mib nodes priority"),
    (Form::Whole, "retry_failed retry_lost scratch_gib stop_notice_s timeout_s vcpus"),
    (Form::Word(|text| text.parse::<Arch>().map(|word| word.as_str().into())), "arch"),
    (Form::Word(|text| market(text).map(|word| word.as_str().into())), "market"),
    (Form::Word(|text| text.parse::<Reconcile>().map(|word| word.as_str().into())), "reconcile"),
];

/// The fields of `job --json` that say how a job is and was. A line may have them, and they are ignored.
const STATE: &str = "all_allocs allocs cause containers copies done elements exit_code expires_at failed_count finished_at \
    image_digest job_id lost_count queue rank reason state submitted_at tries version waits_because";

fn fields() -> impl Iterator<Item = (&'static str, Form)> {
    FIELDS.iter().flat_map(|(form, names)| names.split(' ').map(move |name| (name, *form)))
}

/// The options whose field has another name.
const FIELDS_OF_OPTIONS: &[(&str, &str)] = &[
    ("at-once", "pack.at_once"),
    ("cache", "caches"),
    ("in", "inputs"),
    ("out", "outputs"),
    ("out-failed", "keep_failed"),
    ("secret", "secrets"),
    ("secret-file", "secret_files"),
    ("ulimit", "ulimits"),
];

/// An error about a job, with the names of fields in place of options.
pub(in crate::commands) fn about_fields(said: &str) -> String {
    let mut parts = said.split("--");
    let mut about = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(part.len());
        let (option, rest) = part.split_at(end);
        let named = FIELDS_OF_OPTIONS.iter().find(|(known, _)| *known == option);
        let field = named.map_or_else(|| option.replace('-', "_"), |(_, field)| (*field).to_owned());
        let is_field = named.is_some() || fields().any(|(known, _)| known == field);
        about.push_str(&if is_field { field } else { format!("--{option}") });
        about.push_str(rest);
    }
    about
}

/// The jobs that a line follows, as it names them, each with how it must end.
pub(in crate::commands) type Follows = Vec<(String, AfterEnd)>;

/// Reads one line. `defaults` has the options of the command line, which the line overrides.
pub(in crate::commands) fn read(line: &str, defaults: &Map<String, Value>) -> Result<(JobSpec, Follows), String> {
    let not_json = |e: serde_json::Error| format!("it is not a JSON object on one line (`jq -c .` makes it one): {e}");
    let Value::Object(given) = strict_json::parse(line).map_err(not_json)? else {
        return Err("it is not a JSON object: write {\"command\": [\"true\"]}, for example".to_owned());
    };
    let (mut merged, mut follows, mut said) = (defaults.clone(), Vec::new(), BTreeMap::new());
    for (name, value) in given {
        if value.is_null() || STATE.split(' ').any(|known| known == name) {
            continue;
        }
        let (_, form) = fields().find(|(field, _)| *field == name).ok_or_else(|| {
            let all: BTreeSet<&str> = fields().map(|(field, _)| field).collect();
            format!("{name:?} is not a field of a job: {}", all.into_iter().collect::<Vec<_>>().join(", "))
        })?;
        let field = if let Form::Measured(unit, _) = form { format!("{name}{unit}") } else { name.clone() };
        if let Some(other) = said.insert(field.clone(), name.clone()) {
            return Err(format!("{other} and {name} are the same field: give one of them"));
        }
        let wrong = |what: String| format!("{name}: {what}");
        match form {
            Form::After(end) => follows.extend(followed(end, value).map_err(wrong)?),
            Form::TextTable => {
                let more = texts_by_name(value).map_err(wrong)?;
                let table = merged.entry(field).or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(table) = table {
                    table.extend(more);
                }
            }
            _ => {
                let value = formed(form, value).map_err(wrong)?;
                merged.insert(field, value);
            }
        }
    }
    let spec = serde_json::from_value(Value::Object(merged.clone()));
    spec.map(|spec| (spec, follows)).map_err(|e| blamed(defaults, &merged, &said, &e))
}

/// The error, with the name of its field. It is the field that causes an error without the others.
fn blamed(
    defaults: &Map<String, Value>,
    merged: &Map<String, Value>,
    said: &BTreeMap<String, String>,
    error: &serde_json::Error,
) -> String {
    let alone = |field: &String| {
        let mut one = defaults.clone();
        one.insert(field.clone(), merged.get(field).cloned().unwrap_or_default());
        serde_json::from_value::<JobSpec>(Value::Object(one)).err()
    };
    let found = said.iter().find_map(|(field, name)| Some((name, alone(field)?)));
    found.map_or_else(|| error.to_string(), |(name, error)| format!("{name}: {error}"))
}

/// The value in the form of the job's field.
fn formed(form: Form, value: Value) -> Result<Value, String> {
    let is_text = |v: &Value| v.is_string();
    match (form, value) {
        (Form::Measured(_, measure), Value::String(text)) => measure(&text).map(Value::from),
        (Form::Whole | Form::Measured(..), Value::Number(number)) => {
            whole(&number).map(Value::from).ok_or_else(|| format!("{number} is no whole number from 0 on"))
        }
        (Form::Text, value @ Value::String(_)) | (Form::Flag, value @ Value::Bool(_)) => Ok(value),
        (Form::Pack, value @ Value::Object(_)) => Ok(value),
        (Form::Word(read), Value::String(text)) => read(&text).map_err(|e| e.to_string()),
        (Form::Command, Value::String(line)) => Ok(vec!["sh".to_owned(), "-c".to_owned(), line].into()),
        (Form::Command | Form::Texts, Value::Array(texts)) if texts.iter().all(is_text) => Ok(texts.into()),
        (form, value) => Err(format!("it must be {}, and not {}", wanted(form), shown(&value))),
    }
}

const fn wanted(form: Form) -> &'static str {
    match form {
        Form::Whole => "a whole number",
        Form::Measured(..) => "a whole number, or a text with a unit",
        Form::Text | Form::Word(_) => "a text",
        Form::Flag => "true or false",
        Form::Command => "a list of texts, or a line for the shell",
        Form::Texts => "a list of texts",
        Form::TextTable => "an object whose values are texts",
        Form::Pack => "an object such as {\"elements\": \"0-99\", \"at_once\": 4}",
        Form::After(_) => "the name or the id of a job, or a list of them",
    }
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() > 60 { format!("{}…", text.chars().take(60).collect::<String>()) } else { text }
}

/// The number, if it is whole and not negative: 2, 2.0 and 2e0 are the same in JSON.
fn whole(number: &Number) -> Option<u64> {
    // Above 2^53, not every whole number is a floating point number.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let exact = number.as_f64().filter(|n| n.fract() == 0.0 && (0.0..=EXACT).contains(n));
    number.as_u64().or_else(|| exact.map(|n| n as u64))
}

fn texts_by_name(value: Value) -> Result<Map<String, Value>, String> {
    let Value::Object(table) = value else {
        return Err(format!("it must be {}, and not {}", wanted(Form::TextTable), shown(&value)));
    };
    let said: Map<String, Value> = table.into_iter().filter(|(_, value)| !value.is_null()).collect();
    match said.iter().find(|(_, value)| !value.is_string()) {
        Some((name, value)) => Err(format!("{name:?} must be a text, and not {}: write it in quotes", shown(value))),
        None => Ok(said),
    }
}

/// The jobs that a line follows: a name or an id, a list of them, or the object that `job --json` shows, of ids and ends.
fn followed(end: AfterEnd, value: Value) -> Result<Follows, String> {
    let wrong = |value: &Value| format!("it must be {}, and not {}", wanted(Form::After(end)), shown(value));
    match value {
        Value::String(job) => Ok(vec![(job, end)]),
        Value::Array(jobs) => {
            let job = |job: Value| job.as_str().map(|job| (job.to_owned(), end)).ok_or_else(|| wrong(&job));
            jobs.into_iter().map(job).collect()
        }
        Value::Object(ends) if end == AfterEnd::Success => {
            let job = |(job, end): (String, Value)| {
                serde_json::from_value(end).map(|end| (job, end)).map_err(|e| e.to_string())
            };
            ends.into_iter().map(job).collect()
        }
        other => Err(wrong(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::show;
    use model::elements::Pack;
    use model::fixtures::{self, at};
    use model::{Alloc, FailurePolicy, Job, MachineNeed, MarketNeed, Needs, Work};

    fn line(text: &str) -> Result<(JobSpec, Follows), String> {
        let Value::Object(defaults) = serde_json::to_value(JobSpec::default()).unwrap() else { panic!() };
        read(text, &defaults)
    }

    #[test]
    fn null_says_nothing_and_a_number_without_a_fraction_is_whole() {
        let (spec, follows) = line(
            r#"{"command": "true", "env": {"A": "1", "B": null}, "name": null, "vcpus": 2.0, "memory": 1e3, "timeout": null,
                "timeout_s": 3.60e2, "after": null, "market": null}"#,
        )
        .unwrap();
        assert_eq!((spec.needs.vcpus, spec.needs.memory_mib, spec.work.timeout_s, spec.name), (2, 1000, 360, None));
        assert_eq!((spec.env.len(), follows.len()), (1, 0));
    }

    #[test]
    fn every_mistake_names_its_field() {
        for (text, says) in [
            (r#"{"vcpus": 2.5}"#, "vcpus: 2.5 is no whole number"),
            (r#"{"vcpus": -1}"#, "vcpus: -1 is no whole number"),
            (r#"{"vcpus": 1e20}"#, "is no whole number from 0 on"),
            (r#"{"vcpus": 4294967296}"#, "vcpus: invalid value"),
            (r#"{"vcpus": "2"}"#, "vcpus: it must be a whole number, and not \"2\""),
            (r#"{"timeout_s": "1h"}"#, "timeout_s: it must be a whole number"),
            (r#"{"memory": "lots"}"#, "memory: it must be a number of MiB"),
            (r#"{"memory": 1.5}"#, "memory: 1.5 is no whole number"),
            (r#"{"name": 7}"#, "name: it must be a text, and not 7"),
            (r#"{"exclusive": "yes"}"#, "exclusive: it must be true or false"),
            (r#"{"market": "gift"}"#, "market: "),
            (r#"{"arch": "riscv"}"#, "arch: "),
            (r#"{"require": "nvme"}"#, "require: it must be a list of texts"),
            (r#"{"gpu_memory": "much"}"#, "gpu_memory: "),
            (r#"{"reconcile": "worst"}"#, "reconcile: "),
            (r#"{"command": ["a", null]}"#, "command: it must be a list of texts"),
            (r#"{"caches": "a"}"#, "caches: it must be a list of texts"),
            (r#"{"env": {"A": 1}}"#, "env: \"A\" must be a text, and not 1"),
            (r#"{"env": ["A=1"]}"#, "env: it must be an object"),
            (r#"{"after": 7}"#, "after: it must be the name or the id of a job"),
            (r#"{"after": {"a": "never"}}"#, "after: "),
            (r#"{"array_limit": 0}"#, "array_limit: "),
            (r#"{"retry": ["oom=again"]}"#, "retry: the retry rule \"oom=again\" has \"oom\", which is no cause"),
            (r#"{"retry": "lost=fail"}"#, "retry: it must be a list of texts"),
            (r#"{"stop_signal": "STOPP"}"#, "stop_signal: \"STOPP\" is not a signal"),
            (r#"{"vcpu": 1}"#, "\"vcpu\" is not a field of a job: after, after_any, "),
            (r#"{"memory": 5, "memory_mib": 5}"#, "memory and memory_mib are the same field"),
            (r#"{"timeout_s": 5, "timeout": "1h"}"#, "are the same field"),
            (r#"{"name": "a", "name": "a"}"#, "\"name\" stands there twice"),
            (r#"{"env": {"A": "1", "A": "2"}}"#, "\"A\" stands there twice"),
            ("[]", "it is not a JSON object"),
            ("{", "it is not a JSON object on one line (`jq -c .` makes it one)"),
        ] {
            let error = line(text).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_line_may_be_a_pack() {
        let pack =
            |text: &str| line(&format!(r#"{{"command": ["true"], "pack": {text}}}"#)).map(|(spec, _)| spec.work.pack);
        let elements = "0-9,12".parse().unwrap();
        assert_eq!(pack(r#"{"elements": "0-9,12"}"#), Ok(Some(Pack { elements, at_once: 1 })));
        for bad in ["3", r#"{"elements": "9-0"}"#, "{}", r#"{"elements": 3}"#] {
            assert!(pack(bad).is_err_and(|e| e.contains("pack")), "{bad}");
        }
    }

    #[test]
    fn a_mistake_in_a_line_names_its_field() {
        for (said, about) in [
            ("--nodes must be 1 to 256, it is 0", "nodes must be 1 to 256, it is 0"),
            ("--gpu-type and --gpu-memory say nothing", "gpu_type and gpu_memory say nothing"),
            ("--ulimit \"x\"; give --role NAME", "ulimits \"x\"; give role NAME"),
            ("--at-once must be 1", "pack.at_once must be 1"),
            ("--no-such stays, as does a -- b", "--no-such stays, as does a -- b"),
        ] {
            assert_eq!(about_fields(said), about);
        }
    }

    #[test]
    fn what_job_json_shows_is_a_line() {
        let spec = JobSpec {
            env: [("A".into(), "1".into())].into(),
            name: Some("x".into()),
            array_limit: serde_json::from_value(2.into()).unwrap(),
            needs: Needs {
                machine: MachineNeed {
                    instance_type: Some("m7a.large".into()),
                    market: Some(MarketNeed::Spot),
                    arch: Some(Arch::X86_64),
                    gpu_type: Some("a10g".into()),
                    gpu_memory_gib: 24,
                    require: ["nvme".into()].into(),
                    containers: false,
                },
                gpus: 2,
                exclusive: true,
                memory_mib: 5,
                ..Needs::default()
            },
            work: Work {
                command: vec!["a".into(), "b".into()],
                image: Some("alpine".into()),
                entrypoint: Some("/bin/sh".into()),
                image_digest: None,
                registry_login: Some("/login".into()),
                caches: vec!["c".into()],
                timeout_s: 9,
                role: Some("reader".into()),
                secrets: [("S".into(), "/s".into())].into(),
                secret_files: [("F".into(), "/f#a".into())].into(),
                inputs: [("a".into(), "s3://data/a".parse().unwrap())].into(),
                outputs: vec!["b=s3://data/b".parse().unwrap()],
                keep_failed: true,
                ulimits: [("nofile".into(), "1:2".into())].into(),
                pack: None,
            },
            failure_policy: FailurePolicy {
                replace: true,
                retry: vec!["exit:75=again*2,pause=30s".parse().unwrap()],
                retry_failed: 1,
                stop_signal: Some("USR1".parse().unwrap()),
                stop_notice_s: 5,
                ..FailurePolicy::default()
            },
            ..JobSpec::default()
        };
        let followed = fixtures::job(7).summary.job_id;
        let given = JobSpec { after: [(followed, AfterEnd::Any)].into(), ..spec.clone() };
        let job = Job::submit(fixtures::job(1).summary.job_id, given, at(0)).unwrap();
        let shown = show::flat(&job).unwrap();
        let (again, follows) = line(&shown.to_string()).unwrap();
        assert_eq!((again, follows), (spec, vec![(followed.to_string(), AfterEnd::Any)]));
        // A job that has run, with its allocs.
        let alloc = Alloc::place(fixtures::alloc_id(1), &job, &fixtures::ready(1), at(1)).unwrap();
        let mut ran = job.with_placed(&[alloc.id()]).unwrap();
        (ran.reason, ran.finished_at, ran.expires_at) = (Some("why".into()), Some(at(9)), Some(9));
        ran.summary.done = [0].into();
        ran.work.image_digest = format!("sha256:{}", "0".repeat(64)).parse().ok();
        let mut shown = show::flat(&ran).unwrap();
        shown["all_allocs"] = serde_json::json!([alloc]);
        shown["waits_because"] = "it runs".into();
        assert_eq!(line(&shown.to_string()).unwrap().0.name.as_deref(), Some("x"));
        let known: BTreeSet<&str> = fields().map(|(field, _)| field).chain(STATE.split(' ')).collect();
        assert_eq!(
            shown.as_object().unwrap().keys().filter(|name| !known.contains(name.as_str())).count(),
            0,
            "{shown}"
        );
    }
}
