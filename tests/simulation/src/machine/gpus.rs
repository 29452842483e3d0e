//! The GPUs of a machine: all of them, those that its driver shows late, and the one that is sick.

use super::Machine;
use crate::core::{Core, Fault};
use crate::scenario::GPUS;
use model::cloud::SIZE_TAG;
use model::{Instance, Span, Time};
use nodekeeper_agent::protocol::Gpu;

impl Machine {
    /// Tells the agent which of the machine's GPUs can be used.
    pub(super) fn notice_gpus(&mut self, now: Time) {
        let mut gpus = self.gpus.clone();
        if let Some((sick, until)) = self.sick_gpu
            && now < until
            && !self.core.is_healed()
            && let Some(gpu) = gpus.get_mut(sick)
        {
            gpu.sick = Some("it fell off the bus".to_owned());
        }
        if let Some((shown, until)) = self.late_gpus
            && now < until
            && !self.core.is_healed()
        {
            gpus.truncate(shown);
        }
        self.protocol.gpus = gpus;
    }
}

/// The GPUs of a machine, by the size of its launch.
pub(super) fn gpus_of(instance: &Instance) -> Vec<Gpu> {
    let is_gpu = instance.tags.get(SIZE_TAG).is_some_and(|size| size == "gpu");
    let gpu = |n| Gpu { uuid: format!("GPU-{n}"), model: String::new(), device: None, sick: None };
    (0..if is_gpu { GPUS } else { 0 }).map(gpu).collect()
}

/// How many of its GPUs a new machine shows at first, and until when.
pub(super) fn late_gpus(core: &Core, gpus: &[Gpu], now: Time) -> Option<(usize, Time)> {
    let is_late = !gpus.is_empty() && core.happens(Fault::GpusLate);
    let shown = usize::try_from(core.of(Fault::GpusLate, 0, i64::from(GPUS) - 1)).unwrap_or(0);
    is_late.then(|| (shown, now + Span::from_s(core.of(Fault::GpusLate, 5, 3600))))
}
