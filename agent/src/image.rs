//! The image of a container, before its command starts: pulled if the node does not have it, and pinned to its digest.
//!
//! The digest that the first try of a job finds is reported to the control plane. Each later try runs the image with this digest,
//! even if the tag names another one by then. An image that was only made on the node (`localhost/…`, or without a registry's
//! digest) is not pinned.
//!
//! Guarantees: the login to a registry is in a file for root only, and only while the image is pulled; a registry that refuses or
//! does not answer is told apart from a node that cannot pull; if the disk is full, images that the agent pulled and no container
//! uses are removed before the pull is given up.
//! Does not: ask a registry about an image that the node has. So whoever may run jobs on a node may run its images, as with
//! docker.
//! Source: "Using Amazon ECR with the AWS CLI: private registry authentication", Amazon ECR User Guide.

use crate::alloc_dir::{AllocDir, AllocTask};
use crate::rights::keys::Failure;
use crate::rights::secrets::{Call, Reader};
use crate::runtime::RuntimeKind;
use crate::runtime::pulls::{self, PullFault};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::EndCause;
use model::image::{DEFAULT_REGISTRY, ImageDigest, is_image_reference, pinned, registry};
use serde_json::{Value, json};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use tokio::time::{Instant, sleep};

/// How long a pull may fail, before the alloc is given up.
const PATIENCE: Duration = Duration::from_secs(120);
/// The wait before a pull is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// The name of docker's own registry in the files of docker.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// The image of this task for its runtime, with the digest if it is known; `None` for a task without an image.
pub fn reference(task: &AllocTask, dir: &AllocDir) -> Option<String> {
    let image = task.order.work.image.as_deref()?;
    let digest = task.order.work.image_digest.clone().or_else(|| dir.image_digest());
    Some(digest.map_or_else(|| image.to_owned(), |digest| pinned(image, &digest)))
}

/// Makes sure that the node has the image of the task, and writes down its digest.
pub async fn provide(task: &AllocTask, dir: &AllocDir, reader: Option<Reader<'_>>) -> Result<(), EndCause> {
    let work = &task.order.work;
    // The runtime rejects an invalid reference later, when it makes the command line.
    let Some(image) = work.image.as_deref().filter(|image| is_image_reference(image)) else { return Ok(()) };
    let Some(reference) = reference(task, dir) else { return Ok(()) };
    let pulled = Pulled(dir.path().ancestors().nth(2).unwrap_or(dir.path()).join("images"));
    let mut found = task.runtime.digests(&reference).await;
    if found.is_err() {
        let denied = match reader {
            Some(reader) => log_in(work.registry_login.as_deref(), image, dir, reader).await?,
            None => None,
        };
        let result = pull(task.runtime, &reference, dir, &pulled, denied.as_deref()).await;
        let forgotten = dir.forget_login();
        result?;
        forgotten.map_err(|e| not_started(format!("cannot remove what logged in to the registry: {e}")))?;
        found = task.runtime.digests(&reference).await;
    }
    pulled.use_now(&reference);
    let digest = work.image_digest.clone().or_else(|| digest_of(image, &found.unwrap_or_default()));
    let Some(digest) = digest else { return Ok(()) };
    dir.write_image_digest(&digest).map_err(|e| not_started(format!("cannot write down the image: {e}")))
}

fn not_started(why: String) -> EndCause {
    EndCause::NotStarted { why }
}

/// The digest of this image in its registry. `known` is what a runtime knows (`NAME@DIGEST`).
fn digest_of(image: &str, known: &[String]) -> Option<ImageDigest> {
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().split([':', '@']).next().map(str::to_owned);
    let is_same = |name: &str| registry(name) == registry(image) && last(name) == last(image);
    let found = known.iter().filter_map(|text| text.split_once('@')).find(|(name, _)| is_same(name));
    found.filter(|(name, _)| registry(name) != "localhost").and_then(|(_, digest)| digest.parse().ok())
}

