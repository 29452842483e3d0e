//! Printing the output of a job, while it runs and after it ended.
//!
//! Guarantees: prints the output of each alloc in the order of its bytes, and says on standard error what is missing and why;
//! one failed read does not end it; on a terminal nothing in the output is obeyed, elsewhere each byte is printed as it is.
//! Does not: wait for a node that cannot answer any more, or for an output that is not stored yet. Then the end of the output
//! is printed that the node has reported.

use super::output_reader::{Look, Reader};
use super::stored_output::{self, Stored};
use super::{Cluster, Context, Screen, show};
use model::ids::AllocId;
use model::time::{Span, Time};
use model::wire::MAX_LOG_TAIL_BYTES;
use model::{Alloc, ClientStatus, Job};
use std::collections::BTreeSet;
use std::time::Duration;
use store::{DbError, WriteError};

/// The time between two looks for output.
pub(super) const POLL: Duration = Duration::from_millis(500);
/// The stream ends after this many failed looks in a row.
const FAILED_LOOKS: u32 = 5;
/// How many bytes are read for each line that is wanted. If lines are longer, fewer lines are printed.
const BYTES_A_LINE: u64 = 400;
/// The most bytes that are read for a number of lines.
const MAX_LINES_BYTES: u64 = 64 << 20;
/// When a node that could not be asked is asked again.
const ASK_AGAIN: Span = Span::from_s(10);

/// Which output is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    /// All there is now.
    Now,
    /// All until the alloc ends.
    End,
}

/// The output of one member of a job: of each alloc in turn.
pub(super) struct OutputStream<'a> {
    cluster: &'a Cluster,
    member: u32,
    /// Only so many lines at the end of what there is when the reading of an alloc begins.
    lines: Option<usize>,
    until: Until,
    /// Whether to say what is waited for.
    quiet: bool,
    reader: Option<Reader>,
    /// The allocs that need not be printed, or were.
    done: BTreeSet<AllocId>,
    /// The alloc whose node could not be asked, and when it is asked again.
    unasked: Option<(AllocId, Time)>,
    /// Why the last output was not read from the place where it should be stored.
    not_stored: Option<String>,
    printer: Printer,
    failed_looks: u32,
}

impl<'a> OutputStream<'a> {
    /// The output of a member's allocs, except these.
    pub(super) fn new(cluster: &'a Cluster, member: u32, until: Until, except: BTreeSet<AllocId>) -> Self {
        Self {
            cluster,
            member,
            lines: None,
            until,
            quiet: false,
            reader: None,
            done: except,
            unasked: None,
            not_stored: None,
            printer: Printer::default(),
            failed_looks: 0,
        }
    }

    /// Only so many lines at the end of what there is now.
    #[must_use]
    pub(super) const fn of_lines(mut self, lines: Option<usize>) -> Self {
        self.lines = lines;
        self
    }

    /// Does not say what it waits for.
    #[must_use]
    pub(super) const fn quiet(mut self, quiet: bool) -> Self {
        self.quiet = quiet;
        self
    }

    /// Prints what is new. Returns whether there is nothing more to print now: no alloc of the member is left.
    pub(super) async fn look(&mut self, context: &mut Context<'_>, job: &Job) -> anyhow::Result<bool> {
        match self.try_look(context, job).await {
            // A stream may last for hours.
            Err(error) if is_of_tables(&error) && self.failed_looks < FAILED_LOOKS => {
                self.failed_looks += 1;
                Ok(false)
            }
            other => {
                self.failed_looks = 0;
                other
            }
        }
    }

    async fn try_look(&mut self, context: &mut Context<'_>, job: &Job) -> anyhow::Result<bool> {
        loop {
            let Some(reader) = &mut self.reader else {
                match self.open(context, job).await? {
                    Opened::Reader => continue,
                    Opened::Nothing => return Ok(true),
                    Opened::Waits => return Ok(false),
                }
            };
            match reader.look(self.cluster, context, &mut self.printer, self.until, self.quiet).await? {
                Look::More => return Ok(false),
                Look::Done => self.printer.end(context)?,
                Look::Cut(why) => {
                    let (id, offset) = (reader.alloc_id, reader.offset());
                    self.without_node(context, id, offset, &why).await?;
                }
            }
            self.close(context.now()).await;
        }
    }

