//! Function URL requests and answers, and what all requests of nodes have in common: the path, the
//! credential, the body, and whether the caller is the node of the record.
//!
//! Guarantees: every request gets an answer; a caller with a bad credential learns only that it is bad; a body above
//! the limit is refused before it is parsed.
//! Does not: write any table, or read one but for the policy.

use crate::rate::{MOST_CALLS, RateLimit, WINDOW};
use base64::Engine;
use model::auth::NodeRole;
use model::wire::{ErrorBody, ErrorCode, MAX_BODY_BYTES, ReportCounter};
use model::{ClusterName, Control, NodeId, NodeKey, NodeRecord, Policy, Time};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use store::{DbError, Store, WriteError};

/// One request of a node.
#[derive(Clone, Debug)]
pub struct Request {
    method: String,
    path: String,
    bearer: Option<String>,
    /// The caller whose signature the function URL has checked.
    caller_arn: Option<String>,
    body: Result<Vec<u8>, HttpError>,
}

/// Why a request is refused: the answer that the node gets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HttpError {
    pub code: ErrorCode,
    /// What happened and what to do, for people.
    pub message: String,
}

impl HttpError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// The refusal after an error of the database. The log has the details, and the node only learns whether to try again.
pub fn internal(error: DbError) -> HttpError {
    tracing::error!(%error, "a request failed");
    match error {
        DbError::Throttled { .. } | DbError::Unreachable { .. } => {
            HttpError::new(ErrorCode::Busy, "the database does not answer: try again")
        }
        DbError::NoTable(_) | DbError::Refused { .. } | DbError::Corrupt { .. } => {
            HttpError::new(ErrorCode::Internal, "the request failed: see the function's log")
        }
    }
}

/// The refusal after a write that lost too many races, or failed.
pub fn unwritten(error: WriteError) -> HttpError {
    match error {
        WriteError::Db(e) => internal(e),
        _ => HttpError::new(ErrorCode::Busy, "someone else changed the same rows: try again"),
    }
}

/// How long a node waits after a 503, in seconds.
const RETRY_AFTER_S: u32 = 5;

impl Request {
    /// The request in the event of a function URL (payload format 2.0); `None` if the event is not one.
    ///
    /// This code reads the few fields itself. The types of `aws_lambda_events` would save some six lines, and add crates to
    /// each function. An event without a field that nobody here reads would then fail.
    pub fn from_event(event: &Value) -> Option<Self> {
        let http = event.get("requestContext")?.get("http")?;
        let text = |v: Option<&Value>| v.and_then(Value::as_str).map(str::to_owned);
        let header = |name: &str| {
            let headers = event.get("headers")?.as_object()?;
            headers.iter().find(|(k, _)| k.eq_ignore_ascii_case(name)).and_then(|(_, v)| v.as_str())
        };
        let bearer = header("authorization").and_then(|a| {
            let (scheme, token) = a.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim().to_owned())
        });
        let caller_arn = text(event.pointer("/requestContext/authorizer/iam/userArn"));
        Some(Self {
            method: text(http.get("method"))?,
            path: text(event.get("rawPath")).or_else(|| text(http.get("path")))?,
            bearer,
            caller_arn,
            body: body(event),
        })
    }

    /// The node and the last word of the path `/v1/nodes/{node_id}/{what}`. `what` must be one of `known`. Otherwise 404, 405
    /// for another method than POST, or 400 for what is no id of a node.
    pub fn route<'k>(&self, known: &[&'k str]) -> Result<(NodeId, &'k str), HttpError> {
        let path = self.path.trim_start_matches('/');
        let mut parts = path.split('/');
        let found = (parts.next(), parts.next(), parts.next(), parts.next(), parts.next());
        let (node, what) = match found {
            (Some("v1"), Some("nodes"), Some(node), Some(what), None) => (node, what),
            _ => return Err(self.no_such_path(known)),
        };
        let what = known.iter().find(|k| **k == what).ok_or_else(|| self.no_such_path(known))?;
        if self.method != "POST" {
            let message = format!("{} takes POST, not {}", self.shown_path(), self.method);
            return Err(HttpError::new(ErrorCode::MethodNotAllowed, message));
        }
        let node = node.parse().map_err(|e: model::BadText| HttpError::new(ErrorCode::BadRequest, e.to_string()))?;
        Ok((node, what))
    }

    fn shown_path(&self) -> String {
        self.path.chars().take(100).collect()
    }

    fn no_such_path(&self, known: &[&str]) -> HttpError {
        let message = format!("{} is not a path of this function; its paths are {}", self.shown_path(), paths(known));
        HttpError::new(ErrorCode::NotFound, message)
    }

    /// The body as a type of `model::wire`. Otherwise 400.
    pub fn body<T: DeserializeOwned>(&self) -> Result<T, HttpError> {
        let bytes = self.body.as_ref().map_err(Clone::clone)?;
        serde_json::from_slice(bytes)
            .map_err(|e| HttpError::new(ErrorCode::BadRequest, format!("the body is not the documented JSON: {e}")))
    }
}

