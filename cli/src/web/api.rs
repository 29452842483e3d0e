//! The answers in JSON.
//!
//! Guarantees: a failed request gets JSON with an `error` that says what failed and why.
//! Does not: judge the cluster; `view` and `signs` do.

use crate::changes::operate::follow;
use crate::console::aws_cli::text;
use crate::console::show::without_nulls;
use crate::view::live_output::last_lines;
use crate::view::status::counts;
use crate::view::{
    EVENTS, JobRow, JobsPart, ListQuery, PAST, ViewSource, Views, attention, end_row, event_row, find, folded,
    job_detail, node_detail, shares, with,
};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use history::{By, Report, Series};
use model::functions::FUNCTIONS;
use model::{Alloc, ClientStatus, JobId, Slot, Span, Subject, Time};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;
use store::DbError;

/// The most lines of a report of costs.
const LINES: usize = 500;
/// The most allocs of a job whose last lines are read.
const LIVE: usize = 4;
/// How many events of the cluster as a whole are shown.
const CLUSTER_EVENTS: i32 = 100;
/// The number of parts of a span of time, without `parts` in the query.
const PARTS: usize = 120;

pub(super) struct ApiFailure(pub(super) StatusCode, pub(super) String);

impl From<DbError> for ApiFailure {
    fn from(error: DbError) -> Self {
        Self(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

impl IntoResponse for ApiFailure {
    fn into_response(self) -> Response {
        let Self(status, why) = self;
        (status, Json(json!({ "error": why }))).into_response()
    }
}

fn no_such(what: String) -> ApiFailure {
    ApiFailure(StatusCode::NOT_FOUND, what)
}

fn wrong(why: String) -> ApiFailure {
    ApiFailure(StatusCode::BAD_REQUEST, why)
}

/// The answer at a path that is not of the API.
pub(super) async fn nothing_here(uri: Uri) -> ApiFailure {
    no_such(format!("there is nothing at {}", uri.path()))
}

type ApiAnswer = Result<Json<Value>, ApiFailure>;
type QueryOf<T> = Result<Query<T>, axum::extract::rejection::QueryRejection>;
type Named = Result<Path<String>, axum::extract::rejection::PathRejection>;

fn query_of<T>(query: QueryOf<T>) -> Result<T, ApiFailure> {
    query.map(|Query(wanted)| wanted).map_err(|e| wrong(e.body_text()))
}

/// The last part of the path, as an id.
fn named<T: FromStr<Err: Display>>(path: Named) -> Result<T, ApiFailure> {
    let Path(name) = path.map_err(|e| wrong(e.body_text()))?;
    name.parse().map_err(|e: T::Err| wrong(e.to_string()))
}

/// The value with the time at which it was read.
fn dated(at: Time, value: impl Serialize) -> ApiAnswer {
    let value = without_nulls(serde_json::to_value(value).map_err(|e| wrong(e.to_string()))?);
    Ok(Json(with(value, json!({ "now": at }))))
}

/// When the person looked last.
#[derive(Deserialize)]
pub(super) struct Looked {
    since: Option<Time>,
}

pub(super) async fn overview(State(web): State<Arc<Views>>, query: QueryOf<Looked>) -> ApiAnswer {
    let (since, stored, live) = (query_of(query)?.since, web.stored().await?, web.live().await?);
    let rows = live.jobs(&stored);
    let more: Vec<&str> = live.more(&stored).map(|state| state.as_str()).collect();
    let next = live.present.next.as_ref().ok();
    let purposes: BTreeMap<_, _> = FUNCTIONS.iter().map(|f| (f.name, f.purpose)).collect();
    let causes = attention::failed(&rows);
    let overview = json!({
        "cluster": web.source.cluster,
        "refresh_ms": web.source.pace.refresh_ms,
        "local": web.source.extra.is_some(),
        "version": env!("CARGO_PKG_VERSION"),
        "status": live.status,
        "verdict": live.status.summary(),
        "explained": next.map(|next| &next.plan.explained),
        "shares": next.map(|next| shares::shares(&next.observed)).filter(|shares| !shares.is_empty()),
        "purposes": purposes,
        "failed": causes.get(..attention::NAMED).unwrap_or(&causes),
        "causes": causes.len(),
        "asking": attention::nodes(&live),
        "asks": attention::asking(&live).count(),
        "ended": since.map(|since| attention::ended_since(&rows, since, !more.is_empty())),
        "counts": counts(rows.iter().map(|row| row.summary.state.to_string())),
        "more": more,
    });
    dated(live.present.now, overview)
}

/// The last lines that nodes have stored of the allocs of a job that run, or whose nodes did not report their end. A node stores what is
/// new each second while somebody looks.
pub(super) async fn output(State(web): State<Arc<Views>>, id: Named) -> ApiAnswer {
    let id: JobId = named(id)?;
    let ViewSource { store, outputs, clock, .. } = &web.source;
    let job = store.job(id).await?.ok_or_else(|| no_such(format!("there is no job {id}")))?;
    let runs = |alloc: &Alloc| alloc.summary.client == ClientStatus::Running;
    let mut allocs = store.allocs_of([&job]).await?.rows;
    allocs.retain(|alloc| runs(alloc) || (alloc.output_s3.is_some() && alloc.run.log_tail.is_none()));
    allocs.sort_by_key(|alloc| (!runs(alloc), Reverse(alloc.summary.placed_at)));
    let mut live = BTreeMap::new();
    for alloc in allocs.into_iter().take(LIVE) {
        // Without the permission to write it, the output comes each half minute.
        if runs(&alloc)
            && let Err(error) = follow(store, &alloc, clock()).await
        {
            tracing::debug!(%error, "the follow was not written");
        }
        live.insert(alloc.id().to_string(), last_lines(outputs, &alloc).await);
    }
    dated(clock(), json!({ "allocs": live }))
}

pub(super) async fn fleet(State(web): State<Arc<Views>>, query: QueryOf<Asking>) -> ApiAnswer {
    let wanted = query_of(query)?;
    let (past, live) = (web.past().await?, web.live().await?);
    dated(past.to, attention::Fleet::of(&past, &live, wanted.span()))
}

pub(super) async fn jobs(State(web): State<Arc<Views>>, query: QueryOf<ListQuery>) -> ApiAnswer {
    let wanted = query_of(query)?;
    let (stored, live) = (web.stored().await?, web.live().await?);
    let store = &web.source.store;
    let more: Vec<&str> = live.more(&stored).map(|state| state.as_str()).collect();
    let list = wanted.one_list();
    if !wanted.place_is_of(list) {
        return Err(wrong("after: it is no place of this list: leave it out".to_owned()));
    }
    let known = live.jobs(&stored);
    let counts = counts(known.iter().map(|row| row.summary.state.to_string()));
    let JobsPart { mut rows, next } = match (&wanted.after, list) {
        (Some(place), Some(state)) => live.jobs_after(store, state, place).await?,
        _ => JobsPart { rows: known, next: list.and_then(|state| live.place_after(&stored, state)) },
    };
    rows.retain(|row| wanted.takes_owner(row));
    if wanted.searches() {
        // Words of their commands count.
        web.complete(&mut rows).await?;
    }
    if let Some(word) = wanted.word() {
        let known: BTreeSet<JobId> = rows.iter().map(|row| row.summary.job_id).collect();
        let others = find::sought(store, word).await?.into_iter().filter(|id| !known.contains(id));
        let others = store.jobs_of(others).await?.rows;
        rows.extend(others.iter().map(JobRow::of).filter(|row| wanted.takes_owner(row)));
    }
    let mut groups = None;
    let mut part = wanted.of_lines(
        rows,
        |row| row.summary.state.as_str(),
        |rows| {
            groups = wanted.groups(&rows);
            match groups {
                None if wanted.array.is_some() => rows,
                None => folded(rows),
                Some(_) => Vec::new(),
            }
        },
    );
    web.complete(&mut part.rows).await?;
    dated(
        live.present.now,
        with(json!(part), json!({ "counts": counts, "more": more, "next": next, "groups": groups })),
    )
}

pub(super) async fn job(State(web): State<Arc<Views>>, id: Named) -> ApiAnswer {
    let id: JobId = named(id)?;
    let live = web.live().await?;
    let detail = job_detail(&web.source.store, &live, id).await?;
    let detail = detail.ok_or_else(|| no_such(format!("there is no job {id}: it never was, or is no longer kept")))?;
    dated(live.present.now, detail)
}

pub(super) async fn nodes(State(web): State<Arc<Views>>, query: QueryOf<ListQuery>) -> ApiAnswer {
    let wanted = query_of(query)?;
    let live = web.live().await?;
    let part = wanted.of(live.nodes(), |row| text(row, "/state"));
    dated(live.present.now, with(json!(part), json!({ "counts": live.status.nodes })))
}

pub(super) async fn node(State(web): State<Arc<Views>>, slot: Named) -> ApiAnswer {
    let slot: Slot = named(slot)?;
    let (live, past) = (web.live().await?, web.past().await?);
    let detail = node_detail(&web.source.store, &live, &past, slot).await?;
    dated(live.present.now, detail.ok_or_else(|| no_such(format!("slot {slot} has never had a node")))?)
}

pub(super) async fn events(State(web): State<Arc<Views>>, query: QueryOf<ListQuery>) -> ApiAnswer {
    let wanted = query_of(query)?;
    let (events, stored, live) = (web.events().await?, web.stored().await?, web.live().await?);
    let names = live.present.names();
    let name = |subject: &str| {
        let (_, id) = subject.split_once('#')?;
        let job: JobId = id.split('.').next()?.parse().ok()?;
        names.get(&job).copied().or_else(|| stored.name(job)).map(str::to_owned)
    };
    let ended = live.jobs(&stored);
    // What the cluster as a whole went through, such as another policy, is asked for by days.
    let of_cluster = match wanted.states().contains(&"cluster") {
        true => web.source.store.history(&Subject::Cluster.to_string(), CLUSTER_EVENTS).await?,
        false => Vec::new(),
    };
    let newest = events.iter().filter(|event| of_cluster.is_empty() || event.subject != Subject::Cluster.to_string());
    let rows = newest.chain(&of_cluster).map(|event| event_row(event, name(&event.subject)));
    let mut rows: Vec<Value> = rows.chain(ended.iter().filter_map(end_row)).collect();
    rows.sort_by_key(|row| Reverse(row.get("at").and_then(Value::as_i64)));
    rows.truncate(EVENTS);
    let part = wanted.of(rows, |row| text(row, "/subject").split('#').next().unwrap_or_default());
    dated(live.present.now, part)
}

/// A span of time that ends now.
#[derive(Deserialize)]
pub(super) struct Asking {
    minutes: Option<u32>,
    parts: Option<usize>,
    #[serde(default)]
    by: By,
}

impl Asking {
    /// The span, by default a day.
    fn span(&self) -> Span {
        Span::from_s(i64::from(self.minutes.unwrap_or(1440).max(1)) * 60).min(PAST)
    }
}

pub(super) async fn over_time(State(web): State<Arc<Views>>, query: QueryOf<Asking>) -> ApiAnswer {
    let wanted = query_of(query)?;
    let past = web.past().await?;
    let series = Series::of(&past, wanted.span(), wanted.parts.unwrap_or(PARTS));
    dated(past.to, series)
}

pub(super) async fn cost(State(web): State<Arc<Views>>, query: QueryOf<Asking>) -> ApiAnswer {
    let wanted = query_of(query)?;
    let past = web.past().await?;
    let mut report = Report::of(&past, wanted.span(), wanted.by, None);
    report.lines.truncate(LINES);
    dated(past.to, report)
}

pub(super) async fn local(State(web): State<Arc<Views>>) -> ApiAnswer {
    let extra = web.source.extra.as_ref();
    let extra = extra.ok_or_else(|| no_such("this cluster does not run on this machine".to_owned()))?;
    dated((web.source.clock)(), extra())
}
