//! What a command is given: `--cluster`, the environment, and a profile of `~/.aws/config`.
//!
//! ```text
//! [profile lab]
//! region = eu-central-1
//! nodekeeper_cluster = lab
//! ```
//!
//! Guarantees: `--cluster` comes first, then NODEKEEPER_CLUSTER, then the profile that AWS_PROFILE names. A variable that the SDK
//! cannot use is refused in one line.
//! Does not: hold credentials, or find the region and the endpoint: the SDK reads them in the same places.

use crate::console::UsageError;
use anyhow::Context as _;
use aws_config::profile;
use aws_types::os_shim_internal::{Env, Fs};
use model::ClusterName;
use std::collections::BTreeMap;

/// The variables that name an endpoint in place of AWS.
const ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL_DYNAMODB", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_EC2"];

/// The settings of the command line and of the environment.
#[derive(Clone, Debug, Default)]
pub struct Given {
    pub cluster: Option<ClusterName>,
    /// The environment. [`Given::var`] reads it.
    pub env: BTreeMap<String, String>,
}

impl Given {
    /// A variable of the environment. A variable without a value counts as absent.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The cluster that a command works on.
    pub async fn named(&self) -> anyhow::Result<Option<ClusterName>> {
        match (&self.cluster, self.var("NODEKEEPER_CLUSTER")) {
            (Some(name), _) => Ok(Some(name.clone())),
            (None, Some(name)) => parsed(name, "NODEKEEPER_CLUSTER"),
            (None, None) => of_profile(&Fs::real(), &Env::real()).await,
        }
    }

    /// The endpoint of DynamoDB if a variable names one, and the variable.
    pub(crate) fn endpoint(&self) -> Option<(&str, &'static str)> {
        ENDPOINTS.into_iter().take(2).find_map(|name| Some((self.var(name)?, name)))
    }

    /// Refuses a variable that the SDK cannot use. The SDK would otherwise fail at each call, with a message of its own.
    pub fn check_for_sdk(&self) -> Result<(), UsageError> {
        let is_url =
            |url: &str| ["http://", "https://"].iter().any(|begin| url.len() > begin.len() && url.starts_with(begin));
        for name in ENDPOINTS {
            if let Some(value) = self.var(name).filter(|value| !is_url(value)) {
                return Err(UsageError(format!(
                    "{name} is {value:?}, and no URL: it must begin with http:// or https://"
                )));
            }
        }
        for name in ["AWS_REGION", "AWS_DEFAULT_REGION"] {
            if self.env.get(name).is_some_and(String::is_empty) {
                return Err(UsageError(format!("{name} is empty: give it a region, or unset it")));
            }
        }
        Ok(())
    }
}

fn parsed(name: &str, by: &str) -> anyhow::Result<Option<ClusterName>> {
    Ok(Some(name.parse().map_err(|e| UsageError(format!("{by}: {e}")))?))
}

/// The cluster of the profile.
async fn of_profile(files: &Fs, env: &Env) -> anyhow::Result<Option<ClusterName>> {
    let profile = profile::load(files, env, &Default::default(), None).await;
    let profile = profile.context("the profiles of AWS cannot be read")?;
    profile.get("nodekeeper_cluster").map_or(Ok(None), |name| parsed(name, "nodekeeper_cluster of the profile"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(env: &[(&str, &str)]) -> Given {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Given { env, ..Given::default() }
    }

    #[tokio::test]
    async fn the_command_line_comes_first_then_the_environment_then_the_profile() {
        let env = given(&[("NODEKEEPER_CLUSTER", "e"), ("AWS_PROFILE", "")]);
        assert_eq!((env.named().await.unwrap().unwrap().as_str(), env.var("AWS_PROFILE")), ("e", None));
        let flag = Given { cluster: Some("f".parse().unwrap()), ..env };
        assert_eq!(flag.named().await.unwrap().unwrap().as_str(), "f");
        assert!(given(&[("NODEKEEPER_CLUSTER", "A B")]).named().await.unwrap_err().is::<UsageError>());

        let file =
            "[default]\nregion = x\n[profile lab]\nnodekeeper_cluster = lab\n[profile bad]\nnodekeeper_cluster = A B\n";
        let files = Fs::from_slice(&[("/home/.aws/config", file)]);
        let of =
            async |profile| of_profile(&files, &Env::from_slice(&[("HOME", "/home"), ("AWS_PROFILE", profile)])).await;
        assert_eq!(of("lab").await.unwrap().unwrap().as_str(), "lab");
        assert_eq!(of("default").await.unwrap(), None);
        assert!(of("bad").await.unwrap_err().to_string().starts_with("nodekeeper_cluster of the profile: "));
        assert_eq!(of_profile(&Fs::from_slice(&[]), &Env::from_slice(&[])).await.unwrap(), None);
    }

    #[test]
    fn what_the_sdk_cannot_use_is_refused_in_one_line() {
        for (name, value, says) in [
            ("AWS_ENDPOINT_URL_DYNAMODB", "notaurl", "no URL: it must begin with http://"),
            ("AWS_ENDPOINT_URL", "http://", "no URL"),
            ("AWS_REGION", "", "AWS_REGION is empty: give it a region, or unset it"),
        ] {
            let error = given(&[(name, value)]).check_for_sdk().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        given(&[("AWS_ENDPOINT_URL", ""), ("AWS_ENDPOINT_URL_EC2", "https://ec2")]).check_for_sdk().unwrap();
    }
}
