//! What the nodes run for a job.
//!
//! The same struct is in a submission, in the rows of jobs and allocs, and in the order for a node. The environment stands beside
//! it, because permissions can hide an attribute of a row, but not a part of one.
//!
//! Guarantees: each default stands here, and nowhere else; work that cannot be run, or would be taken for something else, is
//! refused.
//! Does not: run anything; the agent does.

use crate::container_env::{Passing, passing};
use crate::elements::Pack;
use crate::files::{self, Inputs, Output};
use crate::image::{ImageDigest, is_image_reference};
use crate::mistakes::{Mistakes, shown};
use crate::rights::{SecretPlace, Secrets, is_role_name};
use crate::ulimits::{self, Ulimits};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Variables by name.
pub type Environment = BTreeMap<String, String>;

/// The most items DynamoDB takes in one transaction.
pub const MAX_TRANSACTION_ITEMS: usize = 100;
/// The most caches of a job: one transaction places a member with all of its caches, the job and what the member replaces.
const MAX_CACHES: usize = MAX_TRANSACTION_ITEMS - 5;
/// The most bytes a command and its environment may have together.
pub const MAX_COMMAND_BYTES: usize = 16 * 1024;
/// The variable of a job that holds the standard input of its command, in base64. The agent takes it out of the environment.
/// So an input has the bounds of the environment, and whoever may not see environments does not see it.
pub const INPUT_VARIABLE: &str = "NODEKEEPER_STDIN";

/// The work of a job, copied from the job to each of its allocs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Work {
    /// The program and its arguments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// The image of its container; `None` for a process of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The digest of the image at the first try. Each later try runs the image with this digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<ImageDigest>,
    /// The place of the secret that logs in to the registry of the image: `USER:PASSWORD`, or JSON with `username` and
    /// `password`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry_login: Option<String>,
    /// Named volumes that outlive the alloc.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<String>,
    /// How long the alloc may run, in seconds; 0 for no limit.
    pub timeout_s: u64,
    /// Limits of single resources.
    #[serde(skip_serializing_if = "Ulimits::is_empty")]
    pub ulimits: Ulimits,
    /// The role that the job takes in AWS, by its name; `None` for no rights there.
    #[serde(skip_serializing_if = "Option::is_none")]
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
    /// Whether outputs are also kept if the command fails.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub keep_failed: bool,
    /// The elements for each of which the command runs; `None`: it runs once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pack: Option<Pack>,
}

impl Work {
    pub(crate) fn check(&self, env: &Environment, mistakes: &mut Mistakes) {
        let named = self.command.first().is_some_and(|c| !c.is_empty());
        mistakes.require(named, || "it has no command: give one after --".into());
        self.check_size(env, mistakes);
        for name in env.keys() {
            mistakes.require(is_variable(name), || format!("{name:?} is not a name for an environment variable"));
        }
        let nul = self.command.iter().chain(env.values()).any(|s| s.contains('\0'));
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
                    "--image {image:?} is not an image reference: it must begin with a letter or digit, like \
                     registry.example.com/team/image:tag"
                )
            });
        }
        self.check_caches(mistakes);
        ulimits::check(&self.ulimits, mistakes);
        self.check_rights(env, mistakes);
        self.check_pack(mistakes);
        files::check(&self.inputs, &self.outputs, self.role.is_some(), mistakes);
    }

    pub fn has_files(&self) -> bool {
        !self.inputs.is_empty() || !self.outputs.is_empty()
    }

    /// Whether it needs the bucket of the cluster.
    pub fn needs_bucket(&self) -> bool {
        self.inputs.values().any(|source| !source.is_of_the_role()) || self.outputs.iter().any(|out| out.to.is_none())
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
            mistakes
                .require(is_variable(name), || format!("{} is not a name for an environment variable", shown(name)));
            if let Err(e) = place.parse::<SecretPlace>() {
                mistakes.require(false, || format!("the place of the secret {name} {e}; it is {}", shown(place)));
            }
            let is_twice =
                env.contains_key(name) || self.secrets.contains_key(name) && self.secret_files.contains_key(name);
            mistakes.require(!is_twice, || format!("the variable {name} is given twice, at least once as a secret"));
        }
    }

    /// Checks a stored row, which another program may have written without a check.
    pub(crate) fn check_stored(&self, env: &Environment, mistakes: &mut Mistakes) {
        mistakes.require(!self.command.is_empty(), || "it has no command".into());
        self.check_size(env, mistakes);
        mistakes.require(self.image.as_deref().is_none_or(is_image_reference), || {
            "its image is not an image reference".into()
        });
        self.check_caches(mistakes);
        ulimits::check(&self.ulimits, mistakes);
        self.check_pack(mistakes);
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
            + self.registry_login.as_ref().map_or(0, String::len)
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
            mistakes
                .require(valid(cache), || format!("cache name {cache:?} must be 1 to 64 letters, digits, '-' or '_'"));
        }
        mistakes.require(self.caches.len() <= MAX_CACHES, || {
            format!("it names {} caches: at most {MAX_CACHES} are possible", self.caches.len())
        });
        let unique: BTreeSet<_> = self.caches.iter().collect();
        mistakes.require(unique.len() == self.caches.len(), || "a cache is named twice".into());
    }
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}
