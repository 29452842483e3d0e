//! The instance metadata service (IMDSv2): who this instance is, and whether EC2 takes it.
//!
//! Guarantees: only IMDSv2, each call with a token; no answer means "nothing known".
//! Does not: act on an interruption: the control plane is told, and decides.

use crate::client::chain;
use serde::Deserialize;
use shared::time::Time;
use std::time::Duration;

/// How often an interruption is looked for: it is announced two minutes ahead.
pub const POLL: Duration = Duration::from_secs(5);

/// Why the metadata cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ImdsError {
    /// No answer.
    #[error("the instance metadata service does not answer: {}; outside of EC2, give --no-imds and --instance-id", chain(.0))]
    Http(#[from] reqwest::Error),
    /// An answer that cannot be.
    #[error("the instance metadata service answered {path} with something else: {what}")]
    Senseless {
        /// What was asked for.
        path: &'static str,
        /// What is wrong.
        what: String,
    },
}

/// The metadata service.
#[derive(Clone, Debug)]
pub struct Imds {
    http: reqwest::Client,
    base: String,
}

#[derive(Deserialize)]
struct InstanceAction {
    time: String,
}

impl Imds {
    /// The service at this address.
    pub fn new(base: &str) -> Result<Self, ImdsError> {
        // Link-local: never through a proxy.
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(2)).build()?;
        Ok(Self { http, base: base.trim_end_matches('/').to_owned() })
    }

    /// The instance id.
    pub async fn instance_id(&self) -> Result<String, ImdsError> {
        let path = "instance-id";
        let id = self.get(path).await?.unwrap_or_default();
        if id.is_empty() { Err(ImdsError::Senseless { path, what: "it is empty".into() }) } else { Ok(id) }
    }

    /// The private address, where there is one.
    pub async fn address(&self) -> Result<Option<String>, ImdsError> {
        self.get("local-ipv4").await
    }

    /// When EC2 takes the instance away, if it announced that.
    pub async fn interrupt_at(&self) -> Result<Option<Time>, ImdsError> {
        let path = "spot/instance-action";
        let Some(body) = self.get(path).await? else { return Ok(None) };
        let senseless = |what: String| ImdsError::Senseless { path, what };
        let action: InstanceAction = serde_json::from_str(&body).map_err(|e| senseless(e.to_string()))?;
        let time: jiff::Timestamp = action.time.parse().map_err(|e: jiff::Error| senseless(e.to_string()))?;
        Ok(Some(Time::from_ms(time.as_millisecond())))
    }

    /// None for 404: the service's word for "nothing".
    async fn get(&self, path: &'static str) -> Result<Option<String>, ImdsError> {
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
        let guarded = move |body: Option<&'static str>| {
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
            .route("/latest/meta-data/instance-id", guarded(Some("i-0abc\n")))
            .route("/latest/meta-data/local-ipv4", guarded(Some("10.0.0.7")))
            .route("/latest/meta-data/spot/instance-action", guarded(action));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        Imds::new(&base).unwrap()
    }

    #[tokio::test]
    async fn it_tells_who_the_instance_is() {
        let imds = serve(None).await;
        assert_eq!(imds.instance_id().await.unwrap(), "i-0abc");
        assert_eq!(imds.address().await.unwrap().as_deref(), Some("10.0.0.7"));
        assert_eq!(imds.interrupt_at().await.unwrap(), None);
    }

    #[tokio::test]
    async fn an_announced_interruption_has_its_time() {
        let imds = serve(Some(r#"{"action": "terminate", "time": "2017-09-18T08:22:00Z"}"#)).await;
        assert_eq!(imds.interrupt_at().await.unwrap(), Some(Time::from_ms(1_505_722_920_000)));
        let odd = serve(Some("soon")).await;
        assert!(matches!(odd.interrupt_at().await, Err(ImdsError::Senseless { .. })));
    }
}
