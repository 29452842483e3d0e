//! The permissions that the users of the commands need: `infra/people.json`. `infra/check.py` compares the policies of the
//! template with this file.
//!
//! Everybody may read every table. So the file lists only the other calls.

use super::*;
use crate::commands::set_up::policy::PolicyCommand;
use model::{Offers, StoredOutput, Work};
use std::collections::BTreeSet;
use store::Effect;

/// The person with the fewest permissions who may use this command. `None`: the command calls nothing, or is not for a
/// deployed cluster. Who makes, ends or examines a whole stack has the rights of its account.
fn who(command: &Command) -> Option<&'static str> {
    match command {
        Command::Contract
        | Command::Policy(PolicyCommand::Check(_))
        | Command::Up(_)
        | Command::Down(_)
        | Command::Doctor(_) => None,
        Command::Policy(PolicyCommand::Show(_))
        | Command::Jobs(_)
        | Command::Job(_)
        | Command::Logs(_)
        | Command::Nodes(_)
        | Command::Node(_)
        | Command::Handles(_)
        | Command::Plan(_)
        | Command::History(_)
        | Command::Status(_)
        | Command::Cost(_)
        | Command::Shares(_)
        | Command::Web(_) => Some("reader"),
        Command::Submit(_)
        | Command::Batch(_)
        | Command::Rerun(_)
        | Command::Run(_)
        | Command::Fetch(_)
        | Command::Cancel(_)
        | Command::Pause(_)
        | Command::Continue(_)
        | Command::Change(_)
        | Command::Exec(_)
        | Command::Shell(_) => Some("submitter"),
        Command::Policy(PolicyCommand::Set(_))
        | Command::Sizes(_)
        | Command::Hold(_)
        | Command::Drain(_)
        | Command::Resume(_)
        | Command::Release(_)
        | Command::Demand(_)
        | Command::Teardown(_) => Some("operator"),
    }
}

/// The calls without which `logs` still prints the end: it makes the node store what there is, and reads what is stored.
const OF_LOGS: [&str; 2] = ["dynamodb:UpdateItem nodes", "s3:GetObject"];

/// The calls for EC2's offers, which an operator needs. The trait `Cloud` has none of them, so [`NotingCloud`] does not see them.
const OFFERS: [&str; 7] = [
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "pricing:GetProducts",
    "servicequotas:ListServiceQuotas",
];

/// The output of the ended job.
const KEPT: &str = "kept=s3://logs/kept";

type Calls = Arc<Mutex<BTreeSet<String>>>;

/// A store that notes each write.
fn noting(db: Dynamo, calls: Calls) -> Store {
    let note = move |writes: &[DbWrite]| {
        for write in writes {
            let operation = match write.effect {
                Effect::Put(_) => "PutItem",
                Effect::Update { .. } => "UpdateItem",
                Effect::Delete => "DeleteItem",
                Effect::Check => "ConditionCheckItem",
            };
            calls.lock().unwrap().insert(format!("dynamodb:{operation} {}", write.key.table.suffix()));
        }
        None
    };
    Store::new(Arc::new(Watched { before_write: Box::new(note), ..Watched::new(db) }))
}

/// EC2 with one instance that no record claims.
struct NotingCloud(Calls, FixedOffers);

#[async_trait]
impl Cloud for NotingCloud {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        self.0.lock().unwrap().insert("ec2:DescribeInstances".to_owned());
        let tags = BTreeMap::new();
        let state = model::cloud::InstanceState::Running;
        Ok(vec![Instance {
            instance_id: "i-9".into(),
            state,
            launched_at: at(0),
            zone: None,
            instance_type: None,
            subnet_id: None,
            tags,
        }])
    }
    async fn instance(&self, _: &str) -> Result<Option<Instance>, CloudError> {
        self.0.lock().unwrap().insert("ec2:DescribeInstances".to_owned());
        Ok(None)
    }
    async fn launch(&self, _: &LaunchRequest, _: &str) -> Result<LaunchAnswer, LaunchError> {
        panic!("a command launched")
    }
    async fn terminate(&self, _: &[String]) -> Result<(), CloudError> {
        self.0.lock().unwrap().insert("ec2:TerminateInstances".to_owned());
        Ok(())
    }
    async fn console_output(&self, _: &str) -> Result<Option<String>, CloudError> {
        panic!("a command read a console")
    }
    fn offers(&self) -> Option<&dyn Offers> {
        for call in OFFERS {
            self.0.lock().unwrap().insert(call.to_owned());
        }
        Some(&self.1)
    }
}

