//! `status`: whether all is well, and what to do if not.
//!
//! Guarantees: every problem is shown with what to do about it; the exit code says whether all is well.
//! Does not: repair anything. The functions do. If EC2 or the policy cannot be read, only what the functions stored is
//! shown, and a check says so.

use super::show::{self, Rows, counted, one_line, rough, several, when};
use super::{Context, Next, Outcome};
use clap::Args;
use model::cloud::Cloud;
use model::control::{Control, ControlKey};
use model::events::{Event, Subject};
use model::explain::{Explanation, SetNote, Waiting};
use model::functions::{self, HEARTBEAT_INGEST};
use model::limits::Limit;
use model::money::Usd;
use model::policy::{Policy, example_json};
use model::reason::Reason;
use model::time::{Span, Time};
use model::{ActionName, BrakeKind};
use model::{JobSummary, NodeRecord};
use runtime::observation::ObserveError;
use serde::Serialize;
use std::collections::BTreeMap;
use store::{DbError, Store, Unreadable, placed_last};

/// The longest normal time between two noted heartbeats of a fleet in use. The limit is this time multiplied by
/// `watchdog.multiplier`.
const INGEST: Span = Span::from_s(60);
/// The age up to which warnings are shown.
const RECENT: Span = Span::from_s(3600);
/// How many lines about waiting jobs, and about idle nodes, are shown.
const LINES: usize = 10;
/// How many waiting jobs are counted.
const COUNTED: usize = 20_000;
/// How many events of a subject are searched for warnings.
const LOOK_BACK: i32 = 20;

/// `status`
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    /// All is well.
    Well,
    /// An operator may want to know, but need not act: the condition ends by itself.
    Note,
    /// An operator must act.
    Wrong,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    pub(crate) what: String,
    pub(crate) level: Level,
    pub(crate) says: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) to_do: String,
}

impl Check {
    fn new(what: &str, level: Level, says: impl Into<String>, to_do: impl Into<String>) -> Self {
        Self { what: what.to_owned(), level, says: says.into(), to_do: to_do.into() }
    }
}

/// The status in JSON.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Status {
    pub(crate) well: bool,
    pub(crate) checks: Vec<Check>,
    pub(crate) nodes: BTreeMap<String, usize>,
    pub(crate) jobs: BTreeMap<String, usize>,
    /// What the nodes that are there cost in an hour, by the prices of the policy at their launches.
    pub(crate) price_per_hour: Usd,
}

/// What `status` and the page read.
pub(crate) struct Seen {
    pub(crate) control: Control,
    pub(crate) nodes: Vec<NodeRecord>,
    /// The jobs that have not ended, in the order of the queue. Of very long queues only the beginning.
    pub(crate) jobs: Vec<JobSummary>,
    pub(crate) next: Result<Next, ObserveError>,
    /// The newest events of the cluster and of the functions.
    events: Vec<Event>,
    unreadable: Vec<Unreadable>,
}

impl Seen {
    pub(crate) async fn read(store: &Store, cloud: &dyn Cloud, now: Time) -> Result<Self, DbError> {
        let (control, listed) = (store.control().await?.as_of(now), store.nodes_listed(1).await?);
        let (nodes, mut unreadable) = (listed.rows, listed.unreadable);
        // If more jobs wait, a check says so.
        let waiting = store.waiting(None, COUNTED).await?;
        let placed = store.placed().await?;
        unreadable.extend(waiting.unreadable.into_iter().chain(placed.unreadable));
        let jobs = placed_last(waiting.jobs, placed.rows);
        let mut events = store.history(&Subject::Cluster.to_string(), LOOK_BACK).await?;
        for (function, _) in functions::scheduled() {
            events.extend(store.history(&Subject::Function(function.name.to_owned()).to_string(), LOOK_BACK).await?);
        }
        unreadable.extend(store.handles_due(now).await?.unreadable);
        let next = Next::read(store, cloud, now).await;
        Ok(Self { control, nodes, jobs, next, events, unreadable })
    }

