//! Which calls of AWS each function makes: the permissions that it needs, and no others.
//!
//! The simulation runs the real functions, and records every call at the boundaries of the store and of EC2. The list of
//! these calls is `infra/calls.json`. `infra/check.py` compares the template's policies with it, in both directions.

use crate::second_opinions::root;
use crate::simulation::world;
use nodekeeper_simulation::world::{How, simulate};
use std::collections::{BTreeMap, BTreeSet};

/// Worlds in which every call is made that the simulation knows, each several times: the options, and the seeds. When
/// the simulation changes, a seed gives another world, and other seeds may be needed.
const WORLDS: &[(&str, &[u64])] = &[
    ("--small --hours 1", &[14, 84, 92, 106]),
    ("--small --hours 2 --fault InstanceDies=0.1 --fault FunctionDown=0.01", &[1, 2, 3, 4, 5, 6, 7, 8, 13, 18, 28, 90]),
    ("--small --hours 1 --fault StrayHandle=0.2", &[3, 8, 14, 19]),
    ("--small --hours 4", &[22, 71, 109]),
    ("--small --hours 4 --fault InstanceDies=0.1 --fault FunctionDown=0.01", &[74]),
    ("--hours 4", &[3]),
    ("--hours 8", &[40]),
];

/// Calls that are too rare for a world: the function, the call, and the test that makes it.
const RARE: &[(&str, &str, &str)] = &[
    (
        "clean-stale-records",
        "dynamodb:BatchWriteItem events",
        "old_reads::many_orphans_are_terminated_in_one_call_and_an_instance_that_has_a_record_is_not",
    ),
    (
        "clean-stale-records",
        "dynamodb:BatchGetItem jobs",
        "beside::a_job_whose_row_cannot_be_read_beyond_the_index_keeps_no_node",
    ),
    ("heartbeat-ingest", "dynamodb:PutItem output", "output::a_node_writes_pieces_only_for_readers_on_its_own_record"),
    ("heartbeat-ingest", "dynamodb:Query output", "output::a_node_writes_pieces_only_for_readers_on_its_own_record"),
    (
        "poll-and-scale",
        "dynamodb:BatchGetItem jobs",
        "beside::a_job_whose_row_cannot_be_read_beyond_the_index_keeps_no_node",
    ),
    // No decision depends on the webhook, so no world has one.
    ("webhook", "dynamodb:BatchGetItem allocs", "permitted::a_whole_life_needs_only_what_the_roles_allow"),
    ("webhook", "dynamodb:GetItem jobs", "permitted::a_whole_life_needs_only_what_the_roles_allow"),
];

#[test]
fn the_calls_of_the_functions_are_those_that_the_policies_allow() {
    let mut made: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (options, seeds) in WORLDS {
        for seed in *seeds {
            for (function, calls) in simulate(world(*seed, options), How::default()).happened.calls {
                made.entry(function.to_owned()).or_default().extend(calls);
            }
        }
    }
    for (function, call, _) in RARE {
        let news = made.entry((*function).to_owned()).or_default().insert((*call).to_owned());
        assert!(news, "{function}: {call} is not rare: a world makes it");
    }
    let file = root().join("infra/calls.json");
    let listed: BTreeMap<String, BTreeSet<String>> =
        serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(listed.keys().collect::<Vec<_>>(), made.keys().collect::<Vec<_>>());
    for (function, calls) in &made {
        let missing: Vec<_> = calls.difference(&listed[function]).collect();
        let never: Vec<_> = listed[function].difference(calls).collect();
        assert!(missing.is_empty(), "{function} makes calls that are not in {}: {missing:?}", file.display());
        assert!(never.is_empty(), "no world makes these calls of {function}: {never:?}");
    }
}
