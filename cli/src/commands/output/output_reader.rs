//! Reads the output of one alloc from its node.
//!
//! Flow: the reader writes a follow on the record of the node, the node sends pieces, and the reader finds them in the table
//! `output`: see [`model::output`].
//!
//! Guarantees: every byte is printed once and in order, and nothing after a gap. The follow is renewed during the reading, and
//! removed from the record at the end; the node stays until then. A killed reader costs nothing after [`FOLLOW_LASTS`].
//! Does not: wait for ever for a node that does not answer, once the alloc has ended.

use super::output_printer::{Printer, Route, Text};
use crate::changes::operate::retried;
use crate::console::{Cluster, Context};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::ids::{AllocId, NodeId};
use model::output::{FOLLOW_LASTS, Follow, Piece, Then};
use model::rng::Rng;
use model::time::{Span, Time};
use model::wire::MAX_LOG_TAIL_BYTES;
use model::{Alloc, ClientStatus, NodeRecord, NodeStateName, NodeStatus};

/// The most pieces that are read in one look.
const PIECES: u32 = 32;
/// One look in this many also reads the alloc and its node.
const MOST_READ: u32 = 4;
/// A follow is renewed when it ends within this time.
const RENEW_BEFORE: Span = Span::from_s(45);
/// How long a node may take to answer after it has heard of the reader.
const ANSWERS_WITHIN: Span = Span::from_s(20);
/// After this look without a piece, the person is told that the node was asked.
const SLOW_LOOK: u32 = MOST_READ + 1;

/// Which output is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Until {
    /// All there is now.
    Now,
    /// All until the alloc ends.
    End,
}

/// The result of a look at an alloc's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::commands) enum Look {
    /// More may come.
    More,
    /// All that is to be printed has come.
    Done,
    /// The rest does not come. The text says why.
    Cut(String),
}

pub(in crate::commands) struct Reader<'a> {
    cluster: &'a Cluster,
    pub(in crate::commands) alloc_id: AllocId,
    node_id: NodeId,
    until: Until,
    follow: Follow,
    /// When the follow was written.
    opened_at: Time,
    /// The last heartbeat of the node before the follow was written.
    pinged_at: Option<Time>,
    /// The number of the next piece.
    next: u64,
    /// The offset at which the next piece should begin.
    offset: u64,
    /// The size of the output when its first piece was sent.
    first_size: u64,
    /// When the node was last heard: by a piece, or by its first heartbeat after the follow was written.
    heard_at: Option<Time>,
    looks: u32,
}

impl<'a> Reader<'a> {
    /// Asks the node of this alloc for its output: for the last `lines` of what there is now, or for all.
    pub(in crate::commands) async fn open(
        cluster: &'a Cluster,
        alloc: &Alloc,
        lines: Option<usize>,
        route: Route,
        until: Until,
        now: Time,
    ) -> anyhow::Result<Self> {
        let follow_id = Rng::real().ulid(now).to_string();
        // Fails if the table cannot be read, before the node sends anything.
        cluster.store.piece(&follow_id, 0).await?;
        let last_bytes = lines.and_then(|lines| route.last_bytes(lines));
        let follow = Follow { follow_id, alloc_id: alloc.id(), last_bytes, until_at: now + FOLLOW_LASTS };
        let record = write(cluster, alloc, &follow, until, now).await?;
        Ok(Self {
            cluster,
            alloc_id: alloc.id(),
            node_id: alloc.summary.node_id,
            until,
            follow,
            opened_at: now,
            pinged_at: record.contact().map(|contact| contact.last_ping_at),
            next: 0,
            offset: 0,
            first_size: 0,
            heard_at: None,
            looks: 0,
        })
    }

    /// The offset of the next byte to print; `None` if nothing has come.
    pub(in crate::commands) fn printed_to(&self) -> Option<u64> {
        (self.offset > 0).then_some(self.offset)
    }

    /// The node, if this was the look after which the person is told that the node was asked.
    pub(in crate::commands) fn slow_node(&self) -> Option<NodeId> {
        (self.looks == SLOW_LOOK && self.next == 0).then_some(self.node_id)
    }

    /// Prints what has come. Held last lines are released as soon as all of them are here.
    pub(in crate::commands) async fn poll(
        &mut self,
        context: &mut Context<'_>,
        printer: &mut Printer,
    ) -> anyhow::Result<Look> {
        let now = context.now();
        self.renew(now).await;
        let mut pieces = PIECES;
        while pieces > 0 {
            let Some(piece) = self.cluster.store.piece(&self.follow.follow_id, self.next).await? else { break };
            pieces -= 1;
            match self.next_text(&piece, now) {
                Ok(text) => printer.print(context, &text)?,
                Err(gap) => return Ok(Look::Cut(gap)),
            }
            let reached = self.offset >= self.first_size;
            if reached || piece.then != Then::More {
                printer.release(context)?;
            }
            match piece.then {
                Then::End => return Ok(Look::Done),
                Then::Missing => return Ok(Look::Cut("its node does not have it, or not any more".to_owned())),
                Then::More if self.until == Until::Now && reached => return Ok(Look::Done),
                Then::More => {}
            }
        }
        self.looks = self.looks.wrapping_add(1);
        // There may be more pieces, or this is not one of the looks that read the alloc.
        if pieces == 0 || self.looks % MOST_READ != 1 {
            return Ok(Look::More);
        }
        let looked = self.beside(context, printer, now).await?;
        if looked != Look::More {
            printer.release(context)?;
        }
        Ok(looked)
    }

