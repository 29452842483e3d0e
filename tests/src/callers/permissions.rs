//! The AWS calls of each function. A function needs the permissions for these calls and no others.
//!
//! The simulation runs the real functions, and records every call at the boundaries of the store and of EC2.
//! `infra/calls.json` lists these calls. `infra/check.py` compares the template's policies with the list, in both
//! directions.
//!
//! No simulated world loses single rows. So a table of cases deletes each kind of row before each event that can happen
//! to work. These worlds record calls too.

use crate::second_opinions::root;
use crate::simulation::world;
use crate::world::raw::{Item, Raw, item, n, s};
use crate::world::{World, job, lonely_job, patient_policy};
use model::functions::{CLEAN_STALE_RECORDS, HEARTBEAT_INGEST, POLL_AND_SCALE};
use model::{FailurePolicy, Intent, JobSpec, Needs};
use nodekeeper_simulation::world::{How, simulate};
use std::collections::{BTreeMap, BTreeSet};

/// The options and the seeds of worlds in which every call that the simulation knows is made several times. When the
/// simulation changes, a seed gives another world, and other seeds may be needed.
const WORLDS: &[(&str, &[u64])] = &[
    ("--small --hours 1", &[14, 84, 92, 106]),
    (
        "--small --hours 2 --fault InstanceDies=0.1 --fault FunctionDown=0.01",
        &[1, 2, 3, 4, 5, 6, 7, 8, 13, 18, 28, 39, 90, 97, 110],
    ),
    ("--small --hours 1 --fault StrayHandle=0.2", &[3, 8, 14, 19]),
    ("--small --hours 4", &[22, 71, 109]),
    ("--small --hours 4 --fault InstanceDies=0.1 --fault FunctionDown=0.01", &[15, 74]),
    // Copies run while their originals are silent.
    ("--small --hours 2 --fault CutOff=0.1", &[1]),
    ("--hours 4", &[3]),
    ("--hours 8", &[40]),
    ("--batches --small --hours 1 --fault RunsOverlap=0.3 --fault LaunchAnswerLost=0.4", &[1, 2, 3]),
    // Several instances are not listed, and are orphans later.
    ("--small --hours 2 --fault ListCollapses=0.05 --fault ListLoses=0.3", &[11, 12]),
    // clean-stale-records ends the work on nodes that nobody else looks at.
    ("--small --hours 3 --fault CutOff=0.05 --fault InstanceDies=0.1 --fault FunctionDown=0.05", &[11, 17]),
    // The policy has shares, one of them with a limit.
    ("--small --hours 1 --fault Shares=1", &[1]),
    // Demand sets end.
    ("--small --hours 1 --fault ForeignWork=0.4 --fault ControllerWants=0.5", &[1]),
];

