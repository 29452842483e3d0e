//! The environment variables of a function: read once, in `main.rs`, and checked as a whole.
//!
//! Guarantees: a missing or wrong variable gives a clear message with its name and what is allowed; all
//! mistakes are reported at once.
//! Does not: read the environment of the process itself; its caller passes a lookup function.

use crate::http::NodeCredentials;
use model::ClusterName;

/// What a function needs besides the name of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionNeeds {
    /// Whether the function answers or launches nodes, and so must know how they prove who they are.
    pub nodes: bool,
    /// Whether the function writes the URLs into user data.
    pub urls: bool,
}

#[derive(Clone, Debug)]
pub struct FunctionEnvironment {
    /// `NODEKEEPER_CLUSTER`
    pub cluster: ClusterName,
    /// `NODEKEEPER_NODE_ROLE`, or in a local system `NODEKEEPER_NODE_KEY`.
    pub credentials: NodeCredentials,
    /// `NODEKEEPER_HEARTBEAT_URL`, without a slash at the end.
    pub heartbeat_url: String,
    /// `NODEKEEPER_SWEEP_URL`, without a slash at the end.
    pub sweep_url: String,
    /// `NODEKEEPER_GRANT_URL`, without a slash at the end; `None` if it is not set: then no job gets a role.
    pub grant_url: Option<String>,
}

/// Everything that is wrong with the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct BadEnvironment(pub Vec<String>);

impl FunctionEnvironment {
    /// Reads the variables through `lookup`. An empty variable counts as not set.
    pub fn read(needs: FunctionNeeds, lookup: impl Fn(&str) -> Option<String>) -> Result<Self, BadEnvironment> {
        let mut variables = EnvironmentVariables { lookup, needs, wrong: Vec::new() };
        let cluster = variables.cluster();
        let credentials = variables.credentials();
        let heartbeat_url = variables.url("NODEKEEPER_HEARTBEAT_URL");
        let sweep_url = variables.url("NODEKEEPER_SWEEP_URL");
        let grant_url = variables.value("NODEKEEPER_GRANT_URL").map(|_| variables.url("NODEKEEPER_GRANT_URL"));
        match cluster {
            Some(cluster) if variables.wrong.is_empty() => {
                Ok(Self { cluster, credentials, heartbeat_url, sweep_url, grant_url })
            }
            _ => Err(BadEnvironment(variables.wrong)),
        }
    }
}

/// Reads one variable after the other and collects the mistakes. For a wrong variable it returns a value that is
/// never used, because a single mistake is enough to refuse the whole environment.
struct EnvironmentVariables<L> {
    lookup: L,
    needs: FunctionNeeds,
    wrong: Vec<String>,
}

impl<L: Fn(&str) -> Option<String>> EnvironmentVariables<L> {
    fn value(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|v| !v.is_empty())
    }

    fn cluster(&mut self) -> Option<ClusterName> {
        let wrong = match self.value("NODEKEEPER_CLUSTER").map(|c| c.parse::<ClusterName>()) {
            Some(Ok(cluster)) => return Some(cluster),
            Some(Err(e)) => format!("NODEKEEPER_CLUSTER is wrong: {e}"),
            None => "NODEKEEPER_CLUSTER is not set: it names the deployment, its tables and its instances".to_owned(),
        };
        self.wrong.push(wrong);
        None
    }

    fn credentials(&mut self) -> NodeCredentials {
        let (role, key) = (self.value("NODEKEEPER_NODE_ROLE"), self.value("NODEKEEPER_NODE_KEY"));
        let read = match (role, key) {
            (None, None) if !self.needs.nodes => Ok(NodeCredentials::Nobody),
            (Some(arn), None) => {
                arn.parse().map(NodeCredentials::Iam).map_err(|e| format!("NODEKEEPER_NODE_ROLE is wrong: {e}"))
            }
            (None, Some(key)) => {
                key.parse().map(NodeCredentials::Token).map_err(|e| format!("NODEKEEPER_NODE_KEY is wrong: {e}"))
            }
            (None, None) => Err("NODEKEEPER_NODE_ROLE is not set: only this role's instances are nodes (in a local \
                                 system, NODEKEEPER_NODE_KEY makes the nodes' tokens)"
                .to_owned()),
            (Some(_), Some(_)) => Err("NODEKEEPER_NODE_ROLE and NODEKEEPER_NODE_KEY are both set: nodes either sign \
                                       their requests or have tokens"
                .to_owned()),
        };
        read.unwrap_or_else(|wrong| {
            self.wrong.push(wrong);
            NodeCredentials::Nobody
        })
    }

    fn url(&mut self, name: &str) -> String {
        let url = self.value(name);
        match &url {
            Some(url) if !url.starts_with("http://") && !url.starts_with("https://") => {
                self.wrong.push(format!("{name} is {url:?}: it must begin with https:// or http://"));
            }
            None if self.needs.urls => {
                self.wrong.push(format!("{name} is not set: a node gets it when it is launched"))
            }
            Some(_) | None => {}
        }
        url.unwrap_or_default().trim_end_matches('/').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: FunctionNeeds = FunctionNeeds { nodes: true, urls: true };

    fn read(needs: FunctionNeeds, variables: &[(&str, &str)]) -> Result<FunctionEnvironment, BadEnvironment> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        FunctionEnvironment::read(needs, find)
    }

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let bad =
            [("NODEKEEPER_CLUSTER", "no spaces"), ("NODEKEEPER_NODE_KEY", "0f"), ("NODEKEEPER_SWEEP_URL", "ftp://x")];
        let BadEnvironment(wrong) = read(ALL, &bad).unwrap_err();
        assert_eq!(wrong.len(), 4, "{wrong:#?}");
    }

    #[test]
    fn nodes_prove_who_they_are_in_one_way() {
        let needs = FunctionNeeds { urls: false, ..ALL };
        let with = |more: &[(&str, &str)]| {
            read(needs, &[&[("NODEKEEPER_CLUSTER", "c")], more].concat()).map(|env| env.credentials)
        };
        let (role, digits) = (("NODEKEEPER_NODE_ROLE", "arn:aws:iam::123456789012:role/node"), "0f".repeat(32));
        let key = ("NODEKEEPER_NODE_KEY", digits.as_str());
        assert!(matches!(with(&[role]), Ok(NodeCredentials::Iam(_))));
        assert!(matches!(with(&[key]), Ok(NodeCredentials::Token(_))));
        for (variables, what) in [
            (&[][..], "NODEKEEPER_NODE_ROLE is not set"),
            (&[role, key], "both set"),
            (&[("NODEKEEPER_NODE_ROLE", "node")], "NODEKEEPER_NODE_ROLE is wrong"),
            (&[("NODEKEEPER_NODE_KEY", "short")], "NODEKEEPER_NODE_KEY is wrong"),
        ] {
            let BadEnvironment(wrong) = with(variables).unwrap_err();
            assert!(wrong.len() == 1 && wrong[0].contains(what), "{wrong:#?}");
            assert!(!wrong[0].contains("short") && !wrong[0].contains(&digits), "a key is never printed");
        }
    }

    #[test]
    fn variables_that_are_not_needed_may_be_missing() {
        let env = [("NODEKEEPER_CLUSTER", "c")];
        assert!(read(FunctionNeeds { nodes: false, urls: false }, &env).is_ok());
        assert!(read(FunctionNeeds { nodes: true, urls: false }, &env).is_err());
    }
}
