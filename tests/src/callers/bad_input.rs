//! Bad input: each bad request gets a clear error and changes nothing.

use crate::second_opinions::free_url;
use crate::world::all_rows::AllRows;
use crate::world::node::{answer, http};
use crate::world::{World, dynamo_client, ec2_client, job, quick_policy, set_policy};
use cloud::Ec2;
use model::{ActionName, Cloud, Intent, LaunchRequest, Needs, NodeId, NodeKey, NodeRecord, Policy, Span, fixtures};
use runtime::answer::ActionOutcome;
use runtime::http::NodeCredentials;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use store::{Dynamo, Store};

/// A world with one working node, and the node's id and token.
async fn working() -> (World, NodeId, String) {
    let mut world = World::new().await;
    world.submit(job(&["forever"])).await;
    for _ in 0..6 {
        world.step().await;
    }
    let node = world.nodes.values().next().unwrap();
    let (id, token) = (node.file.node_id, node.file.token.clone().unwrap());
    (world, id, token)
}

async fn tables(world: &World) -> Value {
    let nodes = world.look.nodes().await.unwrap();
    let jobs = world.look.jobs().await.unwrap();
    let allocs = world.look.live_allocs().await.unwrap();
    json!([nodes, jobs, allocs])
}

/// The answer to a report that made room says when to ask for work. The answer to another report does not.
#[tokio::test]
async fn a_node_that_has_room_is_told_to_ask_for_work_soon() {
    let (world, node, token) = working().await;
    let job = world.look.jobs().await.unwrap().remove(0);
    let alloc = *job.summary.allocs.first().unwrap();
    let record = world.record(node).await;
    let incarnation = record.contact().unwrap().incarnation.clone();
    let report = async |report_no: u64, client: &str| {
        let cause = (client == "complete").then(|| json!({"kind": "exited", "code": 0}));
        let allocs = json!([{"alloc_id": alloc, "client": client, "cause": cause}]);
        let body = json!({"incarnation": incarnation, "report_no": report_no, "as_of": 99, "complete": false, "allocs": allocs});
        let response = world.ingest.handle(&http(&path(node, "allocs"), Some(&token), &body), world.now()).await;
        let (status, body) = answer(&response);
        assert_eq!(status, 200, "{body}");
        body["next_heartbeat_s"].as_f64()
    };
    assert_eq!((report(100, "running").await, report(101, "complete").await), (None, Some(0.6)));
}

