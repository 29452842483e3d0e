//! What a user submits: the needs of a job, its command, and how failures are treated.
//!
//! Guarantees: the refusal of a wrong submission lists every mistake at once, each with what is allowed.
//! Does not: know how a job changes after that; `job` does.

use crate::after::MAX_AFTER;
use crate::alloc::Alloc;
use crate::array::ArrayLimit;
use crate::container_env::{Passing, passing};
use crate::ids::JobId;
use crate::job::Job;
use crate::names::{MAX_NAME_CHARS, NAME_FORM, is_instance_type, is_job_name};
use crate::words::{AfterEnd, Market, Reconcile};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The most nodes one job may ask for at once.
pub const MAX_NODES: u32 = 24;
/// The highest priority.
pub const MAX_PRIORITY: u32 = 1000;
/// The most bytes a command and its environment may have together.
pub const MAX_COMMAND_BYTES: usize = 16 * 1024;
/// The variable of a job that holds the standard input of its command, in base64. The agent takes it out of the environment.
/// So an input has the bounds of the environment, and whoever may not see environments does not see it.
pub const INPUT_VARIABLE: &str = "NODEKEEPER_STDIN";
/// The most items DynamoDB takes in one transaction.
pub const MAX_TRANSACTION_ITEMS: usize = 100;

/// What is run, copied from the job to each of its allocs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// The program and its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Variables added to the environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The container image, if the nodes run containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Named volumes that outlive the alloc.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<String>,
    /// How long the alloc may run, in seconds; 0 for no limit.
    #[serde(default)]
    pub timeout_s: u64,
}

/// How a job's allocs are stopped, and what happens when a node is silent. Copied from the job to each alloc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailurePolicy {
    /// The time from TERM to KILL, in seconds.
    #[serde(default = "default_kill_timeout")]
    pub kill_timeout_s: u64,
    /// How long the job waits for a running alloc on a silent node, in seconds; 0 for not at all.
    #[serde(default = "default_lost_after")]
    pub lost_after_s: u64,
    /// Whether a copy is placed on another node while the job waits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replace: bool,
    /// Which copy stays if the node comes back and both run.
    #[serde(default = "default_reconcile")]
    pub reconcile: Reconcile,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            kill_timeout_s: default_kill_timeout(),
            lost_after_s: default_lost_after(),
            replace: false,
            reconcile: default_reconcile(),
        }
    }
}

/// What a user submits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(
    missing_docs,
    reason = "the fields are documented where they are kept: JobSummary, Work, FailurePolicy and Job"
)]
pub struct JobSpec {
    #[serde(default)]
    pub command: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    pub name: Option<String>,
    #[serde(default = "default_priority")]
    pub priority: u32,
    #[serde(default = "one")]
    pub vcpus: u32,
    #[serde(default)]
    pub memory_mib: u64,
    #[serde(default)]
    pub scratch_gib: u64,
    #[serde(default)]
    pub gpus: u32,
    pub instance_type: Option<String>,
    pub market: Option<Market>,
    #[serde(default)]
    pub exclusive: bool,
    #[serde(default = "one")]
    pub nodes: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array_limit: Option<ArrayLimit>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub after: BTreeMap<JobId, AfterEnd>,
    pub image: Option<String>,
    #[serde(default)]
    pub caches: Vec<String>,
    #[serde(default)]
    pub timeout_s: u64,
    #[serde(flatten)]
    pub failure_policy: FailurePolicy,
    #[serde(default)]
    pub retry_failed: u32,
    #[serde(default = "default_retry_lost")]
    pub retry_lost: u32,
}

impl Default for JobSpec {
    fn default() -> Self {
        Self {
            command: Vec::new(),
            env: BTreeMap::new(),
            name: None,
            priority: default_priority(),
            vcpus: 1,
            memory_mib: 0,
            scratch_gib: 0,
            gpus: 0,
            instance_type: None,
            market: None,
            exclusive: false,
            nodes: 1,
            array_limit: None,
            after: BTreeMap::new(),
            image: None,
            caches: Vec::new(),
            timeout_s: 0,
            failure_policy: FailurePolicy::default(),
            retry_failed: 0,
            retry_lost: default_retry_lost(),
        }
    }
}