    /// Whether all is well.
    pub(crate) fn status(&self, now: Time) -> Status {
        let Self { control, nodes, jobs, .. } = self;
        let mut checks = Vec::new();
        let multiplier = policy(control, &mut checks);
        for (function, period) in functions::scheduled() {
            checks.push(scheduled(control, function.name, period, multiplier, now));
        }
        checks.push(ingest(control, nodes, multiplier, now));
        checks.extend(refusing(nodes));
        let explained = self.next.as_ref().ok().map(|next| &next.plan.explained);
        checks.extend(control.limits(now).iter().map(|limit| limited(limit, explained, now)));
        checks.extend(BrakeKind::ALL.iter().filter_map(|kind| braked(control, *kind, now)));
        checks.extend(next_run(&self.next));
        let level = |is_known| if is_known { Level::Wrong } else { Level::Note };
        let entries = control.unreadable.iter().map(|entry| (entry.to_string(), level(entry.is_known)));
        for (row, level) in self.unreadable.iter().map(|row| (row.to_string(), Level::Wrong)).chain(entries) {
            // The plan names most of them, but it cannot be made without EC2, and has no handles.
            let row = one_line(&row);
            if !checks.iter().any(|check| check.says.contains(&row)) {
                checks.push(Check::new("row", level, row, "correct or delete it"));
            }
        }
        checks.extend(warnings(&self.events, now));
        Status {
            well: checks.iter().all(|c| c.level != Level::Wrong),
            checks,
            nodes: counts(nodes.iter().map(node_word)),
            jobs: counts(jobs.iter().map(|j: &JobSummary| j.state.to_string())),
            price_per_hour: nodes.iter().filter_map(|n| Some(n.life()?.offering.price_per_hour)).sum(),
        }
    }
}

pub(super) async fn run(context: &mut Context<'_>, args: &StatusArgs) -> anyhow::Result<Outcome> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let status = Seen::read(&cluster.store, cluster.cloud.as_ref(), now).await?.status(now);
    if args.json {
        show::json(context.out, &status)?;
    } else {
        print(context, &status)?;
    }
    Ok(Outcome::done_if(status.well))
}

fn print(context: &mut Context<'_>, status: &Status) -> anyhow::Result<()> {
    let mut rows = Rows::new(&[]);
    for check in &status.checks {
        let mark = match check.level {
            Level::Well => "ok",
            Level::Note => "note",
            Level::Wrong => "WRONG",
        };
        let to_do = if check.to_do.is_empty() { String::new() } else { format!(": {}", check.to_do) };
        rows.marked(mark, [check.what.clone(), format!("{}{to_do}", check.says)]);
    }
    rows.colours(context.colours).print(context.out)?;
    let or_none = |counts: &BTreeMap<String, usize>| if counts.is_empty() { "none".into() } else { counted(counts) };
    writeln!(context.out, "nodes: {}", or_none(&status.nodes))?;
    writeln!(context.out, "jobs: {}", or_none(&status.jobs))?;
    if !status.price_per_hour.is_zero() {
        let price = show::dollars(status.price_per_hour);
        writeln!(context.out, "cost: {price} an hour by the policy's list prices; `nodekeeper cost` says for what")?;
    }
    writeln!(context.out, "{}", status.verdict())?;
    Ok(())
}

impl Status {
    /// Whether all is well, in a sentence.
    pub(crate) fn verdict(&self) -> String {
        let count = |level| self.checks.iter().filter(|c| c.level == level).count();
        match (count(Level::Wrong), count(Level::Note)) {
            (0, 0) => "all is well".to_owned(),
            (0, notes) => format!("nothing is wrong; see the {}", several(notes, "note")),
            (wrong, _) => format!("not all is well: {wrong} of {} checks", self.checks.len()),
        }
    }
}

fn counts(words: impl Iterator<Item = String>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    counts
}

/// A node's status if it is in use, otherwise its state.
pub(crate) fn node_word(record: &NodeRecord) -> String {
    record.status().map_or_else(|| record.state_name().to_string(), |s| s.to_string())
}

/// Checks the policy. Returns `watchdog.multiplier`, or its default without a valid policy.
fn policy(control: &Control, checks: &mut Vec<Check>) -> f64 {
    let default = || Policy::from_json(&example_json()).map_or(5.0, |p| p.watchdog.multiplier);
    match control.checked_policy() {
        Ok((policy, version)) => {
            checks.push(Check::new("policy", Level::Well, format!("version {version}"), ""));
            policy.watchdog.multiplier
        }
        Err(e) => {
            // The error message already says what to do.
            checks.push(Check::new("policy", Level::Wrong, one_line(&e.to_string()), ""));
            default()
        }
    }
}

fn times(span: Span, multiplier: f64) -> Span {
    Span::from_ms((span.as_ms() as f64 * multiplier) as i64)
}

