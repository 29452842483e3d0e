//! A person's command inside of a running alloc.

use crate::common::podman::{IMAGE, Podman};
use crate::common::{TestNode, alloc_id, order};
use model::Work;
use model::wire::AllocOrder;
use nix::sys::signal::Signal;
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
    node.start(&["--job-uids", &ids(0), "--allow-metadata"]);
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
    node.start(&["--containers", "podman", "--job-uids", &ids(2), "--allow-metadata"]);
    node.line_of(0, "ready").await;
    let show = "cat /etc/image; echo $MARK; pwd; id -u; grep -E '^(CapEff|NoNewPrivs):' /proc/self/status; exit 7";
    let entered = enter(&node, 0, show);
    let uid: u32 = ids(2).split('-').next().unwrap().parse::<u32>().unwrap() + 1;
    let want = format!("the image of the test\nof the job\n/work\n{uid}\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n");
    assert_eq!((said(&entered), entered.status.code()), (want, Some(7)));
}

/// Whether a process waits for so many seconds.
fn sleeps(seconds: u32) -> bool {
    let wanted = format!("\0{seconds}\0");
    let has = |pid| String::from_utf8_lossy(&process_table::arguments(pid)).contains(&wanted);
    process_table::all().iter().any(|p| !p.zombie && has(p.pid))
}

#[tokio::test]
async fn a_command_inside_has_no_stream_of_its_caller_whatever_each_of_them_is() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![order(0, "echo ready > ready; exec sleep 1000")]));
    node.start(&[]);
    node.line_of(0, "ready").await;
    let work = node.alloc_dir(0).join("work");
    let at = |name: &str| node.dir.path().join(name).display().to_string();
    std::fs::write(at("typed"), "typed\n").unwrap();
    let look = "for n in 0 1 2; do s=$(readlink /proc/$$/fd/$n); echo $s >&3; done 3> seen; test -t 0 || cat > got; echo printed; echo wrong >&2
        (echo spoofed > /dev/tty) 2> /dev/null && test ! -t 1 && echo a terminal >> seen; true";
    let quoted: Vec<String> = entering(&node, 0, look).iter().map(|word| format!("'{word}'")).collect();
    for case in 0..8 {
        let redirects = [("<", "typed"), (">", "out"), ("2>", "err")];
        let given = redirects.iter().enumerate().filter(|(n, _)| case >> n & 1 == 1);
        let given: String = given.map(|(_, (how, name))| format!(" {how} {}", at(name))).collect();
        let line = format!("tty > {}; {}{given}", at("callers"), quoted.join(" "));
        // `script` gives the caller a terminal. At the end of its own input, so does that.
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &line, "/dev/null"]).stdin(Stdio::null());
        let Ok(output) = script.output() else { return eprintln!("skipped: there is no `script`, of util-linux") };
        let [seen, got] = ["seen", "got"].map(|name| std::fs::read_to_string(work.join(name)).unwrap_or_default());
        let [callers, out, err] =
            ["callers", "out", "err"].map(|name| std::fs::read_to_string(at(name)).unwrap_or_default());
        let what = format!("{given}: {seen}, {got}, {}", said(&output));
        assert!(output.status.success() && seen.lines().count() == 3, "{what}");
        assert!(!seen.lines().any(|stream| stream == callers.trim() || stream.contains("nodekeeper-test-")), "{what}");
        assert_eq!(got == "typed\n", case & 1 == 1, "{what}");
        let passed = |is_file: bool, file: &str, text: &str| {
            if is_file { file.contains(text) } else { said(&output).contains(text) }
        };
        assert!(passed(case & 2 == 2, &out, "printed") && passed(case & 4 == 4, &err, "wrong"), "{what}");
        assert!(!said(&output).contains("spoofed") || case & 3 == 0, "{what}");
        for file in [work.join("seen"), work.join("got"), at("out").into(), at("err").into()] {
            _ = std::fs::remove_file(file);
        }
    }
}

#[tokio::test]
async fn a_command_inside_ends_with_all_that_it_started_when_its_caller_goes() {
    let podman = Podman::new();
    let mut node = TestNode::new().await;
    node.env.extend(podman.iter().flat_map(Podman::env));
    let image = podman.as_ref().map(|_| IMAGE.to_owned());
    let orders = [None, image.clone()].into_iter().zip(0..).map(|(image, copy)| {
        let asked = order(copy, "echo ready > ready; exec sleep 1000");
        AllocOrder { work: Work { image, ..asked.work }, ..asked }
    });
    node.with(|p| p.order(orders.collect()));
    node.start(&["--containers", if image.is_some() { "podman" } else { "none" }]);
    let kinds = if image.is_some() { 2 } else { 1 };
    let first = 100_000 + std::process::id() * 10;
    for copy in 0..kinds {
        node.line_of(copy, "ready").await;
        for (signal, n) in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGINT].into_iter().zip(0..) {
            let seconds = first + copy * 4 + n;
            // The shell waits for a program, and another one is in a session of its own. Nobody of them hears HUP.
            let script = format!("trap '' HUP TERM; setsid sleep {seconds} & sleep {seconds}; true");
            let script = if signal == Signal::SIGINT { format!("sleep {seconds}") } else { script };
            let words = entering(&node, copy, &script);
            let mut caller = Command::new(&words[0]);
            caller.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::null()).envs(node.env.clone());
            let mut caller = caller.spawn().unwrap();
            node.until("it runs", |_| sleeps(seconds).then_some(())).await;
            process_table::send(caller.id() as i32, signal);
            caller.wait().unwrap();
            node.until(&format!("nothing runs after {signal}"), |_| (!sleeps(seconds)).then_some(())).await;
        }
        assert!(node.with(|p| p.ends(alloc_id(copy)).is_empty()), "the alloc goes on");
    }
}

#[tokio::test]
async fn what_a_command_inside_has_left_goes_on_and_is_not_waited_for() {
    let mut node = TestNode::new().await;
    let seconds = 200_000 + std::process::id();
    node.with(|p| p.order(vec![order(0, "echo ready > ready; exec sleep 1000")]));
    node.start(&[]);
    node.line_of(0, "ready").await;
    // It holds the output of its caller, who does not wait for it.
    let entered = enter(&node, 0, &format!("seq 1 20000; sleep {seconds} & echo left"));
    assert!(said(&entered).ends_with("20000\nleft\n"), "{}", said(&entered));
    node.until("what it has left goes on", |_| sleeps(seconds).then_some(())).await;
    let left = |pid| String::from_utf8_lossy(&process_table::arguments(pid)).contains(&seconds.to_string());
    process_table::all().iter().filter(|p| left(p.pid)).for_each(|p| process_table::send(p.pid, Signal::SIGKILL));
}
