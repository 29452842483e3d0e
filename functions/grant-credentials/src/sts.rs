//! STS: how a role is assumed.
//!
//! Guarantees: a refusal that stays is told apart from a fault that passes.
//! Does not: choose a role, or keep what it gets.

use async_trait::async_trait;
use aws_sdk_sts::error::{DisplayErrorContext, ProvideErrorMetadata};
use aws_sdk_sts::types::Tag;
use model::wire::JobCredentials;
use model::{Span, Time};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AssumeRole {
    pub role_arn: String,
    /// The name of the session, which CloudTrail shows.
    pub session: String,
    /// The tags of the session, which policies can require.
    pub tags: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StsError {
    /// AWS refuses the role, and will refuse it again.
    #[error("{0}")]
    Denied(String),
    /// The error may pass: the node tries again.
    #[error("{0}")]
    Failed(String),
}

#[async_trait]
pub trait Sts: Send + Sync {
    /// The credentials of a session of this length.
    async fn assume(&self, request: &AssumeRole, lasts: Span, now: Time) -> Result<JobCredentials, StsError>;
}

#[async_trait]
impl Sts for aws_sdk_sts::Client {
    async fn assume(&self, request: &AssumeRole, lasts: Span, now: Time) -> Result<JobCredentials, StsError> {
        let seconds = i32::try_from(lasts.as_ms() / 1000).unwrap_or(i32::MAX);
        let mut call = self.assume_role().role_arn(&request.role_arn).role_session_name(&request.session);
        for (key, value) in &request.tags {
            let tag = Tag::builder().key(key).value(value).build();
            call = call.tags(tag.map_err(|e| StsError::Failed(e.to_string()))?);
        }
        let answer = call.duration_seconds(seconds).send().await.map_err(|error| {
            let why = error.message().map_or_else(|| DisplayErrorContext(&error).to_string(), str::to_owned);
            match error.code() {
                Some("AccessDenied" | "ValidationError" | "MalformedPolicyDocument") => StsError::Denied(why),
                _ => StsError::Failed(why),
            }
        })?;
        let given = answer.credentials.ok_or_else(|| StsError::Failed("the answer has no credentials".into()))?;
        let expires_at =
            given.expiration.to_millis().map_err(|e| StsError::Failed(format!("their end is no time: {e}")))?;
        Ok(JobCredentials {
            access_key_id: given.access_key_id,
            secret_access_key: given.secret_access_key,
            session_token: given.session_token,
            given_at: now,
            expires_at: Time::from_ms(expires_at),
            role_arn: request.role_arn.clone(),
        })
    }
}
