//! RunInstances: launches, errors and client tokens.

use super::fleet::fleet;
use super::*;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

#[tokio::test]
async fn a_launch_answers_pending_instances_of_one_reservation() {
    let bench = Bench::new(two_zones()).await;
    let reply = bench
        .run(&[
            ("MinCount", "2"),
            ("MaxCount", "2"),
            ("SubnetId", "subnet-c"),
            ("InstanceType", "m7i.large"),
            ("ClientToken", "7-X-1"),
            ("TagSpecification.1.ResourceType", "instance"),
            ("TagSpecification.1.Tag.1.Key", "nodekeeper:node-id"),
            ("TagSpecification.1.Tag.1.Value", "7-<X>&"),
            ("TagSpecification.2.ResourceType", "volume"),
            ("TagSpecification.2.Tag.1.Key", "other"),
            ("TagSpecification.2.Tag.1.Value", "thing"),
        ])
        .await
        .ok();
    assert!(reply.body.contains("<RunInstancesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">"));
    assert_eq!(reply.all("reservationId").len(), 1);
    let ids = reply.ids();
    assert_eq!(ids.len(), 2);
    assert!(ids[0] != ids[1] && ids.iter().all(|id| id.len() == 19 && id.starts_with("i-")));
    assert!(reply.body.contains("<instanceState><code>0</code><name>pending</name></instanceState>"));
    assert_eq!(reply.all("availabilityZone"), ["z2", "z2"]);
    assert_eq!(reply.all("instanceType"), ["m7i.large", "m7i.large"]);
    assert_eq!(reply.all("amiLaunchIndex"), ["0", "1"]);
    assert_eq!(reply.all("launchTime"), ["2001-09-09T01:46:40.000Z"; 2]);
    assert_eq!(reply.all("clientToken"), ["7-X-1", "7-X-1"]);
    assert_eq!(reply.all("key"), ["nodekeeper:node-id"; 2], "volume tags are not instance tags");
    assert_eq!(reply.all("value"), ["7-<X>&"; 2]);
    // The address is in the instance once, and twice in its network interface.
    let addresses = reply.all("privateIpAddress");
    assert!(addresses[..3].iter().all(|a| *a == addresses[0] && a.starts_with("10.2.")), "{addresses:?}");
    assert!(addresses[3..].iter().all(|a| *a == addresses[3] && *a != addresses[0]), "{addresses:?}");
    assert_eq!(reply.all("instanceLifecycle"), Vec::<String>::new());
}

#[tokio::test]
async fn the_same_seed_and_requests_give_the_same_world() {
    let ids = |seed| async move {
        let bench = Bench::new(Ec2Settings { seed, ..Ec2Settings::default() }).await;
        let first = bench.run(&[]).await.ok();
        let second = bench.run(&[]).await.ok();
        [
            first.one("instanceId"),
            second.one("instanceId"),
            second.all("privateIpAddress").remove(0),
            second.one("requestId"),
        ]
    };
    assert_eq!(ids(7).await, ids(7).await);
    assert_ne!(ids(7).await, ids(8).await);
}

#[tokio::test]
async fn invalid_counts_are_refused() {
    let bench = Bench::new(Ec2Settings::default()).await;
    bench.call("RunInstances", &[("MaxCount", "1")]).await.is_refused(400, "MissingParameter");
    for (min, max) in [("0", "1"), ("2", "1"), ("1", "1001"), ("-1", "1"), ("x", "1"), ("1", "99999999999")] {
        let reply = bench.run(&[("MinCount", min), ("MaxCount", max)]).await;
        reply.is_refused(400, "InvalidParameterValue");
    }
    assert!(bench.ec2.instances().is_empty());
}

#[tokio::test]
async fn a_token_answers_with_the_first_calls_instances() {
    let bench = Bench::new(two_zones()).await;
    let params = [("ClientToken", "t"), ("SubnetId", "subnet-a"), ("MaxCount", "3")];
    let first = bench.run(&params).await.ok();
    bench.wait(5_000);
    let again = bench.run(&params).await.ok();
    assert_eq!(again.ids(), first.ids());
    assert_eq!(again.one("reservationId"), first.one("reservationId"));
    assert_eq!(again.all("name"), ["running"; 3], "only the state may vary");
    assert_eq!(bench.ec2.instances().len(), 3);
}

#[tokio::test]
async fn a_token_is_bound_to_its_parameters() {
    let bench = Bench::new(two_zones()).await;
    bench.run(&[("ClientToken", "t"), ("InstanceType", "m7i.large")]).await.ok();
    let other = bench.run(&[("ClientToken", "t"), ("InstanceType", "m7i.xlarge")]).await;
    other.is_refused(400, "IdempotentParameterMismatch");
    let unknown = bench.run(&[("ClientToken", "t"), ("InstanceType", "m7i.large"), ("Whatever", "1")]).await;
    unknown.is_refused(400, "IdempotentParameterMismatch");
    bench.run(&[("ClientToken", "T"), ("InstanceType", "m7i.xlarge")]).await.ok();
    assert_eq!(bench.ec2.instances().len(), 2, "tokens are case-sensitive");
}

#[tokio::test]
async fn tokens_are_zonal() {
    let bench = Bench::new(two_zones()).await;
    let in_a = bench.run(&[("ClientToken", "t"), ("SubnetId", "subnet-a")]).await.ok();
    let in_b = bench.run(&[("ClientToken", "t"), ("SubnetId", "subnet-b")]).await;
    in_b.is_refused(400, "IdempotentParameterMismatch");
    let in_c = bench.run(&[("ClientToken", "t"), ("SubnetId", "subnet-c")]).await.ok();
    assert_ne!(in_c.ids(), in_a.ids());
    let again = bench.run(&[("ClientToken", "t"), ("SubnetId", "subnet-a")]).await.ok();
    assert_eq!(again.ids(), in_a.ids());
}

#[tokio::test]
async fn a_used_token_is_kept_for_a_day_after_its_instance() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let id = bench.running(&[("ClientToken", "t")]).await;
    bench.call("TerminateInstances", &[("InstanceId.1", &id)]).await.ok();
    assert_eq!(bench.run(&[("ClientToken", "t")]).await.ok().all("name"), ["shutting-down"]);
    bench.wait(1_000);
    bench.run(&[("ClientToken", "t")]).await.is_refused(400, "IdempotentInstanceTerminated");
    bench.wait(60_000);
    assert_eq!(bench.state(&id).await, None);
    bench.run(&[("ClientToken", "t")]).await.is_refused(400, "IdempotentInstanceTerminated");
    bench.wait(24 * 3_600_000 - 1);
    bench.run(&[("ClientToken", "t")]).await.is_refused(400, "IdempotentInstanceTerminated");
    bench.wait(1);
    assert_ne!(bench.run(&[("ClientToken", "t")]).await.ok().one("instanceId"), id);
}

#[tokio::test]
async fn a_token_has_at_most_64_ascii_characters() {
    let bench = Bench::new(Ec2Settings::default()).await;
    bench.run(&[("ClientToken", &"t".repeat(64))]).await.ok();
    bench.run(&[("ClientToken", &"t".repeat(65))]).await.is_refused(400, "InvalidParameterValue");
    bench.run(&[("ClientToken", "tö")]).await.is_refused(400, "InvalidParameterValue");
}

#[tokio::test]
async fn a_refused_launch_does_not_use_up_its_token() {
    let bench = Bench::new(Ec2Settings::default()).await;
    bench.ec2.set_faults(Faults { shortages: vec![Shortage::default()], ..Faults::default() });
    bench.run(&[("ClientToken", "t")]).await.is_refused(500, "InsufficientInstanceCapacity");
    bench.ec2.set_faults(Faults::default());
    bench.run(&[("ClientToken", "t"), ("InstanceType", "other")]).await.ok();
}

#[tokio::test]
async fn tags_are_checked() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let tagged = |kind: &'static str, key: String, value: String| {
        let bench = &bench;
        async move {
            let kind = ("TagSpecification.1.ResourceType", kind);
            bench.run(&[kind, ("TagSpecification.1.Tag.1.Key", &key), ("TagSpecification.1.Tag.1.Value", &value)]).await
        }
    };
    tagged("instance", "k".repeat(127), "v".repeat(256)).await.ok();
    tagged("instance", "empty".into(), String::new()).await.ok();
    for (kind, key, value) in [
        ("instance", "aws:name".to_owned(), String::new()),
        ("volume", "AWS:name".to_owned(), String::new()),
        ("instance", "k".repeat(128), String::new()),
        ("instance", "k".to_owned(), "v".repeat(257)),
        ("toaster", "k".to_owned(), String::new()),
    ] {
        tagged(kind, key, value).await.is_refused(400, "InvalidParameterValue");
    }
    let many: Vec<(String, String)> = (1..=51)
        .flat_map(|n| {
            [
                (format!("TagSpecification.1.Tag.{n}.Key"), format!("k{n}")),
                (format!("TagSpecification.1.Tag.{n}.Value"), "v".to_owned()),
            ]
        })
        .collect();
    let mut params: Vec<(&str, &str)> = many.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    params.push(("TagSpecification.1.ResourceType", "instance"));
    bench.run(&params).await.is_refused(400, "TagLimitExceeded");
    params.retain(|(name, _)| !name.contains(".51."));
    bench.run(&params).await.ok();
    assert_eq!(bench.ec2.instances().last().unwrap().tags.len(), 50);
}

