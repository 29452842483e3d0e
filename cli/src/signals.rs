//! The signals that end a program that shows something, or runs something, until it is told to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, TERM, and the end of the terminal.
pub(crate) struct Signals([Signal; 3]);

impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        let [int, term, hup] = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
        Ok(Self([int?, term?, hup?]))
    }

    pub(crate) async fn next(&mut self) {
        let Self([int, term, hup]) = self;
        tokio::select! {
            _ = int.recv() => {}
            _ = term.recv() => {}
            _ = hup.recv() => {}
        }
    }
}