/// A request, with the status and the error of the expected answer.
type Refused = (Value, u64, &'static str);

fn path(node: NodeId, what: &str) -> String {
    format!("/v1/nodes/{node}/{what}")
}

fn wrong_credentials_and_paths(world: &World, node: NodeId, token: &str, beat: &Value) -> Vec<Refused> {
    let other = NodeId::new(node.slot(), model::ids::Ulid::from_parts(1, 1));
    let foreign = world.settings.key.as_ref().unwrap().token(&world.cluster, other);
    let (heartbeat, allocs) = (path(node, "heartbeat"), path(node, "allocs"));
    let mut get = http(&heartbeat, Some(token), beat);
    get["requestContext"]["http"]["method"] = json!("GET");
    vec![
        (http(&heartbeat, None, beat), 401, "unauthorized"),
        (http(&heartbeat, Some("wrong"), beat), 401, "unauthorized"),
        (http(&heartbeat, Some(&foreign), beat), 401, "unauthorized"),
        (http(&allocs, Some(&foreign), beat), 401, "unauthorized"),
        (http("/v1/nodes//heartbeat", Some(token), beat), 400, "bad_request"),
        (http("/v2/nodes/x/heartbeat", Some(token), beat), 404, "not_found"),
        (http(&path(node, "nothing"), Some(token), beat), 404, "not_found"),
        (get, 405, "method_not_allowed"),
    ]
}

fn wrong_bodies(node: NodeId, token: &str, beat: &Value) -> Vec<Refused> {
    let (heartbeat, allocs) = (path(node, "heartbeat"), path(node, "allocs"));
    let sent = |to: &str, body: Value| http(to, Some(token), &body);
    let raw = |body: &str| {
        let mut event = http(&heartbeat, Some(token), &json!({}));
        event["body"] = json!(body);
        event
    };
    let report =
        |allocs: Value| json!({"incarnation": "x", "report_no": 1, "as_of": 0, "complete": true, "allocs": allocs});
    vec![
        (sent(&heartbeat, json!({})), 400, "bad_request"),
        (sent(&heartbeat, json!([1, 2])), 400, "bad_request"),
        (raw("{\"instance_id\": \"i"), 400, "bad_request"),
        (raw("\u{0}\u{1}garbage"), 400, "bad_request"),
        (raw(&"x".repeat(3 << 20)), 413, "too_large"),
        (sent(&heartbeat, json!({"instance_id": "", "boot_id": "b", "as_of": 0})), 400, "bad_request"),
        (sent(&heartbeat, json!({"instance_id": "i", "boot_id": "b", "as_of": -1})), 400, "bad_request"),
        (sent(&heartbeat, beat.clone()), 409, "foreign_instance"),
        (sent(&allocs, report(json!([]))), 409, "wrong_incarnation"),
        (sent(&allocs, report(json!([{"alloc_id": "no"}]))), 400, "bad_request"),
        (sent(&allocs, report(json!("all"))), 400, "bad_request"),
        (json!({"dry_run": true}), 400, "bad_request"),
        (json!("text"), 400, "bad_request"),
    ]
}

#[tokio::test]
async fn requests_without_valid_credentials_or_form_change_nothing() {
    let (world, node, token) = working().await;
    let before = tables(&world).await;
    let beat = json!({"instance_id": "i-1", "boot_id": "b", "as_of": 0});
    let mut cases = wrong_credentials_and_paths(&world, node, &token, &beat);
    cases.extend(wrong_bodies(node, &token, &beat));
    for (event, status, error) in cases {
        let response = world.ingest.handle(&event, world.now()).await;
        let (got, body) = answer(&response);
        let shown: String = event.to_string().chars().take(200).collect();
        assert_eq!((got, body["error"].as_str()), (status, Some(error)), "{shown}: {body}");
        assert!(body["message"].as_str().unwrap().len() < 600, "{shown}");
        assert_eq!(tables(&world).await, before, "{shown}");
    }
    // A node without a record, but with a valid credential. The answer is not 410.
    let nobody = NodeId::new(model::ids::Slot::new(99).unwrap(), model::ids::Ulid::from_parts(5, 5));
    let credential = world.settings.key.as_ref().unwrap().token(&world.cluster, nobody);
    let event = http(&format!("/v1/nodes/{nobody}/heartbeat"), Some(&credential), &beat);
    let response = world.ingest.handle(&event, world.now()).await;
    assert_eq!((answer(&response).0, response["headers"]["retry-after"].as_str()), (503, Some("5")));
    assert_eq!(tables(&world).await, before);
}

#[tokio::test]
async fn a_report_about_another_nodes_alloc_is_refused_and_the_rest_is_taken() {
    let mut world = World::new().await;
    for _ in 0..2 {
        let mut spec = job(&["forever"]);
        spec.needs.vcpus = 2;
        world.submit(spec).await;
    }
    for _ in 0..6 {
        world.step().await;
    }
    let allocs = world.look.live_allocs().await.unwrap();
    assert_eq!(allocs.len(), 2);
    let node = world.nodes.values().find(|n| n.file.node_id == allocs[0].node_id).unwrap();
    let report = json!({
    "incarnation": node.protocol.durable.incarnation, "report_no": 1000, "as_of": node.protocol.durable.as_of,
    "complete": false,
    "allocs": [
        {"alloc_id": allocs[1].alloc_id, "client": "complete", "cause": {"kind": "exited", "code": 0}},
        {"alloc_id": allocs[0].alloc_id, "client": "failed", "cause": {"kind": "exited", "code": 3}},
    ]});
    let path = format!("/v1/nodes/{}/allocs", node.file.node_id);
    let response = world.ingest.handle(&http(&path, node.file.token.as_deref(), &report), world.now()).await;
    let (status, body) = answer(&response);
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["accepted"], json!([allocs[0].alloc_id]));
    assert_eq!(body["refused"][0]["alloc_id"], json!(allocs[1].alloc_id));
    let other = world.look.alloc(allocs[1].alloc_id).await.unwrap().unwrap();
    assert_eq!(other.summary, allocs[1], "the other node's alloc is as it was");
}

