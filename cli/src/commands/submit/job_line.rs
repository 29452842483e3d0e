//! A line of `submit --file`: a job as a JSON object.
//!
//! Guarantees: a line gives each field once, and an error names the field. null means that a field is not given. What `job --json`
//! shows is a line, which submits the same job anew.
//! Does not: look at other lines, or check what a job may ask for: `JobSpec` does.

use super::job_files::FileOptions;
use super::{JobOptions, strict_json};
use clap::Args;
use model::amounts::{Moment, gibibytes, mebibytes, seconds};
use model::{AfterEnd, JobSpec, Needs};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// Parses an amount with a unit.
type ReadAmount = fn(&str) -> Result<Value, String>;

/// The ends of the fields that are amounts or moments. Without its end, such a field may be a text, with a unit. The text of a moment
/// stays: a length of time counts from the submission on.
const AMOUNTS: [(&str, ReadAmount); 4] = [
    ("_gib", |text| gibibytes(text).map(Value::from)),
    ("_mib", |text| mebibytes(text).map(Value::from)),
    ("_s", |text| seconds(text).map(Value::from)),
    ("_at", |text| text.parse::<Moment>().map(|_| text.into())),
];

/// The fields that are no option of a job alone.
const NO_OPTION: [&str; 4] = ["array_limit", "command", "max_failures", "pack"];
/// Files as the option of this name has them. They become `inputs`.
const IN: &str = "in";
/// An option that a line cannot have: it names a file on the computer of the submitter.
const NO_FIELD: &str = "env_file";

/// The fields of `job --json` that say how a job is and was. A line may have them, and they are ignored.
const STATE: &str = "all_allocs allocs array_count array_index by cause checkpoints containers copies done elements exit_code expires_at failed_count finished_at \
    image_digest job_id lost_count paused queue rank reason started_at starts state submitted_at tries usd version waits_because would_start_if";

/// The fields of a line, by their options.
static FIELDS: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
    let options = JobOptions::augment_args(clap::Command::new("job"));
    let named = options.get_arguments().filter_map(|arg| Some((arg.get_long()?.to_owned(), arg.get_id().to_string())));
    let more = NO_OPTION.map(|field| (field.to_owned(), field.to_owned()));
    named.filter(|(_, field)| field != NO_FIELD).chain(more).collect()
});

/// An error about a job, with the names of fields in place of options.
pub(crate) fn about_fields(error: &str) -> String {
    let error = error.replace("--at-once", "pack.at_once");
    let mut parts = error.split("--");
    let mut about = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '-').unwrap_or(part.len());
        let (option, rest) = part.split_at(end);
        about.push_str(&FIELDS.get(option).map_or_else(|| format!("--{option}"), Clone::clone));
        about.push_str(rest);
    }
    about
}

/// The jobs that a line follows, as it names them, each with how it must end.
type NamedAfter = Vec<(String, AfterEnd)>;

/// What a line says.
#[derive(Debug, PartialEq)]
pub(crate) struct JobLine {
    pub(crate) spec: JobSpec,
    pub(crate) after: NamedAfter,
    /// The fields `in` and `workdir`. The files that they name are not read yet.
    pub(crate) files: FileOptions,
}

