//! Printing the output of a job, while it runs and after it ended.
//!
//! Guarantees: prints the output of each alloc in the order of its bytes, and nothing of it behind a gap; says on standard error
//! what is missing and why, and [`OutputStream::outcome`] says that something is; one failed read does not end it.
//! Does not: wait for a node that cannot answer any more, or for an output that is not stored yet.

use super::output_printer::{Printer, Route, Text};
use super::output_reader::{Look, Reader, Until, tail_of, whole};
use super::stored_output::{self, Found};
use crate::console::{Cluster, Context, Outcome, show};
use model::ids::AllocId;
use model::time::{Span, Time};
use model::{Alloc, Job};
use std::collections::BTreeSet;
use std::time::Duration;
use store::{DbError, WriteError};

/// The time between two looks for output.
pub(super) const POLL: Duration = Duration::from_millis(500);
/// The stream ends after this many failed looks in a row.
const FAILED_LOOKS: u32 = 5;
/// The exit code if a part of the output is missing: EX_IOERR of sysexits.h.
pub(super) const MISSING: u8 = 74;
/// When a node that could not be asked is asked again.
const ASK_AGAIN: Span = Span::from_s(10);

/// The output of one member of a job: of each alloc in turn.
pub(super) struct OutputStream<'a> {
    cluster: &'a Cluster,
    member: u32,
    /// Only so many lines at the end of what there is when the reading of an alloc begins.
    pub(super) lines: Option<usize>,
    until: Until,
    /// Whether to say what is waited for.
    pub(super) quiet: bool,
    reader: Option<Reader<'a>>,
    /// The allocs that need not be printed, or were.
    done: BTreeSet<AllocId>,
    /// The alloc whose node could not be asked, and when it is asked again.
    unasked: Option<(AllocId, Time)>,
    /// What was found where the last output should be stored.
    found: Option<Found>,
    /// Whether something that was to be printed was not.
    misses: bool,
    pub(super) printer: Printer,
    failed_looks: u32,
}

