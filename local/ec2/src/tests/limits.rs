//! Quotas, capacity, throttling and the other failures on demand.

use super::*;
use model::Market;
use serde_json::json;

async fn with(faults: Faults) -> Bench {
    let bench = Bench::new(two_zones()).await;
    bench.ec2.set_faults(faults);
    bench
}

const SPOT: (&str, &str) = ("InstanceMarketOptions.MarketType", "spot");

#[tokio::test]
async fn instances_have_quotas_beside_those_of_their_vcpus_and_calls_are_throttled() {
    let quotas = Faults { max_instances: Some(2), max_spot_instances: Some(1), throttle_calls: 1, ..Faults::default() };
    let bench = with(quotas).await;
    bench.run(&[]).await.is_refused(503, "RequestLimitExceeded");
    assert_eq!(bench.run(&[("MaxCount", "5")]).await.ok().ids().len(), 2, "as many as there are, above MinCount");
    bench.run(&[]).await.is_refused(400, "InstanceLimitExceeded");
    bench.run(&[SPOT]).await.ok();
    bench.run(&[SPOT]).await.is_refused(400, "MaxSpotInstanceCountExceeded");
}

#[tokio::test]
async fn each_market_has_its_own_quota() {
    let kind = InstanceType { name: "one".into(), vcpus: 1, ..InstanceType::default() };
    let bench = Bench::new(Ec2Settings { instance_types: vec![kind], ..two_zones() }).await;
    bench.ec2.set_faults(Faults { max_vcpus: Some(2), max_spot_vcpus: Some(1), ..Faults::default() });
    let one = ("InstanceType", "one");
    assert_eq!(bench.run(&[one, ("MaxCount", "5")]).await.ok().ids().len(), 2, "as many as there are, above MinCount");
    bench.run(&[one]).await.is_refused(400, "VcpuLimitExceeded");
    assert_eq!(bench.run(&[one, SPOT]).await.ok().one("instanceLifecycle"), "spot");
    bench.run(&[one, SPOT]).await.is_refused(400, "MaxSpotInstanceCountExceeded");
    let id = bench.ec2.instances()[0].instance_id.clone();
    bench.call("TerminateInstances", &[("InstanceId.1", &id)]).await.ok();
    bench.run(&[one]).await.is_refused(400, "VcpuLimitExceeded");
    bench.wait(1_000);
    bench.run(&[one]).await.ok();
}

#[tokio::test]
async fn a_vcpu_quota_counts_vcpus() {
    let kind = |name: &str, vcpus| InstanceType { name: name.into(), vcpus, ..InstanceType::default() };
    let bench =
        Bench::new(Ec2Settings { instance_types: vec![kind("big", 8), kind("small", 2)], ..Ec2Settings::default() })
            .await;
    bench.ec2.set_faults(Faults { max_vcpus: Some(11), ..Faults::default() });
    bench.run(&[("InstanceType", "big")]).await.ok();
    bench.run(&[("InstanceType", "big")]).await.is_refused(400, "VcpuLimitExceeded");
    bench.run(&[("InstanceType", "small")]).await.ok();
    bench.run(&[("InstanceType", "small")]).await.is_refused(400, "VcpuLimitExceeded");
}

#[tokio::test]
async fn a_region_with_listed_types_offers_them_only_in_their_zones() {
    let kind = InstanceType { name: "m7i.large".into(), vcpus: 2, zones: vec!["z2".into()], ..InstanceType::default() };
    let bench = Bench::new(Ec2Settings { instance_types: vec![kind], ..two_zones() }).await;
    bench.run(&[("InstanceType", "m7i.largest")]).await.is_refused(400, "InvalidParameterValue");
    let there = ("InstanceType", "m7i.large");
    bench.run(&[there, ("SubnetId", "subnet-a")]).await.is_refused(400, "Unsupported");
    bench.run(&[there, ("SubnetId", "subnet-c")]).await.ok();
}

#[tokio::test]
async fn a_shortage_of_a_type_zone_and_market_is_a_server_error() {
    let shortage = Shortage {
        instance_type: Some("m7i.large".into()),
        zone: Some("z1".into()),
        market: Some(Market::Spot),
        left: 1,
    };
    let bench = with(Faults { shortages: vec![shortage], ..Faults::default() }).await;
    let (kind, here) = (("InstanceType", "m7i.large"), ("SubnetId", "subnet-b"));
    bench
        .run(&[kind, here, SPOT, ("MinCount", "2"), ("MaxCount", "2")])
        .await
        .is_refused(500, "InsufficientInstanceCapacity");
    bench.run(&[kind, here, SPOT]).await.ok();
    bench.run(&[kind, here, SPOT]).await.is_refused(500, "InsufficientInstanceCapacity");
    bench.run(&[kind, here]).await.ok();
    bench.run(&[kind, ("SubnetId", "subnet-c"), SPOT]).await.ok();
    bench.run(&[("InstanceType", "m7i.xlarge"), here, SPOT]).await.ok();
}

#[tokio::test]
async fn calls_are_throttled_on_demand() {
    let throttled = json!({"action": "*", "code": "RequestLimitExceeded", "status": 503, "times": 2});
    let bench = with(serde_json::from_value(json!({ "fail": [throttled] })).unwrap()).await;
    bench.describe(&[]).await.is_refused(503, "RequestLimitExceeded");
    bench.run(&[]).await.is_refused(503, "RequestLimitExceeded");
    bench.run(&[]).await.ok();
}

