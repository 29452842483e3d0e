//! Commands as process groups of this machine.
//!
//! Guarantees: a command gets the job's environment only after the rights that it must not have are given up (`isolation::helper`).
//! Does not: choose the user, or the restrictions.

use super::interface::{CommandSpec, Invocation, OTHER_RUNTIME, Process, ProcessEnv, not_passed_on, rejected};
use crate::elements::run::ElementsStart;
use crate::isolation::JOB_NAME;
use crate::isolation::helper::{JobStart, start_as};
use crate::work::job_command::JobCommand;
use model::EndCause;
use std::path::Path;

/// The variables that a command of this user has before the job's own are added.
pub(crate) fn base_environment(agent_env: &ProcessEnv, uid: Option<u32>, work_dir: &Path) -> ProcessEnv {
    let mut env = agent_env.clone();
    if uid.is_some() {
        env.insert("HOME".into(), work_dir.display().to_string());
        env.extend(["USER", "LOGNAME"].map(|name| (name.to_owned(), JOB_NAME.to_owned())));
    }
    env
}

/// How this command is started, or why it cannot be.
pub(crate) fn invocation(spec: &CommandSpec<'_>) -> Result<Invocation, EndCause> {
    if spec.order.work.image.is_some() {
        return Err(rejected(OTHER_RUNTIME));
    }
    let command = &spec.order.work.command;
    let elements = ElementsStart::of(spec.order);
    let input = spec.input.map(<[u8]>::to_vec);
    let command = JobCommand { words: command.clone(), env: spec.env.clone(), input };
    let (isolation, alloc_dir) = (spec.isolation.cloned(), spec.alloc_dir.to_owned());
    let start = JobStart { command, isolation, alloc_dir, elements };
    let (stdin, result) = start_as(&start).map_err(not_passed_on)?;
    let (args, env) = (vec!["as-user".to_owned()], spec.agent_env.clone());
    Ok(Invocation { program: spec.agent_program.to_owned(), args, env, stdin, process: Process::Helper(result) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::testing::{node_id, order};
    use model::wire::AllocOrder;

    fn invoke(order: &AllocOrder) -> Result<Invocation, EndCause> {
        let env = ProcessEnv::from([("LD_PRELOAD".to_owned(), "/x.so".to_owned())]);
        let agent_env = ProcessEnv::from([("PATH".to_owned(), "/bin".to_owned())]);
        let spec = CommandSpec {
            alloc_dir: Path::new("/a"),
            node_id: node_id(),
            order,
            image: None,
            caches: &[],
            gpus: &[],
            env: &env,
            input: None,
            isolation: None,
            agent_env: &agent_env,
            agent_program: Path::new("/agent"),
        };
        super::invocation(&spec)
    }

    #[test]
    fn the_helper_that_becomes_the_user_gets_no_variable_of_the_job() {
        let helper = invoke(&order(0, 1)).unwrap();
        assert_eq!((helper.program.as_path(), helper.args.join(" ").as_str()), (Path::new("/agent"), "as-user"));
        assert_eq!(helper.env.into_keys().collect::<Vec<_>>(), ["PATH"]);
    }

    #[test]
    fn a_command_that_belongs_into_an_image_is_not_run_on_the_machine() {
        let order =
            AllocOrder { work: model::Work { image: Some("alpine".into()), ..order(0, 1).work }, ..order(0, 1) };
        assert_eq!(invoke(&order).err().unwrap(), rejected(OTHER_RUNTIME));
    }
}
