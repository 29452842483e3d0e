//! What the nodes run for a job.
//!
//! The same struct is in a submission, in the rows of jobs and allocs, and in the order for a node. The environment stands beside
//! it, because the row of an alloc loses it with the end.
//!
//! Guarantees: each default stands here, and nowhere else; work that cannot be run, or would be taken for something else, is
//! refused.
//! Does not: run anything; the agent does.

use crate::array::{COUNT_VARIABLE, INDEX_VARIABLE};
use crate::container_env::{Passing, passing};
use crate::files::{self, Output, Pattern};
use crate::image::is_image_reference;
use crate::mistakes::{Mistakes, shown};
use crate::rights::{SecretPlace, Secrets, is_role_name};
use crate::{Checkpoint, ImageDigest, Inputs, Pack};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Variables by name.
pub type Environment = BTreeMap<String, String>;

/// The most items DynamoDB takes in one transaction.
pub const MAX_TRANSACTION_ITEMS: usize = 100;
/// The most caches of a job: one transaction places a member with all of its caches, the job and what the member replaces.
const MAX_CACHES: usize = MAX_TRANSACTION_ITEMS - 5;
/// The most bytes a command and its environment may have together.
pub const MAX_COMMAND_BYTES: usize = 16 * 1024;
/// The least time between two checkpoints of a running command, in seconds: each is a request and a write.
const MIN_KEEP_EVERY_S: u64 = 10;
/// The variable of a job that holds the standard input of its command, in base64. The agent takes it out of the environment.
/// So an input has the bounds of the environment.
pub const INPUT_VARIABLE: &str = "NODEKEEPER_STDIN";

/// How the names of nodekeeper's own variables begin.
const OWN: &str = "NODEKEEPER_";

/// The other variables that nodes set.
const OF_NODE: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];

/// The work of a job, copied from the job to each of its allocs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    /// The program and its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The image of its container; `None` for a process of the node.
    pub image: Option<String>,
    /// The program of its container in place of the image's own; empty for none, so that the command is run as it is.
    pub entrypoint: Option<String>,
    /// The digest of the image at the first try. Each later try runs the image with this digest.
    pub image_digest: Option<ImageDigest>,
    /// The place of the secret that logs in to the registry of the image: `USER:PASSWORD`, or JSON with `username` and
    /// `password`.
    pub registry_login: Option<String>,
    /// Named volumes that outlive the alloc.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<String>,
    /// How long the alloc may run, in seconds; 0 for no limit.
    pub timeout_s: u64,
    /// The role that the job takes in AWS, by its name; `None` for no rights there.
    pub role: Option<String>,
    /// Variables whose values are secrets, each with the place of its secret.
    #[serde(skip_serializing_if = "Secrets::is_empty")]
    pub secrets: Secrets,
    /// Variables that hold the path of a file with a secret, each with the place of its secret.
    #[serde(skip_serializing_if = "Secrets::is_empty")]
    pub secret_files: Secrets,
    /// The files that are in its work directory before the command starts.
    #[serde(skip_serializing_if = "Inputs::is_empty")]
    pub inputs: Inputs,
    /// The files that are kept of its work directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<Output>,
    /// The folder of its work directory that each try finds as an earlier try left it: its checkpoint.
    pub keep: Option<String>,
    /// How often the folder is stored while the command runs, in seconds; 0: only when the try ends, or its node goes.
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub keep_every_s: u64,
    /// What the folder of an alloc begins with.
    pub checkpoint: Option<Checkpoint>,
    /// The elements for each of which the command runs; `None`: it runs once.
    pub pack: Option<Pack>,
}

