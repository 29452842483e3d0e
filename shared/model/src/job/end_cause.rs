//! Why an alloc or a job ended: one closed list, with its JSON and its words.
//!
//! Guarantees: every end that a node reports, and every end of a job, has one of these causes; the words are made here, for
//! every list, page and document alike; a cause says by itself whether the alloc is complete, failed or lost, and who pays for it.
//! Does not: say what follows for the job (`job` does).

use crate::enums::{ClientStatus, Service};
use crate::image;
use crate::usage;
use crate::{Checkpoint, ElementReport, ImageDigest, StoredOutput, Switches, Usage, signals};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The longest text of a cause, in bytes.
const MAX_TEXT_BYTES: usize = 1024;
/// The longest text about each further output that is missing, in bytes.
const MAX_OTHER_BYTES: usize = 200;

/// The longest last line that is kept, in characters.
const MAX_LINE_CHARS: usize = 200;

/// The exit code of a command that ran longer than it may, as that of `timeout`.
const TIMED_OUT: i32 = 124;
/// The exit code of a command that used more memory or scratch space than it may: as if the kernel had killed it.
const KILLED: i32 = 137;
/// The exit code if a program cannot be run, as in a shell.
const CANNOT_RUN: i32 = 126;
/// The exit code of a pack of which some elements failed.
const SOME_FAILED: i32 = 1;
/// The exit code if a program does not exist, as in a shell.
const NO_PROGRAM: i32 = 127;

/// Why an alloc or a job ended. In JSON an object with `kind` and the fields of the kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EndCause {
    /// The command ended with this exit code.
    Exited {
        /// The exit code.
        code: i32,
    },
    /// A signal that nodekeeper did not send ended the command.
    Signalled {
        /// The number of the signal.
        signal: i32,
    },
    /// The alloc ran longer than it may. It failed, whatever its command did at the end.
    OverTime {
        /// The time limit, in seconds.
        limit_s: u64,
    },
    /// The alloc needed more memory than it may use.
    OverMemory {
        /// The memory limit, in MiB.
        allowed_mib: u64,
        /// How much it used, if that was measured.
        used_mib: Option<u64>,
    },
    /// The alloc wrote more than its scratch space.
    OverScratch {
        /// The scratch space, in GiB.
        allowed_gib: u64,
        /// The size of its directories, in MiB.
        used_mib: u64,
    },
    /// There is no such program on the node.
    NotFound {
        /// The program, as the command names it.
        program: String,
    },
    /// The program exists and cannot be executed.
    NotExecutable {
        /// The program, as the command names it.
        program: String,
    },
    /// The interpreter that the program names does not exist.
    NoInterpreter {
        /// The program, as the command names it.
        program: String,
        interpreter: String,
    },
    /// The command succeeded, but some of its outputs cannot be kept.
    NoOutput {
        /// The first output that is missing.
        path: String,
        /// What is at its path instead, or why it cannot be read.
        why: String,
        /// The other outputs that are missing, and why.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        others: BTreeMap<String, String>,
    },
    /// Elements of a pack failed. The others did not.
    ElementsFailed {
        /// How many failed.
        failed: u64,
        /// How many elements the alloc or the job has.
        elements: u64,
    },
    /// The alloc was told to stop, and ended.
    Stopped {
        /// Why it was told to stop.
        why: String,
        /// The exit code of its command then; absent if the command had not been started.
        code: Option<i32>,
    },
    /// The node could not start the command, which has never run.
    NotStarted {
        /// What the node could not do.
        why: String,
    },
    /// A service did not answer the node, or refused the node itself. The command has not run, or what it made is not stored.
    NoService { service: Service, why: String },
    /// The node is gone, or what ran there was lost.
    Lost {
        /// What happened.
        why: String,
    },
    /// EC2 took the spot instance of the node back, as it had announced.
    Interrupted {
        /// What happened then.
        why: String,
    },
    /// The owner of the node took it out of service on purpose: an operator by a drain, or EC2 when a reservation ended or a
    /// machine retired.
    Moved {
        /// Who did, and when.
        why: String,
    },
    /// The job can never run.
    Rejected { why: String },
    /// Somebody cancelled the job.
    Cancelled { by: String },
}

