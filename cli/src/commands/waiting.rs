//! Why a job waits: what the next run would do with it, and what stops new nodes.
//!
//! Guarantees: says the same as poll-and-scale's plan at this moment. Does not: decide anything itself.

use super::show::{rough, several};
use model::ActionName;
use model::ids::JobId;
use model::time::Time;
use model::{JobState, NodeStateName, NodeStatus};
use runtime::observation::Observation;

/// Why this job is not placed, in one line. `None` if the job does not wait.
pub(super) fn because(seen: &Observation, job: JobId, now: Time) -> Option<String> {
    let state = seen.jobs.iter().find(|j| j.job_id == job)?.state;
    let plan = poll_and_scale::plan(seen, now).answer();
    if let Some(row) = plan.actions.iter().find(|row| row.job_id == Some(job) && row.alloc_id.is_none()) {
        return Some(format!("the next run would {}: {}", row.action.as_str().replace('_', " "), row.reason));
    }
    match state {
        JobState::Regrouping => {
            return Some("its members that still run are stopping: it starts again after them".into());
        }
        JobState::Queued => {}
        _ => return None,
    }
    let mut parts = vec!["no ready node has room for it".to_owned()];
    let launches = plan.actions.iter().filter(|row| row.action == ActionName::Launch).count();
    if launches > 0 {
        parts.push(format!("the next run would launch {}", several(launches, "node")));
    }
    let count = |wanted: &dyn Fn(&model::NodeRecord) -> bool| seen.nodes.iter().filter(|n| wanted(n)).count();
    let starting = count(&|n| n.state_name() == NodeStateName::Assigned || n.status() == Some(NodeStatus::Syncing));
    if starting > 0 {
        parts.push(format!("{} on the way", several(starting, "node")));
    }
    let up = count(&|n| !n.is_cleaned());
    let policy = &seen.policy.nodes;
    if up >= policy.max as usize {
        parts.push(format!("all {} nodes that nodes.max allows are there", policy.max));
    } else if launches == 0 && starting == 0 {
        let pauses: Vec<String> = seen
            .control
            .limits(now)
            .iter()
            .filter_map(|limit| Some(format!("{limit}, for {} more", rough(limit.until_at()?.since(now)))))
            .collect();
        if pauses.is_empty() {
            parts.push("jobs before it come first, or a cap of the policy is reached (`nodekeeper plan`)".to_owned());
        } else {
            parts.push(format!("launching waits: {}", pauses.join("; ")));
        }
    }
    Some(parts.join("; "))
}
