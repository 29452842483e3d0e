//! The environment variables of a function: read once, in `main.rs`, and checked as a whole.
//!
//! Guarantees: a missing or wrong variable gives a clear message with its name and what is allowed; all
//! mistakes are reported at once.
//! Does not: read the environment of the process itself; its caller passes a lookup function.

use crate::keys;
use model::auth::{NodeRole, NumberedKey};
use model::ids::ClusterName;
use model::time::Span;

/// How nodes prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAuth {
    /// By a token in the node's configuration.
    Token,
    /// By a signature with the instance role; the function URL checks it.
    Iam,
}

/// Where the master key for node tokens comes from.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// The key itself, for local use.
    Given(NumberedKey),
    /// The name or ARN of a secret.
    Secret(String),
    /// There is no key: IAM authenticates the nodes, or the function needs no key.
    None,
}

/// What a function needs besides the name of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Whether the function checks or makes node tokens.
    pub key: bool,
    /// Whether the function answers nodes.
    pub callers: bool,
    /// Whether the function writes the URLs into user data.
    pub urls: bool,
}

/// The environment, checked.
#[derive(Clone, Debug)]
pub struct Environment {
    /// `NODEKEEPER_CLUSTER`
    pub cluster: ClusterName,
    /// `NODEKEEPER_NODE_AUTH`
    pub node_auth: NodeAuth,
    /// `NODEKEEPER_NODE_ROLE`, for a function that answers nodes with `iam`.
    pub node_role: Option<NodeRole>,
    /// `NODEKEEPER_NODE_KEY` or `NODEKEEPER_NODE_KEY_SECRET`
    pub key: KeySource,
    /// `NODEKEEPER_KEY_MAX_AGE_S`: the age at which the keys of a secret are read again.
    pub key_max_age: Span,
    /// `NODEKEEPER_HEARTBEAT_URL`, without a slash at the end.
    pub heartbeat_url: String,
    /// `NODEKEEPER_SWEEP_URL`, without a slash at the end.
    pub sweep_url: String,
}

/// Everything that is wrong with the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct BadEnvironment(pub Vec<String>);

impl Environment {
    /// Reads the variables through `lookup`. An empty variable counts as not set.
    pub fn read(needs: Needs, lookup: impl Fn(&str) -> Option<String>) -> Result<Self, BadEnvironment> {
        let mut reader = Reader { lookup, needs, wrong: Vec::new() };
        let cluster = reader.cluster();
        let node_auth = reader.node_auth();
        let node_role = reader.node_role(node_auth);
        let key = reader.key(node_auth);
        let key_max_age = reader.key_max_age();
        let heartbeat_url = reader.url("NODEKEEPER_HEARTBEAT_URL");
        let sweep_url = reader.url("NODEKEEPER_SWEEP_URL");
        match cluster {
            Some(cluster) if reader.wrong.is_empty() => {
                Ok(Self { cluster, node_auth, node_role, key, key_max_age, heartbeat_url, sweep_url })
            }
            _ => Err(BadEnvironment(reader.wrong)),
        }
    }
}

/// Reads one variable after the other and collects the mistakes. For a wrong variable it returns a value that is
/// never used, because a single mistake is enough to refuse the whole environment.
struct Reader<L> {
    lookup: L,
    needs: Needs,
    wrong: Vec<String>,
}

impl<L: Fn(&str) -> Option<String>> Reader<L> {
    fn value(&self, name: &str) -> Option<String> {
        (self.lookup)(name).filter(|v| !v.is_empty())
    }

    fn cluster(&mut self) -> Option<ClusterName> {
        match self.value("NODEKEEPER_CLUSTER").map(|c| c.parse::<ClusterName>()) {
            Some(Ok(cluster)) => Some(cluster),
            Some(Err(e)) => {
                self.wrong.push(format!("NODEKEEPER_CLUSTER is wrong: {e}"));
                None
            }
            None => {
                self.wrong.push(
                    "NODEKEEPER_CLUSTER is not set: it names the deployment, its tables and its instances".into(),
                );
                None
            }
        }
    }

    fn node_auth(&mut self) -> NodeAuth {
        match self.value("NODEKEEPER_NODE_AUTH").as_deref() {
            None | Some("token") => NodeAuth::Token,
            Some("iam") => NodeAuth::Iam,
            Some(other) => {
                self.wrong.push(format!("NODEKEEPER_NODE_AUTH is {other:?}: it must be token or iam"));
                NodeAuth::Token
            }
        }
    }

