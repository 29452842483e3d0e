//! The image of a container, before its command starts: pulled if the node does not have it, and pinned to its digest.
//!
//! The digest that the first try of a job finds is reported to the control plane. Each later try runs the image with this digest,
//! even if the tag names another one by then. An image that was only made on the node (`localhost/…`, or without a registry's
//! digest) is not pinned.
//!
//! Guarantees: the login to a registry is in a file for root only, and only while the image is pulled; a registry that refuses or
//! does not answer is told apart from a node that cannot pull; if the disk is full, images that the agent pulled and no container
//! uses are removed before the pull is given up, and no others: not one that was there before the pull, or has become another one.
//! Does not: ask a registry about an image that the node has. So whoever may run jobs on a node may run its images, as with
//! docker.
//! Source: "Using Amazon ECR with the AWS CLI: private registry authentication", Amazon ECR User Guide.

use super::alloc_dir::{AllocDir, AllocPhase, AllocTask};
use super::obstacle::Obstacle;
use crate::machine::atomic_file;
use crate::rights::secrets::{SecretAccess, ServiceCall, suffix};
use crate::runtime::ContainerRuntime;
use crate::runtime::pulls::{self, PullFault};
use crate::services::Services;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::ImageDigest;
use model::enums::Service;
use model::image::{DEFAULT_REGISTRY, is_image_reference, pinned, registry};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
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
pub async fn provide(task: &AllocTask, dir: &AllocDir, reader: Option<SecretAccess<'_>>) -> Result<(), Obstacle> {
    let work = &task.order.work;
    // The runtime rejects an invalid reference later, when it makes the command line.
    let Some(image) = work.image.as_deref().filter(|image| is_image_reference(image)) else { return Ok(()) };
    let (Some(reference), Some(runtime)) = (reference(task, dir), task.container) else { return Ok(()) };
    let dir_of_notes = dir.path().ancestors().nth(2).unwrap_or(dir.path()).join("images");
    let pulled = Pulled { dir: dir_of_notes, runtime };
    let mut found = runtime.digests(&reference).await;
    if found.is_ok() {
        pulled.use_now(&reference);
    } else {
        let before = runtime.image_ids().await;
        let denied = match reader {
            Some(reader) => log_in(work.registry_login.as_deref(), image, dir, reader).await?,
            None => None,
        };
        let result = pull(&reference, dir, &pulled, denied.as_deref()).await;
        let forgotten = dir.forget_login();
        result?;
        let noted = match (runtime.image_id(&reference).await, before) {
            (Ok(id), Ok(before)) => pulled.note(&reference, id, &before),
            (Err(error), _) | (_, Err(error)) => Err(error),
        };
        if let Err(error) = noted {
            tracing::warn!(%error, "cannot note that the image was pulled: it is never removed to make room");
        }
        forgotten.map_err(|e| Obstacle::of_node("cannot remove what logged in to the registry", &e))?;
        found = runtime.digests(&reference).await;
    }
    let digest = work.image_digest.clone().or_else(|| digest_of(image, &found.unwrap_or_default()));
    let Some(digest) = digest else { return Ok(()) };
    dir.write_image_digest(&digest).map_err(|e| Obstacle::of_node("cannot write down the image", &e))
}

/// The digest of this image in its registry. `known` is what a runtime knows (`NAME@DIGEST`).
fn digest_of(image: &str, known: &[String]) -> Option<ImageDigest> {
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().split([':', '@']).next().map(str::to_owned);
    let is_same = |name: &str| registry(name) == registry(image) && last(name) == last(image);
    let found = known.iter().filter_map(|text| text.split_once('@')).find(|(name, _)| is_same(name));
    found.filter(|(name, _)| registry(name) != "localhost").and_then(|(_, digest)| digest.parse().ok())
}