#[tokio::test]
async fn ns_05_updates_are_refused_until_the_node_was_heard_from() {
    let (mut world, node, token) = working().await;
    for node in world.nodes.values_mut() {
        node.silent = true;
    }
    for _ in 0..12 {
        world.step().await;
    }
    let record = world.record(node).await;
    assert_eq!(record.status(), Some(model::NodeStatus::Disconnected));
    let before = tables(&world).await;
    let incarnation = record.contact().unwrap().incarnation.clone();
    let report = json!({"incarnation": incarnation, "report_no": 500, "as_of": 0, "complete": true, "allocs": []});
    let event = http(&format!("/v1/nodes/{node}/allocs"), Some(&token), &report);
    let (status, body) = answer(&world.ingest.handle(&event, world.now()).await);
    assert_eq!((status, body["error"].as_str()), (409, Some("not_ready")));
    assert_eq!(body["message"], format!("node {node} may not update allocs while disconnected: heartbeat first"));
    assert_eq!(tables(&world).await, before);
    // NS-15: the node comes back. It is syncing, then ready, and still has the same single alloc.
    for node in world.nodes.values_mut() {
        node.silent = false;
    }
    for _ in 0..4 {
        world.step().await;
        world.check().await;
    }
    let allocs = world.look.live_allocs().await.unwrap();
    assert_eq!(allocs.len(), 1);
    assert_eq!((allocs[0].client, allocs[0].awaiting), (model::ClientStatus::Running, false));
    assert!(world.record(node).await.takes_work());
}

#[tokio::test]
async fn an_unreachable_endpoint_gives_a_clear_error() {
    let url = free_url();
    let store = Store::new(Arc::new(Dynamo::new(dynamo_client(&url), "c".parse().unwrap())));
    let error = store.nodes().await.unwrap_err().to_string();
    assert!(error.contains("did not answer") && error.contains("AWS_ENDPOINT_URL_DYNAMODB"), "{error}");
    let cloud = Ec2::new(ec2_client(&url), "c".parse().unwrap());
    let error = cloud.instances().await.unwrap_err().to_string();
    assert!(error.contains("did not answer") && error.contains("AWS_ENDPOINT_URL_EC2"), "{error}");
}

#[tokio::test]
async fn a_failed_page_fails_the_run_before_anything_is_done() {
    let world = World::new().await;
    world.submit(job(&["one"])).await;
    let fail = json!({"fail": [{"action": "DescribeInstances", "on_call": 1, "code": "UnauthorizedOperation", "status": 403, "message": "no"}]});
    world.ec2.set_faults(serde_json::from_value(fail).unwrap());
    let run = poll_and_scale::tick(&world.store, &*world.cloud, &world.settings, &json!({}), world.clock()).await;
    assert!(run.unwrap_err().to_string().contains("UnauthorizedOperation"));
    assert_eq!(world.look.nodes().await.unwrap(), []);
    assert_eq!(world.ec2.instances().len(), 0);
}

