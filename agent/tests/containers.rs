//! A real agent whose jobs with an image run in real containers of podman. The tests of `runtime::container` cover what docker does
//! in another way.

use crate::common::podman::{IMAGE, Podman};
use crate::common::{NODE_ID, TestNode, alloc_id, cause, code, order};
use model::wire::{AllocOrder, AllocUpdate};
use model::{ClientStatus, EndCause, INPUT_VARIABLE, Work};

/// A node with a podman of its own. The podman comes first, so that it is removed last: the agent calls it.
async fn node_with_podman() -> Option<(Podman, TestNode)> {
    let podman = Podman::new()?;
    let mut node = TestNode::new().await;
    node.env.extend(podman.env());
    Some((podman, node))
}

fn in_container(order: AllocOrder) -> AllocOrder {
    AllocOrder { work: Work { image: Some(IMAGE.into()), ..order.work }, ..order }
}

/// The user and group ids of a node. No other test has them at the same time.
fn ids() -> [String; 2] {
    let first = 1_500_000_000 + std::process::id() * 50;
    let range = |from: u32| format!("{from}-{}", from + 9);
    ["--job-uids".into(), range(first)]
}

fn printed(end: &AllocUpdate) -> &str {
    end.run.log_tail.as_deref().unwrap_or_default()
}

#[tokio::test]
async fn a_job_with_an_image_runs_in_a_container_and_one_without_beside_it_as_a_process() {
    let Some((podman, mut node)) = node_with_podman().await else { return };
    let processes = "cat /etc/image 2> /dev/null || echo no image; exit 3";
    node.with(|p| {
        p.order(vec![
            in_container(order(0, "cat /etc/image; exit 4")),
            in_container(order(1, "kill -STOP $$; exec sleep 1000")),
            order(2, processes),
        ])
    });
    node.start(&["--containers", "auto"]);
    let end = node.end_of(0).await;
    assert_eq!((code(&end), printed(&end)), (Some(4), "the image of the test\n"));
    let end = node.end_of(2).await;
    assert_eq!((code(&end), printed(&end)), (Some(3), "no image\n"));
    node.running(1).await;
    let name = alloc_id(1).to_string();
    node.until("its container is the only one", |_| (podman.containers() == [name.clone()]).then_some(())).await;
    // The other allocs have ended, so they are no orders any more.
    node.with(|p| p.orders[0].desired = model::Desired::Stop);
    node.with(|p| p.order(p.orders.clone()));
    let end = node.end_of(1).await;
    // The first process of the container passes TERM on, and a stopped process goes on to take it: nothing has to wait for KILL.
    assert_eq!((end.client, code(&end)), (ClientStatus::Failed, Some(143)));
    assert_eq!(podman.containers(), [] as [String; 0], "removed when it ended");
}

#[tokio::test]
async fn a_container_has_the_user_the_variables_the_input_and_no_rights_or_files_of_the_agent() {
    let Some((_podman, mut node)) = node_with_podman().await else { return };
    let script = "id -u; id -G; cat; echo \"$KEY\"; echo \"${LD_PRELOAD-absent}\"; echo ${FTP_PROXY-no proxy}
        grep -E '^(CapEff|NoNewPrivs):' /proc/self/status
        ls /caches; ls /proc/self/fd | wc -l; echo $HOME; echo x > written
        df -m /dev/shm | grep -c ' 64 '";
    let mut asked = in_container(order(0, script));
    asked.work.caches = vec!["m2".into()];
    asked.needs.memory_mib = 64;
    asked.env.insert("KEY".into(), "one\ntwo".into());
    asked.env.insert("LD_PRELOAD".into(), String::new());
    // The text "the input" in base64.
    asked.env.insert(INPUT_VARIABLE.into(), "dGhlIGlucHV0Cg==".into());
    node.with(|p| p.order(vec![asked]));
    node.env.push(("FTP_PROXY".into(), "http://127.0.0.1:1".into()));
    let ids = ids();
    let args: Vec<&str> =
        ids.iter().map(String::as_str).chain(["--containers", "podman", "--allow-metadata"]).collect();
    node.start(&args);
    let end = node.end_of(0).await;
    let first: u32 = ids[1].split('-').next().unwrap().parse().unwrap();
    let uid = first + 1;
    // The list of open files is an open file itself.
    let want = format!(
        "{uid}\n{uid}\nthe input\none\ntwo\n\nno proxy\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nm2\n4\n/work\n1\n"
    );
    assert_eq!((code(&end), printed(&end)), (Some(0), want.as_str()), "{}", cause(&end));
    assert_eq!(std::fs::read_to_string(node.alloc_dir(0).join("work/written")).unwrap(), "x\n");
}