pub(crate) const fn default_priority() -> u32 {
    500
}
pub(crate) const fn one() -> u32 {
    1
}
pub(crate) const fn default_retry_lost() -> u32 {
    3
}
pub(crate) const fn default_kill_timeout() -> u64 {
    30
}
pub(crate) const fn default_lost_after() -> u64 {
    600
}
pub(crate) const fn default_reconcile() -> Reconcile {
    Reconcile::Best
}

/// Everything that is wrong with a submission.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the job was not submitted: {}", .0.join("; "))]
pub struct BadJob(pub Vec<String>);

/// The longest time-out, in seconds: a year.
const MAX_TIMEOUT_S: u64 = 366 * 86_400;
/// Far more than any machine has, and small enough that sums cannot overflow.
const MAX_MIB_OR_GIB: u64 = 1 << 32;
const MAX_VCPUS_OR_GPUS: u32 = 1 << 20;
/// The longest image reference, in bytes.
const MAX_IMAGE_BYTES: usize = 255;

/// The mistakes of a submission, as they are found.
struct Mistakes(Vec<String>);

impl Mistakes {
    fn require(&mut self, is_right: bool, message: impl FnOnce() -> String) {
        if !is_right {
            self.0.push(message());
        }
    }
}

impl Job {
    /// What in a stored job cannot be carried out; `None` if nothing. Somebody may have put the row without a check.
    pub fn contradiction(&self) -> Option<String> {
        let (summary, work) = (&self.summary, &self.work);
        if !(1..=MAX_NODES).contains(&summary.nodes) {
            return Some(format!("it wants {} nodes: 1 to {MAX_NODES} are possible", summary.nodes));
        }
        let follows = summary.after.len();
        if follows > MAX_AFTER {
            return Some(format!("it follows {follows} jobs: at most {MAX_AFTER} are possible"));
        }
        if summary.after.contains_key(&summary.job_id) {
            return Some("it follows itself".to_owned());
        }
        let mut mistakes = Mistakes(Vec::new());
        mistakes.require(!work.command.is_empty(), || "it has no command".into());
        check_size(&work.command, &work.env, &mut mistakes);
        let name_chars = summary.name.as_deref().map_or(0, |name| name.chars().count());
        mistakes.require(name_chars <= MAX_NAME_CHARS, || format!("its name has {name_chars} characters"));
        mistakes.require(work.image.as_deref().is_none_or(is_image_reference), || "its image is no reference".into());
        check_caches(&work.caches, self.failure_policy.replace, summary.nodes, &mut mistakes);
        (!mistakes.0.is_empty()).then(|| mistakes.0.join("; "))
    }
}

impl Alloc {
    /// What in a stored alloc cannot be; `None` if nothing.
    pub fn contradiction(&self) -> Option<String> {
        let (member, nodes) = (self.id().member, self.nodes);
        let possible = (1..=MAX_NODES).contains(&nodes) && member < nodes;
        (!possible).then(|| format!("it is member {member} of {nodes}: a job has 1 to {MAX_NODES}"))
    }
}

impl JobSpec {
    /// Checks a submission and lists all its mistakes.
    pub(crate) fn check(&self) -> Result<(), BadJob> {
        let mut mistakes = Mistakes(Vec::new());
        self.check_names(&mut mistakes);
        self.check_numbers(&mut mistakes);
        self.check_command(&mut mistakes);
        self.check_caches(&mut mistakes);
        if mistakes.0.is_empty() { Ok(()) } else { Err(BadJob(mistakes.0)) }
    }

