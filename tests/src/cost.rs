mod account;
mod fleet;
mod meter;

use fleet::{Fleet, Kind};
use meter::Use;
use model::JobSpec;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn policy(nodes: i64) -> Value {
    let mut policy = model::policy::example_json();
    policy["nodes"] = json!({"min": nodes, "max": nodes.max(10)});
    policy["launch"]["subnets"] = json!(["subnet-0123456789abcdef0"]);
    policy["launch"]["calls_per_second"] = json!(1000);
    policy["launch"]["max_per_run"] = json!(1000);
    policy
}

#[tokio::test(start_paused = true)]
async fn look() {
    for n in [0, 10, 40, 160] {
        for busy in [false, true] {
            let spec = JobSpec { command: vec!["forever".into()], exclusive: true, ..JobSpec::default() };
            let mut fleet = Fleet::new(&policy(n), spec).await;
            if busy {
                fleet.submit(n, 1);
            }
            fleet.pass(3600).await;
            fleet.take();
            fleet.pass(3600).await;
            let mut by: BTreeMap<Kind, Vec<Use>> = BTreeMap::new();
            for i in fleet.take() {
                by.entry(i.kind).or_default().push(i.used);
            }
            println!("{n} {busy} up {}", fleet.up());
            for (kind, uses) in by {
                let sum = uses.iter().fold(Use::default(), |a, b| a + *b) * (1.0 / uses.len() as f64);
                println!("   {kind:?} {} {sum:?}", uses.len());
            }
        }
    }
}
