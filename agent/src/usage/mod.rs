//! Measures what an alloc uses: CPU time, memory, bytes from and to storage, scratch space, and GPUs.
//!
//! Where the alloc has a control group of version 2, the group counts it. Elsewhere the kernel adds up in the supervisor what its
//! ended children used, and the memory is measured while they run. A container is measured from outside (`container`).
//!
//! Guarantees: a sample reads a few small files of `/proc`; what a machine does not count is absent, and not 0; the memory of a group
//! does not include files that the kernel keeps only as long as nobody needs the room; the time begins with the command, and not
//! with the fetch of its inputs and its image.
//! Does not: see a process that ended without being waited for, or memory between two looks. Shared pages count once for each
//! process where there is no group, so the memory is never too low.

mod container;
mod gpus;
mod group;
mod processes;
mod text;

pub(crate) use gpus::{GpuMeter, GpuSample, GpuSamples};

use crate::runtime::init::InitWatch;
use crate::work::alloc_dir::AllocDir;
use crate::work::scratch::MostScratch;
use container::{ContainerCounts, ContainerMeter};
use model::Usage;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often the usage so far is written down.
const NEWS: Duration = Duration::from_secs(30);

/// Before this, the process may still be the program that starts the command.
const FIRST_SAMPLE: Duration = Duration::from_millis(250);

pub(crate) struct Meter {
    of: Counter,
    began: Instant,
    ran: Option<Duration>,
    memory_kib: Option<u64>,
    news_at: Instant,
    scratch: MostScratch,
    gpus: GpuMeter,
}

/// What counts the usage of an alloc.
enum Counter {
    /// The control group of the alloc, if it has one. Otherwise the kernel's counts for the children of the supervisor.
    Own(Option<PathBuf>),
    Container(ContainerMeter),
}

impl Meter {
    /// `group` is the control group of the alloc, if it has one.
    pub(crate) fn new(group: Option<&Path>, gpus: GpuMeter, now: Instant) -> Self {
        let of = Counter::Own(group.map(Path::to_owned));
        let scratch = MostScratch::default();
        Self { of, began: now, ran: None, memory_kib: None, news_at: now + NEWS, scratch, gpus }
    }

    /// Notes that the command has just begun, in a container if there is one.
    pub(crate) fn begin(&mut self, container: Option<Arc<InitWatch>>, now: Instant) {
        (self.began, self.news_at) = (now, now + NEWS);
        self.gpus.begin();
        if let Some(watch) = container {
            self.of = Counter::Container(ContainerMeter { watch, counts: ContainerCounts::default() });
        }
    }

    /// The most scratch space in a sample.
    pub(crate) fn scratch(&self) -> MostScratch {
        self.scratch.clone()
    }

    /// Measures the alloc in `dir` now. `pids` are the processes below the supervisor. Every `NEWS`, writes the usage down for the
    /// agent.
    pub(crate) fn measure(&mut self, pids: &[i32], dir: &AllocDir, now: Instant) {
        self.sample(pids, now);
        self.gpus.sample();
        if let Some(usage) = self.news(pids, now)
            && let Err(error) = dir.write_used(&usage)
        {
            tracing::warn!(%error, "cannot write down what the command used so far");
        }
    }

    /// Measures the memory now.
    fn sample(&mut self, pids: &[i32], now: Instant) {
        if now.duration_since(self.began) < FIRST_SAMPLE {
            return;
        }
        let kib = match &mut self.of {
            Counter::Own(group) => group.as_deref().and_then(group::memory_kib).or_else(|| processes::memory_kib(pids)),
            Counter::Container(container) => {
                container.sample();
                container.counts.memory_kib
            }
        };
        self.memory_kib = self.memory_kib.max(kib);
    }

    /// The usage so far, once every `NEWS`.
    fn news(&mut self, pids: &[i32], now: Instant) -> Option<Usage> {
        if now < self.news_at {
            return None;
        }
        self.news_at = now + NEWS;
        let mut usage = self.usage_in(Path::new("/proc/self"), now.duration_since(self.began))?;
        if matches!(self.of, Counter::Own(None)) {
            usage.cpu_ms = usage.cpu_ms.saturating_add(processes::cpu_ms(pids));
        }
        Some(usage)
    }

    /// Notes that the command has ended.
    pub(crate) fn end(&mut self, now: Instant) {
        self.ran = Some(now.duration_since(self.began));
        self.gpus.sample();
        if let Counter::Container(container) = &self.of {
            container.watch.end();
        }
    }

