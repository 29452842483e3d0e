//! Starting, watching and ending the operating system's processes.
//!
//! Guarantees: every process leads a process group of its own, and ends with its group when asked to and when it is
//! dropped, at whatever moment. It also ends when this program dies in whatever way. That is the kernel's doing
//! (`PR_SET_PDEATHSIG`, set by the wrapper `setpriv`, as safe Rust cannot do it between fork and exec). The kernel
//! ties it to the *thread* that forked, and tokio's threads come and go; hence each process has a thread of its own
//! that starts it and waits for its end. Where there is no `setpriv`, a function still ends once it finds the Runtime
//! API gone.
//!
//! Does not: limit memory or processor time, or reach what a process has started itself when this program is killed.

use super::LogSink;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{ChildStderr, ChildStdout};
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

/// A started process. Dropping it kills it.
#[derive(Debug)]
pub(super) struct Running {
    group: Killed,
    exit: oneshot::Receiver<io::Result<ExitStatus>>,
    logs: Vec<JoinHandle<()>>,
    last: Arc<Mutex<LastLines>>,
}

/// What the thread of a process hands over.
struct Started {
    group: Killed,
    stdout: Option<std::process::ChildStdout>,
    stderr: Option<std::process::ChildStderr>,
    exit: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// Starts a process whose lines go to `log` under the name `function`. To be called within a tokio runtime.
pub(super) async fn spawn(launch: Launch, function: &str, log: &LogSink) -> io::Result<Running> {
    let (reply, started) = oneshot::channel();
    std::thread::Builder::new().name("lambda-process".to_owned()).spawn(move || keep(&launch, reply))?;
    let Started { group, stdout, stderr, exit } = started.await.unwrap_or_else(|_| Err(thread_is_gone()))?;
    let last = Arc::new(Mutex::new(LastLines::default()));
    let mut running = Running { group, exit, logs: Vec::with_capacity(2), last: Arc::clone(&last) };
    if let Some(pipe) = stdout {
        let (last, function, log) = (Arc::clone(&last), function.to_owned(), Arc::clone(log));
        let note = move |line| LastLines::lock(&last).out = line;
        running.logs.push(tokio::spawn(forward(ChildStdout::from_std(pipe)?, function, log, note)));
    }
    if let Some(pipe) = stderr {
        let (function, log) = (function.to_owned(), Arc::clone(log));
        let note = move |line| LastLines::lock(&last).err = line;
        running.logs.push(tokio::spawn(forward(ChildStderr::from_std(pipe)?, function, log, note)));
    }
    Ok(running)
}

impl Running {
    /// Waits for the end and gives the status, once; may be dropped before and called again.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        (&mut self.exit).await.unwrap_or_else(|_| Err(thread_is_gone()))
    }

    /// Kills the process and its descendants at once.
    pub(super) fn kill(&self) {
        self.group.0.signal(Signal::SIGKILL);
    }

    /// Asks the process to end, kills it when it has not within `grace`, and waits for the end.
    pub(super) async fn terminate(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        self.group.0.signal(Signal::SIGTERM);
        match tokio::time::timeout(grace, self.wait()).await {
            Ok(status) => status,
            Err(_) => {
                self.kill();
                self.wait().await
            }
        }
    }

    /// The last line of an ended process: of its errors, else of its output.
    pub(super) async fn last_line(self) -> Option<String> {
        for mut log in self.logs {
            if tokio::time::timeout(LAST_LINES, &mut log).await.is_err() {
                log.abort();
            }
        }
        let last = LastLines::lock(&self.last);
        [&last.err, &last.out].into_iter().find(|line| !line.is_empty()).cloned()
    }
}

fn thread_is_gone() -> io::Error {
    io::Error::other("the thread that starts it and waits for it is gone")
}

/// The thread of a process.
fn keep(launch: &Launch, reply: oneshot::Sender<io::Result<Started>>) {
    let mut child = match start(launch) {
        Ok(child) => child,
        Err(error) => {
            let _ = reply.send(Err(error));
            return;
        }
    };
    let group = Arc::new(Group(Mutex::new(i32::try_from(child.id()).ok().map(Pid::from_raw))));
    let (ended, exit) = oneshot::channel();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // Where nobody waits for it any more, it is dropped here, and thereby killed.
    drop(reply.send(Ok(Started { group: Killed(Arc::clone(&group)), stdout, stderr, exit })));
    let status = child.wait();
    group.close();
    let _ = ended.send(status);
}

fn start(launch: &Launch) -> io::Result<Child> {
    // Said here because the wrapper would only say it in a log line.
    if !launch.program.exists() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such file"));
    }
    let mut command = match wrapper() {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(&launch.program);
            command
        }
        None => Command::new(&launch.program),
    };
    command
        .env_clear()
        .envs(&launch.env)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

/// The `setpriv` of this machine, if it has one that can do it.
pub(in crate::local) fn wrapper() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&str>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let found = SETPRIV.into_iter().find(|path| can_set_death_signal(path));
        if found.is_none() {
            tracing::warn!(
                "no setpriv of util-linux at {}: if this program is killed, functions end only at their next poll; \
                 install util-linux",
                SETPRIV.join(" or ")
            );
        }
        found
    })
}

fn can_set_death_signal(setpriv: &str) -> bool {
    let tried = Command::new(setpriv)
        .args(["--pdeathsig", "KILL", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}

/// A process group, until its leader has been waited for: from then on its number may be another's.
#[derive(Debug)]
struct Group(Mutex<Option<Pid>>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = *self.lock() {
            // It may have ended by itself just now, which is what was wanted.
            let _ = killpg(group, signal);
        }
    }

    /// Ends what an ended leader has left behind. As long as there is any, the number is not given to others.
    fn close(&self) {
        if let Some(group) = self.lock().take() {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kills a group when it is dropped.
#[derive(Debug)]
struct Killed(Arc<Group>);

impl Drop for Killed {
    fn drop(&mut self) {
        self.0.signal(Signal::SIGKILL);
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
