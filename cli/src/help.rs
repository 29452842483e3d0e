//! What `--help` says besides the meanings: an example of each command, the options of a job in groups, and where words of other
//! tools lead.
//!
//! Guarantees: every command has an example.
//! Does not: change what a command takes.

use crate::console::show::one_line;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// An example of each command.
const EXAMPLES: &[(&str, &str)] = &[
    ("batch", "echo '{\"id\": 1, \"list\": [\"fit\"]}' | nodekeeper batch"),
    ("cancel", "nodekeeper cancel --name 'sweep-*' --state queued"),
    ("change", "nodekeeper change sweep --priority 900 --memory 16G"),
    ("completion", "nodekeeper completion bash > /etc/bash_completion.d/nodekeeper"),
    ("contract", "nodekeeper contract > contract.json"),
    ("continue", "nodekeeper continue sweep"),
    ("cost", "nodekeeper cost --since 7d --by label team"),
    ("demand set", "nodekeeper demand set ci --count 3 --size small --for 15m"),
    ("doctor", "nodekeeper doctor lab"),
    ("down", "nodekeeper down lab --cancel-jobs"),
    ("drain", "nodekeeper drain 3 --by 30m"),
    ("exec", "nodekeeper exec fit -- nvidia-smi"),
    ("fetch", "nodekeeper fetch fit result.csv out"),
    ("handles", "nodekeeper handles 3"),
    ("history", "nodekeeper history fit --limit 20"),
    ("hold", "nodekeeper hold 3"),
    ("job", "nodekeeper job 'sweep[3]'"),
    ("jobs", "nodekeeper jobs --state failed --since 2h"),
    ("local", "nodekeeper local"),
    ("logs", "nodekeeper logs --follow fit"),
    ("node", "nodekeeper node 3"),
    ("nodes", "nodekeeper nodes --watch"),
    ("pause", "nodekeeper pause sweep"),
    ("plan", "nodekeeper plan --policy new.toml"),
    ("policy check", "nodekeeper policy check policy.toml"),
    ("policy set", "nodekeeper policy set policy.toml"),
    ("policy show", "nodekeeper policy show --defaults > policy.toml && nodekeeper policy check policy.toml"),
    ("release", "nodekeeper release launches"),
    ("rerun", "nodekeeper rerun --failed --memory 16G sweep"),
    ("resume", "nodekeeper resume 3"),
    ("run", "nodekeeper run --vcpus 4 --memory 8G --in fit.py -- python3 fit.py"),
    ("shares", "nodekeeper shares"),
    ("shell", "nodekeeper shell fit"),
    ("sizes", "nodekeeper sizes --file policy.toml"),
    ("status", "nodekeeper status --watch"),
    ("submit", "nodekeeper submit --name fit --vcpus 4 --memory 8G --in fit.py --out result.csv -- python3 fit.py"),
    ("teardown", "nodekeeper --cluster test teardown test --cancel-jobs --terminate"),
    ("up", "nodekeeper up lab"),
    ("web", "nodekeeper web --port 0"),
];

/// The options of a job, in groups.
const GROUPS: &[(&str, &str)] = &[
    (
        "What it needs",
        "vcpus memory_mib scratch_gib gpus instance_type market arch gpu_type gpu_memory_gib require exclusive nodes licences",
    ),
    ("What it runs", "image entrypoint registry_login caches env env_file stdin role secrets secret_files"),
    ("Its files", "inputs workdir outputs keep keep_every_s"),
    ("When it runs", "key share priority not_before_at give_up_after_s after after_any after_each"),
    ("Arrays and files of jobs", "count array max_failures pack at_once file again"),
    (
        "How it ends, and what happens then",
        "timeout_s kill_timeout_s stop_signal stop_notice_s lost_after_s replace reconcile retry retry_failed retry_lost",
    ),
];

/// An option that only a job has.
const OF_JOB: &str = "retry_failed";

/// Words of other tools, and the command that does it here.
const OTHER_WORDS: &[(&str, &str)] = &[
    ("ps squeue qstat bjobs list ls sacct", "jobs"),
    ("sbatch qsub bsub enqueue", "submit"),
    ("srun qrsh salloc", "run"),
    ("kill scancel qdel bkill stop rm delete abort", "cancel"),
    ("requeue retry restart resubmit", "rerun"),
    ("suspend", "pause"),
    ("unsuspend unpause", "continue"),
    ("qalter bmod update", "change"),
    ("scontrol show describe inspect info", "job"),
    ("sinfo pbsnodes bhosts", "nodes"),
    ("log tail output", "logs"),
    ("ssh attach sattach", "shell"),
    ("get download cp", "fetch"),
    ("cordon", "hold"),
    ("uncordon undrain", "resume"),
    ("events", "history"),
    ("price bill", "cost"),
    ("sshare fairshare qquota limits", "shares"),
];

