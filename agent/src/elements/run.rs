//! The process that runs the elements of a pack, as the job's user and with all its restrictions.
//!
//! Guarantees: at most `at_once` elements run at the same time; each has its number in `NODEKEEPER_ARRAY_INDEX`, a process group of its
//! own which ends with it, and the time limit of the job; after the order to stop none is started, nor after as many failures as
//! the pack may have.
//! Does not: give an element a work directory of its own, or find a process that left the group of its element: that one ends with
//! the alloc.

use super::frames::{Frame, FrameContent, MAX_BYTES};
use super::remains::Element;
use crate::ending::stops::{RECHECK, StopStep, Stops, stop_at};
use crate::work::job_command::JobCommand;
use model::wire::AllocOrder;
use model::{EndCause, FailurePolicy, Outcome, Pack, Signal, Time};
use nix::errno::Errno;
use process_table::Notice;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::SpooledTempFile;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::signal::unix::{Signal as UnixSignal, SignalKind, signal};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// How often an element that the machine has no room for is started again, and the wait between.
const STARTS: u32 = 10;
const START_AGAIN: Duration = Duration::from_millis(500);

/// The held output of an element is in memory up to this many bytes, and in a file above.
const IN_MEMORY: usize = 256 << 10;

/// What a shell adds to the number of a signal that ended a command.
const SHELL_SIGNAL: i32 = 128;

/// How many frames wait for the supervisor.
const WAITING: usize = 64;

/// The present order to the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Run,
    /// A stop is near: nothing new is started.
    Notice,
    /// An element that ends from now on has no outcome.
    Stop,
}

/// The pack of an order, and the settings for each of its elements.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElementsStart {
    pack: Pack,
    /// The time limit of each element, in seconds; 0 for none.
    timeout_s: u64,
    policy: FailurePolicy,
    /// Whether the next try goes on with what a try has saved.
    keeps: bool,
}

impl ElementsStart {
    pub fn of(order: &AllocOrder) -> Option<Self> {
        let (timeout_s, policy, keeps) =
            (order.work.timeout_s, order.failure_policy.clone(), order.work.keep.is_some());
        order.work.pack.clone().map(|pack| Self { pack, timeout_s, policy, keeps })
    }
}

struct ElementRunner {
    command: JobCommand,
    elements: ElementsStart,
    clock: fn() -> Time,
    /// The frames on their way to the supervisor. Hold the lock while frames that belong together are sent.
    frames: Mutex<mpsc::Sender<Vec<u8>>>,
    order: watch::Receiver<Order>,
}

/// Runs all elements. An error says why none can be run, or why an element is lost.
pub fn run(command: JobCommand, elements: ElementsStart, clock: fn() -> Time) -> Result<(), EndCause> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| cannot("start its elements", &e))?;
    runtime.block_on(all(command, elements, clock))
}

fn cannot(what: &str, e: &io::Error) -> EndCause {
    EndCause::NotStarted { why: format!("cannot {what}: {e}") }
}

async fn all(command: JobCommand, elements: ElementsStart, clock: fn() -> Time) -> Result<(), EndCause> {
    let (frames, received) = mpsc::channel(WAITING);
    let writer = std::thread::Builder::new().name("frames".to_owned()).spawn(|| write(received));
    let writer = writer.map_err(|e| cannot("start its elements", &e))?;
    let (orders, order) = watch::channel(Order::Run);
    let mut signals = StopSignals::listen(&elements.policy).map_err(|e| cannot("listen for its end", &e))?;
    let pack = elements.pack.clone();
    let (mut waiting, mut failed) = (pack.elements.iter(), 0);
    let runner = Arc::new(ElementRunner { command, elements, clock, frames: Mutex::new(frames), order });
    let (mut running, mut end) = (JoinSet::new(), Ok(()));
    loop {
        while running.len() < pack.at_once.max(1) as usize && *orders.borrow() == Order::Run && end.is_ok() {
            let Some(element) = waiting.next().filter(|_| !pack.is_over_with(failed)) else { break };
            let runner = Arc::clone(&runner);
            running.spawn(async move { runner.one(element).await });
        }
        let now = *orders.borrow();
        tokio::select! {
            ended = running.join_next() => match ended {
                None => break,
                Some(Ok(Ok(outcome))) => failed += u64::from(outcome.is_some_and(|outcome| outcome != Outcome::SUCCESS)),
                Some(Ok(Err(cause))) => end = end.and(Err(cause)),
                Some(Err(e)) => end = Err(EndCause::Lost { why: format!("the task of an element failed: {e}") }),
            },
            content = signals.next(now) => {
                orders.send_replace(content);
            }
        }
    }
    drop((running, runner));
    let _joined = tokio::task::spawn_blocking(|| writer.join()).await;
    end
}

