//! Serves HTTP on ports of this machine that programs of every user can reach: jobs, above all.
//!
//! | where | what |
//! | --- | --- |
//! | `user` | asks the kernel which user has the other end of a connection |
//! | `admission` | how many connections the owner, all others, and each other user may have |
//! | [`origin`] | what a browser says about the page that sends a request |
//!
//! Guarantees: other users together never have more connections than their share, however many they open, so that the process
//! keeps descriptors for its own work, and its owner is answered. A connection whose caller stops in the middle of its request, or
//! stops reading its answer, ends. Nothing waits for a caller before the next connection is accepted.
//! Does not: know who sends a request within a connection; the routers check that. End a connection whose caller sends or reads
//! single bytes: such a caller takes only seats of its own user, and could connect again anyway.

mod admission;
pub mod origin;
mod user;

pub use admission::{Admission, Callers};

use admission::{Seat, WhyClosed};
use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::middleware::map_request;
use futures::{StreamExt, stream};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::set_tcp_user_timeout;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use user::Users;

/// The most bytes of the head of a request. Those of AWS's clients have less than 8 KiB.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// How many connections may be open whose users are not known yet. It takes the kernel microseconds to say.
const UNCHECKED: usize = 64;
/// The wait after the kernel gave no connection, for example because no descriptor is left.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// Serves until the future is dropped. `what` is the name in the log. All services of a process share one [`Admission`].
pub async fn serve(
    what: &'static str,
    listener: TcpListener,
    router: Router,
    callers: Callers,
    admission: Admission,
) -> Infallible {
    let patience = admission.limits().patience;
    let router = router.layer(map_request(move |request: Request| ready(with_patience(request, patience))));
    let door =
        Arc::new(ConnectionContext { what, router, callers, admission, users: Users::new(), closed: Mutex::default() });
    let unchecked = Arc::new(Semaphore::new(UNCHECKED));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = accept(&listener, &unchecked) => match accepted {
                Ok((stream, from, unchecked)) => {
                    connections.spawn(Arc::clone(&door).answer(stream, from, unchecked));
                }
                Err(error) => {
                    tracing::warn!(what, %error, "the kernel gives no connection: trying again");
                    sleep(AFTER_ERROR).await;
                }
            },
            Some(_ended) = connections.join_next() => {}
        }
    }
}

async fn accept(
    listener: &TcpListener,
    unchecked: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let permit = Arc::clone(unchecked).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, from) = listener.accept().await?;
    Ok((stream, from, permit))
}

/// The request, with a body that ends with an error when its sender sends nothing for this time.
fn with_patience(request: Request, patience: Duration) -> Request {
    if request.body().is_end_stream() {
        return request;
    }
    request.map(|body| {
        Body::from_stream(stream::try_unfold(body.into_data_stream(), move |mut body| async move {
            let next = timeout(patience, body.next()).await.map_err(axum::Error::new)?;
            Ok::<_, axum::Error>(next.transpose()?.map(|bytes| (bytes, body)))
        }))
    })
}

/// What a connection needs.
struct ConnectionContext {
    what: &'static str,
    router: Router,
    callers: Callers,
    admission: Admission,
    users: Users,
    /// The users whose connections were closed, and why.
    closed: Mutex<BTreeSet<(Option<u32>, WhyClosed)>>,
}

impl ConnectionContext {
    /// Answers one connection until it ends, or closes it at once.
    async fn answer(self: Arc<Self>, stream: TcpStream, from: SocketAddr, unchecked: OwnedSemaphorePermit) {
        let user = stream.local_addr().ok().and_then(|to| self.users.of(from, to));
        let seat: Seat = match self.admission.admit(user, self.callers) {
            Ok(seat) => seat,
            Err(why) => {
                // The log says it once for each user and reason, because a user may try again and again.
                if self.closed.lock().unwrap_or_else(PoisonError::into_inner).insert((user, why)) {
                    tracing::warn!(what = self.what, user, "connections are closed: {why}");
                }
                return;
            }
        };
        drop(unchecked);
        // Answers are small, and a client waits for each, so they are sent at once.
        let _best_effort = stream.set_nodelay(true);
        let patience = self.admission.limits().patience;
        // The kernel ends a connection whose other end takes nothing for this time.
        let patience_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let _best_effort = set_tcp_user_timeout(&stream, patience_ms);
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(patience).max_buf_size(MAX_HEAD_BYTES);
        let service = TowerToHyperService::new(self.router.clone());
        if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
            tracing::debug!(what = self.what, user, %error, "a connection broke");
        }
        drop(seat);
    }
}

#[cfg(test)]
mod tests;
