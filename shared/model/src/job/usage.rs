//! What the processes of an alloc used, as its node measured it.
//!
//! Guarantees: a number that no machine can reach makes the whole measurement unknown, so that sums cannot overflow; a value that
//! is no measurement counts as unknown, and spoils nothing else in its report.
//! Does not: decide anything. Nothing is placed, retried or stopped because of these numbers.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

/// Above this, a floating point number cannot hold every whole number.
const MOST: u64 = 1 << 53;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// How long its command ran, in milliseconds.
    pub ran_ms: u64,
    /// The CPU time of all its processes, in milliseconds.
    pub cpu_ms: u64,
    /// The most memory that was seen in use, in MiB; `None` if the command ended before the first sample.
    pub memory_mib: Option<u64>,
    /// Bytes read from storage; `None` if the machine does not count them.
    pub read_bytes: Option<u64>,
    /// Bytes written to storage; `None` if the machine does not count them.
    pub written_bytes: Option<u64>,
    /// The most scratch space in use in a sample, in MiB; `None` without a sample.
    pub scratch_mib: Option<u64>,
    /// How busy its GPUs were, in hundredths, on average over the samples; `None` without a sample.
    pub gpu_percent: Option<u64>,
    /// The most memory in use on one of its GPUs in a sample, in MiB; `None` without a sample.
    pub gpu_memory_mib: Option<u64>,
}

impl Usage {
    /// The measurement, if it can be true.
    #[must_use]
    pub fn possible(self) -> Option<Self> {
        let Self { ran_ms, cpu_ms, memory_mib, read_bytes, written_bytes, scratch_mib, gpu_percent, gpu_memory_mib } =
            self;
        let known = [Some(ran_ms), Some(cpu_ms), memory_mib, read_bytes, written_bytes, scratch_mib, gpu_memory_mib];
        let is_possible = known.into_iter().flatten().all(|number| number <= MOST);
        (is_possible && gpu_percent.is_none_or(|percent| percent <= 100)).then_some(self)
    }

    /// The higher of both, number by number: so several members are shown by the hungriest.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Self {
            ran_ms: self.ran_ms.max(other.ran_ms),
            cpu_ms: self.cpu_ms.max(other.cpu_ms),
            memory_mib: self.memory_mib.max(other.memory_mib),
            read_bytes: self.read_bytes.max(other.read_bytes),
            written_bytes: self.written_bytes.max(other.written_bytes),
            scratch_mib: self.scratch_mib.max(other.scratch_mib),
            gpu_percent: self.gpu_percent.max(other.gpu_percent),
            gpu_memory_mib: self.gpu_memory_mib.max(other.gpu_memory_mib),
        }
    }

    /// How many vCPUs it kept busy on average; `None` if it ran for no time.
    pub fn busy_vcpus(&self) -> Option<f64> {
        (self.ran_ms > 0).then(|| self.cpu_ms as f64 / self.ran_ms as f64)
    }
}

/// Reads the measurement of a node. Anything that is no measurement is read as `None`.
pub(crate) fn lenient<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Usage>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum RawUsage {
        Measured(Usage),
        Else(IgnoredAny),
    }
    Ok(match RawUsage::deserialize(from)? {
        RawUsage::Measured(usage) => usage.possible(),
        RawUsage::Else(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: Usage = Usage {
        ran_ms: 2_000,
        cpu_ms: 3_000,
        memory_mib: Some(64),
        read_bytes: None,
        written_bytes: Some(7),
        scratch_mib: Some(3),
        gpu_percent: Some(40),
        gpu_memory_mib: None,
    };

    #[test]
    fn what_no_machine_can_use_is_not_believed() {
        assert_eq!(SOME.possible(), Some(SOME));
        for wrong in [
            Usage { cpu_ms: u64::MAX, ..SOME },
            Usage { ran_ms: MOST + 1, ..SOME },
            Usage { memory_mib: Some(u64::MAX), ..SOME },
            Usage { read_bytes: Some(MOST + 1), ..SOME },
            Usage { written_bytes: Some(MOST + 1), ..SOME },
            Usage { scratch_mib: Some(MOST + 1), ..SOME },
            Usage { gpu_memory_mib: Some(MOST + 1), ..SOME },
            Usage { gpu_percent: Some(101), ..SOME },
        ] {
            assert_eq!(wrong.possible(), None, "{wrong:?}");
        }
    }

    #[test]
    fn members_are_told_by_the_hungriest_of_them() {
        let other = Usage {
            ran_ms: 9_000,
            cpu_ms: 1,
            read_bytes: Some(5),
            written_bytes: Some(1),
            gpu_percent: Some(30),
            gpu_memory_mib: Some(8),
            ..Usage::default()
        };
        let most = Usage { ran_ms: 9_000, read_bytes: Some(5), gpu_memory_mib: Some(8), ..SOME };
        assert_eq!((SOME.most(other), other.most(SOME)), (most, most));
        assert_eq!(SOME.busy_vcpus(), Some(1.5));
        assert_eq!(Usage { ran_ms: 0, ..SOME }.busy_vcpus(), None);
    }
}
