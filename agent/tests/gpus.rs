//! GPUs from a file: which alloc gets which, and when they are free again.

use crate::common::{TestNode, alloc_id, cause, is_alive, order};
use model::wire::AllocOrder;
use model::{ClientStatus, Desired};
use serde_json::{Value, json};

/// Prints which GPUs it has, and runs until the file `go` is there.
const SAYS: &str =
    "echo \"$CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES\" > gpus; while ! [ -e go ]; do sleep 0.05; done";

fn with_gpus(copy: u32, gpus: u32, script: &str) -> AllocOrder {
    let mut order = order(copy, script);
    order.needs.gpus = gpus;
    order
}

/// A node with GPUs, some of them sick.
struct GpuNode(TestNode);

impl GpuNode {
    async fn new(gpus: usize, sick: &[usize]) -> Self {
        let node = Self(TestNode::new().await);
        node.write(gpus, sick);
        node
    }

    fn write(&self, gpus: usize, sick: &[usize]) {
        let gpu = |n| {
            let (uuid, busy) = (format!("GPU-{n}"), 20 * (n + 1));
            json!({"uuid": uuid, "model": "A10G", "sick": sick.contains(&n), "busy_percent": busy, "memory_mib": 512 + n})
        };
        let all: Vec<Value> = (0..gpus).map(gpu).collect();
        // Replaces the file in one step, because the agent reads it again and again.
        let new = self.0.dir.path().join("new");
        std::fs::write(&new, Value::from(all).to_string()).unwrap();
        std::fs::rename(new, self.file()).unwrap();
    }

    fn file(&self) -> std::path::PathBuf {
        self.0.dir.path().join("gpus.json")
    }

    fn start(&mut self) {
        let file = self.file();
        self.0.start(&["--gpus-from", file.to_str().unwrap()]);
    }

    fn order(&self, orders: Vec<AllocOrder>) {
        self.0.with(|plane| plane.order(orders));
    }

    /// The GPUs that an alloc sees.
    async fn sees(&self, copy: u32) -> String {
        self.0.line_of(copy, "gpus").await
    }

    fn let_go(&self, copy: u32) {
        std::fs::write(self.0.alloc_dir(copy).join("work/go"), "").unwrap();
    }

    /// What the last heartbeat says: how many GPUs can be used, and why the others cannot.
    async fn says(&self, usable: u32) -> Option<String> {
        let said = |node: &TestNode| {
            node.with(|plane| {
                plane
                    .beats
                    .last()
                    .filter(|beat| beat.health.gpus_usable == usable)
                    .map(|beat| beat.health.gpus_sick.clone())
            })
        };
        self.0.until("a heartbeat says so", said).await
    }
}

#[tokio::test]
async fn each_alloc_sees_its_own_gpus_and_one_without_sees_none() {
    let mut node = GpuNode::new(4, &[1]).await;
    node.start();
    let sick = "GPU-1 (A10G): the file says that it is sick".to_owned();
    assert_eq!(
        node.0.until("it registers", |n| n.with(|p| p.beats.first().cloned())).await.health.gpus_sick,
        Some(sick.clone())
    );
    assert_eq!(node.says(3).await, Some(sick));
    let mut first = vec![with_gpus(0, 1, SAYS), with_gpus(1, 2, SAYS), with_gpus(2, 0, SAYS)];
    node.order(first.clone());
    let seen = [node.sees(0).await, node.sees(1).await, node.sees(2).await];
    // Orders are carried out in the order of their ids.
    assert_eq!(seen, ["GPU-0 GPU-0", "GPU-2,GPU-3 GPU-2,GPU-3", "void"]);
    // The next one waits for the end of one of them, and gets what is free then.
    first.push(with_gpus(3, 1, SAYS));
    node.order(first);
    node.0.beats(3).await;
    assert!(!node.0.with(|plane| plane.was_reported(alloc_id(3), ClientStatus::Running)));
    node.let_go(0);
    assert_eq!(node.sees(3).await, "GPU-0 GPU-0");
}

/// Stands for `nvidia-smi` of a driver that shows its GPUs some time after the boot.
const NVIDIA_SMI: &str = "#!/bin/sh\ncat \"${0%/*}/shown\" || { echo NVIDIA-SMI has failed; exit 9; }\n";

#[tokio::test]
async fn gpus_that_the_driver_shows_late_are_found() {
    let mut node = TestNode::new().await;
    let bin = node.dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    // The shell before the agent writes it: no test executes a file that its own process has written.
    node.env.push(("SMI".into(), NVIDIA_SMI.into()));
    node.prelude =
        format!("cd {}; printf %s \"$SMI\" >nvidia-smi; chmod +x nvidia-smi; PATH=$PWD:$PATH", bin.display());
    node.with(|plane| plane.is_syncing = true);
    node.start(&[]);
    node.beats(2).await;
    let rows = |sick: &str| {
        format!("GPU-a, NVIDIA L4, 23034 MiB, 0 %, 0 MiB, [N/A]\nGPU-b, NVIDIA L4, {sick}, 0 %, 0 MiB, [N/A]\n")
    };
    for (shown, usable) in [(rows("[GPU is lost]"), 1), (rows("23034 MiB"), 2)] {
        // In one step, because the agent reads it again and again.
        std::fs::write(bin.join("new"), shown).unwrap();
        std::fs::rename(bin.join("new"), bin.join("shown")).unwrap();
        let says = |plane: &mut crate::common::ControlPlane| plane.beats.last().map(|beat| beat.health.gpus_usable);
        node.until("a heartbeat tells it", |n| (n.with(says) == Some(usable)).then_some(())).await;
    }
}

