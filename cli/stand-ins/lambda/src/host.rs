//! What all functions share: address, region, environment, clock, log, and the signal to stop.

use guard::Signatures;
use guard::sigv4::Issuer;
use model::time::Time;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// Takes the functions' output: the function's name and one line.
pub type LogSink = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// The values that all functions share.
pub(crate) struct Host {
    pub(crate) address: SocketAddr,
    pub(crate) region: String,
    pub(crate) inherited_env: BTreeMap<String, String>,
    pub(crate) url_auth: Option<Arc<dyn Issuer>>,
    pub(crate) invoke_auth: Option<Signatures>,
    pub(crate) clock: Arc<dyn Fn() -> Time + Send + Sync>,
    pub(crate) log: LogSink,
    /// Becomes true once, at the shutdown.
    pub(crate) stop: watch::Sender<bool>,
}

impl Host {
    pub(crate) fn stop_signal(&self) -> StopSignal {
        StopSignal(self.stop.subscribe())
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Tells a task to end. The shutdown waits until every task has dropped its signal.
pub(crate) struct StopSignal(watch::Receiver<bool>);

impl StopSignal {
    pub(crate) async fn raised(&mut self) {
        // An error means that the sender is gone: stop as well.
        let _ = self.0.wait_for(|stop| *stop).await;
    }
}
