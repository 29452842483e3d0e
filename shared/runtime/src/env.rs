//! The environment a function runs in: read once, in `main.rs`, and checked as a whole.
//!
//! Guarantees: a missing or bad variable is one clear line that says which and what is allowed.
//! Does not: read the process's environment itself; it is given a lookup.

use model::auth::MasterKey;
use model::ids::ClusterName;

/// How nodes prove who they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAuth {
    /// By a token in their configuration.
    Token,
    /// By the instance role's signature; the function URL checks it.
    Iam,
}

/// Where the master key comes from.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// Given, for local use.
    Given(MasterKey),
    /// The name or ARN of a secret.
    Secret(String),
    /// None: nodes are known by IAM, or the function needs no key.
    None,
}

/// What a function needs besides the cluster's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Checks or makes node tokens.
    pub key: bool,
    /// Writes the URLs into user data.
    pub urls: bool,
}

/// The environment, checked.
#[derive(Clone, Debug)]
pub struct Environment {
    /// `NODEKEEPER_CLUSTER`
    pub cluster: ClusterName,
    /// `NODEKEEPER_NODE_AUTH`
    pub node_auth: NodeAuth,
    /// `NODEKEEPER_NODE_KEY` or `NODEKEEPER_NODE_KEY_SECRET`
    pub key: KeySource,
    /// `NODEKEEPER_HEARTBEAT_URL`, without a slash at its end.
    pub heartbeat_url: String,
    /// `NODEKEEPER_SWEEP_URL`, without a slash at its end.
    pub sweep_url: String,
}

/// Everything that is wrong with the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct BadEnvironment(pub Vec<String>);

impl Environment {
    /// Reads the variables through `lookup`.
    pub fn read(needs: Needs, lookup: impl Fn(&str) -> Option<String>) -> Result<Self, BadEnvironment> {
        let lookup = |name: &str| lookup(name).filter(|v| !v.is_empty());
        let mut wrong = Vec::new();
        let cluster = match lookup("NODEKEEPER_CLUSTER").map(|c| c.parse::<ClusterName>()) {
            Some(Ok(cluster)) => Some(cluster),
            Some(Err(e)) => {
                wrong.push(format!("NODEKEEPER_CLUSTER is wrong: {e}"));
                None
            }
            None => {
                wrong.push(
                    "NODEKEEPER_CLUSTER is not set: it names the deployment, its tables and its instances".into(),
                );
                None
            }
        };
        let node_auth = match lookup("NODEKEEPER_NODE_AUTH").as_deref() {
            None | Some("token") => NodeAuth::Token,
            Some("iam") => NodeAuth::Iam,
            Some(other) => {
                wrong.push(format!("NODEKEEPER_NODE_AUTH is {other:?}: it must be token or iam"));
                NodeAuth::Token
            }
        };
        let key = match (lookup("NODEKEEPER_NODE_KEY"), lookup("NODEKEEPER_NODE_KEY_SECRET")) {
            (Some(hex), _) => match MasterKey::from_hex(&hex) {
                Ok(key) => KeySource::Given(key),
                Err(e) => {
                    wrong.push(format!("NODEKEEPER_NODE_KEY is wrong: {e}"));
                    KeySource::None
                }
            },
            (None, Some(secret)) => KeySource::Secret(secret),
            (None, None) => {
                if needs.key && node_auth == NodeAuth::Token {
                    wrong.push(
                        "neither NODEKEEPER_NODE_KEY nor NODEKEEPER_NODE_KEY_SECRET is set: one of them is needed to \
                         check node tokens (or NODEKEEPER_NODE_AUTH=iam)"
                            .into(),
                    );
                }
                KeySource::None
            }
        };
        let mut url = |name: &str| match lookup(name) {
            Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
                url.trim_end_matches('/').to_owned()
            }
            Some(url) => {
                wrong.push(format!("{name} is {url:?}: it must begin with https:// or http://"));
                String::new()
            }
            None => {
                if needs.urls {
                    wrong.push(format!("{name} is not set: nodes are told it when they are launched"));
                }
                String::new()
            }
        };
        let (heartbeat_url, sweep_url) = (url("NODEKEEPER_HEARTBEAT_URL"), url("NODEKEEPER_SWEEP_URL"));
        match cluster {
            Some(cluster) if wrong.is_empty() => Ok(Self { cluster, node_auth, key, heartbeat_url, sweep_url }),
            _ => Err(BadEnvironment(wrong)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_wrong_is_said_at_once() {
        let env = |name: &str| match name {
            "NODEKEEPER_CLUSTER" => Some("no spaces".to_owned()),
            "NODEKEEPER_NODE_AUTH" => Some("trust".to_owned()),
            "NODEKEEPER_SWEEP_URL" => Some("ftp://x".to_owned()),
            _ => None,
        };
        let BadEnvironment(wrong) = Environment::read(Needs { key: true, urls: true }, env).unwrap_err();
        assert_eq!(wrong.len(), 5, "{wrong:#?}");
    }

    #[test]
    fn what_is_not_needed_may_be_missing() {
        let env = |name: &str| (name == "NODEKEEPER_CLUSTER").then(|| "c".to_owned());
        assert!(Environment::read(Needs { key: false, urls: false }, env).is_ok());
        assert!(Environment::read(Needs { key: true, urls: false }, env).is_err());
    }
}
