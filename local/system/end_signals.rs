//! The signals that end the local system.
//!
//! Guarantees: once somebody listens, none of them kills this program, so the parts can be ended in order.
//! Does not: end anything.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C (SIGINT), SIGTERM, and SIGHUP, which the end of the terminal sends.
pub(crate) struct EndSignals([Signal; 3]);

impl EndSignals {
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
