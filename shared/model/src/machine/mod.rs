//! What machines offer, what work needs of them, and whether the two fit.
//!
//! | asked | of the machine |
//! | --- | --- |
//! | instance type, market | the same |
//! | architecture | the same; without one, that of the policy's default ([`crate::policy::Policy::default_arch`]) |
//! | GPU type | the same, in upper or lower case |
//! | GPU memory | each GPU has at least as much |
//! | labels | it has all of them |
//! | containers | it runs containers |
//!
//! Guarantees: [`Machine::fits`] is the only answer to the question whether work may use a machine. Whether a size can ever
//! offer work one, in whatever market it may be bought, is the question of [`crate::policy::Size::offers`], which asks this one.
//! Does not: count what is on a machine. The caller says how much room is left.

pub mod reservation;

use crate::enums::{Arch, Market, MarketNeed};
use crate::mistakes::{Mistakes, shown};
use crate::names::{LABEL_FORM, is_label, is_plain_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// The most labels that a size has, or that work asks for. They stand on the record of each node, which has to stay small.
pub const MAX_LABELS: usize = 8;

/// More than any GPU has.
const MAX_GPU_MEMORY_GIB: u64 = 1 << 20;

/// The room that a machine offers, or that a job needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Capacity {
    #[serde(default = "crate::left_out::one")]
    pub vcpus: u32,
    #[serde(default)]
    pub memory_mib: u64,
    #[serde(default)]
    pub scratch_gib: u64,
    #[serde(default)]
    pub gpus: u32,
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} vCPU", self.vcpus)?;
        if self.memory_mib > 0 {
            write!(f, ", {}", memory(self.memory_mib))?;
        }
        if self.scratch_gib > 0 {
            write!(f, ", {} GiB scratch", self.scratch_gib)?;
        }
        if self.gpus > 0 {
            write!(f, ", {} GPU", self.gpus)?;
        }
        Ok(())
    }
}

/// Memory for people, in GiB if it is a whole number of them: `4 GiB`, `1500 MiB`.
pub fn memory(mib: u64) -> String {
    if mib > 0 && mib.is_multiple_of(1024) { format!("{} GiB", mib / 1024) } else { format!("{mib} MiB") }
}

impl Capacity {
    /// Whether there is at least as much of each thing.
    pub const fn covers(self, other: Self) -> bool {
        other.vcpus <= self.vcpus
            && other.memory_mib <= self.memory_mib
            && other.scratch_gib <= self.scratch_gib
            && other.gpus <= self.gpus
    }
}

/// The kind of a machine: a part of a size, and of the record of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineKind {
    pub arch: Arch,
    /// The model of its GPUs, as the policy calls it.
    pub gpu_type: Option<String>,
    /// The memory of each GPU; 0 if it is not known.
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub gpu_memory_gib: u64,
    /// The labels of its size.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub labels: BTreeSet<String>,
    /// Whether the machine runs jobs that have an image.
    pub containers: bool,
}

impl Default for MachineKind {
    fn default() -> Self {
        Self { arch: Arch::X86_64, gpu_type: None, gpu_memory_gib: 0, labels: BTreeSet::new(), containers: true }
    }
}

/// The requirements of work for its machine besides room: a part of the needs of a job, and of those of a demand set.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineNeed {
    /// The only instance type; `None` for any.
    pub instance_type: Option<String>,
    /// The market; `None` for any, as the size is bought.
    pub market: Option<MarketNeed>,
    /// The architecture; `None` for the default of the policy.
    pub arch: Option<Arch>,
    /// The model of the GPUs; `None` for any.
    pub gpu_type: Option<String>,
    /// The least memory of each GPU.
    #[serde(skip_serializing_if = "crate::left_out::is_default")]
    pub gpu_memory_gib: u64,
    /// The labels that the machine must have.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub require: BTreeSet<String>,
    /// Whether the work has an image. Only the image of a job sets this.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub containers: bool,
}

