//! What a user submits: what a job needs, what it runs, how its failures are treated, and its place among other jobs.
//!
//! Guarantees: the refusal of a wrong submission lists every mistake at once, each with what is allowed.
//! Does not: know how a job changes after that; `job` does.

use crate::amounts::Moment;
use crate::enums::AfterEnd;
use crate::mistakes::{Mistakes, shown};
use crate::names::{JOB_LABEL_FORM, NAME_FORM, is_job_label, is_job_name};
use crate::{BadJob, Environment, FailurePolicy, JobId, Needs, Time, Work};
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// The most jobs that one job may follow. Each takes about 40 bytes of the row and of the queue's index.
pub const MAX_AFTER: usize = 100;
/// The most labels of one job. They stand in its row, in the queue's index and in the rows of its allocs.
pub const MAX_JOB_LABELS: usize = 8;
/// The highest priority.
pub const MAX_PRIORITY: u32 = 1000;
/// The priority of a job without one.
pub const DEFAULT_PRIORITY: u32 = 500;

/// The longest time-out, in seconds: a year.
const MAX_TIMEOUT_S: u64 = 366 * 86_400;

/// What a user submits. In JSON the fields of `needs`, `work` and `failure_policy` stand beside the others.
#[derive(Clone, Debug, SmartDefault, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobSpec {
    pub name: Option<String>,
    /// What makes a repeated submission the same one.
    pub key: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The share of the policy that it belongs to.
    pub share: Option<String>,
    #[default(DEFAULT_PRIORITY)]
    pub priority: u32,
    /// How many elements its array has; `None`: it is of no array.
    pub array_count: Option<u32>,
    /// How many jobs of its array may be placed at the same time; `None` for any number.
    pub array_limit: Option<NonZeroU32>,
    /// Once this many elements have failed for good, the array or the pack begins no others; `None` for no limit.
    pub max_failures: Option<NonZeroU32>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub after: BTreeMap<JobId, AfterEnd>,
    /// The job is not placed before this moment.
    pub not_before_at: Option<Moment>,
    /// The job is rejected if it has not begun this long after its submission, in seconds; 0 for never.
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub give_up_after_s: u64,
    #[serde(flatten)]
    pub needs: Needs,
    #[serde(flatten)]
    pub work: Work,
    pub env: Environment,
    #[serde(flatten)]
    pub failure_policy: FailurePolicy,
}

impl JobSpec {
    /// A job that runs this command, with the defaults for all else.
    pub fn running(command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let command = command.into_iter().map(Into::into).collect();
        Self { work: Work { command, ..Work::default() }, ..Self::default() }
    }

    /// Follows this job, too. If it is named twice, the stricter end counts.
    pub fn follow(&mut self, id: JobId, end: AfterEnd) {
        let strictest = self.after.entry(id).or_insert(end);
        *strictest = (*strictest).min(end);
    }

