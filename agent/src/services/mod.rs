//! Which services this node gets through to: S3, the services that keep secrets, and registries.
//!
//! Whoever calls a service notes how the call ended, in a file for each service. The agent reads the files (`watch`).
//! Guarantees: an answer of any kind but an error of the service itself counts as reached, so a job that asks for what is not there says
//! nothing about the node.
//! Does not: judge whether the node or the service is to blame. Who compares the nodes does (`model::node::Reached`).

pub mod watch;

use crate::machine::atomic_file;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The directory with a file for each service that was called lately.
#[derive(Clone, Debug)]
pub struct Services(PathBuf);

#[derive(Debug, Serialize, Deserialize)]
struct LastCall {
    service: String,
    /// `HOST:PORT`
    address: String,
    /// Why it cannot be reached; `None` if it was.
    why: Option<String>,
}

impl Services {
    /// Those of the node with this alloc.
    pub fn of_alloc(dir: &Path) -> Self {
        Self(dir.ancestors().nth(2).unwrap_or(dir).join("services"))
    }

    /// Those of the node with this data directory.
    pub fn of_node(data_dir: &Path) -> Self {
        Self(data_dir.join("services"))
    }

    /// Notes how a call of a service ended. `url` has its host.
    pub fn note(&self, service: &str, url: &str, why: Option<&str>) {
        let Some(address) = address(url) else { return };
        // A record has little room: the cause at the end of an error says more than the URL at its beginning.
        let why = why.map(|why| why.rsplit_once("): ").map_or(why, |(_, cause)| cause).to_owned());
        let call = LastCall { service: service.to_owned(), address, why };
        let file = self.file(service);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        let written = made.and_then(|()| atomic_file::replace_lightly(&file, &call));
        if let Err(error) = written {
            tracing::warn!(%error, service, "cannot note how the call of a service ended");
        }
    }

    /// Why the last call of this service failed; `None` if it did not, or if there was none lately.
    pub fn failure(&self, service: &str) -> Option<String> {
        let call: LastCall = serde_json::from_slice(&fs::read(self.file(service)).ok()?).ok()?;
        call.why
    }

    fn file(&self, service: &str) -> PathBuf {
        self.0.join(model::auth::hex(&Sha256::digest(service)))
    }

    /// The last calls, each with its file and the time since it was noted.
    fn read(&self, now: SystemTime) -> Vec<(PathBuf, Duration, LastCall)> {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|entry| entry.path());
        let one = |file: PathBuf| {
            let at = fs::metadata(&file).and_then(|m| m.modified()).ok()?;
            let call = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
            Some((file, now.duration_since(at).unwrap_or_default(), call))
        };
        files.filter(|file| file.extension().is_none()).filter_map(one).collect()
    }
}

/// The host of a URL, with its port.
fn address(url: &str) -> Option<String> {
    let url = reqwest::Url::parse(url).ok()?;
    Some(format!("{}:{}", url.host_str()?, url.port_or_known_default()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_about_the_host_of_its_url() {
        for (url, want) in [
            ("https://b.s3.eu-west-1.amazonaws.com/k", Some("b.s3.eu-west-1.amazonaws.com:443")),
            ("http://127.0.0.1:9000/b/k", Some("127.0.0.1:9000")),
            ("https://index.docker.io/v1/", Some("index.docker.io:443")),
            ("nonsense", None),
        ] {
            assert_eq!(address(url).as_deref(), want, "{url}");
        }
    }
}
