//! `POST …/output`: pieces of the output of an alloc, for a reader.
//!
//! Guarantees: a node writes pieces only for readers who are on its own record; a piece is written once, and the answer says
//! which piece comes next, also to an agent that has forgotten.
//! Does not: keep output, or give it to anybody. Readers read the table.

use crate::{Ingest, internal};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::ids::{AllocId, NodeId};
use model::output::{Follow, MAX_FOLLOW_ID_BYTES, MAX_PIECE_BYTES, MAX_PIECE_SWITCHES, PIECE_KEPT, Piece, Then};
use model::time::Time;
use model::wire::{ErrorCode, NextPiece, OutputAnswer, OutputPiece, OutputReport, WantedOutput};
use model::{Life, NodeRecord};
use runtime::http::{HttpError, Proven, standing};
use std::collections::BTreeSet;
use store::unless_raced;

/// No reader wants more.
const NO_MORE: OutputAnswer = OutputAnswer { wanted: false, next: None };

impl Ingest {
    /// Takes a piece of output, or says which piece comes next.
    pub(crate) async fn output(
        &self,
        node_id: NodeId,
        proven: &Proven,
        report: &OutputReport,
        now: Time,
    ) -> Result<OutputAnswer, HttpError> {
        if report.follow_id.is_empty() || report.follow_id.len() > MAX_FOLLOW_ID_BYTES {
            let message = format!("follow_id must have 1 to {MAX_FOLLOW_ID_BYTES} bytes");
            return Err(HttpError::new(ErrorCode::BadRequest, message));
        }
        let record = self.store.node(node_id.slot()).await.map_err(internal)?;
        let record = standing(record, node_id, proven)?;
        let is_wanted = |follow: &Follow| {
            follow.follow_id == report.follow_id && follow.alloc_id == report.alloc_id && follow.until_at > now
        };
        if !record.life().is_some_and(|life| life.follows.iter().any(is_wanted)) {
            return Ok(NO_MORE);
        }
        let Some(piece) = &report.piece else { return self.next_piece(&report.follow_id).await };
        let row = row(report, piece, now)?;
        match unless_raced(self.store.put_piece(&row).await).map_err(internal)? {
            Some(()) => Ok(after(Some(&row))),
            // The answer to the first write was lost, or the agent had lost its offset.
            None => self.next_piece(&report.follow_id).await,
        }
    }

    async fn next_piece(&self, follow_id: &str) -> Result<OutputAnswer, HttpError> {
        self.store.last_piece(follow_id).await.map(|last| after(last.as_ref())).map_err(internal)
    }

    /// Takes the readers whose time is over off the record. They would make every heartbeat larger.
    pub(crate) async fn forget_follows(&self, record: NodeRecord, now: Time) -> Result<NodeRecord, HttpError> {
        if record.life().is_none_or(|life| life.follows.iter().all(|follow| follow.until_at > now)) {
            return Ok(record);
        }
        let Some(after) = record.without_follow(None, now) else { return Ok(record) };
        // A lost race is fine: the next heartbeat tries again.
        let written = unless_raced(self.store.write(Some(&record), &after, Vec::new()).await);
        Ok(written.map_err(internal)?.unwrap_or(record))
    }
}

/// What the node is asked to send. The node has no order of an alloc whose row cannot be read, so such an alloc is left out.
pub(crate) fn wanted(life: &Life, unreadable: &BTreeSet<AllocId>, now: Time) -> Vec<WantedOutput> {
    let open = life.follows.iter().filter(|f| f.until_at > now && !unreadable.contains(&f.alloc_id));
    open.map(|Follow { follow_id, alloc_id, last_bytes, .. }| WantedOutput {
        follow_id: follow_id.clone(),
        alloc_id: *alloc_id,
        last_bytes: *last_bytes,
    })
    .collect()
}

/// The answer after the last piece that is stored.
fn after(last: Option<&Piece>) -> OutputAnswer {
    match last {
        Some(piece) if piece.then != Then::More => NO_MORE,
        Some(piece) => {
            let next = NextPiece { no: piece.no.saturating_add(1), offset: piece.offset.saturating_add(piece.bytes) };
            OutputAnswer { wanted: true, next: Some(next) }
        }
        None => OutputAnswer { wanted: true, next: None },
    }
}

fn row(report: &OutputReport, piece: &OutputPiece, now: Time) -> Result<Piece, HttpError> {
    let bad = |message: String| HttpError::new(ErrorCode::BadRequest, message);
    let data = BASE64_STANDARD.decode(&piece.data).map_err(|e| bad(format!("data must be base64: {e}")))?;
    if data.len() > MAX_PIECE_BYTES {
        return Err(bad(format!("a piece has at most {MAX_PIECE_BYTES} bytes, and this one has {}", data.len())));
    }
    if piece.switches.len() > MAX_PIECE_SWITCHES {
        let switches = piece.switches.len();
        return Err(bad(format!("a piece has at most {MAX_PIECE_SWITCHES} switches, and this one has {switches}")));
    }
    Ok(Piece {
        follow_id: report.follow_id.clone(),
        no: piece.no,
        offset: piece.offset,
        data: piece.data.clone(),
        switches: piece.switches.clone(),
        bytes: u64::try_from(data.len()).unwrap_or(u64::MAX),
        size: piece.size,
        then: piece.then,
        expires_at: (now + PIECE_KEPT).as_epoch_s(),
    })
}
