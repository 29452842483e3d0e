//! Heartbeats that only ask for orders. Each costs one read, and no lease ends because of them.

use crate::world::node::{answer, http};
use crate::world::{World, job, patient_policy};
use ec2_stand_in::Ec2Settings;
use model::wire::HeartbeatAnswer;
use model::{NodeId, NodeStatus, Span, Time};
use serde_json::{Value, json};

/// A world with one idle node that is ready.
async fn idle() -> (World, NodeId) {
    let mut policy = patient_policy();
    policy["nodes"] = json!({"min": 1, "max": 4});
    policy["heartbeat"] = json!({"ttl_s": 60, "idle_s": 10, "grace_s": 10, "blackout_s": 0});
    let mut world = World::with(policy, Ec2Settings::default()).await;
    for _ in 0..6 {
        world.step().await;
    }
    let id = world.nodes.values().next().unwrap().file.node_id;
    assert_eq!(world.record(id).await.status(), Some(NodeStatus::Ready));
    world.pass(1);
    (world, id)
}

impl World {
    /// The end of the lease, and the time of the last heartbeat that renewed it.
    async fn lease(&self, id: NodeId) -> (Time, Time) {
        let record = self.record(id).await;
        record.contact().map(|c| (c.lease_expires_at, c.last_ping_at)).unwrap()
    }

    /// The next heartbeat of the only node.
    fn next_beat(&self) -> Value {
        let uptime_ms = self.now().since(crate::world::START).as_ms();
        json!(self.nodes.values().next().unwrap().protocol.heartbeat(Some(uptime_ms.unsigned_abs())))
    }

    async fn call(&self, id: NodeId, beat: &Value) -> (u64, Value) {
        let token = self.nodes.values().next().unwrap().file.token.clone();
        answer(
            &self.ingest.handle(&http(&format!("/v1/nodes/{id}/heartbeat"), token.as_deref(), beat), self.now()).await,
        )
    }

    /// Sends the next heartbeat, and gives the node the answer.
    async fn beats(&mut self, id: NodeId) -> HeartbeatAnswer {
        let (status, body) = self.call(id, &self.next_beat()).await;
        assert_eq!(status, 200, "{body}");
        let answer: HeartbeatAnswer = serde_json::from_value(body).unwrap();
        self.nodes.values_mut().next().unwrap().protocol.on_heartbeat(&answer);
        answer
    }
}

#[tokio::test]
async fn the_lease_of_an_idle_node_lasts_and_few_of_its_heartbeats_renew_it() {
    let (mut world, id) = idle().await;
    let (mut renewals, mut version) = (0, None);
    for n in 0..100 {
        let before = world.lease(id).await;
        let told = world.beats(id).await;
        let after = world.lease(id).await;
        renewals += u32::from(after != before);
        let called_at = world.now() + Span::from_ms((told.next_heartbeat_s * 1000.0) as i64);
        assert!(
            after.0.since(called_at) >= Span::from_s(10),
            "heartbeat {n}: {after:?} ends before {called_at} and the grace"
        );
        assert_eq!(*version.get_or_insert(world.record(id).await.version), world.record(id).await.version);
        world.pass(told.next_heartbeat_s.ceil() as i64);
    }
    assert!((12..25).contains(&renewals), "{renewals} of 100");
}

#[tokio::test]
async fn a_heartbeat_that_only_asks_still_says_what_it_has_to_say() {
    let (mut world, id) = idle().await;
    world.beats(id).await;
    world.pass(5);
    let (asks, before) = (world.next_beat(), world.record(id).await);
    assert_eq!(asks["asks"], json!(true));
    assert_eq!((world.call(id, &asks).await.0, world.record(id).await), (200, before.clone()), "nothing is written");
    let changed = |name: &str, value: Value| {
        let mut beat = asks.clone();
        beat[name] = value;
        beat
    };
    // What is wrong is refused as in any other heartbeat, and nothing is written.
    for (name, value, status, error) in [
        ("incarnation", json!("another"), 409, "wrong_incarnation"),
        ("boot_id", json!("another"), 409, "wrong_incarnation"),
        ("instance_id", json!("i-another"), 409, "foreign_instance"),
        ("uptime_ms", json!(1), 409, "stale_report"),
    ] {
        let (code, body) = world.call(id, &changed(name, value)).await;
        assert_eq!((code, body["error"].as_str()), (status, Some(error)), "{name}");
        assert_eq!(world.record(id).await, before, "{name}");
    }
    // News is written.
    assert_eq!(world.call(id, &changed("busy", json!(true))).await.0, 200);
    let busy = world.record(id).await;
    assert!(busy.contact().unwrap().health.busy && busy.version > before.version);
    assert_eq!(world.call(id, &asks).await.0, 200);
    // A lease that does not last until the next call is renewed, whatever the agent believes.
    world.pass(85);
    let (expires_at, _) = world.lease(id).await;
    assert!(expires_at > world.now());
    assert_eq!(world.call(id, &changed("uptime_ms", world.next_beat()["uptime_ms"].clone())).await.0, 200);
    assert_eq!(world.lease(id).await.1, world.now());
    // A node that was given up is heard again.
    world.pass(200);
    world.nodes.values_mut().for_each(|node| node.silent = true);
    world.step().await;
    assert_eq!(world.record(id).await.status(), Some(NodeStatus::Down));
    let (status, body) = world.call(id, &changed("uptime_ms", world.next_beat()["uptime_ms"].clone())).await;
    assert_eq!((status, &body["must_report"]), (200, &json!(true)));
    assert_eq!(world.record(id).await.status(), Some(NodeStatus::Syncing));
}

#[tokio::test]
async fn a_node_that_gets_work_by_asking_renews_its_lease_with_the_next_heartbeat() {
    let (mut world, id) = idle().await;
    world.beats(id).await;
    world.submit(job(&["forever"])).await;
    world.pass(5);
    world.poll().await;
    assert_eq!(world.next_beat()["asks"], json!(true));
    let told = world.beats(id).await;
    assert_eq!((told.orders.map(|list| list.allocs.len()), told.ask_until_ms), (Some(1), None));
    assert!(told.next_heartbeat_s >= 60.0);
    assert_eq!(world.next_beat().get("asks"), None);
}
