//! A cluster with two lives, into which the states are put.

use crate::world::all_rows::AllRows;
use crate::world::raw::Raw;
use crate::world::{World, lonely_job, patient_policy};
use model::{AllocId, JobId, NodeId};
use std::collections::BTreeMap;

/// A job that runs on a node of its own.
#[derive(Clone)]
pub struct Life {
    pub job: JobId,
    pub alloc: AllocId,
    pub node: NodeId,
    pub instance: String,
}

pub struct Town {
    pub world: World,
    pub raw: Raw,
    pub broken: Life,
    pub neighbour: Life,
}

impl Town {
    pub async fn new() -> Self {
        let mut world = World::with(patient_policy(), ec2_stand_in::Ec2Settings::default()).await;
        let ids = [world.submit(lonely_job()).await.summary.job_id, world.submit(lonely_job()).await.summary.job_id];
        for _ in 0..30 {
            world.step().await;
            let allocs = world.look.live_allocs().await.unwrap();
            let runs = allocs.iter().filter(|alloc| alloc.client == model::ClientStatus::Running);
            let lives: BTreeMap<JobId, (AllocId, NodeId)> =
                runs.map(|alloc| (alloc.alloc_id.job_id, (alloc.alloc_id, alloc.node_id))).collect();
            if let [Some(first), Some(second)] = ids.map(|id| lives.get(&id).copied()) {
                // The reports after the start of the work have arrived too.
                for _ in 0..4 {
                    world.step().await;
                }
                let raw = Raw::of(&world);
                let broken = life(&world, first).await;
                let neighbour = life(&world, second).await;
                // Some states break the rows of handles.
                world.make_row(broken.alloc).await;
                world.make_row(neighbour.alloc).await;
                return Self { world, raw, broken, neighbour };
            }
        }
        panic!("the jobs never ran");
    }
}

async fn life(world: &World, (alloc, node): (AllocId, NodeId)) -> Life {
    let record = world.record(node).await;
    let instance = record.life().unwrap().instance_id.clone().unwrap();
    Life { job: alloc.job_id, alloc, node, instance }
}
