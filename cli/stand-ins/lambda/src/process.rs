//! Starting, watching and ending the operating system's processes.
//!
//! Guarantees: every process leads its own process group, and the whole group ends when the process is ended or
//! dropped. A process also ends when this program is killed: the kernel sends it a signal (`PR_SET_PDEATHSIG`). The
//! wrapper `setpriv` asks for this signal, because safe Rust cannot do so between fork and exec. The kernel ties the
//! signal to the *thread* that forked, and tokio's threads come and go; so each process has a thread of its own that
//! starts it and waits for its end. Without `setpriv`, a function ends when it finds that the Runtime API is gone.
//!
//! Does not: limit memory or processor time, or end the children of a process when this program is killed.

use crate::host::LogSink;
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
/// How long a process's descendants may keep its pipes open after its end.
const LAST_LINES: Duration = Duration::from_secs(1);
/// Where util-linux installs `setpriv`. The `setpriv` of BusyBox cannot set a parent death signal, so each path is
/// tried before use.
const SETPRIV: [&str; 2] = ["/usr/bin/setpriv", "/bin/setpriv"];

/// The program to run, and its environment.
#[derive(Clone, Debug)]
pub(crate) struct ProcessSpec {
    pub(crate) program: PathBuf,
    /// The whole environment.
    pub(crate) env: BTreeMap<String, String>,
}

/// A started process. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Running {
    group: KillOnDrop,
    exit: oneshot::Receiver<io::Result<ExitStatus>>,
    logs: Vec<JoinHandle<()>>,
    last: Arc<Mutex<LastLines>>,
}

/// What the thread of a process returns once the process runs.
struct Started {
    group: KillOnDrop,
    stdout: Option<std::process::ChildStdout>,
    stderr: Option<std::process::ChildStderr>,
    exit: oneshot::Receiver<io::Result<ExitStatus>>,
}

/// Starts a process; its output goes to `log` under the name `function`. Must be called within a tokio runtime.
pub(crate) async fn spawn(spec: ProcessSpec, function: &str, log: &LogSink) -> io::Result<Running> {
    let (reply, started) = oneshot::channel();
    std::thread::Builder::new().name("lambda-process".to_owned()).spawn(move || run_thread(&spec, reply))?;
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
    /// Waits for the end and returns the status, once. The future may be dropped and made again.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        (&mut self.exit).await.unwrap_or_else(|_| Err(thread_is_gone()))
    }

    /// Kills the process and its descendants at once.
    pub(crate) fn kill(&self) {
        self.group.0.signal(Signal::SIGKILL);
    }

    /// Asks the process to end, kills it if it is still there after `grace`, and waits for the end.
    pub(crate) async fn terminate(&mut self, grace: Duration) -> io::Result<ExitStatus> {
        self.group.0.signal(Signal::SIGTERM);
        match tokio::time::timeout(grace, self.wait()).await {
            Ok(status) => status,
            Err(_) => {
                self.kill();
                self.wait().await
            }
        }
    }

    /// The last line of an ended process: of its standard error, or else of its standard output.
    pub(crate) async fn last_line(self) -> Option<String> {
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
    io::Error::other("the thread that watches the process is gone")
}

/// The thread of a process.
fn run_thread(spec: &ProcessSpec, reply: oneshot::Sender<io::Result<Started>>) {
    let mut child = match start(spec) {
        Ok(child) => child,
        Err(error) => {
            let _ = reply.send(Err(error));
            return;
        }
    };
    let group = Arc::new(Group(Mutex::new(i32::try_from(child.id()).ok().map(Pid::from_raw))));
    let (ended, exit) = oneshot::channel();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    // If the receiver is gone, the process is dropped here, and so killed.
    drop(reply.send(Ok(Started { group: KillOnDrop(Arc::clone(&group)), stdout, stderr, exit })));
    let status = child.wait();
    group.close();
    let _ = ended.send(status);
}

fn start(spec: &ProcessSpec) -> io::Result<Child> {
    // This is checked here, because the wrapper would report a missing program only in a log line.
    if !spec.program.exists() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "no such file exists"));
    }
    let mut command = match death_signal_wrapper() {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(&spec.program);
            command
        }
        None => Command::new(&spec.program),
    };
    command
        .env_clear()
        .envs(&spec.env)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

/// The path of a `setpriv` that can set a parent death signal, if this machine has one.
pub fn death_signal_wrapper() -> Option<&'static str> {
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

/// A process group. `None` once its leader has been waited for, because then the number may belong to another group.
#[derive(Debug)]
struct Group(Mutex<Option<Pid>>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = *self.lock() {
            // An error means that the group has ended by itself.
            let _ = killpg(group, signal);
        }
    }

    /// Ends the processes that an ended leader left behind. While one of them lives, no other group can get the number.
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
struct KillOnDrop(Arc<Group>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        self.0.signal(Signal::SIGKILL);
    }
}

/// The last line with text, of each stream.
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

/// Passes lines on until the pipe closes; `note` gets the lines with text.
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
                // Rust prints this hint below every panic: it is never the reason.
                if !text.trim().is_empty() && !text.starts_with("note: run with `RUST_BACKTRACE=") {
                    note(text.to_owned());
                }
            }
        }
    }
}