#[tokio::test]
async fn user_data_reaches_the_machine_and_has_a_limit() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let id = bench.running(&[("UserData", &STANDARD.encode("#!/bin/sh\necho ü\n"))]).await;
    let started = bench.machines.started.lock().unwrap().clone();
    assert_eq!((started[0].instance_id.as_str(), started[0].user_data.as_str()), (id.as_str(), "#!/bin/sh\necho ü\n"));
    bench.run(&[("UserData", &STANDARD.encode([b'x'; 16_384]))]).await.ok();
    let long = bench.run(&[("UserData", &STANDARD.encode([b'x'; 16_385]))]).await;
    long.is_refused(400, "InvalidUserData.Malformed");
    bench.run(&[("UserData", "not base64!")]).await.is_refused(400, "InvalidUserData.Malformed");
}

fn templates() -> Ec2Settings {
    let version = |version, instance_type: &str, user_data: &str, market| TemplateVersion {
        version,
        image_id: Some(format!("ami-{version}")),
        instance_type: Some(instance_type.into()),
        user_data: Some(user_data.into()),
        market,
    };
    Ec2Settings {
        launch_templates: vec![LaunchTemplate {
            id: "lt-1".into(),
            name: "node".into(),
            default_version: 2,
            versions: vec![
                version(1, "c1.one", "one", None),
                version(2, "c2.two", "two", Some(model::Market::Spot)),
                version(3, "c3.three", "three", None),
            ],
        }],
        ..Ec2Settings::default()
    }
}