/// Stores a lost job with a stored output. Returns its id.
async fn put_stored(world: &World, s3: &output_store::FakeS3) -> String {
    let job = world.put_job(3).await;
    let work = Work { outputs: vec![KEPT.parse().unwrap()], ..job.work.clone() };
    let job = world.store().write(Some(&job), &Job { work, ..job.clone() }, Vec::new()).await.unwrap();
    let alloc = Alloc::place(fixtures::alloc_id(3), &job, &fixtures::ready(0), at(100)).unwrap();
    let place = Some("s3://logs/3.log".parse().unwrap());
    let content = s3.put_content("kept");
    let kept = vec![StoredOutput { path: "kept".into(), content, to: Some("s3://logs/kept".parse().unwrap()) }];
    let run = RunReport { kept, ..RunReport::default() };
    let alloc = Alloc { output_s3: place, run, ..alloc.end(&Ending::lost("gone"), Span::from_s(9), at(200)) };
    let placed = job.with_placed(&[alloc.id()]).unwrap();
    world.store().write(Some(&job), &placed, Vec::new()).await.unwrap();
    world.store().write(None, &alloc, Vec::new()).await.unwrap();
    s3.put("3.log", b"stored", model::stored::END);
    job.summary.job_id.to_string()
}

#[tokio::test]
async fn the_calls_of_the_commands_are_those_that_the_policies_allow() {
    let world = World::with_policy().await;
    let (job, alloc) = world.put_running(1).await;
    let alloc = world.store().write(Some(&alloc), &output::stored_in_s3(&alloc), Vec::new()).await.unwrap();
    let (queued, s3) = (world.put_job(2).await, output_store::FakeS3::default());
    let (ended, outputs) = (put_stored(&world, &s3).await, s3.serve().await);
    world.put_entry(fixtures::brake(model::BrakeKind::Missing, "poll-and-scale", vec!["0-x".into()], at(900))).await;
    let dir = tempfile::tempdir().unwrap();
    let with_bucket = format!("{POLICY}\n[output]\ns3 = \"s3://logs\"\n");
    let policy = file(&dir, "p.toml", &with_bucket.replace("max = 4", "max = 3"));
    let (job, queued, alloc) =
        (job.summary.job_id.to_string(), queued.summary.job_id.to_string(), alloc.id().to_string());
    let as_stored = file(&dir, "same.toml", &with_bucket);
    world.run(&["policy", "set", &as_stored]).await.done();
    let file_of_jobs = file(&dir, "jobs.ndjson", "{\"command\": \"true\"}\n{\"command\": \"false\"}\n");
    let input = file(&dir, "input", "an input");
    let fetched = dir.path().join("fetched").display().to_string();
    let mut made = BTreeMap::<&str, BTreeSet<String>>::new();
    for line in [
        &["policy", "show"][..],
        &["jobs"],
        &["jobs", "--all"],
        &["job", &job],
        &["logs", &job],
        &["logs", &alloc],
        &["logs", &ended],
        &["nodes"],
        &["node", "0"],
        &["handles", "0"],
        &["plan"],
        &["history", "cluster"],
        &["status"],
        &["cost"],
        &["submit", "--", "true"],
        &["submit", "--file", &file_of_jobs],
        &["submit", "--in", &input, "--", "true"],
        &["fetch", &ended, ".", &fetched],
        &["cancel", "--name", "none", "--yes"],
        &["pause", &queued],
        &["continue", &queued],
        &["change", &queued, "--priority", "9"],
        &["cancel", &queued],
        &["policy", "set", &policy],
        &["sizes"],
        &["hold", "0"],
        &["drain", "0"],
        &["resume", "0"],
        &["release", "missing"],
        &["demand", "set", "ci", "--size", "small", "--count", "1"],
        &["cancel", &job],
        &["teardown", "test", "--cancel-jobs", "--terminate", "--timeout-s", "0"],
    ] {
        let calls = Calls::default();
        let mut watched = world.clone();
        watched.cluster.store = noting(world.cluster.dynamo.clone(), Arc::clone(&calls));
        watched.cluster.outputs = outputs.clone();
        watched.cluster.cloud = Arc::new(NotingCloud(Arc::clone(&calls), FixedOffers::default()));
        watched.tick = Span::from_s(if line[0] == "logs" { 1 } else { 0 });
        let node = output::FakeNode::new(&world, &s3, "printed\n");
        let said = node.answering(watched.run(line)).await;
        assert!(said.result.is_ok(), "{line:?}: {said:?}");
        let who = who(&parse(line).unwrap()).unwrap();
        let mut calls = calls.lock().unwrap().clone();
        let asked = s3.asked().into_iter();
        calls
            .extend(asked.map(|call| if call.starts_with("PUT") { "s3:PutObject" } else { "s3:GetObject" }.to_owned()));
        // A person with more permissions needs these calls, too.
        let powers = ["reader", "submitter", "operator"];
        for more in powers.iter().skip_while(|power| **power != who) {
            let needed = calls.iter().filter(|call| *more != "reader" || !OF_LOGS.contains(&call.as_str()));
            made.entry(more).or_default().extend(needed.cloned());
        }
    }
    made.entry("operator").or_default().extend(OFFERS.map(str::to_owned));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../infra/people.json");
    let listed = std::fs::read_to_string(&path).unwrap();
    let made = serde_json::to_string_pretty(&made).unwrap();
    assert_eq!(listed.trim_end(), made, "{}: write this", path.display());
}