impl MachineNeed {
    /// What is needed, for people: a text for each need.
    pub fn words(&self) -> Vec<String> {
        let gpu_type = self.gpu_type.as_ref().map(|name| format!("GPUs of type {name}"));
        let gpu_memory = (self.gpu_memory_gib > 0).then(|| format!("{} GiB on each GPU", self.gpu_memory_gib));
        let one = [
            self.instance_type.clone(),
            self.market.filter(|need| *need != MarketNeed::SpotFirst).map(|market| market.to_string()),
            self.arch.map(|arch| arch.to_string()),
            gpu_type,
            gpu_memory,
        ];
        let labels = self.require.iter().map(|label| format!("label {label}"));
        one.into_iter().flatten().chain(labels).chain(self.containers.then(|| "containers".to_owned())).collect()
    }

    /// Notes what is wrong with this request of work with this many GPUs, in the words of the command's options.
    pub(crate) fn check(&self, gpus: u32, mistakes: &mut Mistakes) {
        if let Some(asked) = &self.instance_type {
            mistakes.require(is_plain_name(asked), || {
                format!("--instance-type {} is not the name of one, like m7a.large", shown(asked))
            });
        }
        if let Some(asked) = &self.gpu_type {
            mistakes.require(is_label(asked), || format!("--gpu-type {} must be {LABEL_FORM}", shown(asked)));
        }
        let about_gpus = self.gpu_type.is_some() || self.gpu_memory_gib > 0;
        mistakes.require(gpus > 0 || !about_gpus, || {
            "--gpu-type and --gpu-memory say nothing without GPUs: say how many, with --gpus".into()
        });
        mistakes
            .require(self.gpu_memory_gib <= MAX_GPU_MEMORY_GIB, || "no GPU has that much: check --gpu-memory".into());
        for label in self.require.iter().filter(|label| !is_label(label)) {
            mistakes.require(false, || format!("--require {} must be {LABEL_FORM}", shown(label)));
        }
        mistakes.require(self.require.len() <= MAX_LABELS, || {
            format!("--require may be given {MAX_LABELS} times, because no size has more labels")
        });
    }
}

/// A machine as work sees it: one that exists, or one that would be launched.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    pub instance_type: &'a str,
    pub market: Market,
    pub kind: &'a MachineKind,
    /// The architecture for work that names none.
    pub default_arch: Arch,
}

