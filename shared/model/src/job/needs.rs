//! The needs of a job's members, which placing reads.
//!
//! The same struct is in a submission, in the rows of jobs and allocs, in both indexes and in the order for a node. In a row it
//! is one attribute, so that a new field takes no room in an index.
//!
//! Guarantees: each default stands here, and nowhere else.
//! Does not: say which node fits; [`crate::machine`] does.

use crate::mistakes::{Mistakes, shown};
use crate::names::is_plain_name;
use crate::{Capacity, MachineNeed, Usd};
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;
use std::collections::BTreeMap;

/// The most nodes that one job may ask for at once. The end of each member writes the row of the job, and DynamoDB makes these
/// writes one after the other.
pub const MAX_NODES: u32 = 256;
/// Far more than any machine has, and small enough that sums cannot overflow.
const MAX_MIB_OR_GIB: u64 = 1 << 32;
/// The most kinds of licences of a job. The rows of the job and of its allocs hold them all.
const MAX_LICENCES: usize = 8;
const MAX_VCPUS_OR_GPUS: u32 = 1 << 20;

/// What a job needs of its nodes.
#[derive(Clone, Debug, SmartDefault, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Needs {
    /// What each member needs, like the next three fields.
    #[default = 1]
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
    #[default = 1]
    pub nodes: u32,
    /// How many of the licences of the policy the job uses while it is placed, by their names.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub licences: BTreeMap<String, u32>,
}

impl Needs {
    /// The room that one member takes up on its node.
    pub const fn capacity(&self) -> Capacity {
        let Self { vcpus, memory_mib, scratch_gib, gpus, .. } = *self;
        Capacity { vcpus, memory_mib, scratch_gib, gpus }
    }

    /// What one member costs an hour on a machine with this price: the largest of its parts of it, or all of it.
    pub fn price_on(&self, whole: Capacity, price: Usd) -> Usd {
        let part = self.capacity();
        let parts = [
            (part.vcpus.into(), whole.vcpus.into()),
            (part.memory_mib, whole.memory_mib),
            (part.scratch_gib, whole.scratch_gib),
            (part.gpus.into(), whole.gpus.into()),
        ];
        let prices = parts.map(|(part, whole)| price.part(part, whole));
        if self.exclusive { price } else { prices.into_iter().max().unwrap_or_default() }
    }

    pub(crate) fn check(&self, mistakes: &mut Mistakes) {
        self.machine.check(self.gpus, mistakes);
        let nodes = self.nodes;
        mistakes.require(self.vcpus >= 1, || "--vcpus must be at least 1".into());
        mistakes
            .require((1..=MAX_NODES).contains(&nodes), || format!("--nodes must be 1 to {MAX_NODES}, it is {nodes}"));
        for name in self.licences.keys().filter(|name| !is_plain_name(name)) {
            mistakes
                .require(false, || format!("--needs {} must be 1 to 64 letters, digits, '-', '_' or '.'", shown(name)));
        }
        mistakes.require(self.licences.len() <= MAX_LICENCES, || format!("--needs: at most {MAX_LICENCES} of them"));
        let possible = self.memory_mib <= MAX_MIB_OR_GIB
            && self.scratch_gib <= MAX_MIB_OR_GIB
            && self.vcpus <= MAX_VCPUS_OR_GPUS
            && self.gpus <= MAX_VCPUS_OR_GPUS;
        mistakes.require(possible, || "no machine has that much: check --vcpus, --memory, --scratch and --gpus".into());
    }
}
