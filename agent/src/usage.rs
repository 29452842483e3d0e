//! What an alloc uses: CPU time, memory, and bytes from and to storage.
//!
//! Where the alloc has a control group of version 2, the group says it. Elsewhere the kernel adds up in the supervisor what
//! its ended children used, and the memory is looked at while they run.
//!
//! Guarantees: a look costs a few small files of `/proc`; what a machine does not count is absent, and not 0; the memory of a
//! group is without the files that the kernel keeps only as long as nobody needs the room.
//! Does not: see a process that ended without being waited for, memory between two looks, or what a container uses: docker's
//! daemon runs that. Shared pages count once for each process where there is no group, so the memory is never too low.

use crate::alloc_dir::AllocDir;
use crate::process_table::memory_kib;
use model::Usage;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::Instant;

/// How often it is said what a command used so far.
const NEWS: Duration = Duration::from_secs(30);

/// A command that has just begun is still the program that starts it.
const FIRST_LOOK: Duration = Duration::from_millis(250);

/// The clock ticks of `/proc` in a second are 100 on Linux.
const MS_PER_TICK: u64 = 10;

/// Measures one alloc.
#[derive(Debug)]
pub(crate) struct Meter {
    group: Option<PathBuf>,
    began: Instant,
    /// How long the command ran; `None` while it runs.
    ran: Option<Duration>,
    /// The most memory so far.
    memory_kib: Option<u64>,
    news_at: Instant,
}

impl Meter {
    /// Begins with the command. `group` is the control group of the alloc, if it has one.
    pub(crate) fn new(group: Option<&Path>, now: Instant) -> Self {
        Self { group: group.map(Path::to_owned), began: now, ran: None, memory_kib: None, news_at: now + NEWS }
    }

    /// Looks at what the processes of the alloc in `dir` use now. Now and then this is written down, for the agent to tell.
    pub(crate) fn look(&mut self, pids: &[i32], dir: &AllocDir, now: Instant) {
        self.sample(pids, now);
        if let Some(usage) = self.news(pids, now)
            && let Err(error) = dir.write_used(&usage)
        {
            tracing::warn!(%error, "cannot write down what the command used so far");
        }
    }

    /// Looks at the memory now.
    fn sample(&mut self, pids: &[i32], now: Instant) {
        if now.duration_since(self.began) < FIRST_LOOK {
            return;
        }
        let of_group = self.group.as_deref().and_then(group_memory_kib);
        self.memory_kib = self.memory_kib.max(of_group.or_else(|| processes_kib(pids)));
    }

    /// What was used so far, each half a minute.
    fn news(&mut self, pids: &[i32], now: Instant) -> Option<Usage> {
        if now < self.news_at {
            return None;
        }
        self.news_at = now + NEWS;
        let mut usage = self.usage_in(Path::new("/proc/self"), now.duration_since(self.began))?;
        if self.group.is_none() {
            let of_living: u64 = pids.iter().map(|pid| cpu_ms_of(&stat_of(*pid)).unwrap_or(0)).sum();
            usage.cpu_ms = usage.cpu_ms.saturating_add(of_living);
        }
        Some(usage)
    }

    /// The command has ended.
    pub(crate) fn end(&mut self, now: Instant) {
        self.ran = Some(now.duration_since(self.began));
    }

    /// Nobody can tell what the command used.
    pub(crate) fn forget(&mut self) {
        self.ran = None;
    }

    /// What was used, when nothing of the alloc runs any more and its group is still there. `None` if nobody can tell.
    pub(crate) fn usage(&self) -> Option<Usage> {
        self.usage_in(Path::new("/proc/self"), self.ran?)
    }

    fn usage_in(&self, own: &Path, ran: Duration) -> Option<Usage> {
        let text = |path: &Path| fs::read_to_string(path).ok();
        let group = self.group.as_deref();
        let of_group = group.and_then(|group| group_cpu_ms(&text(&group.join("cpu.stat"))?));
        let cpu_ms = of_group.or_else(|| children_cpu_ms(&text(&own.join("stat"))?))?;
        // A command that ended before the first look has at least this.
        let peak = || number(&text(&group?.join("memory.peak"))?).map(|bytes| bytes / 1024);
        let io = group.and_then(|group| group_io(&text(&group.join("io.stat"))?));
        let io = io.or_else(|| children_io(&text(&own.join("io"))?));
        Some(Usage {
            ran_ms: u64::try_from(ran.as_millis()).ok()?,
            cpu_ms,
            memory_mib: self.memory_kib.or_else(peak).map(|kib| kib.div_ceil(1024)),
            read_bytes: io.map(|(read, _)| read),
            written_bytes: io.map(|(_, written)| written),
        })
    }
}

fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The number behind a word at the beginning of a line.
fn behind(text: &str, word: &str) -> Option<u64> {
    text.lines().find_map(|line| number(line.strip_prefix(word)?))
}

