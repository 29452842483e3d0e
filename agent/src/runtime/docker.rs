//! Commands as containers, through the docker command.
//!
//! Guarantees: a container is named after its alloc and labelled with its node id; it gets the same directories
//! and variables as a process would; nothing that a job says is read as an option of docker.
//! Does not: pull, build or clean images, or speak to the daemon itself.

use crate::runtime::interface::{
    CommandSpec, Container, Environment, Invocation, IoFuture, LaunchError, Runtime, StopRequest,
};
use model::spec::is_image_reference;
use nix::unistd::User;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// The label that holds the node id.
const LABEL: &str = "nodekeeper.node-id";

/// The longest wait for one answer of the daemon.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Docker's own exit code when it could not run the container.
const DOCKER_FAILED: i32 = 125;

/// Runs a command in a container.
#[derive(Clone, Copy, Debug)]
pub(super) struct DockerRuntime;

impl Runtime for DockerRuntime {
    fn name(&self) -> &'static str {
        "docker"
    }

    fn help(&self) -> &'static str {
        "As containers, through the docker command"
    }

    /// No variables: the image has its own.
    fn base_environment(&self, _agent_env: &Environment, _user: Option<&User>) -> Environment {
        Environment::new()
    }

    fn cache_path(&self, name: &str, _on_node: &Path) -> PathBuf {
        Path::new("/caches").join(name)
    }

    fn invocation(&self, spec: &CommandSpec<'_>) -> Result<Invocation, LaunchError> {
        let image = spec.order.image.as_deref().ok_or(LaunchError::NoImage)?;
        if !is_image_reference(image) {
            return Err(LaunchError::InvalidImage(image.to_owned()));
        }
        let args = self.run_args(spec, image);
        // The job's environment is the container's, not the docker command's.
        Ok(Invocation { program: "docker".into(), args, env: spec.agent_env.clone(), stdin: Stdio::null() })
    }

    fn begin_stop(&self, request: StopRequest) {
        tokio::spawn(stop(request.alloc_id.to_string(), request.kill_timeout_s));
    }

    /// The wait for the docker command to answer, and 5 s more.
    fn stop_grace(&self) -> Duration {
        TIMEOUT + Duration::from_secs(5)
    }

    fn end_grace(&self) -> Duration {
        2 * TIMEOUT
    }

    fn enforces_memory_limit(&self) -> bool {
        true
    }

    fn explain_exit_code(&self, code: i32) -> Option<&'static str> {
        (code == DOCKER_FAILED).then_some("docker could not run the container: see the output")
    }

    fn remove<'a>(&'a self, name: &'a str) -> IoFuture<'a, ()> {
        Box::pin(async move {
            match docker(&["rm", "--force", "--volumes", name], TIMEOUT).await {
                Err(e) if e.to_string().to_ascii_lowercase().contains("no such container") => Ok(()),
                other => other.map(drop),
            }
        })
    }

    fn list(&self) -> IoFuture<'_, Vec<Container>> {
        Box::pin(async {
            let filter = format!("label={LABEL}");
            let format = format!("{{{{.Names}}}}\t{{{{.Label \"{LABEL}\"}}}}");
            let out = docker(&["ps", "--all", "--no-trunc", "--filter", &filter, "--format", &format], TIMEOUT).await?;
            let rows = out.lines().filter_map(|line| line.split_once('\t'));
            Ok(rows.map(|(name, label)| Container { name: name.to_owned(), label: label.to_owned() }).collect())
        })
    }
}

impl DockerRuntime {
    /// The arguments after `docker`.
    fn run_args(&self, spec: &CommandSpec<'_>, image: &str) -> Vec<String> {
        let order = spec.order;
        let mut options = vec![
            ("--name", order.alloc_id.to_string()),
            ("--label", format!("{LABEL}={}", spec.node_id)),
            ("--volume", format!("{}:/work", spec.work_dir.display())),
            ("--workdir", "/work".to_owned()),
        ];
        if order.memory_mib > 0 {
            options.push(("--memory", format!("{}m", order.memory_mib)));
        }
        options.extend(spec.user.map(|user| ("--user", format!("{}:{}", user.uid, user.gid))));
        for (name, path) in spec.caches {
            let mount = format!("{}:{}", path.display(), self.cache_path(name, path).display());
            options.push(("--volume", mount));
        }
        options.extend(spec.env.iter().map(|(name, value)| ("--env", format!("{name}={value}"))));

        let mut args = vec!["run".to_owned(), "--init".to_owned()];
        args.extend(options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
        // Docker reads no options after this.
        args.push("--".to_owned());
        args.push(image.to_owned());
        args.extend(order.command.iter().cloned());
        args
    }
}

/// Stops a container: TERM, then KILL after `kill_timeout_s`. If docker fails, the supervisor kills the command.
async fn stop(name: String, kill_timeout_s: u64) -> io::Result<()> {
    let timeout = TIMEOUT + Duration::from_secs(kill_timeout_s);
    docker(&["stop", "--time", &kill_timeout_s.to_string(), &name], timeout).await.map(drop)
}

async fn docker(args: &[&str], timeout: Duration) -> io::Result<String> {
    let mut command = Command::new("docker");
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let verb = args.first().copied().unwrap_or_default();
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("docker {verb} did not end in {timeout:?}"));
    let out = tokio::time::timeout(timeout, command.output()).await.map_err(late)??;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&out.stderr);
    Err(io::Error::other(format!("docker {verb} failed ({}): {}", out.status, stderr.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{node_id, order};
    use model::wire::AllocOrder;

    fn invocation(order: &AllocOrder, env: &Environment) -> Result<Invocation, LaunchError> {
        let caches = [("m2-repo".to_owned(), PathBuf::from("/data/caches/m2-repo"))];
        let agent_env = Environment::from([("PATH".to_owned(), "/bin".to_owned())]);
        DockerRuntime.invocation(&CommandSpec {
            node_id: node_id(),
            order,
            work_dir: Path::new("/a/work"),
            caches: &caches,
            env,
            user: None,
            agent_env: &agent_env,
            agent_program: Path::new("/agent"),
        })
    }

    #[test]
    fn a_container_gets_its_options_before_the_image_and_its_command_after_it() {
        let mut order = order(0, 1);
        (order.image, order.memory_mib) = (Some("busybox".into()), 64);
        let env = Environment::from([("LD_PRELOAD".to_owned(), "/x.so".to_owned())]);
        let invocation = invocation(&order, &env).unwrap();
        assert!(!invocation.env.contains_key("LD_PRELOAD"), "the variable is the container's, not docker's");
        let args = invocation.args.join(" ");
        for want in [
            format!("--label {LABEL}={}", node_id()),
            "--memory 64m".to_owned(),
            "--volume /a/work:/work".to_owned(),
            "--volume /data/caches/m2-repo:/caches/m2-repo".to_owned(),
            "--env LD_PRELOAD=/x.so".to_owned(),
        ] {
            assert!(args.contains(&want), "{want} in {args}");
        }
        assert!(args.ends_with(" -- busybox true"), "{args}");
    }

    #[test]
    fn an_option_in_place_of_an_image_is_refused() {
        for bad in ["--privileged", "--volume=/:/host", ""] {
            let order = AllocOrder { image: Some(bad.into()), ..order(0, 1) };
            let error = invocation(&order, &Environment::new()).unwrap_err();
            assert!(matches!(&error, LaunchError::InvalidImage(image) if image == bad), "{error}");
        }
        let error = invocation(&order(0, 1), &Environment::new()).unwrap_err();
        assert!(matches!(error, LaunchError::NoImage), "{error}");
    }
}