/// The signals of the supervisor: the notice of a stop, and the stop.
struct StopSignals {
    term: UnixSignal,
    /// The stop signal of the job, if it is not TERM.
    own: Option<UnixSignal>,
    has_notice: bool,
}

impl StopSignals {
    fn listen(policy: &FailurePolicy) -> io::Result<Self> {
        let own = policy.stop_signal.filter(|own| *own != Signal::TERM);
        let own = own.map(|own| signal(SignalKind::from_raw(own.number()))).transpose()?;
        Ok(Self { term: signal(SignalKind::terminate())?, own, has_notice: policy.stop_notice_s > 0 })
    }

    /// The order after the next signal, if the present order is `now`.
    async fn next(&mut self, now: Order) -> Order {
        let own = async {
            match &mut self.own {
                Some(own) => _ = own.recv().await,
                None => std::future::pending().await,
            }
        };
        let is_term = tokio::select! {
            _ = self.term.recv() => true,
            () = own => false,
        };
        // If the job has a signal of its own, that signal is the notice. Otherwise the first TERM is.
        let is_notice = self.has_notice && now == Order::Run && (!is_term || self.own.is_none());
        if is_notice {
            Order::Notice
        } else if is_term || !self.has_notice {
            Order::Stop
        } else {
            now
        }
    }
}

/// Writes the frames as they come. If the supervisor is gone, the frames are lost.
fn write(mut frames: mpsc::Receiver<Vec<u8>>) {
    let mut out = io::stdout().lock();
    while let Some(frame) = frames.blocking_recv() {
        if out.write_all(&frame).and_then(|()| out.flush()).is_err() {
            return;
        }
    }
}

/// What happens with the output of an element.
enum Printed {
    /// The output is sent at once, because no other element runs at the same time.
    AtOnce,
    /// The output is sent when the element has ended, so that it stays together.
    AtItsEnd(SpooledTempFile),
}

impl ElementRunner {
    /// Runs an element. `None` if it has no outcome, because it was asked to stop.
    async fn one(&self, element: u32) -> Result<Option<Outcome>, EndCause> {
        self.say(Frame { element, content: FrameContent::Begin }.bytes()).await;
        let mut printed = match self.elements.pack.at_once {
            0 | 1 => Printed::AtOnce,
            _ => Printed::AtItsEnd(SpooledTempFile::new(IN_MEMORY)),
        };
        let outcome = match self.start(element).await? {
            Ok(child) => self.follow(element, child, &mut printed).await?,
            Err(outcome) => Some(outcome),
        };
        self.end(element, printed, outcome).await.map_err(|e| cannot("keep what an element printed", &e))?;
        Ok(outcome)
    }

