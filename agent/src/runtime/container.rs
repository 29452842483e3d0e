//! Commands in containers, through the command of docker or of podman.
//!
//! The two take the same arguments; what each does in its own way stands where it does it.
//! Guarantees: a container is named after its alloc and labelled with its node id; it gets the same directories, variables and
//! standard input as a process would; nothing that a job says is read as an option; no value of a variable is on a command
//! line, where every user of the machine could read it. A container whose alloc has a user runs as that user of the machine,
//! without capabilities, and never gets new privileges.
//! Does not: build images, decide which are pulled or removed (`image` does), or speak to a daemon itself.

use super::interface::{
    CommandSpec, ContainerRuntime, FirstProcess, HOSTS_FILE, Invocation, OTHER_RUNTIME, Process, ProcessEnv,
    not_passed_on, rejected,
};
use crate::machine::memory_file::{as_stdin_bytes, inherited};
use crate::rights::{SECRETS_DIR, TOKEN_FILE};
use model::container_env::{Passing, passing};
use model::image::is_image_reference;
use model::wire::AllocOrder;
use model::{AllocId, EndCause, Signal};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// The directory in a container with the files that the agent makes for the command.
pub(crate) const ALLOC_PATH: &str = "/run/nodekeeper";
/// The names of these files. An alloc need not have all of them.
const FOR_COMMAND: [&str; 3] = [TOKEN_FILE, SECRETS_DIR, HOSTS_FILE];
/// The directory of the alloc, in the container.
pub(crate) const WORK_DIR: &str = "/work";
/// The directory of the caches, in the container.
pub(crate) const CACHES: &str = "/caches";

/// The label that tells people which node a container is of.
const LABEL: &str = "nodekeeper.node-id";

/// The share of one vCPU when the machine is busy: docker's default for a container.
const SHARES_PER_VCPU: u64 = 1024;

/// The longest wait for one answer, and for the client to end after everything in its container was killed.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// The longest time that a pull may take.
const PULL_TIMEOUT: Duration = Duration::from_secs(3600);

/// The client's own exit code when it could not run the container.
const CLIENT_FAILED: i32 = 125;
/// The exit codes if the program of the command cannot be run, or is not in the image.
const CANNOT_RUN: i32 = 126;
const NO_PROGRAM: i32 = 127;

impl ContainerRuntime {
    /// In the order in which an agent looks for them.
    pub const ALL: [Self; 2] = [Self::Docker, Self::Podman];

    pub const fn program(self) -> &'static str {
        match self {
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }

    /// Tries whether it works on this machine. A list needs the daemon of docker, and the storage of podman.
    pub async fn try_out(self) -> io::Result<()> {
        self.call(&["ps", "--quiet"]).await.map(drop)
    }

    /// The names of this image in registries, with digests (`NAME@DIGEST`); there may be none. An error if the machine does not
    /// have the image.
    pub async fn digests(self, image: &str) -> io::Result<Vec<String>> {
        // podman shows the digest of the image's own manifest too. It is left out if a registry gave the image another one: that of the
        // list of the image for all architectures.
        let own = if self == Self::Podman { "{{.Digest}}" } else { "" };
        let format = format!("{own}\n{{{{range .RepoDigests}}}}{{{{println .}}}}{{{{end}}}}");
        let out = self.call(&["image", "inspect", "--format", &format, "--", image]).await?;
        let mut lines = out.lines().map(str::trim);
        let own = lines.next().unwrap_or_default().to_owned();
        let (all, lists): (Vec<_>, Vec<_>) = lines
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .partition(|line| !own.is_empty() && line.ends_with(&own));
        Ok(if lists.is_empty() { all } else { lists })
    }

    /// The id of this image. An error if the machine does not have it.
    pub async fn image_id(self, image: &str) -> io::Result<String> {
        self.call(&["image", "inspect", "--format", "{{.Id}}", "--", image]).await.map(|id| bare(&id))
    }

    /// The ids of all images of the machine.
    pub async fn image_ids(self) -> io::Result<BTreeSet<String>> {
        let out = self.call(&["image", "ls", "--all", "--quiet", "--no-trunc"]).await?;
        Ok(out.lines().map(bare).collect())
    }

