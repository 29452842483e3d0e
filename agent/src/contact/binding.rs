//! Which node of its batch the instance is.
//!
//! Guarantees: an answer is kept on disk, so that an agent that starts again needs no control plane; an answer that belongs to
//! another instance is not used.
//! Does not: choose. The control plane binds instances to nodes, and the agent asks until it has done so.

use super::backoff::{self, LastCalls};
use super::client::{CallError, ControlPlaneClient};
use crate::machine::data_dir::{Bound, DataDir};
use model::wire::{BindingAnswer, BindingRequest, ErrorCode};
use model::{Batch, NodeId};

/// The node that this instance is; `None` if the instance is no longer in its batch. Asks until there is an answer.
pub(crate) async fn node_of(
    batch: &Batch,
    instance_id: &str,
    data_dir: &DataDir,
    client: &ControlPlaneClient,
    url: &str,
) -> anyhow::Result<Option<NodeId>> {
    let is_own = |bound: &Bound| bound.instance_id == instance_id && bound.node_id.ulid() == batch.ulid();
    if let Some(bound) = data_dir.bound()?.filter(is_own) {
        return Ok(Some(bound.node_id));
    }
    let request = BindingRequest { instance_id: instance_id.to_owned(), batch: batch.clone() };
    let mut attempts: u32 = 0;
    loop {
        let asked: Result<BindingAnswer, CallError> = client.post(url, "binding", &request).await;
        let error = match asked {
            Ok(BindingAnswer { node_id }) => {
                data_dir.save_bound(&Bound { instance_id: instance_id.to_owned(), node_id })?;
                return Ok(Some(node_id));
            }
            Err(error) if error.code == Some(ErrorCode::Gone) => {
                tracing::warn!(%error, "this instance is no longer a node of its batch");
                return Ok(None);
            }
            Err(error) => error,
        };
        attempts = attempts.saturating_add(1);
        let wait = backoff::wait(LastCalls::Never { attempts }, error.retry_after);
        if attempts.is_power_of_two() {
            tracing::warn!(attempts, retry_in_s = wait.as_secs(), %error, "this instance is not bound to a node yet");
        }
        tokio::time::sleep(wait).await;
    }
}
