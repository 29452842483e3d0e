//! The changes of `top`: it cancels a job or drains a node, as `cancel` and `drain` do.
//!
//! Guarantees: only what the question named is changed: a later node of the same slot is not drained.

use crate::changes::operate::retention;
use crate::changes::{Life, cancel, cancelled_line, change_intent};
use crate::console::show::{one_line, several};
use crate::console::{Clock, Cluster};
use crate::view::find::short;
use crate::view::{JobRow, NodeRow};
use model::Intent;
use model::ids::{JobId, NodeId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OperatorAction {
    Cancel { job: JobId, name: Option<String>, slots: usize },
    Drain { node: NodeId, allocs: usize },
}

impl OperatorAction {
    /// The cancellation of a job, or why it cannot be cancelled.
    pub(super) fn cancel(row: &JobRow) -> Result<Self, String> {
        if row.state.is_ended() {
            return Err(format!("job {} cannot be cancelled: it has ended already ({})", short(row.job_id), row.state));
        }
        Ok(Self::Cancel { job: row.job_id, name: row.name.clone(), slots: row.slots.len() })
    }

    /// The drain of a node, or why it cannot be drained.
    pub(super) fn drain(row: &NodeRow) -> Result<Self, String> {
        match (row.node_id, row.intent) {
            (None, _) => Err(format!("slot {} has no node", row.slot)),
            (Some(_), Some(Intent::Drain)) => Err(format!("slot {} is being drained already", row.slot)),
            (Some(node), _) => Ok(Self::Drain { node, allocs: row.allocs }),
        }
    }

    /// The question. It says what will happen.
    pub(super) fn question(&self) -> String {
        match self {
            Self::Cancel { job, name, slots } => {
                let name = name.as_ref().map(|name| format!(" {}", one_line(name))).unwrap_or_default();
                let stops = match slots {
                    0 => "It will not run".to_owned(),
                    n => format!("It is stopped on {} and does not run again", several(n, "node")),
                };
                format!("Cancel job {}{name}? {stops}.", short(*job))
            }
            Self::Drain { node, allocs } => {
                let first = match allocs {
                    0 => "and is shut down".to_owned(),
                    n => format!(
                        "and is shut down when its {} ended",
                        if *n == 1 { "alloc has".into() } else { format!("{n} allocs have") }
                    ),
                };
                format!("Drain slot {}? It takes no new work {first}.", node.slot())
            }
        }
    }

    /// Performs the change. Returns what was done.
    pub(super) async fn perform(&self, cluster: &Cluster, clock: &Clock) -> anyhow::Result<String> {
        match self {
            Self::Cancel { job, .. } => {
                let keep = retention(cluster).await?;
                match cancel(cluster, *job, keep, clock).await? {
                    Ok(cancelled) => Ok(cancelled_line(&cancelled)),
                    Err(state) => anyhow::bail!("job {} has ended already ({state})", short(*job)),
                }
            }
            Self::Drain { node, .. } => {
                let slot = node.slot();
                Ok(if change_intent(cluster, Life::Only(*node), Intent::Drain, None, clock()).await? {
                    format!("slot {slot} drains: it takes no new work and is shut down when idle")
                } else {
                    format!("nothing changed: slot {slot} is being drained already")
                })
            }
        }
    }
}