#[tokio::test]
async fn what_a_container_used_is_told_at_its_end_without_what_its_client_used() {
    let Some((_podman, mut node)) = node_with_podman().await else { return };
    // 30 MB in the shell, and two seconds of CPU time.
    let script = "x=$(busybox head -c 30000000 /dev/zero | busybox tr '\\0' x)
        busybox sh -c 'ulimit -t 2; while :; do :; done'; echo ${#x}";
    node.with(|p| p.order(vec![in_container(order(0, script)), in_container(order(1, "true"))]));
    node.start(&["--containers", "podman"]);
    let end = node.end_of(0).await;
    assert_eq!((code(&end), printed(&end).trim_end().ends_with("30000000")), (Some(0), true), "{}", printed(&end));
    let usage = end.run.usage.unwrap();
    // The last look was half a second before its end.
    assert!((1000..3500).contains(&usage.cpu_ms) && usage.ran_ms >= 2000, "{usage:?}");
    assert!((28..80).contains(&usage.memory_mib.unwrap()), "{usage:?}");
    assert_eq!(node.end_of(1).await.run.usage, None, "it ended before anybody could look");
}

#[tokio::test]
async fn a_container_that_needs_too_much_memory_says_so_whichever_of_its_processes_was_killed() {
    let Some((_podman, mut node)) = node_with_podman().await else { return };
    let needs = |copy, script: &str| {
        let mut order = in_container(order(copy, script));
        order.needs.memory_mib = 48;
        order
    };
    let much = r#"sh -c 'x=$(busybox head -c 200000000 /dev/zero | busybox tr "\0" x); echo $x | wc -c'"#;
    let scripts = [
        format!("exec {much}"),
        format!("{much}; exit 3"),
        format!("(setsid {much} &); sleep 5; exit 3"),
        format!("{much}; true"),
    ];
    node.with(|p| p.order(scripts.iter().zip(0..).map(|(script, copy)| needs(copy, script)).collect()));
    node.start(&["--containers", "podman"]);
    for copy in 0..3 {
        let end = node.end_of(copy).await;
        let want = EndCause::OverMemory { allowed_mib: 48, used_mib: None };
        assert_eq!((end.cause.as_ref(), code(&end)), (Some(&want), Some(137)), "{}", scripts[copy as usize]);
    }
    assert_eq!(code(&node.end_of(3).await), Some(0), "a command that goes on and succeeds has succeeded");
}

#[tokio::test]
async fn a_program_that_the_image_lacks_is_told_as_that_of_a_process() {
    let Some((_podman, mut node)) = node_with_podman().await else { return };
    let run = |copy, program: &str| {
        let order = in_container(order(copy, ""));
        AllocOrder { work: Work { command: vec![program.to_owned()], ..order.work }, ..order }
    };
    node.with(|p| p.order(vec![run(0, "no-such-program"), run(1, "/etc")]));
    node.start(&["--containers", "auto"]);
    for (copy, code_of, says) in
        [(0, 127, "program \"no-such-program\" not found"), (1, 126, "program \"/etc\" is not executable")]
    {
        let end = node.end_of(copy).await;
        assert_eq!((code(&end), cause(&end).as_str()), (Some(code_of), says));
    }
}

#[tokio::test]
async fn a_node_without_containers_loses_a_job_with_an_image_and_is_fit_for_others() {
    let mut node = TestNode::new().await;
    node.with(|p| p.order(vec![in_container(order(0, "true")), in_container(order(1, "true")), order(2, "true")]));
    node.start(&["--containers", "none"]);
    for copy in 0..2 {
        let end = node.end_of(copy).await;
        assert_eq!(end.client, ClientStatus::Lost);
        assert!(cause(&end).starts_with("this node runs no containers"), "{}", cause(&end));
    }
    assert_eq!(code(&node.end_of(2).await), Some(0));
    assert!(node.with(|p| p.beats.iter().all(|beat| beat.health.refuses.is_none())));
}

#[tokio::test]
async fn a_container_whose_supervisor_was_killed_is_removed_also_by_an_agent_that_runs_no_containers() {
    let Some((podman, mut node)) = node_with_podman().await else { return };
    node.with(|p| p.order(vec![in_container(order(0, "exec sleep 1000"))]));
    node.start(&["--containers", "podman"]);
    node.running(0).await;
    node.until("the container is there", |_| (podman.containers().len() == 1).then_some(())).await;
    node.kill_agent();
    let started = std::fs::read_to_string(node.alloc_dir(0).join("started")).unwrap();
    let pid = serde_json::from_str::<serde_json::Value>(&started).unwrap()["pid"].as_i64().unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), nix::sys::signal::Signal::SIGKILL).unwrap();
    node.start(&["--containers", "none"]);
    assert_eq!(node.end_of(0).await.client, ClientStatus::Lost);
    assert_eq!(podman.containers(), [] as [String; 0]);
}