impl Machine<'_> {
    /// Whether work that takes up so much, and asks for this, may use the machine while it has this room.
    pub fn fits(&self, takes: Capacity, need: &MachineNeed, room: Capacity) -> bool {
        let MachineNeed { instance_type, market, arch, gpu_type, gpu_memory_gib, require, containers } = need;
        room.covers(takes)
            && instance_type.as_deref().is_none_or(|asked| asked == self.instance_type)
            && market.is_none_or(|asked| asked.accepts(self.market))
            && arch.unwrap_or(self.default_arch) == self.kind.arch
            && gpu_type.as_deref().is_none_or(|asked| self.has_gpu_type(asked))
            && *gpu_memory_gib <= self.kind.gpu_memory_gib
            && require.is_subset(&self.kind.labels)
            && (self.kind.containers || !containers)
    }

    fn has_gpu_type(&self, asked: &str) -> bool {
        self.kind.gpu_type.as_deref().is_some_and(|has| has.eq_ignore_ascii_case(asked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|label| (*label).to_owned()).collect()
    }

    const ROOM: Capacity = Capacity { vcpus: 8, memory_mib: 1000, scratch_gib: 10, gpus: 4 };

    /// Each requirement × the machines `plain`, `arm` and `gpu`: which of them fit.
    #[test]
    fn each_thing_that_is_asked_for_is_compared_with_the_machine() {
        let kinds = [
            MachineKind::default(),
            MachineKind { arch: Arch::Arm64, labels: labels(&["nvme"]), containers: false, ..MachineKind::default() },
            MachineKind {
                gpu_type: Some("a10g".into()),
                gpu_memory_gib: 24,
                labels: labels(&["nvme", "fast-net"]),
                ..MachineKind::default()
            },
        ];
        let machines =
            [("m7a.large", Market::Spot), ("m7g.large", Market::OnDemand), ("g5.12xlarge", Market::OnDemand)];
        let any = MachineNeed::default;
        let takes = Capacity { vcpus: 1, ..Capacity::default() };
        for (what, takes, need, fits) in [
            ("nothing", takes, any(), [true, false, true]),
            ("all of it", ROOM, any(), [true, false, true]),
            ("a vCPU too many", Capacity { vcpus: 9, ..ROOM }, any(), [false; 3]),
            ("a MiB too many", Capacity { memory_mib: 1001, ..ROOM }, any(), [false; 3]),
            ("a GiB of scratch too many", Capacity { scratch_gib: 11, ..ROOM }, any(), [false; 3]),
            ("a GPU too many", Capacity { gpus: 5, ..ROOM }, any(), [false; 3]),
            ("a type", takes, MachineNeed { instance_type: Some("m7a.large".into()), ..any() }, [true, false, false]),
            (
                "a type of the other architecture",
                takes,
                MachineNeed { instance_type: Some("m7g.large".into()), ..any() },
                [false; 3],
            ),
            ("a market", takes, MachineNeed { market: Some(MarketNeed::OnDemand), ..any() }, [false, false, true]),
            ("spot first", takes, MachineNeed { market: Some(MarketNeed::SpotFirst), ..any() }, [true, false, true]),
            ("arm64", takes, MachineNeed { arch: Some(Arch::Arm64), ..any() }, [false, true, false]),
            ("x86_64", takes, MachineNeed { arch: Some(Arch::X86_64), ..any() }, [true, false, true]),
            ("a GPU type", takes, MachineNeed { gpu_type: Some("A10G".into()), ..any() }, [false, false, true]),
            ("another GPU type", takes, MachineNeed { gpu_type: Some("a10".into()), ..any() }, [false; 3]),
            ("GPU memory", takes, MachineNeed { gpu_memory_gib: 24, ..any() }, [false, false, true]),
            ("more GPU memory", takes, MachineNeed { gpu_memory_gib: 25, ..any() }, [false; 3]),
            ("a label", takes, MachineNeed { require: labels(&["nvme"]), ..any() }, [false, false, true]),
            (
                "two labels",
                takes,
                MachineNeed { require: labels(&["nvme", "fast-net"]), ..any() },
                [false, false, true],
            ),
            ("containers", takes, MachineNeed { containers: true, ..any() }, [true, false, true]),
            (
                "containers on arm64",
                takes,
                MachineNeed { containers: true, arch: Some(Arch::Arm64), ..any() },
                [false; 3],
            ),
            ("a label that none has", takes, MachineNeed { require: labels(&["nvme", "NVME"]), ..any() }, [false; 3]),
        ] {
            let found = [0, 1, 2].map(|n| {
                let ((instance_type, market), kind) = (machines[n], &kinds[n]);
                Machine { instance_type, market, kind, default_arch: Arch::X86_64 }.fits(takes, &need, ROOM)
            });
            assert_eq!(found, fits, "{what}");
        }
        let (instance_type, market) = machines[1];
        let alone = Machine { instance_type, market, kind: &kinds[1], default_arch: Arch::Arm64 };
        assert!(alone.fits(takes, &any(), ROOM), "the policy has no other architecture");
    }

    #[test]
    fn a_wrong_request_is_told_with_its_option() {
        let said = |need: MachineNeed, gpus: u32| {
            let mut mistakes = Mistakes::default();
            need.check(gpus, &mut mistakes);
            mistakes.into_list().unwrap_or_default().join("; ")
        };
        let any = MachineNeed::default;
        let many: Vec<String> = (0..9).map(|n| format!("l{n}")).collect();
        for (need, gpus, says) in [
            (MachineNeed { gpu_type: Some("a10g".into()), ..any() }, 0, "say how many, with --gpus"),
            (MachineNeed { gpu_memory_gib: 1, ..any() }, 0, "say how many, with --gpus"),
            (MachineNeed { gpu_type: Some("NVIDIA A10G".into()), ..any() }, 1, "--gpu-type \"NVIDIA A10G\" must be"),
            (MachineNeed { gpu_memory_gib: 1 << 21, ..any() }, 1, "no GPU has that much"),
            (MachineNeed { require: labels(&["a b"]), ..any() }, 0, "--require \"a b\" must be 1 to 32"),
            (MachineNeed { require: many.into_iter().collect(), ..any() }, 0, "--require may be given 8 times"),
            (MachineNeed { gpu_type: Some("a10g".into()), gpu_memory_gib: 24, ..any() }, 1, ""),
        ] {
            let found = said(need.clone(), gpus);
            assert!(if says.is_empty() { found.is_empty() } else { found.contains(says) }, "{need:?}: {found}");
        }
    }
}
