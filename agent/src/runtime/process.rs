//! Commands as process groups of this machine.
//!
//! Guarantees: a command that runs as another user gets the job's environment only after the agent's rights are
//! given up (`isolation::helper`).
//! Does not: choose the user, or the restrictions.

use super::interface::{CommandSpec, Invocation, OTHER_RUNTIME, Process, ProcessEnv, Runtime, not_passed_on, rejected};
use crate::elements::run::ElementsStart;
use crate::isolation::JobUser;
use crate::isolation::helper::{JobStart, start_as};
use crate::machine::memory_file::as_stdin_bytes;
use crate::work::job_command::JobCommand;
use model::EndCause;
use std::path::{Path, PathBuf};
use std::process::Stdio;

#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessRuntime;

impl Runtime for ProcessRuntime {
    fn name(&self) -> &'static str {
        "process"
    }

    fn base_environment(&self, agent_env: &ProcessEnv, user: Option<&JobUser>, work_dir: &Path) -> ProcessEnv {
        let mut env = agent_env.clone();
        if let Some(user) = user {
            let home = user.home.as_deref().unwrap_or(work_dir);
            env.insert("HOME".into(), home.display().to_string());
            env.insert("USER".into(), user.name.clone());
            env.insert("LOGNAME".into(), user.name.clone());
        }
        env
    }

    fn cache_path(&self, _name: &str, on_node: &Path) -> PathBuf {
        on_node.to_owned()
    }

    fn invocation(&self, spec: &CommandSpec<'_>) -> Result<Invocation, EndCause> {
        if spec.order.work.image.is_some() {
            return Err(rejected(OTHER_RUNTIME));
        }
        let command = &spec.order.work.command;
        let (program, args) = command.split_first().ok_or_else(|| rejected("the command is empty"))?;
        let elements = ElementsStart::of(spec.order);
        // The helper also runs elements, and sets limits.
        let needs_helper = elements.is_some() || !spec.order.work.ulimits.is_empty();
        let own = needs_helper.then(JobUser::of_this_process);
        let Some(user) = spec.user.or(own.as_ref()) else {
            let (program, args) = (PathBuf::from(program), args.to_vec());
            let stdin = spec.input.map_or(Ok(Stdio::null()), as_stdin_bytes).map_err(not_passed_on)?;
            return Ok(Invocation { program, args, env: spec.env.clone(), stdin, process: Process::Command });
        };
        let (ulimits, input) = (spec.order.work.ulimits.clone(), spec.input.map(<[u8]>::to_vec));
        let command = JobCommand { words: command.clone(), env: spec.env.clone(), input, ulimits };
        let start = JobStart { command, user: user.clone(), sandbox: spec.sandbox.cloned(), elements };
        let (stdin, verdict) = start_as(&start).map_err(not_passed_on)?;
        let (args, env) = (vec!["as-user".to_owned()], spec.agent_env.clone());
        Ok(Invocation { program: spec.agent_program.to_owned(), args, env, stdin, process: Process::Helper(verdict) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{node_id, order};
    use model::wire::AllocOrder;

    fn invocation(user: Option<&JobUser>) -> Invocation {
        invoke(&order(0, 1), user).unwrap()
    }

    fn invoke(order: &AllocOrder, user: Option<&JobUser>) -> Result<Invocation, EndCause> {
        let env = ProcessEnv::from([("LD_PRELOAD".to_owned(), "/x.so".to_owned())]);
        let agent_env = ProcessEnv::from([("PATH".to_owned(), "/bin".to_owned())]);
        let spec = CommandSpec {
            alloc_dir: Path::new("/a"),
            node_id: node_id(),
            order,
            image: None,
            work_dir: Path::new("/a/work"),
            caches: &[],
            gpus: &[],
            env: &env,
            input: None,
            user,
            sandbox: None,
            agent_env: &agent_env,
            agent_program: Path::new("/agent"),
        };
        ProcessRuntime.invocation(&spec)
    }

    #[test]
    fn the_helper_that_becomes_the_user_gets_no_variable_of_the_job() {
        let helper = invocation(Some(&JobUser::own(20_000)));
        assert_eq!((helper.program.as_path(), helper.args.join(" ").as_str()), (Path::new("/agent"), "as-user"));
        assert_eq!(helper.env.into_keys().collect::<Vec<_>>(), ["PATH"]);
    }

    #[test]
    fn without_a_user_the_command_is_started_directly_with_the_jobs_environment() {
        let command = invocation(None);
        assert_eq!((command.program.as_path(), command.args.len()), (Path::new("true"), 0));
        assert_eq!(command.env.into_keys().collect::<Vec<_>>(), ["LD_PRELOAD"]);
    }

    #[test]
    fn a_command_that_belongs_into_an_image_is_not_run_on_the_machine() {
        let order =
            AllocOrder { work: model::Work { image: Some("alpine".into()), ..order(0, 1).work }, ..order(0, 1) };
        for user in [None, Some(&JobUser::own(20_000))] {
            assert_eq!(invoke(&order, user).unwrap_err(), rejected(OTHER_RUNTIME));
        }
    }
}
