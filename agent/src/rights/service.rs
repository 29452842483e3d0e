//! Gives each job the credentials of its role, on a port of this machine.
//!
//! Guarantees: an answer with credentials needs the token of their alloc. However many connections jobs open, the agent keeps
//! descriptors for its own work. The service asks for new ones when two thirds of their
//! time are over, even if the node's clock is wrong. `Date` says which time it is in AWS. After an order to stop, the alloc gets no
//! credentials, even if the service still has valid ones.
//! Does not: say more to a caller without the token than that it is wrong.
//! Source: "Container credential provider", AWS SDKs and Tools Reference Guide.

use super::{PATH, TOKEN_FILE};
use crate::contact::client::{CallError, ControlPlaneClient};
use crate::contact::shared_node::SharedNode;
use crate::work::alloc_dir::AllocDir;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use listener::{Admission, Callers};
use model::wire::{CredentialsRequest, ErrorCode, JobCredentials};
use model::{AllocId, Desired, Span, Time};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::time::Instant;

/// Credentials, and when the agent got them.
#[derive(Clone, Debug)]
struct GrantedKeys {
    credentials: JobCredentials,
    since: Instant,
}

impl GrantedKeys {
    /// How old the credentials are, and how long they last. Both are durations, because the node's own clock may be wrong.
    fn age_and_time(&self) -> (Span, Span) {
        let age = i64::try_from(self.since.elapsed().as_millis()).unwrap_or(i64::MAX);
        (Span::from_ms(age), self.credentials.expires_at.since(self.credentials.given_at))
    }

    fn is_young(&self) -> bool {
        let (age, lasts) = self.age_and_time();
        age.as_ms().saturating_mul(3) < lasts.as_ms().saturating_mul(2)
    }

    fn counts(&self) -> bool {
        let (age, lasts) = self.age_and_time();
        age < lasts
    }

    /// The time now, by the clock of the function that gave them.
    fn now(&self) -> Time {
        self.credentials.given_at + self.age_and_time().0
    }
}

pub struct CredentialsService {
    state: Arc<SharedNode>,
    client: Arc<ControlPlaneClient>,
    allocs: PathBuf,
    issued: Mutex<BTreeMap<AllocId, Arc<OfAlloc>>>,
}

/// The credentials of one alloc. It is locked while they are asked for, so that an alloc asks once at a time.
type OfAlloc = tokio::sync::Mutex<Option<GrantedKeys>>;

/// Why a job gets no credentials: the status and the text of the answer.
type NoCredentials = (StatusCode, Json<Value>);

impl CredentialsService {
    pub fn new(state: Arc<SharedNode>, client: Arc<ControlPlaneClient>, allocs: PathBuf) -> Self {
        Self { state, client, allocs, issued: Mutex::default() }
    }

    /// Answers jobs until the future is dropped.
    pub async fn serve(self, listener: TcpListener) -> Infallible {
        let path = format!("{PATH}{{alloc_id}}");
        let router = Router::new().route(&path, get(answer)).with_state(Arc::new(self));
        // Supervisors run as the owner, so no job keeps another one from its secrets.
        let admission = Admission::of_this_program(None);
        listener::serve("credentials of jobs", listener, router, Callers::Everyone, admission).await
    }

