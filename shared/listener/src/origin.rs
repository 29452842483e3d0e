//! Checks what a browser says about the page that sends a request.
//!
//! A page of another site can send requests to this machine, and can make a name of its own resolve to the loopback address (DNS
//! rebinding). The browser then sends that name as the host, and lets the other page read the answer. So only requests to a name of
//! this machine are answered. A browser also says which site's page asks.
//!
//! Guarantees: a page of another site gets no data and changes nothing.
//! Does not: know users.

use axum::http::{HeaderMap, Method, StatusCode, header};

/// The names of this machine.
const OURS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];
/// The header with the site of the page that asks. All current browsers send it to this machine.
pub const SITE: &str = "sec-fetch-site";

/// Why a request is refused.
pub type Refused = (StatusCode, &'static str);

/// Whether our own page asks, or a person who opens it, even by a link of another site.
pub fn of_our_page(method: &Method, headers: &HeaderMap) -> Result<(), Refused> {
    by_our_name(headers)?;
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "the page is only read\n"));
    }
    let text = |name: &str| headers.get(name).map(|v| v.to_str().unwrap_or("?"));
    let host = text(header::HOST.as_str()).unwrap_or_default();
    let is_ours = text(header::ORIGIN.as_str()).is_none_or(|origin| origin == format!("http://{host}"));
    let opens = text("sec-fetch-mode") == Some("navigate") && text("sec-fetch-dest") == Some("document");
    let same_site = text(SITE).is_none_or(|site| matches!(site, "same-origin" | "none") || opens);
    if is_ours && same_site { Ok(()) } else { Err((StatusCode::FORBIDDEN, "a page of another site asks\n")) }
}

/// Whether the request names this machine. The port may be another one, as with a forwarded port.
pub fn by_our_name(headers: &HeaderMap) -> Result<(), Refused> {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let name = host.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(host, |(name, _)| name);
    if OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
        return Ok(());
    }
    let why = "this is served as localhost, 127.0.0.1 and [::1] only: use one of these addresses\n";
    Err((StatusCode::MISDIRECTED_REQUEST, why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn headers(given: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        given.iter().map(pair).collect()
    }

    #[test]
    fn only_names_of_this_machine_are_answered() {
        let asked = |host: &str| by_our_name(&headers(&[("host", host)])).is_ok();
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
        assert!(by_our_name(&HeaderMap::new()).is_err());
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let host = ("host", "127.0.0.1:7070");
        let (navigate, document) = (("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document"));
        let cross = ("sec-fetch-site", "cross-site");
        // The headers, and whether the page answers.
        type Headers<'a> = &'a [(&'static str, &'a str)];
        let cases: &[(Headers<'_>, bool)] = &[
            (&[host], true),
            (&[host, ("sec-fetch-site", "none"), navigate, document], true),
            (&[host, ("sec-fetch-site", "same-origin")], true),
            (&[host, ("origin", "http://127.0.0.1:7070")], true),
            (&[host, cross, navigate, document], true),
            (&[host, cross, navigate, ("sec-fetch-dest", "iframe")], false),
            (&[host, cross], false),
            // Another port of this machine is another program's page.
            (&[host, ("sec-fetch-site", "same-site")], false),
            (&[host, ("origin", "http://127.0.0.1:7071")], false),
            (&[host, ("origin", "https://evil.example")], false),
            (&[host, ("origin", "null")], false),
        ];
        for (given, page) in cases {
            let given = headers(given);
            assert_eq!(of_our_page(&Method::GET, &given).is_ok(), *page, "{given:?}");
            assert!(of_our_page(&Method::POST, &given).is_err());
        }
    }
}
