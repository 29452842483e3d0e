//! An operator sees the whole story of a job with one command.

use crate::world::{World, credentials, dynamo_client, quick_policy, s3_client};
use clap::Parser;
use model::{AllocId, ClientStatus, Ending, JobId, NodeStatus, Time};
use nodekeeper_agent::protocol::Observed;
use nodekeeper_cli::command::{self, Command};
use nodekeeper_cli::console::{Cluster, ClusterAccess, Context, Screen};
use serde_json::{Value, json};
use std::sync::Arc;
use store::Dynamo;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: Command,
}

/// Runs a command as an operator would. Returns the output, or the error.
pub async fn operate(cluster: Cluster, now: Time, line: &[&str]) -> Result<String, String> {
    let command = Line::try_parse_from(std::iter::once(&"nodekeeper").chain(line)).unwrap().command;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut context = Context {
        connect: Box::new(move || {
            let cluster = cluster.clone();
            Box::pin(async move { Ok(cluster) })
        }),
        clock: Arc::new(move || now),
        screen: Screen::Pipe,
        err_screen: Screen::Pipe,
        in_screen: Screen::Pipe,
        colours: false,
        input: &mut std::io::empty(),
        out: &mut out,
        err: &mut err,
    };
    command::run(command, &mut context).await.map_err(|e| format!("{e:#}"))?;
    Ok(String::from_utf8(out).unwrap())
}

impl World {
    pub async fn operate(&self, line: &[&str]) -> String {
        let (store, cloud) = (self.look.clone(), Arc::clone(&self.cloud));
        // The commands of these tests create no tables, so this client is not used.
        let dynamo = Dynamo::new(dynamo_client("http://127.0.0.1:9"), self.cluster.clone());
        let outputs = s3_client("http://127.0.0.1:9", "us-east-1", credentials());
        operate(Cluster { store, dynamo, cloud, outputs, reach: ClusterAccess::default() }, self.now(), line)
            .await
            .unwrap()
    }

    /// Steps until the alloc is in this state and exactly `ready` nodes are ready.
    async fn until(&mut self, alloc: AllocId, client: ClientStatus, ready: usize) {
        for _ in 0..100 {
            self.step().await;
            let nodes = self.look.nodes().await.unwrap();
            let is_ready = nodes.iter().filter(|n| n.status() == Some(NodeStatus::Ready)).count();
            let alloc = self.look.alloc(alloc).await.unwrap();
            if is_ready == ready && alloc.is_some_and(|a| a.summary.client == client) {
                return;
            }
        }
        panic!("{alloc} was never {client} beside {ready} ready nodes");
    }

    /// Ends the process of an alloc with this exit code, wherever the alloc runs.
    fn end_process(&mut self, alloc: AllocId, exit_code: i32) {
        for node in self.nodes.values_mut() {
            if node.protocol.unfinished().contains(&alloc) {
                let cause = model::EndCause::Exited { code: exit_code };
                node.protocol.observe(alloc, Observed::Ended(Box::new(Ending::new(cause))));
            }
        }
    }
}

/// The events of a story, each with its subject (without ids), action and reason.
fn told(story: &Value, id: JobId) -> Vec<String> {
    let text = |row: &Value, name: &str| row[name].as_str().unwrap().replace(&id.to_string(), "J");
    let rows = story.as_array().unwrap();
    rows.iter()
        .map(|row| format!("{} {}: {}", text(row, "subject"), text(row, "action"), text(row, "reason")))
        .collect()
}

