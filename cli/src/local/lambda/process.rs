//! Starting, watching and ending the operating system's processes.
//!
//! Guarantees: every process leads a process group of its own, and ends with its group when asked to and when it is
//! dropped. It also ends when this program dies in whatever way. That is the kernel's doing (`PR_SET_PDEATHSIG`, set
//! by the wrapper `setpriv`, as safe Rust cannot do it between fork and exec). The kernel ties it to the *thread* that
//! forked, and tokio's threads come and go; hence one thread that does nothing but start processes and lives as long
//! as its [`Spawner`]. Where there is no `setpriv`, a function still ends once it finds the Runtime API gone.
//!
//! Does not: limit memory or processor time, or reach what a process has started itself when this program is killed.

use super::LogSink;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A longer line is cut into lines of this many bytes.
const MAX_LINE: u64 = 16 * 1024;
/// How long after a process's end its pipes may stay open in some descendant.
const LAST_LINES: Duration = Duration::from_secs(1);
/// Where util-linux puts it. (BusyBox has a `setpriv` without parent death signals, hence the trial.)
const SETPRIV: [&str; 2] = ["/usr/bin/setpriv", "/bin/setpriv"];

/// What to run.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    /// The whole environment.
    pub(super) env: BTreeMap<String, String>,
}

struct Order {
    launch: Launch,
    reply: oneshot::Sender<io::Result<Leader>>,
}

/// The handle of the thread that starts processes. When it is dropped the thread ends, and the kernel kills whatever
/// is left.
#[derive(Debug)]
pub(super) struct Spawner(mpsc::Sender<Order>);

impl Spawner {
    /// Starts the thread. To be called within a tokio runtime.
    pub(super) fn start() -> io::Result<Self> {
        let (orders, received) = mpsc::channel();
        let runtime = Handle::current();
        std::thread::Builder::new().name("lambda-spawner".to_owned()).spawn(move || serve(&received, &runtime))?;
        Ok(Self(orders))
    }

    /// Starts a process whose lines go to `log` under the name `function`.
    pub(super) async fn spawn(&self, launch: Launch, function: &str, log: &LogSink) -> io::Result<Running> {
        let (reply, started) = oneshot::channel();
        let gone = || io::Error::other("the thread that starts processes is gone");
        self.0.send(Order { launch, reply }).map_err(|_| gone())?;
        let mut leader = started.await.map_err(|_| gone())??;
        let last = Arc::new(Mutex::new(LastLines::default()));
        let mut logs = Vec::with_capacity(2);
        if let Some(pipe) = leader.child.stdout.take() {
            let (last, function, log) = (Arc::clone(&last), function.to_owned(), Arc::clone(log));
            logs.push(tokio::spawn(forward(pipe, function, log, move |line| LastLines::lock(&last).out = line)));
        }
        if let Some(pipe) = leader.child.stderr.take() {
            let (last, function, log) = (Arc::clone(&last), function.to_owned(), Arc::clone(log));
            logs.push(tokio::spawn(forward(pipe, function, log, move |line| LastLines::lock(&last).err = line)));
        }
        Ok(Running { leader, logs, last })
    }
}

fn serve(orders: &mpsc::Receiver<Order>, runtime: &Handle) {
    let _within = runtime.enter();
    let wrapper = SETPRIV.into_iter().find(|path| dies_with_parent(path));
    if wrapper.is_none() {
        tracing::warn!(
            "no setpriv of util-linux at {}: if this program is killed, functions end only at their next poll; install util-linux",
            SETPRIV.join(" or ")
        );
    }
    for Order { launch, reply } in orders {
        // Where the order was given up, the process is dropped and thereby killed.
        let _ = reply.send(start(&launch, wrapper));
    }
}

fn dies_with_parent(setpriv: &str) -> bool {
    let tried = std::process::Command::new(setpriv)
        .args(["--pdeathsig", "KILL", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}

fn start(launch: &Launch, wrapper: Option<&str>) -> io::Result<Leader> {
    // Said here because the wrapper would only say it in a log line.
    if !Path::new(&launch.program).exists() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such file"));
    }
    let mut command = match wrapper {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(&launch.program);
            command
        }
        None => Command::new(&launch.program),
    };
    let child = command
        .env_clear()
        .envs(&launch.env)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()?;
    let id = child.id().and_then(|id| i32::try_from(id).ok());
    let group = id.map(Pid::from_raw).ok_or_else(|| io::Error::other("it has no process id"))?;
    Ok(Leader { child, group })
}

/// A process and its group, from the first moment on: wherever it is dropped, both are killed.
#[derive(Debug)]
struct Leader {
    child: Child,
    group: Pid,
}

impl Leader {
    fn signal(&self, signal: Signal) {
        // No such group: it has ended by itself, which is what was wanted.
        let _ = killpg(self.group, signal);
    }
}

impl Drop for Leader {
    /// `kill_on_drop` knows the process alone.
    fn drop(&mut self) {
        if self.child.id().is_some() {
            self.signal(Signal::SIGKILL);
        }
    }
}

/// The last line that says something, of each stream.
#[derive(Debug, Default)]
struct LastLines {
    out: String,
    err: String,
}

impl LastLines {
    fn lock(this: &Mutex<Self>) -> MutexGuard<'_, Self> {
        this.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A started process.
#[derive(Debug)]
pub(super) struct Running {
    leader: Leader,
    logs: Vec<JoinHandle<()>>,
    last: Arc<Mutex<LastLines>>,
}

impl Running {
    /// Waits for the end; may be dropped and called again.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.leader.child.wait().await
    }

    /// Kills the process and its descendants at once.
    pub(super) fn kill(&self) {
        self.leader.signal(Signal::SIGKILL);
    }

    /// Asks the process to end, and kills it when it has not within `grace`.
    pub(super) async fn terminate(&mut self, grace: Duration) {
        self.leader.signal(Signal::SIGTERM);
        if tokio::time::timeout(grace, self.wait()).await.is_err() {
            self.kill();
            let _ = self.wait().await;
        }
    }

    /// Ends what an ended process has left in its group, and gives its last line: of its errors, else of its output.
    pub(super) async fn last_line(self) -> Option<String> {
        self.kill();
        for mut log in self.logs {
            if tokio::time::timeout(LAST_LINES, &mut log).await.is_err() {
                log.abort();
            }
        }
        let last = LastLines::lock(&self.last);
        [&last.err, &last.out].into_iter().find(|line| !line.is_empty()).cloned()
    }
}

/// Passes lines on until the pipe closes; `note` gets those that say something.
async fn forward(pipe: impl AsyncRead + Unpin, function: String, log: LogSink, note: impl Fn(String)) {
    let mut pipe = BufReader::new(pipe);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut pipe).take(MAX_LINE).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                let text = text.trim_end_matches(['\n', '\r']);
                log(&function, text);
                // What Rust prints below a panic is the last line, and never the reason.
                if !text.trim().is_empty() && !text.starts_with("note: run with `RUST_BACKTRACE=") {
                    note(text.to_owned());
                }
            }
        }
    }
}