/// Calls that are too rare for these worlds: the function, the call, and the test that makes it.
const RARE: &[(&str, &str, &str)] = &[
    (
        "clean-stale-records",
        "dynamodb:BatchGetItem jobs",
        "beside::a_job_whose_row_cannot_be_read_beyond_the_index_keeps_no_node",
    ),
    (
        "clean-stale-records",
        "dynamodb:ConditionCheckItem jobs",
        "permissions::a_lost_row_needs_only_what_the_roles_allow",
    ),
    (
        "clean-stale-records",
        "dynamodb:GetItem control",
        "permissions::a_catalogue_that_cannot_be_read_is_replaced_as_the_roles_allow",
    ),
    ("clean-stale-records", "ec2:DescribeInstanceTypeOfferings", "offers::what_ec2_offers_is_read_in_pages"),
    ("clean-stale-records", "ec2:DescribeInstanceTypes", "offers::what_ec2_offers_is_read_in_pages"),
    ("clean-stale-records", "ec2:DescribeSpotPriceHistory", "offers::what_ec2_offers_is_read_in_pages"),
    ("clean-stale-records", "ec2:DescribeSubnets", "offers::what_ec2_offers_is_read_in_pages"),
    (
        "clean-stale-records",
        "ec2:DescribeCapacityReservations",
        "offers::capacity_reservations_are_read_with_what_is_free",
    ),
    ("clean-stale-records", "pricing:GetProducts", "offers::what_ec2_offers_is_read_in_pages"),
    ("clean-stale-records", "servicequotas:ListServiceQuotas", "offers::what_ec2_offers_is_read_in_pages"),
    ("heartbeat-ingest", "dynamodb:ConditionCheckItem jobs", "permissions::a_lost_row_needs_only_what_the_roles_allow"),
    ("grant-credentials", "dynamodb:BatchGetItem control", "rights::the_function_makes_the_calls_that_its_role_allows"),
    ("grant-credentials", "dynamodb:GetItem allocs", "rights::the_function_makes_the_calls_that_its_role_allows"),
    ("grant-credentials", "dynamodb:GetItem jobs", "rights::the_function_makes_the_calls_that_its_role_allows"),
    ("grant-credentials", "dynamodb:GetItem nodes", "rights::the_function_makes_the_calls_that_its_role_allows"),
    ("grant-credentials", "sts:AssumeRole", "rights::a_role_is_assumed_as_sts_expects"),
    ("grant-credentials", "sts:TagSession", "rights::a_role_is_assumed_as_sts_expects"),
];

/// The calls that the functions make in these worlds.
fn made(worlds: &[(&str, &[u64])]) -> BTreeMap<String, BTreeSet<String>> {
    let mut made: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (options, seeds) in worlds {
        for seed in *seeds {
            for (function, calls) in simulate(world(*seed, options), How::default()).happened.calls {
                made.entry(function.to_owned()).or_default().extend(calls);
            }
        }
    }
    made
}

#[test]
fn the_functions_make_no_call_that_the_policies_do_not_allow() {
    let (file, listed) = listed();
    for (function, calls) in made(&WORLDS[..1]) {
        let missing: Vec<_> = calls.difference(&listed[&function]).collect();
        assert!(missing.is_empty(), "{function} makes calls that are not in {}: {missing:?}", file.display());
    }
}

/// Each call that a policy allows is made in one of the worlds.
#[test]
fn nightly_the_calls_of_the_functions_are_those_that_the_policies_allow() {
    let mut made = made(WORLDS);
    for (function, call, _) in RARE {
        let news = made.entry((*function).to_owned()).or_default().insert((*call).to_owned());
        assert!(news, "{function}: {call} is not rare: a world makes it");
    }
    let (file, listed) = listed();
    assert_eq!(listed.keys().collect::<Vec<_>>(), made.keys().collect::<Vec<_>>());
    let mut never: BTreeMap<&str, BTreeSet<&String>> = BTreeMap::new();
    for (function, calls) in &made {
        let missing: Vec<_> = calls.difference(&listed[function]).collect();
        assert!(missing.is_empty(), "{function} makes calls that are not in {}: {missing:?}", file.display());
        never.insert(function, listed[function].difference(calls).collect());
    }
    never.retain(|_, calls| !calls.is_empty());
    assert!(never.is_empty(), "no world makes these calls: {never:?}");
}

/// The calls that the policies allow, and the file that lists them.
fn listed() -> (std::path::PathBuf, BTreeMap<String, BTreeSet<String>>) {
    let file = root().join("infra/calls.json");
    let listed = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    (file, listed)
}

/// What happens to the work after its row is lost.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Ends,
    NodeIsSilent,
    InstanceIsGone,
    DrainIsOver,
    Nothing,
}

const TABLES: [(&str, &[&str]); 4] =
    [("jobs", &["job_id"]), ("allocs", &["alloc_id"]), ("handles", &["node_id", "handle"]), ("nodes", &["slot"])];

