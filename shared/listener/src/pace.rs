//! How long a peer may take to send a body, or to read an answer.
//!
//! Guarantees: a peer that stops, or sends or reads single bytes, loses its connection. A peer that works has as long as it needs.
//! Does not: count the time that the service itself takes. The head of a request is `hyper`'s to watch.

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use hyper::body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// The slowest pace in bytes a second, after the patience is over. A job may work on what it reads.
const PACE: u64 = 16 * 1024;

/// The time that a peer has used of its own.
#[derive(Debug)]
struct PeerTime {
    patience: Duration,
    /// What it has done since it was first waited for: what fits into the kernel's buffers is not its doing.
    bytes: u64,
    /// How long the peer was waited for, up to the last time that it did something.
    waited: Duration,
    /// Since when the peer is waited for.
    since: Option<Instant>,
    over: Pin<Box<Sleep>>,
}

impl PeerTime {
    fn new(patience: Duration) -> Self {
        Self { patience, bytes: 0, waited: Duration::ZERO, since: None, over: Box::pin(sleep(patience)) }
    }

    /// The peer has sent or read so many bytes.
    fn went_on(&mut self, bytes: usize) {
        self.waited += self.since.take().map_or(Duration::ZERO, |since| since.elapsed());
        if !self.waited.is_zero() {
            self.bytes = self.bytes.saturating_add(bytes as u64);
        }
    }

    /// The peer is to do something. Ready when it has used all of its time.
    fn poll_over(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let since = *self.since.get_or_insert_with(Instant::now);
        let all = self.patience.saturating_add(Duration::from_secs(self.bytes / PACE));
        self.over.as_mut().reset(since + all.saturating_sub(self.waited));
        ready!(self.over.as_mut().poll(cx));
        Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, "the caller took too long"))
    }
}

/// A stream whose peer must read what is written.
#[derive(Debug)]
pub(crate) struct Paced<S> {
    stream: S,
    peer: PeerTime,
}

impl<S> Paced<S> {
    pub(crate) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, peer: PeerTime::new(patience) }
    }

    fn watch(&mut self, written: Poll<io::Result<usize>>, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Pending => return self.peer.poll_over(cx).map(Err),
            Poll::Ready(bytes) => self.peer.went_on(*bytes.as_ref().unwrap_or(&0)),
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, to)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(written, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        all: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, all);
        self.watch(written, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A body that its sender must send.
struct PacedBody {
    body: Body,
    peer: PeerTime,
}

/// The request with a body that breaks off if its sender takes too long.
pub(crate) fn paced_body(request: Request, patience: Duration) -> Request {
    if request.body().is_end_stream() {
        return request;
    }
    request.map(|body| Body::new(PacedBody { body, peer: PeerTime::new(patience) }))
}

impl HttpBody for PacedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Pending => return self.peer.poll_over(cx).map(|why| Some(Err(axum::Error::new(why)))),
            Poll::Ready(Some(Ok(frame))) => self.peer.went_on(frame.data_ref().map_or(0, Bytes::len)),
            Poll::Ready(_) => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
