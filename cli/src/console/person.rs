//! Who gives a command: what its jobs and its events say.
//!
//! In AWS, STS says it: `role/session`, or the name of a user. It is asked once for each access key, and a file remembers the answer.
//! In a system on this machine, it is the user of the machine.
//!
//! Guarantees: a name is recorded, not typed, and has no character that a terminal obeys. Another access key never gets a remembered
//! name.
//! Does not: prove anything: whoever may write the tables can write another name. CloudTrail has the truth (`SECURITY.md`).

use super::usage::NoAnswer;
use anyhow::{Context as _, anyhow, bail};
use aws_config::SdkConfig;
use aws_credential_types::provider::ProvideCredentials;
use futures::future::{BoxFuture, FutureExt};
use model::error_chain::error_chain;
use model::names::is_obeyed;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::OnceCell;

/// The longest name, in characters. A role and a session have at most 64 each.
const MOST: usize = 130;
/// How many names are remembered, the newest first.
const REMEMBERED: usize = 20;

/// Whoever gives the command. Clones ask for the name together once.
#[derive(Clone, Debug)]
pub struct Person {
    name: Arc<OnceCell<String>>,
    of_aws: Option<OfAws>,
}

#[derive(Clone, Debug)]
struct OfAws {
    config: SdkConfig,
    /// The file of remembered names.
    file: Option<PathBuf>,
}

impl Default for Person {
    /// The user of this machine.
    fn default() -> Self {
        let id = nix::unistd::getuid();
        let user = nix::unistd::User::from_uid(id).ok().flatten();
        Self::named(&user.map_or_else(|| format!("uid-{id}"), |user| user.name))
    }
}

impl Person {
    /// A person with this name.
    pub fn named(name: &str) -> Self {
        Self { name: Arc::new(OnceCell::new_with(Some(name.to_owned()))), of_aws: None }
    }

    /// Whoever has the credentials of this configuration. `home` is the person's home directory.
    pub fn of_aws(config: &SdkConfig, home: Option<&str>) -> Self {
        let file = home.map(|home| Path::new(home).join(".cache/nodekeeper/people"));
        Self { name: Arc::default(), of_aws: Some(OfAws { config: config.clone(), file }) }
    }

    /// The name. Every change of a command waits for it, so its type hides the client of STS: the compiler gives up otherwise.
    pub(crate) fn name(&self) -> BoxFuture<'_, anyhow::Result<&str>> {
        let ask = async || match &self.of_aws {
            Some(of_aws) => of_aws.name().await,
            None => bail!("this person has no name"),
        };
        async move { self.name.get_or_try_init(ask).await.map(String::as_str) }.boxed()
    }
}

impl OfAws {
    async fn name(&self) -> anyhow::Result<String> {
        let provider = self.config.credentials_provider().context("no credentials are set")?;
        let key = provider.provide_credentials().await?.access_key_id().to_owned();
        let known = self.file.as_deref().map(remembered).unwrap_or_default();
        if let Some((_, name)) = known.iter().find(|(of, _)| *of == key) {
            return Ok(name.clone());
        }
        let answer = aws_sdk_sts::Client::new(&self.config).get_caller_identity().send().await;
        let answer = answer.map_err(|e| {
            let why = format!("AWS STS does not say who you are, and each change records it: {}", error_chain(&e));
            if e.as_service_error().is_some() { anyhow!(why) } else { NoAnswer(why).into() }
        })?;
        let name = answer.arn().and_then(of_arn).context("AWS STS gave no name of a user or a role")?;
        if let Some(file) = &self.file {
            // Without a home that can be written, each command asks.
            let _ = remember(file, &key, &name, &known);
        }
        Ok(name)
    }
}

/// `role/session` of `arn:aws:sts::1:assumed-role/role/session`, and the name of a user without its path.
fn of_arn(arn: &str) -> Option<String> {
    let resource = arn.splitn(6, ':').nth(5)?;
    let name = match resource.split_once('/') {
        Some(("user", path)) => path.rsplit('/').next()?,
        Some((_, name)) => name,
        None => resource,
    };
    is_name(name).then(|| name.to_owned())
}

fn is_name(text: &str) -> bool {
    (1..=MOST).contains(&text.chars().count()) && !text.chars().any(|c| is_obeyed(c) || c.is_whitespace())
}

/// The remembered names by their access keys. Lines that cannot be read count as absent.
fn remembered(file: &Path) -> Vec<(String, String)> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = |line: &str| line.split_once(' ').map(|(key, name)| (key.to_owned(), name.to_owned()));
    text.lines().filter_map(line).filter(|(_, name)| is_name(name)).collect()
}

