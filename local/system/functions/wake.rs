//! Schedules for functions that run elsewhere, for example under `cargo lambda watch`, which has no schedules.
//!
//! Guarantees: the next invocation of a function starts only after the previous one has ended.
//! Does not: speak HTTPS, or read answers: the functions' own logs show the results.

use model::Span;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

/// The longest wait for an answer: the first invocation may compile the function.
const LONGEST: Duration = Duration::from_secs(600);

/// The host and port of an address like `http://127.0.0.1:9000`; `None` for any other form.
pub(in crate::local) fn authority(url: &str) -> Option<&str> {
    let rest = url.trim_end_matches('/').strip_prefix("http://")?;
    (rest.rsplit_once(':')?.1.parse::<u16>().is_ok() && !rest.contains('/')).then_some(rest)
}

/// A tick in each period. Missed ticks are left out.
pub(in crate::local) fn ticks(period: Span) -> Interval {
    let mut ticks = interval(Duration::from_millis(u64::try_from(period.as_ms()).unwrap_or(1).max(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    ticks
}

/// Invokes `function` by its schedule, until the future is dropped.
pub(in crate::local) async fn invoke_by_schedule(authority: String, function: &'static str, period: Span) {
    let (mut ticks, mut failing) = (ticks(period), false);
    loop {
        ticks.tick().await;
        let outcome = timeout(LONGEST, invoke(&authority, function)).await.map_err(|_| io::ErrorKind::TimedOut.into());
        let problem = match outcome.and_then(|status| status) {
            Ok(200) => None,
            Ok(status) => Some(format!("it answers {status}")),
            Err(error) => Some(error.to_string()),
        };
        // Only the first of several failures in a row is logged.
        if let (Some(problem), false) = (&problem, failing) {
            let hint = "the function cannot be invoked: is `cargo lambda watch` running there?";
            tracing::warn!(function, authority, problem, "{hint}");
        }
        failing = problem.is_some();
    }
}

/// One synchronous invocation by the Invoke API; returns the HTTP status.
async fn invoke(authority: &str, function: &str) -> io::Result<u16> {
    let mut stream = TcpStream::connect(authority).await?;
    let path = format!("/2015-03-31/functions/{function}/invocations");
    let head = format!("POST {path} HTTP/1.1\r\nhost: {authority}\r\ncontent-type: application/json\r\n");
    stream.write_all(format!("{head}content-length: 2\r\nconnection: close\r\n\r\n{{}}").as_bytes()).await?;
    let mut answer = Vec::new();
    (&mut stream).take(1024 * 1024).read_to_end(&mut answer).await?;
    let status =
        answer.get(..12).and_then(|line| std::str::from_utf8(line).ok()).and_then(|line| line.split(' ').nth(1));
    status.and_then(|s| s.parse().ok()).ok_or_else(|| io::Error::other("it does not speak HTTP"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    #[test]
    fn only_a_plain_http_address_is_accepted() {
        assert_eq!(authority("http://127.0.0.1:9000/"), Some("127.0.0.1:9000"));
        for bad in ["", "127.0.0.1:9000", "https://127.0.0.1:9000", "http://127.0.0.1", "http://127.0.0.1:9000/x"] {
            assert_eq!(authority(bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn an_invocation_is_a_post_with_a_body() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = listener.local_addr().unwrap().to_string();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let n = stream.read(&mut request).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
            String::from_utf8_lossy(&request[..n]).into_owned()
        });
        assert_eq!(invoke(&authority, "poll-and-scale").await.unwrap(), 200);
        let request = server.await.unwrap();
        assert!(request.starts_with("POST /2015-03-31/functions/poll-and-scale/invocations HTTP/1.1\r\n"), "{request}");
        assert!(request.ends_with("\r\n\r\n{}"), "{request}");
    }
}