    /// Opens the next alloc. An ended alloc is printed at once if its row has the whole output, or if it is stored.
    async fn open(&mut self, context: &mut Context<'_>, job: &Job) -> anyhow::Result<Opened> {
        let mut allocs = self.cluster.store.allocs_of(job).await?.rows;
        allocs.retain(|a| a.id().member == self.member && !self.done.contains(&a.id()));
        allocs.sort_by_key(|a| a.id().copy);
        for alloc in allocs {
            let (id, now) = (alloc.id(), context.now());
            let is_final = alloc.summary.client.is_final();
            if is_final && has_whole(&alloc) {
                let text = alloc.log_tail.as_deref().unwrap_or_default().as_bytes();
                self.printer.print(context, self.lines.map_or(text, |lines| last_lines(text, lines)))?;
                self.printer.end(context)?;
                self.done.insert(id);
                continue;
            }
            if self.stored(context, &alloc, 0).await? {
                self.done.insert(id);
                continue;
            }
            if self.unasked.is_some_and(|(unasked, again_at)| unasked == id && now < again_at && !is_final) {
                return Ok(Opened::Waits);
            }
            match Reader::open(self.cluster, &alloc, self.lines, self.until, now).await {
                Ok(reader) => {
                    self.reader = Some(reader);
                    return Ok(Opened::Reader);
                }
                Err(why) if is_final || self.until == Until::Now => {
                    writeln!(context.err, "the node cannot be asked for the output of {id}: {}", said(&why))?;
                    self.say_why_not_stored(context)?;
                    tail(context, &alloc)?;
                    self.done.insert(id);
                }
                // Its end is printed when it has ended, unless its node can be asked before.
                Err(why) => {
                    if denied(&why) && self.unasked.is_none_or(|(unasked, _)| unasked != id) {
                        writeln!(context.err, "the output of {id} is not printed as it comes: {}", said(&why))?;
                    }
                    self.unasked = Some((id, now + ASK_AGAIN));
                    return Ok(Opened::Waits);
                }
            }
        }
        Ok(Opened::Nothing)
    }

