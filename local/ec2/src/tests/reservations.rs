//! Capacity reservations.

use super::*;
use serde_json::json;

const TARGET: &str = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId";

/// A reservation of two `m7i.large` that lasts, and a capacity block of one `p5.48xlarge` that ends in two hours, both in zone z1.
async fn bench() -> Bench {
    let bench = Bench::new(two_zones()).await;
    let ends_at = bench.now() + 7_200_000;
    let faults = json!({"capacity_reservations": [
        {"id": "cr-1", "kind": "on-demand-capacity-reservation", "instance_type": "m7i.large", "zone": "z1", "total": 2},
        {"id": "cr-2", "kind": "capacity-block", "instance_type": "p5.48xlarge", "zone": "z1", "total": 1, "ends_at": ends_at},
    ]});
    bench.ec2.set_faults(serde_json::from_value(faults).unwrap());
    bench
}

async fn free(bench: &Bench) -> Vec<String> {
    bench.call("DescribeCapacityReservations", &[]).await.ok().all("availableInstanceCount")
}

#[tokio::test]
async fn a_reservation_holds_as_many_as_it_is_for() {
    let bench = bench().await;
    let launch = |id: &'static str, kind: &'static str, subnet: &'static str| {
        let bench = &bench;
        async move { bench.run(&[("InstanceType", kind), ("SubnetId", subnet), (TARGET, id)]).await }
    };
    let first = launch("cr-1", "m7i.large", "subnet-a").await.ok();
    assert_eq!(first.one("capacityReservationId"), "cr-1");
    assert_eq!(free(&bench).await, ["1", "1"]);
    launch("cr-1", "m7i.large", "subnet-c").await.is_refused(400, "InvalidParameterValue");
    launch("cr-1", "m7i.xlarge", "subnet-a").await.is_refused(400, "InvalidParameterValue");
    launch("cr-x", "m7i.large", "subnet-a").await.is_refused(400, "InvalidCapacityReservationId.NotFound");
    launch("cr-1", "m7i.large", "subnet-b").await.ok();
    launch("cr-1", "m7i.large", "subnet-b").await.is_refused(400, "ReservationCapacityExceeded");
    bench.run(&[("InstanceType", "m7i.large")]).await.ok();
    assert_eq!(free(&bench).await, ["0", "1"], "who does not name it does not use it");
    bench.call("TerminateInstances", &[("InstanceId.1", &first.one("instanceId"))]).await.ok();
    bench.wait(60_000);
    assert_eq!(free(&bench).await, ["1", "1"]);
}

#[tokio::test]
async fn a_block_ends_half_an_hour_early_for_its_instances() {
    let bench = bench().await;
    let params = [("InstanceType", "p5.48xlarge"), ("SubnetId", "subnet-a"), (TARGET, "cr-2")];
    let id = bench.running(&params).await;
    bench.wait(5_400_000 - 20_000);
    assert_eq!(bench.state(&id).await.as_deref(), Some("running"));
    bench.wait(20_000);
    bench.ec2.advance();
    assert_ne!(bench.state(&id).await.as_deref(), Some("running"));
    bench.run(&params).await.is_refused(400, "InvalidCapacityReservationState");
    bench.wait(1_800_000);
    let told = bench.call("DescribeCapacityReservations", &[("CapacityReservationId.1", "cr-2")]).await.ok();
    assert_eq!((told.one("state"), told.one("reservationType")), ("expired".into(), "capacity-block".into()));
    let unknown = [("CapacityReservationId.1", "cr-1"), ("CapacityReservationId.2", "cr-x")];
    bench.call("DescribeCapacityReservations", &unknown).await.is_refused(400, "InvalidCapacityReservationId.NotFound");
}