    /// The usage of the alloc. Call this when nothing of it runs any more and its group still exists. `None` if it cannot be known.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.usage_in(Path::new("/proc/self"), self.ran?)
    }

    fn usage_in(&self, own: &Path, ran: Duration) -> Option<Usage> {
        let (cpu_ms, peak_kib, io) = match &self.of {
            Counter::Own(group) => {
                let group = group.as_deref();
                let cpu_ms = group.and_then(group::cpu_ms).or_else(|| processes::children_cpu_ms(own));
                let io = group.and_then(group::io).or_else(|| processes::children_io(own));
                // For a command that ended before the first sample, only the peak is known.
                (cpu_ms, group.and_then(group::peak_kib), io)
            }
            Counter::Container(container) => (container.counts.cpu_ms, None, container.counts.io),
        };
        Some(Usage {
            ran_ms: u64::try_from(ran.as_millis()).ok()?,
            cpu_ms: cpu_ms?,
            memory_mib: self.memory_kib.or(peak_kib).map(|kib| kib.div_ceil(1024)),
            read_bytes: io.map(|(read, _)| read),
            written_bytes: io.map(|(_, written)| written),
            scratch_mib: self.scratch.mib(),
            gpu_percent: self.gpus.percent(),
            gpu_memory_mib: self.gpus.memory_mib,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    const STAT: &str = "42 (a) b (c) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 120 34 20 0 1 0 987654 1 2 3";
    const IO: &str = "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n";

    fn measured(group: Option<&Path>, own: &Path) -> Option<Usage> {
        let now = Instant::now();
        let mut meter = Meter::new(group, GpuMeter::default(), now);
        meter.sample(&[], now + FIRST_SAMPLE);
        meter.end(now + Duration::from_secs(3));
        meter.usage_in(own, meter.ran?)
    }

    #[test]
    fn a_group_says_what_it_used() {
        let (group, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(own.path(), &[("stat", STAT), ("io", IO)]);
        write(group.path(), &[("cpu.stat", "usage_usec 2500999\nuser_usec 1\nsystem_usec 2\n")]);
        let usage = measured(Some(group.path()), own.path()).unwrap();
        let bare =
            Usage { ran_ms: 3000, cpu_ms: 2500, read_bytes: Some(4096), written_bytes: Some(8192), ..Usage::default() };
        assert_eq!(usage, bare, "without a controller for memory and storage");
        write(
            group.path(),
            &[
                ("memory.peak", "104857600\n"),
                ("io.stat", "8:0 rbytes=1000 wbytes=20 rios=1\n8:16 rbytes=5 wbytes=7 rios=1\n"),
            ],
        );
        let usage = measured(Some(group.path()), own.path()).unwrap();
        let of_peak = Usage { memory_mib: Some(100), read_bytes: Some(1005), written_bytes: Some(27), ..bare };
        assert_eq!(usage, of_peak, "it ended before the first look");
        write(
            group.path(),
            &[("memory.current", "73400320\n"), ("memory.stat", "anon 5\ninactive_file 10485760\nactive_file 7\n")],
        );
        let usage = measured(Some(group.path()), own.path()).unwrap();
        assert_eq!(usage, Usage { memory_mib: Some(60), ..of_peak }, "without idle files");
    }

    #[test]
    fn without_a_group_the_ended_children_say_it() {
        let own = tempfile::tempdir().unwrap();
        assert_eq!(measured(None, own.path()), None);
        write(own.path(), &[("stat", STAT)]);
        let usage = measured(None, own.path()).unwrap();
        let cpu_only = Usage { ran_ms: 3000, cpu_ms: 1540, ..Usage::default() };
        assert_eq!(usage, cpu_only, "this kernel does not count storage");
        write(own.path(), &[("io", "read_bytes: 1")]);
        assert_eq!(measured(None, own.path()), Some(cpu_only));
        write(own.path(), &[("io", IO)]);
        let usage = measured(None, own.path());
        assert_eq!(usage, Some(Usage { read_bytes: Some(4096), written_bytes: Some(8192), ..cpu_only }));
    }

    #[test]
    fn what_was_used_so_far_is_said_each_half_a_minute() {
        let own = std::process::id() as i32;
        let mut meter = Meter::new(None, GpuMeter::default(), Instant::now());
        let at = |meter: &Meter, s: u64| meter.began + Duration::from_secs(s);
        assert_eq!(meter.news(&[own], at(&meter, 29)), None);
        let news = meter.news(&[own], at(&meter, 31)).unwrap();
        assert_eq!(news.ran_ms, 31_000, "it still runs");
        let of_own = processes::cpu_ms(&[own]);
        assert!(news.cpu_ms <= 2 * of_own + 1000, "{news:?}, {of_own}");
        assert_eq!(meter.news(&[own], at(&meter, 60)), None);
        assert!(meter.news(&[own], at(&meter, 61)).is_some());
        assert_eq!(meter.usage(), None, "the end is not known yet");
    }

    #[test]
    fn a_command_that_has_just_begun_is_not_looked_at() {
        let own = std::process::id() as i32;
        let mut meter = Meter::new(None, GpuMeter::default(), Instant::now());
        meter.sample(&[own], meter.began);
        assert_eq!(meter.memory_kib, None, "too early");
        meter.sample(&[own], meter.began + FIRST_SAMPLE);
        assert!(meter.memory_kib > Some(0));
    }

    #[test]
    fn the_time_begins_with_the_command_and_not_with_what_is_fetched_for_it() {
        let now = Instant::now();
        let mut meter = Meter::new(None, GpuMeter::default(), now);
        meter.begin(None, now + Duration::from_secs(600));
        assert_eq!(meter.news(&[], now + Duration::from_secs(620)), None);
        meter.end(now + Duration::from_secs(603));
        assert_eq!(meter.usage().unwrap().ran_ms, 3000);
    }
}
