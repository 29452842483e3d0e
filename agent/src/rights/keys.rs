//! The credentials of a job, for the calls that the supervisor makes in its name.
//!
//! Guarantees: they are asked for again before they end; a role that the job may not have is told apart from a service that does not
//! answer at present.
//! Does not: keep credentials anywhere but in memory.

use super::CredentialsSource;
use crate::contact::imds::credentials_in;
use crate::services::Services;
use crate::work::obstacle::{Obstacle, patiently};
use async_trait::async_trait;
use model::enums::Service;
use model::error_chain::error_chain;
use reqwest::StatusCode;
use reqwest::header::DATE;
use s3::{Access, Keys, S3};
use serde::Deserialize;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How long the agent, or a service that has secrets, may not answer, before the alloc is lost.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// The longest time that a call may take.
pub(super) const TIMEOUT: Duration = Duration::from_secs(15);

/// The agent, or grant-credentials behind it, gives no credentials at present.
fn no_credentials(why: String) -> Obstacle {
    Obstacle::Service(Service::Credentials, why)
}

/// The role of a job, as its supervisor uses it.
#[derive(Clone)]
pub struct JobRole {
    pub source: CredentialsSource,
    pub token: String,
    pub services: Services,
}

impl JobRole {
    /// S3 with the rights of the job. `what` says in an error what cannot be done.
    pub async fn s3(&self, what: &str, endpoint: Option<&str>) -> Result<S3, Obstacle> {
        let http = client()?;
        patiently(what, PATIENCE, async || self.credentials(&http).await).await?;
        let cannot = |why: String| Obstacle::Node(format!("{what}: {why}"));
        let region = self.source.region.clone().ok_or_else(|| cannot("the region is not known".to_owned()))?;
        S3::new(Arc::new(self.clone()), region, endpoint).map_err(|e| cannot(e.to_string()))
    }

    /// The credentials of the job, from the agent, and the time to sign with: that of AWS, whatever the node's clock says.
    pub(super) async fn credentials(&self, http: &reqwest::Client) -> Result<Access, Obstacle> {
        let request = http.get(&self.source.url).header("Authorization", &self.token);
        let answer = request.send().await.map_err(|e| no_credentials(error_chain(&e)))?;
        let status = answer.status();
        let date = answer.headers().get(DATE).and_then(|date| jiff::fmt::rfc2822::parse(date.to_str().ok()?).ok());
        let body = answer.bytes().await.map_err(|e| no_credentials(error_chain(&e)))?;
        if !status.is_success() {
            let said = serde_json::from_slice::<ServiceError>(&body).unwrap_or_default().message;
            let final_ = matches!(status, StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED);
            return Err(if final_ { Obstacle::Job(said) } else { no_credentials(said) });
        }
        let credentials = credentials_in(&body).map_err(|e| no_credentials(e.to_string()))?;
        let at = date.ok_or_else(|| no_credentials("the answer of the agent has no Date".to_owned()))?.timestamp();
        Ok(Access { credentials, at: SystemTime::from(at) })
    }
}

/// A client for the agent and for the services of AWS.
pub(super) fn client() -> Result<reqwest::Client, Obstacle> {
    let http = reqwest::Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none()).build();
    http.map_err(|e| Obstacle::Node(error_chain(&e)))
}

#[async_trait]
impl Keys for JobRole {
    async fn access(&self) -> Result<Access, String> {
        let said = |fault: Obstacle| match fault {
            Obstacle::Job(why) | Obstacle::Node(why) | Obstacle::Service(_, why) | Obstacle::Stopped(why) => why,
        };
        // The agent keeps the credentials until they end, so each call asks the agent.
        self.credentials(&client().map_err(said)?).await.map_err(said)
    }

    async fn refused(&self, _: &Access, _: Option<&str>) {}

    fn answered(&self, url: &str, why: Option<&str>) {
        self.services.note("s3", url, why);
    }
}

/// The answer of the agent or of a service that refuses a call.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ServiceError {
    #[serde(rename = "__type")]
    pub(super) code: String,
    #[serde(alias = "Message")]
    pub(super) message: String,
}
