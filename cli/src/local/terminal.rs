//! Output to the terminal, and the signals that end the program.

use std::io::Write;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Prints one or more lines. If nobody reads them, the program goes on.
pub(super) fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// The signals that end the program: Ctrl-C, TERM, and the end of the terminal.
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
