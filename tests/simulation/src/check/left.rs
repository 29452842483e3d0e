//! What has not ended in a world: jobs, allocs, records, handles and instances.

use super::{Check, is_ended, is_final, node_id, set, text, time};
use crate::core::lock;
use crate::database::Model;
use crate::ec2::Real;
use model::{AllocId, NodeId};
use std::collections::BTreeSet;
use store::{Row, Table, alloc_key, handle_key, to_json};

/// The attributes that show why a job may still wait.
const WANTS: [&str; 4] = ["job_id", "state", "priority", "needs"];

impl Check {
    /// Everything that should have ended and has not, one line each; `None` if all has ended. `min` is the number of
    /// nodes that must stay.
    pub fn what_is_left(&self, model: &Model, min: u32) -> Option<String> {
        let mut left = jobs_left(model);
        let up: Vec<&Row> = model.rows(Table::Nodes).filter(|r| text(r, "state") != Some("cleaned")).collect();
        if up.len() != min as usize {
            left.push(format!("{} records are not cleaned and nodes.min is {min}", up.len()));
            left.extend(up.iter().map(|r| {
                let word = |name: &str| text(r, name).unwrap_or("–").to_owned();
                ["node_id", "size", "state", "status", "intent", "reason"].map(word).join(" ")
            }));
        }
        let lives: BTreeSet<NodeId> = up.iter().filter_map(|r| node_id(r)).collect();
        left.extend(handles_of_ended_nodes(model, &lives));
        left.extend(self.handles_of_ended_allocs(model));
        left.extend(self.rows_without_a_handle(model));
        let instances: Vec<Real> = self.ec2()?.real().into_iter().filter(Real::is_live).collect();
        for real in instances.iter().filter(|r| !r.owners().iter().any(|node| lives.contains(node))) {
            left.push(format!(
                "instance {} of {} is {:?}",
                real.instance.instance_id,
                real.owner(),
                real.instance.state
            ));
        }
        (!left.is_empty()).then(|| left.join("\n  "))
    }

    /// An ended alloc leaves nothing on its node.
    fn handles_of_ended_allocs(&self, model: &Model) -> Vec<String> {
        let mut left = Vec::new();
        for ground in lock(&self.seen).by_node.values() {
            let ground = lock(ground);
            for handle in &ground.handles {
                let Ok(id) = handle.parse::<AllocId>() else { continue };
                let row = model.get(&handle_key(ground.node_id, handle));
                if model.get(&alloc_key(id)).is_none_or(|a| is_final(a)) {
                    left.push(format!("handle {handle} is still on {}: {row:?}", ground.node_id));
                }
            }
        }
        left
    }

    /// A live row has its handle on the node. Tombstones need none.
    fn rows_without_a_handle(&self, model: &Model) -> Vec<String> {
        let mut left = Vec::new();
        for row in model.rows(Table::Handles).filter(|r| text(r, "state") != Some("gone")) {
            let ground = node_id(row).and_then(|node| lock(&self.seen).by_node.get(&node).cloned());
            let handle = text(row, "handle").unwrap_or_default();
            if ground.is_some_and(|g| !lock(&g).handles.contains(handle)) {
                left.push(format!("handle {handle} is not on its node any more: {row:?}"));
            }
        }
        left
    }
}

/// Jobs that have not ended or still hold allocs, and allocs that are not final.
fn jobs_left(model: &Model) -> Vec<String> {
    let mut left = Vec::new();
    for row in model.rows(Table::Jobs).filter(|r| !is_ended(r) || !set(r).is_empty()) {
        let brief = to_json(row);
        let wants: Vec<String> = WANTS.iter().filter_map(|n| Some(format!("{n} {}", brief.get(*n)?))).collect();
        left.push(format!("job: {}, allocs {:?}", wants.join(", "), set(row)));
    }
    for row in model.rows(Table::Allocs).filter(|r| !is_final(r)) {
        left.push(format!("alloc {:?} is {:?}", text(row, "alloc_id"), text(row, "client")));
    }
    left
}

fn handles_of_ended_nodes(model: &Model, lives: &BTreeSet<NodeId>) -> Vec<String> {
    let of_ended = |row: &&Row| node_id(row).is_none_or(|n| !lives.contains(&n));
    let line = |row: &Row| {
        format!(
            "handle {:?} of {:?} is {:?}, due {:?}",
            text(row, "handle"),
            text(row, "node_id"),
            text(row, "state"),
            time(row, "due_at").map(|t| t.to_string())
        )
    };
    model.rows(Table::Handles).filter(of_ended).map(line).collect()
}
