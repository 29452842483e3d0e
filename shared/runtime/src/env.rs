//! The environment variables of a function: read once, in `main.rs`, and checked as a whole.
//!
//! Guarantees: a missing or wrong variable gives a clear message with its name and what is allowed.
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

/// The first thing that is wrong with the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadEnvironment(pub String);

impl FunctionEnvironment {
    /// Reads the variables through `lookup`. An empty variable counts as not set.
    pub fn read(needs: FunctionNeeds, lookup: impl Fn(&str) -> Option<String>) -> Result<Self, BadEnvironment> {
        let value = |name: &str| lookup(name).filter(|v| !v.is_empty());
        let url = |name: &str| url(name, value(name), needs).map_err(BadEnvironment);
        let cluster = value("NODEKEEPER_CLUSTER").ok_or_else(|| {
            BadEnvironment(
                "NODEKEEPER_CLUSTER is not set: it names the deployment, its tables and its instances".to_owned(),
            )
        })?;
        let wrong = |e| BadEnvironment(format!("NODEKEEPER_CLUSTER is wrong: {e}"));
        let (role, key) = (value("NODEKEEPER_NODE_ROLE"), value("NODEKEEPER_NODE_KEY"));
        Ok(Self {
            cluster: cluster.parse().map_err(wrong)?,
            credentials: credentials(role, key, needs).map_err(BadEnvironment)?,
            heartbeat_url: url("NODEKEEPER_HEARTBEAT_URL")?,
            sweep_url: url("NODEKEEPER_SWEEP_URL")?,
            grant_url: value("NODEKEEPER_GRANT_URL").map(|_| url("NODEKEEPER_GRANT_URL")).transpose()?,
        })
    }
}

fn credentials(role: Option<String>, key: Option<String>, needs: FunctionNeeds) -> Result<NodeCredentials, String> {
    match (role, key) {
        (None, None) if !needs.nodes => Ok(NodeCredentials::Nobody),
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
    }
}

fn url(name: &str, url: Option<String>, needs: FunctionNeeds) -> Result<String, String> {
    match url {
        Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
            Ok(url.trim_end_matches('/').to_owned())
        }
        Some(url) => Err(format!("{name} is {url:?}: it must begin with https:// or http://")),
        None if needs.urls => Err(format!("{name} is not set: a node gets it when it is launched")),
        None => Ok(String::new()),
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
    fn a_wrong_or_missing_variable_is_named() {
        let digits = "0f".repeat(32);
        let good = [
            ("NODEKEEPER_CLUSTER", "c"),
            ("NODEKEEPER_NODE_KEY", digits.as_str()),
            ("NODEKEEPER_HEARTBEAT_URL", "https://h/"),
            ("NODEKEEPER_SWEEP_URL", "http://s"),
        ];
        let env = read(ALL, &good).unwrap();
        assert_eq!(
            (env.heartbeat_url.as_str(), env.sweep_url.as_str(), env.grant_url),
            ("https://h", "http://s", None)
        );
        for (n, wrong) in ["no spaces", "0f", "ftp://x", "s"].into_iter().enumerate() {
            let name = good[n].0;
            for (value, says) in [(wrong, format!("{name} is ")), ("", "is not set".to_owned())] {
                let mut bad = good;
                bad[n].1 = value;
                let BadEnvironment(wrong) = read(ALL, &bad).unwrap_err();
                assert!(wrong.contains(&says), "{wrong}");
            }
        }
        assert!(read(ALL, &[&good[..], &[("NODEKEEPER_GRANT_URL", "g")]].concat()).is_err());
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
            assert!(wrong.contains(what), "{wrong}");
            assert!(!wrong.contains("short") && !wrong.contains(&digits), "a key is never printed");
        }
    }

    #[test]
    fn variables_that_are_not_needed_may_be_missing() {
        let env = [("NODEKEEPER_CLUSTER", "c")];
        assert!(read(FunctionNeeds { nodes: false, urls: false }, &env).is_ok());
        assert!(read(FunctionNeeds { nodes: true, urls: false }, &env).is_err());
    }
}