    /// The text of the next piece, or why it does not continue what came before.
    fn next_text(&mut self, piece: &Piece, now: Time) -> Result<Text, String> {
        let Ok(data) = BASE64_STANDARD.decode(&piece.data) else {
            return Err("the next piece of it cannot be read".to_owned());
        };
        let begins_anywhere = self.next == 0 && self.follow.last_bytes.is_some();
        if piece.offset != self.offset && !begins_anywhere {
            return Err(format!("its node sends it from byte {} on", piece.offset));
        }
        if self.next == 0 {
            self.first_size = piece.size;
        }
        self.offset = piece.offset.saturating_add(data.len() as u64);
        self.next = self.next.saturating_add(1);
        self.heard_at = Some(now);
        Ok(Text::new(&data, piece.switches.clone()))
    }

    /// Renews the follow in time, even while pieces come faster than they are printed.
    async fn renew(&mut self, now: Time) {
        let left = self.follow.until_at.since(now);
        if left >= RENEW_BEFORE && left <= FOLLOW_LASTS {
            return;
        }
        let renewed = Follow { until_at: now + FOLLOW_LASTS, ..self.follow.clone() };
        let written = async {
            let Some(alloc) = self.cluster.store.alloc(self.alloc_id).await? else { return Ok(false) };
            write(self.cluster, &alloc, &renewed, self.until, now).await.map(|_| true)
        };
        match written.await {
            Ok(true) => self.follow = renewed,
            Ok(false) => {}
            // The next look tries again, or finds that the node is gone.
            Err(error) => tracing::debug!(%error, "the follow was not renewed"),
        }
    }

    /// Reads the alloc and its node, and says whether more can come.
    async fn beside(&mut self, context: &mut Context<'_>, printer: &mut Printer, now: Time) -> anyhow::Result<Look> {
        let Some(alloc) = self.cluster.store.alloc(self.alloc_id).await? else {
            return Ok(Look::Cut("the alloc is not stored any more".to_owned()));
        };
        if let Some(whole) = whole(&alloc) {
            // The row has the rest.
            printer.print(context, &whole.from(self.offset))?;
            return Ok(Look::Done);
        }
        let record = self.cluster.store.node(self.node_id.slot()).await?;
        let hears = record.as_ref().and_then(|record| hears_within(record, &alloc));
        let pinged_at = record.as_ref().and_then(|record| record.contact()).map(|contact| contact.last_ping_at);
        if self.heard_at.is_none() && pinged_at != self.pinged_at {
            self.heard_at = Some(now);
        }
        if self.until.may_wait(&alloc) {
            return Ok(Look::More);
        }
        let node = self.node_id;
        let Some(hears) = hears else { return Ok(Look::Cut(format!("node {node} is no more, or is silent"))) };
        let last = self.heard_at.unwrap_or(self.opened_at + hears);
        let is_late = now.since(last) > ANSWERS_WITHIN;
        Ok(if is_late { Look::Cut(format!("node {node} does not answer")) } else { Look::More })
    }

    /// Removes the follow from the record. If that fails, the follow expires by itself.
    pub(in crate::commands) async fn close(self, now: Time) {
        let store = &self.cluster.store;
        let closed = retried(async || {
            if let Some(record) = store.node(self.node_id.slot()).await?
                && let Some(after) = record.without_follow(Some(&self.follow.follow_id), now)
            {
                store.write(Some(&record), &after, Vec::new()).await?;
            }
            Ok(())
        });
        if let Err(error) = closed.await {
            tracing::debug!(%error, "a follow is left to end by itself");
        }
    }
}

impl Until {
    /// Whether a reader waits for the output of this alloc even if its node is silent for long.
    fn may_wait(self, alloc: &Alloc) -> bool {
        self == Self::End && !alloc.summary.client.is_final()
    }
}

/// How soon the node of this alloc hears of a reader; `None` if the node is gone or silent.
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

/// Writes the follow on the record of the alloc's node. A silent node is an error, unless the reader may wait for it.
async fn write(
    cluster: &Cluster,
    alloc: &Alloc,
    follow: &Follow,
    until: Until,
    now: Time,
) -> anyhow::Result<NodeRecord> {
    retried(async || {
        let node_id = alloc.summary.node_id;
        let record = cluster.store.node(node_id.slot()).await?.filter(|record| record.node_id() == Some(node_id));
        let Some(record) = record else { anyhow::bail!("node {node_id} is no more") };
        let hears = until.may_wait(alloc) || hears_within(&record, alloc).is_some();
        anyhow::ensure!(hears, "node {node_id} is silent");
        // The clock of this machine may be slow. The functions' clock has at least reached the node's last heartbeat.
        let now = record.contact().map_or(now, |contact| contact.last_ping_at.max(now));
        let follow = Follow { until_at: now + FOLLOW_LASTS, ..follow.clone() };
        let after = record.with_follow(&follow, now)?;
        Ok(cluster.store.write(Some(&record), &after, Vec::new()).await?)
    })
    .await
}

/// The whole output of an ended alloc, if its row has it.
pub(in crate::commands) fn whole(alloc: &Alloc) -> Option<Text> {
    let client = alloc.summary.client;
    let is_whole = client.is_final()
        && match &alloc.log_tail {
            None => client != ClientStatus::Lost,
            // A longer output is cut between two characters, and a character has at most four bytes. A tail that is cut shorter says
            // so. Bytes that are no text have become replacement characters.
            Some(tail) => {
                tail.len() < MAX_LOG_TAIL_BYTES - 4 && !tail.starts_with(model::wire::CUT) && !tail.contains('\u{fffd}')
            }
        };
    is_whole.then(|| tail_of(alloc))
}

pub(in crate::commands) fn tail_of(alloc: &Alloc) -> Text {
    Text::new(alloc.log_tail.as_deref().unwrap_or_default().as_bytes(), alloc.tail_switches.clone())
}