/// A world with running work of every kind: a job alone on its node with a cache, a job of two members, and a job that
/// gets a copy if its node is silent.
async fn working() -> World {
    let mut policy = patient_policy();
    policy["nodes"] = serde_json::json!({"max": 6});
    let mut world = World::with(policy, ec2_stand_in::Ec2Settings::default()).await;
    let waits = FailurePolicy { replace: true, ..Default::default() };
    for spec in [
        lonely_job(),
        JobSpec { needs: Needs { nodes: 2, ..job(&["forever"]).needs }, ..job(&["forever"]) },
        JobSpec { failure_policy: waits.clone(), ..lonely_job() },
        JobSpec {
            failure_policy: FailurePolicy { retry_lost: 0, lost_after_s: 0, ..Default::default() },
            ..lonely_job()
        },
    ] {
        world.submit(spec).await;
    }
    for _ in 0..9 {
        world.step().await;
    }
    world
}

async fn lose(world: &World, table: &str, key: &[&str]) {
    let raw = Raw::of(world);
    for row in raw.rows(table).await {
        let key: Item = item(&key.iter().map(|name| (*name, row[*name].clone())).collect::<Vec<_>>());
        raw.delete(table, &key).await;
    }
}

async fn happen(world: &mut World, happens: Happens) {
    match happens {
        Happens::Nothing => {}
        Happens::Ends => {
            for node in world.nodes.values_mut() {
                for id in node.protocol.unfinished() {
                    let order = node.protocol.durable.allocs[&id].order.clone();
                    node.end(&order, i32::from(id.member == 1));
                }
            }
        }
        Happens::NodeIsSilent => world.nodes.values_mut().for_each(|node| node.silent = true),
        Happens::InstanceIsGone => {
            let ids: Vec<String> = world.nodes.keys().cloned().collect();
            model::cloud::Cloud::terminate(&*world.cloud, &ids).await.unwrap();
            world.machines();
            world.pass(60);
            world.clean().await;
            world.pass(120);
            world.clean().await;
        }
        Happens::DrainIsOver => {
            for record in world.look.nodes().await.unwrap() {
                if let Ok(drained) = record.with_intent(Intent::Drain, Some(world.now()), world.now()) {
                    world.look.write(Some(&record), &drained, Vec::new()).await.unwrap();
                }
            }
        }
    }
}

#[tokio::test]
async fn a_lost_row_needs_only_what_the_roles_allow() {
    let mut made: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (table, key) in TABLES {
        for happens in
            [Happens::Ends, Happens::NodeIsSilent, Happens::InstanceIsGone, Happens::DrainIsOver, Happens::Nothing]
        {
            let mut world = working().await;
            lose(&world, table, key).await;
            happen(&mut world, happens).await;
            for _ in 0..8 {
                world.step().await;
            }
            for (function, calls) in world.switch.made() {
                made.entry(function).or_default().extend(calls);
            }
        }
    }
    let (file, listed) = listed();
    for (function, calls) in &made {
        let missing: Vec<_> = calls.difference(&listed[*function]).collect();
        assert!(missing.is_empty(), "{function} makes calls that are not in {}: {missing:?}", file.display());
    }
    // Each function that ends an alloc also checks that a job without a row really has none.
    for function in [HEARTBEAT_INGEST, CLEAN_STALE_RECORDS, POLL_AND_SCALE] {
        assert!(made[function.name].contains("dynamodb:ConditionCheckItem jobs"), "{}", function.name);
    }
}

#[tokio::test]
async fn a_catalogue_that_cannot_be_read_is_replaced_as_the_roles_allow() {
    let world = World::new().await;
    let unreadable = [("key", s("catalogue")), ("version", n(1)), ("document", n(1))];
    Raw::of(&world).put("control", &item(&unreadable)).await;
    world.clean().await;
    assert!(world.look.control().await.unwrap().catalogue.is_some());
    let (made, (_, listed)) = (world.switch.made(), listed());
    let (made, listed) = (&made[CLEAN_STALE_RECORDS.name], &listed[CLEAN_STALE_RECORDS.name]);
    assert!(made.contains("dynamodb:GetItem control") && made.is_subset(listed), "{made:?}");
}