fn paths(routes: &[&str]) -> String {
    routes.iter().map(|route| format!("/v1/nodes/{{node_id}}/{route}")).collect::<Vec<_>>().join(", ")
}

fn body(event: &Value) -> Result<Vec<u8>, HttpError> {
    let text = event.get("body").and_then(Value::as_str).unwrap_or_default();
    let too_large = || HttpError::new(ErrorCode::TooLarge, format!("the body is larger than {MAX_BODY_BYTES} bytes"));
    if event.get("isBase64Encoded").and_then(Value::as_bool).unwrap_or(false) {
        if text.len() / 4 * 3 > MAX_BODY_BYTES + 3 {
            return Err(too_large());
        }
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text)
            .map_err(|e| HttpError::new(ErrorCode::BadRequest, format!("the body is not base64: {e}")))?;
        return if bytes.len() > MAX_BODY_BYTES { Err(too_large()) } else { Ok(bytes) };
    }
    if text.len() > MAX_BODY_BYTES { Err(too_large()) } else { Ok(text.as_bytes().to_vec()) }
}

/// How nodes prove who they are.
#[derive(Clone, Debug)]
pub enum NodeCredentials {
    /// By a signature with this role, which the function URL has checked.
    Iam(NodeRole),
    /// In a local system: by a token made with this key.
    Token(NodeKey),
    /// Nobody is a node: the function does not answer nodes.
    Nobody,
}

/// What the caller has proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallerProof {
    /// That it runs on this instance.
    Instance(String),
    /// That it has the token of this node.
    Token,
}

impl CallerProof {
    /// The instance that the caller certainly runs on; `None` for a token.
    pub fn instance(&self) -> Option<&str> {
        match self {
            Self::Instance(id) => Some(id),
            Self::Token => None,
        }
    }
}

impl NodeCredentials {
    /// Checks the caller's credential for this node. Reads no table. Any other credential is 401.
    pub fn check(&self, request: &Request, cluster: &ClusterName, node: NodeId) -> Result<CallerProof, HttpError> {
        let proven = match self {
            Self::Iam(role) => {
                let instance = request.caller_arn.as_deref().and_then(|arn| role.instance(arn));
                instance.map(|id| CallerProof::Instance(id.to_owned()))
            }
            Self::Token(key) => {
                let token = request.bearer.as_deref().filter(|token| key.accepts(cluster, node, token));
                token.map(|_| CallerProof::Token)
            }
            Self::Nobody => None,
        };
        proven.ok_or_else(|| HttpError::new(ErrorCode::Unauthorized, "the credential is not that of this node"))
    }
}

/// The check that each request of a node passes first. Between requests it keeps only how often nodes called.
pub struct NodeAdmission {
    routes: &'static [&'static str],
    credentials: NodeCredentials,
    pub cluster: ClusterName,
    rate: RateLimit,
}

/// A request whose caller is admitted.
#[derive(Clone, Debug)]
pub struct Admitted {
    pub node_id: NodeId,
    /// The last word of the path.
    pub route: &'static str,
    pub proven: CallerProof,
    pub request: Request,
}

