//! What happens to an alloc that needs more memory than it may use.
//!
//! Guarantees: of a pack, the elements that hold the most are killed, as few as are enough, and the others go on; any other alloc ends.
//! Does not: look at an alloc whose memory the kernel limits, or kill. The supervisor does.

use crate::alloc_dir::AllocTask;
use crate::isolation::cgroup;
use crate::memory;
use crate::process_table::{ProcessEntry, memory_kib};
use model::EndCause;
use std::collections::BTreeMap;

/// What must be killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    Alloc(EndCause),
    /// The processes of each of these elements. The first one began it, and leads a group.
    Elements(Vec<Vec<i32>>),
}

/// Whether the kernel killed a process of the alloc for the memory limit of its control group.
pub(crate) fn was_killed(task: &AllocTask) -> bool {
    let group = task.isolation.as_ref().and_then(|i| i.cgroup.as_deref());
    task.order.needs.memory_mib > 0 && group.and_then(cgroup::memory_kills).is_some_and(|kills| kills > 0)
}

/// What must be killed of these processes; `runner` began the elements, if this is a pack. `None`: nothing.
pub(crate) fn over_memory(task: &AllocTask, found: &[ProcessEntry], runner: i32) -> Option<Over> {
    let allowed_mib = task.order.needs.memory_mib;
    let group = task.isolation.as_ref().and_then(|i| i.cgroup.as_deref());
    if allowed_mib == 0 || task.runtime.enforces_memory_limit() || group.is_some_and(cgroup::limits_memory) {
        return None;
    }
    let mut left: Vec<i32> = found.iter().map(|p| p.pid).collect();
    let used_mib = memory::above_mib(allowed_mib, &left)?;
    let mut running = if task.order.work.pack.is_some() { elements(found, runner) } else { Vec::new() };
    running.sort_by_cached_key(|pids| pids.iter().flat_map(|pid| memory_kib(*pid, "status", ["VmRSS"])).sum::<u64>());
    let mut largest = Vec::new();
    while memory::above_mib(allowed_mib, &left).is_some() {
        // The elements hold none of it: it is in what they share, or what runs them.
        let Some(element) = running.pop() else {
            return Some(Over::Alloc(EndCause::OverMemory { allowed_mib, used_mib: Some(used_mib) }));
        };
        left.retain(|pid| !element.contains(pid));
        largest.push(element);
    }
    Some(Over::Elements(largest))
}

/// The processes of each element: the child of the runner, and all below it.
fn elements(found: &[ProcessEntry], runner: i32) -> Vec<Vec<i32>> {
    let parents: BTreeMap<i32, i32> = found.iter().map(|p| (p.pid, p.parent)).collect();
    let element_of = |pid: i32| {
        let above = std::iter::successors(Some(pid), |pid| parents.get(pid).copied()).take(found.len());
        above.into_iter().find(|pid| parents.get(pid) == Some(&runner))
    };
    let mut elements: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for p in found {
        if let Some(element) = element_of(p.pid) {
            elements.entry(element).or_default().push(p.pid);
        }
    }
    // The smallest pid need not be the one that began it.
    for (first, pids) in &mut elements {
        pids.sort_unstable_by_key(|pid| pid != first);
    }
    elements.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processes_of_an_element_are_those_below_the_child_of_the_runner() {
        let entry = |pid, parent| ProcessEntry { pid, parent, session: 1, start_ticks: 0, zombie: false };
        // 9 is the runner; 40 was adopted, and 3 has a smaller pid than who began it.
        let found = [entry(9, 1), entry(20, 9), entry(3, 20), entry(30, 9), entry(31, 3), entry(40, 1)];
        assert_eq!(elements(&found, 9), [vec![20, 3, 31], vec![30]]);
        assert!(elements(&found, 1000).is_empty());
    }
}
