//! Tells an instance of a batch which node of the batch it is.
//!
//! Guarantees: the answer is the node whose record names the instance, which never changes; a refusal with 410 means that no
//! record of the batch can name the instance any more.
//! Does not: bind; poll-and-scale does, when EC2 answers the launch or lists the instance.

use crate::Ingest;
use model::wire::{BindingAnswer, BindingRequest, ErrorCode};
use model::{Batch, NodeId, NodeRecord, NodeState};
use runtime::http::{CallerProof, HttpError, internal};

impl Ingest {
    pub(crate) async fn binding(
        &self,
        node_id: NodeId,
        proven: &CallerProof,
        request: &BindingRequest,
    ) -> Result<BindingAnswer, HttpError> {
        let BindingRequest { instance_id, batch } = request;
        if proven.instance().is_some_and(|id| id != instance_id) {
            let message = format!("the caller is not instance {instance_id}");
            return Err(HttpError::new(ErrorCode::ForeignInstance, message));
        }
        if !batch.nodes().any(|node| node == node_id) {
            let message = format!("node {node_id} is not one of batch {batch}");
            return Err(HttpError::new(ErrorCode::BadRequest, message));
        }
        let read = self.store.nodes_of(batch.slots().iter().copied()).await.map_err(internal)?;
        Ok(BindingAnswer { node_id: node_of(batch, instance_id, &read.rows)? })
    }
}

/// The node of this batch whose record names the instance. `records`: the readable records of its slots.
fn node_of(batch: &Batch, instance_id: &str, records: &[NodeRecord]) -> Result<NodeId, HttpError> {
    let lives = || records.iter().filter_map(NodeRecord::life).filter(|life| life.node_id.ulid() == batch.ulid());
    if let Some(own) = lives().find(|life| life.instance_id.as_deref() == Some(instance_id)) {
        return Ok(own.node_id);
    }
    // A record that is missing or older than the batch is from a table that was restored from a backup.
    let is_as_new = |record: &NodeRecord| {
        let newest = match &record.state {
            NodeState::Cleaned { last_node_id } => *last_node_id,
            NodeState::Assigned(_) | NodeState::InUse(_) | NodeState::ShuttingDown(_) => record.node_id(),
        };
        newest.is_some_and(|node_id| node_id.ulid() >= batch.ulid())
    };
    let is_whole = records.len() == batch.slots().len() && records.iter().all(is_as_new);
    if !is_whole || lives().any(|life| life.instance_id.is_none()) {
        let message = format!("no record names instance {instance_id} yet: try again");
        return Err(HttpError::new(ErrorCode::Busy, message));
    }
    let message = format!("every node of batch {batch} has another instance than {instance_id}, or is gone");
    Err(HttpError::new(ErrorCode::Gone, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{NewLife, fixtures};

    #[test]
    fn an_instance_of_a_batch_is_the_node_whose_record_names_it() {
        let (ulid, slots) = (fixtures::node_id(0).ulid(), [0, 1].map(fixtures::slot));
        let batch = Batch::of_lowest(ulid, slots.to_vec()).unwrap();
        let nodes: Vec<NodeId> = batch.nodes().collect();
        let of = |n: usize, batch: &Batch| {
            let life = NewLife { node_id: nodes[n], batch: Some(batch.clone()), ..fixtures::new_life(0) };
            NodeRecord::assign(nodes[n].slot(), None, life, fixtures::at(0), "").unwrap()
        };
        let bound = |n: usize| {
            let instance = fixtures::new_instance(&format!("i-{n}"));
            of(n, &batch).bind(&instance, fixtures::at(1)).unwrap()
        };
        let ask =
            |instance: &str, records: &[NodeRecord]| node_of(&batch, instance, records).map_err(|refusal| refusal.code);
        for (records, why) in [
            (vec![], "the table was restored: no record"),
            (vec![of(0, &batch), of(1, &batch)], "no record names an instance"),
            (vec![bound(1), of(0, &batch)], "one record names no instance"),
            (vec![bound(1)], "one record cannot be read"),
        ] {
            assert_eq!(ask("i-0", &records), Err(ErrorCode::Busy), "{why}");
        }
        let both = [bound(0), bound(1)];
        assert_eq!([ask("i-0", &both), ask("i-1", &both)], [Ok(nodes[0]), Ok(nodes[1])]);
        assert_eq!(ask("i-2", &both), Err(ErrorCode::Gone), "both nodes have another instance");
        let ended = [bound(0).clean(fixtures::at(2), "gone").unwrap(), bound(1)];
        assert_eq!(ask("i-0", &ended), Err(ErrorCode::Gone), "its node is gone");
    }
}