    /// The credentials of this alloc, for a caller with this token.
    async fn credentials(&self, id: AllocId, token: Option<&str>) -> Result<GrantedKeys, NoCredentials> {
        let right = std::fs::read(AllocDir::of(&self.allocs, id).path().join(TOKEN_FILE)).unwrap_or_default();
        let is_right = token.is_some_and(|token| !right.is_empty() && bool::from(right.ct_eq(token.as_bytes())));
        if !is_right {
            return Err(refused(StatusCode::UNAUTHORIZED, "the token is not that of the alloc"));
        }
        let (order, incarnation) = self.state.read(|node| {
            let order = node.durable.allocs.get(&id).map(|alloc| alloc.order.clone());
            (order, node.durable.incarnation.clone())
        });
        let order = order.filter(|order| order.desired == Desired::Run);
        let order = order.ok_or_else(|| refused(StatusCode::FORBIDDEN, "the alloc was told to stop, or has ended"))?;
        let url = order.grant_url.ok_or_else(|| {
            refused(StatusCode::FORBIDDEN, "the cluster gives no credentials: its stack has no grant-credentials")
        })?;
        let of_alloc = self.of_alloc(id);
        let mut issued = of_alloc.lock().await;
        if let Some(issued) = issued.as_ref().filter(|issued| issued.is_young()) {
            return Ok(issued.clone());
        }
        let request = CredentialsRequest { incarnation: incarnation.unwrap_or_default(), alloc_id: id };
        match self.client.post::<JobCredentials>(&url, "credentials", &request).await {
            Ok(credentials) => {
                let new = GrantedKeys { credentials, since: Instant::now() };
                *issued = Some(new.clone());
                Ok(new)
            }
            // Granted credentials are used until they end, unless the control plane denies them.
            Err(error) => match (denial(&error), issued.as_ref()) {
                (None, Some(issued)) if issued.counts() => Ok(issued.clone()),
                (Some(why), _) => Err(refused(StatusCode::FORBIDDEN, why)),
                (None, _) => Err(refused(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())),
            },
        }
    }
}

impl CredentialsService {
    /// What was issued for this alloc. Forgets the allocs that are over.
    fn of_alloc(&self, id: AllocId) -> Arc<OfAlloc> {
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        issued.retain(|other, _| *other == id || self.state.read(|node| node.durable.allocs.contains_key(other)));
        Arc::clone(issued.entry(id).or_default())
    }
}

/// Why the control plane denies the credentials for good; `None` for another failure.
fn denial(error: &CallError) -> Option<&str> {
    (error.code == Some(ErrorCode::Denied)).then_some(error.what.as_str())
}

async fn answer(
    State(service): State<Arc<CredentialsService>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<([(HeaderName, String); 1], Json<Value>), NoCredentials> {
    let id: AllocId = id.parse().map_err(|_| refused(StatusCode::NOT_FOUND, "there is no such alloc"))?;
    let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let issued = service.credentials(id, token).await?;
    let date = [(header::DATE, http_date(issued.now()))];
    let given = issued.credentials;
    Ok((
        date,
        Json(json!({
            "AccessKeyId": given.access_key_id,
            "SecretAccessKey": given.secret_access_key,
            "Token": given.session_token,
            "Expiration": given.expires_at.to_string(),
            "RoleArn": given.role_arn,
        })),
    ))
}

/// A time as HTTP writes it.
fn http_date(at: Time) -> String {
    let at = Timestamp::from_millisecond(at.as_ms()).unwrap_or(Timestamp::UNIX_EPOCH);
    jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).unwrap_or_default()
}

fn refused(status: StatusCode, message: &str) -> NoCredentials {
    let code = status.canonical_reason().unwrap_or_default().replace(' ', "");
    (status, Json(json!({"code": code, "message": message})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn credentials_age_by_the_clock_of_the_function_that_gave_them() {
        let given_at = Time::from_ms(1_800_000_000_000);
        let credentials = JobCredentials {
            access_key_id: String::new(),
            secret_access_key: String::new(),
            session_token: String::new(),
            given_at,
            expires_at: given_at + Span::from_s(900),
            role_arn: String::new(),
        };
        let issued = GrantedKeys { credentials, since: Instant::now() };
        for (s, is_young, counts) in [(0, true, true), (599, true, true), (600, false, true), (900, false, false)] {
            tokio::time::advance(issued.since + std::time::Duration::from_secs(s) - Instant::now()).await;
            assert_eq!((issued.is_young(), issued.counts()), (is_young, counts), "{s} s");
            assert_eq!(issued.now(), given_at + Span::from_s(s as i64));
        }
        assert_eq!(http_date(given_at), "Fri, 15 Jan 2027 08:00:00 GMT");
    }
}
