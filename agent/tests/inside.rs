//! A person's command inside of a running alloc.

use crate::common::podman::{IMAGE, Podman};
use crate::common::{TestNode, alloc_id, order};
use model::Work;
use model::wire::AllocOrder;
use std::process::{Command, Output, Stdio};

/// The command line that runs a script inside of this alloc.
fn entering(node: &TestNode, copy: u32, script: &str) -> Vec<String> {
    let (agent, data) = (env!("CARGO_BIN_EXE_nodekeeper-agent"), node.data().display().to_string());
    let words = [agent, "enter", "--data-dir", &data, &alloc_id(copy).to_string(), "--", "sh", "-c", script];
    words.map(str::to_owned).into()
}

fn enter(node: &TestNode, copy: u32, script: &str) -> Output {
    let words = entering(node, copy, script);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).envs(node.env.clone()).env("AGENTS_OWN", "secret").output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The ids of a node. No other test has them at the same time.
fn ids(n: u32) -> String {
    let first = 1_450_000_000 + std::process::id() * 50 + n * 10;
    format!("{first}-{}", first + 9)
}

/// Shows what differs between allocs, and between an alloc and the machine.
const SHOW: &str =
    "id -u; id -G; pwd; echo $MARK $NODEKEEPER_MEMBER; readlink /proc/self/ns/mnt; readlink /proc/self/ns/ipc
    grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status; cat /proc/self/cgroup; grep processes /proc/self/limits; cat /tmp/mark";

#[tokio::test]
async fn a_command_inside_of_an_alloc_is_all_that_the_alloc_is_and_nothing_of_its_caller() {
    if !nix::unistd::geteuid().is_root() {
        return eprintln!("skipped: only root can give jobs user ids of their own");
    }
    let mut node = TestNode::new().await;
    let mut asked = order(0, &format!("echo here > /tmp/mark; ({SHOW}) > shown; echo shown > ready; exec sleep 1000"));
    asked.env.insert("MARK".into(), "of the job".into());
    asked.work.caches = vec!["m2".into()];
    node.with(|p| p.order(vec![asked]));
    node.start(&["--job-uids", &ids(0), "--cache-gids", &ids(1), "--allow-metadata"]);
    node.line_of(0, "ready").await;
    let own = std::fs::read_to_string(node.alloc_dir(0).join("work/shown")).unwrap();
    assert!(own.contains("of the job 0\n") && own.ends_with("here\n"), "{own}");
    let entered = enter(&node, 0, SHOW);
    assert_eq!((said(&entered), entered.status.code()), (own, Some(0)));
    let entered = enter(&node, 0, "echo ${AGENTS_OWN-nothing of the caller}; exit 7");
    assert_eq!((said(&entered).as_str(), entered.status.code()), ("nothing of the caller\n", Some(7)));
    let words = entering(&node, 0, "");
    let absent = Command::new(&words[0]).args(&words[1..6]).arg("no-such-program").output().unwrap();
    assert_eq!((said(&absent).contains("not found"), absent.status.code()), (true, Some(127)), "{}", said(&absent));
}

#[tokio::test]
async fn a_command_inside_gets_a_terminal_that_is_not_its_callers() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "echo ready > ready; exec sleep 1000")]));
    node.start(&[]);
    node.line_of(0, "ready").await;
    let words = entering(&node, 0, "test -t 0 && echo inside $(tty) $(stty size); exit 7");
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    // `script` gives the caller a terminal.
    let line = format!("stty rows 31 cols 77; echo outside $(tty); {}", quoted.join(" "));
    let script = Command::new("script").args(["--quiet", "--return", "--command", &line, "/dev/null"]).output();
    let Ok(output) = script else { return eprintln!("skipped: there is no `script`, of util-linux") };
    let text = said(&output).replace('\r', "");
    let tty = |word: &str| text.lines().find_map(|line| Some(line.split_once(word)?.1)).unwrap_or_default().to_owned();
    let (outside, inside) = (tty("outside "), tty("inside "));
    assert!(
        outside.starts_with("/dev/pts/") && inside.starts_with("/dev/pts/") && inside.ends_with(" 31 77"),
        "{text}"
    );
    assert!(!inside.starts_with(&format!("{outside} ")), "{text}");
    assert_eq!(output.status.code(), Some(7), "{text}");
}

#[tokio::test]
async fn a_command_inside_ends_with_its_alloc_and_none_is_run_after_it() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "echo ready > ready; while ! test -e over; do sleep 0.1; done")]));
    node.start(&[]);
    let early = enter(&node, 1, "true");
    assert!(said(&early).contains("there is no alloc") && early.status.code() == Some(1), "{}", said(&early));
    node.line_of(0, "ready").await;
    let words = entering(&node, 0, "echo in > in; exec sleep 1000");
    let mut entered = Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).spawn().unwrap();
    node.line_of(0, "in").await;
    std::fs::write(node.alloc_dir(0).join("work/over"), "").unwrap();
    node.end_of(0).await;
    let status = node.until("the command inside ends", |_| entered.try_wait().unwrap()).await;
    assert_eq!(status.code(), Some(137));
    let late = enter(&node, 0, "true");
    assert!(said(&late).contains("does not run: it has ended") && late.status.code() == Some(1), "{}", said(&late));
}

#[tokio::test]
async fn a_command_inside_of_a_container_is_run_by_its_runtime() {
    let Some(podman) = Podman::new() else { return };
    let mut node = TestNode::new().await;
    node.env.extend(podman.env());
    let asked = order(0, "echo ready > ready; exec sleep 1000");
    let mut asked = AllocOrder { work: Work { image: Some(IMAGE.into()), ..asked.work }, ..asked };
    asked.env.insert("MARK".into(), "of the job".into());
    node.with(|p| p.order(vec![asked]));
    node.start(&["--containers", "podman", "--job-uids", &ids(2), "--cache-gids", &ids(3), "--allow-metadata"]);
    node.line_of(0, "ready").await;
    let show = "cat /etc/image; echo $MARK; pwd; id -u; grep -E '^(CapEff|NoNewPrivs):' /proc/self/status; exit 7";
    let entered = enter(&node, 0, show);
    let uid: u32 = ids(2).split('-').next().unwrap().parse::<u32>().unwrap() + 1;
    let want = format!("the image of the test\nof the job\n/work\n{uid}\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n");
    assert_eq!((said(&entered), entered.status.code()), (want, Some(7)));
}
