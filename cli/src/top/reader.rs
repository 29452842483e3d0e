//! Reads the cluster in the background, as the page does, again and again.
//!
//! Guarantees: at most one look of each kind runs at a time. Keys never wait for a look.
//! Does not: stop after a failed look. The next one may succeed.

use super::state::{Detail, Selection, Snapshot};
use crate::view::{JobDetail, Live, NodeDetail, Stored, Views};
use std::sync::Arc;
use std::time::Duration;
use store::DbError;
use tokio::sync::{mpsc, watch};

#[derive(Debug)]
pub(super) enum Update {
    Snapshot(Arc<Snapshot>),
    Failed(String),
    Detail(Selection, Result<Detail, String>),
}

/// What is opened, and how often a new look was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RefreshRequest {
    pub(super) opened: Option<Selection>,
    pub(super) again: u64,
}

/// Reads the lists until the receiver is dropped.
pub(super) async fn lists(views: Arc<Views>, mut asked: watch::Receiver<RefreshRequest>, news: mpsc::Sender<Update>) {
    let mut last = None;
    loop {
        let again = asked.borrow_and_update().again;
        let update = match refresh(&views, &mut last).await {
            Ok(seen) => seen.map(|seen| Update::Snapshot(Arc::new(seen))),
            Err(error) => Some(Update::Failed(error.to_string())),
        };
        if let Some(update) = update
            && news.send(update).await.is_err()
        {
            return;
        }
        tokio::select! {
            () = pause(&views) => {}
            waited = asked.wait_for(|asked| asked.again != again) => if waited.is_err() { return },
        }
    }
}

async fn pause(views: &Views) {
    tokio::time::sleep(Duration::from_millis(views.source.pace.refresh_ms)).await;
}

/// The lists; `None` if they have not changed.
async fn refresh(views: &Views, last: &mut Option<(Arc<Live>, Arc<Stored>)>) -> Result<Option<Snapshot>, DbError> {
    let before = last.take();
    let (live, stored) = (views.live().await?, views.stored().await?);
    let is_same = |(l, s): &(Arc<Live>, Arc<Stored>)| Arc::ptr_eq(l, &live) && Arc::ptr_eq(s, &stored);
    let snapshot = if before.as_ref().is_some_and(is_same) {
        None
    } else {
        let mut nodes = live.nodes();
        nodes.retain(|row| row.node_id.is_some());
        let (at, cluster, status) = (live.present.now, views.source.cluster.clone(), live.status.clone());
        Some(Snapshot { at, cluster, status, jobs: views.jobs(&live, &stored).await?, nodes })
    };
    *last = Some((live, stored));
    Ok(snapshot)
}

/// Reads the opened job or node, until the receiver is dropped.
pub(super) async fn details(views: Arc<Views>, mut asked: watch::Receiver<RefreshRequest>, news: mpsc::Sender<Update>) {
    loop {
        let opened = asked.borrow_and_update().opened;
        if let Some(thing) = opened
            && news.send(Update::Detail(thing, detail(&views, thing).await)).await.is_err()
        {
            return;
        }
        tokio::select! {
            () = pause(&views) => {}
            changed = asked.changed() => if changed.is_err() { return },
        }
    }
}

async fn detail(views: &Views, thing: Selection) -> Result<Detail, String> {
    let live = views.live().await.map_err(|e| e.to_string())?;
    let store = &views.source.store;
    let detail = match thing {
        Selection::Job(id) => JobDetail::read(store, &live, id).await.map(|job| job.map(Box::new).map(Detail::Job)),
        Selection::Node(slot) => {
            NodeDetail::read(store, &live, None, slot).await.map(|node| node.map(Box::new).map(Detail::Node))
        }
    };
    detail.map_err(|e| e.to_string())?.ok_or_else(|| "it is no longer stored".to_owned())
}
