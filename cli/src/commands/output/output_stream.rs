//! Prints the output of a job, while it runs and after it ended.
//!
//! Flow: the output of an alloc is read from S3, where its node stores it: see `stored_output`. While the alloc runs, a follow on
//! the record of its node makes the node store what is new each second. The row of an ended alloc may have all of a short output.
//!
//! Guarantees: the output of each alloc is printed in the order of its bytes, and nothing of it after a gap. Standard error says
//! what is missing and why, and [`OutputStream::outcome`] says whether something is. One failed read does not end it. A follow
//! ends by itself, also if its reader was killed.
//! Does not: wait for the rest of an ended alloc for long, or for a node that is gone.

use super::output_printer::{Printer, Route, Text};
use super::stored_output;
use crate::changes::operate::{follow, retried};
use crate::console::{Cluster, Context, ErrorKind, Exit, show};
use crate::view::live_output;
use model::wire::MAX_LOG_TAIL_BYTES;
use model::{Alloc, AllocId, ClientStatus, Job, NodeRecord, NodeStateName, NodeStatus, S3Place, Span, Time};
use std::collections::BTreeSet;
use std::time::Duration;
use store::DbError;

/// The time between two polls.
pub(crate) const POLL: Duration = Duration::from_millis(500);
/// One poll in this many also reads the row of the alloc.
const POLLS_A_ROW: u32 = 4;
/// After this poll without a byte, the person reads why there is none.
const SLOW_POLL: u32 = 5;
/// The exit code if a part of the output is missing: EX_IOERR of sysexits.h.
pub(crate) const MISSING: u8 = 74;
/// A follow is renewed after this time.
const RENEW_AFTER: Span = Span::from_s(45);
/// How long the node of an ended alloc may store nothing more before the rest counts as missing. A running node has this time for
/// a heartbeat that is due.
const PATIENCE: Span = Span::from_s(20);
/// How long after its heartbeat a node has stored what there was.
const STORES_WITHIN: Span = Span::from_s(3);

/// Which output is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// All there is now.
    Now,
    /// All until the alloc ends.
    End,
}

/// The output of one member of a job, alloc after alloc.
pub(crate) struct OutputStream<'a> {
    cluster: &'a Cluster,
    member: u32,
    /// Only this many lines at the end of what there is when the reading of an alloc begins.
    pub(crate) lines: Option<usize>,
    until: Until,
    /// Whether to say nothing while it waits for a node.
    pub(crate) quiet: bool,
    output: Option<AllocOutput>,
    /// The allocs that were printed, or need not be.
    done: BTreeSet<AllocId>,
    /// Whether a part that was to be printed is missing.
    misses: bool,
    pub(crate) printer: Printer,
}

/// An alloc whose output is being printed.
struct AllocOutput {
    /// The alloc as last read.
    alloc: Alloc,
    /// The next byte to print; `None` until something was stored.
    at: Option<u64>,
    began_at: Time,
    /// When more of the output was last printed, or the reading began.
    grew_at: Time,
    /// When the follow is to be written next; `None` if the person may not write it.
    follow_at: Option<Time>,
    /// The last heartbeat of the node before the follow was first written.
    pinged_at: Option<Time>,
    /// When the first heartbeat after that was noticed.
    answered_at: Option<Time>,
    polls: u32,
}

/// What is known of the part of an output that is not stored.
enum Rest {
    /// More may come.
    Comes,
    /// There was no more at a moment after the reading began.
    Nothing,
    /// A part is missing and will not come. The text says why.
    Missing(String),
}

