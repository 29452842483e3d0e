//! The errors of a command that finds no cluster: what was tried, and what to do.
//!
//! Guarantees: a command that was given no cluster, or a local one that does not run, ends at once with one line, which names
//! `nodekeeper local`.
//! Does not: choose a cluster. A command that works on another cluster than the one meant can do harm.

use crate::console::{NoAnswer, UsageError, show};
use crate::given::Given;
use crate::running::{LOAD_ENVIRONMENT, runs_in};
use std::path::Path;
use std::time::Duration;
use store::DbError;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a local endpoint may take to accept a connection.
const ACCEPT: Duration = Duration::from_secs(2);

/// The error of a command that was given no cluster. `here` is the current directory.
pub fn unnamed(here: &Path) -> UsageError {
    let what_to_do = if runs_in(here) {
        format!("`nodekeeper local` runs in this directory: `{LOAD_ENVIRONMENT}`")
    } else {
        "give one of them, or start a cluster on this machine with `nodekeeper local`".to_owned()
    };
    UsageError(format!(
        "no cluster is named: --cluster and NODEKEEPER_CLUSTER are not given, and the profile of AWS (AWS_PROFILE) has no \
         nodekeeper_cluster; {what_to_do}"
    ))
}

/// The host and the port of a URL on this machine; `None` for another machine.
fn on_this_machine(url: &str) -> Option<&str> {
    let authority = url.strip_prefix("http://")?.split('/').next()?;
    let (host, _port) = authority.rsplit_once(':')?;
    matches!(host, "127.0.0.1" | "localhost" | "[::1]").then_some(authority)
}

/// Whether the tables are those of a system on this machine.
pub fn is_on_this_machine(given: &Given) -> bool {
    given.endpoint().is_some_and(|(url, _)| on_this_machine(url).is_some())
}

/// Checks that something listens at an endpoint on this machine. Endpoints elsewhere are not tried.
pub async fn listens(given: &Given) -> anyhow::Result<()> {
    let Some((url, by)) = given.endpoint() else { return Ok(()) };
    let Some(authority) = on_this_machine(url) else { return Ok(()) };
    let why = match timeout(ACCEPT, TcpStream::connect(authority)).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    Err(NoAnswer(format!(
        "no cluster answers at {url} ({by} says so): {why}: start `nodekeeper local` and load its environment again \
         (`{LOAD_ENVIRONMENT}`), or unset {by}"
    ))
    .into())
}

/// For an error about missing tables, whose names begin with that of the cluster: where they were looked for, as far as the
/// environment says so. Empty for other errors.
pub fn where_it_looked(error: &anyhow::Error, given: &Given) -> String {
    if !matches!(show::db_error(error), Some(DbError::NoTable(_))) {
        return String::new();
    }
    let variables = ["AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"].map(|name| Some((given.var(name)?, name)));
    let tried = variables.into_iter().chain([given.endpoint()]).flatten();
    let tried: Vec<String> = tried.map(|(value, name)| format!("{name}={value}")).collect();
    if tried.is_empty() { String::new() } else { format!(" (tried with {})", tried.join(", ")) }
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
        let here = tempfile::tempdir().unwrap();
        let said = unnamed(here.path()).to_string();
        assert!(said.contains("NODEKEEPER_CLUSTER") && said.contains("has no nodekeeper_cluster"), "{said}");
        assert!(said.contains("with `nodekeeper local`"), "{said}");

        let _running = crate::local::testing::running_in(here.path());
        let said = unnamed(here.path()).to_string();
        assert!(said.contains("runs in this directory: `set -a; . .nodekeeper/env"), "{said}");
    }

    #[tokio::test]
    async fn a_local_endpoint_where_nobody_listens_is_named_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let env = given(&[("AWS_ENDPOINT_URL_DYNAMODB", &url), ("AWS_ENDPOINT_URL", "http://127.0.0.1:1")]);
        listens(&env).await.unwrap();
        drop(listener);
        let said = listens(&env).await.unwrap_err().to_string();
        assert!(said.contains(&url) && said.contains("AWS_ENDPOINT_URL_DYNAMODB says so"), "{said}");
        assert!(said.contains("`nodekeeper local`"), "{said}");
        // Other machines are left to the SDK, with its own deadlines.
        listens(&given(&[("AWS_ENDPOINT_URL", "http://dynamodb.example:1")])).await.unwrap();
        listens(&given(&[])).await.unwrap();
    }

    #[test]
    fn missing_tables_are_told_with_the_place() {
        let given = given(&[("AWS_REGION", "eu-central-1"), ("AWS_ENDPOINT_URL_DYNAMODB", "http://127.0.0.1:7072")]);
        let missing = DbError::NoTable("lab-jobs".into());
        let said = where_it_looked(&anyhow::Error::new(missing).context("the queue"), &given);
        assert_eq!(said, " (tried with AWS_REGION=eu-central-1, AWS_ENDPOINT_URL_DYNAMODB=http://127.0.0.1:7072)");
        let missing = WriteError::Db(DbError::NoTable("lab-jobs".into()));
        assert!(!where_it_looked(&missing.into(), &given).is_empty());
        let other = DbError::Throttled { operation: "Query" };
        assert_eq!(where_it_looked(&other.into(), &given), "");
    }
}