impl NodeAdmission {
    /// For a function that answers at these routes.
    pub fn new(routes: &'static [&'static str], credentials: NodeCredentials, cluster: ClusterName) -> Self {
        Self { routes, credentials, cluster, rate: RateLimit::default() }
    }

    /// The request in an event, if it is at one of the routes, its credential is that of the node, and the node does not call too
    /// often.
    pub fn admit(&self, event: &Value, now: Time) -> Result<Admitted, HttpError> {
        let Some(request) = Request::from_event(event) else {
            let message = format!("this function answers requests of nodes: POST {}", paths(self.routes));
            return Err(HttpError::new(ErrorCode::BadRequest, message));
        };
        let (node_id, route) = request.route(self.routes)?;
        let proven = self.credentials.check(&request, &self.cluster, node_id)?;
        if !self.rate.allows(node_id, now) {
            let message = format!("node {node_id} calls more than {MOST_CALLS} times in {WINDOW}: call less often");
            return Err(HttpError::new(ErrorCode::Busy, message));
        }
        Ok(Admitted { node_id, route, proven, request })
    }
}

/// The policy by which a request is answered, and the entries that came with it. Without a valid policy the answer is 503: the
/// node tries again.
pub async fn policy_now(store: &Store) -> Result<(Policy, Control), HttpError> {
    let control = store.ingest_control().await.map_err(internal)?;
    let (policy, _) = control.checked_policy().map_err(|e| HttpError::new(ErrorCode::Busy, e.to_string()))?;
    Ok((policy, control))
}

/// The record of the caller, if the slot's current life is the caller's. The credential was checked before.
///
/// The answer is 410 only if the caller's life is certainly over: it was cleaned, or the slot has or had a later
/// life. If there is no record, or it has an older life than the caller's, the table was restored from a backup. Then
/// the answer is 503, because a 410 would power off the whole fleet.
pub fn standing(record: Option<NodeRecord>, node: NodeId, proven: &CallerProof) -> Result<NodeRecord, HttpError> {
    let busy = || {
        HttpError::new(
            ErrorCode::Busy,
            format!("the record of node {node} does not exist or is of an older life: try again"),
        )
    };
    let gone = |why: &str| Err(HttpError::new(ErrorCode::Gone, format!("the life of node {node} is over: {why}")));
    let record = record.ok_or_else(busy)?;
    if let model::NodeState::Cleaned { last_node_id } = &record.state {
        return match last_node_id {
            Some(last) if last.ulid() >= node.ulid() => gone(&record.reason),
            _ => Err(busy()),
        };
    }
    match record.life() {
        Some(life) if life.node_id == node => {
            let foreign = |p: &str| life.instance_id.as_ref().is_some_and(|known| known != p);
            if proven.instance().is_some_and(foreign) {
                let message = format!("node {node} belongs to another instance than the caller");
                return Err(HttpError::new(ErrorCode::ForeignInstance, message));
            }
            Ok(record)
        }
        Some(life) if life.node_id.ulid() > node.ulid() => gone("its slot has a later life"),
        _ => Err(busy()),
    }
}

/// The refusal that makes an agent register again.
pub fn wrong_incarnation(why: &str) -> HttpError {
    HttpError::new(ErrorCode::WrongIncarnation, format!("{why}: register again with a heartbeat without incarnation"))
}

#[derive(Clone, Copy, Debug)]
pub struct ReportStamp<'a> {
    pub incarnation: &'a str,
    /// The highest `seq` that the agent had applied before it began to list.
    pub as_of: u64,
    pub report_no: u64,
    pub counter: ReportCounter,
}

/// The record of the node, if it may report now: it must be in a state that allows reports, and the report must be of
/// the current incarnation and not stale. A report that knows more than the table makes the agent register again.
pub fn reporting(record: NodeRecord, node: NodeId, claim: ReportStamp<'_>) -> Result<NodeRecord, HttpError> {
    let not_ready = |status: &str| {
        let what = match claim.counter {
            ReportCounter::Allocs => "update allocs",
            ReportCounter::Handles => "report handles",
        };
        let message = format!("node {node} may not {what} while {status}: heartbeat first");
        Err(HttpError::new(ErrorCode::NotReady, message))
    };
    let Some(contact) = record.contact() else { return not_ready(record.state_name().as_str()) };
    if contact.incarnation != claim.incarnation {
        return Err(wrong_incarnation("the report is from another incarnation"));
    }
    if record.life().is_some_and(|l| claim.as_of > l.seq) {
        return Err(wrong_incarnation("the agent knows more than the table, which was restored from a backup"));
    }
    let taken = match claim.counter {
        ReportCounter::Allocs => contact.alloc_report_no,
        ReportCounter::Handles => contact.handle_report_no,
    };
    if claim.report_no < taken {
        let message = format!("report {} is older than {taken}, which was taken", claim.report_no);
        return Err(HttpError::new(ErrorCode::StaleReport, message));
    }
    if !record.may_update_allocs() {
        return not_ready(contact.status.as_str());
    }
    Ok(record)
}

