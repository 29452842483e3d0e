//! Which sizes of a policy work fits on.
//!
//! Does not: know whether one may be launched now.

use super::size::Size;
use super::types::Policy;
use crate::enums::Arch;
use crate::machine::{Capacity, Machine, MachineNeed};
use crate::reason::Reason;

impl Size {
    /// A machine of this size.
    pub fn machine(&self, default_arch: Arch) -> Machine<'_> {
        let Self { instance_type, market, kind, .. } = self;
        Machine { instance_type, market: *market, kind, default_arch }
    }
}

impl Policy {
    /// The capacity of a machine that jobs get. A share of its memory is for the system.
    pub fn usable(&self, capacity: Capacity) -> Capacity {
        let memory_mib = (capacity.memory_mib as f64 * self.nodes.memory_usable).floor().max(0.0) as u64;
        Capacity { memory_mib, ..capacity }
    }

    /// The reason why no size can ever offer this. `None` if a size offers it, or if EC2 has not described every type yet.
    pub fn never_offers(&self, takes: Capacity, need: &MachineNeed) -> Option<Reason> {
        let arch = self.default_arch();
        let offers = |size: &Size| size.machine(arch).fits(takes, need, self.usable(size.capacity));
        let may = self.waits_for_catalogue() || self.size.iter().any(offers);
        (!may).then(|| self.none_fits(takes, need))
    }

    /// Why no size fits.
    pub fn none_fits(&self, takes: Capacity, need: &MachineNeed) -> Reason {
        let (mut words, default_arch) = (need.words(), self.default_arch());
        // Who names no architecture does not know that a larger size has the other one.
        if need.arch.is_none() && self.size.iter().any(|size| size.kind.arch != default_arch) {
            words.push(format!("{default_arch}, because it names no architecture"));
        }
        let mut narrowed = if words.is_empty() { String::new() } else { format!(" with {}", words.join(", ")) };
        let has_type = |name: &str| self.size.iter().any(|size| size.name == name);
        let without: Vec<&str> = self.several.iter().map(|s| s.name.as_str()).filter(|name| !has_type(name)).collect();
        if !without.is_empty() {
            narrowed.push_str(&format!(
                " (no instance type can be bought for size {}: see `nodekeeper sizes`)",
                without.join(", ")
            ));
        }
        Reason::NoSizeFits { needs: takes, narrowed, usable: self.nodes.memory_usable }
    }
}
