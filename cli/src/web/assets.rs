//! The files of the page, inside the program.
//!
//! Guarantees: the page needs nothing from elsewhere. uPlot draws the charts; its version and licence are in
//! `page/uplot`.
//! Does not: answer with data; `api` does.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// Path, type, content.
pub(super) const ASSETS: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("page/index.html")),
    ("/page/style.css", CSS, include_str!("page/style.css")),
    ("/page/main.js", JS, include_str!("page/main.js")),
    ("/page/dom.js", JS, include_str!("page/dom.js")),
    ("/page/format.js", JS, include_str!("page/format.js")),
    ("/page/table.js", JS, include_str!("page/table.js")),
    ("/page/overview.js", JS, include_str!("page/overview.js")),
    ("/page/jobs.js", JS, include_str!("page/jobs.js")),
    ("/page/nodes.js", JS, include_str!("page/nodes.js")),
    ("/page/events.js", JS, include_str!("page/events.js")),
    ("/page/cost.js", JS, include_str!("page/cost.js")),
    ("/page/chart.js", JS, include_str!("page/chart.js")),
    ("/page/strip.js", JS, include_str!("page/strip.js")),
    ("/page/uplot.js", JS, include_str!("page/uplot/uPlot.iife.min.js")),
    ("/page/uplot.css", CSS, include_str!("page/uplot/uPlot.min.css")),
];

pub(super) fn router() -> Router {
    ASSETS.iter().fold(Router::new(), |router, (path, kind, content)| {
        router.route(path, get(move || async move { ([(header::CONTENT_TYPE, *kind)], *content).into_response() }))
    })
}