/// Reads one line. `defaults` has the options of the command line, which the line overrides.
pub(crate) fn read(line: &str, defaults: &Map<String, Value>) -> Result<JobLine, String> {
    let not_json = |e: serde_json::Error| format!("it is not a JSON object on one line (`jq -c .` makes it one): {e}");
    let Value::Object(line) = strict_json::parse(line).map_err(not_json)? else {
        return Err("it is not a JSON object: write {\"command\": [\"true\"]}, for example".to_owned());
    };
    if let (Some(id), false) = (line.get("job_id"), line.get("command").is_some_and(Value::is_array)) {
        let id = id.as_str().unwrap_or("JOB");
        return Err(format!(
            "it is a row of `jobs --json`, which has only a part of the job: `nodekeeper rerun {id}` submits the job anew, and \
             `nodekeeper job {id} --json | jq -c .` has all of it"
        ));
    }
    let mut given = Map::new();
    // A line with a submitter comes from `job --json`: its share is the one that the job got, and not a choice.
    let got_share = line.contains_key("by");
    for (name, value) in line {
        if value.is_null() || STATE.split(' ').any(|field| field == name) || got_share && name == "share" {
            continue;
        }
        let (field, value) = field(name, value)?;
        if given.contains_key(&field) {
            return Err(format!("{field} is given twice, once without its unit: give it once"));
        }
        given.insert(field, value);
    }
    let mut after = Vec::new();
    for (field, end) in [("after", AfterEnd::Success), ("after_any", AfterEnd::Any)] {
        let jobs = given.remove(field).map(|jobs| followed(jobs, end).map_err(|e| format!("{field}: {e}")));
        after.extend(jobs.transpose()?.into_iter().flatten());
    }
    let (inputs, workdir) = (given.remove(IN), given.remove("workdir"));
    let files = FileOptions::of(
        inputs.map(|value| texts(IN, value)).transpose()?,
        workdir.map(|value| text("workdir", value)).transpose()?,
    );
    if let Some(Value::String(line)) = given.get("command") {
        let command = json!(["sh", "-c", line]);
        given.insert("command".to_owned(), command);
    }
    let mut job = defaults.clone();
    for (field, value) in given {
        match (job.get_mut(&field), value) {
            // Variables, secrets, limits and inputs come in addition to those of the options.
            (Some(Value::Object(table)), Value::Object(more)) => table.extend(more),
            (_, value) => _ = job.insert(field, value),
        }
    }
    let job = Value::Object(job);
    let needs = Needs { machine: part(&job)?, ..part(&job)? };
    let spec = JobSpec { needs, work: part(&job)?, failure_policy: part(&job)?, ..part(&job)? };
    Ok(JobLine { spec, after, files })
}

fn text(field: &str, value: Value) -> Result<String, String> {
    serde_json::from_value(value).map_err(|e| format!("{field}: {e}"))
}

/// The value of a field that is a text, or a list of texts.
fn texts(field: &str, value: Value) -> Result<Vec<String>, String> {
    match value {
        Value::Array(list) => list.into_iter().map(|value| text(field, value)).collect(),
        value => Ok(vec![text(field, value)?]),
    }
}

/// The field of this name, and its value. The name of an amount may lack the unit.
fn field(name: String, value: Value) -> Result<(String, Value), String> {
    let fields: BTreeSet<&str> = FIELDS.values().map(String::as_str).chain([IN]).collect();
    if fields.contains(name.as_str()) {
        return Ok((name, value));
    }
    let mut amounts = AMOUNTS.iter().map(|(unit, read)| (format!("{name}{unit}"), read));
    let Some((field, read)) = amounts.find(|(field, _)| fields.contains(field.as_str())) else {
        let all = fields.into_iter().collect::<Vec<_>>().join(", ");
        return Err(format!("{name:?} is not a field of a job: {all}"));
    };
    match value {
        Value::String(text) => Ok((field, read(&text).map_err(|e| format!("{name}: {e}"))?)),
        value => Ok((field, value)),
    }
}

/// One part of a job. Each is read for itself, because serde loses the path of an error in a part that it flattens.
fn part<'a, T: Deserialize<'a>>(job: &'a Value) -> Result<T, String> {
    serde_path_to_error::deserialize(job).map_err(|e| format!("{}: {}", e.path(), e.inner()))
}

/// The value of `after` or `after_any`.
#[derive(Deserialize)]
#[serde(untagged, expecting = "it must be the name or the id of a job, or a list of them")]
enum AfterField {
    One(String),
    Several(Vec<String>),
    /// As `job --json` shows it: ids, and how each must end.
    Ends(BTreeMap<String, AfterEnd>),
}

