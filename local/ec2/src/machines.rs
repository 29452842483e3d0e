//! The machine behind an instance: a process in `nodekeeper local`, nothing in tests.
//!
//! Guarantees: a machine hears of its start and its end once each, in this order.
//! Does not: change an instance. One whose machine does not boot stays `running`, as in EC2.

use model::Time;
use std::collections::BTreeMap;

/// Hooks for the machines behind the instances. Calls for one instance come in order, one at a
/// time, outside of any lock: a hook may call the stand-in, but must not block for long.
pub trait Machines: Send + Sync {
    /// The instance became `running`: boot it.
    fn start(&self, machine: MachineStart);

    /// A started instance begins to shut down or to stop: end the processes on it.
    fn stop(&self, instance_id: &str);

    /// EC2 will terminate the instance at `at`. Its instance metadata must say so from now on.
    fn warn(&self, _instance_id: &str, _at: Time) {}

    /// The end of what the machine wrote to its console.
    fn console(&self, _instance_id: &str) -> Option<String> {
        None
    }
}

/// An instance that became `running`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineStart {
    pub instance_id: String,
    pub private_ip: String,
    pub instance_type: String,
    /// The user data, decoded. Empty if the launch gave none.
    pub user_data: String,
    pub tags: BTreeMap<String, String>,
}

/// No machines: instances have states, but nothing runs on them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMachines;

impl Machines for NoMachines {
    fn start(&self, _machine: MachineStart) {}
    fn stop(&self, _instance_id: &str) {}
}

/// A hook call that nobody has made yet.
pub(crate) type HookCall = Box<dyn FnOnce(&dyn Machines) + Send>;