    /// Starts an element. If its program cannot be executed, the outcome is the exit code that a shell gives.
    async fn start(&self, element: u32) -> Result<Result<Child, Outcome>, EndCause> {
        let mut left = STARTS;
        loop {
            let mut command = Command::from(self.command.ready()?);
            command.env("NODEKEEPER_ARRAY_INDEX", element.to_string());
            command.envs(stop_at(self.elements.timeout_s, (self.clock)()));
            let error = match command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn() {
                Ok(child) => return Ok(Ok(child)),
                Err(error) => error,
            };
            let cause = self.command.why_not(&error);
            match cause.exit_code() {
                Some(code) => return Ok(Err(Outcome::Exit(code))),
                // The machine has no room now.
                None if left > 0 && matches!(cause, EndCause::NotStarted { .. }) => left -= 1,
                None => return Err(cause),
            }
            tokio::time::sleep(START_AGAIN).await;
        }
    }

    /// Waits for an element, and for its outcome.
    async fn follow(&self, element: u32, mut child: Child, printed: &mut Printed) -> Result<Option<Outcome>, EndCause> {
        let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
        let mut order = self.order.clone();
        let mut end = ElementEnd::new(child.id(), &self.elements, *order.borrow_and_update());
        let (mut out_bytes, mut err_bytes) = (vec![0; MAX_BYTES], vec![0; MAX_BYTES]);
        let mut first = None;
        let status = loop {
            tokio::select! {
                read = read(&mut out, &mut out_bytes) => match read {
                    Some(bytes) => self.print(element, FrameContent::Out(bytes.to_vec()), printed).await?,
                    None => out = None,
                },
                read = read(&mut err, &mut err_bytes) => match read {
                    Some(bytes) => self.print(element, FrameContent::Err(bytes.to_vec()), printed).await?,
                    None => err = None,
                },
                status = child.wait(), if first.is_none() => first = Some(status),
                Ok(()) = order.changed() => end.order(*order.borrow_and_update()),
                () = sleep_until(end.next_at()) => end.step(),
            }
            if end.has_come(first.is_some())
                && let Some(status) = first.take()
            {
                break status;
            }
        };
        end.remains.kill_group();
        for bytes in rest(out.as_ref()) {
            self.print(element, FrameContent::Out(bytes), printed).await?;
        }
        for bytes in rest(err.as_ref()) {
            self.print(element, FrameContent::Err(bytes), printed).await?;
        }
        Ok(end.outcome(outcome(&status.map_err(|e| cannot("wait for an element", &e))?)))
    }

    async fn print(&self, element: u32, content: FrameContent, printed: &mut Printed) -> Result<(), EndCause> {
        let bytes = Frame { element, content }.bytes();
        match printed {
            Printed::AtOnce => self.say(bytes).await,
            Printed::AtItsEnd(file) => {
                file.write_all(&bytes).map_err(|e| cannot("keep what an element printed", &e))?;
            }
        }
        Ok(())
    }

    /// Sends the held output of an element, and its end.
    async fn end(&self, element: u32, printed: Printed, outcome: Option<Outcome>) -> io::Result<()> {
        let end = Frame { element, content: FrameContent::End(outcome) }.bytes();
        let Printed::AtItsEnd(mut file) = printed else {
            self.say(end).await;
            return Ok(());
        };
        file.rewind()?;
        let frames = self.frames.lock().await;
        loop {
            let mut part = Vec::new();
            (&mut file).take(MAX_BYTES as u64).read_to_end(&mut part)?;
            if part.is_empty() {
                break;
            }
            let _unread_is_fine = frames.send(part).await;
        }
        let _unread_is_fine = frames.send(end).await;
        Ok(())
    }

    async fn say(&self, frame: Vec<u8>) {
        let _unread_is_fine = self.frames.lock().await.send(frame).await;
    }
}

/// The end of one element: by itself, by its time limit, or because the alloc stops.
struct ElementEnd<'a> {
    remains: Element,
    stops: Stops,
    policy: &'a FailurePolicy,
    keeps: bool,
    /// The orders to the alloc: the notice of a stop, the stop.
    order: Order,
    /// Whether its time limit has asked it to stop.
    is_late: bool,
}

