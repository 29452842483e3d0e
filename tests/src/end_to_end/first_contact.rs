//! The first minutes with nodekeeper: ports, errors of a command that finds no cluster, and `launch.user_data` on the
//! local machines.

use super::{Local, processes_of, program, text, until};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a command with no other variables than these.
fn nodekeeper(here: &Path, env: &BTreeMap<String, String>, args: &[&str]) -> Output {
    let mut command = Command::new(program("nodekeeper"));
    command.args(args).current_dir(here).env_clear().env("HOME", here).envs(env).output().unwrap()
}

/// The message of a command that fails: it is one line.
fn refused(here: &Path, env: &BTreeMap<String, String>, code: i32) -> String {
    let output = nodekeeper(here, env, &["jobs"]);
    let said = text(&output);
    assert_eq!((output.status.code(), said.lines().count()), (Some(code), 1), "{said}");
    said
}

/// The environment of a stack that has ended names endpoints where nobody listens.
#[test]
fn a_command_that_finds_no_cluster_says_what_was_tried_and_what_to_do() {
    let here = tempfile::tempdir().unwrap();
    let nothing = BTreeMap::new();
    let said = refused(here.path(), &nothing, 2);
    assert!(said.contains("no cluster is named") && said.contains("with `nodekeeper local`"), "{said}");
    let named = BTreeMap::from([("NODEKEEPER_CLUSTER".to_owned(), "lab".to_owned())]);
    let said = refused(here.path(), &named, 1);
    assert!(said.contains("no region is set") && said.contains("`nodekeeper local`"), "{said}");

    let mut local = Local::start(&["--functions-url", "http://127.0.0.1:9"]);
    let env = local.env();
    let output = nodekeeper(here.path(), &env, &["jobs"]);
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(local.stop(), Some(0));
    let said = refused(here.path(), &env, 75);
    assert!(said.contains("no cluster answers at http://127.0.0.1:") && said.contains("refused"), "{said}");
    assert!(said.contains("start `nodekeeper local`") && said.contains("or unset AWS_ENDPOINT_URL"), "{said}");
}

#[test]
fn a_port_that_is_taken_is_one_line_that_names_the_option() {
    let (first, _taken) = (0..100)
        .find_map(|_| {
            let first = crate::second_opinions::free_port();
            let ec2 = std::net::TcpListener::bind(("127.0.0.1", first.checked_add(3)?)).ok()?;
            Some((first, ec2))
        })
        .unwrap();
    let here = tempfile::tempdir().unwrap();
    let args = ["local", "--no-build", "--port", &first.to_string()];
    let output = nodekeeper(here.path(), &BTreeMap::new(), &args);
    let said = text(&output);
    assert_eq!((output.status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert!(said.contains(&format!("EC2 cannot listen on port {}", first + 3)) && said.contains("--port"), "{said}");
}

/// The policy of `nodekeeper local`, with commands for the first boot. Returns the path of its file.
fn with_user_data(dir: &Path, user_data: &str) -> String {
    let policy = std::fs::read_to_string(crate::second_opinions::root().join("local/system/policy.toml")).unwrap();
    let policy = policy.replace("[launch]\n", &format!("[launch]\nuser_data = '''\n{user_data}\n'''\n"));
    assert!(policy.contains(user_data));
    let path = dir.join("policy.toml");
    std::fs::write(&path, policy).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The commands run once, before the first job. Their processes end with their machine, and its log has their output.
#[test]
fn local_machines_run_the_user_data_of_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().to_string_lossy().into_owned();
    let once = format!("{mark}/machines");
    let user_data = format!(
        "set -eu\necho \"prepared in $PWD for $NODEKEEPER_LOCAL\" | tee prepared\necho x >>{once}\n\
         setsid bash -c 'exec -a {mark}-service sleep 1000' &"
    );
    let policy = with_user_data(dir.path(), &user_data);
    let mut local = Local::start(&["--tick-s", "1", "--unisolated", "--policy", &policy]);
    // A job's HOME is below the directory of its machine.
    let script = "d=$PWD; until [ -e \"$d/prepared\" ]; do d=${d%/*}; done; cat \"$d/prepared\"";
    let submitted = local.nodekeeper(&["submit", "--wait", "--", "sh", "-c", script]);
    assert!(submitted.status.success(), "{}", text(&submitted));
    assert!(text(&submitted).contains("prepared in /") && text(&submitted).contains("for 1"), "{}", text(&submitted));
    assert_eq!(std::fs::read_to_string(&once).unwrap(), "x\n");
    assert_eq!(processes_of(&format!("{mark}-service")).len(), 1);
    let logs = std::fs::read_dir(local.path().join("logs")).unwrap();
    let logged = logs.map(|log| std::fs::read_to_string(log.unwrap().path()).unwrap()).collect::<String>();
    assert!(logged.contains("prepared in "), "{logged}");
    // The fleet shuts down when it is idle.
    until("the end of the machine and its service", 60, || {
        processes_of(&format!("{mark}-service")).is_empty().then_some(())
    });
    assert_eq!(local.stop(), Some(0));
}

/// As in EC2, the node never registers. The terminal, the log of the machine, and the event of the failed start say
/// why.
#[test]
fn user_data_that_fails_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let policy = with_user_data(dir.path(), "echo the disk is not there; exit 7");
    let text_of_policy = std::fs::read_to_string(&policy).unwrap();
    std::fs::write(&policy, text_of_policy.replace("[boot]\ntimeout_s = 60", "[boot]\ntimeout_s = 3")).unwrap();
    let mut local = Local::start(&["--tick-s", "1", "--policy", &policy]);
    assert!(local.nodekeeper(&["submit", "--", "true"]).status.success());
    let shown = || std::fs::read_to_string(local.path().join("local.log")).unwrap();
    let line = until("the line in the terminal", 60, || {
        shown().lines().find(|line| line.contains("launch.user_data ended with exit status: 7")).map(str::to_owned)
    });
    assert!(line.contains("the agent is not started") && line.contains("its output is in"), "{line}");
    until("the event with the end of the console", 60, || {
        text(&local.nodekeeper(&["history", "cluster"])).contains("the disk is not there").then_some(())
    });
    assert_eq!(local.stop(), Some(0));
}

/// Ctrl-C does not wait for commands that never end, and `--no-user-data` does not start them.
#[test]
fn user_data_that_never_ends_can_be_stopped_and_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let mark = dir.path().to_string_lossy().into_owned();
    let policy = with_user_data(dir.path(), &format!("bash -c 'exec -a {mark}-forever sleep 1000'"));
    let mut local = Local::start(&["--tick-s", "1", "--policy", &policy]);
    assert!(local.nodekeeper(&["submit", "--", "true"]).status.success());
    let forever = || processes_of(&format!("{mark}-forever"));
    until("the start of the commands", 60, || (!forever().is_empty()).then_some(()));
    assert_eq!(local.stop(), Some(0));
    assert_eq!(forever(), Vec::<String>::new());

    let mut local = Local::start(&["--tick-s", "1", "--policy", &policy, "--no-user-data"]);
    let submitted = local.nodekeeper(&["submit", "--wait", "--", "true"]);
    assert!(submitted.status.success(), "{}", text(&submitted));
    assert_eq!(forever(), Vec::<String>::new());
    assert_eq!(local.stop(), Some(0));
}
