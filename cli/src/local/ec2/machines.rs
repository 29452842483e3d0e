//! What is behind an instance: in `nodekeeper local` a process, in tests nothing.

use shared::time::Time;
use std::collections::BTreeMap;

/// Told when instances begin and cease to run. Calls for one instance come in order, one at a
/// time, outside of any lock: a hook may use the stand-in, but must not block for long.
pub trait Machines: Send + Sync {
    /// The instance became `running`: boot it.
    fn start(&self, machine: MachineStart);

    /// A started instance begins to shut down or to stop: end what runs on it.
    fn stop(&self, instance_id: &str);

    /// EC2 will take the instance back at `at`: what its instance metadata would say.
    fn warn(&self, _instance_id: &str, _at: Time) {}

    /// What the machine wrote to its console lately.
    fn console(&self, _instance_id: &str) -> Option<String> {
        None
    }
}

/// An instance that became `running`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineStart {
    /// Its id.
    pub instance_id: String,
    /// Its private address.
    pub private_ip: String,
    /// Its type.
    pub instance_type: String,
    /// Its user data, decoded; empty if it has none.
    pub user_data: String,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
}

/// No machines: instances are states and nothing else.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoMachines;

impl Machines for NoMachines {
    fn start(&self, _machine: MachineStart) {}
    fn stop(&self, _instance_id: &str) {}
}

/// A call of a hook that is still to be made.
pub(super) enum HookCall {
    Start(MachineStart),
    Stop { instance_id: String },
    Warn { instance_id: String, at: Time },
}

impl HookCall {
    pub(super) fn make(self, machines: &dyn Machines) {
        match self {
            Self::Start(machine) => machines.start(machine),
            Self::Stop { instance_id } => machines.stop(&instance_id),
            Self::Warn { instance_id, at } => machines.warn(&instance_id, at),
        }
    }
}