#[tokio::test]
async fn a_template_fills_in_what_the_request_leaves_out() {
    let bench = Bench::new(templates()).await;
    let by_name = ("LaunchTemplate.LaunchTemplateName", "node");
    for (version, kind) in [("1", "c1.one"), ("$Default", "c2.two"), ("$Latest", "c3.three"), ("", "c2.two")] {
        let reply = bench.run(&[by_name, ("LaunchTemplate.Version", version)]).await.ok();
        assert_eq!(reply.one("instanceType"), kind, "version {version:?}");
    }
    let by_id = bench.run(&[("LaunchTemplate.LaunchTemplateId", "lt-1")]).await.ok();
    assert_eq!((by_id.one("imageId"), by_id.one("instanceLifecycle")), ("ami-2".into(), "spot".into()));
    let own = bench.run(&[by_name, ("InstanceType", "own"), ("UserData", &STANDARD.encode("mine"))]).await.ok();
    assert_eq!(own.one("instanceType"), "own");
    bench.wait(1_500);
    bench.ec2.advance();
    let started = bench.machines.started.lock().unwrap();
    let data: Vec<&str> = started.iter().map(|machine| machine.user_data.as_str()).collect();
    assert_eq!(data, ["one", "two", "three", "two", "two", "mine"]);
}

#[tokio::test]
async fn unknown_templates_and_versions_are_refused() {
    let bench = Bench::new(templates()).await;
    let (name, id) = ("LaunchTemplate.LaunchTemplateName", "LaunchTemplate.LaunchTemplateId");
    bench.run(&[(id, "lt-2")]).await.is_refused(400, "InvalidLaunchTemplateId.NotFound");
    bench.run(&[(name, "no")]).await.is_refused(400, "InvalidLaunchTemplateName.NotFoundException");
    for version in ["4", "x", "$Newest"] {
        let reply = bench.run(&[(name, "node"), ("LaunchTemplate.Version", version)]).await;
        reply.is_refused(400, "InvalidLaunchTemplateId.VersionNotFound");
    }
    bench.run(&[(name, "node"), (id, "lt-1")]).await.is_refused(400, "InvalidParameterCombination");
    bench.run(&[("LaunchTemplate.Version", "1")]).await.is_refused(400, "MissingParameter");
}

#[tokio::test]
async fn a_dry_run_judges_the_request_and_launches_nothing() {
    let bench = Bench::new(templates()).await;
    let (dry, token, by_name) =
        (("DryRun", "true"), ("ClientToken", "t"), ("LaunchTemplate.LaunchTemplateName", "node"));
    bench.run(&[dry, token, by_name]).await.is_refused(412, "DryRunOperation");
    bench
        .run(&[dry, ("LaunchTemplate.LaunchTemplateName", "no")])
        .await
        .is_refused(400, "InvalidLaunchTemplateName.NotFoundException");
    let ways = [("a.large", "subnet-a", "0")];
    fleet(&bench, &ways, &[dry, token]).await.is_refused(412, "DryRunOperation");
    fleet(&bench, &ways, &[dry, ("Unknown", "1")]).await.is_refused(400, "UnknownParameter");
    assert!(bench.ec2.instances().is_empty());
    // The token is not used up, and is not one of a launch: the same token launches now.
    bench.run(&[token, by_name, ("DryRun", "false")]).await.ok();
}