    /// Checks a job that is submitted at this time. The error has every mistake.
    pub(crate) fn check(&self, now: Time) -> Result<(), BadJob> {
        let mut mistakes = Mistakes::default();
        for (option, name) in [("--name", &self.name), ("--key", &self.key)] {
            let is_good = name.as_deref().is_none_or(is_job_name);
            mistakes.require(is_good, || {
                format!("{option} {} must be {NAME_FORM}", shown(name.as_deref().unwrap_or_default()))
            });
        }
        for (key, value) in self.labels.iter().filter(|(key, value)| !is_job_label(key, value)) {
            let label = shown(&format!("{key}={value}"));
            mistakes.require(false, || format!("--label {label} must be KEY=VALUE: {JOB_LABEL_FORM}"));
        }
        let labels = self.labels.len();
        mistakes.require(labels <= MAX_JOB_LABELS, || {
            format!("a job has at most {MAX_JOB_LABELS} labels (--label), this one has {labels}")
        });
        self.needs.check(&mut mistakes);
        let priority = self.priority;
        mistakes
            .require(priority <= MAX_PRIORITY, || format!("--priority must be 0 to {MAX_PRIORITY}, it is {priority}"));
        let policy = &self.failure_policy;
        let times = [policy.kill_timeout_s, policy.lost_after_s, policy.stop_notice_s, self.give_up_after_s];
        let longest = times.into_iter().fold(self.work.timeout_s, u64::max);
        mistakes.require(longest <= MAX_TIMEOUT_S, || "time-outs and --give-up-after must be at most a year".into());
        let wait_s = self.not_before_at.map_or(0, |at| at.after(now).since(now).as_ms().div_euclid(1000));
        mistakes.require(wait_s <= MAX_TIMEOUT_S.cast_signed(), || "--not-before must be within a year".into());
        let begins = self.give_up_after_s == 0 || wait_s < self.give_up_after_s.cast_signed();
        mistakes.require(begins, || {
            "--not-before is after the end of --give-up-after, so it could never run: give an earlier time or a longer one".into()
        });
        let follows = self.after.len();
        mistakes.require(follows <= MAX_AFTER, || {
            format!(
                "it follows {follows} jobs, at most {MAX_AFTER} are possible: let one job follow some of them, and this \
                 one follow that job"
            )
        });
        policy.check(&self.needs, self.work.timeout_s, &mut mistakes);
        mistakes.require(self.work.pack.is_none() || self.needs.nodes == 1, || {
            "a pack runs on one node: --pack and --nodes cannot be given together".into()
        });
        self.work.check(&self.env, &mut mistakes);
        mistakes.into_list().map_or(Ok(()), |all| Err(BadJob(all)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Content;
    use crate::files::{Form, Source};
    use crate::image::is_image_reference;
    use crate::machine::MachineNeed;

    #[test]
    fn an_image_cannot_be_an_option_of_docker() {
        for good in ["alpine", "alpine:3.20", "ghcr.io/a/b-c_d:v1.2", "localhost:5000/x@sha256:0123abcd"] {
            assert!(is_image_reference(good), "{good}");
        }
        for bad in ["", "-", "--privileged", "--volume=/:/host", "a b", "a;b", "../x", "a//b", "/a", ":x", "a\n", "é"]
        {
            assert!(!is_image_reference(bad), "{bad:?}");
            let spec = JobSpec {
                work: Work { command: vec!["true".into()], image: Some(bad.into()), ..Work::default() },
                ..JobSpec::default()
            };
            let BadJob(mistakes) = spec.check(Time::from_ms(0)).unwrap_err();
            assert!(mistakes.len() == 1 && mistakes[0].contains("not an image reference"), "{mistakes:?}");
        }
        assert!(!is_image_reference(&"x".repeat(256)));
    }

    #[test]
    fn names_that_lists_show_are_bounded() {
        let of = |name: &str, asked: &str| {
            let (name, instance_type) = (Some(name.to_owned()), Some(asked.to_owned()));
            let machine = MachineNeed { instance_type, ..MachineNeed::default() };
            let needs = Needs { machine, ..Needs::default() };
            let spec = JobSpec { name, needs, ..JobSpec::running(["true"]) };
            spec.check(Time::from_ms(0)).map_err(|BadJob(mistakes)| mistakes.join("; "))
        };
        assert_eq!(of("nightly run", "m7a.large"), Ok(()));
        let error = of("a\u{1b}[2Jb", "m7a large\n").unwrap_err();
        assert!(error.contains("--name \"a\\u{1b}[2Jb\" must be 1 to 128 characters"), "{error}");
        assert!(error.contains("--instance-type \"m7a large\\n\" is not the name of one"), "{error}");
        assert!(of(&"x".repeat(70_000), "m7a.large").unwrap_err().len() < 300);
    }

    #[test]
    fn a_variable_that_cannot_reach_a_container_is_refused_before_a_node_is_launched_for_it() {
        let spec = |name: &str, image: Option<&str>| JobSpec {
            env: BTreeMap::from([(name.to_owned(), "a\nb".to_owned())]),
            work: Work { command: vec!["true".into()], image: image.map(str::to_owned), ..Work::default() },
            ..JobSpec::default()
        };
        let BadJob(mistakes) = spec("LD_PRELOAD", Some("alpine")).check(Time::from_ms(0)).unwrap_err();
        assert!(mistakes.len() == 1 && mistakes[0].starts_with("the variable LD_PRELOAD cannot reach"), "{mistakes:?}");
        for (name, image) in [("SSH_PRIVATE_KEY", Some("alpine")), ("LD_PRELOAD", None)] {
            spec(name, image).check(Time::from_ms(0)).unwrap();
        }
    }

    #[test]
    fn what_is_kept_is_a_folder_of_the_work_directory() {
        let of = |keep: Option<&str>, keep_every_s: u64| {
            let spec = JobSpec::running(["true"]);
            let work = Work { keep: keep.map(str::to_owned), keep_every_s, ..spec.work };
            JobSpec { work, ..spec }.check(Time::from_ms(0)).map_err(|BadJob(mistakes)| mistakes.join("; "))
        };
        for (keep, every) in [(None, 0), (Some("ckpt"), 0), (Some("a/b"), 10)] {
            assert_eq!(of(keep, every), Ok(()));
        }
        for (keep, every, says) in [
            (None, 60, "--keep-every is for a job with --keep"),
            (Some("ckpt"), 9, "at least 10 s, it is 9 s"),
            (Some("../x"), 0, "--keep \"../x\" must be a folder of the work directory"),
            (Some(""), 0, "must be a folder"),
            (Some("."), 0, "must be a folder"),
            (Some("/x"), 0, "must be a folder"),
            (Some("x/"), 0, "must be a folder"),
            (Some("*.ckpt"), 0, "must be a folder"),
        ] {
            let error = of(keep, every).unwrap_err();
            assert!(error.contains(says), "{keep:?} {every}: {error}");
        }
        for (form, right) in [(Form::File, false), (Form::Program, false), (Form::Tree, true)] {
            let mut spec = JobSpec::running(["true"]);
            let source = Source::Content(Content::new(form, &"0".repeat(64), 7).unwrap());
            spec.work.keep = Some("ckpt/best".to_owned());
            spec.work.inputs.insert("ckpt".to_owned(), source);
            assert_eq!(spec.check(Time::from_ms(0)).is_ok(), right, "{form:?}");
        }
    }
}