    /// Pulls this image. `login` is a directory with docker's `config.json`.
    pub async fn pull(self, image: &str, login: Option<&Path>) -> io::Result<()> {
        let pull = || "pull".to_owned();
        let mut args = match (self, login) {
            (_, None) => vec![pull()],
            (Self::Docker, Some(login)) => vec!["--config".to_owned(), login.display().to_string(), pull()],
            (Self::Podman, Some(login)) => {
                vec![pull(), "--authfile".to_owned(), login.join("config.json").display().to_string()]
            }
        };
        args.extend(["--quiet".to_owned(), "--".to_owned(), image.to_owned()]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        call(self.program(), &args, PULL_TIMEOUT).await.map(drop)
    }

    /// Removes this name of an image that no container uses, and the image with its last name.
    pub async fn remove_image(self, image: &str) -> io::Result<()> {
        self.call(&["image", "rm", "--", image]).await.map(drop)
    }

    /// How this command is started, or why it cannot be.
    pub fn invocation(self, spec: &CommandSpec<'_>) -> Result<Invocation, EndCause> {
        let image = spec.image.ok_or_else(|| rejected(OTHER_RUNTIME))?;
        if !is_image_reference(image) {
            return Err(rejected(format!(
                "{image:?} is not an image reference: it must begin with a letter or a digit, and have only letters, \
                 digits and . _ / : @ - after it"
            )));
        }
        let variables = Variables::new(spec.env)?;
        let file = inherited(variables.file.as_bytes()).map_err(not_passed_on)?;
        let args = self.run_args(spec, image, &variables, &format!("/proc/self/fd/{}", file.as_raw_fd()));
        let stdin = spec.input.map_or(Ok(Stdio::null()), as_stdin_bytes).map_err(not_passed_on)?;
        let (program, process) = (self.program().into(), Process::Client(self, file));
        Ok(Invocation { program, args, env: variables.by_name, stdin, process })
    }

    /// Sends a signal to the first process of the container of an alloc, and returns at once. Sends CONT behind it: a stopped process
    /// takes a signal only when it goes on. The order in which they arrive does not matter.
    pub fn notify(self, alloc: AllocId, signal: Signal) {
        for signal in [signal, Signal::CONT] {
            tokio::spawn(async move {
                self.call(&["kill", "--signal", &signal.to_string(), &alloc.to_string()]).await.map(drop)
            });
        }
    }

    /// What the exit code of the client means if it is not the command's own. `output` is the end of what was printed.
    /// `is_out_of_memory`: the kernel has killed one of its processes for its memory limit.
    pub async fn judge(self, order: &AllocOrder, code: i32, output: &str, is_out_of_memory: bool) -> Option<EndCause> {
        let name = order.alloc_id.to_string();
        let format = "{{.State.OOMKilled}} {{.State.ExitCode}} {{.State.StartedAt}}";
        // Without an answer the container counts as one that was never started.
        let state = self.call(&["inspect", "--format", format, &name]).await.unwrap_or_default();
        let mut words = state.split_whitespace();
        // podman does not know it of groups of version 1, and the agent does not know it if it saw no group.
        let is_out_of_memory = words.next() == Some("true") || is_out_of_memory;
        let own_code = words.next().and_then(|code| code.parse().ok());
        let is_started = words.next().is_some_and(|at| at.starts_with("20"));
        self.judged(order, code, output, own_code.filter(|_| is_started), is_out_of_memory)
    }

    /// Removes the container with this name, running or not. Succeeds if there is no such container.
    pub async fn remove(self, name: &str) -> io::Result<()> {
        match self.call(&["rm", "--force", "--volumes", name]).await {
            Err(e) if e.to_string().to_ascii_lowercase().contains("no such container") => Ok(()),
            // The program of the runtime was removed from the machine.
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map(drop),
        }
    }

    /// The arguments that run this command in the container of an alloc, with this variable more. The container has the user, the
    /// rights and the variables. Its runtime gives them to the command.
    pub fn inside(alloc: AllocId, is_terminal: bool, more: &str, command: &[String]) -> Vec<String> {
        let options = if is_terminal { &["exec", "--interactive", "--tty"][..] } else { &["exec", "--interactive"] };
        let more = ["--env".to_owned(), more.to_owned(), alloc.to_string()];
        options.iter().map(|&option| option.to_owned()).chain(more).chain(command.iter().cloned()).collect()
    }

    /// The first process of the container of an alloc; `None` if it does not run (yet).
    pub async fn first_process(self, alloc: AllocId) -> io::Result<Option<FirstProcess>> {
        let said = self.call(&["inspect", "--format", "{{.Id}} {{.State.Pid}}", &alloc.to_string()]).await?;
        let found = said.trim().split_once(' ');
        let found = found.and_then(|(id, pid)| Some((id.to_owned(), pid.parse().ok().filter(|pid| *pid > 0)?)));
        Ok(found.map(|(container, pid)| FirstProcess { pid, container }))
    }

    async fn call(self, args: &[&str]) -> io::Result<String> {
        call(self.program(), args, TIMEOUT).await
    }

    /// The arguments after the program. `env_file` has the variables that fit into lines.
    fn run_args(self, spec: &CommandSpec<'_>, image: &str, variables: &Variables, env_file: &str) -> Vec<String> {
        let order = spec.order;
        let mut options = vec![
            ("--name", order.alloc_id.to_string()),
            ("--label", format!("{LABEL}={}", spec.node_id)),
            ("--volume", format!("{}/work:{WORK_DIR}", spec.alloc_dir.display())),
            ("--workdir", WORK_DIR.to_owned()),
            // As a process does, the container reaches the other members of its job, and the agent for its credentials.
            ("--network", "host".to_owned()),
            // Its user ids are the machine's, because the rule that keeps jobs from the metadata is about them.
            ("--userns", "host".to_owned()),
            ("--env-file", env_file.to_owned()),
            // The image was pulled before, with the login of the job.
            ("--pull", "never".to_owned()),
        ];
        if order.needs.memory_mib > 0 {
            options.push(("--memory", format!("{}m", order.needs.memory_mib)));
            // Files in `/dev/shm` count as memory. With the usual 64 MiB, programs that share memory fail.
            options.push(("--shm-size", format!("{}m", order.needs.memory_mib)));
        } else if let Some(mib) = half_of_memory_mib() {
            options.push(("--shm-size", format!("{mib}m")));
        }
        if let Some(isolation) = spec.isolation {
            options.push(("--user", format!("{0}:{0}", isolation.uid)));
            options.push(("--cap-drop", "ALL".to_owned()));
            options.push(("--security-opt", "no-new-privileges".to_owned()));
            options.push(("--pids-limit", isolation.max_tasks.to_string()));
            options.push(("--cpu-shares", u64::from(order.needs.vcpus).saturating_mul(SHARES_PER_VCPU).to_string()));
        }
        for name in FOR_COMMAND {
            let path = spec.alloc_dir.join(name);
            if path.exists() {
                options.push(("--volume", format!("{}:{ALLOC_PATH}/{name}:ro", path.display())));
            }
        }
        for (name, path) in spec.caches {
            options.push(("--volume", format!("{}:{CACHES}/{name}", path.display())));
        }
        options.extend(variables.by_name.keys().map(|name| ("--env", name.clone())));

        let mut args = ["run", "--init"].map(str::to_owned).to_vec();
        if self == Self::Podman {
            // Otherwise a container would get the proxies of the agent's environment.
            args.push("--http-proxy=false".to_owned());
        }
        if spec.input.is_some() {
            args.push("--interactive".to_owned());
        }
        args.extend(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
        args.extend(self.gpus(spec.gpus));
        args.extend(order.work.entrypoint.iter().flat_map(|program| ["--entrypoint".to_owned(), program.clone()]));
        // No options are read after this.
        args.push("--".to_owned());
        args.push(image.to_owned());
        args.extend(order.work.command.iter().cloned());
        args
    }

    /// The options of `run` that give a container these GPUs, and no others.
    fn gpus(self, uuids: &[String]) -> Vec<String> {
        match self {
            Self::Docker if uuids.is_empty() => Vec::new(),
            // Docker splits the value at its commas, except within quotes.
            Self::Docker => vec!["--gpus".to_owned(), format!("\"device={}\"", uuids.join(","))],
            // The names that NVIDIA's container toolkit gives to GPUs.
            Self::Podman => {
                uuids.iter().flat_map(|uuid| ["--device".to_owned(), format!("nvidia.com/gpu={uuid}")]).collect()
            }
        }
    }

    /// What the exit code of `run` means if it is not the command's own. It is not 0: a command that succeeds has succeeded.
    /// `own_code` is that of the container, as the runtime noted it; `None` if it was never started.
    fn judged(
        self,
        order: &AllocOrder,
        code: i32,
        output: &str,
        own_code: Option<i32>,
        is_out_of_memory: bool,
    ) -> Option<EndCause> {
        let entrypoint = order.work.entrypoint.as_ref().filter(|program| !program.is_empty());
        let program = entrypoint.or(order.work.command.first()).cloned().unwrap_or_default();
        let own = format!("{}:", self.program());
        let said = output.lines().rev().find(|line| line.starts_with(&own) || line.starts_with("Error"));
        let line = said.or_else(|| output.lines().next_back()).unwrap_or("it gave no reason").trim();
        if let Some(own_code) = own_code {
            let allowed_mib = order.needs.memory_mib;
            let is_over = allowed_mib > 0 && is_out_of_memory;
            let over = is_over.then_some(EndCause::OverMemory { allowed_mib, used_mib: None });
            let is_lost = (CLIENT_FAILED..=NO_PROGRAM).contains(&code) && code != own_code;
            let lost = || EndCause::Lost { why: format!("{} lost the container: {line}", self.program()) };
            return over.or_else(|| init_failed(program, output)).or_else(|| is_lost.then(lost));
        }
        let why = format!("{} could not run the container: {line}", self.program());
        let lower = line.to_ascii_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        match code {
            // The job asks for limits that no machine gives, or that leave nothing for a container.
            CLIENT_FAILED if has(&["memory limit"]) => Some(EndCause::Rejected { why }),
            CLIENT_FAILED => Some(EndCause::NotStarted { why }),
            NO_PROGRAM if has(&["executable file", "no such file"]) => Some(EndCause::NotFound { program }),
            CANNOT_RUN if has(&["exec: ", "executable"]) => Some(EndCause::NotExecutable { program }),
            NO_PROGRAM | CANNOT_RUN if said.is_some() => Some(EndCause::NotStarted { why }),
            _ => None,
        }
    }
}

/// The variables of a container, as they reach the client.
#[derive(Debug, Default)]
struct Variables {
    /// A line for each variable that fits into one.
    file: String,
    /// The other variables. The client takes them from its own environment, by name.
    by_name: ProcessEnv,
}

impl Variables {
    fn new(env: &ProcessEnv) -> Result<Self, EndCause> {
        let mut variables = Self::default();
        for (name, value) in env {
            match passing(name, value) {
                Passing::Line => variables.file.push_str(&format!("{name}={value}\n")),
                Passing::ByName => _ = variables.by_name.insert(name.clone(), value.clone()),
                Passing::Impossible => {
                    return Err(rejected(format!(
                        "cannot pass on the variable {name}: docker and podman take values of several lines only from \
                         their own environment, where this name has another meaning; rename the variable, or encode \
                         its value"
                    )));
                }
            }
        }
        Ok(variables)
    }
}

/// The cause, if the first process of a container could not start the command. tini (docker) and catatonit (podman) are started in
/// every container. So a container that has started does not prove that the program has.
fn init_failed(program: String, output: &str) -> Option<EndCause> {
    let line = output.lines().next_back()?;
    let says = line.starts_with("[FATAL tini") || line.starts_with("ERROR (catatonit");
    let absent = line.ends_with("No such file or directory");
    (says && line.contains("exec")).then_some(if absent {
        EndCause::NotFound { program }
    } else {
        EndCause::NotExecutable { program }
    })
}

/// The id of an image, of which docker and podman leave out `sha256:` in different places.
fn bare(id: &str) -> String {
    id.trim().trim_start_matches("sha256:").to_owned()
}

/// Half of the memory of this machine: the kernel's default for the size of `/dev/shm`.
fn half_of_memory_mib() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib >> 11)
}

