//! The page that shows the system live, and the machines' metadata service.
//!
//! Guarantees: names and outputs appear on the page as text only, never as markup; the tables are read at most once in
//! 0.8 s, however many viewers there are.
//! Does not: change anything; the commands do.

use super::args::{Clock, LocalArgs, LocalEnv};
use super::credentials::{LocalCredentials, ROLE};
use super::directory::{REGION, sdk_config};
use super::machines::{LocalMachines, Metadata};
use crate::commands::Next;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Json, Response};
use axum::routing::{get, put};
use cloud::Ec2 as Cloud;
use ec2_stand_in::Ec2;
use lambda_stand_in::Lambda;
use model::batch::Batch;
use model::cloud::{BATCH_TAG, NODE_TAG, SIZE_TAG};
use model::functions::FUNCTIONS;
use model::ids::ClusterName;
use model::{Job, NodeRecord};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use store::{DbError, Store};
use tokio::net::TcpListener;
use tokio::sync::Mutex;
use tokio::time::Instant;

const HTML: &str = include_str!("page.html");
/// The greatest age of the shown state.
const FRESH: Duration = Duration::from_millis(800);
/// How many jobs, events and instances are shown: the newest ones.
const SHOWN: usize = 100;
/// The IMDSv2 token of every machine.
const TOKEN: &str = "local";

/// Everything that the page reads.
pub struct Page {
    store: Store,
    /// EC2 as the functions see it.
    cloud: Cloud,
    ec2: Arc<Ec2>,
    machines: LocalMachines,
    lambda: Option<Arc<Lambda>>,
    cluster: ClusterName,
    clock: Clock,
    last: Mutex<Option<(Instant, Value)>>,
    /// The credentials of the machines' role; absent if machines have no role.
    credentials: Option<Arc<LocalCredentials>>,
}

impl Page {
    /// The page, whose metadata service has these credentials.
    pub(super) fn with_credentials(self, credentials: Option<Arc<LocalCredentials>>) -> Self {
        Self { credentials, ..self }
    }

    pub(super) fn new(
        store: Store,
        ec2: Arc<Ec2>,
        ec2_at: SocketAddr,
        machines: LocalMachines,
        lambda: Option<Arc<Lambda>>,
        args: &LocalArgs,
        env: &LocalEnv,
    ) -> Self {
        let (cluster, clock) = (args.cluster.clone(), Arc::clone(&env.clock));
        let cloud = Cloud::connect(&sdk_config(ec2_at), cluster.clone());
        Self { store, cloud, ec2, machines, lambda, cluster, clock, last: Mutex::default(), credentials: None }
    }

    async fn state(&self) -> Result<Value, DbError> {
        let mut last = self.last.lock().await;
        if let Some((at, state)) = &*last
            && at.elapsed() < FRESH
        {
            return Ok(state.clone());
        }
        let state = self.read_state().await?;
        *last = Some((Instant::now(), state.clone()));
        Ok(state)
    }

    async fn read_state(&self) -> Result<Value, DbError> {
        let mut nodes = self.store.nodes_listed(1).await?.rows;
        nodes.sort_by_key(|n| n.slot);
        let mut jobs = self.store.jobs().await?;
        jobs.sort_by_key(|j| std::cmp::Reverse(j.summary.job_id));
        let mut counts = BTreeMap::<&str, u32>::new();
        for job in &jobs {
            *counts.entry(job.summary.state.as_str()).or_default() += 1;
        }
        let now = (self.clock)();
        // Without the next run, the page shows everything else.
        let next = Next::read(&self.store, &self.cloud, now).await.ok();
        let why = |job: &Job| next.as_ref().and_then(|n| n.of_job(job.summary.job_id));
        let next_of = |node: &NodeRecord| next.as_ref().and_then(|n| n.of_slot(node.slot));
        let mut events = self.store.events().await?;
        events.sort_by(|a, b| b.id.cmp(&a.id));
        let events = events
            .iter()
            .take(SHOWN)
            .map(|e| json!({"at": e.at(), "subject": e.subject, "action": e.action, "reason": e.reason}));
        let instances = self.ec2.instances().into_iter().rev().take(SHOWN).map(|i| {
            json!({
                "instance_id": i.instance_id, "state": i.state, "instance_type": i.instance_type, "market": i.market,
                "launched_at": i.launched_at, "node_id": node_of(&i), "size": i.tags.get(SIZE_TAG),
            })
        });
        Ok(json!({
            "cluster": self.cluster, "now": now,
            "slots": nodes.iter().map(|node| slot(node, next_of(node))).collect::<Vec<_>>(),
            "explained": next.as_ref().map(|n| n.plan.explained.answer()),
            "job_counts": counts,
            "jobs": jobs.iter().take(SHOWN).map(|j| job(j, why(j))).collect::<Vec<_>>(),
            "events": events.collect::<Vec<_>>(),
            "purposes": FUNCTIONS.iter().map(|f| (f.name, f.purpose)).collect::<BTreeMap<_, _>>(),
            "functions": self.lambda.as_ref().map(|lambda| lambda.stats()).unwrap_or_default(),
            "instances": instances.collect::<Vec<_>>(),
        }))
    }
}