/// If EC2 refuses to terminate one instance, the others are still terminated. If the service fails, it is not called
/// again for each instance.
#[tokio::test]
async fn instances_are_terminated_one_by_one_after_a_refusal_but_not_after_a_service_error() {
    let world = World::new().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        let (node, offering) = (fixtures::node_id(n), fixtures::offering());
        let request = LaunchRequest::render(&world.settings, &world.policy, node, std::slice::from_ref(&offering));
        ids.push(world.cloud.launch(&request, &format!("token-{n}")).await.unwrap().instances.remove(0).instance_id);
    }
    let fail = |calls: &[(u32, &str, u16)]| {
        let fail = |(on_call, code, status): &(u32, &str, u16)| json!({"action": "TerminateInstances", "on_call": on_call, "code": code, "status": status});
        let faults = json!({"fail": calls.iter().map(fail).collect::<Vec<_>>()});
        world.ec2.set_faults(serde_json::from_value(faults).unwrap());
    };
    let ended = || {
        let all = world.ec2.instances().into_iter();
        let mut ended: Vec<_> = all
            .filter(|i| {
                i.state != ec2_stand_in::InstanceState::Pending && i.state != ec2_stand_in::InstanceState::Running
            })
            .map(|i| i.instance_id)
            .collect();
        ended.sort_by_key(|id| ids.iter().position(|i| i == id));
        ended
    };
    // The SDK tries a failing service three times. A later call would succeed.
    fail(&[1, 2, 3].map(|n| (n, "InternalError", 500)));
    let error = world.cloud.terminate(&ids).await.unwrap_err().to_string();
    assert!(error.contains("InternalError"), "{error}");
    assert_eq!(ended(), [] as [String; 0]);
    // The first call is for all instances, the second for the first instance alone.
    fail(&[1, 2].map(|n| (n, "OperationNotPermitted", 400)));
    let error = world.cloud.terminate(&ids).await.unwrap_err().to_string();
    assert!(error.contains("OperationNotPermitted"), "{error}");
    assert_eq!(ended(), ids[1..]);
}

/// The dry run asks EC2 for one node of each size, by both launch calls. Its answer names what EC2 refuses.
#[tokio::test]
async fn a_dry_run_changes_nothing_and_names_what_ec2_refuses() {
    let world = World::new().await;
    world.submit(job(&["one"])).await;
    let before = tables(&world).await;
    let subnet = "You are not authorized: ec2:RunInstances on resource: arn:aws:ec2:eu-west-1:1:subnet/subnet-a";
    for (action, code, message, refused) in [
        ("none", "", "", None),
        ("CreateFleet", "UnauthorizedOperation", "no", Some("EC2 refuses every launch|the role, the credentials")),
        ("CreateFleet", "UnknownParameter", "no", Some("EC2 does not take a launch call of several ways|")),
        (
            "RunInstances",
            "UnauthorizedOperation",
            subnet,
            Some("EC2 refuses launches with|what poll-and-scale may use"),
        ),
        ("RunInstances", "InvalidAMIID.NotFound", "no", Some("launch template|the launch template")),
    ] {
        let fail = json!({"fail": [{"action": action, "code": code, "status": 403, "message": message, "times": 9}]});
        world.ec2.set_faults(serde_json::from_value(fail).unwrap());
        let input = json!({"dry_run": true});
        let run = poll_and_scale::tick(&world.store, &*world.cloud, &world.settings, &input, world.clock());
        let run = run.await.unwrap();
        let [launch] = &run.actions[..] else { panic!("{:?}", run.actions) };
        assert!(launch.action == ActionName::Launch && launch.outcome != ActionOutcome::Done, "{launch:?}");
        let says = run.refused.iter().map(|it| format!("{}|{}", it.text, it.to_do)).collect::<Vec<_>>().join("\n");
        let names = |part: &str| says.contains(part) && says.contains(code);
        assert!(refused.map_or(says.is_empty(), |parts| parts.split('|').all(names)), "{refused:?}: {says}");
        assert_eq!((tables(&world).await, world.switch.calls(), world.ec2.instances().len()), (before.clone(), 0, 0));
    }
}