    fn check_names(&self, mistakes: &mut Mistakes) {
        // An empty name is none.
        if let Some(name) = self.name.as_deref().filter(|name| !name.is_empty()) {
            mistakes.require(is_job_name(name), || format!("--name {} must be {NAME_FORM}", shown(name)));
        }
        if let Some(asked) = &self.instance_type {
            mistakes.require(is_instance_type(asked), || {
                format!("--instance-type {} is not the name of one, like m7a.large", shown(asked))
            });
        }
    }

    fn check_numbers(&self, mistakes: &mut Mistakes) {
        let (nodes, priority) = (self.nodes, self.priority);
        mistakes.require(self.vcpus >= 1, || "--vcpus must be at least 1".into());
        mistakes
            .require((1..=MAX_NODES).contains(&nodes), || format!("--nodes must be 1 to {MAX_NODES}, it is {nodes}"));
        mistakes
            .require(priority <= MAX_PRIORITY, || format!("--priority must be 0 to {MAX_PRIORITY}, it is {priority}"));
        let possible = self.memory_mib <= MAX_MIB_OR_GIB
            && self.scratch_gib <= MAX_MIB_OR_GIB
            && self.vcpus <= MAX_VCPUS_OR_GPUS
            && self.gpus <= MAX_VCPUS_OR_GPUS;
        mistakes.require(possible, || "no machine has that much: check --vcpus, --memory, --scratch and --gpus".into());
        let policy = self.failure_policy;
        let longest = self.timeout_s.max(policy.kill_timeout_s).max(policy.lost_after_s);
        mistakes.require(longest <= MAX_TIMEOUT_S, || "time-outs must be at most a year".into());
        let follows = self.after.len();
        mistakes.require(follows <= MAX_AFTER, || {
            format!(
                "it follows {follows} jobs, at most {MAX_AFTER} are possible: let one job follow some of them, and this \
                 one follow that job"
            )
        });
    }

    fn check_command(&self, mistakes: &mut Mistakes) {
        let named = self.command.first().is_some_and(|c| !c.is_empty());
        mistakes.require(named, || "it has no command: give one after --".into());
        check_size(&self.command, &self.env, mistakes);
        for name in self.env.keys() {
            let valid = !name.is_empty() && !name.contains('=') && !name.contains('\0');
            mistakes.require(valid, || format!("{name:?} is not a name for an environment variable"));
        }
        let nul = self.command.iter().chain(self.env.values()).any(|s| s.contains('\0'));
        mistakes.require(!nul, || "command and environment must not contain a NUL character".into());
        if let Some(image) = &self.image {
            let impossible = self.env.iter().find(|(name, value)| passing(name, value) == Passing::Impossible);
            mistakes.require(impossible.is_none(), || {
                format!(
                    "the variable {} cannot reach a container with this value: docker takes values of several lines only from \
                     its own environment, where this name has another meaning; rename the variable, or encode its value",
                    impossible.map_or("", |(name, _)| name)
                )
            });
            mistakes.require(is_image_reference(image), || {
                format!(
                    "--image {image:?} is not an image reference: it must begin with a letter or digit, like \
                     registry.example.com/team/image:tag"
                )
            });
        }
    }

    fn check_caches(&self, mistakes: &mut Mistakes) {
        check_caches(&self.caches, self.failure_policy.replace, self.nodes, mistakes);
    }
}

fn check_size(command: &[String], env: &BTreeMap<String, String>, mistakes: &mut Mistakes) {
    let bytes =
        command.iter().map(String::len).sum::<usize>() + env.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
    mistakes.require(bytes <= MAX_COMMAND_BYTES, || {
        format!(
            "command and environment have {bytes} bytes, {MAX_COMMAND_BYTES} are allowed: pass data by a file or a URL"
        )
    });
}

/// A wrong text in a message: quoted, and not long.
fn shown(text: &str) -> String {
    if text.chars().count() > 60 {
        format!("{:?}…", text.chars().take(60).collect::<String>())
    } else {
        format!("{text:?}")
    }
}