/// The most bytes that one list of an answer takes, unless its first entry alone takes more. Lambda refuses an answer above
/// 6 MB, and the caller would never get it.
pub const MAX_LIST_BYTES: usize = 1024 * 1024;

/// How many bytes a part of the body takes in the answer: the body is JSON within a text of JSON, where each quote and each
/// backslash is escaped once more.
pub fn bytes_in_answer(part: &impl Serialize) -> usize {
    let json = model::left_out::to_json(part).unwrap_or_default().to_string();
    json.len() + json.matches(['"', '\\']).count()
}

/// The first entries of a list, as many as take at most [`MAX_LIST_BYTES`] in the answer, and at least one.
pub fn first_part<T: Serialize>(mut list: Vec<T>) -> Vec<T> {
    let mut bytes = 0;
    let fits = list.iter().take_while(|entry| {
        bytes += bytes_in_answer(entry);
        bytes <= MAX_LIST_BYTES
    });
    let fits = fits.count().max(1);
    list.truncate(fits);
    list
}

/// The answer of the function URL.
pub fn answer<T: Serialize>(result: Result<T, HttpError>) -> Value {
    let (status, body, retry) = match result {
        Ok(body) => (200, model::left_out::to_json(&body).map(|body| body.to_string()), false),
        Err(refusal) => {
            let body = ErrorBody { error: refusal.code, message: refusal.message };
            (refusal.code.status(), serde_json::to_string(&body), refusal.code == ErrorCode::Busy)
        }
    };
    let mut headers = json!({"content-type": "application/json"});
    if let (true, Some(headers)) = (retry, headers.as_object_mut()) {
        headers.insert("retry-after".into(), RETRY_AFTER_S.to_string().into());
    }
    // This cannot fail: everything in the types of `model::wire` can be written as JSON.
    let (status, body) = body.map_or_else(
        |_| (500, r#"{"error":"internal","message":"the answer cannot be written"}"#.to_owned()),
        |body| (status, body),
    );
    // Lambda does not need `cookies`, but the function URLs of cargo-lambda do.
    json!({"statusCode": status, "headers": headers, "body": body, "isBase64Encoded": false, "cookies": []})
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures::{self, at};

    fn event(method: &str, path: &str, body: &str) -> Value {
        json!({"requestContext": {"http": {"method": method, "path": path}}, "rawPath": path,
               "headers": {"Authorization": "Bearer abc"}, "body": body})
    }

    fn refused(method: &str, path: &str) -> u16 {
        Request::from_event(&event(method, path, "")).unwrap().route(&["heartbeat"]).unwrap_err().code.status()
    }

    #[test]
    fn unknown_paths_and_methods_are_told_apart() {
        let node = fixtures::node_id(1);
        assert_eq!(refused("POST", "/"), 404);
        assert_eq!(refused("POST", &format!("/v1/nodes/{node}/heartbeats")), 404);
        assert_eq!(refused("POST", &format!("/v1/nodes/{node}/heartbeat/x")), 404);
        assert_eq!(refused("GET", &format!("/v1/nodes/{node}/heartbeat")), 405);
        assert_eq!(refused("POST", "/v1/nodes/nobody/heartbeat"), 400);
        assert!(Request::from_event(&json!({"dry_run": true})).is_none());
        assert!(Request::from_event(&json!([])).is_none());
    }

    #[test]
    fn bodies_have_a_limit_and_must_be_right() {
        let large = "x".repeat(MAX_BODY_BYTES + 1);
        let request = Request::from_event(&event("POST", "/", &large)).unwrap();
        assert_eq!(request.body::<Value>().unwrap_err().code.status(), 413);
        let mut encoded = event("POST", "/", "%%%");
        encoded["isBase64Encoded"] = json!(true);
        assert_eq!(Request::from_event(&encoded).unwrap().body::<Value>().unwrap_err().code.status(), 400);
        let truncated = Request::from_event(&event("POST", "/", "{\"a\":")).unwrap();
        assert_eq!(truncated.body::<Value>().unwrap_err().code.status(), 400);
    }

    #[test]
    fn gone_only_if_the_life_is_over_for_certain() {
        let caller = fixtures::node_id(3);
        let code = |record| standing(record, caller, &CallerProof::Token).err().map(|r| r.code);
        assert_eq!(code(None), Some(ErrorCode::Busy));
        assert_eq!(code(Some(fixtures::ready(3))), None);
        assert_eq!(code(Some(fixtures::assigned(3).clean(at(1), "over").unwrap())), Some(ErrorCode::Gone));
        let mut older = fixtures::new_life(3);
        older.node_id = model::ids::NodeId::new(fixtures::slot(3), ulid::Ulid::from_parts(1, 1));
        let older = NodeRecord::assign(fixtures::slot(3), None, older, at(0), "x").unwrap();
        assert_eq!(code(Some(older.clone())), Some(ErrorCode::Busy), "a restored table");
        assert_eq!(code(Some(older.clean(at(1), "x").unwrap())), Some(ErrorCode::Busy), "a restored table");
        let mut later = fixtures::new_life(3);
        later.node_id = model::ids::NodeId::new(fixtures::slot(3), ulid::Ulid::from_parts(1 << 41, 1));
        let later = NodeRecord::assign(fixtures::slot(3), None, later, at(0), "x").unwrap();
        assert_eq!(code(Some(later)), Some(ErrorCode::Gone));
        let foreign = standing(Some(fixtures::ready(3)), caller, &CallerProof::Instance("i-99".into())).unwrap_err();
        assert_eq!(foreign.code, ErrorCode::ForeignInstance);
    }

    #[test]
    fn a_token_counts_for_its_node_only() {
        let (cluster, node): (ClusterName, _) = ("c".parse().unwrap(), fixtures::node_id(3));
        let key: NodeKey = "0f".repeat(32).parse().unwrap();
        let check = |authorization: String, node| {
            let mut event = event("POST", "/", "");
            event["headers"]["Authorization"] = json!(authorization);
            NodeCredentials::Token(key.clone())
                .check(&Request::from_event(&event).unwrap(), &cluster, node)
                .map_err(|e| e.code)
        };
        let token = key.token(&cluster, node);
        assert_eq!(check(format!("Bearer {token}"), node), Ok(CallerProof::Token));
        for (wrong, of) in [
            (format!("Bearer {token}"), fixtures::node_id(4)),
            (format!("Bearer {}", key.token(&cluster, fixtures::node_id(4))), node),
            (format!("Basic {token}"), node),
            ("Bearer ".to_owned(), node),
            (String::new(), node),
        ] {
            assert_eq!(check(wrong.clone(), of), Err(ErrorCode::Unauthorized), "{wrong}");
        }
    }

    #[test]
    fn a_signature_counts_for_the_nodes_role_only() {
        let role: NodeRole = "arn:aws:iam::123456789012:role/node".parse().unwrap();
        let (cluster, node): (ClusterName, _) = ("c".parse().unwrap(), fixtures::node_id(3));
        let check = |credentials: &NodeCredentials, iam: Value| {
            let mut event = event("POST", "/", "");
            event["requestContext"]["authorizer"] = json!({ "iam": iam });
            credentials.check(&Request::from_event(&event).unwrap(), &cluster, node).map_err(|e| e.code)
        };
        let iam = NodeCredentials::Iam(role);
        let arn = "arn:aws:sts::123456789012:assumed-role/node/i-0abc";
        assert_eq!(check(&iam, json!({"userArn": arn})), Ok(CallerProof::Instance("i-0abc".into())));
        for wrong in [
            // Another role whose session has the name of the victim.
            json!({"userArn": "arn:aws:sts::123456789012:assumed-role/other/i-0abc", "userId": "AROA1:i-0abc"}),
            json!({"userId": "AROA1:i-0abc"}),
            json!({"userArn": 1}),
            json!({}),
        ] {
            assert_eq!(check(&iam, wrong.clone()), Err(ErrorCode::Unauthorized), "{wrong}");
        }
        assert_eq!(check(&NodeCredentials::Nobody, json!({"userArn": arn})), Err(ErrorCode::Unauthorized));
    }
}