async fn pull(
    runtime: RuntimeKind,
    reference: &str,
    dir: &AllocDir,
    pulled: &Pulled,
    denied: Option<&str>,
) -> Result<(), EndCause> {
    let login = dir.registry();
    let login = login.exists().then_some(login.as_path());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let error = match runtime.pull(reference, login).await {
            Ok(()) => return Ok(()),
            Err(error) => error.to_string(),
        };
        let hint = denied.map_or_else(String::new, |why| format!(" (nor with the role of the job: {why})"));
        let why = format!("the image {reference} cannot be pulled: {}{hint}", last_error(&error));
        let fault = pulls::fault(&error);
        if error.contains("no space left on device") && pulled.remove_oldest(runtime).await {
            continue;
        }
        if fault == PullFault::Refused || Instant::now() > deadline {
            // Another node would get the same answer, also while a registry is down.
            return Err(if fault == PullFault::Machine { not_started(why) } else { EndCause::Lost { why } });
        }
        tracing::warn!(reference, error, "the image cannot be pulled yet");
        sleep(RETRY).await;
    }
}

/// The last error that a client printed, without its warnings.
fn last_error(printed: &str) -> &str {
    printed.rfind("Error: ").and_then(|at| printed.get(at + "Error: ".len()..)).unwrap_or(printed).trim()
}

/// Writes the file with the login for docker and podman, if the job has a login. `at` is the place of the secret with the login. If
/// Amazon ECR refuses the role of the job, writes no file and returns the reason: the pull may still succeed with another login of
/// the node.
async fn log_in(at: Option<&str>, image: &str, dir: &AllocDir, reader: Reader<'_>) -> Result<Option<String>, EndCause> {
    let is_stopped = || dir.stop_reason().is_some();
    let auth = match (at, ecr_region(image)) {
        (Some(place), _) => {
            let what = "the login to the registry";
            let secret = reader.value(what, place, is_stopped).await?;
            let login = login_of(&secret).ok_or_else(|| EndCause::Rejected {
                why: format!("{what} must be USER:PASSWORD, or JSON with username and password"),
            })?;
            BASE64_STANDARD.encode(login)
        }
        (None, Some(region)) => match ecr_token(&reader, region).await {
            Ok(token) => token,
            Err(Failure::Final(why)) => return Ok(Some(why)),
            Err(failure) => return Err(failure.about("Amazon ECR gives no login")),
        },
        (None, None) => return Ok(None),
    };
    let host = registry(image);
    let entry = json!({"auth": auth});
    let mut auths = json!({host: entry});
    if host == DEFAULT_REGISTRY {
        auths = json!({host: entry, DOCKER_HUB: entry});
    }
    let written = write_login(&dir.registry(), &json!({"auths": auths}));
    written.map_err(|e| not_started(format!("cannot write down the login to the registry: {e}")))?;
    Ok(None)
}

fn write_login(dir: &Path, config: &Value) -> io::Result<()> {
    use std::io::Write;
    fs::DirBuilder::new().mode(0o700).create(dir)?;
    let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(dir.join("config.json"))?;
    file.write_all(config.to_string().as_bytes())
}

/// `USER:PASSWORD` of a secret.
fn login_of(secret: &str) -> Option<String> {
    if let Ok(Value::Object(fields)) = serde_json::from_str(secret) {
        let text = |name: &str| fields.get(name)?.as_str();
        return Some(format!("{}:{}", text("username")?, text("password")?));
    }
    let secret = secret.trim();
    secret.split_once(':').filter(|(user, _)| !user.is_empty()).map(|_| secret.to_owned())
}

/// The region of an image of Amazon ECR: `ACCOUNT.dkr.ecr.REGION.amazonaws.com/…`.
fn ecr_region(image: &str) -> Option<&str> {
    let (account, rest) = registry(image).split_once(".dkr.ecr.")?;
    let is_account = account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit());
    let (region, host) = rest.split_once('.')?;
    (is_account && host.starts_with("amazonaws.com")).then_some(region)
}

/// The login to Amazon ECR for the role of the job: `USER:PASSWORD` in base64.
async fn ecr_token(reader: &Reader<'_>, region: &str) -> Result<String, Failure> {
    let call = Call {
        host: "api.ecr",
        service: "ecr",
        variable: "ECR",
        target: "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken",
        body: json!({}),
    };
    let answer = reader.call(region, &call).await?;
    let token = answer.pointer("/authorizationData/0/authorizationToken").and_then(Value::as_str);
    token.map(str::to_owned).ok_or_else(|| Failure::Passing("Amazon ECR answered without a token".to_owned()))
}

/// The images that the agent pulled: a file for each, as old as its last use.
struct Pulled(PathBuf);