impl<'a> OutputStream<'a> {
    /// The output of a member's allocs, except these.
    pub(super) fn new(
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
            found: None,
            misses: false,
            printer: Printer::new(route),
            failed_looks: 0,
        }
    }

    /// How the command ends that printed it.
    pub(super) const fn outcome(&self) -> Outcome {
        if self.misses { Outcome::Code(MISSING) } else { Outcome::Done }
    }

    /// Prints all that there is to print now.
    pub(super) async fn print(mut self, context: &mut Context<'_>, job: &Job) -> anyhow::Result<Outcome> {
        while !self.poll(context, job).await? {
            tokio::time::sleep(POLL).await;
        }
        Ok(self.outcome())
    }

    /// Prints what is new. Returns whether there is nothing more to print now: no alloc of the member is left.
    pub(super) async fn poll(&mut self, context: &mut Context<'_>, job: &Job) -> anyhow::Result<bool> {
        match self.try_poll(context, job).await {
            // A stream may last for hours, and a read or a write of the tables may fail meanwhile.
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

    /// Opens the next alloc. An ended alloc is printed at once if its row has the whole output, or if it is stored.
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
            self.find(&alloc).await;
            if matches!(self.found, Some(Found::All(_))) && self.print_stored(context, &alloc, 0).await? {
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
                    if matches!(self.found, Some(Found::Beginning(_))) {
                        self.print_stored(context, &alloc, 0).await?;
                    } else {
                        writeln!(context.err, "the node cannot be asked for the output of {id}: {}", said(&why))?;
                        self.print_tail(context, &alloc)?;
                    }
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

    /// Looks for the output of an ended alloc where it is to be stored.
    async fn find(&mut self, alloc: &Alloc) {
        let place = alloc.output_s3.as_ref().filter(|_| alloc.summary.client.is_final());
        self.found = match place {
            Some(place) => Some(stored_output::find(self.cluster, place).await),
            None => None,
        };
    }

    /// Prints what is stored of the output of an ended alloc, from this byte on. Returns whether something is there.
    async fn print_stored(&mut self, context: &mut Context<'_>, alloc: &Alloc, from: u64) -> anyhow::Result<bool> {
        let (Some(place), Some(Found::All(size) | Found::Beginning(size))) = (&alloc.output_s3, &self.found) else {
            return Ok(false);
        };
        let is_all = matches!(self.found, Some(Found::All(_)));
        // The last lines of what the node had were printed before.
        let lines = self.lines.filter(|_| from == 0);
        self.printer.hold(lines);
        let from = lines.map_or(from, |lines| stored_output::begin_of_last(lines, self.printer.route, *size));
        let (at, why) = stored_output::print(self.cluster, context, &mut self.printer, place, from..*size).await?;
        if why.is_none() {
            self.printer.release(context)?;
        }
        self.printer.end(context)?;
        let why = why.or_else(|| {
            (!is_all).then(|| "its node stored it up to there before it ended or while the command ran".to_owned())
        });
        if let Some(why) = why {
            self.misses = true;
            writeln!(context.err, "the output of {} after byte {at} is missing: {why}", alloc.id())?;
        }
        Ok(true)
    }

    /// Prints the rest of an output that its node does not send, if it is stored.
    async fn without_node(
        &mut self,
        context: &mut Context<'_>,
        id: AllocId,
        offset: Option<u64>,
        why: &str,
    ) -> anyhow::Result<()> {
        let alloc = self.cluster.store.alloc(id).await?;
        if let Some(alloc) = &alloc {
            self.find(alloc).await;
            if self.print_stored(context, alloc, offset.unwrap_or(0)).await? {
                return Ok(());
            }
        }
        self.printer.end(context)?;
        let after = offset.map(|at| format!(" after byte {at}")).unwrap_or_default();
        writeln!(context.err, "the output of {id}{after} is missing: {why}")?;
        match alloc {
            Some(alloc) if offset.is_none() => self.print_tail(context, &alloc),
            _ => {
                self.misses = true;
                self.say_why_not_stored(context)
            }
        }
    }

    /// Prints what is wanted of a text to which nothing is added.
    fn print_whole(&mut self, context: &mut Context<'_>, text: &Text) -> anyhow::Result<()> {
        self.printer.hold(self.lines);
        self.printer.print(context, text)?;
        self.printer.release(context)
    }

    /// Prints the end of an output of which nothing was printed, as the row of the alloc has it. Who follows an output gets it
    /// from its beginning on, and never only its end.
    fn print_tail(&mut self, context: &mut Context<'_>, alloc: &Alloc) -> anyhow::Result<()> {
        self.say_why_not_stored(context)?;
        let (id, node) = (alloc.id(), alloc.summary.node_id);
        if self.printer.only.is_some() {
            // Nobody knows which part of the output the row has.
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
        // The first line is a part of one.
        self.misses |= self.lines.is_none_or(|lines| text.lines() <= lines);
        writeln!(context.err, "the last {} bytes of the output of {id}, as node {node} reported them:", tail.len())?;
        self.print_whole(context, &text)
    }

    fn say_why_not_stored(&mut self, context: &mut Context<'_>) -> anyhow::Result<()> {
        match self.found.take() {
            Some(Found::Nothing(why)) => Ok(writeln!(context.err, "{why}")?),
            _ => Ok(()),
        }
    }

    /// Ends the reading before all was printed.
    pub(super) async fn leave(&mut self, now: Time) {
        self.misses = true;
        self.close(now).await;
    }

    /// Ends the reading of the present alloc.
    pub(super) async fn close(&mut self, now: Time) {
        if let Some(reader) = self.reader.take() {
            self.done.insert(reader.alloc_id);
            reader.close(now).await;
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

/// Whether the permissions of the caller do not allow the call.
fn denied(error: &anyhow::Error) -> bool {
    matches!(show::db_error(error), Some(DbError::Refused { code, .. }) if code == "AccessDeniedException")
}

/// The error for people. A call that permissions do not allow has a long text, which names accounts and roles.
fn said(error: &anyhow::Error) -> String {
    match denied(error) {
        true => "your permissions do not allow it (an update of `follows` in the nodes table)".to_owned(),
        false => show::error(error),
    }
}

/// Prints the end of an alloc's output as its row has it: of a job of several members.
pub(super) fn tail(context: &mut Context<'_>, alloc: &Alloc) -> anyhow::Result<()> {
    let (id, node) = (alloc.id(), alloc.summary.node_id);
    let Some(text) = &alloc.log_tail else {
        return Ok(writeln!(context.err, "node {node} reported no output")?);
    };
    if whole(alloc).is_none() {
        writeln!(context.err, "the last {} bytes of the output of {id}, as node {node} reported them:", text.len())?;
    }
    Printer::new(Route::Apart).print(context, &tail_of(alloc))
}