fn slot(node: &NodeRecord, next: Option<&str>) -> Value {
    let (life, contact) = (node.life(), node.contact());
    json!({
        "slot": node.slot, "state": node.state_name(), "reason": node.reason, "next": next, "modified_at": node.modified_at,
        "status": node.status(), "node_id": node.node_id(),
        "size": life.map(|l| &l.offering.size), "instance_id": life.and_then(|l| l.instance_id.as_ref()),
        "intent": life.map(|l| l.intent), "allocs": life.map(|l| &l.allocs),
        "last_ping_at": contact.map(|c| c.last_ping_at), "busy": contact.is_some_and(|c| c.busy),
    })
}

fn job(job: &Job, waits_because: Option<&str>) -> Value {
    let s = &job.summary;
    json!({
        "job_id": s.job_id, "name": s.name, "state": s.state, "priority": s.priority, "nodes": s.nodes,
        "vcpus": s.capacity.vcpus, "memory_mib": s.capacity.memory_mib, "reason": job.reason, "waits_because": waits_because,
        "submitted_at": s.submitted_at, "finished_at": job.finished_at,
        "command": job.work.command.join(" ").chars().take(200).collect::<String>(),
    })
}

/// Serves the page and the local secret until the listener fails or the future is dropped.
pub(super) async fn serve(listener: TcpListener, page: Page, secrets: Router) {
    let router = Router::new()
        .route("/", get(html))
        .route("/state.json", get(state))
        .route("/metadata/{instance_id}/latest/api/token", put(|| async { TOKEN }))
        .route("/metadata/{instance_id}/latest/meta-data/{*path}", get(metadata))
        .with_state(Arc::new(page))
        .merge(secrets);
    if let Err(error) = axum::serve(listener, router).await {
        tracing::error!(%error, "the page is no longer served: restart");
    }
}

async fn html() -> impl IntoResponse {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
    ([(header::CONTENT_SECURITY_POLICY, policy)], Html(HTML))
}

async fn state(State(page): State<Arc<Page>>) -> Response {
    match page.state().await {
        Ok(state) => Json(state).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({"error": error.to_string()}))).into_response(),
    }
}

/// The node id of an instance: its tag, or its place in its batch.
fn node_of(instance: &ec2_stand_in::Instance) -> Option<String> {
    let alone = instance.tags.get(NODE_TAG).cloned();
    let batch = instance.tags.get(BATCH_TAG);
    alone.or_else(|| Some(Batch::node_in(batch?, instance.launch_index)?.to_string()))
}

/// The part of the instance metadata service that the agent uses ("Use IMDSv2", EC2 User Guide).
async fn metadata(
    State(page): State<Arc<Page>>,
    Path((instance_id, path)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<String, StatusCode> {
    if headers.get("x-aws-ec2-metadata-token").is_none_or(|token| token != TOKEN) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    let metadata = page.machines.metadata(&instance_id).ok_or(StatusCode::NOT_FOUND)?;
    match (path.strip_prefix("iam/security-credentials/"), &page.credentials) {
        (Some(""), Some(_)) => return Ok(ROLE.to_owned()),
        (Some(ROLE), Some(credentials)) => return Ok(credentials.of_instance(&instance_id).to_string()),
        _ => {}
    }
    entry(&instance_id, &metadata, &path).ok_or(StatusCode::NOT_FOUND)
}

fn entry(instance_id: &str, metadata: &Metadata, path: &str) -> Option<String> {
    match path {
        "instance-id" => Some(instance_id.to_owned()),
        "ami-launch-index" => Some(metadata.launch_index.to_string()),
        "placement/region" => Some(REGION.to_owned()),
        "local-ipv4" => Some(metadata.private_ip.clone()),
        "spot/instance-action" => {
            let time = jiff::Timestamp::from_millisecond(metadata.interrupt_at?.as_ms()).ok()?;
            Some(json!({"action": "terminate", "time": format!("{time:.0}")}).to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Time;

    #[test]
    fn the_metadata_service_reports_an_interruption_only_if_there_is_one() {
        let mut metadata = Metadata { private_ip: "10.0.0.4".into(), launch_index: 2, interrupt_at: None };
        assert_eq!(entry("i-1", &metadata, "spot/instance-action"), None);
        assert_eq!(entry("i-1", &metadata, "ami-launch-index").as_deref(), Some("2"));
        metadata.interrupt_at = Some(Time::from_ms(1_505_722_920_000));
        let action = entry("i-1", &metadata, "spot/instance-action").unwrap();
        assert_eq!(action, r#"{"action":"terminate","time":"2017-09-18T08:22:00Z"}"#);
        assert_eq!(entry("i-1", &metadata, "local-ipv4").as_deref(), Some("10.0.0.4"));
        assert_eq!(entry("i-1", &metadata, "iam/security-credentials"), None);
    }

    #[test]
    fn the_page_never_turns_data_into_markup_and_loads_nothing_from_elsewhere() {
        for bad in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "src=", "href=\"http", "@import"]
        {
            assert!(!HTML.contains(bad), "{bad}");
        }
    }
}
