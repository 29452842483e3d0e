//! Who may ask the page.
//!
//! A page of somebody else can make a name of its own mean the loopback address (DNS rebinding). Then the browser sends
//! that name as the host, and lets the other page read the answer. So only names of this machine are answered.
//!
//! Guarantees: a request by another name gets no data; an answer loads nothing from elsewhere, and is no part of another
//! site's page.
//! Does not: know users.

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// What the page may do in a browser.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// The names of this machine.
const OURS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Refuses requests by other names, and sets the headers of every answer.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let mut answer = if is_ours(request.headers()) {
        next.run(request).await
    } else {
        let why = "the page is served as localhost, 127.0.0.1 and [::1] only: open one of these addresses\n";
        (StatusCode::MISDIRECTED_REQUEST, why).into_response()
    };
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert("cross-origin-resource-policy", HeaderValue::from_static("same-origin"));
    answer
}

/// Whether the request names this machine. The port may be another one, as with a forwarded port.
fn is_ours(headers: &HeaderMap) -> bool {
    let Some(Ok(host)) = headers.get(header::HOST).map(HeaderValue::to_str) else { return false };
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_answered() {
        let asked = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
            is_ours(&headers)
        };
        for host in ["localhost", "LOCALHOST:7071", "127.0.0.1:7071", "127.0.0.1", "[::1]:80", "[::1]", "localhost:1"] {
            assert!(asked(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:7071",
            "localhost.evil.example",
            "127.0.0.1.nip.io:7071",
            "::1",
            "127.0.0.1:",
            "localhost:x",
            "0.0.0.0:7071",
        ] {
            assert!(!asked(host), "{host}");
        }
        assert!(!is_ours(&HeaderMap::new()));
    }
}