async fn pull(reference: &str, dir: &AllocDir, pulled: &Pulled, denied: Option<&str>) -> Result<(), Obstacle> {
    let login = dir.registry();
    let login = login.exists().then_some(login.as_path());
    let deadline = Instant::now() + PATIENCE;
    dir.write_phase(Some(&AllocPhase::of(format!("pulling {reference}"))));
    loop {
        let error = match pulled.runtime.pull(reference, login).await {
            Ok(()) => {
                note_registry(dir, reference, None);
                return Ok(());
            }
            Err(error) => error.to_string(),
        };
        let hint = denied.map_or_else(String::new, |why| format!(" (nor with the role of the job: {why})"));
        let why = format!("the image {reference} cannot be pulled: {}{hint}", last_error(&error));
        let fault = pulls::fault(&error);
        if fault != PullFault::Machine {
            note_registry(dir, reference, Some(last_error(&error)).filter(|_| fault == PullFault::Registry));
        }
        if error.contains("no space left on device") && pulled.remove_oldest(remove).await {
            continue;
        }
        match fault {
            // Every node would get the same answer.
            PullFault::Refused => return Err(Obstacle::Job(why)),
            PullFault::Machine if Instant::now() > deadline => return Err(Obstacle::Node(why)),
            PullFault::Registry if Instant::now() > deadline => return Err(Obstacle::Service(Service::Registry, why)),
            PullFault::Machine | PullFault::Registry => {}
        }
        let text = format!("pulling {reference}, tried again: {}", last_error(&error));
        dir.write_phase(Some(&AllocPhase { text, is_failing: true }));
        tracing::warn!(reference, error, "the image cannot be pulled yet");
        sleep(RETRY).await;
    }
}

/// Notes how a pull ended. `why`: the registry gave no usable answer.
fn note_registry(dir: &AllocDir, reference: &str, why: Option<&str>) {
    let host = registry(reference);
    let url = if host == DEFAULT_REGISTRY { DOCKER_HUB.to_owned() } else { format!("https://{host}") };
    Services::of_alloc(dir.path()).note(&format!("registry {host}"), &url, why);
}

/// The last error that a client printed, without its warnings.
fn last_error(printed: &str) -> &str {
    printed.rfind("Error: ").and_then(|at| printed.get(at + "Error: ".len()..)).unwrap_or(printed).trim()
}