/// The same call comes twice, and leases became shorter in between. The lease still covers the time at which the node
/// was told to call.
#[tokio::test]
async fn a_repeated_heartbeat_shortens_no_lease() {
    let (world, node, token) = working().await;
    let lease = async |world: &World| {
        let record = world.record(node).await;
        let contact = record.contact().unwrap().clone();
        (contact.lease_expires_at, contact.last_ping_at)
    };
    let agent = world.nodes.values().next().unwrap();
    let beat = json!(agent.protocol.heartbeat(None));
    let (until, _) = lease(&world).await;
    let mut shorter = quick_policy();
    shorter["heartbeat"] = json!({"ttl_s": 10, "idle_s": 10, "grace_s": 10});
    set_policy(&world.look, &Policy::from_json(&shorter).unwrap()).await;
    let key = NodeCredentials::Token(world.settings.key.clone().unwrap());
    let ingest = heartbeat_ingest::Ingest::new(world.store.clone(), key, world.cluster.clone());
    world.pass(1);
    let now = world.now();
    let event = http(&format!("/v1/nodes/{node}/heartbeat"), Some(&token), &beat);
    let (status, body) = answer(&ingest.handle(&event, now).await);
    assert_eq!(status, 200, "{body}");
    assert_eq!(lease(&world).await, (until, now));
    // Then another process answers. Its clock is behind, and it still gives long leases.
    world.pass(30);
    assert_eq!(answer(&ingest.handle(&event, world.now()).await).0, 200);
    let (short, pinged) = lease(&world).await;
    let behind = world.now() - Span::from_s(2);
    let (status, body) = answer(&world.ingest.handle(&event, behind).await);
    let told = behind + Span::from_ms((body["next_heartbeat_s"].as_f64().unwrap() * 1000.0) as i64);
    let (until, last) = lease(&world).await;
    assert_eq!((status, last), (200, pinged + Span::from_ms(1)));
    assert!(until > short && until > told, "{until} {short} {told}");
}

/// The network delivers old heartbeats minutes later, when a newer one has already arrived.
#[tokio::test]
async fn a_heartbeat_that_comes_late_changes_nothing() {
    let (world, node, token) = working().await;
    let record = async || world.record(node).await;
    let agent = world.nodes.values().next().unwrap();
    let beat = async |uptime_ms: Option<u64>, busy: bool, registers: bool| {
        let mut beat = json!(agent.protocol.heartbeat(None));
        (beat["uptime_ms"], beat["busy"]) = (json!(uptime_ms), json!(busy));
        if registers {
            beat["incarnation"] = Value::Null;
        }
        world.pass(1);
        let event = http(&format!("/v1/nodes/{node}/heartbeat"), Some(&token), &beat);
        let (status, body) = answer(&world.ingest.handle(&event, world.now()).await);
        (status, body["error"].as_str().unwrap_or_default().to_owned(), record().await)
    };
    let says = |record: &NodeRecord| record.contact().map(|c| (c.health.busy, c.uptime_ms)).unwrap();
    // The agent of an older release gives no order, and its heartbeats count as they arrive.
    let (status, _, old) = beat(None, false, false).await;
    assert_eq!((status, says(&old)), (200, (false, None)));
    let (status, _, before) = beat(Some(5000), true, false).await;
    assert_eq!((status, says(&before)), (200, (true, Some(5000))));
    for (busy, registers) in [(false, false), (true, false), (false, true)] {
        let (status, error, after) = beat(Some(4999), busy, registers).await;
        assert_eq!((status, error.as_str()), (409, "stale_report"), "{busy} {registers}");
        assert_eq!(after, before, "{busy} {registers}");
    }
    // A heartbeat that arrives twice is not late. The next heartbeat is not late either.
    let (status, _, again) = beat(Some(5000), true, false).await;
    assert_eq!((status, says(&again), again.version), (200, (true, Some(5000)), before.version));
    let (status, _, next) = beat(Some(5001), true, false).await;
    assert_eq!((status, says(&next), next.version), (200, (true, Some(5001)), before.version));
    let (status, _, free) = beat(Some(6000), false, false).await;
    assert_eq!((status, says(&free)), (200, (false, Some(6000))));
}

