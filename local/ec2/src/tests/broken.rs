//! Malformed requests, and text that XML cannot hold.

use super::*;

#[tokio::test]
async fn an_unknown_or_missing_action_is_refused() {
    let bench = Bench::new(Ec2Settings::default()).await;
    bench.call("StopInstances", &[]).await.is_refused(400, "InvalidAction");
    bench.call("runinstances", &[]).await.is_refused(400, "InvalidAction");
    bench.raw(b"Version=2016-11-15").await.is_refused(400, "MissingAction");
    bench.raw(b"Action=").await.is_refused(400, "MissingAction");
    bench.raw(b"").await.is_refused(400, "MissingAction");
}

#[tokio::test]
async fn garbage_is_refused_and_changes_nothing() {
    let bench = Bench::new(Ec2Settings::default()).await;
    for garbage in [&b"\xff\xfe\x00&&&==%zz%"[..], b"{\"Action\": 1}", b"%41ction=%00%01<&>", b"Action=Run&Action=\x07"]
    {
        let (status, _) = bench.raw(garbage).await.refused();
        assert_eq!(status, 400);
    }
    let lists = [
        ("InstanceId", "x"),
        ("InstanceId.", "x"),
        ("InstanceId.x", "x"),
        ("InstanceId.99999999999", "x"),
        ("Filter.1", "x"),
        ("Filter..Name", "x"),
        ("InstanceIdx.1", "x"),
    ];
    assert!(bench.describe(&lists).await.ok().ids().is_empty(), "malformed list names are ignored");
}

#[tokio::test]
async fn a_huge_body_is_refused() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let body = form("RunInstances", &[("MinCount", "1"), ("MaxCount", "1"), ("X", &"x".repeat(1024 * 1024))]);
    // The server may close before it has read everything: a broken connection is fine here.
    if let Ok(reply) = bench.exchange("POST /", body.as_bytes()).await {
        reply.is_refused(413, "RequestEntityTooLarge");
    }
    assert!(bench.ec2.instances().is_empty());
    bench.describe(&[]).await.ok();
}

#[tokio::test]
async fn a_get_is_accepted_and_other_paths_are_not() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let head = format!("GET /?{}", form("DescribeInstances", &[]));
    assert!(bench.exchange(&head, b"").await.unwrap().body.contains("<DescribeInstancesResponse"));
    assert_eq!(bench.exchange("POST /elsewhere", b"").await.unwrap().status, 404);
    assert_eq!(bench.exchange("DELETE /", b"").await.unwrap().status, 405);
}

#[tokio::test]
async fn an_answer_can_hold_any_text() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let odd = "<a b='\"'>&amp;]]>\u{1}\u{0}\u{ffff}\u{7f}\r\n\u{1f600}";
    let tag = [
        ("TagSpecification.1.ResourceType", "instance"),
        ("TagSpecification.1.Tag.1.Key", odd),
        ("TagSpecification.1.Tag.1.Value", odd),
    ];
    let reply = bench.run(&tag).await.ok();
    let shown = "<a b='\"'>&amp;]]>\u{fffd}\u{fffd}\u{fffd}\u{fffd}\r\n\u{1f600}";
    assert_eq!(reply.one("value"), shown);
    bench.call(odd, &[]).await.is_refused(400, "InvalidAction");
    bench.run(&[("SubnetId", odd)]).await.is_refused(400, "InvalidSubnetID.NotFound");
}

#[tokio::test]
async fn the_stand_ins_own_list_shows_instances_that_the_api_hides() {
    let bench = Bench::new(Ec2Settings { list_lag_ms: 1_000_000, ..Ec2Settings::default() }).await;
    let id = bench.running(&[]).await;
    let page = bench.exchange("GET /_stand-in/instances", b"").await.unwrap();
    let page: serde_json::Value = serde_json::from_str(&page.body).unwrap();
    assert_eq!((page[0]["instance_id"].as_str(), page[0]["state"].as_str()), (Some(id.as_str()), Some("running")));
    assert_eq!(page[0]["market"], "on_demand");
}
