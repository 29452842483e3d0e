//! What a browser may do with the page.
//!
//! Guarantees: a page of another site gets no data ([`origin`]). An answer loads nothing from elsewhere, and cannot be embedded in
//! another site's page.
//! Does not: keep out other programs of this machine (`listener` does).

use super::api::ApiFailure;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use listener::origin;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Refuses requests of other sites, and sets the headers of every answer.
pub(super) async fn check(request: Request, next: Next) -> Response {
    let mut answer = match origin::of_our_page(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err((status, why)) => ApiFailure(status, why.trim_end().to_owned()).into_response(),
    };
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    answer
}