/// Who pays for an end: what it takes from the tries of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payer {
    /// A success.
    Nobody,
    /// The job: it raises `failed_count`, and the rule that names the cause decides.
    Failures,
    /// The job: it raises `lost_count`, and the rule that names the cause decides.
    Losses,
    /// The command never ran: no count is raised, and the rule for `node` bounds that.
    Start,
    /// Whoever moved the job pays: no count is raised and no rule is used, for the first [`FREE_MOVES`].
    Mover,
}

/// How often a job is moved at no cost: a job of two weeks, on machines that are replaced each day, is moved 14 times. More is
/// something that drains again and again, and must end somewhere. So further moves count as losses.
pub const FREE_MOVES: u32 = 20;

impl EndCause {
    /// How an alloc ends for this cause.
    pub const fn client(&self) -> ClientStatus {
        self.end().0
    }

    /// The exit code, as a shell would give it: that of the command; 128 and the number of the signal that ended it; 124 if it
    /// ran too long; 137 if it used too much memory or scratch space; 126 or 127 if there was nothing to run. `None` if no command ended.
    pub const fn exit_code(&self) -> Option<i32> {
        self.end().1
    }

    const fn end(&self) -> (ClientStatus, Option<i32>) {
        use ClientStatus::{Complete, Failed, Lost};
        match self {
            Self::Exited { code: 0 } | Self::Stopped { code: Some(0), .. } => (Complete, Some(0)),
            Self::Exited { code } => (Failed, Some(*code)),
            Self::Signalled { signal } => (Failed, Some(128_i32.saturating_add(*signal))),
            Self::OverTime { .. } => (Failed, Some(TIMED_OUT)),
            Self::OverMemory { .. } | Self::OverScratch { .. } => (Failed, Some(KILLED)),
            Self::NotFound { .. } => (Failed, Some(NO_PROGRAM)),
            Self::NotExecutable { .. } | Self::NoInterpreter { .. } => (Failed, Some(CANNOT_RUN)),
            Self::ElementsFailed { .. } => (Failed, Some(SOME_FAILED)),
            Self::Stopped { code, .. } => (Failed, *code),
            Self::NoOutput { .. } | Self::Rejected { .. } | Self::Cancelled { .. } => (Failed, None),
            Self::NotStarted { .. }
            | Self::NoService { .. }
            | Self::Lost { .. }
            | Self::Interrupted { .. }
            | Self::Moved { .. } => (Lost, None),
        }
    }

    /// Who pays for this end of a job's alloc. Spot is a choice of the job, with a rule of its own.
    pub const fn payer(&self) -> Payer {
        match (self, self.client()) {
            (Self::NotStarted { .. }, _) => Payer::Start,
            (Self::Moved { .. }, _) => Payer::Mover,
            (_, ClientStatus::Lost) => Payer::Losses,
            (_, ClientStatus::Failed) => Payer::Failures,
            _ => Payer::Nobody,
        }
    }

    /// Whether its node is gone, what ran there was lost, or a service did not answer.
    pub const fn is_loss(&self) -> bool {
        matches!(self.payer(), Payer::Losses | Payer::Mover)
    }

    /// Whether the output of the command may say more about the cause.
    pub const fn is_of_the_command(&self) -> bool {
        matches!(
            self,
            Self::Exited { code: 1.. | ..=-1 }
                | Self::Signalled { .. }
                | Self::OverTime { .. }
                | Self::OverMemory { .. }
                | Self::OverScratch { .. }
                | Self::NoOutput { .. }
        )
    }

    /// The cause with texts of a bounded length.
    pub fn clipped(mut self) -> Self {
        let texts = match &mut self {
            Self::NotFound { program } | Self::NotExecutable { program } => vec![program],
            Self::NoInterpreter { program, interpreter } => vec![program, interpreter],
            Self::NoOutput { path, why, others } => {
                others.values_mut().for_each(|why| clip(why, MAX_OTHER_BYTES));
                vec![path, why]
            }
            Self::Stopped { why, .. }
            | Self::NotStarted { why }
            | Self::NoService { why, .. }
            | Self::Lost { why }
            | Self::Interrupted { why }
            | Self::Moved { why }
            | Self::Rejected { why }
            | Self::Cancelled { by: why } => vec![why],
            _ => Vec::new(),
        };
        texts.into_iter().for_each(|text| clip(text, MAX_TEXT_BYTES));
        self
    }
}

