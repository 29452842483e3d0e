//! Which GPUs an alloc gets.
//!
//! An alloc holds its GPUs from the moment its directory names them until it has ended, or the machine was rebooted. So an agent
//! that starts again, even without its state file, reads from the directories which alloc holds which GPU.
//!
//! Guarantees: no GPU is given to two allocs at once; an alloc keeps the GPUs that it was given, because a supervisor may
//! have read their names already; a sick GPU is given to nobody.
//! Does not: find GPUs (`gpus` does), or know how they are connected.

use model::AllocId;
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The name of the GPU for programs: CUDA and containers take it.
    pub uuid: String,
    /// The model, for people.
    pub model: String,
    /// The device file, if it is known. Allocs that do not have this GPU cannot open the file.
    pub device: Option<std::path::PathBuf>,
    /// Why it cannot be used; `None` if it can.
    pub sick: Option<String>,
}

impl Gpu {
    pub const fn is_usable(&self) -> bool {
        self.sick.is_none()
    }
}

/// The GPUs that an alloc holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub alloc_id: AllocId,
    pub uuids: Vec<String>,
}

/// Why an alloc gets no GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// Other allocs have them, and may end.
    Now(String),
    /// The machine does not have this many usable GPUs.
    Always(String),
}

pub fn assign(alloc_id: AllocId, needs: u32, all: &[Gpu], holders: &[Holder]) -> Result<Vec<String>, Lacking> {
    let needs = needs as usize;
    if needs == 0 {
        return Ok(Vec::new());
    }
    let usable: BTreeSet<&str> = all.iter().filter(|gpu| gpu.is_usable()).map(|gpu| gpu.uuid.as_str()).collect();
    let too_few = || {
        let why = sick(all).map(|sick| format!(" ({sick})")).unwrap_or_default();
        Lacking::Always(format!("it needs {needs} GPUs and {} of this machine can be used{why}", usable.len()))
    };
    let own = holders.iter().find(|holder| holder.alloc_id == alloc_id);
    if let Some(own) = own.filter(|own| own.uuids.len() == needs) {
        let is_usable = own.uuids.iter().all(|uuid| usable.contains(uuid.as_str()));
        return if is_usable { Ok(own.uuids.clone()) } else { Err(too_few()) };
    }
    if usable.len() < needs {
        return Err(too_few());
    }
    let others = holders.iter().filter(|holder| holder.alloc_id != alloc_id);
    let held: BTreeSet<&str> = others.flat_map(|holder| &holder.uuids).map(String::as_str).collect();
    let free = all.iter().map(|gpu| gpu.uuid.as_str()).filter(|uuid| usable.contains(uuid) && !held.contains(uuid));
    let found: Vec<String> = free.take(needs).map(str::to_owned).collect();
    if found.len() < needs {
        return Err(Lacking::Now(format!("it needs {needs} GPUs and {} of this machine are free", found.len())));
    }
    Ok(found)
}

/// Which GPUs cannot be used, and why, for people; `None` if all can.
pub fn sick(all: &[Gpu]) -> Option<String> {
    let said = |gpu: &Gpu| {
        let model = if gpu.model.is_empty() { String::new() } else { format!(" ({})", gpu.model) };
        gpu.sick.as_ref().map(|why| format!("{}{model}: {why}", gpu.uuid))
    };
    let sick: Vec<String> = all.iter().filter_map(said).collect();
    (!sick.is_empty()).then(|| sick.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::alloc_id;

    fn gpus(n: usize) -> Vec<Gpu> {
        let gpu = |n| Gpu { uuid: format!("GPU-{n}"), model: String::new(), device: None, sick: None };
        (0..n).map(gpu).collect()
    }

    fn holder(copy: u32, uuids: &[&str]) -> Holder {
        let uuids = uuids.iter().map(|uuid| (*uuid).to_owned()).collect();
        Holder { alloc_id: alloc_id(copy), uuids }
    }

    #[test]
    fn an_alloc_gets_what_nobody_has_and_keeps_it() {
        let all = gpus(4);
        let got = |needs, holders: &[Holder]| assign(alloc_id(0), needs, &all, holders).map(|uuids| uuids.join(","));
        let (one, two) = (holder(1, &["GPU-0"]), holder(2, &["GPU-2"]));
        assert_eq!(got(0, std::slice::from_ref(&one)), Ok(String::new()));
        assert_eq!(got(2, &[]), Ok("GPU-0,GPU-1".into()));
        assert_eq!(got(2, &[one.clone(), two.clone()]), Ok("GPU-1,GPU-3".into()));
        assert!(matches!(got(3, &[one, two]), Err(Lacking::Now(_))));
        // An alloc keeps its own GPUs even if others are free now.
        assert_eq!(got(1, &[holder(0, &["GPU-3"])]), Ok("GPU-3".into()));
    }

    #[test]
    fn a_sick_gpu_is_given_to_nobody() {
        let mut all = gpus(2);
        (all[0].sick, all[0].model) = (Some("fell off the bus".into()), "A10G".into());
        let got = |needs, holders: &[Holder]| assign(alloc_id(0), needs, &all, holders);
        assert_eq!(got(1, &[]), Ok(vec!["GPU-1".to_owned()]));
        let why = "it needs 2 GPUs and 1 of this machine can be used (GPU-0 (A10G): fell off the bus)";
        assert_eq!(got(2, &[]), Err(Lacking::Always(why.into())));
        assert!(matches!(got(1, &[holder(0, &["GPU-0"])]), Err(Lacking::Always(_))), "it was healthy when it got it");
        assert!(matches!(got(1, &[holder(1, &["GPU-1"])]), Err(Lacking::Now(_))));
        assert!(matches!(assign(alloc_id(0), 1, &[], &[]), Err(Lacking::Always(_))));
    }
}
