//! The loops that watch the machine itself: interruptions announced by EC2, and other work.
//!
//! Guarantees: the control plane hears of a change at once, by an extra heartbeat.
//! Does not: act on a change; the control plane decides.

use super::busy;
use crate::contact::imds::{self, Imds};
use crate::contact::shared_node::SharedNode;
use std::time::Duration;
use tokio::time::sleep;

/// Asks EC2 again and again whether it will interrupt the instance. Without `imds` this waits for ever.
pub async fn interruption(state: &SharedNode, imds: Option<Imds>) {
    let Some(imds) = imds else { return std::future::pending().await };
    loop {
        // Without an answer nothing is known, and the next round asks again.
        if let Ok(Some(at)) = imds.interrupt_at().await
            && state.read(|n| n.interrupt_at) != Some(at)
        {
            tracing::warn!(interrupt_at = %at, "EC2 will interrupt this instance");
            state.update_and_beat(|n| n.interrupt_at = Some(at)).await;
            // What its jobs have printed must not end with it.
            state.store_now.notify_one();
        }
        sleep(imds::POLL_INTERVAL).await;
    }
}

/// Asks the busy check again and again whether other work keeps the node busy. Without `command` this waits for ever.
pub async fn other_work(state: &SharedNode, command: Option<&str>, interval: Duration) {
    let Some(command) = command else { return std::future::pending().await };
    loop {
        let busy = busy::check(command).await;
        if state.read(|n| n.health.busy) != busy {
            state.update_and_beat(|n| n.health.busy = busy).await;
        }
        sleep(interval).await;
    }
}