fn clip(text: &mut String, bytes: usize) {
    text.truncate(text.floor_char_boundary(bytes));
}

impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited { code } => write!(f, "exit code {code}"),
            Self::Signalled { signal } => match signals::name_of(*signal) {
                Some(name) => write!(f, "killed by signal {signal} (SIG{name})"),
                None => write!(f, "killed by signal {signal}"),
            },
            Self::OverTime { limit_s } => write!(f, "it ran longer than its time limit of {limit_s} s"),
            Self::OverMemory { allowed_mib, used_mib: Some(used) } => {
                write!(f, "out of memory: it used {used} MiB and may use {allowed_mib} MiB")
            }
            Self::OverMemory { allowed_mib, used_mib: None } => {
                write!(f, "out of memory: it needed more than the {allowed_mib} MiB that it may use")
            }
            Self::OverScratch { allowed_gib, used_mib } => {
                write!(f, "out of scratch space: its files took up {used_mib} MiB and may take up {allowed_gib} GiB")
            }
            Self::NotFound { program } => write!(f, "program {program:?} not found"),
            Self::NotExecutable { program } => write!(f, "program {program:?} is not executable"),
            Self::NoInterpreter { program, interpreter } => {
                write!(f, "interpreter {interpreter:?} of program {program:?} not found")
            }
            Self::NoOutput { path, why, others } => {
                write!(f, "its output {path:?} cannot be kept: {why}")?;
                others.iter().try_for_each(|(path, why)| write!(f, "; nor can {path:?}: {why}"))
            }
            Self::ElementsFailed { failed, elements } => write!(f, "{failed} of {elements} elements failed"),
            Self::Stopped { why, code: Some(code) } => write!(f, "{why} (exit code {code})"),
            Self::Interrupted { why } => write!(f, "EC2 takes its instance: {why}"),
            Self::NotStarted { why } => write!(f, "its node could not start it: {why}"),
            Self::Stopped { why, code: None }
            | Self::NoService { why, .. }
            | Self::Lost { why }
            | Self::Moved { why }
            | Self::Rejected { why } => f.write_str(why),
            Self::Cancelled { by } => write!(f, "cancelled by {by}"),
        }
    }
}

/// How an alloc ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// Why. It says whether the alloc is complete, failed or lost.
    pub cause: EndCause,
    pub run: RunReport,
}

/// What a node reports of the run of an alloc.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunReport {
    /// The last part of the output of the process, once it has ended.
    pub log_tail: Option<String>,
    /// Which bytes of `log_tail` are standard error.
    #[serde(skip_serializing_if = "Switches::is_empty")]
    pub tail_switches: Switches,
    /// What the processes of the alloc used so far. A value that is no measurement counts as absent, and spoils nothing else in the
    /// report.
    #[serde(deserialize_with = "usage::lenient")]
    pub usage: Option<Usage>,
    /// The outputs that are kept of the work directory of an ended alloc.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<StoredOutput>,
    /// The newest checkpoint that the alloc stored.
    pub checkpoint: Option<Checkpoint>,
    /// The results of the elements of a pack so far.
    #[serde(skip_serializing_if = "ElementReport::is_empty")]
    pub elements: ElementReport,
    /// The digest of its image.
    #[serde(deserialize_with = "image::lenient")]
    pub image_digest: Option<ImageDigest>,
}

impl Ending {
    /// An end for this cause, without output.
    pub fn new(cause: EndCause) -> Self {
        Self { cause, run: RunReport::default() }
    }

    /// The alloc is lost: its node is gone, or the alloc is no longer on it.
    pub fn lost(why: &str) -> Self {
        Self::new(EndCause::Lost { why: why.to_owned() })
    }

    pub const fn client(&self) -> ClientStatus {
        self.cause.client()
    }
}

