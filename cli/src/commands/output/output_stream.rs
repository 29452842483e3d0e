//! Prints the output of a job, while it runs and after it ended.
//!
//! Guarantees: the output of each alloc is printed in the order of its bytes, and nothing of it after a gap. Standard error says
//! what is missing and why, and [`OutputStream::outcome`] says whether something is. One failed read does not end it.
//! Does not: wait for a node that can no longer answer, or for an output that is not stored yet.

use super::output_printer::{Printer, Route, Text};
use super::output_reader::{Look, Reader, Until, tail_of, whole};
use super::stored_output::{self, Stored};
use crate::console::{Cluster, Context, Outcome, show};
use model::ids::AllocId;
use model::time::{Span, Time};
use model::{Alloc, Job};
use std::collections::BTreeSet;
use std::time::Duration;
use store::{DbError, WriteError};

/// The time between two looks for output.
pub(in crate::commands) const POLL: Duration = Duration::from_millis(500);
const FAILED_LOOKS: u32 = 5;
/// The exit code if a part of the output is missing: EX_IOERR of sysexits.h.
pub(in crate::commands) const MISSING: u8 = 74;
/// After this time, a node that could not be asked is asked again.
const ASK_AGAIN: Span = Span::from_s(10);

/// The output of one member of a job, alloc after alloc.
pub(in crate::commands) struct OutputStream<'a> {
    cluster: &'a Cluster,
    member: u32,
    /// Only this many lines at the end of what there is when the reading of an alloc begins.
    pub(in crate::commands) lines: Option<usize>,
    until: Until,
    /// Whether to say nothing while it waits for a node.
    pub(in crate::commands) quiet: bool,
    reader: Option<Reader<'a>>,
    /// The allocs that were printed, or need not be.
    done: BTreeSet<AllocId>,
    /// The alloc whose node could not be asked, and when it is asked again.
    unasked: Option<(AllocId, Time)>,
    /// Whether a part that was to be printed is missing.
    misses: bool,
    pub(in crate::commands) printer: Printer,
    failed_looks: u32,
}

impl<'a> OutputStream<'a> {
    /// The output of a member's allocs, without those in `except`.
    pub(in crate::commands) fn new(
        cluster: &'a Cluster,
        member: u32,
        until: Until,
        except: BTreeSet<AllocId>,
        route: Route,
    ) -> Self {
        Self {
            cluster,
            member,
            lines: None,
            until,
            quiet: false,
            reader: None,
            done: except,
            unasked: None,
            misses: false,
            printer: Printer::new(route),
            failed_looks: 0,
        }
    }

    /// The outcome of the command that printed the output.
    pub(in crate::commands) const fn outcome(&self) -> Outcome {
        if self.misses { Outcome::Code(MISSING) } else { Outcome::Done }
    }

    pub(in crate::commands) async fn print(mut self, context: &mut Context<'_>, job: &Job) -> anyhow::Result<Outcome> {
        while !self.poll(context, job).await? {
            tokio::time::sleep(POLL).await;
        }
        Ok(self.outcome())
    }

    /// Prints what is new. Returns whether nothing is left to print now: every alloc of the member is done.
    pub(in crate::commands) async fn poll(&mut self, context: &mut Context<'_>, job: &Job) -> anyhow::Result<bool> {
        match self.try_poll(context, job).await {
            // A stream may last for hours, so a few failed reads or writes of the tables do not end it.
            Err(error) if (error.is::<DbError>() || error.is::<WriteError>()) && self.failed_looks < FAILED_LOOKS => {
                self.failed_looks += 1;
                Ok(false)
            }
            other => {
                self.failed_looks = 0;
                other
            }
        }
    }

    async fn try_poll(&mut self, context: &mut Context<'_>, job: &Job) -> anyhow::Result<bool> {
        loop {
            let Some(reader) = &mut self.reader else {
                match self.open(context, job).await? {
                    Opened::Reader => continue,
                    Opened::Nothing => return Ok(true),
                    Opened::Waits => return Ok(false),
                }
            };
            match reader.poll(context, &mut self.printer).await? {
                Look::More => {
                    if let Some(node) = reader.slow_node().filter(|_| !self.quiet) {
                        writeln!(
                            context.err,
                            "waiting for the next heartbeat of node {node}, which then sends the output"
                        )?;
                    }
                    return Ok(false);
                }
                Look::Done => self.printer.end(context)?,
                Look::Cut(why) => {
                    let (id, offset) = (reader.alloc_id, reader.printed_to());
                    self.without_node(context, id, offset, &why).await?;
                }
            }
            self.close(context.now()).await;
        }
    }

