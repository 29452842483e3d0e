//! What a policy means at one moment: its sizes with what EC2 offers, and the sizes that work fits on.
//!
//! Guarantees: the document of a policy is the same whatever the catalogue has.
//! Does not: read the catalogue (`runtime::catalogue` does), or know whether a size may be launched now.

use super::size::Size;
use super::types::Policy;
use crate::enums::{Arch, Fallback, Market};
use crate::machine::memory;
use crate::{Capacity, Catalogue, CataloguePart, FailurePolicy, Machine, MachineNeed, Needs, Reason, RetryRule};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Policy {
    /// The policy with a size for each instance type that its sizes of several types take, and one for each size and capacity
    /// reservation of the same type.
    #[must_use]
    pub fn with_catalogue(mut self, catalogue: Catalogue) -> Self {
        self.size.retain(|size| !size.is_derived());
        let zones: BTreeSet<&str> = self.launch.subnets.iter().filter_map(|id| catalogue.zone_of(id)).collect();
        for several in &self.several {
            let types = catalogue.types.iter().filter_map(|(name, offered)| several.of_type(name, offered, &zones));
            self.size.extend(types);
        }
        for (id, reservation) in &catalogue.reservations {
            let of_type = self.size.iter().filter(|size| size.instance_type == reservation.instance_type);
            let reserved: Vec<_> =
                of_type.filter(|s| s.reservation.is_none()).map(|s| s.reserved(id, reservation)).collect();
            self.size.extend(reserved);
        }
        self.catalogue = Arc::new(catalogue);
        self
    }

    /// Whether sizes may lack instance types because the catalogue does not have everything that the policy wants.
    pub fn waits_for_catalogue(&self) -> bool {
        let is_read = |part| self.catalogue.parts.get(&part).is_some_and(|state| state.read_at.is_some());
        let has_all = self.catalogue.wanted == self.catalogue_wanted() && self.parts_needed().into_iter().all(is_read);
        !self.several.is_empty() && !has_all
    }

    /// What the catalogue lacks, as the end of a sentence.
    pub fn catalogue_lacks(&self) -> String {
        let error =
            |part: &CataloguePart| Some(format!(": {part}: {}", self.catalogue.parts.get(part)?.error.as_ref()?));
        let next = || ": clean-stale-records asks EC2 in its next run".to_owned();
        self.parts_needed().iter().find_map(error).unwrap_or_else(next)
    }

    /// The parts of the catalogue without which no size is known. Quotas and reservations are not among them: EC2 itself refuses
    /// what exceeds a quota, and a machine that is not known to be reserved is bought.
    fn parts_needed(&self) -> Vec<CataloguePart> {
        let is_needed = |part: &CataloguePart| !matches!(part, CataloguePart::Quotas | CataloguePart::Reservations);
        self.parts_wanted().into_iter().filter(is_needed).collect()
    }

    /// The parts of the catalogue that the policy uses.
    pub fn parts_wanted(&self) -> Vec<CataloguePart> {
        let is_wanted = |part: &CataloguePart| match part {
            CataloguePart::Types => !self.several.is_empty(),
            CataloguePart::Prices => {
                self.several.iter().any(|s| s.market == Market::OnDemand || s.fallback == Fallback::OnDemand)
            }
            CataloguePart::SpotPrices => self.several.iter().any(|s| s.market == Market::Spot),
            CataloguePart::Subnets => !self.launch.subnets.is_empty(),
            CataloguePart::Reservations => !self.launch.reservations.is_empty(),
            CataloguePart::Quotas => true,
        };
        CataloguePart::ALL.into_iter().filter(is_wanted).collect()
    }

    /// What a catalogue for this policy must have, as a text. A catalogue with another text was made for another policy.
    pub fn catalogue_wanted(&self) -> String {
        let of_sizes: Vec<_> = self.several.iter().map(|s| (&s.name, s.arch, &s.requirements)).collect();
        serde_json::to_string(&(of_sizes, &self.launch.subnets, &self.launch.reservations)).unwrap_or_default()
    }

    /// The capacity of a machine that jobs get. A share of its memory is for the system.
    pub fn usable(&self, capacity: Capacity) -> Capacity {
        let memory_mib = (capacity.memory_mib as f64 * self.nodes.memory_usable).floor().max(0.0) as u64;
        Capacity { memory_mib, ..capacity }
    }

    /// The reason why no size can ever offer this. `None` if a size offers it, or if EC2 has not described every type yet.
    pub fn never_offers(&self, takes: Capacity, need: &MachineNeed) -> Option<Reason> {
        let arch = self.default_arch();
        let offers = |size: &Size| size.offers(takes, need, (self.usable(size.capacity), arch));
        let may = self.waits_for_catalogue() || self.size.iter().any(offers);
        (!may).then(|| self.none_fits(takes, need))
    }

    /// Which option asks for what no size can ever have, and the most that there is. `None` if a size has it all, or may have.
    pub fn lack(&self, needs: &Needs) -> Option<String> {
        let (takes, need) = (needs.capacity(), &needs.machine);
        let why = self.never_offers(takes, need)?;
        let any = || MachineNeed { arch: need.arch, ..MachineNeed::default() };
        let never = |need: &MachineNeed| self.never_offers(Capacity::default(), need).is_some();
        for (option, need) in [
            ("--arch", any()),
            ("--instance-type", MachineNeed { instance_type: need.instance_type.clone(), ..any() }),
            ("--market", MachineNeed { market: need.market, ..any() }),
            ("--gpu-type", MachineNeed { gpu_type: need.gpu_type.clone(), ..any() }),
            ("--gpu-memory", MachineNeed { gpu_memory_gib: need.gpu_memory_gib, ..any() }),
            ("--require", MachineNeed { require: need.require.clone(), ..any() }),
        ] {
            if never(&need) {
                return Some(format!("{option}: no size of the policy has {}", need.words().join(", ")));
            }
        }
        let arch = need.arch.unwrap_or_else(|| self.default_arch());
        let sizes = self.size.iter().filter(|size| size.kind.arch == arch).map(|size| self.usable(size.capacity));
        let most = sizes.reduce(|a, b| Capacity {
            vcpus: a.vcpus.max(b.vcpus),
            memory_mib: a.memory_mib.max(b.memory_mib),
            scratch_gib: a.scratch_gib.max(b.scratch_gib),
            gpus: a.gpus.max(b.gpus),
        });
        let most = most.unwrap_or_default();
        let gib = |n: u64| format!("{n} GiB");
        for (option, is_more, asked, most) in [
            ("--vcpus", takes.vcpus > most.vcpus, takes.vcpus.to_string(), most.vcpus.to_string()),
            ("--memory", takes.memory_mib > most.memory_mib, memory(takes.memory_mib), memory(most.memory_mib)),
            ("--scratch", takes.scratch_gib > most.scratch_gib, gib(takes.scratch_gib), gib(most.scratch_gib)),
            ("--gpus", takes.gpus > most.gpus, takes.gpus.to_string(), most.gpus.to_string()),
        ] {
            if is_more {
                return Some(format!("{option} {asked}: the largest size of the policy has {most} for jobs"));
            }
        }
        // Each of them can be had, and not all together.
        Some(why.to_string())
    }

    /// The first retry rule of a job that can never be followed, and why: no size offers what the job needs by that rule. `None`
    /// for a job that no size offers a machine in the first place: no rule is at fault.
    pub fn never_follows(&self, needs: &Needs, rules: &FailurePolicy) -> Option<(RetryRule, Reason)> {
        let never = |needs: &Needs| self.never_offers(needs.capacity(), &needs.machine);
        if never(needs).is_some() {
            return None;
        }
        let after = |rule: &RetryRule| rule.first(needs).map(|retry| retry.needs(needs));
        rules.retry.iter().find_map(|rule| Some((rule.clone(), never(&after(rule)?)?)))
    }

    /// Why no size fits.
    pub fn none_fits(&self, takes: Capacity, need: &MachineNeed) -> Reason {
        let (mut words, default_arch) = (need.words(), self.default_arch());
        // The user may not know that a larger size has another architecture.
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
        Reason::NoSizeFits { needs: takes, narrowed, usable: self.nodes.memory_usable.to_string() }
    }
}

impl Size {
    /// A machine of this size.
    pub fn machine(&self, default_arch: Arch) -> Machine<'_> {
        let Self { instance_type, market, kind, .. } = self;
        Machine { instance_type, market: *market, kind, default_arch }
    }
}
