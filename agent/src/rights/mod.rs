//! What a job may do in AWS: the credentials of its role, and its secrets.
//!
//! The agent gives the credentials to the job on a port of this machine, as the SDKs of AWS expect of a container: the job has
//! the address in `AWS_CONTAINER_CREDENTIALS_FULL_URI`, and a file with its own token. The supervisor takes them there too, and
//! reads the secrets of the job with them.
//!
//! Guarantees: only a caller with the token of an alloc gets its credentials; no secret is on a command line, in a log, or in a
//! file that the job did not ask for.
//! Does not: decide who may have which role: grant-credentials does. Nothing here is kept on disk, except the port and the
//! files of the job.

pub mod keys;
pub mod port;
pub mod secrets;
pub mod service;

use crate::runtime::interface::ProcessEnv;
use model::wire::AllocOrder;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The file with the token, in the directory of the alloc.
pub const TOKEN_FILE: &str = "aws-token";
/// The directory with the secrets of `secret_files`, in the directory of the alloc.
pub const SECRETS_DIR: &str = "secrets";

/// Where a job gets its credentials: part of `task.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialsSource {
    /// The address on this machine.
    pub url: String,
    /// The region of the node, if it is known: a job that names none works there.
    pub region: Option<String>,
}

/// The agent's own address for its jobs.
const HOST: &str = "127.0.0.1";

/// The path, before the id of the alloc.
const PATH: &str = "/v1/credentials/";

/// Where this agent gives jobs their credentials.
#[derive(Clone, Debug, Default)]
pub struct CredentialsPort {
    pub port: u16,
    pub region: Option<String>,
}

impl CredentialsPort {
    /// Where the job of this order gets its credentials; `None` if it has no role.
    pub fn source(&self, order: &AllocOrder) -> Option<CredentialsSource> {
        let url = format!("http://{HOST}:{}{PATH}{}", self.port, order.alloc_id);
        order.work.role.is_some().then(|| CredentialsSource { url, region: self.region.clone() })
    }
}

/// Makes the token of the alloc in `dir`, for this user only, or for the agent's own.
pub fn make_token(dir: &Path, uid: Option<u32>) -> io::Result<String> {
    let mut bytes = [0; 32];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let token = model::auth::hex(&bytes);
    write_for(&dir.join(TOKEN_FILE), token.as_bytes(), uid)?;
    Ok(token)
}

/// The variables by which the SDKs of AWS find the credentials of the job. `seen_at` is where the command finds the directory
/// of its alloc.
pub fn variables(source: &CredentialsSource, seen_at: &Path) -> ProcessEnv {
    let token = seen_at.join(TOKEN_FILE).display().to_string();
    let mut env = ProcessEnv::from([
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI".to_owned(), source.url.clone()),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE".to_owned(), token),
        // The metadata of the instance is closed to jobs. Without this variable, SDKs ask the metadata service, and wait.
        ("AWS_EC2_METADATA_DISABLED".to_owned(), "true".to_owned()),
    ]);
    if let Some(region) = &source.region {
        env.extend(REGION.map(|name| (name.to_owned(), region.clone())));
    }
    env
}

/// Keeps a proxy that the environment may name from being asked for the agent's address. Some programs read one case of the variable,
/// some the other.
pub fn pass_proxies_by(env: &mut ProcessEnv) {
    let names = ["NO_PROXY", "no_proxy"];
    let known = names.map(|name| env.get(name).cloned());
    for (name, own) in names.into_iter().zip(known.clone()) {
        let value = own.or_else(|| known.iter().flatten().next().cloned()).unwrap_or_default();
        let has_it = value.split(',').any(|host| ["*", HOST].contains(&host.trim()));
        let separator = if value.trim().is_empty() { "" } else { "," };
        env.insert(name.to_owned(), if has_it { value } else { format!("{value}{separator}{HOST}") });
    }
}

/// The variables for the region: some SDKs read one of them, some the other.
const REGION: [&str; 2] = ["AWS_REGION", "AWS_DEFAULT_REGION"];

/// Whether the job may give this variable another value.
pub fn is_default(name: &str) -> bool {
    REGION.contains(&name)
}

/// Makes a file that only this user can read, or only the agent's own.
fn write_for(path: &Path, content: &[u8], uid: Option<u32>) -> io::Result<()> {
    fs::File::options().write(true).create_new(true).mode(0o400).open(path)?.write_all(content)?;
    match uid {
        Some(_) => std::os::unix::fs::chown(path, uid, uid),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_proxy_stands_between_a_job_and_the_agent_in_either_case_of_the_variable() {
        for (upper, lower, want_upper, want_lower) in [
            (None, None, "127.0.0.1", "127.0.0.1"),
            (Some("a.example,10.0.0.0/8"), None, "a.example,10.0.0.0/8,127.0.0.1", "a.example,10.0.0.0/8,127.0.0.1"),
            (None, Some(""), "127.0.0.1", "127.0.0.1"),
            (Some("a"), Some("b"), "a,127.0.0.1", "b,127.0.0.1"),
            (Some("*"), Some("b, 127.0.0.1"), "*", "b, 127.0.0.1"),
        ] {
            let given = [("NO_PROXY", upper), ("no_proxy", lower)];
            let given = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
            let mut env: ProcessEnv = given.collect();
            pass_proxies_by(&mut env);
            assert_eq!((&*env["NO_PROXY"], &*env["no_proxy"]), (want_upper, want_lower), "{upper:?} {lower:?}");
        }
    }
}
