//! The page of the local system, and the machines' metadata service.
//!
//! Guarantees: the page is the same as that of any other cluster (`web`); it also shows the processes of this machine.
//! Does not: change anything; the commands do.

use super::access::{Gates, programs_only};
use super::directory::REGION;
use super::functions::Functions;
use super::machines::LocalMachines;
use super::machines::credentials::{self, ROLE};
use crate::view::{Extra, ViewSource};
use crate::web;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, put};
use ec2_stand_in::{Ec2Region, MachineStart};
use listener::Callers;
use model::Time;
use model::cloud::{NODE_TAG, SIZE_TAG};
use rights_stand_in::{Sessions, date};
use serde_json::json;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// How many instances are shown: the newest ones.
const SHOWN: usize = 100;
/// The IMDSv2 token of every machine.
const TOKEN: &str = "local";

/// The page, and the data of the metadata service.
pub(super) struct LocalPage {
    pub(super) source: ViewSource,
    pub(super) machines: LocalMachines,
    /// The sessions of the machines' role; absent if machines have no role.
    pub(super) sessions: Option<Arc<Sessions>>,
}

/// The functions and the instances of this machine.
pub(super) fn processes(ec2: Arc<Ec2Region>, functions: Option<Arc<Functions>>) -> Extra {
    Arc::new(move || {
        let instances = ec2.instances().into_iter().rev().take(SHOWN).map(|i| {
            json!({
                "instance_id": i.instance_id, "state": i.state, "instance_type": i.instance_type, "market": i.market,
                "launched_at": i.launched_at, "node_id": i.tags.get(NODE_TAG), "size": i.tags.get(SIZE_TAG),
            })
        });
        json!({
            "functions": functions.as_ref().map(|functions| functions.stats()).unwrap_or_default(),
            "instances": instances.collect::<Vec<_>>(),
        })
    })
}

/// Serves the page until the task is aborted.
pub(super) fn serve(listener: TcpListener, page: LocalPage, access: &Gates, tasks: &mut JoinSet<()>) {
    let shown = web::router(page.source.clone());
    let metadata = Router::new()
        .route("/metadata/{instance_id}/latest/api/token", put(|| async { TOKEN }))
        .route("/metadata/{instance_id}/latest/meta-data/{*path}", get(metadata))
        .with_state(Arc::new(page));
    access.serve("the page", listener, Callers::Owner, programs_only(metadata).merge(shown), tasks);
}

/// The part of the instance metadata service that the agent uses ("Use IMDSv2", EC2 User Guide).
async fn metadata(
    State(page): State<Arc<LocalPage>>,
    Path((instance_id, path)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<String, StatusCode> {
    if headers.get("x-aws-ec2-metadata-token").is_none_or(|token| token != TOKEN) {
        return Err(StatusCode::UNAUTHORIZED);
    }
    let (start, interrupt_at) = page.machines.metadata(&instance_id).ok_or(StatusCode::NOT_FOUND)?;
    match (path.strip_prefix("iam/security-credentials/"), &page.sessions) {
        (Some(""), Some(_)) => return Ok(ROLE.to_owned()),
        (Some(ROLE), Some(sessions)) => {
            return Ok(credentials::of_instance(sessions, &instance_id, (page.source.clock)()).to_string());
        }
        _ => {}
    }
    entry(&start, interrupt_at, &path).ok_or(StatusCode::NOT_FOUND)
}

fn entry(start: &MachineStart, interrupt_at: Option<Time>, path: &str) -> Option<String> {
    match path {
        "instance-id" => Some(start.instance_id.clone()),
        "placement/region" => Some(REGION.to_owned()),
        "local-ipv4" => Some(start.private_ip.clone()),
        "spot/instance-action" => Some(json!({"action": "terminate", "time": date(interrupt_at?)}).to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_metadata_service_reports_an_interruption_only_if_there_is_one() {
        let start = MachineStart {
            instance_id: "i-1".into(),
            instance_type: "t3.small".into(),
            private_ip: "10.0.0.4".into(),
            user_data: String::new(),
            tags: Default::default(),
        };
        let entry = |at: Option<i64>, path: &str| super::entry(&start, at.map(Time::from_ms), path);
        assert_eq!(entry(None, "spot/instance-action"), None);
        let action = entry(Some(1_505_722_920_000), "spot/instance-action").unwrap();
        assert_eq!(action, r#"{"action":"terminate","time":"2017-09-18T08:22:00Z"}"#);
        assert_eq!(entry(None, "local-ipv4").as_deref(), Some("10.0.0.4"));
        assert_eq!(entry(None, "iam/security-credentials"), None);
    }
}
