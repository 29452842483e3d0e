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