/// What the processes of a group hold, without files that nobody has used lately.
fn group_memory_kib(group: &Path) -> Option<u64> {
    let current = number(&fs::read_to_string(group.join("memory.current")).ok()?)?;
    let idle = behind(&fs::read_to_string(group.join("memory.stat")).unwrap_or_default(), "inactive_file ");
    Some(current.saturating_sub(idle.unwrap_or(0)) / 1024)
}

/// What these processes hold together, or what one of them once held, if that is more.
fn processes_kib(pids: &[i32]) -> Option<u64> {
    let all: Vec<[u64; 2]> = pids.iter().map(|pid| memory_kib(*pid, "status", ["VmRSS", "VmHWM"])).collect();
    let together = all.iter().map(|[now, _]| *now).fold(0, u64::saturating_add);
    let once = all.iter().map(|[_, once]| *once).max()?;
    Some(together.max(once)).filter(|kib| *kib > 0)
}

fn group_cpu_ms(stat: &str) -> Option<u64> {
    behind(stat, "usage_usec ").map(|us| us / 1000)
}

/// What was read and written by a group, over all devices.
fn group_io(stat: &str) -> Option<(u64, u64)> {
    let sum = |word: &str| {
        let of_line = |line: &str| line.split_ascii_whitespace().find_map(|field| number(field.strip_prefix(word)?));
        stat.lines().filter_map(of_line).reduce(u64::saturating_add)
    };
    Some((sum("rbytes=")?, sum("wbytes=")?))
}

fn stat_of(pid: i32) -> String {
    fs::read(format!("/proc/{pid}/stat")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The CPU time of the children that this process has waited for, and of theirs.
fn children_cpu_ms(stat: &str) -> Option<u64> {
    ticks_ms(stat, 13, 2)
}

/// The CPU time of this process, and of the children that it has waited for, and of theirs.
fn cpu_ms_of(stat: &str) -> Option<u64> {
    ticks_ms(stat, 11, 4)
}

/// The sum of so many fields behind the name of the process.
fn ticks_ms(stat: &str, first: usize, count: usize) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let times: Vec<u64> = fields.split_ascii_whitespace().skip(first).take(count).map(number).collect::<Option<_>>()?;
    (times.len() == count).then(|| times.into_iter().fold(0, u64::saturating_add).saturating_mul(MS_PER_TICK))
}

/// What this process and the children that it has waited for have read and written.
fn children_io(io: &str) -> Option<(u64, u64)> {
    Some((behind(io, "read_bytes: ")?, behind(io, "write_bytes: ")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    const STAT: &str = "42 (a) b (c) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 120 34 20 0 1 0 987654 1 2 3";
    const IO: &str = "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n";

    fn measured(group: Option<&Path>, own: &Path) -> Option<Usage> {
        let now = Instant::now();
        let mut meter = Meter::new(group, now);
        meter.sample(&[], now + FIRST_LOOK);
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
            Usage { ran_ms: 3000, cpu_ms: 2500, memory_mib: None, read_bytes: Some(4096), written_bytes: Some(8192) };
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
        let cpu_only = Usage { ran_ms: 3000, cpu_ms: 1540, memory_mib: None, read_bytes: None, written_bytes: None };
        assert_eq!(usage, cpu_only, "this kernel does not count storage");
        for bad in ["", "42 (a", "42 (a) S 1 2", "42 (a) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 -1 x"] {
            assert_eq!(children_cpu_ms(bad), None, "{bad}");
        }
        assert_eq!((children_io(IO), children_io("read_bytes: 1")), (Some((4096, 8192)), None));
    }

    #[test]
    fn what_was_used_so_far_is_said_each_half_a_minute() {
        let own = std::process::id() as i32;
        let mut meter = Meter::new(None, Instant::now());
        let at = |meter: &Meter, s: u64| meter.began + Duration::from_secs(s);
        assert_eq!(meter.news(&[own], at(&meter, 29)), None);
        let news = meter.news(&[own], at(&meter, 31)).unwrap();
        assert_eq!(news.ran_ms, 31_000, "it still runs");
        let of_own = cpu_ms_of(&stat_of(own)).unwrap();
        assert!(news.cpu_ms <= 2 * of_own + 1000, "{news:?}, {of_own}");
        assert_eq!(meter.news(&[own], at(&meter, 60)), None);
        assert!(meter.news(&[own], at(&meter, 61)).is_some());
        assert_eq!(meter.usage(), None, "the end is not known yet");
        assert_eq!((cpu_ms_of(STAT), children_cpu_ms(STAT)), (Some(1650), Some(1540)));
    }

    #[test]
    fn the_memory_of_processes_is_what_they_hold_or_once_held() {
        let own = std::process::id() as i32;
        let one = processes_kib(&[own]).unwrap();
        assert!(processes_kib(&[own, own]).unwrap() >= one && one > 0);
        assert_eq!((processes_kib(&[]), processes_kib(&[i32::MAX])), (None, None));
        let mut meter = Meter::new(None, Instant::now());
        meter.sample(&[own], meter.began);
        assert_eq!(meter.memory_kib, None, "too early");
        meter.sample(&[own], meter.began + FIRST_LOOK);
        assert!(meter.memory_kib >= Some(one));
    }
}
