//! Commands as process groups of this machine.
//!
//! Guarantees: a command that runs as another user gets the job's environment only after the agent's rights are
//! given up (`as_user`).
//! Does not: isolate jobs from each other beyond users and process groups.

use crate::process_table;
use crate::runtime::as_user;
use crate::runtime::interface::{CommandSpec, Environment, Invocation, LaunchError, Runtime, StopRequest};
use nix::sys::signal::Signal;
use nix::unistd::User;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Runs a command directly on the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessRuntime;

impl Runtime for ProcessRuntime {
    fn name(&self) -> &'static str {
        "process"
    }

    fn help(&self) -> &'static str {
        "As process groups of this machine"
    }

    fn base_environment(&self, agent_env: &Environment, user: Option<&User>) -> Environment {
        let mut env = agent_env.clone();
        if let Some(user) = user {
            env.insert("HOME".into(), user.dir.display().to_string());
            env.insert("USER".into(), user.name.clone());
            env.insert("LOGNAME".into(), user.name.clone());
        }
        env
    }

    fn cache_path(&self, _name: &str, on_node: &Path) -> PathBuf {
        on_node.to_owned()
    }

    fn invocation(&self, spec: &CommandSpec<'_>) -> Result<Invocation, LaunchError> {
        let command = &spec.order.command;
        let (program, args) = command.split_first().ok_or(LaunchError::NoCommand)?;
        let Some(user) = spec.user else {
            let (program, args) = (PathBuf::from(program), args.to_vec());
            return Ok(Invocation { program, args, env: spec.env.clone(), stdin: Stdio::null() });
        };
        let stdin = as_user::environment_as_stdin(spec.env).map_err(LaunchError::PassEnvironment)?;
        let head = ["as-user", user.name.as_str(), "--"].map(str::to_owned);
        let args = head.into_iter().chain(command.iter().cloned()).collect();
        Ok(Invocation { program: spec.agent_program.to_owned(), args, env: spec.agent_env.clone(), stdin })
    }

    fn begin_stop(&self, request: StopRequest) {
        process_table::send_group(request.process_group, Signal::SIGTERM);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{node_id, order};

    fn invocation(user: Option<&User>) -> Invocation {
        let env = Environment::from([("LD_PRELOAD".to_owned(), "/x.so".to_owned())]);
        let agent_env = Environment::from([("PATH".to_owned(), "/bin".to_owned())]);
        let spec = CommandSpec {
            node_id: node_id(),
            order: &order(0, 1),
            work_dir: Path::new("/a/work"),
            caches: &[],
            env: &env,
            user,
            agent_env: &agent_env,
            agent_program: Path::new("/agent"),
        };
        ProcessRuntime.invocation(&spec).unwrap()
    }

    #[test]
    fn the_helper_that_becomes_the_user_gets_no_variable_of_the_job() {
        let user = User::from_uid(nix::unistd::getuid()).unwrap().unwrap();
        let helper = invocation(Some(&user));
        assert_eq!(
            (helper.program.as_path(), helper.args.join(" ")),
            (Path::new("/agent"), format!("as-user {} -- true", user.name))
        );
        assert_eq!(helper.env.into_keys().collect::<Vec<_>>(), ["PATH"]);
    }

    #[test]
    fn without_a_user_the_command_is_started_directly_with_the_jobs_environment() {
        let command = invocation(None);
        assert_eq!((command.program.as_path(), command.args.len()), (Path::new("true"), 0));
        assert_eq!(command.env.into_keys().collect::<Vec<_>>(), ["LD_PRELOAD"]);
    }
}
