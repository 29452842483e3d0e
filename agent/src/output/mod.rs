//! The loop that sends output to readers.
//!
//! Guarantees: sends only what the last heartbeat's answer names, in order and without a gap; sends so little that heartbeats
//! and reports are never refused because of it; asks where to begin when it does not know, so a new agent goes on where the
//! old one was.
//! Does not: keep anything on disk, or send faster for a reader who is behind. It ends only after 410 `gone`.

pub mod capture;
pub mod output_files;
pub mod outputs;
pub mod uploads;

use crate::contact::client::{CallError, ControlPlaneClient};
use crate::contact::node_state::NodeState;
use crate::machine::blocking::blocking;
use model::output::{MAX_PIECE_BYTES, Then};
use model::wire::{ErrorCode, NextPiece, OutputAnswer, OutputPiece, OutputReport, WantedOutput};
use outputs::{Outputs, Start};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;
use tokio::time::sleep;

/// The time between two looks at what there is to send.
const INTERVAL: Duration = Duration::from_millis(500);

/// The most calls in one look, for all readers together. The control plane takes about 20 calls a second of a node.
const CALLS: u32 = 4;

/// The wait after a call that failed, and the longest that the control plane may ask for.
const FAILED_WAIT: Duration = Duration::from_secs(5);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Which piece a reader needs next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Position {
    /// The control plane must be asked.
    #[default]
    Unknown,
    /// No piece was sent.
    Begin,
    /// This piece comes next.
    Next(NextPiece),
}

struct Sender<'a> {
    state: &'a NodeState,
    client: &'a ControlPlaneClient,
    url: &'a str,
    outputs: &'a Outputs,
}

/// Sends output until the node is gone.
pub async fn run(state: &NodeState, client: &ControlPlaneClient, url: &str, outputs: &Outputs) {
    let sender = Sender { state, client, url, outputs };
    let mut readers: BTreeMap<String, Position> = BTreeMap::new();
    let mut look: usize = 0;
    loop {
        let mut wanted = state.wanted();
        readers.retain(|id, _| wanted.iter().any(|w| w.follow_id == *id));
        if wanted.is_empty() {
            state.wanted_changed.notified().await;
            continue;
        }
        // Each look begins with another reader, so that one who is far behind does not take the calls of all.
        look = look.wrapping_add(1);
        let first = look.checked_rem(wanted.len()).unwrap_or_default();
        wanted.rotate_left(first);
        let mut calls = CALLS;
        let mut wait = INTERVAL;
        for reader in &wanted {
            let position = readers.entry(reader.follow_id.clone()).or_default();
            match sender.send(reader, position, &mut calls).await {
                Ok(()) => {}
                Err(error) if error.code == Some(ErrorCode::Gone) => return,
                Err(error) => {
                    tracing::warn!(alloc_id = %reader.alloc_id, %error, "output was not sent: trying again");
                    // A piece may have arrived although its answer did not.
                    *position = Position::Unknown;
                    wait = error.retry_after.unwrap_or(FAILED_WAIT).clamp(FAILED_WAIT, LONGEST_WAIT);
                    break;
                }
            }
        }
        sleep(wait).await;
    }
}

impl Sender<'_> {
    /// Sends what there is for one reader, as far as `calls` allow.
    async fn send(&self, reader: &WantedOutput, position: &mut Position, calls: &mut u32) -> Result<(), CallError> {
        while *calls > 0 {
            let piece = match *position {
                Position::Unknown => None,
                known => match self.next_piece(reader, known).await {
                    Ok(Some(piece)) => Some(piece),
                    Ok(None) => return Ok(()),
                    Err(error) => {
                        tracing::warn!(alloc_id = %reader.alloc_id, %error, "the output cannot be read");
                        self.state.no_longer_wanted(&reader.follow_id);
                        return Ok(());
                    }
                },
            };
            *calls -= 1;
            let report = OutputReport { follow_id: reader.follow_id.clone(), alloc_id: reader.alloc_id, piece };
            let answer: OutputAnswer = self.client.post(self.url, "output", &report).await?;
            self.state.answered();
            if !answer.wanted {
                // The next heartbeat may name the reader again.
                *position = Position::Unknown;
                self.state.no_longer_wanted(&reader.follow_id);
                return Ok(());
            }
            *position = answer.next.map_or(Position::Begin, Position::Next);
        }
        Ok(())
    }

    /// The next piece for a reader; `None` if there is nothing to send now. The first piece is sent even if it is empty: it shows
    /// the reader that the node knows of it.
    async fn next_piece(&self, reader: &WantedOutput, position: Position) -> io::Result<Option<OutputPiece>> {
        let (no, from) = match (position, reader.last_bytes) {
            (Position::Next(next), _) => (next.no, Start::Byte(next.offset)),
            (_, Some(bytes)) => (0, Start::Last(bytes)),
            (_, None) => (0, Start::Byte(0)),
        };
        let id = reader.alloc_id;
        let is_known = self.state.read(|node| node.durable.allocs.contains_key(&id));
        let outputs = self.outputs.clone();
        let read = move || outputs.read(id, from, MAX_PIECE_BYTES as u64, is_known);
        let piece = OutputPiece { no, ..blocking(read).await? };
        let says = no == 0 || !piece.data.is_empty() || piece.then != Then::More;
        Ok(says.then_some(piece))
    }
}
