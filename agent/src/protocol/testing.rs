//! Values that the tests of several modules start from.

use super::orders::Durable;
use crate::contact::s3_access::FilesSource;
use crate::machine::data_dir::DataDir;
use crate::rights::CredentialsPort;
use crate::runtime::Containers;
use crate::work::alloc_dir::AllocTask;
use crate::work::runner::{Runner, RunnerSettings};
use model::wire::AllocOrder;
use model::{AllocId, ClientStatus, Desired, FailurePolicy, JobId, Needs, NodeId, Work};
use std::collections::BTreeMap;
use std::path::PathBuf;

pub(crate) fn node_id() -> NodeId {
    "3-01JD0000000000000000000000".parse().unwrap()
}

pub(crate) fn durable() -> Durable {
    Durable { wiped_at: 0, ..Durable::new(node_id(), "boot-1".into()) }
}

pub(crate) fn alloc_id(copy: u32) -> AllocId {
    AllocId { job_id: JobId::new(ulid::Ulid::from_parts(1, 1)), member: 0, copy }
}

/// The task of this order, as a process.
pub(crate) fn task(order: AllocOrder) -> AllocTask {
    AllocTask {
        credentials: None,
        files: None,
        node_id: node_id(),
        order,
        container: None,
        isolation: None,
        unisolated: true,
        gpus: Vec::new(),
        boot_id: "boot-1".into(),
        caches: Vec::new(),
    }
}

pub(crate) fn order(copy: u32, placed_seq: u64) -> AllocOrder {
    AllocOrder {
        grant_url: None,
        alloc_id: alloc_id(copy),
        desired: Desired::Run,
        client: ClientStatus::Pending,
        placed_seq,
        needs: Needs::default(),
        work: Work { command: vec!["true".into()], ..Work::default() },
        env: BTreeMap::new(),
        failure_policy: FailurePolicy::default(),
        hosts: Vec::new(),
        output_s3: None,
    }
}

/// A runner of the first boot, without users of its own, whose supervisors are this program.
pub(crate) fn runner(data: &DataDir, program: PathBuf) -> Runner {
    let settings = RunnerSettings {
        node_id: node_id(),
        boot_id: "boot-1".to_owned(),
        containers: Containers::none(),
        users: None,
        program,
        credentials: CredentialsPort::default(),
        files: FilesSource { cache: data.inputs(), imds_url: None, region: None },
    };
    Runner::new(settings, data)
}