/// Each instance of a batch knows the ids of all nodes of the batch. The run that launched them was killed before it
/// bound them.
#[tokio::test]
async fn a_node_of_a_batch_is_claimed_by_no_caller() {
    let launching = || async {
        let world = World::batched(quick_policy()).await;
        for _ in 0..3 {
            world
                .submit(model::JobSpec {
                    needs: Needs { exclusive: true, ..job(&["forever"]).needs },
                    ..job(&["forever"])
                })
                .await;
        }
        world
    };
    let dry = launching().await;
    dry.poll().await;
    let world = launching().await;
    world.switch.kill_after(dry.switch.log().iter().position(|call| call == "CreateFleet").unwrap() + 1);
    assert!(world.poll().await.is_none(), "killed");
    let records = async || world.look.nodes().await.unwrap();
    let before = records().await;
    let batch = before[1].life().unwrap().batch.clone().unwrap();
    assert_eq!(batch.slots().len(), 3);
    let node = batch.nodes().nth(1).unwrap();
    let token = "5a".repeat(32).parse::<NodeKey>().unwrap().token(&world.cluster, node);
    let register = async |instance_id: &str| {
        let beat = json!({"instance_id": instance_id, "boot_id": "boot-1", "as_of": 0});
        let event = http(&format!("/v1/nodes/{node}/heartbeat"), Some(&token), &beat);
        answer(&world.ingest.handle(&event, world.now()).await).0
    };
    let instances: Vec<String> = world.ec2.instances().iter().map(|i| i.instance_id.clone()).collect();
    for instance_id in &instances {
        assert_eq!(register(instance_id).await, 503, "{instance_id}");
    }
    assert_eq!(records().await, before);
    // The next run learns which instance belongs to which node.
    world.pass(5);
    world.poll().await;
    let bound: Vec<_> = records().await.iter().map(|n| n.life().unwrap().instance_id.clone().unwrap()).collect();
    assert_eq!(bound.iter().collect::<BTreeSet<_>>(), instances.iter().collect());
    assert_eq!([register(&bound[0]).await, register(&bound[1]).await], [409, 200]);
}

/// An operator gave an instance an hour, and EC2 takes it in two minutes.
#[tokio::test]
async fn an_interruption_replaces_a_later_deadline() {
    let (world, node, token) = working().await;
    let record = world.record(node).await;
    let drained = record.with_intent(Intent::Drain, Some(world.now() + Span::from_s(3600)), world.now()).unwrap();
    world.look.write(Some(&record), &drained, Vec::new()).await.unwrap();
    let by = async || world.record(node).await.life().unwrap().drain_by_at;
    let instance = drained.life().unwrap().instance_id.clone().unwrap();
    // The run is 26 seconds late. An impossible time counts as the nearest possible one.
    let told = world.now() + Span::from_s(120 - 26);
    let late = world.now() - Span::from_s(26);
    for (time, expected) in [("2057-01-07T08:00:35Z".to_owned(), 120), ("soon".to_owned(), 120), (late.to_string(), 94)]
    {
        let warning = json!({"detail-type": "EC2 Spot Instance Interruption Warning", "time": time,
            "detail": {"instance-id": instance}});
        poll_and_scale::tick(&world.store, &*world.cloud, &world.settings, &warning, world.clock()).await.unwrap();
        // The run's clock goes on while it works.
        let late = by().await.unwrap().since(world.now() + Span::from_s(expected));
        assert!((0..1000).contains(&late.as_ms()), "{time}: {late}");
    }
    // The agent knows the exact second. A later report of a later time changes nothing.
    for (at, expected) in [(told - Span::from_s(5), told - Span::from_s(5)), (told, told - Span::from_s(5))] {
        let agent = world.nodes.values().next().unwrap();
        let mut beat = json!(agent.protocol.heartbeat(None));
        beat["interrupt_at"] = json!(at.as_ms());
        world.pass(1);
        let event = http(&format!("/v1/nodes/{node}/heartbeat"), Some(&token), &beat);
        assert_eq!(answer(&world.ingest.handle(&event, world.now()).await).0, 200);
        assert_eq!(by().await, Some(expected));
    }
}

