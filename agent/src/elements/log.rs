//! The file `elements` in the directory of an alloc: a line for each end of an element.
//!
//! ```text
//! 17 exit:0 120      element, outcome, bytes that it printed
//! 18 - 7             it was stopped with its alloc: it has no outcome
//! 19 memory -        it ran when the alloc ended; what it printed is not known
//! ```
//!
//! Guarantees: the order of the lines is that of the output; a line that a crash cut off is not read.
//! Does not: use the order of the lines for anything else: the results are a set.

use super::frames::{BadStream, FrameContent, FrameParser};
use crate::isolation::cgroup;
use crate::machine::atomic_file::if_there;
use model::{ElementReport, EndCause, Outcome, Pack, Ranges, Stream};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of the signal KILL.
const KILL: i32 = 9;
/// The exit code of a shell whose command was killed.
const SHELL_KILL: i32 = 128 + KILL;

/// The frames of one alloc while they come, and their file.
pub struct ElementsLog {
    file: File,
    frames: FrameParser,
    path: PathBuf,
    /// The elements that run now, each with the number of bytes that it has printed.
    running: BTreeMap<u32, u64>,
    /// The control group of the alloc, and how many of the kernel's kills for memory in this group were blamed on an element so
    /// far.
    group: Option<PathBuf>,
    kills: u64,
    /// The number of elements that the supervisor has killed for their memory and that have not ended yet.
    killed: Arc<AtomicU32>,
}

impl ElementsLog {
    pub(crate) fn create(path: PathBuf, group: Option<PathBuf>) -> io::Result<Self> {
        let file = File::options().append(true).create(true).mode(0o600).open(&path)?;
        let (frames, running) = (FrameParser::default(), BTreeMap::new());
        Ok(Self { file, frames, path, running, group, kills: 0, killed: Arc::default() })
    }

    /// Where the supervisor counts the elements that it kills for their memory.
    pub(crate) fn out_of_memory(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.killed)
    }

    /// Reads a part of the stream. `print` gets the output of the elements, in the order of the stream.
    pub(crate) fn read(&mut self, bytes: &[u8], mut print: impl FnMut(Stream, &[u8])) -> Result<(), BadStream> {
        let (frames, end) = self.frames.read(bytes);
        for frame in frames {
            let printed = match &frame.content {
                FrameContent::Begin => {
                    self.running.insert(frame.element, 0);
                    continue;
                }
                FrameContent::Out(bytes) => (Stream::Out, bytes),
                FrameContent::Err(bytes) => (Stream::Err, bytes),
                FrameContent::End(outcome) => {
                    let bytes = self.running.remove(&frame.element).unwrap_or(0);
                    let outcome = outcome.map(|outcome| self.judged(outcome));
                    self.note(frame.element, outcome, Some(bytes));
                    continue;
                }
            };
            print(printed.0, printed.1);
            let bytes = self.running.entry(frame.element).or_insert(0);
            *bytes = bytes.saturating_add(printed.1.len() as u64);
        }
        end
    }

    /// Finds out whether an element was killed for its memory. After a kill by the supervisor, that is the next element that ends
    /// by KILL. The kernel may kill only one process of an element: then a shell above it ends with 137, and an element that ran
    /// alone may fail in any way.
    fn judged(&mut self, outcome: Outcome) -> Outcome {
        let was_killed = matches!(outcome, Outcome::Signal(KILL) | Outcome::Exit(SHELL_KILL));
        if was_killed && self.killed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok() {
            return Outcome::Memory;
        }
        let kills = self.group.as_deref().and_then(cgroup::memory_kills).unwrap_or(self.kills);
        if !was_killed && !self.running.is_empty() {
            return outcome;
        }
        let is_for_memory = kills > self.kills && outcome != Outcome::SUCCESS;
        self.kills = kills;
        if is_for_memory { Outcome::Memory } else { outcome }
    }

    /// Notes the elements that still ran when the alloc ended for this cause. Returns the cause of the alloc: if all elements were
    /// run that begin, their results decide it.
    pub(crate) fn end(mut self, cause: EndCause, pack: &Pack) -> EndCause {
        let outcome = Outcome::of_end(&cause);
        for (element, bytes) in std::mem::take(&mut self.running) {
            // Only one element at a time prints into the output, so these bytes are the last ones there.
            self.note(element, outcome, (bytes > 0).then_some(bytes));
        }
        if cause != (EndCause::Exited { code: 0 }) {
            return cause;
        }
        let lost = |why: String| EndCause::Lost { why };
        match report_in(&self.path) {
            Ok(told) => {
                told.results.cause(pack).unwrap_or_else(|| lost("what ran its elements ended before them".into()))
            }
            Err(e) => lost(format!("cannot read how its elements ended: {e}")),
        }
    }

    /// If the line cannot be written, the element runs again.
    fn note(&mut self, element: u32, outcome: Option<Outcome>, bytes: Option<u64>) {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let (outcome, bytes) = (or_none(outcome.map(|o| o.to_string())), or_none(bytes.map(|b| b.to_string())));
        if let Err(error) = self.file.write_all(format!("{element} {outcome} {bytes}\n").as_bytes()) {
            tracing::error!(%error, element, "cannot write down how an element ended");
        }
    }
}