/// Writes the file with the login for docker and podman, if the job has a login. `at` is the place of the secret with the login. If
/// Amazon ECR refuses the role of the job, writes no file and returns the reason: the pull may still succeed with another login of
/// the node.
async fn log_in(
    at: Option<&str>,
    image: &str,
    dir: &AllocDir,
    reader: SecretAccess<'_>,
) -> Result<Option<String>, Obstacle> {
    let auth = match (at, ecr_region(image)) {
        (Some(place), _) => {
            let what = "the login to the registry";
            let secret = reader.value(what, place).await?;
            let login = login_of(&secret).ok_or_else(|| {
                Obstacle::Job(format!("{what} must be USER:PASSWORD, or JSON with username and password"))
            })?;
            BASE64_STANDARD.encode(login)
        }
        (None, Some(region)) => match ecr_token(&reader, region).await {
            Ok(token) => token,
            Err(Obstacle::Job(why)) => return Ok(Some(why)),
            Err(fault) => return Err(fault.about("Amazon ECR gives no login")),
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
    written.map_err(|e| Obstacle::of_node("cannot write down the login to the registry", &e))?;
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

/// The region of an image of Amazon ECR: `ACCOUNT.dkr.ecr.REGION.amazonaws.com/…`, with `ecr-fips` for its FIPS endpoint and `.cn` at
/// the end in China. Whoever has another host gets no login: each label of the host counts.
fn ecr_region(image: &str) -> Option<&str> {
    let (account, rest) = registry(image).split_once('.')?;
    let rest = rest.strip_prefix("dkr.ecr.").or_else(|| rest.strip_prefix("dkr.ecr-fips."))?;
    let (region, host) = rest.split_once('.')?;
    let is_account = account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit());
    let is_region =
        !region.is_empty() && region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    (is_account && is_region && host == suffix(region)).then_some(region)
}

/// The login to Amazon ECR for the role of the job: `USER:PASSWORD` in base64.
async fn ecr_token(reader: &SecretAccess<'_>, region: &str) -> Result<String, Obstacle> {
    let call = ServiceCall {
        of: Service::Registry,
        host: "api.ecr",
        service: "ecr",
        variable: "ECR",
        target: "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken",
        body: json!({}),
    };
    let answer = reader.call(region, &call).await?;
    let token = answer.pointer("/authorizationData/0/authorizationToken").and_then(Value::as_str);
    token
        .map(str::to_owned)
        .ok_or_else(|| Obstacle::Service(Service::Registry, "Amazon ECR answered without a token".to_owned()))
}

/// The images that the agent pulled: a file for each, as old as its last use. The files of all agents of a data directory are here.
struct Pulled {
    dir: PathBuf,
    runtime: ContainerRuntime,
}

/// A pulled image, as its file says it.
#[derive(Serialize, Deserialize)]
struct PulledImage {
    runtime: ContainerRuntime,
    reference: String,
    /// The id that the image had after the pull.
    id: String,
}

impl Pulled {
    /// The file of this image. Its name has a fixed length, and a reference may be longer than a name may be.
    fn file(&self, reference: &str) -> PathBuf {
        let digest = Sha256::digest(format!("{} {reference}", self.runtime.program()));
        self.dir.join(model::auth::hex(&digest))
    }

    /// Notes that this image was pulled and has this id now. `before` are the ids that the machine had: an image that was there before
    /// under another name is somebody else's, unless the agent pulled that one too.
    fn note(&self, reference: &str, id: String, before: &BTreeSet<String>) -> io::Result<()> {
        if before.contains(&id) && !self.images().iter().any(|(_, image)| image.id == id) {
            return Ok(());
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let image = PulledImage { runtime: self.runtime, reference: reference.to_owned(), id };
        atomic_file::replace(&self.file(reference), &serde_json::to_vec(&image)?)
    }

    /// Notes that this image is used, if the agent pulled it.
    fn use_now(&self, reference: &str) {
        let file = self.file(reference);
        let Ok(bytes) = fs::read(&file) else { return };
        if let Err(error) = atomic_file::replace(&file, &bytes) {
            tracing::warn!(%error, "cannot note that the image was used");
        }
    }

    /// The images of this runtime, the one that was used longest ago first.
    fn images(&self) -> Vec<(PathBuf, PulledImage)> {
        let used_at = |path: &PathBuf| fs::metadata(path).and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut files: Vec<_> = fs::read_dir(&self.dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
        files.sort_by_key(used_at);
        let read = |file: &PathBuf| serde_json::from_slice::<PulledImage>(&fs::read(file).ok()?).ok();
        let images = files.into_iter().filter_map(|file| read(&file).map(|image| (file, image)));
        images.filter(|(_, image)| image.runtime == self.runtime).collect()
    }

    /// Removes the image that was used longest ago and that no container uses. `false` if there is none.
    async fn remove_oldest(&self, remove: impl AsyncFn(&PulledImage) -> io::Result<bool>) -> bool {
        for (file, image) in self.images() {
            match remove(&image).await {
                Ok(true) => {
                    tracing::info!(reference = image.reference, "the image was removed to make room");
                    return fs::remove_file(file).is_ok();
                }
                Ok(false) => _ = fs::remove_file(file),
                Err(error) => tracing::info!(reference = image.reference, %error, "the image stays"),
            }
        }
        false
    }
}

/// Removes a pulled image. `false` if it is gone, or if its name is that of another image by now.
async fn remove(image: &PulledImage) -> io::Result<bool> {
    let PulledImage { runtime, reference, id } = image;
    if runtime.image_id(reference).await.is_ok_and(|now| now == *id) {
        return runtime.remove_image(reference).await.map(|()| true);
    }
    Ok(false)
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

    fn pulled(dir: &Path) -> Pulled {
        Pulled { dir: dir.join("images"), runtime: ContainerRuntime::Podman }
    }

    /// On a machine where each image has its reference for its id.
    async fn remove(image: &PulledImage) -> io::Result<bool> {
        Ok(image.id == image.reference)
    }

    fn note(pulled: &Pulled, reference: &str, s: u64) {
        pulled.note(reference, reference.to_owned(), &BTreeSet::new()).unwrap();
        let file = fs::File::options().write(true).open(pulled.file(reference)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(s)).unwrap();
    }

    fn left(pulled: &Pulled) -> Vec<String> {
        pulled.images().into_iter().map(|(_, image)| image.reference).collect()
    }

    #[tokio::test]
    async fn the_image_that_was_used_longest_ago_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = pulled(dir.path());
        let long = format!("registry.example.com/{}:1", "a".repeat(230));
        for (image, s) in [("new", 30), (&*long, 10), ("between", 20), ("used", 5)] {
            note(&pulled, image, s);
        }
        pulled.use_now("used");
        assert_eq!(left(&pulled), [&*long, "between", "new", "used"]);
        assert!(pulled.remove_oldest(remove).await);
        assert_eq!(left(&pulled), ["between", "new", "used"]);
        for _ in 0..3 {
            assert!(pulled.remove_oldest(remove).await);
        }
        assert!(!pulled.remove_oldest(remove).await, "there is none");
    }

    #[tokio::test]
    async fn an_image_that_the_agent_did_not_pull_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = pulled(dir.path());
        // It was used, or it was there under this or another name.
        pulled.use_now("used");
        pulled.note("tagged", "tagged".to_owned(), &["tagged".to_owned()].into()).unwrap();
        // Its name is another image's by now, it is another runtime's, or its file is garbage.
        let image = |runtime: ContainerRuntime, reference: &str, id: &str| {
            let image = PulledImage { runtime, reference: reference.to_owned(), id: id.to_owned() };
            fs::write(pulled.file(reference), serde_json::to_vec(&image).unwrap()).unwrap();
        };
        fs::create_dir_all(&pulled.dir).unwrap();
        image(ContainerRuntime::Podman, "built anew", "the pulled one");
        image(ContainerRuntime::Docker, "of docker", "of docker");
        fs::write(pulled.dir.join("garbage"), "{").unwrap();
        assert!(!pulled.remove_oldest(remove).await);
        assert_eq!(left(&pulled), [] as [&str; 0]);
        // A second name of what the agent pulled is its own too.
        note(&pulled, "own", 1);
        pulled.note("own", "own".to_owned(), &["own".to_owned()].into()).unwrap();
        assert_eq!(left(&pulled), ["own"]);
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
    fn only_a_host_of_amazon_ecr_gets_a_login_and_it_names_its_region() {
        for (image, region) in [
            ("123456789012.dkr.ecr.eu-west-1.amazonaws.com/app:1", "eu-west-1"),
            ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com/team/app", "us-gov-west-1"),
            ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn/app@sha256:0", "cn-north-1"),
        ] {
            assert_eq!(ecr_region(image), Some(region), "{image}");
        }
        for other in [
            "alpine",
            "public.ecr.aws/app",
            "x.dkr.ecr.eu-west-1.amazonaws.com/app",
            "12345678901.dkr.ecr.eu-west-1.amazonaws.com/app",
            "1234567890123.dkr.ecr.eu-west-1.amazonaws.com/app",
            "123456789012.dkr.ecr.a.b/c",
            "123456789012.dkr.ecr.us-east-1.amazonaws.com.evil.com/app",
            "123456789012.dkr.ecr.us-east-1.amazonaws.comevil.com/app",
            "123456789012.dkr.ecr.us-east-1.amazonaws.com.cn/app",
            "123456789012.dkr.ecr.cn-north-1.amazonaws.com/app",
            "123456789012.dkr.ecr.us-east-1.evil.com/app",
            "123456789012.dkr.ecr.us-east-1.evil.amazonaws.com/app",
            "123456789012.dkr.ecr..amazonaws.com/app",
            "123456789012.dkr.ecr.us-east-1.amazonaws.com:8443/app",
            "123456789012.dkr.ecr.us-east-1.amazonaws.com",
            "123456789012.dkr.ecrx.us-east-1.amazonaws.com/app",
            "123456789012.evil.dkr.ecr.us-east-1.amazonaws.com/app",
            "evil.com/123456789012.dkr.ecr.us-east-1.amazonaws.com/app",
            "evil.com.dkr.ecr.us-east-1.amazonaws.com/app",
        ] {
            assert_eq!(ecr_region(other), None, "{other}");
        }
    }
}
