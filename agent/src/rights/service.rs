//! Gives each job the credentials of its role, on a port of this machine.
//!
//! Guarantees: an answer with credentials needs the token of their alloc; the service asks for new ones when two thirds of
//! their time are over; it gives nothing after an order to stop, even if it knows credentials that still count.
//! Does not: say more to a caller without the token than that it is wrong.
//! Source: "Container credential provider", AWS SDKs and Tools Reference Guide.

use super::{PATH, token_file};
use crate::alloc_dir::AllocDir;
use crate::client::{CallError, ControlPlaneClient};
use crate::node_state::NodeState;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::get;
use axum::{Json, Router};
use model::Desired;
use model::ids::AllocId;
use model::time::Time;
use model::wire::{CredentialsRequest, ErrorCode, JobCredentials};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Credentials, and when they are asked for again.
#[derive(Clone, Debug)]
struct Known {
    credentials: JobCredentials,
    renew_at: Instant,
}

/// What the service works with.
#[derive(Debug)]
pub struct CredentialsService {
    state: Arc<NodeState>,
    client: Arc<ControlPlaneClient>,
    allocs: PathBuf,
    /// The node's clock, in Unix time.
    clock: crate::client::Clock,
    known: Mutex<BTreeMap<AllocId, Known>>,
}

/// Why a job gets no credentials: the status and the text of the answer.
type Refused = (StatusCode, Json<Value>);

impl CredentialsService {
    /// The service for the allocs of this directory.
    pub fn new(
        state: Arc<NodeState>,
        client: Arc<ControlPlaneClient>,
        allocs: PathBuf,
        clock: crate::client::Clock,
    ) -> Self {
        Self { state, client, allocs, clock, known: Mutex::default() }
    }

    /// Answers jobs until the future is dropped.
    pub async fn serve(self, listener: TcpListener) {
        let path = format!("{PATH}{{alloc_id}}");
        let router = Router::new().route(&path, get(answer)).with_state(Arc::new(self));
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "jobs get no credentials any more: restart the agent");
        }
        std::future::pending::<()>().await;
    }

    /// The credentials of this alloc, for a caller with this token.
    async fn credentials(&self, id: AllocId, token: Option<&str>) -> Result<JobCredentials, Refused> {
        let right = std::fs::read(token_file(AllocDir::of(&self.allocs, id).path())).unwrap_or_default();
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
        let mut known = self.known.lock().await;
        known.retain(|other, _| *other == id || self.state.read(|node| node.durable.allocs.contains_key(other)));
        if let Some(known) = known.get(&id).filter(|known| Instant::now() < known.renew_at) {
            return Ok(known.credentials.clone());
        }
        let request = CredentialsRequest { incarnation: incarnation.unwrap_or_default(), alloc_id: id };
        let now = Time::from_ms((self.clock)().as_millisecond());
        match self.client.post::<JobCredentials>(&url, "credentials", &request).await {
            Ok(credentials) => {
                let lasts =
                    Duration::from_millis(u64::try_from(credentials.expires_at.since(now).as_ms()).unwrap_or(0));
                let renew_at = Instant::now() + lasts * 2 / 3;
                known.insert(id, Known { credentials: credentials.clone(), renew_at });
                Ok(credentials)
            }
            // What is known counts to its end, unless the control plane says no.
            Err(error) => match (denial(&error), known.get(&id)) {
                (None, Some(known)) if known.credentials.expires_at > now => Ok(known.credentials.clone()),
                (Some(why), _) => Err(refused(StatusCode::FORBIDDEN, why)),
                (None, _) => Err(refused(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())),
            },
        }
    }
}

/// What the control plane denies for good.
fn denial(error: &CallError) -> Option<&str> {
    match error {
        CallError::Refused { code: ErrorCode::Denied, message, .. } => Some(message),
        _ => None,
    }
}

async fn answer(
    State(service): State<Arc<CredentialsService>>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Json<Value>, Refused> {
    let id: AllocId = id.parse().map_err(|_| refused(StatusCode::NOT_FOUND, "there is no such alloc"))?;
    let token = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = service.credentials(id, token).await?;
    Ok(Json(json!({
        "AccessKeyId": given.access_key_id,
        "SecretAccessKey": given.secret_access_key,
        "Token": given.session_token,
        "Expiration": given.expires_at.to_string(),
        "RoleArn": given.role_arn,
    })))
}

fn refused(status: StatusCode, message: &str) -> Refused {
    let code = status.canonical_reason().unwrap_or_default().replace(' ', "");
    (status, Json(json!({"code": code, "message": message})))
}