#[tokio::test]
async fn an_agent_that_starts_again_knows_who_has_which_gpu_even_without_its_state() {
    let mut node = GpuNode::new(3, &[]).await;
    let mut orders = vec![with_gpus(0, 1, SAYS), with_gpus(1, 1, SAYS)];
    node.order(orders.clone());
    node.start();
    assert_eq!([node.sees(0).await, node.sees(1).await], ["GPU-0 GPU-0", "GPU-1 GPU-1"]);
    for (copy, is_state_lost) in [(2, false), (3, true)] {
        node.0.kill_agent();
        if is_state_lost {
            std::fs::remove_file(node.0.data().join("state.json")).unwrap();
        }
        orders.push(with_gpus(copy, 1, SAYS));
        node.order(orders.clone());
        node.start();
        if !is_state_lost {
            assert_eq!(node.sees(copy).await, "GPU-2 GPU-2");
            continue;
        }
        node.0.beats(4).await;
        assert!(!node.0.alloc_dir(copy).join("work/gpus").exists(), "all three are taken");
        node.let_go(1);
        assert_eq!(node.sees(copy).await, "GPU-1 GPU-1");
    }
}

#[tokio::test]
async fn an_end_says_how_busy_its_own_gpus_were() {
    let mut node = GpuNode::new(3, &[]).await;
    node.order(vec![with_gpus(0, 1, SAYS), with_gpus(1, 2, SAYS), with_gpus(2, 0, SAYS)]);
    node.start();
    for copy in 0..3 {
        node.0.running(copy).await;
    }
    let written = |node: &TestNode| std::fs::metadata(node.data().join("gpu-samples.json")).ok()?.modified().ok();
    let before = node.0.until("a look", written).await;
    node.0.until("another look", |node| written(node).filter(|at| *at > before)).await;
    let mut used = Vec::new();
    for copy in 0..3 {
        node.let_go(copy);
        let usage = node.0.end_of(copy).await.run.usage.unwrap();
        used.push((usage.gpu_percent, usage.gpu_memory_mib));
    }
    assert_eq!(used, [(Some(20), Some(512)), (Some(50), Some(514)), (None, None)]);
}

#[tokio::test]
async fn a_gpu_is_free_only_when_nothing_of_its_alloc_runs() {
    let mut node = GpuNode::new(1, &[]).await;
    // It ignores TERM, and so does what it leaves behind.
    let stubborn = "trap '' TERM; (setsid sh -c \"trap '' TERM; while :; do sleep 0.1; done\" & echo $! > pid); while :; do sleep 0.1; done";
    let mut first = with_gpus(0, 1, stubborn);
    first.failure_policy.kill_timeout_s = 2;
    node.order(vec![first.clone()]);
    node.start();
    let pid = node.0.line_of(0, "pid").await;
    node.0.running(0).await;
    first.desired = Desired::Stop;
    let next = with_gpus(1, 1, &format!("kill -0 {pid} 2> /dev/null && echo both > gpus || echo alone > gpus"));
    node.order(vec![first, next]);
    assert_eq!(node.sees(1).await, "alone");
    assert!(!is_alive(&pid));
}

#[tokio::test]
async fn an_order_for_more_gpus_than_can_be_used_is_the_nodes_fault_and_at_once() {
    let mut node = GpuNode::new(2, &[]).await;
    node.order(vec![with_gpus(0, 1, SAYS)]);
    node.start();
    assert_eq!(node.sees(0).await, "GPU-0 GPU-0");
    // A GPU fell off the bus after the control plane had placed the job.
    node.write(1, &[]);
    assert_eq!(node.says(1).await.as_deref(), Some("GPU-1 (A10G): the file does not list it any more"));
    node.order(vec![with_gpus(0, 1, SAYS), with_gpus(1, 2, SAYS)]);
    let end = node.0.end_of(1).await;
    assert_eq!(end.client, ClientStatus::Lost);
    let why = "its node could not start it: it needs 2 GPUs and 1 of this machine can be used (GPU-1 (A10G): the file does not \
               list it any more)";
    assert_eq!(cause(&end), why);
    // It comes back, and what ran meanwhile goes on.
    node.write(2, &[]);
    assert_eq!(node.says(2).await, None);
    node.let_go(0);
    assert_eq!(node.0.end_of(0).await.client, ClientStatus::Complete);
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_an_error_at_the_start_and_later_makes_all_sick() {
    let mut node = GpuNode::new(1, &[]).await;
    let file = node.file();
    std::fs::write(&file, "[{}]").unwrap();
    node.start();
    assert_eq!(node.0.agent_exit_code().await, Some(1));
    node.write(1, &[]);
    node.start();
    assert_eq!(node.says(1).await, None);
    std::fs::remove_file(&file).unwrap();
    assert!(node.says(0).await.is_some_and(|sick| sick.contains("No such file")));
}
