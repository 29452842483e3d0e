//! The needs of a job's members, which placing reads.
//!
//! The same struct is in a submission, in the rows of jobs and allocs, in both indexes and in the order for a node. In a row it
//! is one attribute, so that a new field takes no room in an index.
//!
//! Guarantees: each default stands here, and nowhere else.
//! Does not: say which node fits; [`crate::machine`] does.

use crate::mistakes::Mistakes;
use crate::{Capacity, MachineNeed};
use serde::{Deserialize, Serialize};

/// The most nodes that one job may ask for at once. The end of each member writes the row of the job, and DynamoDB makes these
/// writes one after the other.
pub const MAX_NODES: u32 = 256;
/// Far more than any machine has, and small enough that sums cannot overflow.
const MAX_MIB_OR_GIB: u64 = 1 << 32;
const MAX_VCPUS_OR_GPUS: u32 = 1 << 20;

/// What a job needs of its nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Needs {
    /// What each member needs, like the next three fields.
    pub vcpus: u32,
    pub memory_mib: u64,
    pub scratch_gib: u64,
    pub gpus: u32,
    #[serde(flatten)]
    pub machine: MachineNeed,
    /// Whether each member gets a node for itself, without allocs of other jobs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// The number of members. Each gets a node of its own.
    pub nodes: u32,
}

impl Needs {
    /// The room that one member takes up on its node.
    pub const fn capacity(&self) -> Capacity {
        let Self { vcpus, memory_mib, scratch_gib, gpus, .. } = *self;
        Capacity { vcpus, memory_mib, scratch_gib, gpus }
    }

    pub(crate) fn check(&self, mistakes: &mut Mistakes) {
        self.machine.check(self.gpus, mistakes);
        let nodes = self.nodes;
        mistakes.require(self.vcpus >= 1, || "--vcpus must be at least 1".into());
        mistakes
            .require((1..=MAX_NODES).contains(&nodes), || format!("--nodes must be 1 to {MAX_NODES}, it is {nodes}"));
        let possible = self.memory_mib <= MAX_MIB_OR_GIB
            && self.scratch_gib <= MAX_MIB_OR_GIB
            && self.vcpus <= MAX_VCPUS_OR_GPUS
            && self.gpus <= MAX_VCPUS_OR_GPUS;
        mistakes.require(possible, || "no machine has that much: check --vcpus, --memory, --scratch and --gpus".into());
    }
}

impl Default for Needs {
    fn default() -> Self {
        let machine = MachineNeed::default();
        Self { vcpus: 1, memory_mib: 0, scratch_gib: 0, gpus: 0, machine, exclusive: false, nodes: 1 }
    }
}