impl<'a> OutputStream<'a> {
    /// The output of a member's allocs, without those in `except`.
    pub(crate) fn new(
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
            output: None,
            done: except,
            misses: false,
            printer: Printer::new(route),
        }
    }

    /// The outcome of the command that printed the output.
    pub(crate) const fn outcome(&self) -> Exit {
        if self.misses || self.printer.is_cut { Exit::Code(MISSING) } else { Exit::Done }
    }

    /// Stops the reading before all was printed.
    pub(crate) const fn leave(&mut self) {
        self.misses = true;
    }

    pub(crate) async fn print(mut self, context: &mut Context<'_>, job: &Job) -> anyhow::Result<Exit> {
        while !self.poll(context, job).await? {
            tokio::time::sleep(POLL).await;
        }
        Ok(self.outcome())
    }

    /// Prints what is new. Returns whether nothing is left to print now: every alloc of the member is done.
    pub(crate) async fn poll(&mut self, context: &mut Context<'_>, job: &Job) -> anyhow::Result<bool> {
        match self.try_poll(context, job).await {
            // A stream may last for hours, so a cluster that does not answer does not end it.
            Err(error) if self.until == Until::End && ErrorKind::of(&error) == ErrorKind::Again => Ok(false),
            other => other,
        }
    }

    async fn try_poll(&mut self, context: &mut Context<'_>, job: &Job) -> anyhow::Result<bool> {
        loop {
            let mut output = match self.output.take() {
                Some(output) => output,
                None => match self.next(job, context.now()).await? {
                    Some(output) => output,
                    None => return Ok(true),
                },
            };
            let id = output.alloc.id();
            let is_done = self.read(context, &mut output).await;
            self.output = Some(output);
            if !is_done? {
                return Ok(false);
            }
            self.printer.end(context)?;
            self.output = None;
            self.done.insert(id);
        }
    }

    /// The alloc that is printed next.
    async fn next(&mut self, job: &Job, now: Time) -> anyhow::Result<Option<AllocOutput>> {
        let allocs = self.cluster.store.allocs_of([job]).await?.rows;
        let left = allocs.into_iter().filter(|a| a.id().member == self.member && !self.done.contains(&a.id()));
        let Some(alloc) = left.min_by_key(|a| a.id().copy) else { return Ok(None) };
        self.printer.hold(self.lines);
        Ok(Some(AllocOutput {
            alloc,
            at: None,
            began_at: now,
            grew_at: now,
            follow_at: Some(now),
            pinged_at: None,
            answered_at: None,
            polls: 0,
        }))
    }

    /// Prints what is new of an alloc's output. Returns whether that was the last of it.
    async fn read(&mut self, context: &mut Context<'_>, output: &mut AllocOutput) -> anyhow::Result<bool> {
        let (id, now) = (output.alloc.id(), context.now());
        // This comes before the stored part is read: an ended alloc prints no more than is stored then.
        if output.polls.is_multiple_of(POLLS_A_ROW) {
            let Some(alloc) = self.cluster.store.alloc(id).await? else {
                return self.miss(context, output, "the alloc is not stored any more").await;
            };
            if alloc.summary.client.is_final() && !output.alloc.summary.client.is_final() {
                // The node has the time from now on to store the rest.
                output.grew_at = now;
            }
            output.alloc = alloc;
            if let Some(whole) = whole(&output.alloc) {
                self.printer.print(context, &whole.from(output.at.unwrap_or(0)))?;
                self.printer.release(context)?;
                return Ok(true);
            }
        }
        output.polls = output.polls.wrapping_add(1);
        let is_final = output.alloc.summary.client.is_final();
        let stored = match output.alloc.output_s3.clone() {
            Some(place) => {
                if !is_final {
                    self.follow(context, output, now).await?;
                }
                self.print_stored(context, output, &place, now).await?
            }
            None => Ok(false),
        };
        let is_whole = matches!(stored, Ok(true));
        let rest = if is_whole { Rest::Nothing } else { self.rest(output, now).await? };
        match rest {
            Rest::Nothing => {
                self.printer.release(context)?;
                Ok(true)
            }
            Rest::Missing(why) => self.miss(context, output, &stored.err().unwrap_or(why)).await,
            Rest::Comes => {
                if output.polls == SLOW_POLL && output.at.is_none() && !self.quiet && !is_final {
                    let node = output.alloc.summary.node_id;
                    writeln!(context.err, "node {node} stores the output as it comes from its next heartbeat on")?;
                }
                Ok(false)
            }
        }
    }

    /// Prints what is stored and was not printed. Returns whether that is all of the output. The inner error says why nothing is
    /// stored, or why it cannot be read.
    async fn print_stored(
        &mut self,
        context: &mut Context<'_>,
        output: &mut AllocOutput,
        place: &S3Place,
        now: Time,
    ) -> anyhow::Result<Result<bool, String>> {
        let stored = match live_output::find(&self.cluster.outputs, place, output.at.unwrap_or(0)).await {
            Ok(stored) => stored,
            Err(why) => return Ok(Err(why)),
        };
        let begin =
            || self.lines.map_or(0, |lines| stored_output::begin_of_last(lines, self.printer.route, stored.size));
        let from = output.at.unwrap_or_else(begin);
        let (to, why) =
            stored_output::print(self.cluster, context, &mut self.printer, place, from..stored.size).await?;
        if output.at.is_none() && from > 0 && matches!(self.printer.tail, Some((_, _, false))) {
            self.misses = true;
            writeln!(
                context.err,
                "the first line began before what is read for --tail: --stdout and --stderr read all"
            )?;
        }
        if output.at.is_none_or(|at| at < to) {
            (output.at, output.grew_at) = (Some(to), now);
        }
        if self.until == Until::End && why.is_none() {
            self.printer.release(context)?;
        }
        Ok(why.map_or(Ok(stored.is_all), Err))
    }

    /// Notes on the record of the alloc's node that somebody follows the alloc.
    async fn follow(&self, context: &mut Context<'_>, output: &mut AllocOutput, now: Time) -> anyhow::Result<()> {
        let (store, id) = (&self.cluster.store, output.alloc.id());
        if output.follow_at.is_none_or(|at| now < at) {
            return Ok(());
        }
        output.follow_at = Some(now + RENEW_AFTER);
        let noted = retried(async || Ok(follow(store, &output.alloc, now).await?));
        match noted.await {
            Ok(pinged_at) => output.pinged_at = output.pinged_at.or(pinged_at),
            Err(error) if denied(&error) => {
                output.follow_at = None;
                writeln!(context.err, "the output of {id} is not stored as it comes: {NOT_ALLOWED}")?;
            }
            Err(error) => {
                output.follow_at = Some(now);
                tracing::debug!(%error, "the follow was not written");
            }
        }
        Ok(())
    }

    /// What is to be expected of the part that is not stored.
    async fn rest(&self, output: &mut AllocOutput, now: Time) -> anyhow::Result<Rest> {
        let (id, is_final) = (output.alloc.summary.node_id, output.alloc.summary.client.is_final());
        if self.until == Until::End && !is_final {
            return Ok(Rest::Comes);
        }
        if output.alloc.output_s3.is_none() {
            let why = "the policy named no place in S3 when the alloc was placed (output.s3)";
            return Ok(Rest::Missing(why.to_owned()));
        }
        let record = self.cluster.store.node(id.slot()).await?;
        let Some(hears) = record.as_ref().and_then(|record| hears_within(record, &output.alloc)) else {
            return Ok(Rest::Missing(format!("node {id} is no more, or is silent")));
        };
        if is_final {
            let is_late = now.since(output.grew_at) > PATIENCE;
            return Ok(if is_late { Rest::Missing(format!("node {id} has not stored it")) } else { Rest::Comes });
        }
        if output.follow_at.is_none() {
            return Ok(Rest::Missing(NOT_ALLOWED.to_owned()));
        }
        let pinged_at = record.as_ref().and_then(|record| record.contact()).map(|contact| contact.last_ping_at);
        if output.pinged_at.is_some() && pinged_at != output.pinged_at {
            output.answered_at = output.answered_at.or(Some(now));
        }
        Ok(match output.answered_at {
            Some(at) if now.since(at) >= STORES_WITHIN => Rest::Nothing,
            None if now.since(output.began_at) > hears + PATIENCE => {
                Rest::Missing(format!("node {id} does not answer"))
            }
            _ => Rest::Comes,
        })
    }

    /// Says that the rest of the output is missing. If nothing of it was printed, prints its end from the row.
    async fn miss(&mut self, context: &mut Context<'_>, output: &AllocOutput, why: &str) -> anyhow::Result<bool> {
        let id = output.alloc.id();
        if let Some(at) = output.at.filter(|at| *at > 0) {
            self.misses = true;
            self.printer.release(context)?;
            writeln!(context.err, "the output of {id} after byte {at} is missing: {why}")?;
        } else {
            writeln!(context.err, "the output of {id} is missing: {why}")?;
            self.print_tail(context, &output.alloc)?;
        }
        Ok(true)
    }

    /// Prints the end of an output from the row of its alloc. A reader that follows an output never gets only its end.
    fn print_tail(&mut self, context: &mut Context<'_>, alloc: &Alloc) -> anyhow::Result<()> {
        let (id, node) = (alloc.id(), alloc.summary.node_id);
        if self.printer.only.is_some() {
            // Nobody knows which bytes of the output the row has, so the wanted range cannot be cut out of them.
            self.misses = true;
            return Ok(());
        }
        let Some(tail) = &alloc.run.log_tail else {
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
        self.printer.hold(self.lines);
        self.printer.print(context, &text)?;
        self.printer.release(context)
    }
}

