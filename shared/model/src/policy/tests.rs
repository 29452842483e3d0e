//! Tests of the policy.

use super::*;
use crate::{FailurePolicy, Needs};
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
        .filter(|(k, _)| !["size", "share"].contains(&k.as_str()))
        .map(|(_, v)| v.as_object().unwrap().len())
        .sum();
    assert_eq!(knobs, KNOBS.len(), "every knob in the table is in the type, and the other way round");
}

#[test]
fn the_reference_is_a_policy_as_it_is_and_says_the_defaults() {
    let text = reference();
    let policy = Policy::from_toml(&text).unwrap();
    let mut example = example_json();
    example["size"].as_array_mut().unwrap().truncate(1);
    assert_eq!(policy, Policy::from_json(&example).unwrap(), "what is written out is what is filled in");
}

#[test]
fn the_reference_says_the_unit_and_the_meaning_of_each_knob() {
    let text = reference();
    for knob in KNOBS.iter().chain(SIZE_KNOBS) {
        let name = knob.path.rsplit('.').next().unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let is_told = lines.windows(3).any(|l| {
            let comment = l[0].strip_prefix("# [").and_then(|rest| rest.split_once("] "));
            let comment = comment.is_some_and(|(unit, doc)| !unit.is_empty() && doc == knob.doc);
            let value = if l[1].starts_with("# EXAMPLE") { l[2] } else { l[1] };
            comment && value.trim_start_matches("# ").starts_with(&format!("{name} ="))
        });
        assert!(is_told || knob.path == "template", "{}", knob.path);
    }
    for line in [
        "# [seconds] the time between heartbeats of a working node; at random up to 1.5 times as long",
        "# [minutes] when idle nodes",
        "# [US dollars an hour] the most that all nodes together",
        "# [on_demand or spot] how it is bought",
        "# [a share from 0.01 to 1] the share of a size's memory",
        "# [a share from 0 to 1] if more than this share of the leases",
    ] {
        assert!(text.contains(line), "{line}");
    }
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
        template = "nodekeeper:$Latest"
        subnets = "subnet-1"
        [shutdown]
        windows_min = [60]
        [output]
        s3 = "s3://Logs/../x"
        [heartbeat]
        ttl_s = 0
        brake_fraction = 1.5
        [[size]]
        name = "a b"
        instance_type = "m7a.large"
        vcpus = 2
        memory_mib = 1024
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
        "launch.template",
        "shutdown.windows_min",
        "output.s3",
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

/// A policy with this line in this section.
fn with(section: &str, line: &str) -> Result<Policy, BadPolicy> {
    let launch = if line.starts_with("template") { "" } else { "template = \"nodekeeper\"" };
    let section = if section == "launch" { String::new() } else { format!("[{section}]\n") };
    Policy::from_toml(&format!(
        "[launch]\n{launch}\n{section}{line}\n[[size]]\nname = \"s\"\ninstance_type = \"m7a.large\"\nvcpus = 2\nmemory_mib = 1024\n\
         price_per_hour = 1\n"
    ))
}

#[test]
fn what_ec2_certainly_refuses_is_a_mistake() {
    for (section, line) in [
        ("launch", "template = \"nodekeeper:7\""),
        ("launch", "template = \"lt-0123456789abcdef0\""),
        ("launch", "template = \"team(a)/b_c.d\""),
        ("launch", "subnets = [\"subnet-a\", \"subnet-0123456789abcdef0\"]"),
        ("launch.tags", "team = \"a b\"\n\"my:aws\" = \"\""),
    ] {
        assert_eq!(with(section, line).map(|_| ()), Ok(()), "{line}");
    }
    for (section, line, path) in [
        ("launch", "template = \"nodekeeper:$Latest\"", "launch.template"),
        ("launch", "template = \"nodekeeper:$Default\"", "launch.template"),
        ("launch", "template = \"nodekeeper:0\"", "launch.template"),
        ("launch", "template = \"nodekeeper:+7\"", "launch.template"),
        ("launch", "template = \"nodekeeper:\"", "launch.template"),
        ("launch", "template = \"nodekeeper:1:2\"", "launch.template"),
        ("launch", "template = \" nodekeeper\"", "launch.template"),
        ("launch", "template = \"\"", "launch.template"),
        ("launch", "subnets = [\"subnet-a\", \"subnet-a\"]", "launch.subnets[1]"),
        ("launch", "subnets = [\"\"]", "launch.subnets[0]"),
        ("launch", "subnets = [\" subnet-a\"]", "launch.subnets[0]"),
        ("launch", "subnets = [\"subnet-a,subnet-b\"]", "launch.subnets[0]"),
        ("launch", "subnets = [\"vpc-1\"]", "launch.subnets[0]"),
        ("launch", "subnets = [1]", "launch.subnets[0]"),
        ("launch.tags", "\"AWS:x\" = \"1\"", "launch.tags.AWS:x"),
        ("launch.tags", "\"aWs:y\" = \"1\"", "launch.tags.aWs:y"),
        ("launch.tags", "\"Nodekeeper:size\" = \"1\"", "launch.tags.Nodekeeper:size"),
        ("launch.tags", "Name = \"1\"", "launch.tags.Name"),
        ("launch.tags", "\" a\" = \"1\"", "launch.tags. a"),
        ("launch.tags", "a = \"1\\n\"", "launch.tags.a"),
        ("nodes", "max = nan", "nodes.max"),
        ("nodes", "max_price_per_hour = inf", "nodes.max_price_per_hour"),
        ("nodes", "max_price_per_hour = -inf", "nodes.max_price_per_hour"),
        ("nodes", "max = 2027-01-01", "nodes.max"),
        ("shutdown", "windows_min = [nan]", "shutdown.windows_min"),
        ("nodes", "max_price_per_hour = 0.99", "nodes.max_price_per_hour"),
        ("retry", "pause_s = 100\nmost_s = 10", "retry.most_s"),
        ("agent", "options = \"--no-imds --nosuch=1\"", "agent.options"),
        ("agent", "options = \"--on-gone 'poweroff\"", "agent.options"),
    ] {
        let BadPolicy(mistakes) = with(section, line).expect_err(line);
        assert_eq!(mistakes.iter().map(|m| m.path.as_str()).collect::<Vec<_>>(), [path], "{line}: {mistakes:?}");
    }
    let error = with("launch", "template = \"nodekeeper:$Latest\"").unwrap_err().to_string();
    assert!(error.contains(":7 pins version 7"), "{error}");
    let size = "[launch]\ntemplate = \"nodekeeper\"\n[[size]]\nname = \"s\"\ninstance_type = \"m\"\nvcpus = 2\nmemory_mib = 1024\n\
                price_per_hour = nan\nmax = nan";
    let error = Policy::from_toml(size).unwrap_err().to_string();
    assert!(
        error.contains("size[0].price_per_hour: nan is not allowed") && error.contains("size[0].max: nan"),
        "{error}"
    );
}

/// A value that JSON does not have is a mistake at every knob, and hides no other; of a list or a table, the wrong elements are named.
#[test]
fn each_wrong_value_and_each_wrong_element_is_named_by_its_place() {
    let text = "[nodes]\nmin = -1\nmax_price_per_hour = nan\n[launch]\ntemplate = 2027-01-01\n[launch.tags]\na = inf\n\
                [limits]\nlicences = {\"a b\" = 1, ok = 2, many = 1000001}\n[[size]]\nname = nan\n[[share]]\nname = \"s\"\n\
                members = [\"ann\", \" \\t\", \"bob\", \"ann\", nan]\n";
    let error = Policy::from_toml(text).unwrap_err();
    let said: Vec<String> = error.0.iter().map(|m| format!("{}: {}", m.path, m.message)).collect();
    for begins in [
        "nodes.min: -1 is not allowed: it must be a whole number",
        "nodes.max_price_per_hour: nan is not allowed: it must be a number from 0",
        "launch.template: 2027-01-01 is not allowed: it must be a launch template's id",
        "launch.tags.a: inf is not allowed: tags must be a table of texts",
        "limits.licences.a b: 1 is not allowed",
        "limits.licences.many: 1000001 is not allowed",
        "size[0].name: nan is not allowed: it must be 1 to 64 letters",
        "share[0].members[1]: \" \\t\" is not allowed: members must be a list",
        "share[0].members[3]: \"ann\" is not allowed",
        "share[0].members[4]: nan is not allowed",
    ] {
        assert_eq!(said.iter().filter(|said| said.starts_with(begins)).count(), 1, "{begins}: {said:#?}");
    }
    let named = |part: &str| said.iter().filter(|said| said.starts_with(part)).count();
    assert_eq!((named("share[0].members"), named("limits.licences")), (3, 2), "{said:#?}");
    for knob in KNOBS {
        let (section, name) = knob.path.split_once('.').unwrap();
        let error = Policy::from_toml(&format!("[{section}]\n{name} = nan\n")).unwrap_err();
        let of_knob = error.0.iter().filter(|m| m.path == knob.path && m.message.starts_with("nan is not allowed"));
        assert_eq!(of_knob.count(), 1, "{}", knob.path);
    }
}

#[test]
fn a_script_with_backslashes_is_told_to_stand_in_the_other_quotes() {
    let error = with("launch", "user_data = \"\"\"\ngrep '\\d' x\n\"\"\"").unwrap_err().to_string();
    assert!(error.contains("write a script in '''…'''"), "{error}");
    assert_eq!(with("launch", "user_data = '''\ngrep '\\d' x\n'''").map(|_| ()), Ok(()));
    assert!(!with("launch", "user_data = 7 8").unwrap_err().to_string().contains("'''"));
}

#[test]
fn a_mark_before_the_text_is_no_part_of_it() {
    assert!(Policy::from_toml(&format!("\u{feff}{}", reference())).is_ok());
}

/// The market of the policy × its fallback × the rule: the rules that can never be followed are refused, and no others.
#[test]
fn a_retry_rule_that_asks_for_what_no_size_offers_can_never_be_followed() {
    let policy = |market: &str, fallback: &str| {
        let size = json!({"name": "s", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192,
                          "price_per_hour": 0.1, "market": market, "fallback": fallback});
        let nodes = json!({"memory_usable": 1.0});
        Policy::from_json(&json!({"launch": {"template": "nodekeeper"}, "nodes": nodes, "size": [size]})).unwrap()
    };
    let (on_demand, grows, both) =
        ("lost=again*5,on-demand", "memory=again,memory*2", "spot=again*any,on-demand,memory*2");
    for (market, fallback, rules, mib, refused) in [
        ("spot", "on_demand", vec![on_demand], 0, None),
        ("spot", "none", vec![on_demand], 0, Some(on_demand)),
        ("on_demand", "none", vec![on_demand], 0, None),
        ("spot", "none", vec!["lost=again*5", "failed=fail"], 0, None),
        ("spot", "on_demand", vec![grows], 4096, None),
        ("spot", "on_demand", vec![grows], 4097, Some("memory=again*1,memory*2")),
        ("spot", "on_demand", vec!["lost=again", on_demand, both], 4096, None),
        ("spot", "on_demand", vec!["lost=again", on_demand, both], 5000, Some(both)),
        // No size offers the job a machine in the first place.
        ("spot", "none", vec![on_demand], 9000, None),
    ] {
        let needs = Needs { memory_mib: mib, ..Needs::default() };
        let retry = rules.iter().map(|rule| rule.parse().unwrap()).collect();
        let failure = FailurePolicy { retry, ..FailurePolicy::default() };
        let found = policy(market, fallback).never_follows(&needs, &failure);
        let (rule, why) = found.map(|(rule, why)| (rule.to_string(), why.to_string())).unzip();
        assert_eq!(rule.as_deref(), refused, "{market} {fallback} {rules:?} {mib}");
        assert!(why.is_none_or(|why| why.starts_with("no size fits: it needs 1 vCPU")));
    }
}