#[tokio::test]
async fn history_of_a_job_is_its_whole_story() {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 2, "min": 2});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    let submit = ["submit", "--exclusive", "--replace", "--retry-failed", "1", "--", "forever"];
    let id: JobId = world.operate(&submit).await.trim().parse().unwrap();
    let copy = |copy| AllocId { job_id: id, member: 0, copy };
    world.until(copy(0), ClientStatus::Running, 2).await;

    // The node is cut off, a copy is placed, and the node comes back. The original started first, so it stays.
    let on = world.look.alloc(copy(0)).await.unwrap().unwrap().summary.node_id;
    let cut_off = |world: &mut World, silent| {
        world.nodes.values_mut().filter(|n| n.file.node_id == on).for_each(|n| n.silent = silent);
    };
    cut_off(&mut world, true);
    world.until(copy(1), ClientStatus::Running, 1).await;
    cut_off(&mut world, false);
    world.until(copy(1), ClientStatus::Failed, 2).await;
    // The copy fails once, is tried again, and completes.
    world.end_process(copy(0), 3);
    world.until(copy(2), ClientStatus::Running, 2).await;
    world.end_process(copy(2), 0);
    world.until(copy(2), ClientStatus::Complete, 2).await;

    let story = told(&serde_json::from_str(&world.operate(&["history", "--json", &id.to_string()]).await).unwrap(), id);
    let mut rest = story.iter();
    for (begins, holds) in [
        ("job#J submit: ", "priority 500, 1 node(s)"),
        ("job#J wait: ", "this run launches for it: slot 0"),
        ("alloc#J.0.0 place: on slot 0", "(0-"),
        ("alloc#J.0.0 start: ", "reported by its node"),
        ("alloc#J.0.0 unknown_alloc: ", "its node is disconnected; its job waits 600 s for it"),
        ("alloc#J.0.1 place: a copy on slot 1", "J.0.0 is unknown, and its job wants a copy meanwhile"),
        ("alloc#J.0.1 start: ", "reported by its node"),
        ("alloc#J.0.0 return_alloc: ", "its node reports it again"),
        ("alloc#J.0.0 resolve_reconnect: ", "its node is back: J.0.0 stays of 2 copies, by best"),
        ("alloc#J.0.1 end_alloc: failed", "exit code 143"),
        ("alloc#J.0.0 end_alloc: failed", "exit code 3"),
        ("job#J end_job: ", "queued: exit code 3; retry 1 of 1, 0 left"),
        ("alloc#J.0.2 place: on slot ", ""),
        ("alloc#J.0.2 start: ", "reported by its node"),
        ("alloc#J.0.2 end_alloc: complete", "exit code 0"),
        ("job#J end_job: ", "complete"),
    ] {
        let line = rest.next().unwrap_or_else(|| panic!("{begins} is not told: {story:#?}"));
        assert!(line.starts_with(begins) && line.contains(holds), "{begins}…{holds} is not {line}: {story:#?}");
    }
    assert_eq!(rest.next(), None, "{story:#?}");

    // The table shows exact times, times since the submission, and times before now.
    let table = world.operate(&["history", &id.to_string()]).await;
    println!("{table}");
    let first = table.lines().nth(1).unwrap();
    assert!(first.starts_with("2027-01-15T08:00:00.000Z (") && first.contains(" ago)  0 ms"), "{table}");
    // The copy has its own story.
    let copys = world.operate(&["history", &copy(1).to_string()]).await;
    assert_eq!(copys.lines().count(), 4, "{copys}");
}

#[tokio::test]
async fn a_job_without_retries_that_is_drained_twice_ends_complete_and_its_story_says_who_moved_it() {
    let mut policy = quick_policy();
    policy["nodes"] = json!({"max": 3, "min": 2});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    let submit = ["submit", "--retry", "lost=fail", "--kill-timeout", "1", "--", "forever"];
    let id: JobId = world.operate(&submit).await.trim().parse().unwrap();
    let copy = |copy| AllocId { job_id: id, member: 0, copy };
    for n in 0..2 {
        world.until(copy(n), ClientStatus::Running, 2).await;
        let slot = world.look.alloc(copy(n)).await.unwrap().unwrap().summary.slot.to_string();
        let said = world.operate(&["drain", &slot, "--by", "30s"]).await;
        assert!(
            said.contains("what runs there is told to stop now") || said.contains("in the minute before"),
            "{said}"
        );
        world.end_when_stopped(copy(n)).await;
    }
    world.until(copy(2), ClientStatus::Running, 2).await;
    world.end_process(copy(2), 0);
    world.until(copy(2), ClientStatus::Complete, 2).await;
    let job = world.look.job(id).await.unwrap().unwrap();
    let counts = (job.lost_count, job.failed_count, job.summary.tries.moves);
    assert_eq!((job.summary.state, counts), (model::JobState::Complete, (0, 0, 2)));
    let story = world.operate(&["history", &id.to_string()]).await;
    for n in 1..=2 {
        let move_n = format!("this costs no try (move {n} of 20)");
        let line = story.lines().find(|line| line.contains(&move_n)).unwrap_or_else(|| panic!("{story}"));
        assert!(line.contains("moved: an operator drains its node: what runs there stops before"), "{line}");
    }
}

impl World {
    /// Steps until the alloc is told to stop, and ends its process.
    async fn end_when_stopped(&mut self, alloc: AllocId) {
        for _ in 0..100 {
            self.step().await;
            if self.look.alloc(alloc).await.unwrap().is_some_and(|a| a.summary.desired == model::Desired::Stop) {
                return self.end_process(alloc, 143);
            }
        }
        panic!("{alloc} was never told to stop");
    }
}