/// How soon the node of this alloc hears of a follow; `None` if the node is gone or silent.
fn hears_within(record: &NodeRecord, alloc: &Alloc) -> Option<Span> {
    if record.node_id() != Some(alloc.summary.node_id) {
        return None;
    }
    let contact = record.contact()?;
    match (record.state_name(), contact.status) {
        (NodeStateName::InUse, NodeStatus::Syncing | NodeStatus::Ready) => {
            Some(contact.lease_expires_at.since(contact.last_ping_at))
        }
        // The machine may still run for some seconds.
        (NodeStateName::ShuttingDown, _) => Some(Span::ZERO),
        _ => None,
    }
}

/// The AWS text of a denied call is long, and names accounts and roles.
const NOT_ALLOWED: &str = "your permissions do not allow it (an update of `follows` in the nodes table)";

fn denied(error: &anyhow::Error) -> bool {
    matches!(show::db_error(error), Some(DbError::Refused { code, .. }) if code == "AccessDeniedException")
}

/// The whole output of an ended alloc, if its row has it.
fn whole(alloc: &Alloc) -> Option<Text> {
    let client = alloc.summary.client;
    let is_whole = client.is_final()
        && match &alloc.run.log_tail {
            None => client != ClientStatus::Lost,
            // A longer output is cut between two characters, and a character has at most four bytes. A tail that is cut shorter says
            // so. Bytes that are no text have become replacement characters.
            Some(tail) => {
                tail.len() < MAX_LOG_TAIL_BYTES - 4 && !tail.starts_with(model::wire::CUT) && !tail.contains('\u{fffd}')
            }
        };
    is_whole.then(|| tail_of(alloc))
}

fn tail_of(alloc: &Alloc) -> Text {
    Text::new(alloc.run.log_tail.as_deref().unwrap_or_default().as_bytes(), alloc.run.tail_switches.clone())
}
