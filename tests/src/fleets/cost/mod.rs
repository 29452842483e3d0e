//! The cost of nodekeeper itself in a month. It computes the tables of docs/cost.md from the calls of the real
//! functions and a list of prices.

mod account;
mod bill;
mod fleet;
mod limits;
mod measure;
mod meter;
mod page;

use bill::{ACTIONS_MS, Bill, HEARTBEAT_MS, LEFT_MS, Load, REPORT_MS, RUNS_MS, Template, total, units};
use fleet::Kind;
use measure::{Lifetime, Line, Measured, measure};
use meter::Use;
use model::Policy;
use model::policy::example_json;
use serde_json::{Value, json};

const PAGE: &str = "docs/cost.md";
const FLEETS: [f64; 5] = [0.0, 10.0, 100.0, 1000.0, 10_000.0];
/// The work of a busy node: one job after the other, a quarter of an hour each, for eight hours.
const JOBS_PER_NODE_HOUR: f64 = 4.0;
const LIVES_PER_NODE_DAY: f64 = 3.0;

fn load(nodes: f64, is_busy: bool, changes: &Value) -> Load {
    let mut policy = example_json();
    for (section, knobs) in changes.as_object().unwrap() {
        policy[section] = knobs.clone();
    }
    let policy = Policy::from_json(&policy).unwrap();
    let (jobs_per_node_hour, lives_per_node_day) =
        if is_busy { (JOBS_PER_NODE_HOUR, LIVES_PER_NODE_DAY) } else { (0.0, 0.0) };
    Load { policy, nodes, jobs_per_node_hour, lives_per_node_day }
}

/// An amount of dollars, with at least three digits.
fn dollars(amount: f64) -> String {
    if amount >= 99.95 {
        let whole = format!("{amount:.0}");
        let (head, tail) = whole.split_at(whole.len().saturating_sub(3));
        return if head.is_empty() { tail.to_owned() } else { format!("{head},{tail}") };
    }
    if amount >= 9.995 { format!("{amount:.1}") } else { format!("{amount:.2}") }
}

fn row(name: &str, amounts: impl Iterator<Item = f64>) -> String {
    let cells: Vec<String> = amounts.map(dollars).collect();
    format!("| {name} | {} |", cells.join(" | "))
}

/// A table with a column for each size of the fleet.
fn month(seen: &Measured, template: &Template, is_busy: bool) -> Vec<String> {
    let bills: Vec<Bill> = FLEETS.iter().map(|nodes| load(*nodes, is_busy, &json!({})).bill(seen, template)).collect();
    let names: Vec<&str> = bills[0].iter().map(|(name, _)| *name).collect();
    let is_used = |n: &usize| bills.iter().any(|bill| bill[*n].1 > 0.0);
    let used = (0..names.len()).filter(is_used);
    let mut rows: Vec<String> = used.map(|n| row(names[n], bills.iter().map(|bill| bill[n].1))).collect();
    rows.push(row("**together**", bills.iter().map(total)));
    let a_node = bills.iter().zip(FLEETS).skip(1).map(|(bill, nodes)| dollars(total(bill) / nodes));
    rows.push(format!("| a node | – | {} |", a_node.collect::<Vec<_>>().join(" | ")));
    rows
}

/// The cost of one call, run or life: units, and dollars for a million.
fn each(seen: &Measured) -> Vec<String> {
    let call = |name: &str, used: Use| {
        format!("| {name} | {:.1} | {:.1} | {} |", used.reads, used.writes, dollars(units(used) * 1e6))
    };
    let life = |name: &str, life: &Lifetime| call(name, life.used);
    let run = |name: &str, line: &Line| {
        let (zero, node) = (line.at_zero, line.per_node);
        let price = |nodes: f64| dollars(units(line.at(nodes)) * 1e6);
        format!(
            "| {name} | {:.1} + {:.3} a node | {:.1} | {} to {} with 10,000 nodes |",
            zero.reads,
            node.reads,
            zero.writes,
            price(0.0),
            price(10_000.0)
        )
    };
    vec![
        call("heartbeat that renews the lease", seen.beat.renews),
        call("heartbeat that only asks", seen.beat.asks),
        call("handle report of each hour", seen.handle_report),
        call("event that comes too soon", seen.left),
        run("run of poll-and-scale, idle fleet", &seen.idle[&Kind::Poll]),
        run("run of poll-and-scale, a job on each node", &seen.busy[&Kind::Poll]),
        run("scheduled run of sweep-dispatch, idle fleet", &seen.idle[&Kind::Sweep]),
        run("run of clean-stale-records, idle fleet", &seen.idle[&Kind::Clean]),
        life("whole life of a job", &seen.job),
        life("whole life of a node", &seen.node),
    ]
}