impl Work {
    pub(crate) fn check(&self, env: &Environment, mistakes: &mut Mistakes) {
        let is_blank = |text: &String| text.trim().is_empty();
        mistakes.require(self.command.first().is_some_and(|program| !is_blank(program)), || {
            "it has no command: give one after --".into()
        });
        let is_blank_line = matches!(self.command.as_slice(), [shell, option, line] if shell == "sh" && option == "-c" && is_blank(line));
        mistakes.require(!is_blank_line, || "the line of its command is empty".into());
        self.check_size(env, mistakes);
        env.keys().for_each(|name| self.check_variable(name, mistakes));
        let nul = self.command.iter().chain(env.values()).chain(&self.entrypoint).any(|s| s.contains('\0'));
        mistakes.require(!nul, || "command and environment must not contain a NUL character".into());
        if let Some(image) = &self.image {
            let impossible = env.iter().find(|(name, value)| passing(name, value) == Passing::Impossible);
            mistakes.require(impossible.is_none(), || {
                format!(
                    "the variable {} cannot reach a container with this value: docker and podman take values of several lines \
                     only from their own environment, where this name has another meaning; rename the variable, or encode its \
                     value",
                    impossible.map_or("", |(name, _)| name)
                )
            });
            mistakes.require(is_image_reference(image), || {
                format!(
                    "--image {} is not an image reference: it must begin with a letter or digit, like \
                     registry.example.com/team/image:tag",
                    shown(image)
                )
            });
        }
        mistakes.require(self.image.is_some() || self.entrypoint.is_none(), || {
            "--entrypoint is for a job with --image: the command of another job is run as it is".into()
        });
        self.check_caches(mistakes);
        self.check_rights(env, mistakes);
        self.check_pack(mistakes);
        files::check(&self.inputs, &self.outputs, self.role.is_some(), mistakes);
        self.check_keep(mistakes);
    }

    fn check_keep(&self, mistakes: &mut Mistakes) {
        let Some(keep) = &self.keep else {
            return mistakes.require(self.keep_every_s == 0, || "--keep-every is for a job with --keep".into());
        };
        mistakes.require(files::is_name(keep) && Pattern::of(keep).is_none(), || {
            format!("--keep {} must be a folder of the work directory, like checkpoints", shown(keep))
        });
        mistakes.require(self.keep_every_s == 0 || self.keep_every_s >= MIN_KEEP_EVERY_S, || {
            format!("--keep-every must be at least {MIN_KEEP_EVERY_S} s, it is {} s", self.keep_every_s)
        });
        // A folder there is what the first try begins with.
        let is_there = |name: &String| Path::new(keep).starts_with(name);
        let in_the_way = self.inputs.iter().find(|(name, source)| is_there(name) && source.is_file());
        mistakes.require(in_the_way.is_none(), || {
            let name = shown(in_the_way.map_or("", |(name, _)| name));
            format!("--keep {} is a folder, and the input {name} is a file: give one of them another name", shown(keep))
        });
    }

    /// Whether it has inputs, outputs, or a folder that it keeps.
    pub fn has_files(&self) -> bool {
        !self.inputs.is_empty() || !self.outputs.is_empty() || self.keep.is_some()
    }

    /// Whether it needs the bucket of the cluster.
    pub fn needs_bucket(&self) -> bool {
        self.keep.is_some()
            || self.inputs.values().any(|source| !source.is_of_the_role())
            || self.outputs.iter().any(|out| out.to.is_none())
    }

    /// Every secret: its variable and its place.
    pub fn all_secrets(&self) -> impl Iterator<Item = (&String, &String)> {
        self.secrets.iter().chain(&self.secret_files)
    }

    fn check_rights(&self, env: &Environment, mistakes: &mut Mistakes) {
        if let Some(role) = self.role.as_deref() {
            mistakes.require(is_role_name(role), || {
                format!("--role {} must be the name of a role: 1 to 64 letters, digits and +=,.@_-", shown(role))
            });
        }
        let has_role = self.role.is_some();
        let has_secrets = self.all_secrets().next().is_some() || self.registry_login.is_some();
        mistakes.require(has_role || !has_secrets, || {
            "a secret is read with the role of the job: give --role NAME, a role that the policy lists in jobs.roles".into()
        });
        if let Some(place) = &self.registry_login {
            mistakes.require(self.image.is_some(), || "--registry-login is for a job with --image".into());
            if let Err(e) = place.parse::<SecretPlace>() {
                mistakes.require(false, || format!("--registry-login {e}; it is {}", shown(place)));
            }
        }
        for (name, place) in self.all_secrets() {
            self.check_variable(name, mistakes);
            if let Err(e) = place.parse::<SecretPlace>() {
                mistakes
                    .require(false, || format!("the place of the secret {} {e}; it is {}", shown(name), shown(place)));
            }
            let is_twice =
                env.contains_key(name) || self.secrets.contains_key(name) && self.secret_files.contains_key(name);
            mistakes.require(!is_twice, || {
                format!("the variable {} is given twice, at least once as a secret", shown(name))
            });
        }
    }

