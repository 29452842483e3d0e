//! What an alloc or a job used, in words.
//!
//! Guarantees: an unknown value is blank, and never 0.
//! Does not: measure; the nodes do.

use model::machine::memory;
use model::{Capacity, Usage};

pub(crate) const HEADS: [&str; 7] = ["CPU TIME", "CPU EFFICIENCY", "MEMORY", "READ", "WRITTEN", "SCRATCH", "GPU"];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Used {
    pub(crate) usage: Usage,
    pub(crate) needs: Capacity,
}

impl Used {
    /// The cells in the order of [`HEADS`].
    pub(crate) fn cells(self) -> [String; 7] {
        let Usage { cpu_ms, read_bytes, written_bytes, .. } = self.usage;
        let (read, written) = (read_bytes.map(bytes_text), written_bytes.map(bytes_text));
        [Some(cpu_time(cpu_ms)), self.efficiency(), self.memory(), read, written, self.scratch(), self.gpus()]
            .map(Option::unwrap_or_default)
    }

    /// The CPU time in percent of what the vCPUs could have done.
    fn efficiency(self) -> Option<String> {
        let share = self.usage.busy_vcpus()? / f64::from(self.needs.vcpus.max(1));
        Some(format!("{:.0} %", share * 100.0))
    }

    fn memory(self) -> Option<String> {
        self.usage.memory_mib.map(|used| of_needed(used, self.needs.memory_mib))
    }

    fn scratch(self) -> Option<String> {
        self.usage.scratch_mib.map(|used| of_needed(used, self.needs.scratch_gib << 10))
    }

    /// `37 % busy, 8 GiB`
    fn gpus(self) -> Option<String> {
        let busy = self.usage.gpu_percent.map(|percent| format!("{percent} % busy"));
        let parts: Vec<String> = busy.into_iter().chain(self.usage.gpu_memory_mib.map(memory)).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// `300 MiB of 1 GiB`, or `300 MiB` if nothing was asked for. Both amounts are in MiB.
fn of_needed(used: u64, needs: u64) -> String {
    if needs == 0 { memory(used) } else { format!("{} of {}", memory(used), memory(needs)) }
}

/// Seconds, minutes or hours, with one digit after the point.
fn cpu_time(ms: u64) -> String {
    let s = ms as f64 / 1000.0;
    match ms {
        0..120_000 => format!("{s:.1} s"),
        120_000..7_200_000 => format!("{:.1} min", s / 60.0),
        _ => format!("{:.1} h", s / 3600.0),
    }
}

/// An amount of bytes, with one digit after the point.
pub(crate) fn bytes_text(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut amount, mut unit) = (n as f64, 0);
    while amount >= 1024.0 && unit + 1 < units.len() {
        (amount, unit) = (amount / 1024.0, unit + 1);
    }
    let unit_name = units.get(unit).copied().unwrap_or_default();
    if unit == 0 { format!("{n} {unit_name}") } else { format!("{amount:.1} {unit_name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_is_told_beside_what_was_asked_for() {
        let usage = Usage {
            ran_ms: 10_000,
            cpu_ms: 12_300,
            memory_mib: Some(300),
            read_bytes: Some(5 << 20),
            written_bytes: Some(512),
            scratch_mib: Some(40),
            gpu_percent: Some(37),
            gpu_memory_mib: Some(8192),
        };
        let needs = Capacity { vcpus: 2, memory_mib: 1024, scratch_gib: 10, ..Capacity::default() };
        let used = Used { usage, needs };
        assert_eq!(
            used.cells(),
            ["12.3 s", "62 %", "300 MiB of 1 GiB", "5.0 MiB", "512 B", "40 MiB of 10 GiB", "37 % busy, 8 GiB"]
        );
        let unknown = Usage { cpu_ms: usage.cpu_ms, ..Usage::default() };
        assert_eq!(Used { usage: unknown, needs }.cells(), ["12.3 s", "", "", "", "", "", ""]);
        assert_eq!(Used { usage, needs: Capacity::default() }.cells()[2], "300 MiB");
        assert_eq!([cpu_time(300_000), cpu_time(9_000_000)], ["5.0 min", "2.5 h"]);
    }
}