    /// Opens the next alloc. An ended alloc is printed at once if its row has the whole output, or if all of it is stored.
    async fn open(&mut self, context: &mut Context<'_>, job: &Job) -> anyhow::Result<Opened> {
        let mut allocs = self.cluster.store.allocs_of(job).await?.rows;
        allocs.retain(|a| a.id().member == self.member && !self.done.contains(&a.id()));
        allocs.sort_by_key(|a| a.id().copy);
        for alloc in allocs {
            let (id, now) = (alloc.id(), context.now());
            let is_final = alloc.summary.client.is_final();
            if let Some(whole) = whole(&alloc) {
                self.print_whole(context, &whole)?;
                self.printer.end(context)?;
                self.done.insert(id);
                continue;
            }
            let stored = self.stored(&alloc).await;
            if let Ok(all) = &stored
                && all.is_all
            {
                self.print_stored(context, id, all, 0).await?;
                self.done.insert(id);
                continue;
            }
            if self.unasked.is_some_and(|(unasked, again_at)| unasked == id && now < again_at && !is_final) {
                return Ok(Opened::Waits);
            }
            match Reader::open(self.cluster, &alloc, self.lines, self.printer.route, self.until, now).await {
                Ok(reader) => {
                    self.printer.hold(self.lines);
                    self.reader = Some(reader);
                    return Ok(Opened::Reader);
                }
                Err(why) if is_final || self.until == Until::Now => {
                    match stored {
                        Ok(beginning) => self.print_stored(context, id, &beginning, 0).await?,
                        Err(absent) => {
                            let cannot = format!("the node cannot be asked for the output of {id}: {}", said(&why));
                            tell(context, &cannot, absent)?;
                            self.print_tail(context, &alloc)?;
                        }
                    }
                    self.done.insert(id);
                }
                // Its output is printed when it has ended, unless its node can be asked before.
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

    /// What is stored of the output of an ended alloc. The error says why nothing is; it is `None` if nothing is to be stored yet.
    async fn stored(&self, alloc: &Alloc) -> Result<Stored, Option<String>> {
        match &alloc.output_s3 {
            Some(place) if alloc.summary.client.is_final() => {
                stored_output::find(self.cluster, place).await.map_err(Some)
            }
            _ => Err(None),
        }
    }

    /// Prints what is stored of the output of an alloc, from byte `from` on.
    async fn print_stored(
        &mut self,
        context: &mut Context<'_>,
        id: AllocId,
        stored: &Stored,
        from: u64,
    ) -> anyhow::Result<()> {
        let Stored { place, size, is_all } = stored;
        // `from` is above 0 if the node has sent a part. Then its last lines were printed already.
        let lines = self.lines.filter(|_| from == 0);
        self.printer.hold(lines);
        let from = lines.map_or(from, |lines| stored_output::begin_of_last(lines, self.printer.route, *size));
        let (at, why) = stored_output::print(self.cluster, context, &mut self.printer, place, from..*size).await?;
        if why.is_none() {
            self.printer.release(context)?;
        }
        self.printer.end(context)?;
        let why = why.or_else(|| {
            (!*is_all).then(|| "its node stored it up to there before it ended or while the command ran".to_owned())
        });
        if let Some(why) = why {
            self.misses = true;
            writeln!(context.err, "the output of {id} after byte {at} is missing: {why}")?;
        }
        Ok(())
    }

    /// Handles an output whose rest does not come from its node: prints the rest if it is stored.
    async fn without_node(
        &mut self,
        context: &mut Context<'_>,
        id: AllocId,
        offset: Option<u64>,
        why: &str,
    ) -> anyhow::Result<()> {
        let alloc = self.cluster.store.alloc(id).await?;
        let stored = match &alloc {
            Some(alloc) => self.stored(alloc).await,
            None => Err(None),
        };
        let absent = match stored {
            Ok(stored) => return self.print_stored(context, id, &stored, offset.unwrap_or(0)).await,
            Err(absent) => absent,
        };
        self.printer.end(context)?;
        let after = offset.map(|at| format!(" after byte {at}")).unwrap_or_default();
        tell(context, &format!("the output of {id}{after} is missing: {why}"), absent)?;
        match alloc {
            Some(alloc) if offset.is_none() => self.print_tail(context, &alloc),
            _ => {
                self.misses = true;
                Ok(())
            }
        }
    }

    /// Prints a text that is complete: all of it, or its last lines.
    fn print_whole(&mut self, context: &mut Context<'_>, text: &Text) -> anyhow::Result<()> {
        self.printer.hold(self.lines);
        self.printer.print(context, text)?;
        self.printer.release(context)
    }

    /// Prints the end of an output from the row of its alloc, if nothing of it was printed before. A reader that follows an output
    /// never gets only its end.
    fn print_tail(&mut self, context: &mut Context<'_>, alloc: &Alloc) -> anyhow::Result<()> {
        let (id, node) = (alloc.id(), alloc.summary.node_id);
        if self.printer.only.is_some() {
            // It is not known which part of the output the row has.
            self.misses = true;
            return Ok(writeln!(context.err, "the output of the element is not there any more: node {node} had it")?);
        }
        let Some(tail) = &alloc.log_tail else {
            self.misses = true;
            let why = match alloc.summary.client.is_final() {
                true => "reported no output",
                false => "reports the end when it has ended",
            };
            return Ok(writeln!(context.err, "node {node} {why}")?);
        };
        if self.until == Until::End {
            self.misses = true;
            return Ok(writeln!(context.err, "`nodekeeper logs {id}` prints the last {} bytes of it", tail.len())?);
        }
        let mut text = Text::default();
        text.add(self.printer.route, &tail_of(alloc));
        // The first line of the tail may be a part of a line.
        self.misses |= self.lines.is_none_or(|lines| text.lines() <= lines);
        writeln!(context.err, "the last {} bytes of the output of {id}, as node {node} reported them:", tail.len())?;
        self.print_whole(context, &text)
    }

    /// Stops the reading before all was printed.
    pub(in crate::commands) async fn leave(&mut self, now: Time) {
        self.misses = true;
        self.close(now).await;
    }

    /// Stops the reading of the current alloc.
    pub(in crate::commands) async fn close(&mut self, now: Time) {
        if let Some(reader) = self.reader.take() {
            self.done.insert(reader.alloc_id);
            reader.close(now).await;
        }
    }
}

/// The next alloc to read.
enum Opened {
    Reader,
    /// No alloc is left.
    Nothing,
    /// An alloc is left, and its node cannot be asked now.
    Waits,
}

/// Prints that an output does not come from its node, and why it is not stored.
fn tell(context: &mut Context<'_>, cannot: &str, absent: Option<String>) -> std::io::Result<()> {
    [cannot.to_owned()].into_iter().chain(absent).try_for_each(|line| writeln!(context.err, "{line}"))
}

fn denied(error: &anyhow::Error) -> bool {
    matches!(show::db_error(error), Some(DbError::Refused { code, .. }) if code == "AccessDeniedException")
}

/// The error for people. The AWS text of a denied call is long, and names accounts and roles.
fn said(error: &anyhow::Error) -> String {
    match denied(error) {
        true => "your permissions do not allow it (an update of `follows` in the nodes table)".to_owned(),
        false => show::error(error),
    }
}

/// Prints the end of an alloc's output from its row, for a job of several members.
pub(in crate::commands) fn tail(context: &mut Context<'_>, alloc: &Alloc) -> anyhow::Result<()> {
    let (id, node) = (alloc.id(), alloc.summary.node_id);
    let Some(text) = &alloc.log_tail else {
        return Ok(writeln!(context.err, "node {node} reported no output")?);
    };
    if whole(alloc).is_none() {
        writeln!(context.err, "the last {} bytes of the output of {id}, as node {node} reported them:", text.len())?;
    }
    Printer::new(Route::Apart).print(context, &tail_of(alloc))
}