/// EC2 recommends to leave an instance, but it may never take it. Only if the policy says so, the node is drained,
/// without a deadline.
#[tokio::test]
async fn a_node_at_risk_is_drained_if_the_policy_says_so() {
    for drains in [false, true] {
        let (world, node, _) = working().await;
        let mut policy = quick_policy();
        policy["launch"]["drain_at_risk"] = json!(drains);
        set_policy(&world.look, &Policy::from_json(&policy).unwrap()).await;
        let life = async || world.record(node).await.life().unwrap().clone();
        let warning = json!({"detail-type": "EC2 Instance Rebalance Recommendation",
            "detail": {"instance-id": life().await.instance_id.unwrap()}});
        for _ in 0..2 {
            poll_and_scale::tick(&world.store, &*world.cloud, &world.settings, &warning, world.clock()).await.unwrap();
            let life = life().await;
            assert_eq!((life.intent == Intent::Drain, life.drain_by_at), (drains, None));
        }
        let events = world.look.history(&format!("slot#{}", node.slot()), 50).await.unwrap();
        let told = events.iter().filter(|e| e.reason.contains("launch.drain_at_risk")).count();
        assert_eq!(told, usize::from(drains), "{events:?}");
    }
}

/// The agent finds that jobs could read the instance metadata, and later that they cannot.
#[tokio::test]
async fn a_node_that_takes_no_work_is_ready_and_gets_none() {
    let (world, node, token) = working().await;
    let long = "jobs reach the instance metadata ".repeat(10);
    let record = async || world.record(node).await;
    let agent = world.nodes.values().next().unwrap();
    let beat = async |refuses: Option<&str>| {
        let mut beat = json!(agent.protocol.heartbeat(None));
        beat["refuses"] = json!(refuses);
        world.pass(1);
        let event = http(&format!("/v1/nodes/{node}/heartbeat"), Some(&token), &beat);
        assert_eq!(answer(&world.ingest.handle(&event, world.now()).await).0, 200);
        record().await
    };
    let before = record().await;
    let refusing = beat(Some(&long)).await;
    assert_eq!(refusing.refuses(), Some(&long[..model::MAX_REASON_BYTES]));
    assert!(before.takes_work() && !refusing.takes_work());
    // The same heartbeat again changes only the pulse.
    let again = beat(Some(&long)).await;
    assert_eq!(again.version, refusing.version);
    assert!(again.contact().unwrap().last_ping_at > refusing.contact().unwrap().last_ping_at);
    let back = beat(None).await;
    assert_eq!((back.refuses(), back.takes_work()), (None, true));
}

