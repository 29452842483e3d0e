//! `batch`: requests and answers for programs, as lines of JSON, in one process.
//!
//! Guarantees: each request has an answer with its id, or an error that says whether the same request may succeed later. Requests
//! are carried out in their order. Waits go on beside them, and tell each end once. So do requests for outputs, a few at a time; what
//! is stored about the jobs of many of them is read together.
//! Does not: have rules of its own. A request does what the command does.

use super::operate::cancel;
use super::output::fetch::{FetchArgs, FetchRows, fetch};
use super::output::logs::{self, LogsArgs};
use super::submit::{SubmitArgs, job_file, strict_json};
use crate::console::{Cluster, Context, ErrorKind, Exit, NoAnswer, Screen, UsageError, WallClock, bounded, show};
use crate::view::find::{Finder, Meant};
use crate::view::{JobRow, with};
use anyhow::bail;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::{Args, FromArgMatches};
use futures::future::{FutureExt, LocalBoxFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use model::{Job, JobId, Span, Time};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::io::{self, Empty};
use std::sync::Arc;
use std::time::Duration;
use store::End;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::{Instant, sleep, sleep_until};

/// The time between two polls for ends of jobs.
const POLL: Duration = Duration::from_secs(1);
/// How long an index may be behind the table, and clocks apart from each other.
const MARGIN: Span = Span::from_s(60);
/// After this many polls for ends, a poll reads every job that somebody waits for.
const POLLS_OF_ALL: u32 = 60;
/// How many requests are read before they are carried out, and how many get outputs at the same time.
const AHEAD: usize = 64;
/// How long requests to fetch wait for others. A program sends one for each of the jobs that have ended.
const GATHER: Duration = Duration::from_millis(5);
/// So few jobs are read themselves: the lists of what has ended are more reads.
const FEW: usize = 10;

/// `batch`
#[derive(Args, Clone, Debug)]
pub struct BatchArgs {}

/// What a request asks for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Verb {
    /// Jobs, each as in a line of `submit --file`.
    Submit(Vec<Map<String, Value>>),
    Wait(Vec<String>),
    List(Vec<String>),
    Cancel(CancelRequest),
    Logs(String),
    Fetch(FetchRequest),
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "cancel takes a list of jobs, or {\"jobs\": [...], \"yes\": true}")]
enum CancelRequest {
    Jobs(Vec<String>),
    /// `yes`: those of somebody else, too.
    WithAnswer {
        jobs: Vec<String>,
        yes: bool,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FetchRequest {
    job: String,
    #[serde(default = "everything")]
    path: String,
    dir: String,
}

fn everything() -> String {
    ".".to_owned()
}

/// The jobs that a request waits for.
struct Wait {
    id: Value,
    left: BTreeSet<JobId>,
}

pub(crate) async fn run(context: &mut Context<'_>, _: &BatchArgs) -> anyhow::Result<Exit> {
    let (send, lines) = channel(AHEAD);
    // A read of standard input cannot be cancelled, so a thread reads it.
    std::thread::spawn(move || {
        loop {
            let line = bounded::line(&mut io::stdin().lock(), bounded::MOST_OF_MANY);
            let is_last = line.is_err();
            if line.as_ref().is_ok_and(Vec::is_empty) || send.blocking_send(line).is_err() || is_last {
                return;
            }
        }
    });
    answer(context, lines).await
}

/// Answers these lines until they end and nothing is waited for any more.
pub(crate) async fn answer(
    context: &mut Context<'_>,
    mut lines: Receiver<io::Result<Vec<u8>>>,
) -> anyhow::Result<Exit> {
    let mut batch = Session {
        cluster: context.cluster().await?,
        outputs: FuturesUnordered::new(),
        fetches: Vec::new(),
        waits: Vec::new(),
        since: context.now(),
        polls: 0,
    };
    let (mut is_open, mut next) = (true, Instant::now());
    loop {
        let outputs = batch.outputs.len();
        tokio::select! {
            // The requests that are here come before a fetch of several begins.
            biased;
            Some((id, answer)) = batch.outputs.next() => answer_line(context, &id, answer)?,
            () = sleep_until(next), if !batch.waits.is_empty() => {
                if let Err(e) = batch.poll(context).await {
                    batch.poll_failed(context, &e)?;
                }
                next = Instant::now() + POLL;
            }
            line = lines.recv(), if is_open && outputs + batch.fetches.len() < AHEAD => match line {
                Some(line) => batch.request(context, &line?).await?,
                None => is_open = false,
            },
            () = sleep(GATHER), if !batch.fetches.is_empty() && outputs < AHEAD / 2 => batch.fetch(context).await?,
            else => return Ok(Exit::Done),
        }
    }
}

struct Session {
    cluster: Cluster,
    /// Requests for outputs, with their ids.
    outputs: FuturesUnordered<LocalBoxFuture<'static, (Value, anyhow::Result<Value>)>>,
    /// Requests to fetch that have not begun, with their ids.
    fetches: Vec<(Value, FetchArgs, Meant)>,
    waits: Vec<Wait>,
    /// Polls have read the ends before this time.
    since: Time,
    polls: u32,
}

fn answer_line(context: &mut Context<'_>, id: &Value, answer: anyhow::Result<Value>) -> anyhow::Result<()> {
    let answer = with(show::without_nulls(answer.unwrap_or_else(|e| failure(&e))), json!({ "id": id }));
    writeln!(context.out, "{answer}")?;
    Ok(context.out.flush()?)
}

fn failure(e: &anyhow::Error) -> Value {
    json!({"error": {"kind": ErrorKind::of(e), "message": show::error(e)}})
}

impl Session {
    async fn request(&mut self, context: &mut Context<'_>, line: &[u8]) -> anyhow::Result<()> {
        let mut id = Value::Null;
        let answer = match self.parse(line, &mut id) {
            Ok(None) => return Ok(()),
            Ok(Some(verb)) => self.carry_out(context, &id, verb).await,
            Err(e) => Err(e),
        };
        answer.transpose().map_or(Ok(()), |answer| answer_line(context, &id, answer))
    }

    /// What a line asks for; `None` for an empty line.
    fn parse(&self, line: &[u8], id: &mut Value) -> anyhow::Result<Option<Verb>> {
        let wrong = |e: String| UsageError(format!("it is no request: {e}"));
        let text = bounded::text(line, "a request")?.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let Value::Object(mut request) = strict_json::parse(text).map_err(|e| wrong(e.to_string()))? else {
            return Err(wrong("it is not a JSON object".to_owned()).into());
        };
        *id = request.remove("id").unwrap_or_default();
        if !id.is_string() && !id.is_number() {
            return Err(wrong("give it an id, a text or a number".to_owned()).into());
        }
        Ok(Some(serde_json::from_value(Value::Object(request)).map_err(|e| wrong(e.to_string()))?))
    }

    /// The answer to a request; `None` if it comes later.
    async fn carry_out(&mut self, context: &mut Context<'_>, id: &Value, verb: Verb) -> anyhow::Result<Option<Value>> {
        Ok(Some(match verb {
            Verb::Submit(lines) => {
                let text: Vec<String> = lines.into_iter().map(|line| Value::Object(line).to_string()).collect();
                // Lines without keys are new jobs each time.
                let args: SubmitArgs = arguments(&["--file", "-", "--again"], &[])?;
                let mut quiet = Captured::new(&context.clock);
                let text = text.join("\n");
                let jobs =
                    job_file::submit(&mut quiet.context(&self.cluster), &args, text.as_bytes(), "the request").await?;
                json!({"jobs": jobs.iter().map(|job| job.summary.job_id).collect::<Vec<_>>()})
            }
            Verb::Wait(jobs) => {
                let ids = self.ids(&jobs).await?;
                let jobs = self.cluster.store.jobs_of(ids.iter().copied()).await?.all()?;
                if let Some(gone) = ids.iter().find(|id| !jobs.iter().any(|job| job.summary.job_id == **id)) {
                    bail!(UsageError(format!("job {gone} is not stored")));
                }
                self.waits.push(Wait { id: id.clone(), left: ids.into_iter().collect() });
                self.ended(context, jobs)?;
                return Ok(None);
            }
            Verb::List(jobs) => {
                let ids = self.ids(&jobs).await?;
                let jobs = self.cluster.store.jobs_of(ids).await?.all()?;
                json!({"rows": self.rows(&jobs, context.now()).await?})
            }
            Verb::Cancel(given) => {
                let (jobs, yes) = match given {
                    CancelRequest::Jobs(jobs) => (jobs, false),
                    CancelRequest::WithAnswer { jobs, yes } => (jobs, yes),
                };
                let mut output = Captured::new(&context.clock);
                let args = arguments(if yes { &["--yes"] } else { &[] }, &jobs)?;
                let done = cancel::run(&mut output.context(&self.cluster), &args).await?;
                output.expect(done)?;
                json!({"done": true})
            }
            Verb::Logs(job) => {
                self.later(id.clone(), logs_of(self.cluster.clone(), Arc::clone(&context.clock), job));
                return Ok(None);
            }
            Verb::Fetch(request) => {
                let args: FetchArgs = arguments(&[], &[request.job, request.path, request.dir])?;
                let meant = Finder::new(&self.cluster).meant(&args.job).await?;
                self.fetches.push((id.clone(), args, meant));
                return Ok(None);
            }
        }))
    }

    fn later(&mut self, id: Value, answer: impl Future<Output = anyhow::Result<Value>> + 'static) {
        self.outputs.push(answer.map(|answer| (id, answer)).boxed_local());
    }

    /// Begins the fetches that wait.
    async fn fetch(&mut self, context: &mut Context<'_>) -> anyhow::Result<()> {
        let fetches = std::mem::take(&mut self.fetches);
        let ids = fetches.iter().flat_map(|(_, _, meant)| meant.ids.iter().copied());
        match FetchRows::read(&self.cluster, &mut io::sink(), ids).await.map(Arc::new) {
            Ok(stored) => {
                for (id, args, meant) in fetches {
                    let (cluster, clock) = (self.cluster.clone(), Arc::clone(&context.clock));
                    self.later(id, fetch_one(cluster, clock, args, meant, Arc::clone(&stored)));
                }
                Ok(())
            }
            Err(e) => fetches.iter().try_for_each(|(id, _, _)| answer_line(context, id, Ok(failure(&e)))),
        }
    }

    async fn ids(&self, given: &[String]) -> anyhow::Result<Vec<JobId>> {
        let finder = Finder::new(&self.cluster);
        let mut ids = Vec::new();
        for text in given {
            ids.extend(finder.jobs(text).await?);
        }
        Ok(ids)
    }

    /// The rows of these jobs. Programs ask often, so nothing is planned for them: what a job waits for is only what it says itself.
    async fn rows(&self, jobs: &[Job], now: Time) -> anyhow::Result<Vec<JobRow>> {
        let live = jobs.iter().filter(|job| !job.summary.state.is_ended()).flat_map(|job| job.summary.allocs.iter());
        let allocs = self.cluster.store.allocs_listed(live.copied()).await?.rows;
        let places = allocs.iter().map(|alloc| (alloc.id(), alloc.summary.slot)).collect();
        let mut rows: Vec<JobRow> = jobs.iter().map(JobRow::of).collect();
        for row in &mut rows {
            row.add_live(row.summary.own_wait(now).map(|why| why.to_string()), &places);
        }
        Ok(rows)
    }

    /// Reads which jobs have ended since the last poll.
    async fn poll(&mut self, context: &mut Context<'_>) -> anyhow::Result<()> {
        if self.waits.is_empty() {
            return Ok(());
        }
        let now = context.now();
        self.polls = self.polls.wrapping_add(1);
        let waited: BTreeSet<JobId> = self.waits.iter().flat_map(|wait| wait.left.iter().copied()).collect();
        let ids: Vec<JobId> = if waited.len() <= FEW || self.polls.is_multiple_of(POLLS_OF_ALL) {
            waited.into_iter().collect()
        } else {
            let ended = self.cluster.store.ended(&End::ALL, self.since - MARGIN, usize::MAX).await?;
            ended.iter().map(|ended| ended.job.job_id).filter(|id| waited.contains(id)).collect()
        };
        let jobs = self.cluster.store.jobs_of(ids).await?.all()?;
        self.since = now;
        self.ended(context, jobs)
    }

    /// A program waits for hours, so a while without the database does not end a wait. Another error is its answer.
    fn poll_failed(&mut self, context: &mut Context<'_>, error: &anyhow::Error) -> anyhow::Result<()> {
        if ErrorKind::of(error) == ErrorKind::Again {
            return Ok(());
        }
        let waits = std::mem::take(&mut self.waits);
        waits.iter().try_for_each(|wait| answer_line(context, &wait.id, Ok(failure(error))))
    }

    /// Answers the requests that wait for the ends of these jobs, as far as they have ended.
    fn ended(&mut self, context: &mut Context<'_>, mut jobs: Vec<Job>) -> anyhow::Result<()> {
        jobs.retain(|job| job.summary.state.is_ended());
        for wait in &mut self.waits {
            for job in jobs.iter().filter(|job| wait.left.remove(&job.summary.job_id)) {
                answer_line(context, &wait.id, Ok(json!({"ended": JobRow::of(job)})))?;
            }
            if wait.left.is_empty() {
                answer_line(context, &wait.id, Ok(json!({"done": true})))?;
            }
        }
        self.waits.retain(|wait| !wait.left.is_empty());
        Ok(())
    }
}

async fn logs_of(cluster: Cluster, clock: WallClock, job: String) -> anyhow::Result<Value> {
    let (mut answer, mut is_missing) = (Map::new(), false);
    for stream in ["stdout", "stderr"] {
        let args: LogsArgs = arguments(&[&format!("--{stream}")], std::slice::from_ref(&job))?;
        let mut output = Captured::new(&clock);
        is_missing |= logs::logs(&mut output.context(&cluster), &args).await? != Exit::Done;
        // JSON has no bytes that are not text.
        if std::str::from_utf8(&output.out).is_err() {
            answer.insert(format!("{stream}_base64"), BASE64_STANDARD.encode(&output.out).into());
        }
        answer.insert(stream.to_owned(), String::from_utf8_lossy(&output.out).into());
    }
    Ok(with(Value::Object(answer), json!({"missing": is_missing})))
}

async fn fetch_one(
    cluster: Cluster,
    clock: WallClock,
    args: FetchArgs,
    meant: Meant,
    stored: Arc<FetchRows>,
) -> anyhow::Result<Value> {
    let mut output = Captured::new(&clock);
    let done = fetch(&mut output.context(&cluster), &cluster, &args, &meant, &stored).await?;
    output.expect(done)?;
    Ok(json!({"done": true}))
}

/// The arguments of a command. What a program gives is never an option.
pub(crate) fn arguments<A: Args + FromArgMatches>(options: &[&str], given: &[String]) -> anyhow::Result<A> {
    let command = A::augment_args(clap::Command::new("batch").no_binary_name(true));
    let separator = (!given.is_empty()).then_some("--");
    let matches =
        command.try_get_matches_from(options.iter().copied().chain(separator).chain(given.iter().map(String::as_str)));
    Ok(A::from_arg_matches(&matches.map_err(|e| UsageError(e.to_string()))?)?)
}

/// What a command prints.
struct Captured {
    out: Vec<u8>,
    err: Vec<u8>,
    input: Empty,
    clock: WallClock,
}

impl Captured {
    fn new(clock: &WallClock) -> Self {
        Self { out: Vec::new(), err: Vec::new(), input: io::empty(), clock: Arc::clone(clock) }
    }

    fn context(&mut self, cluster: &Cluster) -> Context<'_> {
        Context {
            connect: cluster.as_connected(),
            clock: Arc::clone(&self.clock),
            input: &mut self.input,
            screen: Screen::Pipe,
            err_screen: Screen::Pipe,
            in_screen: Screen::Pipe,
            colours: false,
            out: &mut self.out,
            err: &mut self.err,
        }
    }

    /// An error with what was printed about it, unless all was done.
    fn expect(&self, done: Exit) -> anyhow::Result<()> {
        if done == Exit::Done {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&self.err);
        let said = said.lines().map(|line| line.trim_start_matches("nodekeeper: ")).collect::<Vec<_>>().join("; ");
        if done == Exit::Code(ErrorKind::Again.exit_code()) {
            bail!(NoAnswer(said));
        }
        bail!(said)
    }
}