async fn call(program: &str, args: &[&str], timeout: Duration) -> io::Result<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let verb = args.first().copied().unwrap_or_default();
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("{program} {verb} did not end in {timeout:?}"));
    let out = tokio::time::timeout(timeout, command.output()).await.map_err(late)??;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&out.stderr);
    Err(io::Error::other(format!("{program} {verb} failed ({}): {}", out.status, stderr.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolation::TaskIsolation;
    use crate::protocol::testing::{node_id, order};
    use std::path::PathBuf;

    fn invocation(order: &AllocOrder, env: &ProcessEnv) -> Result<Invocation, EndCause> {
        with_gpus(order, &[], env)
    }

    fn with_gpus(order: &AllocOrder, gpus: &[String], env: &ProcessEnv) -> Result<Invocation, EndCause> {
        of(ContainerRuntime::Docker, order, gpus, env)
    }

    fn of(
        runtime: ContainerRuntime,
        order: &AllocOrder,
        gpus: &[String],
        env: &ProcessEnv,
    ) -> Result<Invocation, EndCause> {
        let caches = [("m2-repo".to_owned(), PathBuf::from("/data/caches/m2-repo"))];
        let agent_env = ProcessEnv::from([("PATH".to_owned(), "/bin".to_owned())]);
        let (uid, reaper, closed) = (20_000, 30_000, Vec::new());
        let isolation = TaskIsolation { uid, reaper, max_tasks: 99, private_mounts: true, closed, cgroup: None };
        runtime.invocation(&CommandSpec {
            alloc_dir: Path::new("/d/allocs/a"),
            image: order.work.image.as_deref(),
            node_id: node_id(),
            order,
            caches: &caches,
            gpus,
            env,
            input: None,
            isolation: Some(&isolation),
            agent_env: &agent_env,
            agent_program: Path::new("/agent"),
        })
    }

    #[test]
    fn a_container_gets_its_options_before_the_image_and_its_command_after_it() {
        let mut order = order(0, 1);
        (order.work.image, order.needs.memory_mib) = (Some("busybox".into()), 64);
        let env = ProcessEnv::from([("LD_PRELOAD".to_owned(), "/x.so".to_owned())]);
        let invocation = invocation(&order, &env).unwrap();
        assert!(invocation.env.is_empty(), "the variable is the container's, not docker's");
        let args = invocation.args.join(" ");
        for want in [
            format!("--label {LABEL}={}", node_id()),
            "--memory 64m --shm-size 64m".to_owned(),
            "--volume /d/allocs/a/work:/work".to_owned(),
            "--volume /data/caches/m2-repo:/caches/m2-repo".to_owned(),
            "--user 20000:20000 --cap-drop ALL --security-opt no-new-privileges".to_owned(),
            "--pids-limit 99 --cpu-shares 1024".to_owned(),
            "--env-file /proc/self/fd/".to_owned(),
        ] {
            assert!(args.contains(&want), "{want} in {args}");
        }
        assert!(!args.contains("--entrypoint"), "{args}");
        for entrypoint in ["/bin/sh", "", "--privileged"] {
            let work = model::Work { entrypoint: Some(entrypoint.into()), ..order.work.clone() };
            let order = AllocOrder { work, ..order.clone() };
            let args = of(ContainerRuntime::Docker, &order, &[], &env).unwrap().args;
            let at = args.iter().position(|arg| arg == "--entrypoint").unwrap();
            assert_eq!(args[at + 1..], [entrypoint, "--", "busybox", "true"]);
        }
        assert!(args.ends_with(" -- busybox true"), "{args}");
        assert!(!args.contains("/x.so"), "the values of variables are on no command line: {args}");
    }

    #[test]
    fn a_variable_reaches_the_container_by_a_file_or_by_its_name_and_never_the_docker_command_itself() {
        let pairs = [("KEY", "a\nb"), ("ONE", "#x = y "), ("SSH_PRIVATE_KEY", "a\nb"), ("LD_PRELOAD", "/x.so")];
        let env: ProcessEnv = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let variables = Variables::new(&env).unwrap();
        assert_eq!(variables.file, "LD_PRELOAD=/x.so\nONE=#x = y \n");
        assert_eq!(variables.by_name.into_keys().collect::<Vec<_>>(), ["KEY", "SSH_PRIVATE_KEY"]);
        let env = ProcessEnv::from([("LD_PRELOAD".to_owned(), "/x.so\n".to_owned())]);
        let error = Variables::new(&env).unwrap_err();
        let says = error.to_string();
        assert!(matches!(error, EndCause::Rejected { .. }) && says.contains("variable LD_PRELOAD"), "{says}");
    }

    #[test]
    fn a_container_gets_exactly_the_gpus_of_its_alloc_from_either_runtime() {
        let order = AllocOrder { work: model::Work { image: Some("cuda".into()), ..order(0, 1).work }, ..order(0, 1) };
        for (runtime, gpus, want) in [
            (ContainerRuntime::Docker, &[][..], None),
            (ContainerRuntime::Podman, &[], None),
            (ContainerRuntime::Docker, &["GPU-a"], Some("--gpus \"device=GPU-a\" -- cuda")),
            (ContainerRuntime::Docker, &["GPU-a", "GPU-b"], Some("--gpus \"device=GPU-a,GPU-b\" -- cuda")),
            (
                ContainerRuntime::Podman,
                &["GPU-a", "GPU-b"],
                Some("--device nvidia.com/gpu=GPU-a --device nvidia.com/gpu=GPU-b -- cuda"),
            ),
        ] {
            let gpus: Vec<String> = gpus.iter().map(|uuid| (*uuid).to_owned()).collect();
            let args = of(runtime, &order, &gpus, &ProcessEnv::new()).unwrap().args.join(" ");
            match want {
                Some(want) => assert!(args.contains(want), "{args}"),
                None => assert!(!args.contains("gpu"), "{args}"),
            }
        }
    }

    #[test]
    fn an_exit_code_of_the_client_itself_is_told_from_that_of_the_command() {
        let order = AllocOrder {
            needs: model::Needs { memory_mib: 64, ..order(0, 1).needs },
            work: model::Work { command: vec!["x".into()], ..order(0, 1).work },
            ..order(0, 1)
        };
        let kind = |code, output: &str, own_code, is_out_of_memory| {
            let client = if output.starts_with("Error") { ContainerRuntime::Podman } else { ContainerRuntime::Docker };
            let cause = client.judged(&order, code, output, own_code, is_out_of_memory);
            cause.map(|cause| serde_json::to_value(cause).unwrap()["kind"].as_str().unwrap().to_owned())
        };
        let own = |code, output: &str| kind(code, output, None, false);
        for (output, want) in [
            ("docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "not_started"),
            ("pulling\ndocker: no space left on device.\nSee 'docker run --help'.", "not_started"),
            ("", "not_started"),
            ("Error: crun: cannot open cgroup", "not_started"),
            ("docker: Error response from daemon: Minimum memory limit allowed is 6MB.", "rejected"),
            ("Error: OCI runtime error: runc: unable to set memory limit to 1048576 (current usage: 2)", "rejected"),
            ("docker: Error response from daemon: error setting rlimit type 7: operation not permitted", "not_started"),
        ] {
            assert_eq!(own(125, output).as_deref(), Some(want), "{output}");
        }
        let oci = "docker: Error response from daemon: OCI runtime create failed: exec: \"x\": ";
        assert_eq!(own(127, &format!("{oci}executable file not found in $PATH")).as_deref(), Some("not_found"));
        assert_eq!(own(126, &format!("{oci}permission denied")).as_deref(), Some("not_executable"));
        let oci = "Error: runc: runc create failed: unable to start container process: ";
        for (code, says, want) in [
            (127, "exec: \"x\": executable file not found in $PATH: OCI runtime attempted to", "not_found"),
            (126, "exec: \"/etc\": permission denied: OCI permission denied", "not_executable"),
            (126, "error setting rlimit type 6: operation not permitted: OCI permission denied", "not_started"),
        ] {
            assert_eq!(own(code, &format!("{oci}{says}")).as_deref(), Some(want), "{says}");
        }
        for (says, want) in [
            ("[FATAL tini (7)] exec x failed: No such file or directory", Some("not_found")),
            ("ERROR (catatonit:2): failed to exec pid1: No such file or directory", Some("not_found")),
            ("ERROR (catatonit:2): failed to exec pid1: Permission denied", Some("not_executable")),
            ("x: No such file or directory", None),
        ] {
            assert_eq!(kind(1, &format!("before\n{says}\n"), Some(1), false).as_deref(), want, "{says}");
        }
        assert_eq!(own(127, "sh: x: not found"), None, "the command's own, if the container cannot be asked");
        for code in [1, 125, 126, 127, 137] {
            assert_eq!(kind(code, "docker: permission denied", Some(code), false), None, "{code} is the command's own");
        }
        assert_eq!(kind(127, "no such exit code", Some(0), false).as_deref(), Some("lost"), "its monitor was killed");
        for code in [1, 137] {
            assert_eq!(
                kind(code, "", Some(code), true).as_deref(),
                Some("over_memory"),
                "whichever process was killed: {code}"
            );
        }
    }

    #[test]
    fn an_option_in_place_of_an_image_is_refused() {
        for bad in ["--privileged", "--volume=/:/host", ""] {
            let order = AllocOrder { work: model::Work { image: Some(bad.into()), ..order(0, 1).work }, ..order(0, 1) };
            let error = invocation(&order, &ProcessEnv::new()).err().unwrap();
            let says = error.to_string();
            let begins = format!("{bad:?} is not an image reference");
            assert!(matches!(error, EndCause::Rejected { .. }) && says.starts_with(&begins), "{says}");
        }
        let error = invocation(&order(0, 1), &ProcessEnv::new()).err().unwrap();
        assert_eq!(error, rejected(OTHER_RUNTIME));
    }
}