#[tokio::test]
async fn buckets_throttle_requests_and_instances() {
    let bench = Bench::new(Ec2Settings { throttle: Some(Throttle::default()), ..Ec2Settings::default() }).await;
    for _ in 0..5 {
        bench.run(&[]).await.ok();
    }
    bench.run(&[]).await.is_refused(503, "RequestLimitExceeded");
    bench.wait(499);
    bench.run(&[]).await.is_refused(503, "RequestLimitExceeded");
    bench.wait(1);
    bench.run(&[]).await.ok();
    bench.wait(10_000);
    let many = [("MinCount", "990"), ("MaxCount", "990")];
    bench.run(&many).await.ok();
    bench.run(&many).await.is_refused(503, "RequestLimitExceeded");
    assert_eq!(bench.ec2.instances().len(), 996);
}

#[tokio::test]
async fn a_lost_answer_launches_and_the_token_finds_what_it_launched() {
    for lost_as in [LostAs::Disconnect, LostAs::InternalError] {
        let bench = with(Faults { lose_run_answers: 1, lost_as, ..Faults::default() }).await;
        let params = [("MinCount", "1"), ("MaxCount", "1"), ("ClientToken", "t")];
        let reply = bench.exchange("POST /", form("RunInstances", &params).as_bytes()).await;
        match lost_as {
            LostAs::Disconnect => assert!(reply.is_err(), "{reply:?}"),
            LostAs::InternalError => reply.unwrap().is_refused(500, "InternalError"),
        }
        let launched = bench.ec2.instances();
        assert_eq!(launched.len(), 1);
        let again = bench.call("RunInstances", &params).await.ok();
        assert_eq!(again.one("instanceId"), launched[0].instance_id);
        assert_eq!(bench.ec2.instances().len(), 1);
    }
}

#[tokio::test]
async fn the_nth_call_of_an_action_fails_on_demand() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let fault = json!({"fail": [{"action": "DescribeInstances", "on_call": 2, "code": "Unavailable", "status": 503}]});
    let set = bench.exchange("POST /_stand-in/faults", fault.to_string().as_bytes()).await.unwrap();
    assert_eq!(set.status, 200, "{set:?}");
    bench.describe(&[]).await.ok();
    bench.run(&[]).await.ok();
    bench.describe(&[]).await.is_refused(503, "Unavailable");
    bench.describe(&[]).await.ok();
    assert_eq!(bench.ec2.faults(), Faults::default(), "a fault that was applied is removed");
}

#[tokio::test]
async fn launches_of_one_type_market_and_subnet_fail_so_many_times() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let fault = json!({"fail": [{"action": "RunInstances", "code": "VcpuLimitExceeded", "times": 2, "market": "spot",
        "instance_type": "g5.xlarge", "subnet_id": "subnet-local"}]});
    bench.exchange("POST /_stand-in/faults", fault.to_string().as_bytes()).await.unwrap();
    let spot = ("InstanceMarketOptions.MarketType", "spot");
    let (gpu, subnet) = (("InstanceType", "g5.xlarge"), ("SubnetId", "subnet-local"));
    for others in [&[gpu, subnet][..], &[spot, subnet], &[spot, gpu]] {
        bench.run(others).await.ok();
    }
    for _ in 0..2 {
        bench.run(&[spot, gpu, subnet]).await.is_refused(400, "VcpuLimitExceeded");
    }
    bench.run(&[spot, gpu, subnet]).await.ok();
    assert_eq!(bench.ec2.faults(), Faults::default());
}

#[tokio::test]
async fn faults_are_read_and_set_over_http() {
    let bench = Bench::new(Ec2Settings::default()).await;
    let faults = json!({"max_vcpus": 3, "stuck": ["*"], "lost_as": "internal_error"}).to_string();
    bench.exchange("POST /_stand-in/faults", faults.as_bytes()).await.unwrap();
    let read = bench.exchange("GET /_stand-in/faults", b"").await.unwrap();
    let read: Faults = serde_json::from_str(&read.body).unwrap();
    assert_eq!((read.max_vcpus, read.lost_as), (Some(3), LostAs::InternalError));
    assert_eq!(read, bench.ec2.faults());
    for wrong in ["{\"max_vcpu\": 3}", "", "[3]", "{\"max_vcpus\": -1}"] {
        let reply = bench.exchange("POST /_stand-in/faults", wrong.as_bytes()).await.unwrap();
        assert_eq!(reply.status, 400, "{wrong}: {reply:?}");
    }
    assert_eq!(read, bench.ec2.faults());
}

#[tokio::test]
async fn a_boot_failure_reaches_running_without_a_machine() {
    let bench = with(Faults { boot_failures: 1, ..Faults::default() }).await;
    let dead = bench.running(&[]).await;
    assert_eq!(bench.state(&dead).await.as_deref(), Some("running"));
    assert!(bench.hook_calls().is_empty());
    let alive = bench.running(&[]).await;
    bench.call("TerminateInstances", &[("InstanceId.1", &dead), ("InstanceId.2", &alive)]).await.ok();
    assert_eq!(bench.hook_calls(), [format!("start {alive}"), format!("stop {alive}")]);
}
