//! The instance metadata service (IMDSv2): which instance this is, and whether EC2 will interrupt it.
//!
//! Guarantees: uses only IMDSv2, with a token for each call; no answer means that nothing is known.
//! Does not: act on an interruption. The agent tells the control plane, which decides.

use aws_credential_types::Credentials;
use model::Time;
use model::error_chain::error_chain;
use serde::Deserialize;
use std::time::{Duration, SystemTime};

/// How often to ask about an interruption. EC2 announces an interruption two minutes ahead.
pub const POLL_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum ImdsError {
    #[error(
        "the instance metadata service does not answer: {}; outside EC2, give --no-imds and --instance-id",
        error_chain(.0)
    )]
    Http(#[from] reqwest::Error),
    #[error("the instance metadata service gave an invalid answer for {path}: {what}")]
    InvalidAnswer { path: &'static str, what: String },
}

#[derive(Clone, Debug)]
pub struct Imds {
    http: reqwest::Client,
    base: String,
}

const ROLES: &str = "iam/security-credentials/";

/// The credentials of a role, for some hours: what the metadata service gives, and the agent gives to jobs.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct RoleCredentials {
    access_key_id: String,
    secret_access_key: String,
    /// The session token.
    token: String,
    /// When the credentials end, by EC2's clock.
    expiration: jiff::Timestamp,
}

pub(crate) fn credentials_in(answer: &[u8]) -> serde_json::Result<Credentials> {
    let RoleCredentials { access_key_id, secret_access_key, token, expiration } = serde_json::from_slice(answer)?;
    let expiry = Some(SystemTime::from(expiration));
    Ok(Credentials::new(access_key_id, secret_access_key, Some(token), expiry, "a role"))
}

#[derive(Deserialize)]
struct InstanceAction {
    time: jiff::Timestamp,
}

impl Imds {
    pub fn new(base: &str) -> Result<Self, ImdsError> {
        // Uses no proxy, because a proxy cannot reach this link-local address.
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build()?;
        Ok(Self { http, base: base.trim_end_matches('/').to_owned() })
    }

    pub async fn instance_id(&self) -> Result<String, ImdsError> {
        self.required("instance-id").await
    }

    /// The private address, if there is one.
    pub async fn address(&self) -> Result<Option<String>, ImdsError> {
        self.get("local-ipv4").await
    }

    pub async fn region(&self) -> Result<String, ImdsError> {
        self.required("placement/region").await
    }

    pub async fn credentials(&self) -> Result<Credentials, ImdsError> {
        let path = ROLES;
        let invalid = |what: String| ImdsError::InvalidAnswer { path, what };
        let roles = self.get(path).await?.unwrap_or_default();
        let Some(role) = roles.lines().next().filter(|r| !r.is_empty()) else {
            return Err(invalid("the instance has no role: give its launch template an instance profile".into()));
        };
        let body = self.get(&format!("{path}{role}")).await?.unwrap_or_default();
        credentials_in(body.as_bytes()).map_err(|e| invalid(format!("the credentials of {role}: {e}")))
    }

    /// When EC2 will interrupt the instance; `None` if EC2 has announced no interruption.
    pub async fn interrupt_at(&self) -> Result<Option<Time>, ImdsError> {
        let path = "spot/instance-action";
        let Some(body) = self.get(path).await? else { return Ok(None) };
        let invalid = |e: serde_json::Error| ImdsError::InvalidAnswer { path, what: e.to_string() };
        let InstanceAction { time } = serde_json::from_str(&body).map_err(invalid)?;
        Ok(Some(Time::from_ms(time.as_millisecond())))
    }

    /// The value at `path`, which every instance has.
    async fn required(&self, path: &'static str) -> Result<String, ImdsError> {
        let value = self.get(path).await?.unwrap_or_default();
        if value.is_empty() { Err(ImdsError::InvalidAnswer { path, what: "it is empty".into() }) } else { Ok(value) }
    }

    /// The value at `path`; `None` for 404: the service has no such value.
    async fn get(&self, path: &str) -> Result<Option<String>, ImdsError> {
        let token = self.http.put(format!("{}/latest/api/token", self.base));
        let token = token.header("X-aws-ec2-metadata-token-ttl-seconds", "60").send().await?;
        let token = token.error_for_status()?.text().await?;
        let request = self.http.get(format!("{}/latest/meta-data/{path}", self.base));
        let response = request.header("X-aws-ec2-metadata-token", token).send().await?;
        if response.status() == reqwest::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        Ok(Some(response.error_for_status()?.text().await?.trim().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::http::{HeaderMap, StatusCode};
    use axum::routing::{get, put};

    async fn serve(action: Option<&'static str>) -> Imds {
        let with_token = move |body: Option<&'static str>| {
            get(move |headers: HeaderMap| async move {
                let token = headers.get("x-aws-ec2-metadata-token").is_some_and(|t| t == "t-1");
                if token { body.ok_or(StatusCode::NOT_FOUND) } else { Err(StatusCode::UNAUTHORIZED) }
            })
        };
        let token = put(|headers: HeaderMap| async move {
            let ttl = headers.contains_key("x-aws-ec2-metadata-token-ttl-seconds");
            if ttl { Ok("t-1") } else { Err(StatusCode::BAD_REQUEST) }
        });
        let app = Router::new()
            .route("/latest/api/token", token)
            .route("/latest/meta-data/instance-id", with_token(Some("i-0abc\n")))
            .route("/latest/meta-data/local-ipv4", with_token(Some("10.0.0.7")))
            .route("/latest/meta-data/spot/instance-action", with_token(action));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Imds::new(&base).unwrap()
    }

    #[tokio::test]
    async fn the_service_says_which_instance_this_is() {
        let imds = serve(None).await;
        assert_eq!(imds.instance_id().await.unwrap(), "i-0abc");
        assert_eq!(imds.address().await.unwrap().as_deref(), Some("10.0.0.7"));
        assert_eq!(imds.interrupt_at().await.unwrap(), None);
    }

    #[tokio::test]
    async fn an_announced_interruption_has_its_time() {
        let imds = serve(Some(r#"{"action": "terminate", "time": "2017-09-18T08:22:00Z"}"#)).await;
        assert_eq!(imds.interrupt_at().await.unwrap(), Some(Time::from_ms(1_505_722_920_000)));
        let invalid = serve(Some("soon")).await;
        assert!(matches!(invalid.interrupt_at().await, Err(ImdsError::InvalidAnswer { .. })));
    }
}