fn scheduled(control: &Control, function: &str, period: Span, multiplier: f64, now: Time) -> Check {
    const START: &str = "check its schedule and its log (in AWS), or start `nodekeeper local`";
    let Some(run) = control.runs.get(function) else {
        return Check::new(function, Level::Wrong, "has never run", START);
    };
    let error = run.error.as_deref().map(|e| format!("; its last run failed: {}", one_line(e))).unwrap_or_default();
    let Some(success) = run.last_success_at else {
        return Check::new(function, Level::Wrong, format!("has never succeeded{error}"), START);
    };
    let said = format!("last succeeded {}{error}", when(success, now));
    if now.since(success) > times(period, multiplier) {
        return Check::new(function, Level::Wrong, format!("{said}; it should run every {period}"), START);
    }
    // One failed run may be chance.
    if let Some(since) = run.failing_since_at.filter(|since| now.since(*since) >= period) {
        let to_do = "the error says what is missing; until then, nothing is decided";
        let said = format!("has failed since {}{error}", when(since, now));
        return Check::new(function, Level::Wrong, said, to_do);
    }
    if let Some(since) = run.nothing_done_since_at.filter(|since| now.since(*since) >= times(period, multiplier)) {
        let undone = match (run.failed, run.left) {
            (0, left) => format!("leaves {}: what it reads is too old or its time is over", several(left, "action")),
            (failed, _) => format!("fails in {}", several(failed, "action")),
        };
        let to_do = "its log names each error: check its permissions, and `poll.stale_after_s`";
        let said = format!("has done nothing of what it should since {}: it {undone}", when(since, now));
        return Check::new(function, Level::Wrong, said, to_do);
    }
    let failed = if run.failed > 0 { format!(", {} failed", several(run.failed, "action")) } else { String::new() };
    let left = if run.left > 0 { format!(", {} left for the next run", run.left) } else { String::new() };
    let level = if error.is_empty() && failed.is_empty() { Level::Well } else { Level::Note };
    Check::new(function, level, format!("{said}, {} done{failed}{left}", several(run.actions, "action")), "")
}

/// Checks the last heartbeats. Missing heartbeats are a problem only while a node is in use.
fn ingest(control: &Control, nodes: &[NodeRecord], multiplier: f64, now: Time) -> Check {
    let in_use = nodes.iter().filter(|n| n.status().is_some()).count();
    let heard = control.ingest().since_at();
    let said = heard
        .map_or("no heartbeat was ever accepted".to_owned(), |at| format!("last noted heartbeats {}", when(at, now)));
    let limit = times(INGEST, multiplier);
    if in_use > 0 && heard.is_none_or(|at| now.since(at) > limit) {
        let to_do = "check the function's log, its URL and the nodes' way to it";
        return Check::new(
            HEARTBEAT_INGEST.name,
            Level::Wrong,
            format!("{said}, and {} in use", several(in_use, "node")),
            to_do,
        );
    }
    Check::new(HEARTBEAT_INGEST.name, Level::Well, said, "")
}

/// What the next run would not do, and why: caps that are reached, jobs that wait, idle nodes that stay.
fn next_run(next: &Result<Next, ObserveError>) -> Vec<Check> {
    let next = match next {
        Ok(next) => next,
        // The check of the policy says the same, and what to do about it.
        Err(ObserveError::Policy(_)) => return Vec::new(),
        Err(e) => {
            let to_do = "if EC2 limits the calls, try again in a minute; else check the credentials and the connection of this \
                         command (the functions have their own)";
            return vec![Check::new(
                "plan",
                Level::Wrong,
                format!("cannot be made: {}", one_line(&e.to_string())),
                to_do,
            )];
        }
    };
    let explained = &next.plan.explained;
    let mut stays: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (node_id, why) in &explained.staying {
        stays.entry(why.to_string()).or_default().push(node_id.slot().to_string());
    }
    let stays = stays.iter().map(|(why, slots)| match slots.as_slice() {
        [slot] => format!("slot {slot} stays: {why}"),
        _ => format!("slots {} stay: {why}", slots.join(", ")),
    });
    let mut checks: Vec<Check> =
        // The lines of the sets say what they lack.
        next.unstored_limits().filter(|reason| !matches!(reason, Reason::SetLacks { .. })).map(|reason| Check::new(reason.word(), Level::Note, reason.to_string(), "")).collect();
    // The entries of the control table are checked without the plan.
    let is_entry = |why: &Reason| why.to_string().contains("of table control");
    let rows = explained.rows.iter().filter(|(_, why)| !is_entry(why));
    checks.extend(rows.map(|(subject, why)| Check::new("row", Level::Wrong, format!("{subject}: {why}"), "")));
    checks.extend(at_most("demand", explained.sets.iter().map(SetNote::line)));
    checks.extend(at_most("waiting", explained.waiting.iter().map(Waiting::line)));
    checks.extend(at_most("idle", stays));
    checks
}