fn followed(value: Value, end: AfterEnd) -> Result<NamedAfter, serde_json::Error> {
    Ok(match serde_json::from_value(value)? {
        AfterField::One(job) => vec![(job, end)],
        AfterField::Several(jobs) => jobs.into_iter().map(|job| (job, end)).collect(),
        AfterField::Ends(ends) => ends.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::show;
    use clap::FromArgMatches;
    use model::elements::Pack;
    use model::fixtures::{self, at};
    use model::{Alloc, Arch, FailurePolicy, Job, MachineNeed, MarketNeed, Work};

    fn line(text: &str) -> Result<(JobSpec, NamedAfter), String> {
        let Value::Object(defaults) = serde_json::to_value(JobSpec::default()).unwrap() else { panic!() };
        read(text, &defaults).map(|line| (line.spec, line.after))
    }

    #[test]
    fn a_line_names_local_files_as_the_options_do() {
        let files = |text: &str| read(text, &Map::new()).map(|line| line.files);
        assert_eq!(
            files(r#"{"in": "a.py", "workdir": "d"}"#),
            Ok(FileOptions::of(Some(vec!["a.py".into()]), Some("d".into())))
        );
        assert_eq!(
            files(r#"{"in": ["a", "job:x/b=c"]}"#),
            Ok(FileOptions::of(Some(vec!["a".into(), "job:x/b=c".into()]), None))
        );
        for (text, says) in [(r#"{"in": 3}"#, "in: "), (r#"{"in": [3]}"#, "in: "), (r#"{"workdir": []}"#, "workdir: ")]
        {
            assert!(files(text).unwrap_err().starts_with(says), "{text}");
        }
    }

    #[test]
    fn null_is_as_good_as_nothing_and_an_amount_may_have_its_unit_in_its_name_or_its_text() {
        let (spec, after) = line(
            r#"{"command": "true", "env": {"A": "1"}, "name": null, "memory": 1000, "scratch": "2T", "timeout": null,
                "timeout_s": 360, "after": null, "market": null}"#,
        )
        .unwrap();
        assert_eq!((spec.needs.memory_mib, spec.needs.scratch_gib, spec.work.timeout_s), (1000, 2048, 360));
        assert_eq!((spec.name, spec.env.len(), after.len()), (None, 1, 0));
    }

    #[test]
    fn every_option_of_a_job_is_a_field_of_it() {
        let options = clap::Command::new("job").no_binary_name(true);
        let options = JobOptions::augment_args(options).get_matches_from(Vec::<&str>::new());
        let options = JobOptions::from_arg_matches(&options).unwrap();
        let Value::Object(fields) = serde_json::to_value(&options).unwrap() else { panic!() };
        assert!(fields.len() > 30, "{fields:?}");
        for (field, value) in fields {
            // No field has such a value, and serde would not look at what is no field.
            let wrong = serde_json::from_value::<JobSpec>(json!({ &field: [[]] }));
            assert!(wrong.is_err() && FIELDS.values().any(|known| *known == field), "{field}: {value}");
        }
    }

    #[test]
    fn every_mistake_names_its_field() {
        for (text, says) in [
            (r#"{"vcpus": 2.5}"#, "vcpus: invalid type: floating point `2.5`"),
            (r#"{"vcpus": -1}"#, "vcpus: invalid value: integer `-1`"),
            (r#"{"vcpus": 4294967296}"#, "vcpus: invalid value"),
            (r#"{"vcpus": "2"}"#, "vcpus: invalid type: string \"2\""),
            (r#"{"timeout_s": "1h"}"#, "timeout_s: invalid type: string \"1h\""),
            (r#"{"memory": "lots"}"#, "memory: it must be a number of MiB"),
            (r#"{"memory": 1.5}"#, "memory_mib: invalid type: floating point `1.5`"),
            (r#"{"name": 7}"#, "name: invalid type: integer `7`, expected a string"),
            (r#"{"exclusive": "yes"}"#, "exclusive: invalid type: string \"yes\", expected a boolean"),
            (r#"{"market": "gift"}"#, "market: "),
            (r#"{"arch": "riscv"}"#, "arch: "),
            (r#"{"require": "nvme"}"#, "require: invalid type: string \"nvme\", expected a sequence"),
            (r#"{"gpu_memory": "much"}"#, "gpu_memory: "),
            (r#"{"reconcile": "worst"}"#, "reconcile: "),
            (r#"{"command": ["a", null]}"#, "command[1]: invalid type: null"),
            (r#"{"caches": "a"}"#, "caches: invalid type: string \"a\", expected a sequence"),
            (r#"{"env": {"A": 1}}"#, "env.A: invalid type: integer `1`, expected a string"),
            (r#"{"env": ["A=1"]}"#, "env: invalid type: sequence, expected a map"),
            (r#"{"after": 7}"#, "after: it must be the name or the id of a job"),
            (r#"{"after": {"a": "never"}}"#, "after: "),
            (r#"{"array_limit": 0}"#, "array_limit: "),
            (r#"{"retry": ["oom=again"]}"#, "retry[0]: the retry rule \"oom=again\" has \"oom\", which is no cause"),
            (r#"{"retry": "lost=fail"}"#, "retry: invalid type: string"),
            (r#"{"stop_signal": "STOPP"}"#, "stop_signal: \"STOPP\" is not a signal"),
            (r#"{"job_id": "01X", "command": "a b"}"#, "it is a row of `jobs --json`"),
            (r#"{"vcpu": 1}"#, "\"vcpu\" is not a field of a job: after, after_any, "),
            (r#"{"memory": 5, "memory_mib": 5}"#, "memory_mib is given twice"),
            (r#"{"timeout_s": 5, "timeout": "1h"}"#, "timeout_s is given twice"),
            (r#"{"name": "a", "name": "a"}"#, "\"name\" stands there twice"),
            (r#"{"secrets": {"A": 1}}"#, "secrets.A: invalid type: integer `1`"),
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
        assert_eq!(pack(r#"{"elements": "0-9,12"}"#), Ok(Some(Pack::of(elements))));
        for bad in ["3", r#"{"elements": "9-0"}"#, "{}", r#"{"elements": 3}"#] {
            assert!(pack(bad).is_err_and(|e| e.contains("pack")), "{bad}");
        }
    }

    #[test]
    fn a_mistake_in_a_line_names_its_field() {
        for (said, about) in [
            ("--nodes must be 1 to 256, it is 0", "nodes must be 1 to 256, it is 0"),
            ("--gpu-type and --gpu-memory say nothing", "gpu_type and gpu_memory_gib say nothing"),
            ("--label \"x\"; give --role NAME", "labels \"x\"; give role NAME"),
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
                keep: Some("ckpt".into()),
                keep_every_s: 60,
                checkpoint: None,
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
        let shown = show::flat(json!(job));
        let (again, follows) = line(&shown.to_string()).unwrap();
        assert_eq!((again, follows), (spec, vec![(followed.to_string(), AfterEnd::Any)]));
        // A job that has run, with its allocs.
        let alloc = Alloc::place(fixtures::alloc_id(1), &job, &fixtures::ready(1), at(1)).unwrap();
        let mut ran = job.with_placed(&[alloc.id()]).unwrap();
        (ran.reason, ran.finished_at, ran.expires_at) = (Some("why".into()), Some(at(9)), Some(9));
        ran.summary.done = [0].into();
        ran.work.image_digest = format!("sha256:{}", "0".repeat(64)).parse().ok();
        let mut shown = show::flat(json!(ran));
        shown["all_allocs"] = serde_json::json!([alloc]);
        shown["waits_because"] = "it runs".into();
        assert_eq!(line(&shown.to_string()).unwrap().0.name.as_deref(), Some("x"));
        let known: BTreeSet<&str> = FIELDS.values().map(String::as_str).chain(STATE.split(' ')).collect();
        assert_eq!(
            shown.as_object().unwrap().keys().filter(|name| !known.contains(name.as_str())).count(),
            0,
            "{shown}"
        );
    }
}