fn check_caches(caches: &[String], replace: bool, nodes: u32, mistakes: &mut Mistakes) {
    let valid =
        |c: &str| (1..=64).contains(&c.len()) && c.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    for cache in caches {
        mistakes.require(valid(cache), || format!("cache name {cache:?} must be 1 to 64 letters, digits, '-' or '_'"));
    }
    let unique: BTreeSet<_> = caches.iter().collect();
    mistakes.require(unique.len() == caches.len(), || "a cache is named twice".into());
    // When a replacement is placed, the transaction also writes the alloc that it replaces.
    let original = usize::from(replace && nodes == 1);
    let items = 1 + original + nodes as usize * (2 + 1 + caches.len());
    mistakes.require(items <= MAX_TRANSACTION_ITEMS, || {
        format!(
            "placing {nodes} members with {} caches each takes {items} writes at once and DynamoDB takes \
             {MAX_TRANSACTION_ITEMS}: use fewer nodes or caches",
            caches.len()
        )
    });
}

/// Whether this is an image reference. A text that begins with `-` is refused: the docker command would take
/// it for an option.
pub fn is_image_reference(image: &str) -> bool {
    let begins = |c: char| c.is_ascii_alphanumeric();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':' | '@');
    image.len() <= MAX_IMAGE_BYTES
        && image.starts_with(begins)
        && image.chars().all(allowed)
        && !image.contains("..")
        && !image.contains("//")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_cannot_be_an_option_of_docker() {
        for good in ["alpine", "alpine:3.20", "ghcr.io/a/b-c_d:v1.2", "localhost:5000/x@sha256:0123abcd"] {
            assert!(is_image_reference(good), "{good}");
        }
        for bad in ["", "-", "--privileged", "--volume=/:/host", "a b", "a;b", "../x", "a//b", "/a", ":x", "a\n", "é"]
        {
            assert!(!is_image_reference(bad), "{bad:?}");
            let spec = JobSpec { command: vec!["true".into()], image: Some(bad.into()), ..JobSpec::default() };
            let BadJob(mistakes) = spec.check().unwrap_err();
            assert!(mistakes.len() == 1 && mistakes[0].contains("not an image reference"), "{mistakes:?}");
        }
        assert!(!is_image_reference(&"x".repeat(256)));
    }

    #[test]
    fn names_that_lists_show_are_bounded() {
        let of = |name: &str, asked: &str| {
            let (name, instance_type) = (Some(name.to_owned()), Some(asked.to_owned()));
            let spec = JobSpec { command: vec!["true".into()], name, instance_type, ..JobSpec::default() };
            spec.check().map_err(|BadJob(mistakes)| mistakes.join("; "))
        };
        assert_eq!(of("nightly run", "m7a.large"), Ok(()));
        assert_eq!(of("", "m7a.large"), Ok(()), "no name");
        let error = of("a\u{1b}[2Jb", "m7a large\n").unwrap_err();
        assert!(error.contains("--name \"a\\u{1b}[2Jb\" must be 1 to 128 characters"), "{error}");
        assert!(error.contains("--instance-type \"m7a large\\n\" is not the name of one"), "{error}");
        assert!(of(&"x".repeat(70_000), "m7a.large").unwrap_err().len() < 300);
    }

    #[test]
    fn a_variable_that_cannot_reach_a_container_is_refused_before_a_node_is_launched_for_it() {
        let spec = |name: &str, image: Option<&str>| JobSpec {
            command: vec!["true".into()],
            image: image.map(str::to_owned),
            env: BTreeMap::from([(name.to_owned(), "a\nb".to_owned())]),
            ..JobSpec::default()
        };
        let BadJob(mistakes) = spec("LD_PRELOAD", Some("alpine")).check().unwrap_err();
        assert!(mistakes.len() == 1 && mistakes[0].starts_with("the variable LD_PRELOAD cannot reach"), "{mistakes:?}");
        for (name, image) in [("SSH_PRIVATE_KEY", Some("alpine")), ("LD_PRELOAD", None)] {
            spec(name, image).check().unwrap();
        }
    }
}