/// The effect of settings: the sum of a month with 10,000 nodes.
fn settings(seen: &Measured, template: &Template) -> Vec<String> {
    let nodes = 10_000.0;
    let changes = [
        ("the defaults", json!({})),
        ("`heartbeat.idle_s = 60`", json!({"heartbeat": {"idle_s": 60}})),
        ("`heartbeat.max_per_second = 100`", json!({"heartbeat": {"max_per_second": 100}})),
    ];
    let sum = |busy: bool, change: &Value| total(&load(nodes, busy, change).bill(seen, template));
    changes.iter().map(|(name, change)| row(name, [sum(false, change), sum(true, change)].into_iter())).collect()
}

/// The durations of invocations that the bill assumes.
fn times() -> Vec<String> {
    let [(few, few_ms), (many, many_ms)] = RUNS_MS;
    let (few, many) = (dollars(few), dollars(many));
    vec![
        format!("| heartbeat, handle report without news | {HEARTBEAT_MS} | one call of DynamoDB |"),
        format!("| report with news | {REPORT_MS} | some calls, one after the other |"),
        format!("| event that comes too soon | {LEFT_MS} | one call |"),
        format!("| run with {few} nodes | {few_ms} | an idle run with the embedded DynamoDB on one core |"),
        format!("| run with {many} nodes | {many_ms} | the same |"),
        format!("| what a job, or a life of a node, adds to the runs | {ACTIONS_MS} | its writes |"),
    ]
}

#[tokio::test(start_paused = true)]
async fn nightly_the_costs_in_the_documents_are_those_of_the_code() {
    let (seen, template) = (measure().await, Template::read());
    let tables = [
        ("each", each(&seen)),
        ("idle", month(&seen, &template, false)),
        ("busy", month(&seen, &template, true)),
        ("settings", settings(&seen, &template)),
        ("times", times()),
    ];
    for (name, rows) in &tables {
        println!("{name}\n{}\n", rows.join("\n"));
    }
    for (name, rows) in &tables {
        page::check(PAGE, name, rows);
    }
    let (renewals, asks) = load(160.0, false, &json!({})).heartbeats();
    let (computed, measured) = (renewals / (renewals + asks), seen.beat.renewing_share);
    assert!((computed / measured - 1.0).abs() < 0.1, "{measured} of an idle node's heartbeats renew, not {computed}");
    let nothing = total(&load(0.0, false, &json!({})).bill(&seen, &template));
    assert!(nothing < 3.0, "README.md says that less than 3 dollars remain without work, not {nothing}");
}

/// Every type of resource of the template is either billed or free. A new type needs a row in the bill, or a place
/// here.
#[test]
fn the_bill_knows_every_type_of_resource_of_the_template() {
    const BILLED: [&str; 5] = [
        "AWS::CloudWatch::Alarm",
        "AWS::DynamoDB::Table",
        "AWS::Logs::LogGroup",
        "AWS::SNS::Topic",
        "AWS::Serverless::Function",
    ];
    // The agent in the bucket has some megabytes, which cost less than a cent.
    const FREE: [&str; 21] = [
        "AWS::EC2::InternetGateway",
        "AWS::EC2::LaunchTemplate",
        "AWS::EC2::Route",
        "AWS::EC2::RouteTable",
        "AWS::EC2::SecurityGroup",
        "AWS::EC2::SecurityGroupIngress",
        "AWS::EC2::Subnet",
        "AWS::EC2::SubnetRouteTableAssociation",
        "AWS::EC2::VPC",
        // Gateways to S3 and DynamoDB are free. Those of other services are not.
        "AWS::EC2::VPCEndpoint",
        "AWS::EC2::VPCGatewayAttachment",
        "AWS::IAM::InstanceProfile",
        "AWS::IAM::ManagedPolicy",
        "AWS::IAM::Role",
        "AWS::Lambda::Permission",
        "AWS::Lambda::Url",
        "AWS::Logs::QueryDefinition",
        "AWS::S3::Bucket",
        "AWS::S3::BucketPolicy",
        "AWS::SNS::Subscription",
        "AWS::Scheduler::ScheduleGroup",
    ];
    let template = Template::read();
    let unknown: Vec<&str> =
        template.types().into_iter().filter(|t| !BILLED.contains(t) && !FREE.contains(t)).collect();
    assert!(unknown.is_empty(), "say in tests/src/fleets/cost/mod.rs whether AWS bills these types: {unknown:?}");
    assert!(template.resources("AWS::CloudWatch::Alarm") > 0 && template.alarm_metrics() > 0);
}