#[tokio::test]
async fn an_option_in_place_of_an_image_is_refused_and_no_container_is_made() {
    let Some((podman, mut node)) = node_with_podman().await else { return };
    let images = ["--privileged", "--volume=/:/host", "image-1 --privileged"];
    let orders = images.iter().zip(0..).map(|(image, copy)| AllocOrder {
        work: Work { image: Some((*image).into()), ..order(copy, "true").work },
        ..order(copy, "true")
    });
    node.with(|p| p.order(orders.collect()));
    node.start(&["--containers", "podman"]);
    for (image, copy) in images.iter().zip(0..) {
        let end = node.end_of(copy).await;
        assert_eq!((end.client, code(&end)), (ClientStatus::Failed, None));
        let message = cause(&end);
        assert!(message.contains("is not an image reference") && message.contains(image), "{message}");
    }
    assert_eq!(podman.containers(), [] as [String; 0]);
}

#[tokio::test]
async fn sw_01_destroys_that_hang_do_not_delay_the_next_ones() {
    let Some((podman, mut node)) = node_with_podman().await else { return };
    let names = [0, 1, 2, 3].map(|copy| alloc_id(copy).to_string());
    let [hang_1, hang_2, next_1, next_2] = &names;
    let bin = podman.that_hangs(hang_1, hang_2);
    let path = std::env::var_os("PATH").unwrap().into_string().unwrap();
    node.env.push(("PATH".into(), format!("{}:{path}", bin.display())));
    for (copy, name) in (0..).zip(&names) {
        podman.run(&["create", "--name", name, IMAGE, "true"]);
        std::fs::create_dir_all(node.alloc_dir(copy)).unwrap();
        std::fs::write(node.alloc_dir(copy).join("label"), NODE_ID).unwrap();
    }
    node.start(&["--containers", "podman", "--max-destroys", "2", "--destroy-timeout-s", "0.5"]);
    // An answer names at most two handles, and these two hang.
    node.with(|p| p.destroy = vec![hang_1.clone(), hang_2.clone()]);
    let tried = || std::fs::read_to_string(bin.join("tried")).unwrap_or_default();
    node.until("both are started", |_| (tried().contains(hang_1) && tried().contains(hang_2)).then_some(())).await;
    node.with(|p| p.destroy = vec![next_1.clone(), next_2.clone()]);
    let there = |name: &String| podman.containers().contains(name);
    node.until("the next ones are destroyed", |_| (!there(next_1) && !there(next_2)).then_some(())).await;
}

#[tokio::test]
async fn a_pull_that_is_tried_again_is_told_at_once_and_the_alloc_is_not_running_yet() {
    let mut node = TestNode::new().await;
    let docker = node.dir.path().join("docker");
    let script = "#!/bin/sh
        case $1 in pull) echo 'Error response from daemon: dial tcp: i/o timeout' >&2; exit 1;; image) exit 1;; esac";
    std::fs::write(&docker, script).unwrap();
    std::fs::set_permissions(&docker, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    node.prelude = format!("PATH={}:$PATH", node.dir.path().display());
    node.with(|p| p.order(vec![in_container(order(0, "true"))]));
    node.start(&["--containers", "docker"]);
    let told = |p: &mut crate::common::ControlPlane| {
        p.reports.iter().flat_map(|report| report.allocs.clone()).find(|update| update.phase.is_some())
    };
    let update = node.until("the phase is told", |w| w.with(told)).await;
    let phase = update.phase.unwrap_or_default();
    assert!(phase.starts_with(&format!("pulling {IMAGE}, tried again: ")) && phase.ends_with("i/o timeout"), "{phase}");
    assert_eq!(update.client, ClientStatus::Pending);
    node.with(|p| p.orders[0].desired = model::Desired::Stop);
    node.with(|p| p.order(p.orders.clone()));
    let end = node.end_of(0).await;
    assert_eq!(end.phase, None);
    assert!(!node.with(|p| p.was_reported(alloc_id(0), ClientStatus::Running)), "its command never ran");
}
