//! The HTTP server: requests in, answers out, and the stand-in's own paths below `/_stand-in`.
//!
//! Guarantees: each request sees all changes that are due at its time, however rarely requests come.
//! Does not: check who calls, or signatures. The program that serves the router does.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use model::Span;
use serde::Deserialize;
use serde_json::json;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{MissedTickBehavior, interval};

use crate::actions::Ec2Answer;
use crate::actions::json_services;
use crate::api_error::ApiError;
use crate::ec2::Ec2Region;
use crate::faults::Faults;
use crate::instance::Ec2Instance;
use crate::wire::{Params, Xml};

/// The largest accepted body: far larger than any valid call, and small enough to keep in memory.
const MAX_BODY_BYTES: usize = 1024 * 1024;
const XML: &str = "text/xml;charset=UTF-8";
const JSON: &str = "application/x-amz-json-1.1";
/// How often due changes are made while no request comes.
const TICK: Duration = Duration::from_millis(100);

/// Serves the stand-in and makes its due changes, until the listener fails or the future is
/// dropped.
pub async fn serve(listener: TcpListener, ec2: Arc<Ec2Region>) -> io::Result<()> {
    let router = ec2.router();
    tokio::select! {
        served = axum::serve(listener, router) => served,
        () = ec2.keep_advancing() => Ok(()),
    }
}

impl Ec2Region {
    /// Makes due changes, until the future is dropped.
    pub async fn keep_advancing(&self) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        loop {
            ticks.tick().await;
            self.advance();
        }
    }

    /// The [`api`](Self::api) and the [`controls`](Self::controls). Due changes are made at every request; between requests
    /// only [`Ec2Region::advance`] makes them.
    pub fn router(self: &Arc<Self>) -> Router {
        self.api().merge(self.controls())
    }

    /// EC2's API at `/`, with the price list and Service Quotas, whose requests name their operation in a header.
    pub fn api(self: &Arc<Self>) -> Router {
        Router::new().route("/", get(api).post(api)).with_state(Arc::clone(self))
    }

    /// The error that EC2 answers to a request whose signature it refuses.
    pub fn unsigned(why: &str) -> Response {
        refused("-", &ApiError::unsigned(why))
    }

    /// The error of the price list and of Service Quotas for a request whose signature they refuse.
    pub fn unsigned_json(why: &str) -> Response {
        refused_json("-", &ApiError::unsigned(why))
    }

    /// The service that a request with these headers asks, by its name in signatures.
    pub fn service(headers: &HeaderMap) -> &'static str {
        json_services::service(headers).unwrap_or("ec2")
    }

    /// The stand-in's own paths, below `/_stand-in`.
    pub fn controls(self: &Arc<Self>) -> Router {
        Router::new()
            .route("/_stand-in/faults", get(faults).post(set_faults))
            .route("/_stand-in/instances", get(instances))
            .route("/_stand-in/instances/{instance_id}/{event}", post(cause_event))
            .with_state(Arc::clone(self))
    }
}

/// The Query protocol: the form is the body, or the query string of a GET.
async fn api(State(ec2): State<Arc<Ec2Region>>, request: Request) -> Response {
    let in_url = request.uri().query().unwrap_or_default().to_owned();
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, MAX_BODY_BYTES).await;
    if json_services::service(&parts.headers).is_some() {
        return answer_in_json(&ec2, &parts.headers, &body.unwrap_or_default());
    }
    let (request_id, answer) = match body {
        Ok(body) => {
            let params = Params::parse(if body.is_empty() { in_url.as_bytes() } else { &body });
            let answer = ec2.answer(&params);
            tokio::time::sleep(Duration::from_millis(ec2.latency_ms(&params))).await;
            answer
        }
        Err(_) => {
            let message = format!("The request body is larger than {MAX_BODY_BYTES} bytes");
            ("-".to_owned(), Err(ApiError { status: 413, ..ApiError::new("RequestEntityTooLarge", message) }))
        }
    };
    match answer {
        Ok(Ec2Answer::Xml(xml)) => response(200, XML, &request_id, xml),
        Ok(Ec2Answer::Disconnect) => {
            let broken =
                futures::stream::once(async { Err::<Bytes, _>(io::Error::other("a fault loses this answer")) });
            Body::from_stream(broken).into_response()
        }
        Err(error) => {
            tracing::debug!(code = error.code, %error, "the EC2 stand-in refuses a call");
            refused(&request_id, &error)
        }
    }
}

/// The JSON protocol. A body that is too large counts as an empty one, which is refused.
fn answer_in_json(ec2: &Ec2Region, headers: &HeaderMap, body: &[u8]) -> Response {
    match ec2.answer_json(headers, body) {
        (request_id, Ok(answer)) => response(200, JSON, &request_id, answer.to_string()),
        (request_id, Err(error)) => refused_json(&request_id, &error),
    }
}

fn refused_json(request_id: &str, error: &ApiError) -> Response {
    let body = json!({ "__type": error.code, "Message": error.message });
    response(error.status, JSON, request_id, body.to_string())
}

fn refused(request_id: &str, error: &ApiError) -> Response {
    response(error.status, XML, request_id, Xml::error(error, request_id))
}

fn response(status: u16, content_type: &str, request_id: &str, body: String) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = [(header::CONTENT_TYPE.as_str(), content_type), ("x-amzn-requestid", request_id)];
    (status, headers, body).into_response()
}

async fn instances(State(ec2): State<Arc<Ec2Region>>) -> Json<Vec<Ec2Instance>> {
    Json(ec2.instances())
}

async fn faults(State(ec2): State<Arc<Ec2Region>>) -> Json<Faults> {
    Json(ec2.faults())
}

/// Replaces the faults. Any content type is accepted, for `curl -d`.
async fn set_faults(State(ec2): State<Arc<Ec2Region>>, body: Bytes) -> Response {
    match serde_json::from_slice::<Faults>(&body) {
        Ok(faults) => {
            ec2.set_faults(faults);
            Json(ec2.faults()).into_response()
        }
        Err(e) => problem(StatusCode::BAD_REQUEST, "bad_request", &format!("not valid faults: {e}")),
    }
}

/// The query string of an event.
#[derive(Deserialize)]
struct EventParams {
    /// How long before an interruption the machine is warned (EC2: two minutes).
    #[serde(default = "two_minutes")]
    warning_ms: i64,
}

fn two_minutes() -> i64 {
    120_000
}

async fn cause_event(
    State(ec2): State<Arc<Ec2Region>>,
    Path((instance_id, event)): Path<(String, String)>,
    Query(params): Query<EventParams>,
) -> Response {
    let happened = match event.as_str() {
        "interrupt" => ec2.interrupt(&instance_id, Span::from_ms(params.warning_ms)).is_some(),
        "terminate" => ec2.terminate_by_cloud(&instance_id),
        "stop" => ec2.stop_by_cloud(&instance_id),
        _ => {
            let events = "the events are interrupt, terminate and stop";
            return problem(StatusCode::NOT_FOUND, "not_found", events);
        }
    };
    if happened {
        return Json(json!({ "instance_id": instance_id, "event": event })).into_response();
    }
    problem(StatusCode::CONFLICT, "conflict", "no such instance exists, or its state does not allow this")
}

fn problem(status: StatusCode, error: &str, message: &str) -> Response {
    (status, Json(json!({ "error": error, "message": message }))).into_response()
}