fn remember(file: &Path, key: &str, name: &str, known: &[(String, String)]) -> std::io::Result<()> {
    let dir = file.parent().unwrap_or(file);
    std::fs::create_dir_all(dir)?;
    // Only the person can read it.
    let mut new = tempfile::NamedTempFile::new_in(dir)?;
    writeln!(new, "{key} {name}")?;
    for (key, name) in known.iter().take(REMEMBERED - 1) {
        writeln!(new, "{key} {name}")?;
    }
    new.persist(file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_credential_types::Credentials;
    use aws_credential_types::provider::SharedCredentialsProvider;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_name_is_short_and_says_the_role() {
        for (arn, name) in [
            ("arn:aws:sts::123456789012:assumed-role/science/ann@x.org", "science/ann@x.org"),
            ("arn:aws-cn:sts::123456789012:assumed-role/science/a:b", "science/a:b"),
            ("arn:aws:iam::123456789012:user/lab/ann", "ann"),
            ("arn:aws:iam::123456789012:user/ann", "ann"),
            ("arn:aws:iam::123456789012:root", "root"),
            ("arn:aws:sts::123456789012:federated-user/ann", "ann"),
        ] {
            assert_eq!(of_arn(arn).as_deref(), Some(name));
        }
        let long = format!("arn:aws:iam::1:user/{}", "x".repeat(131));
        for bad in ["", "arn", "arn:aws:iam::1:", "arn:aws:iam::1:user/", "arn:aws:iam::1:user/a\u{1b}[2J", &long] {
            assert_eq!(of_arn(bad), None, "{bad:?}");
        }
    }

    /// STS on this machine, with this answer, and how often it was asked.
    async fn sts(status: u16, answer: &'static str) -> (String, Arc<AtomicUsize>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (url, asked) = (format!("http://{}", listener.local_addr().unwrap()), Arc::new(AtomicUsize::new(0)));
        let counts = Arc::clone(&asked);
        let answer = async move || {
            counts.fetch_add(1, Ordering::Relaxed);
            (axum::http::StatusCode::from_u16(status).unwrap(), answer)
        };
        tokio::spawn(axum::serve(listener, axum::Router::new().fallback(answer)).into_future());
        (url, asked)
    }

    fn person(url: &str, key: &str, home: &Path) -> Person {
        let config = SdkConfig::builder()
            .behavior_version(aws_config::BehaviorVersion::latest())
            .http_client(store::http_client())
            .region(aws_config::Region::new("eu-west-1"))
            .endpoint_url(url)
            .credentials_provider(SharedCredentialsProvider::new(Credentials::new(key, "s", None, None, "test")))
            .build();
        Person::of_aws(&config, home.to_str())
    }

    #[tokio::test]
    async fn sts_is_asked_once_for_each_access_key() {
        let answer = "<GetCallerIdentityResponse><GetCallerIdentityResult>\
            <Arn>arn:aws:sts::123456789012:assumed-role/science/ann</Arn>\
            </GetCallerIdentityResult></GetCallerIdentityResponse>";
        let ((url, asked), home) = (sts(200, answer).await, tempfile::tempdir().unwrap());
        for (key, times) in [("AKIA1", 1), ("AKIA1", 1), ("AKIA2", 2), ("AKIA1", 2)] {
            let person = person(&url, key, home.path());
            assert_eq!(person.name().await.unwrap(), "science/ann");
            assert_eq!(person.clone().name().await.unwrap(), "science/ann");
            assert_eq!(asked.load(Ordering::Relaxed), times, "{key}");
        }
        // Without a home, each command asks.
        let nowhere = Path::new("/dev/null");
        assert_eq!(person(&url, "AKIA1", nowhere).name().await.unwrap(), "science/ann");
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }

    #[tokio::test]
    async fn without_an_answer_of_sts_nobody_has_a_name() {
        let denied =
            "<ErrorResponse><Error><Code>ExpiredToken</Code><Message>it is over</Message></Error></ErrorResponse>";
        let empty = "<GetCallerIdentityResponse><GetCallerIdentityResult/></GetCallerIdentityResponse>";
        let home = tempfile::tempdir().unwrap();
        for (status, answer, is_again, says) in
            [(403, denied, false, "ExpiredToken"), (200, empty, false, "AWS STS gave no name")]
        {
            let (url, _) = sts(status, answer).await;
            let error = person(&url, "AKIA1", home.path()).name().await.unwrap_err();
            assert_eq!(error.is::<NoAnswer>(), is_again, "{error:#}");
            assert!(error.to_string().contains(says), "{error:#}");
        }
        let error = person("http://127.0.0.1:9", "AKIA1", home.path()).name().await.unwrap_err();
        assert!(error.is::<NoAnswer>() && error.to_string().contains("AWS STS does not say who you are"), "{error:#}");
    }

    #[test]
    fn another_access_key_gets_no_remembered_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a/people");
        assert!(remembered(&file).is_empty());
        for n in 0..30 {
            remember(&file, &format!("KEY{n}"), &format!("role/{n}"), &remembered(&file)).unwrap();
        }
        let known = remembered(&file);
        let first = ("KEY29".to_owned(), "role/29".to_owned());
        assert_eq!((known.len(), known.first()), (REMEMBERED, Some(&first)));
        std::fs::write(&file, "KEY1\n\u{0}\nKEY2 a\u{1b}b\nKEY3 ann\n").unwrap();
        assert_eq!(remembered(&file), [("KEY3".to_owned(), "ann".to_owned())]);
    }
}