impl<'a> ElementEnd<'a> {
    fn new(first: Option<u32>, elements: &'a ElementsStart, order: Order) -> Self {
        let (policy, first) = (&elements.policy, first.map_or(0, |pid| pid as i32));
        let stops = Stops::new(policy, elements.timeout_s, Instant::now());
        let notice = Notice::new(Duration::from_secs(policy.kill_timeout_s));
        let remains = Element::new(first, notice);
        let mut end = Self { remains, stops, policy, keeps: elements.keeps, order: Order::Run, is_late: false };
        end.order(order);
        end
    }

    fn order(&mut self, order: Order) {
        match order {
            Order::Notice if order != self.order => self.remains.notify(self.policy.notice_signal()),
            Order::Stop if order != self.order => self.remains.notify(self.policy.ask_signal()),
            Order::Run | Order::Notice | Order::Stop => {}
        }
        self.order = order;
    }

    fn has_begun(&self) -> bool {
        self.order != Order::Run || self.stops.has_begun()
    }

    fn next_at(&self) -> Instant {
        let next = self.stops.next_at();
        if self.has_begun() { next.min(Instant::now() + RECHECK) } else { next }
    }

    fn step(&mut self) {
        if Instant::now() < self.stops.next_at() {
            return;
        }
        match self.stops.take(Instant::now()) {
            StopStep::Notify => self.remains.notify(self.policy.notice_signal()),
            StopStep::Ask => {
                self.is_late = true;
                self.remains.notify(self.policy.ask_signal());
            }
            StopStep::Kill => self.remains.kill(),
        }
    }

    /// Whether the element has ended: with its first process, or when nothing of it remains if a stop has begun.
    fn has_come(&mut self, has_first_ended: bool) -> bool {
        if self.has_begun() { self.remains.have_ended(has_first_ended) } else { has_first_ended }
    }

    /// `own` is how its first process ended. What ended by a signal of ours has not ended by itself. What can go on later, and succeeds
    /// after the notice, has perhaps only saved its work.
    fn outcome(&self, own: Outcome) -> Option<Outcome> {
        let notice = self.policy.notice_signal().number();
        let is_of_notice = [Outcome::Signal(notice), Outcome::Exit(SHELL_SIGNAL.saturating_add(notice))].contains(&own);
        let has_saved = self.keeps && own == Outcome::SUCCESS;
        match self.order {
            _ if self.is_late => Some(Outcome::Timeout),
            Order::Stop => None,
            // An element that succeeded after the notice has perhaps ended by itself, so its success counts.
            Order::Notice if own == Outcome::SUCCESS && !has_saved => Some(own),
            Order::Notice => None,
            Order::Run if self.stops.has_begun() && (is_of_notice || has_saved) => Some(Outcome::Timeout),
            Order::Run => Some(own),
        }
    }
}

/// The next bytes of a pipe; `None` at its end. Waits for ever for a pipe that has ended already.
async fn read<'a>(pipe: &mut Option<impl tokio::io::AsyncRead + Unpin>, bytes: &'a mut [u8]) -> Option<&'a [u8]> {
    let Some(pipe) = pipe else { return std::future::pending().await };
    let n = pipe.read(bytes).await.unwrap_or(0);
    bytes.get(..n).filter(|bytes| !bytes.is_empty())
}

/// The bytes that are in a pipe now. The pipe does not block, so another process that holds it open is not waited for.
fn rest(pipe: Option<&impl AsFd>) -> Vec<Vec<u8>> {
    let (mut parts, mut bytes) = (Vec::new(), vec![0; MAX_BYTES]);
    while let Some(pipe) = pipe {
        match nix::unistd::read(pipe.as_fd(), &mut bytes) {
            Ok(0) => break,
            Ok(n) => parts.extend(bytes.get(..n).map(<[u8]>::to_vec)),
            Err(Errno::EINTR) => {}
            Err(_) => break,
        }
    }
    parts
}

fn outcome(status: &ExitStatus) -> Outcome {
    match (status.code(), status.signal()) {
        (Some(code), _) => Outcome::Exit(code),
        (None, signal) => Outcome::Signal(signal.unwrap_or(0)),
    }
}
