//! The region and the credentials of an operator.
//!
//! Guarantees: missing credentials give one clear line before the first call. A profile that signs in by IAM Identity
//! Center (SSO) or by `aws login` works if the AWS CLI is installed: the AWS CLI gives the credentials.
//! Does not: sign in, or keep credentials.
//!
//! The SDK can read such profiles itself, but only with two more service clients, which the functions would carry too.

use crate::console::WallClock;
use anyhow::{Context as _, bail};
use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_config::credential_process::CredentialProcessProvider;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use s3::{Access, Keys, S3};
use std::error::Error;
use std::sync::Arc;

/// Gives the credentials of a profile that the SDK cannot read. The AWS CLI reads AWS_PROFILE, as the SDK does.
const AWS_CLI: &str = "aws configure export-credentials --format process";

const WITHOUT_AWS: &str = "without AWS, `nodekeeper local` starts a cluster on this machine";

/// Loads the configuration of the SDK, with a region and credentials. `profile` is the value of AWS_PROFILE.
pub async fn config(profile: Option<&str>) -> anyhow::Result<SdkConfig> {
    let config = runtime::lambda::sdk_config().load().await;
    if config.region().is_none() {
        bail!("no region is set: set AWS_REGION, or `region`{} in ~/.aws/config; {WITHOUT_AWS}", of_profile(profile));
    }
    let Some(provider) = config.credentials_provider() else { return Ok(config) };
    let Err(error) = provider.provide_credentials().await else { return Ok(config) };
    let error = causes(&error);
    if !error.contains("cargo feature(s) enabled: sso") && !error.contains("`credentials-login`") {
        bail!("{}", no_credentials(&error, profile));
    }
    let cli = SharedCredentialsProvider::new(CredentialProcessProvider::new(AWS_CLI.to_owned()));
    if let Err(error) = cli.provide_credentials().await {
        bail!("{}", no_session(&error, profile));
    }
    Ok(config.into_builder().credentials_provider(cli).build())
}

/// A client of S3 with the credentials and the region of this configuration. `endpoint` is the value of AWS_ENDPOINT_URL_S3.
pub fn s3(config: &SdkConfig, endpoint: Option<&str>, clock: WallClock) -> anyhow::Result<S3> {
    let region = config.region().context("no region is set")?.to_string();
    let keys = SdkKeys { provider: config.credentials_provider(), clock };
    Ok(S3::new(Arc::new(keys), region, endpoint.or_else(|| config.endpoint_url()))?)
}

struct SdkKeys {
    provider: Option<SharedCredentialsProvider>,
    clock: WallClock,
}

#[async_trait]
impl Keys for SdkKeys {
    async fn access(&self) -> Result<Access, String> {
        let provider = self.provider.as_ref().ok_or("no credentials are set")?;
        let credentials = provider.provide_credentials().await.map_err(|error| causes(&error))?;
        Ok(Access { credentials, at: (self.clock)().into() })
    }

    async fn refused(&self, _: &Access, _: Option<&str>) {}
}

/// The profile that AWS_PROFILE names, in a sentence.
fn of_profile(profile: Option<&str>) -> String {
    profile.map(|name| format!(" of profile `{name}` (AWS_PROFILE)")).unwrap_or_default()
}

fn no_credentials(error: &str, profile: Option<&str>) -> String {
    let of = of_profile(profile);
    // The SDK asks the metadata service of an instance (IMDS) last, so its error names IMDS.
    if !["no providers in chain", "IMDS", "not enabled"].iter().any(|none| error.contains(none)) {
        return format!("the AWS credentials{of} cannot be read: {error}");
    }
    match profile {
        Some(name) => format!(
            "there are no AWS credentials{of}: it does not exist, or names none: see `aws configure list --profile {name}`"
        ),
        None => format!(
            "there are no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; {WITHOUT_AWS}"
        ),
    }
}

fn no_session(error: &CredentialsError, profile: Option<&str>) -> String {
    let name = profile.unwrap_or("default");
    let source = error.source().map(ToString::to_string).unwrap_or_default();
    // 127: the shell finds no such program. 2: version 1 has no such command.
    if source.contains("exit status: 127") || source.contains("exit status: 2.") {
        return format!(
            "profile `{name}` signs in through a browser, and the AWS CLI (version 2) gives its credentials: install it"
        );
    }
    format!("profile `{name}` has no session: run `aws sso login --profile {name}` (or `aws login`): {}", causes(error))
}

/// The error and its causes in one line, without repetition.
fn causes(error: &CredentialsError) -> String {
    let mut causes = Vec::new();
    let mut next: Option<&dyn Error> = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if !causes.iter().any(|cause: &String| cause.contains(&text)) {
            causes.push(text);
        }
        next = error.source();
    }
    let causes = causes.join(": ");
    // If a credential process wrote to standard error, that text is enough.
    match causes.split_once("Stderr:") {
        Some((before, "")) => before.trim_end().trim_end_matches('.').to_owned(),
        Some((_, text)) => text.trim_start().to_owned(),
        None => causes,
    }
}
