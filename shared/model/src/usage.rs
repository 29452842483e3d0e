//! What the processes of an alloc used, as its node measured it.
//!
//! Guarantees: a number that no machine can reach makes the whole measurement unknown, so that sums of what nodes say stay
//! numbers; a measurement that is not understood is unknown, and spoils nothing else in its report.
//! Does not: decide anything. Nothing is placed, retried or stopped for what a node says here.

use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

/// Above this, not every whole number is a floating point number.
const MOST: u64 = 1 << 53;

/// What an alloc used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// How long its command ran, in milliseconds.
    pub ran_ms: u64,
    /// The CPU time of all its processes, in milliseconds.
    pub cpu_ms: u64,
    /// The most memory that was seen in use, in MiB; `None` if nobody looked in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// What was read from storage, in bytes; `None` if the machine does not count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// What was written to storage, in bytes; `None` if the machine does not count it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<u64>,
    /// The most scratch space that was seen in use, in MiB; `None` if nobody looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scratch_mib: Option<u64>,
}

impl Usage {
    /// The measurement, if it can be true.
    #[must_use]
    pub fn possible(self) -> Option<Self> {
        let Self { ran_ms, cpu_ms, memory_mib, read_bytes, written_bytes, scratch_mib } = self;
        let known = [Some(ran_ms), Some(cpu_ms), memory_mib, read_bytes, written_bytes, scratch_mib];
        known.into_iter().flatten().all(|number| number <= MOST).then_some(self)
    }

    /// What the hungriest of several members used, number by number.
    #[must_use]
    pub fn most(self, other: Self) -> Self {
        Self {
            ran_ms: self.ran_ms.max(other.ran_ms),
            cpu_ms: self.cpu_ms.max(other.cpu_ms),
            memory_mib: self.memory_mib.max(other.memory_mib),
            read_bytes: self.read_bytes.max(other.read_bytes),
            written_bytes: self.written_bytes.max(other.written_bytes),
            scratch_mib: self.scratch_mib.max(other.scratch_mib),
        }
    }

    /// How many vCPUs it kept busy on average; `None` if it ran for no time.
    pub fn busy_vcpus(&self) -> Option<f64> {
        (self.ran_ms > 0).then(|| self.cpu_ms as f64 / self.ran_ms as f64)
    }
}

/// Reads what a node says. Anything that is not a measurement is none.
pub(crate) fn lenient<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Usage>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Said {
        Measured(Usage),
        Else(IgnoredAny),
    }
    Ok(match Said::deserialize(from)? {
        Said::Measured(usage) => usage.possible(),
        Said::Else(_) => None,
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
        ] {
            assert_eq!(wrong.possible(), None, "{wrong:?}");
        }
    }

    #[test]
    fn members_are_told_by_the_hungriest_of_them() {
        let other = Usage {
            ran_ms: 9_000,
            cpu_ms: 1,
            memory_mib: None,
            read_bytes: Some(5),
            written_bytes: Some(1),
            scratch_mib: None,
        };
        let most = Usage { ran_ms: 9_000, read_bytes: Some(5), ..SOME };
        assert_eq!((SOME.most(other), other.most(SOME)), (most, most));
        assert_eq!(SOME.busy_vcpus(), Some(1.5));
        assert_eq!(Usage { ran_ms: 0, ..SOME }.busy_vcpus(), None);
    }
}
