//! How busy the GPUs of an alloc are.
//!
//! The agent asks for all GPUs of the machine, and writes the answer to one file. The supervisors of the allocs read it: none
//! of them asks the driver, which may take seconds.
//!
//! Guarantees: only the GPUs of the alloc count, and only samples while its command runs; each sample counts once.
//! Does not: see what happens between two samples; each sample is about the last second.

use crate::work::alloc_dir::AllocDir;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GpuSample {
    pub(crate) busy_percent: Option<u64>,
    pub(crate) memory_mib: Option<u64>,
}

/// One sample for each GPU of the machine, by uuid.
pub(crate) type GpuSamples = BTreeMap<String, GpuSample>;

/// Adds up what the samples say of the GPUs of one alloc.
#[derive(Debug, Default)]
pub(crate) struct GpuMeter {
    uuids: Vec<String>,
    file: PathBuf,
    /// When the last counted samples were written.
    counted: Option<SystemTime>,
    percents: u64,
    samples: u64,
    pub(crate) memory_mib: Option<u64>,
}

impl GpuMeter {
    /// Measures these GPUs, which the alloc in `dir` has.
    pub(crate) fn new(uuids: &[String], dir: &AllocDir) -> Self {
        Self { uuids: uuids.to_owned(), file: dir.gpu_samples(), ..Self::default() }
    }

    /// Samples from before the start of the command do not count.
    pub(crate) fn begin(&mut self) {
        self.counted = self.written_at();
    }

    /// Counts the last samples, if they are new.
    pub(crate) fn sample(&mut self) {
        let written_at = self.written_at();
        if written_at == self.counted {
            return;
        }
        self.counted = written_at;
        let Ok(text) = fs::read(&self.file) else { return };
        let all: GpuSamples = serde_json::from_slice(&text).unwrap_or_default();
        for look in self.uuids.iter().filter_map(|uuid| all.get(uuid)) {
            if let Some(percent) = look.busy_percent {
                self.percents = self.percents.saturating_add(percent.min(100));
                self.samples += 1;
            }
            self.memory_mib = self.memory_mib.max(look.memory_mib);
        }
    }

    fn written_at(&self) -> Option<SystemTime> {
        let file = (!self.uuids.is_empty()).then(|| fs::metadata(&self.file).ok()).flatten()?;
        file.modified().ok()
    }

    /// How busy the GPUs were on average, in percent; `None` without a sample.
    pub(crate) fn percent(&self) -> Option<u64> {
        (self.samples > 0).then(|| (self.percents + self.samples / 2) / self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn new_looks_at_its_own_gpus_count_once_and_from_the_beginning_of_the_command() {
        let dir = tempfile::tempdir().unwrap();
        let alloc = AllocDir::at(dir.path().join("allocs/a"));
        let file = dir.path().join("gpu-samples.json");
        let look = |s: u64, text: &str| {
            fs::write(&file, text).unwrap();
            let at = SystemTime::UNIX_EPOCH + Duration::from_secs(s);
            fs::File::options().write(true).open(&file).unwrap().set_modified(at).unwrap();
        };
        fs::create_dir_all(alloc.path()).unwrap();
        let mut meter = GpuMeter::new(&["GPU-a".into(), "GPU-b".into()], &alloc);
        look(1, r#"{"GPU-a": {"busy_percent": 100, "memory_mib": 900}}"#);
        meter.begin();
        meter.sample();
        assert_eq!((meter.percent(), meter.memory_mib), (None, None), "that was before");
        look(2, r#"{"GPU-a": {"busy_percent": 60, "memory_mib": 5}, "GPU-c": {"busy_percent": 99, "memory_mib": 99}}"#);
        meter.sample();
        meter.sample();
        look(3, r#"{"GPU-a": {"busy_percent": 900}, "GPU-b": {"busy_percent": 11, "memory_mib": 7}}"#);
        meter.sample();
        assert_eq!((meter.percent(), meter.memory_mib), (Some(57), Some(7)));
        look(4, "what is this");
        meter.sample();
        assert_eq!(meter.percent(), Some(57));
        let mut none = GpuMeter::new(&[], &alloc);
        none.sample();
        assert_eq!(none.percent(), None);
    }
}
