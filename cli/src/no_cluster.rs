//! The errors of a command that finds no cluster: what was tried, and what to do.
//!
//! Guarantees: a command that was given no cluster, or a local one that does not run, ends at once with one line. The line
//! names `nodekeeper local`, and contexts where they help.
//! Does not: choose a cluster. A command that works on another cluster than the one meant can do harm.

use crate::console::{UsageError, show};
use crate::contexts::{Given, Settings};
use crate::running::{LOAD_ENVIRONMENT, runs_in};
use anyhow::bail;
use std::path::Path;
use std::time::Duration;
use store::DbError;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a local endpoint may take to accept a connection.
const ACCEPT: Duration = Duration::from_secs(2);

/// The error of a command that was given no cluster. `here` is the current directory.
pub fn unnamed(given: &Given, here: &Path) -> UsageError {
    let contexts = match (given.path(), given.context.as_ref()) {
        (_, Some(context)) => format!("context {context:?} names none"),
        (Some(path), None) if path.exists() => format!("{} has no current context with a cluster", path.display()),
        (Some(path), None) => format!("{} does not exist", path.display()),
        (None, None) => "there is no file of contexts".to_owned(),
    };
    let what_to_do = if runs_in(here) {
        format!("`nodekeeper local` runs in this directory: `{LOAD_ENVIRONMENT}`")
    } else {
        "`nodekeeper local` starts one on this machine, and `nodekeeper context` shows how to name one in AWS"
            .to_owned()
    };
    UsageError(format!(
        "no cluster is named: --cluster, --context and NODEKEEPER_CLUSTER are not given, and {contexts}; {what_to_do}"
    ))
}

/// The endpoint of DynamoDB if it is not in AWS, and the setting that names it.
fn endpoint<'a>(given: &'a Given, told: &'a Settings) -> Option<(&'a str, &'static str)> {
    let of_env = |name: &'static str| Some((given.var(name)?, name));
    let of_context = told.endpoint.as_deref().map(|url| (url, "the context"));
    of_context.or_else(|| of_env("AWS_ENDPOINT_URL_DYNAMODB")).or_else(|| of_env("AWS_ENDPOINT_URL"))
}

/// The host and the port of a URL on this machine; `None` for another machine.
fn on_this_machine(url: &str) -> Option<&str> {
    let authority = url.strip_prefix("http://")?.split('/').next()?;
    let (host, _port) = authority.rsplit_once(':')?;
    matches!(host, "127.0.0.1" | "localhost" | "[::1]").then_some(authority)
}

/// Checks that something listens at an endpoint on this machine. Endpoints elsewhere are not tried.
pub async fn listens(given: &Given, told: &Settings) -> anyhow::Result<()> {
    let Some((url, by)) = endpoint(given, told) else { return Ok(()) };
    let Some(authority) = on_this_machine(url) else { return Ok(()) };
    let why = match timeout(ACCEPT, TcpStream::connect(authority)).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    bail!(
        "no cluster answers at {url} ({by} says so): {why}: start `nodekeeper local` and load its environment again \
         (`{LOAD_ENVIRONMENT}`), or choose another cluster with --context"
    )
}

/// For an error about missing tables: which cluster was tried, and where. Empty for other errors.
pub fn where_it_looked(error: &anyhow::Error, given: &Given) -> String {
    let no_table = matches!(show::db_error(error), Some(DbError::NoTable(_)));
    let Some(settings) = given.settings().ok().filter(|_| no_table) else { return String::new() };
    let cluster = settings.cluster.map(|name| format!("cluster {name}"));
    let region = settings.region.map(|name| format!("region {name}"));
    let profile = settings.profile.map(|name| format!("profile {name}"));
    let endpoint = given.for_sdk().ok().and_then(|told| Some(endpoint(given, &told)?.0.to_owned()));
    let tried: Vec<String> = [cluster, region, profile, endpoint].into_iter().flatten().collect();
    format!(" (tried: {}; see `nodekeeper context`)", tried.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::WriteError;

    fn given(variables: &[(&str, &str)]) -> Given {
        Given {
            env: variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..Given::default()
        }
    }

    #[test]
    fn without_a_cluster_the_line_says_what_was_tried_and_what_to_do() {
        let home = tempfile::tempdir().unwrap();
        let here = tempfile::tempdir().unwrap();
        let given = given(&[("HOME", home.path().to_str().unwrap())]);
        let said = unnamed(&given, here.path()).to_string();
        assert!(said.contains("NODEKEEPER_CLUSTER") && said.contains("config.toml does not exist"), "{said}");
        assert!(said.contains("`nodekeeper local` starts one") && said.contains("nodekeeper context`"), "{said}");

        let _running = crate::local::testing::running_in(here.path());
        let said = unnamed(&given, here.path()).to_string();
        assert!(said.contains("runs in this directory: `set -a; . .nodekeeper/env"), "{said}");

        let config = home.path().join("config.toml");
        std::fs::write(&config, "[context.lab]\nregion = \"x\"\n").unwrap();
        let mut with_file = given;
        with_file.env.insert("NODEKEEPER_CONFIG".into(), config.to_str().unwrap().into());
        let said = unnamed(&with_file, home.path()).to_string();
        assert!(said.contains("config.toml has no current context with a cluster"), "{said}");
        with_file.context = Some("lab".into());
        let said = unnamed(&with_file, home.path()).to_string();
        assert!(said.contains("context \"lab\" names none"), "{said}");
    }

    #[tokio::test]
    async fn a_local_endpoint_where_nobody_listens_is_named_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let by_env = given(&[("AWS_ENDPOINT_URL_DYNAMODB", &url), ("AWS_ENDPOINT_URL", "http://127.0.0.1:1")]);
        let nothing = Settings::default();
        listens(&by_env, &nothing).await.unwrap();
        drop(listener);
        let said = listens(&by_env, &nothing).await.unwrap_err().to_string();
        assert!(said.contains(&url) && said.contains("AWS_ENDPOINT_URL_DYNAMODB says so"), "{said}");
        assert!(said.contains("`nodekeeper local`") && said.contains("--context"), "{said}");
        let by_context = Settings { endpoint: Some(url), ..Settings::default() };
        let said = listens(&given(&[]), &by_context).await.unwrap_err().to_string();
        assert!(said.contains("the context says so"), "{said}");
        // Other machines are left to the SDK, with its own deadlines.
        listens(&given(&[("AWS_ENDPOINT_URL", "http://dynamodb.example:1")]), &nothing).await.unwrap();
        listens(&given(&[]), &nothing).await.unwrap();
    }

    #[test]
    fn missing_tables_are_told_with_the_place() {
        let given = given(&[
            ("NODEKEEPER_CLUSTER", "lab"),
            ("AWS_REGION", "eu-central-1"),
            ("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:7072"),
        ]);
        let missing = DbError::NoTable("lab-jobs".into());
        let said = where_it_looked(&anyhow::Error::new(missing).context("the queue"), &given);
        assert!(said.contains("cluster lab, region eu-central-1, http://127.0.0.1:7072"), "{said}");
        let missing = WriteError::Db(DbError::NoTable("lab-jobs".into()));
        assert!(!where_it_looked(&missing.into(), &given).is_empty());
        let other = DbError::Throttled { operation: "Query" };
        assert_eq!(where_it_looked(&other.into(), &given), "");
    }
}