/// The command with examples and groups, in all its commands. `path` has the words before it, without the program.
pub fn dressed(command: Command, path: &str) -> Command {
    let more = command.get_after_help().map(|more| format!("{more}\n\n")).unwrap_or_default();
    let example = EXAMPLES.iter().find(|(of, _)| *of == path).map(|(_, line)| format!("{more}Example: {line}"));
    let command = if let Some(example) = example { command.after_help(example) } else { command };
    let is_job = command.get_arguments().any(|arg| arg.get_id() == OF_JOB);
    let heading = |id: &str| GROUPS.iter().find(|(_, ids)| is_job && ids.split(' ').any(|one| one == id));
    let command = command.mut_args(|arg| match heading(arg.get_id().as_str()) {
        Some((heading, _)) => arg.help_heading(*heading),
        None => arg,
    });
    command.mut_subcommands(|inner| {
        let path = format!("{path} {}", inner.get_name());
        dressed(inner, path.trim_start())
    })
}

/// For an error about a command that other tools have: the command that does it here. For what a job shall run, without `--` before
/// it: how to give it.
pub fn other_word(error: &clap::Error) -> Option<String> {
    let text = |kind| error.get(kind).map(ContextValue::to_string);
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let word = text(ContextKind::InvalidSubcommand)?;
            let (_, ours) = OTHER_WORDS.iter().find(|(words, _)| words.split(' ').any(|one| one == word))?;
            Some(format!(
                "there is no command `{word}`: `nodekeeper {ours}` does that; `nodekeeper {ours} --help` says how"
            ))
        }
        ErrorKind::UnknownArgument => {
            let word = text(ContextKind::InvalidArg).filter(|word| !word.starts_with('-'))?;
            let usage = text(ContextKind::Usage)?;
            let (line, _) = usage.strip_prefix("Usage: ")?.split_once("-- <COMMAND>")?;
            let (line, word) = (line.trim_end_matches('[').replace(" [OPTIONS]", ""), one_line(&word));
            Some(format!("put `--` before the command that shall run, and options before that: `{line}-- {word}`"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Subcommand;
    use std::collections::BTreeSet;

    fn all() -> Command {
        dressed(crate::command::Command::augment_subcommands(Command::new("nodekeeper")), "")
    }

    /// The commands that have none below them, with their paths.
    fn leaves(command: &Command, path: &str, into: &mut Vec<(String, Command)>) {
        for inner in command.get_subcommands() {
            let path = format!("{path} {}", inner.get_name()).trim().to_owned();
            if inner.has_subcommands() { leaves(inner, &path, into) } else { into.push((path, inner.clone())) }
        }
    }

    #[test]
    fn every_command_has_an_example_of_itself_and_no_option_of_a_job_is_without_a_group() {
        let mut found = Vec::new();
        leaves(&all(), "", &mut found);
        for (path, command) in &mut found {
            let help = command.render_long_help().to_string();
            let line = help.split("Example: ").nth(1).unwrap_or_else(|| panic!("{path} has no example"));
            assert!(line.contains(&*path), "{path}: {line}");
        }
        let of_main = ["completion", "local"];
        let known = |name: &str| of_main.contains(&name) || found.iter().any(|(path, _)| path == name);
        assert!(EXAMPLES.iter().all(|(of, _)| known(of)));
        let submit = all().find_subcommand("submit").unwrap().clone();
        let free = |arg: &&clap::Arg| arg.get_help_heading().is_none() && !arg.is_positional();
        let free: BTreeSet<&str> = submit.get_arguments().filter(free).map(|arg| arg.get_id().as_str()).collect();
        assert_eq!(free, ["json", "labels", "name", "wait"].into());
        assert!(submit.get_arguments().any(|arg| arg.get_help_heading() == Some("What it needs")));
    }

    #[test]
    fn words_of_other_tools_lead_to_ours_and_none_is_a_command() {
        let error = |word: &str| all().try_get_matches_from(["nodekeeper", word]).unwrap_err();
        for (words, ours) in OTHER_WORDS {
            assert!(all().find_subcommand(ours).is_some(), "{ours}");
            for word in words.split(' ') {
                let said = other_word(&error(word)).unwrap_or_else(|| panic!("{word}"));
                assert!(said.starts_with(&format!("there is no command `{word}`: `nodekeeper {ours}`")), "{said}");
            }
        }
        assert_eq!(other_word(&error("no-such-word")), None);
        for (line, shown) in [
            ("run ./run.sh --fast", "`nodekeeper run -- ./run.sh`"),
            ("submit --name x ./run.sh", "`nodekeeper submit -- ./run.sh`"),
            ("exec fit ls", "`nodekeeper exec <JOB> -- ls`"),
        ] {
            let error = all().try_get_matches_from(format!("nodekeeper {line}").split(' ')).unwrap_err();
            let said = other_word(&error).unwrap_or_else(|| panic!("{line}: {error}"));
            assert!(said.starts_with("put `--` before the command") && said.ends_with(shown), "{said}");
        }
        let option = all().try_get_matches_from(["nodekeeper", "run", "--frob", "--", "x"]).unwrap_err();
        assert_eq!(other_word(&option), None);
    }
}
