//! The receiver: one signed request for a document, and what its answer means.
//!
//! Guarantees: a request takes at most [`TIMEOUT`]; a redirect is not followed, because it could lead anywhere; no byte of
//! an answer's body is read; a log names neither path nor query of the URL, which often are secrets.
//! Does not: try again. `delivery` decides that.

use crate::document::Document;
use model::causes::chain;
use model::time::Time;
use model::webhook::{ReceiverUrl, SigningKey};
use reqwest::header::CONTENT_TYPE;
use std::time::Duration;

/// The longest time from the start of a request to the head of its answer.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The receiver has the document.
    Taken,
    /// The receiver does not want the document: another try would get the same answer.
    Refused(String),
    /// There was no usable answer: another try may succeed.
    Failed(String),
}

impl Answer {
    /// What a status means.
    pub fn of_status(status: u16) -> Self {
        match status {
            200..=299 => Self::Taken,
            408 | 425 | 429 => Self::Failed(format!("it answers {status}: not now")),
            410 => Self::Refused("it answers 410: it is gone for good; empty the parameter WebhookUrl".to_owned()),
            400..=499 => Self::Refused(format!("it answers {status}: see what its own log says")),
            300..=399 => {
                Self::Failed(format!("it answers {status}, and redirects are not followed: give the final URL"))
            }
            _ => Self::Failed(format!("it answers {status}")),
        }
    }
}

/// The receiver of the documents.
#[derive(Clone, Debug)]
pub struct Receiver {
    http: reqwest::Client,
    url: ReceiverUrl,
}

impl Receiver {
    /// The receiver at this URL. An error if there are no certificates to check it with.
    pub fn new(url: ReceiverUrl) -> Result<Self, reqwest::Error> {
        let http = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            // Lambda freezes the process between events, and then the other side closes what was open.
            .pool_max_idle_per_host(0)
            .user_agent(concat!("nodekeeper-webhook/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self { http, url })
    }

    /// Scheme and host, for logs.
    pub fn origin(&self) -> &str {
        self.url.origin()
    }

    /// Sends a document once, signed with each of these keys.
    pub async fn send(&self, document: &Document, keys: &[SigningKey], now: Time) -> Answer {
        let (at_s, body) = (now.as_epoch_s(), document.body.clone());
        let signatures: Vec<String> = keys.iter().map(|key| key.sign(&document.id, at_s, body.as_bytes())).collect();
        let request = self
            .http
            .post(self.url.as_str())
            .header(CONTENT_TYPE, "application/json")
            .header("webhook-id", &document.id)
            .header("webhook-timestamp", at_s)
            .header("webhook-signature", signatures.join(" "))
            .body(body);
        match request.send().await {
            Ok(response) => Answer::of_status(response.status().as_u16()),
            Err(error) => Answer::Failed(chain(&error.without_url())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_is_taken_refused_or_tried_again() {
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(Answer::of_status(status), Answer::Taken, "{status}");
        }
        for status in [400, 401, 403, 404, 405, 409, 410, 413, 422, 499] {
            assert!(matches!(Answer::of_status(status), Answer::Refused(_)), "{status}");
        }
        for status in [100, 301, 302, 307, 308, 408, 425, 429, 500, 502, 503, 504, 599, 999] {
            assert!(matches!(Answer::of_status(status), Answer::Failed(_)), "{status}");
        }
        assert!(matches!(Answer::of_status(410), Answer::Refused(why) if why.contains("WebhookUrl")));
    }
}