/// Limits on what one node can cost.
#[tokio::test]
async fn a_node_that_calls_too_often_or_reports_too_much_costs_a_bounded_amount() {
    let (world, node, token) = working().await;
    let agent = world.nodes.values().next().unwrap();
    let beat = http(&path(node, "heartbeat"), Some(&token), &agent.protocol.heartbeat(None));
    let now = world.now();
    let calls = world.switch.calls();
    let mut statuses = std::collections::BTreeMap::<u64, usize>::new();
    for _ in 0..1000 {
        *statuses.entry(answer(&world.ingest.handle(&beat, now).await).0).or_default() += 1;
    }
    assert!(statuses[&503] >= 790, "{statuses:?}");
    assert!(world.switch.calls() - calls < 900, "a refused call reads and writes nothing");
    let report = json!({"incarnation": agent.protocol.durable.incarnation, "report_no": 99, "as_of": 0, "complete": false,
        "allocs": vec![json!({"alloc_id": fixtures::alloc_id(1), "client": "running"}); 10_001]});
    world.pass(100);
    let refused = answer(&world.ingest.handle(&http(&path(node, "allocs"), Some(&token), &report), world.now()).await);
    assert_eq!((refused.0, refused.1["error"].as_str()), (400, Some("bad_request")));
    let handles: Vec<_> =
        (0..2500).map(|n| json!({"handle": format!("h-{n}"), "kind": "volume", "label": node})).collect();
    let report = json!({"incarnation": agent.protocol.durable.incarnation, "report_no": 99, "as_of": agent.protocol.durable.as_of,
        "complete": false, "digest": "d", "handles": handles});
    let before = world.look.handles_of(node).await.unwrap().rows.len();
    let event = http(&path(node, "handles"), Some(&token), &report);
    let Ok(runtime::lambda::Reply::Http(told)) = world.sweep.handle(event, world.clock()).await else {
        panic!("no answer")
    };
    let (status, said) = answer(&told);
    assert_eq!((status, said["left"].as_u64()), (200, Some(500)), "{said}");
    assert_eq!(
        world.look.handles_of(node).await.unwrap().rows.len() - before,
        2000,
        "the next report adds the next ones"
    );
}

/// A report with an impossible entry is refused as a whole, and changes nothing.
#[tokio::test]
async fn a_bad_entry_of_a_report_refuses_the_report() {
    let (mut world, node, token) = working().await;
    for _ in 0..4 {
        world.step().await;
    }
    let agent = &world.nodes.values().next().unwrap().protocol;
    let (incarnation, as_of) = (agent.durable.incarnation.clone(), agent.durable.as_of);
    world.make_row(world.look.live_allocs().await.unwrap()[0].alloc_id).await;
    let rows = world.look.handles_of(node).await.unwrap().rows;
    let own = rows.first().unwrap().handle.clone();
    let label = node.to_string();
    for (handle, right) in [
        (json!({"handle": own, "kind": "castle", "label": label}), false),
        (json!({"handle": "x".repeat(2000), "kind": "volume", "label": label}), false),
        (json!({"handle": "long", "kind": "volume", "label": "x".repeat(400_000)}), false),
        (json!({"handle": "", "kind": "volume"}), false),
        (json!({"kind": "volume"}), false),
        (json!(7), false),
        (json!({"handle": own, "kind": "container", "label": label}), true),
    ] {
        let body = json!({"incarnation": incarnation, "report_no": 99, "as_of": as_of, "complete": true, "digest": "d",
            "handles": [handle]});
        let event = http(&path(node, "handles"), Some(&token), &body);
        let Ok(runtime::lambda::Reply::Http(told)) = world.sweep.handle(event, world.clock()).await else {
            panic!("no answer")
        };
        assert_eq!(answer(&told).0, if right { 200 } else { 400 }, "{told}");
        // The row of a live alloc's container goes with a good report.
        let left = if right { &[][..] } else { rows.as_slice() };
        assert_eq!(world.look.handles_of(node).await.unwrap().rows, left, "no other row has changed");
    }
    let live = world.look.live_allocs().await.unwrap();
    let id = live.iter().find(|a| a.node_id == node).unwrap().alloc_id;
    let body = json!({"incarnation": incarnation, "report_no": 99, "as_of": as_of, "complete": true,
        "allocs": [{"alloc_id": id, "client": "dancing"}]});
    let event = http(&path(node, "allocs"), Some(&token), &body);
    assert_eq!(answer(&world.ingest.handle(&event, world.now()).await).0, 400);
    assert_eq!(world.look.live_allocs().await.unwrap(), live, "no alloc has changed");
}