/// The content of the file; empty if there is no file.
pub(crate) fn report_in(path: &Path) -> io::Result<ElementReport> {
    let Some(text) = if_there(fs::read_to_string(path))? else { return Ok(ElementReport::default()) };
    let mut told = ElementReport::default();
    let mut ended: BTreeMap<Outcome, Vec<u32>> = BTreeMap::new();
    // The last line may be cut off.
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let mut words = line.split(' ');
        let (Some(element), Some(outcome), Some(bytes)) = (words.next(), words.next(), words.next()) else { continue };
        let Ok(element) = element.parse() else { continue };
        if let Ok(outcome) = outcome.parse() {
            ended.entry(outcome).or_default().push(element);
        }
        if let Ok(bytes) = bytes.parse() {
            told.places.push(element, bytes);
        }
    }
    for (outcome, elements) in ended {
        told.results.add(outcome, &elements.into_iter().collect::<Ranges>());
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::frames::Frame;

    #[test]
    fn the_file_says_how_elements_ended_and_where_their_output_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("elements");
        assert!(report_in(&path).unwrap().is_empty(), "there is none");
        let mut log = ElementsLog::create(path.clone(), None).unwrap();
        let mut printed = Vec::new();
        for (element, content) in [
            (0, FrameContent::Begin),
            (0, FrameContent::Out(b"one".to_vec())),
            (0, FrameContent::Err(b"!".to_vec())),
            (0, FrameContent::End(Some(Outcome::SUCCESS))),
            (1, FrameContent::Begin),
            (2, FrameContent::Begin),
            (2, FrameContent::End(Some(Outcome::Exit(3)))),
            (1, FrameContent::Out(b"tw".to_vec())),
            (3, FrameContent::Begin),
        ] {
            log.read(&Frame { element, content }.bytes(), |_, bytes| printed.extend_from_slice(bytes)).unwrap();
        }
        let over = EndCause::OverMemory { allowed_mib: 1, used_mib: None };
        assert_eq!(log.end(over.clone(), &Pack::of(Ranges::of(0, 3))), over);
        assert_eq!(printed, b"one!tw");
        fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"9 exit:0 7").unwrap();
        let told = report_in(&path).unwrap();
        assert_eq!(told.places.to_string(), "0*4,2*0,1*2");
        assert_eq!(told.results.failures(), "2 (exit:3), 1,3 (memory)");
        assert_eq!(told.results.ended().to_string(), "0-3");
    }

    #[test]
    fn an_element_that_was_killed_for_its_memory_says_so_and_no_other_does() {
        let dir = tempfile::tempdir().unwrap();
        let (path, group) = (dir.path().join("elements"), dir.path().to_owned());
        let kernel = |kills: u32| fs::write(group.join("memory.events"), format!("oom_kill {kills}\n")).unwrap();
        kernel(0);
        let mut log = ElementsLog::create(path.clone(), Some(group.clone())).unwrap();
        let supervisor = log.out_of_memory();
        let mut say = |element, content| log.read(&Frame { element, content }.bytes(), |_, _| ()).unwrap();
        let end = |outcome| FrameContent::End(Some(outcome));
        (0..8).for_each(|element| say(element, FrameContent::Begin));
        say(0, end(Outcome::Signal(KILL)));
        supervisor.fetch_add(1, Ordering::SeqCst);
        say(1, end(Outcome::SUCCESS));
        say(2, end(Outcome::Signal(KILL)));
        say(3, end(Outcome::Signal(KILL)));
        kernel(1);
        say(4, end(Outcome::Exit(1)));
        say(5, end(Outcome::Exit(SHELL_KILL)));
        kernel(2);
        say(6, end(Outcome::Exit(2)));
        say(7, end(Outcome::Exit(1)));
        say(8, FrameContent::Begin);
        say(8, end(Outcome::Exit(1)));
        drop(log);
        let failures = report_in(&path).unwrap().results.failures();
        assert_eq!(failures, "4,8 (exit:1), 6 (exit:2), 0,3 (signal:9), 2,5,7 (memory)");
    }
}