    /// Checks a variable that the job gives itself. A value that the node would replace says nothing.
    fn check_variable(&self, name: &str, mistakes: &mut Mistakes) {
        // What `submit` itself sets is in a job that is submitted once more.
        let is_own = name == INPUT_VARIABLE || name == COUNT_VARIABLE || name == INDEX_VARIABLE && self.pack.is_none();
        if let Some(fault) = variable_fault(name).filter(|_| !is_own) {
            mistakes.require(false, || fault);
        }
    }

    fn check_pack(&self, mistakes: &mut Mistakes) {
        let Some(pack) = &self.pack else { return };
        pack.check(mistakes);
        mistakes.require(self.image.is_none(), || {
            "the elements of a pack are processes of the node: --pack and --image cannot be given together".into()
        });
        mistakes.require(self.outputs.is_empty(), || {
            "the elements of a pack share one work directory, so --out says nothing about one of them: let each store what it \
             makes, or print it"
                .into()
        });
    }

    fn check_size(&self, env: &Environment, mistakes: &mut Mistakes) {
        let bytes = self.command.iter().map(String::len).sum::<usize>()
            + env.iter().chain(self.all_secrets()).map(|(k, v)| k.len() + v.len()).sum::<usize>()
            + self.registry_login.iter().chain(&self.entrypoint).chain(&self.keep).map(String::len).sum::<usize>()
            + files::bytes_in_row(&self.inputs, &self.outputs);
        mistakes.require(bytes <= MAX_COMMAND_BYTES, || {
            format!(
                "command and environment have {bytes} bytes, {MAX_COMMAND_BYTES} are allowed: pass data by a file or a URL"
            )
        });
    }

    fn check_caches(&self, mistakes: &mut Mistakes) {
        let valid = |c: &str| {
            (1..=64).contains(&c.len()) && c.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        };
        for cache in &self.caches {
            mistakes.require(valid(cache), || {
                format!("cache name {} must be 1 to 64 letters, digits, '-' or '_'", shown(cache))
            });
        }
        mistakes.require(self.caches.len() <= MAX_CACHES, || {
            format!("it names {} caches: at most {MAX_CACHES} are possible", self.caches.len())
        });
        let mut names = BTreeMap::new();
        for cache in self.caches.iter().filter(|cache| valid(cache)) {
            let variable = cache_variable(cache);
            let other = names.insert(variable.clone(), cache);
            mistakes.require(other.is_none(), || match other {
                Some(other) if other != cache => {
                    format!("the caches {other} and {cache} would share the variable {variable}")
                }
                _ => format!("the cache {cache} is named twice"),
            });
        }
    }
}

/// The variable of a job that has the directory of this cache.
pub fn cache_variable(cache: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("NODEKEEPER_CACHE_{}", cache.chars().map(letter).collect::<String>())
}

/// Why a person cannot give a job a variable of this name; `None` if it is possible. A shell drops a variable with another name, and
/// docker and podman take it for something else.
pub fn variable_fault(name: &str) -> Option<String> {
    let is_seen = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    match name {
        "" => Some("a variable has no name: give NAME=VALUE".to_owned()),
        _ if !is_seen || name.starts_with(|c: char| c.is_ascii_digit()) => Some(format!(
            "{} cannot be the name of a variable: a shell sees only letters, digits and '_', and no digit first",
            shown(name)
        )),
        _ if name.starts_with(OWN) || OF_NODE.contains(&name) => {
            Some(format!("nodekeeper sets the variable {} itself: give another one", shown(name)))
        }
        _ => None,
    }
}