/// The last line of an output that is not blank: without control characters, and of a bounded length.
pub fn last_line(output: &str) -> Option<String> {
    let visible = |line: &str| line.chars().filter(|c| !c.is_control()).take(MAX_LINE_CHARS).collect::<String>();
    output.lines().rev().map(visible).find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_cause_has_its_json_its_words_and_its_exit_code() {
        let text = |t: &str| t.to_owned();
        let (program, why) = (text("./x"), text("the disk is full"));
        for (cause, form, words, client, code) in [
            (EndCause::Exited { code: 0 }, json!({"kind": "exited", "code": 0}), "exit code 0", "complete", Some(0)),
            (EndCause::Exited { code: 42 }, json!({"kind": "exited", "code": 42}), "exit code 42", "failed", Some(42)),
            (
                EndCause::Signalled { signal: 11 },
                json!({"kind": "signalled", "signal": 11}),
                "killed by signal 11 (SIGSEGV)",
                "failed",
                Some(139),
            ),
            (
                EndCause::OverTime { limit_s: 2 },
                json!({"kind": "over_time", "limit_s": 2}),
                "it ran longer than its time limit of 2 s",
                "failed",
                Some(124),
            ),
            (
                EndCause::OverMemory { allowed_mib: 64, used_mib: Some(80) },
                json!({"kind": "over_memory", "allowed_mib": 64, "used_mib": 80}),
                "out of memory: it used 80 MiB and may use 64 MiB",
                "failed",
                Some(137),
            ),
            (
                EndCause::OverScratch { allowed_gib: 1, used_mib: 1030 },
                json!({"kind": "over_scratch", "allowed_gib": 1, "used_mib": 1030}),
                "out of scratch space: its files took up 1030 MiB and may take up 1 GiB",
                "failed",
                Some(137),
            ),
            (
                EndCause::NotFound { program: program.clone() },
                json!({"kind": "not_found", "program": "./x"}),
                "program \"./x\" not found",
                "failed",
                Some(127),
            ),
            (
                EndCause::NotExecutable { program: program.clone() },
                json!({"kind": "not_executable", "program": "./x"}),
                "program \"./x\" is not executable",
                "failed",
                Some(126),
            ),
            (
                EndCause::NoInterpreter { program, interpreter: text("/bin/no") },
                json!({"kind": "no_interpreter", "program": "./x", "interpreter": "/bin/no"}),
                "interpreter \"/bin/no\" of program \"./x\" not found",
                "failed",
                Some(126),
            ),
            (
                EndCause::NoOutput { path: text("out.csv"), why: text("it is not there"), others: BTreeMap::new() },
                json!({"kind": "no_output", "path": "out.csv", "why": "it is not there"}),
                "its output \"out.csv\" cannot be kept: it is not there",
                "failed",
                None,
            ),
            (
                EndCause::ElementsFailed { failed: 3, elements: 1000 },
                json!({"kind": "elements_failed", "failed": 3, "elements": 1000}),
                "3 of 1000 elements failed",
                "failed",
                Some(1),
            ),
            (
                EndCause::Stopped { why: text("stopped as ordered"), code: Some(0) },
                json!({"kind": "stopped", "why": "stopped as ordered", "code": 0}),
                "stopped as ordered (exit code 0)",
                "complete",
                Some(0),
            ),
            (
                EndCause::NotStarted { why: why.clone() },
                json!({"kind": "not_started", "why": "the disk is full"}),
                "its node could not start it: the disk is full",
                "lost",
                None,
            ),
            (EndCause::Lost { why: why.clone() }, json!({"kind": "lost", "why": why.clone()}), &*why, "lost", None),
            (
                EndCause::Interrupted { why: why.clone() },
                json!({"kind": "interrupted", "why": why.clone()}),
                "EC2 takes its instance: the disk is full",
                "lost",
                None,
            ),
            (EndCause::Moved { why: why.clone() }, json!({"kind": "moved", "why": why.clone()}), &*why, "lost", None),
            (EndCause::Rejected { why: why.clone() }, json!({"kind": "rejected", "why": why}), &*why, "failed", None),
        ] {
            assert_eq!(serde_json::to_value(&cause).unwrap(), form);
            assert_eq!(serde_json::from_value::<EndCause>(form).unwrap(), cause);
            assert_eq!((cause.to_string().as_str(), cause.client().as_str(), cause.exit_code()), (words, client, code));
        }
    }

    #[test]
    fn a_cancelled_job_says_by_whom() {
        let cause: EndCause = serde_json::from_value(json!({"kind": "cancelled", "by": "ann"})).unwrap();
        assert_eq!((cause.to_string().as_str(), cause.client().as_str()), ("cancelled by ann", "failed"));
        assert_eq!(cause, EndCause::Cancelled { by: "ann".into() });
    }

    #[test]
    fn who_pays_for_an_end_follows_from_its_cause_alone() {
        let [why, program, path, interpreter] = [(); 4].map(|()| String::new());
        for (cause, payer) in [
            (EndCause::Exited { code: 0 }, Payer::Nobody),
            (EndCause::Exited { code: 1 }, Payer::Failures),
            (EndCause::Signalled { signal: 9 }, Payer::Failures),
            (EndCause::OverTime { limit_s: 1 }, Payer::Failures),
            (EndCause::OverMemory { allowed_mib: 1, used_mib: None }, Payer::Failures),
            (EndCause::OverScratch { allowed_gib: 1, used_mib: 1 }, Payer::Failures),
            (EndCause::NotFound { program: program.clone() }, Payer::Failures),
            (EndCause::NotExecutable { program: program.clone() }, Payer::Failures),
            (EndCause::NoInterpreter { program, interpreter }, Payer::Failures),
            (EndCause::NoOutput { path, why: why.clone(), others: BTreeMap::new() }, Payer::Failures),
            (EndCause::ElementsFailed { failed: 1, elements: 2 }, Payer::Failures),
            (EndCause::Stopped { why: why.clone(), code: Some(0) }, Payer::Nobody),
            (EndCause::Stopped { why: why.clone(), code: None }, Payer::Failures),
            (EndCause::NotStarted { why: why.clone() }, Payer::Start),
            (EndCause::NoService { service: Service::S3, why: why.clone() }, Payer::Losses),
            (EndCause::Lost { why: why.clone() }, Payer::Losses),
            (EndCause::Interrupted { why: why.clone() }, Payer::Losses),
            (EndCause::Moved { why: why.clone() }, Payer::Mover),
            (EndCause::Rejected { why: why.clone() }, Payer::Failures),
            (EndCause::Cancelled { by: why }, Payer::Failures),
        ] {
            assert_eq!(cause.payer(), payer, "{cause:?}");
        }
    }

    #[test]
    fn causes_about_files_and_services_have_their_json_and_their_words() {
        let text = |t: &str| t.to_owned();
        for (cause, form, words, client) in [
            (
                EndCause::NoOutput { path: text("a"), why: text("x"), others: [(text("b"), text("y"))].into() },
                json!({"kind": "no_output", "path": "a", "why": "x", "others": {"b": "y"}}),
                "its output \"a\" cannot be kept: x; nor can \"b\": y",
                "failed",
            ),
            (
                EndCause::NoService { service: Service::S3, why: text("it is away") },
                json!({"kind": "no_service", "service": "s3", "why": "it is away"}),
                "it is away",
                "lost",
            ),
        ] {
            assert_eq!(serde_json::to_value(&cause).unwrap(), form);
            assert_eq!(serde_json::from_value::<EndCause>(form).unwrap(), cause);
            assert_eq!((cause.to_string().as_str(), cause.client().as_str(), cause.exit_code()), (words, client, None));
        }
    }

    #[test]
    fn the_last_line_is_the_last_one_that_says_something() {
        assert_eq!(last_line("one\nboom: \u{1b}[31mno\u{1b}[0m \n \n\n").as_deref(), Some("boom: [31mno[0m"));
        assert_eq!(last_line(" \n"), None);
        assert_eq!(last_line(&"é".repeat(5000)).map(|line| line.chars().count()), Some(MAX_LINE_CHARS));
    }

    #[test]
    fn long_texts_are_clipped_on_character_boundaries() {
        let EndCause::Lost { why } = (EndCause::Lost { why: "é".repeat(5000) }).clipped() else { panic!() };
        assert_eq!(why.len(), MAX_TEXT_BYTES);
    }
}
