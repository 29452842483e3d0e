//! Tests of the policy.

use super::*;
use serde_json::json;
use std::collections::BTreeSet;

#[test]
fn the_defaults_are_right_and_complete() {
    let policy = Policy::from_json(&example_json()).unwrap();
    assert_eq!((policy.nodes.max, policy.heartbeat.ttl_s, policy.stale.after_s), (64, 60, 7200));
    assert_eq!(Policy::from_json(&policy.to_json()).unwrap(), policy, "it reads back as itself");
    let knobs: usize = policy
        .to_json()
        .as_object()
        .unwrap()
        .iter()
        .filter(|(k, _)| *k != "size")
        .map(|(_, v)| v.as_object().unwrap().len())
        .sum();
    assert_eq!(knobs, KNOBS.len(), "every knob in the table is in the type, and the other way round");
}

#[test]
fn the_reference_is_a_policy_once_its_open_values_are_filled_in() {
    let text = reference()
        .replace("# name =", "name = \"s\"")
        .replace("# instance_type =", "instance_type = \"x\"")
        .replace("# vcpus =", "vcpus = 1")
        .replace("# memory_mib =", "memory_mib = 1")
        .replace("# price_per_hour =", "price_per_hour = 1")
        .replacen("# template =", "template = \"t\"", 1);
    Policy::from_toml(&text).unwrap();
}

#[test]
fn ten_mistakes_are_ten_messages() {
    let text = r#"
        surprise = 1
        [nodes]
        min = -1
        max = 1000000
        memory_usable = "most"
        nmax = 3
        [launch]
        template = "t"
        subnets = "subnet-1"
        [shutdown]
        windows_min = [60]
        [heartbeat]
        ttl_s = 0
        brake_fraction = 1.5
        [[size]]
        name = "a b"
        instance_type = "m7a.large"
        vcpus = 2
        memory_mib = 1
        price_per_hour = 1
    "#;
    let BadPolicy(mistakes) = Policy::from_toml(text).unwrap_err();
    let paths: BTreeSet<_> = mistakes.iter().map(|m| m.path.as_str()).collect();
    let expected = [
        "surprise",
        "nodes.min",
        "nodes.max",
        "nodes.memory_usable",
        "nodes.nmax",
        "launch.subnets",
        "shutdown.windows_min",
        "heartbeat.ttl_s",
        "heartbeat.brake_fraction",
        "size[0].name",
    ];
    assert_eq!(paths, expected.into_iter().collect(), "{mistakes:#?}");
}

#[test]
fn what_depends_on_several_knobs_is_checked_too() {
    let mut document = example_json();
    document["nodes"] = json!({"min": 5, "max": 4});
    document["launch"] = json!({"tags": {"nodekeeper:cluster": "mine"}});
    document["size"][1]["name"] = json!("small");
    let BadPolicy(mistakes) = Policy::from_json(&document).unwrap_err();
    assert_eq!(mistakes.len(), 5, "{mistakes:#?}");
}

#[test]
fn a_document_that_is_not_toml_is_refused_with_the_line() {
    let error = Policy::from_toml("[nodes\nmin = 1").unwrap_err().to_string();
    assert!(error.contains("line 1"), "{error}");
}