/// A note for each of the first [`LINES`] lines, and one for the rest.
fn at_most(what: &str, lines: impl ExactSizeIterator<Item = String>) -> Vec<Check> {
    let more = lines.len().saturating_sub(LINES);
    let mut checks: Vec<Check> =
        lines.take(LINES).map(|line| Check::new(what, Level::Note, one_line(&line), "")).collect();
    if more > 0 {
        checks.push(Check::new(what, Level::Note, format!("and {more} more: `nodekeeper plan` shows all"), ""));
    }
    checks
}

/// The nodes whose agents take no work.
fn refusing(nodes: &[NodeRecord]) -> Vec<Check> {
    let refusing = nodes.iter().filter_map(|n| n.refuses().map(|why| (n.slot, why)));
    let mut checks: Vec<Check> = refusing
        .map(|(slot, why)| {
            let says = format!("slot {slot} takes no work: {}", one_line(why));
            Check::new("node", Level::Wrong, says, "it is shut down when idle; mend the image or `launch.user_data`")
        })
        .collect();
    let more = checks.len().saturating_sub(LINES);
    checks.truncate(LINES);
    if more > 0 {
        checks.push(Check::new("node", Level::Wrong, format!("and {more} more nodes take no work"), ""));
    }
    checks
}

/// A limit that stops launches: what it is about, since when and until when, and which jobs wait for it. A quota that nobody
/// waits for is no trouble.
fn limited(limit: &Limit, explained: Option<&Explanation>, now: Time) -> Check {
    let waiting = explained.map(|explained| limit.waiting_words(explained));
    let is_idle = limit.is_quota() && waiting.as_ref().is_some_and(String::is_empty);
    let level = if limit.needs_a_person() && !is_idle { Level::Wrong } else { Level::Note };
    let since = limit.since_at().map(|at| format!(", since {}", when(at, now))).unwrap_or_default();
    let left = limit.until_at().map(|until| format!("; next try in {}", rough(until.since(now)))).unwrap_or_default();
    let waiting = waiting.filter(|w| !w.is_empty()).map(|w| format!("; {w}")).unwrap_or_default();
    let message = limit.message().map(|m| format!(": {}", one_line(m))).unwrap_or_default();
    Check::new(&limit.key().to_string(), level, format!("{limit}{since}{left}{waiting}{message}"), limit.to_do())
}

/// A brake that holds something back, or its release.
fn braked(control: &Control, kind: BrakeKind, now: Time) -> Option<Check> {
    let (brake, release) = (control.brake(kind), control.release(kind));
    if brake.holds_back(now) {
        let message = brake.message().map(|m| format!(": {}", one_line(m))).unwrap_or_default();
        let to_do = format!("`nodekeeper release {kind} --show` lists it; wait, or `nodekeeper release {kind}`");
        let key = ControlKey::Brake(kind).to_string();
        return Some(Check::new(&key, Level::Wrong, format!("held back{message}"), to_do));
    }
    let left = rough(release.until_at().filter(|_| release.applies(now))?.since(now));
    let said = format!("an operator released what was held; if no run uses the release, it ends in {left}");
    Some(Check::new(&ControlKey::Release(kind).to_string(), Level::Note, said, ""))
}

/// The warnings of the last hour. Of several equal warnings, only the newest.
fn warnings(events: &[Event], now: Time) -> Vec<Check> {
    let mut checks: Vec<Check> = Vec::new();
    for event in events {
        let recent = now.since(event.at()) <= RECENT;
        let said = one_line(&event.reason);
        if event.action == ActionName::Warn.as_str()
            && recent
            && !checks.iter().any(|c| c.what == event.subject && c.says.contains(&said))
        {
            checks.push(Check::new(
                &event.subject,
                Level::Note,
                format!("warned {}: {said}", when(event.at(), now)),
                "",
            ));
        }
    }
    checks
}