impl Pulled {
    fn use_now(&self, reference: &str) {
        let file = self.0.join(model::auth::hex(reference.as_bytes()));
        if let Err(error) = fs::create_dir_all(&self.0).and_then(|()| fs::write(file, reference)) {
            tracing::warn!(%error, "cannot note that the image was used");
        }
    }

    /// Removes the image that was used longest ago and that no container uses. `false` if there is none.
    async fn remove_oldest(&self, runtime: RuntimeKind) -> bool {
        let used_at = |path: &PathBuf| fs::metadata(path).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut files: Vec<_> = fs::read_dir(&self.0).into_iter().flatten().flatten().map(|e| e.path()).collect();
        files.sort_by_key(used_at);
        for file in files {
            let reference = fs::read_to_string(&file).unwrap_or_default();
            match runtime.remove_image(&reference).await {
                Ok(()) => {
                    tracing::info!(reference, "the image was removed to make room");
                    return fs::remove_file(file).is_ok();
                }
                Err(error) => tracing::info!(reference, %error, "the image stays"),
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_of_the_registry_counts() {
        let one = format!("sha256:{}", "1".repeat(64));
        let known = |name: &str| vec![format!("{name}@{one}")];
        let found = |image: &str, known: &[String]| digest_of(image, known).map(|digest| digest.to_string());
        for (image, name) in [
            ("alpine:3", "alpine"),
            ("alpine", "docker.io/library/alpine"),
            ("localhost:5000/team/app:1", "localhost:5000/team/app"),
            ("ghcr.io/team/app@sha256:0", "ghcr.io/team/app"),
        ] {
            assert_eq!(found(image, &known(name)), Some(one.clone()), "{image}");
        }
        for (image, name) in [("localhost/app:1", "localhost/app"), ("alpine", "ghcr.io/alpine"), ("a", "b")] {
            assert_eq!(found(image, &known(name)), None, "{image}: it is not of its registry");
        }
    }

    #[tokio::test]
    async fn the_image_that_was_used_longest_ago_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = Pulled(dir.path().join("images"));
        for (image, s) in [("new", 30), ("old", 10), ("between", 20)] {
            pulled.use_now(image);
            let file = fs::File::options().write(true).open(pulled.0.join(model::auth::hex(image.as_bytes()))).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(s)).unwrap();
        }
        let left = || {
            let files = fs::read_dir(&pulled.0).unwrap().map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
            files.collect::<std::collections::BTreeSet<_>>()
        };
        // The runtime of processes removes any image.
        assert!(pulled.remove_oldest(RuntimeKind::PROCESS).await);
        assert_eq!(left(), ["between", "new"].map(str::to_owned).into());
        assert!(pulled.remove_oldest(RuntimeKind::PROCESS).await && pulled.remove_oldest(RuntimeKind::PROCESS).await);
        assert!(!pulled.remove_oldest(RuntimeKind::PROCESS).await, "there is none");
    }

    #[test]
    fn of_what_a_client_prints_its_last_error_is_told() {
        let printed = "podman pull failed (exit status: 125): level=warning msg=\"Failed, retrying in 1s\"\nError: manifest unknown\n";
        assert_eq!(last_error(printed), "manifest unknown");
        assert_eq!(last_error("docker pull did not end\n"), "docker pull did not end");
    }

    #[test]
    fn a_login_is_a_pair_or_a_secret_of_rds_form() {
        for (secret, login) in [
            ("me:pa:ss\n", Some("me:pa:ss")),
            (r#"{"username": "me", "password": "pa:ss", "more": 1}"#, Some("me:pa:ss")),
            (r#"{"username": "me"}"#, None),
            ("nothing", None),
            (":x", None),
        ] {
            assert_eq!(login_of(secret).as_deref(), login, "{secret}");
        }
    }

    #[test]
    fn an_image_of_amazon_ecr_names_its_region() {
        assert_eq!(ecr_region("123456789012.dkr.ecr.eu-west-1.amazonaws.com/app:1"), Some("eu-west-1"));
        for other in
            ["public.ecr.aws/app", "x.dkr.ecr.eu-west-1.amazonaws.com/app", "alpine", "123456789012.dkr.ecr.a.b/c"]
        {
            assert_eq!(ecr_region(other), None, "{other}");
        }
    }
}