    /// Prints what is stored of the output of an ended alloc, from this byte on. Returns whether nothing is left to do.
    async fn stored(&mut self, context: &mut Context<'_>, alloc: &Alloc, from: u64) -> anyhow::Result<bool> {
        self.not_stored = None;
        let Some(place) = alloc.output_s3.as_ref().filter(|_| alloc.summary.client.is_final()) else {
            return Ok(false);
        };
        // The last lines of what the node had were printed before.
        let lines = self.lines.filter(|_| from == 0);
        match stored_output::print(self.cluster, context, &mut self.printer, place, from, lines).await? {
            Stored::Printed => self.printer.end(context)?,
            Stored::Cut(at, why) => {
                self.printer.end(context)?;
                writeln!(context.err, "the output of {} after byte {at} is missing: {why}", alloc.id())?;
            }
            Stored::Not(why) => {
                self.not_stored = Some(why);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Prints the rest of an output that its node does not send: what is stored, or else the end that the row has.
    async fn without_node(
        &mut self,
        context: &mut Context<'_>,
        id: AllocId,
        offset: u64,
        why: &str,
    ) -> anyhow::Result<()> {
        let alloc = self.cluster.store.alloc(id).await?;
        if let Some(alloc) = &alloc
            && self.stored(context, alloc, offset).await?
        {
            return Ok(());
        }
        self.printer.end(context)?;
        writeln!(context.err, "output of {id} is missing: {why}")?;
        self.say_why_not_stored(context)?;
        alloc.map_or(Ok(()), |alloc| tail(context, &alloc))
    }

    fn say_why_not_stored(&mut self, context: &mut Context<'_>) -> anyhow::Result<()> {
        match self.not_stored.take() {
            Some(why) => Ok(writeln!(context.err, "{why}")?),
            None => Ok(()),
        }
    }

    /// Ends the reading of the present alloc.
    pub(super) async fn close(&mut self, now: Time) {
        if let Some(reader) = self.reader.take() {
            self.done.insert(reader.alloc_id);
            reader.close(self.cluster, now).await;
        }
    }
}

/// What there is to read.
enum Opened {
    Reader,
    /// No alloc is left.
    Nothing,
    /// An alloc is left whose node cannot be asked now.
    Waits,
}

/// Whether a read or a write of the tables failed.
fn is_of_tables(error: &anyhow::Error) -> bool {
    error.is::<DbError>() || error.is::<WriteError>()
}

/// Whether the permissions of the caller do not allow the call.
fn denied(error: &anyhow::Error) -> bool {
    let of_write = error.downcast_ref().and_then(|e| if let WriteError::Db(e) = e { Some(e) } else { None });
    let code = match error.downcast_ref::<DbError>().or(of_write) {
        Some(DbError::Refused { code, .. }) => code.as_str(),
        _ => "",
    };
    code == "AccessDeniedException"
}

/// The error for people. A call that permissions do not allow has a long text, which names accounts and roles.
fn said(error: &anyhow::Error) -> String {
    match denied(error) {
        true => "your permissions do not allow it (an update of `follows` in the nodes table)".to_owned(),
        false => show::error(error),
    }
}

/// Whether the row of an ended alloc has its whole output.
pub(super) fn has_whole(alloc: &Alloc) -> bool {
    match &alloc.log_tail {
        None => alloc.summary.client != ClientStatus::Lost,
        // A longer output is cut at a character, which has at most four bytes. A tail that is cut shorter says so. What is
        // no text has replacement characters.
        Some(tail) => {
            tail.len() < MAX_LOG_TAIL_BYTES - 4 && !tail.starts_with(model::wire::CUT) && !tail.contains('\u{fffd}')
        }
    }
}

/// Prints the end of an alloc's output as its row has it.
pub(super) fn tail(context: &mut Context<'_>, alloc: &Alloc) -> anyhow::Result<()> {
    let (id, node) = (alloc.id(), alloc.summary.node_id);
    let Some(text) = &alloc.log_tail else {
        let why =
            if alloc.summary.client.is_final() { "reported no output" } else { "reports the end when it has ended" };
        return Ok(writeln!(context.err, "node {node} {why}")?);
    };
    if !has_whole(alloc) {
        writeln!(context.err, "the last {} bytes of the output of {id}, as node {node} reported them:", text.len())?;
    }
    write!(context.out, "{}", show::output(text, context.screen))?;
    Ok(context.out.flush()?)
}

/// How many bytes at the end of an output are read for so many lines.
pub(super) fn lines_bytes(lines: usize) -> u64 {
    (lines as u64).saturating_mul(BYTES_A_LINE).saturating_add(64 << 10).min(MAX_LINES_BYTES)
}

/// The last lines of a text.
pub(super) fn last_lines(text: &[u8], lines: usize) -> &[u8] {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    let from = match lines.checked_sub(1) {
        None => text.len(),
        Some(before) => ends.map(|(at, _)| at + 1).nth(before).unwrap_or(0),
    };
    text.get(from..).unwrap_or_default()
}

/// Prints bytes: on a terminal as text in which nothing is obeyed, elsewhere unchanged.
#[derive(Debug, Default)]
pub(super) struct Printer {
    /// The beginning of a character whose rest has not come.
    part: Vec<u8>,
}

impl Printer {
    pub(super) fn print(&mut self, context: &mut Context<'_>, bytes: &[u8]) -> anyhow::Result<()> {
        if context.screen == Screen::Pipe {
            context.out.write_all(bytes)?;
        } else {
            self.part.extend_from_slice(bytes);
            let text = String::from_utf8_lossy(&self.part).into_owned();
            // Up to three bytes at the end may be the beginning of a character.
            let begun = (1..=3).find(|n| begins_character(&self.part, *n)).unwrap_or(0);
            let whole = if begun > 0 { text.strip_suffix('\u{fffd}').unwrap_or(&text) } else { &text };
            write!(context.out, "{}", show::output(whole, context.screen))?;
            self.part.drain(..self.part.len().saturating_sub(begun));
        }
        Ok(context.out.flush()?)
    }

    /// Prints what is left of a character that will not get its rest.
    pub(super) fn end(&mut self, context: &mut Context<'_>) -> anyhow::Result<()> {
        let rest = String::from_utf8_lossy(&std::mem::take(&mut self.part)).into_owned();
        write!(context.out, "{rest}")?;
        Ok(context.out.flush()?)
    }
}

/// Whether the last `n` bytes are the beginning of a character, and not a whole one.
fn begins_character(bytes: &[u8], n: usize) -> bool {
    let end = bytes.len().checked_sub(n).and_then(|at| bytes.get(at..)).unwrap_or_default();
    !end.is_empty() && std::str::from_utf8(end).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_a_text() {
        let last = |lines| last_lines(b"one\ntwo\nthree\n", lines);
        let expected: [&[u8]; 5] = [b"", b"three\n", b"two\nthree\n", b"one\ntwo\nthree\n", b"one\ntwo\nthree\n"];
        assert_eq!([0, 1, 2, 3, 9].map(last), expected);
        let short: [&[u8]; 4] = [b"b", b"", b"\n", b"\xff\n"];
        let of = [last_lines(b"a\nb", 1), last_lines(b"", 3), last_lines(b"\n", 1), last_lines(b"a\n\xff\n", 1)];
        assert_eq!(of, short);
    }

    #[test]
    fn a_character_that_comes_in_two_pieces_is_printed_whole() {
        let print = |screen, pieces: &[&[u8]]| {
            let (mut out, mut err, mut input) = (Vec::new(), Vec::new(), &b""[..]);
            let mut context = Context {
                screen,
                colours: false,
                connect: Box::new(|| Box::pin(async { anyhow::bail!("not connected") })),
                clock: std::sync::Arc::new(|| Time::from_ms(0)),
                input: &mut input,
                out: &mut out,
                err: &mut err,
            };
            let mut printer = Printer::default();
            pieces.iter().for_each(|piece| printer.print(&mut context, piece).unwrap());
            printer.end(&mut context).unwrap();
            out
        };
        let euro: [&[u8]; 4] = [b"a\xe2", b"\x82", b"\xac\xff", b"\x1b\xe2"];
        assert_eq!(String::from_utf8(print(Screen::Terminal, &euro)).unwrap(), "a€\u{fffd}\\x1b\u{fffd}");
        assert_eq!(print(Screen::Pipe, &euro), b"a\xe2\x82\xac\xff\x1b\xe2");
    }
}
