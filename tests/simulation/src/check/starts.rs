//! The invariants of processes that start on the machines.

use super::{Check, count, is_ended, is_final, is_true, is_wanted, node_id, text, time};
use crate::core::lock;
use crate::database::Model;
use aws_sdk_dynamodb::types::AttributeValue;
use model::wire::AllocOrder;
use model::{AllocId, NodeId};
use store::{Item, alloc_key, job_key};

impl Check {
    /// Called when the process of an alloc starts.
    pub fn started(&self, model: &Model, node: NodeId, order: &AllocOrder) {
        self.invariant_no_gpu_has_two_allocs(node, order);
        let id = order.alloc_id;
        self.core.count("a process started");
        self.invariant_a_node_is_told_what_was_submitted(model, order);
        self.invariant_members_start_together(model, order);
        self.invariant_an_alloc_starts_once(model, node, id);
        self.invariant_no_member_runs_twice_at_once(model, node, id);
    }

    /// The order that a node gets agrees with the alloc's job.
    fn invariant_a_node_is_told_what_was_submitted(&self, model: &Model, order: &AllocOrder) {
        let key = job_key(order.alloc_id.job_id);
        let Some(job) = model.get(&key).cloned().filter(|_| !self.is_spoiled(&key)) else { return };
        let list = |name: &str| -> Vec<String> {
            let of = |v: &AttributeValue| v.as_s().cloned().unwrap_or_default();
            super::row::said(&job, name)
                .and_then(|l| l.as_l().ok())
                .map(|l| l.iter().map(of).collect())
                .unwrap_or_default()
        };
        let number = |name: &str| count(&job, name).unsigned_abs();
        let right = list("command") == order.work.command
            && list("caches") == order.work.caches
            && (number("kill_timeout_s"), number("timeout_s"))
                == (order.failure_policy.kill_timeout_s, order.work.timeout_s);
        if !right {
            self.broken("invariant_a_node_is_told_what_was_submitted", format!("{order:?} of {job:?}"));
        }
    }

    /// Whether this alloc is live on this node, and its job wants it.
    pub fn is_wanted_on(&self, model: &Model, id: AllocId, node: NodeId) -> bool {
        let alloc = model.get(&alloc_key(id)).filter(|row| node_id(row) == Some(node) && !is_final(row));
        let is_told = alloc.is_none_or(|row| text(row, "desired") == Some("stop"));
        !is_told && model.get(&job_key(id.job_id)).is_some_and(|job| !is_ended(job))
    }

    /// A node gets credentials only of a wanted job that runs there: at its request, or at the answer.
    pub fn invariant_credentials_are_of_what_runs_there(&self, model: &Model, before: bool, id: AllocId, node: NodeId) {
        if !before && !self.is_wanted_on(model, id, node) && !self.forgets_job(model, id.job_id) {
            let row = model.get(&alloc_key(id)).cloned();
            self.broken("invariant_credentials_are_of_what_runs_there", format!("{node} got those of {id}: {row:?}"));
        }
    }

    /// No member of a job starts before all of its members are placed.
    fn invariant_members_start_together(&self, model: &Model, order: &AllocOrder) {
        let id = order.alloc_id;
        let is_placed = order.needs.nodes == 1 || lock(&self.seen).placed_together.contains(&id);
        if !is_placed && !self.forgets_job(model, id.job_id) {
            let job = model.get(&job_key(id.job_id)).cloned();
            self.broken("invariant_members_start_together", format!("{id} starts before the others: {job:?}"));
        }
    }

    /// The process of an alloc starts at most once, even if its node forgets it. A second attempt is another copy,
    /// if the job allows one.
    fn invariant_an_alloc_starts_once(&self, model: &Model, node: NodeId, id: AllocId) {
        if !lock(&self.seen).started.insert(id) && !self.forgets_job(model, id.job_id) {
            self.broken(
                "invariant_an_alloc_starts_once",
                format!("{id} on {node}: {:?}", model.get(&alloc_key(id)).cloned()),
            );
        }
    }

    /// No two copies of a member run at once, unless the control plane gave up one of them: it is unknown, lost, told
    /// to stop, or ended.
    fn invariant_no_member_runs_twice_at_once(&self, model: &Model, node: NodeId, id: AllocId) {
        let grounds: Vec<_> = lock(&self.seen).by_node.iter().map(|(n, g)| (*n, g.clone())).collect();
        for (other_node, ground) in grounds {
            let running: Vec<AllocId> = lock(&ground).running.iter().copied().collect();
            for other in running {
                let same_member = (other.job_id, other.member) == (id.job_id, id.member);
                if !same_member || (other == id && other_node == node) {
                    continue;
                }
                let row = model.get(&alloc_key(other)).cloned();
                // What is told to stop still saves its work. With `replace`, a copy runs beside it.
                let stops = |r: &Item| text(r, "desired") == Some("stop") && !is_final(r) && !is_true(r, "replace");
                let given_up = row.as_deref().is_none_or(|r| !is_wanted(r) && !stops(r)) && other != id;
                let mine = model.get(&alloc_key(id)).cloned();
                let mine_given_up = mine.as_deref().is_none_or(|r| !is_wanted(r));
                // If one alloc is on two nodes, a restore has forgotten its first placement, however long ago. The
                // first node ends as an orphan.
                let submitted_at = model.get(&job_key(id.job_id)).and_then(|job| time(job, "submitted_at"));
                let is_forgotten = other == id && self.was_restored_since(submitted_at);
                if !given_up && !mine_given_up && !is_forgotten && !self.forgets_job(model, id.job_id) {
                    self.broken(
                        "invariant_no_member_runs_twice_at_once",
                        format!("{id} starts on {node} while {other} runs on {other_node}: {row:?}"),
                    );
                }
            }
        }
    }
}