    fn node_role(&mut self, node_auth: NodeAuth) -> Option<NodeRole> {
        match self.value("NODEKEEPER_NODE_ROLE").map(|arn| arn.parse::<NodeRole>()) {
            Some(Ok(role)) => Some(role),
            Some(Err(e)) => {
                self.wrong.push(format!("NODEKEEPER_NODE_ROLE is wrong: {e}"));
                None
            }
            None => {
                if self.needs.callers && node_auth == NodeAuth::Iam {
                    self.wrong.push(
                        "NODEKEEPER_NODE_ROLE is not set: with NODEKEEPER_NODE_AUTH=iam, only this role's instances \
                         are nodes"
                            .into(),
                    );
                }
                None
            }
        }
    }

    fn key(&mut self, node_auth: NodeAuth) -> KeySource {
        match (self.value("NODEKEEPER_NODE_KEY"), self.value("NODEKEEPER_NODE_KEY_SECRET")) {
            // With both, the key is only the secret's first value.
            (_, Some(secret)) => KeySource::Secret(secret),
            (Some(text), None) => match text.parse() {
                Ok::<NumberedKey, _>(key) => KeySource::Given(key),
                Err(e) => {
                    self.wrong.push(format!("NODEKEEPER_NODE_KEY is wrong: {e}"));
                    KeySource::None
                }
            },
            (None, None) => {
                if self.needs.key && node_auth == NodeAuth::Token {
                    self.wrong.push(
                        "neither NODEKEEPER_NODE_KEY nor NODEKEEPER_NODE_KEY_SECRET is set: one of them is needed to \
                         check node tokens (or NODEKEEPER_NODE_AUTH=iam)"
                            .into(),
                    );
                }
                KeySource::None
            }
        }
    }

    fn key_max_age(&mut self) -> Span {
        let Some(text) = self.value("NODEKEEPER_KEY_MAX_AGE_S") else { return keys::MAX_AGE };
        let span = text.parse().ok().filter(|s| (1..=3600).contains(s)).map(Span::from_s);
        if span.is_none() {
            self.wrong.push(format!("NODEKEEPER_KEY_MAX_AGE_S is {text:?}: it must be 1 to 3600 (seconds)"));
        }
        span.unwrap_or(keys::MAX_AGE)
    }

    fn url(&mut self, name: &str) -> String {
        match self.value(name) {
            Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
                url.trim_end_matches('/').to_owned()
            }
            Some(url) => {
                self.wrong.push(format!("{name} is {url:?}: it must begin with https:// or http://"));
                String::new()
            }
            None => {
                if self.needs.urls {
                    self.wrong.push(format!("{name} is not set: a node gets it when it is launched"));
                }
                String::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_mistakes_are_reported_at_once() {
        let env = |name: &str| match name {
            "NODEKEEPER_CLUSTER" => Some("no spaces".to_owned()),
            "NODEKEEPER_NODE_AUTH" => Some("trust".to_owned()),
            "NODEKEEPER_SWEEP_URL" => Some("ftp://x".to_owned()),
            _ => None,
        };
        let needs = Needs { key: true, callers: true, urls: true };
        let BadEnvironment(wrong) = Environment::read(needs, env).unwrap_err();
        assert_eq!(wrong.len(), 5, "{wrong:#?}");
        let iam = |name: &str| match name {
            "NODEKEEPER_CLUSTER" => Some("c".to_owned()),
            "NODEKEEPER_NODE_AUTH" => Some("iam".to_owned()),
            _ => None,
        };
        let BadEnvironment(wrong) = Environment::read(Needs { urls: false, ..needs }, iam).unwrap_err();
        assert!(wrong.len() == 1 && wrong[0].contains("NODEKEEPER_NODE_ROLE is not set"), "{wrong:#?}");
    }

    #[test]
    fn variables_that_are_not_needed_may_be_missing() {
        let env = |name: &str| (name == "NODEKEEPER_CLUSTER").then(|| "c".to_owned());
        assert!(Environment::read(Needs { key: false, callers: false, urls: false }, env).is_ok());
        assert!(Environment::read(Needs { key: true, callers: true, urls: false }, env).is_err());
    }
}
