//! Answers stay below Lambda's limit, however large the rows are. The rest comes with the next answer.

use crate::world::all_rows::AllRows;
use crate::world::node::{answer, http};
use crate::world::raw::{Item, Raw, item, n, s};
use crate::world::{World, job};
use aws_sdk_dynamodb::types::AttributeValue;
use model::ids::Ulid;
use model::wire::{
    AllocReportAnswer, AllocStatus, HandleReportAnswer, Heartbeat, HeartbeatAnswer, OrderList, RefusedUpdate,
};
use model::{AllocId, ClientStatus, Desired, Intent, JobId, JobSpec, MAX_COMMAND_BYTES, NodeStatus};
use std::collections::BTreeSet;

/// The largest answer of a function (AWS Lambda quotas).
const LIMIT: usize = 6 * 1024 * 1024;
/// DynamoDB's limit for a row.
const ROW: usize = 400 * 1024;

fn alloc_id(n: u128) -> AllocId {
    AllocId { job_id: JobId::new(Ulid::from_parts(1, n)), member: 23, copy: u32::MAX }
}

fn bytes(response: &serde_json::Value) -> usize {
    assert_eq!(response["statusCode"], 200, "{response}");
    serde_json::to_string(response).unwrap().len()
}

#[tokio::test]
async fn the_orders_of_a_node_with_many_large_allocs_come_in_parts() {
    let mut world = World::new().await;
    // Quotes and line ends take the most room in an answer.
    let text = "\"\n".repeat(MAX_COMMAND_BYTES / 2 - 100);
    let spec = JobSpec { env: [("INPUT".into(), text.clone())].into(), ..job(&["forever"]) };
    let first = world.submit(spec).await.summary.job_id;
    for _ in 0..6 {
        world.step().await;
    }
    let raw = Raw::of(&world);
    let placed = world.look.live_allocs().await.unwrap().remove(0);
    assert_eq!(placed.alloc_id.job_id, first);
    let row = raw.get("allocs", &item(&[("alloc_id", s(placed.alloc_id))])).await.unwrap();
    let mut record = raw.get("nodes", &item(&[("slot", n(placed.slot))])).await.unwrap();
    let seq: u64 = record["seq"].as_n().unwrap().parse().unwrap();
    let copies: Vec<AllocId> = (0..150).map(|n| AllocId { member: 0, ..alloc_id(n) }).collect();
    for (id, number) in copies.iter().zip(1..) {
        let mut copy: Item = row.clone();
        copy.extend(item(&[("alloc_id", s(id)), ("client", s("pending")), ("placed_seq", n(seq + number))]));
        raw.put("allocs", &copy).await;
    }
    let all: Vec<AttributeValue> = copies.iter().chain([&placed.alloc_id]).map(s).collect();
    record.insert("allocs".into(), AttributeValue::L(all));
    record.insert("seq".into(), n(seq + 150));
    raw.put("nodes", &record).await;

    let (_, mut node) = world.nodes.pop_first().unwrap();
    let path = format!("/v1/nodes/{}/heartbeat", node.file.node_id);
    let mut rounds = 0;
    while node.protocol.durable.as_of < seq + 150 {
        world.pass(1);
        let (before, had) = (node.protocol.durable.as_of, node.protocol.durable.allocs.len());
        let beat = node.protocol.heartbeat(None);
        let response = world.ingest.handle(&http(&path, node.file.token.as_deref(), &beat), world.now()).await;
        assert!(bytes(&response) < LIMIT / 3, "{} bytes", bytes(&response));
        let answer: HeartbeatAnswer = serde_json::from_value(answer(&response).1).unwrap();
        node.protocol.on_heartbeat(&answer);
        let durable = &node.protocol.durable;
        assert!(
            durable.as_of > before && durable.allocs.len() > had,
            "each answer brings something: {before} {had} {} {} {answer:?}",
            durable.as_of,
            durable.allocs.len()
        );
        assert!(durable.allocs.values().all(|a| !a.dropped && a.order.env["INPUT"] == text));
        assert_eq!(answer.next_heartbeat_s < 1.0, durable.as_of < seq + 150, "the rest comes at once");
        // No report in between says that an alloc that has not arrived yet is lost.
        assert_eq!(durable.as_of, seq + u64::try_from(durable.allocs.len()).unwrap() - 1);
        rounds += 1;
    }
    let here: BTreeSet<AllocId> = node.protocol.durable.allocs.keys().copied().collect();
    assert_eq!(here, copies.into_iter().chain([placed.alloc_id]).collect());
    assert!((5..60).contains(&rounds), "{rounds} answers");
}

/// The largest possible answers: rows and requests are full.
#[test]
fn no_answer_to_a_node_exceeds_the_limit() {
    // A set of this many ids fills the record of a node.
    let id_bytes = alloc_id(0).to_string().len();
    let others: Vec<AllocStatus> = (0..ROW / id_bytes)
        .map(|n| AllocStatus {
            alloc_id: alloc_id(n as u128),
            desired: Desired::Stop,
            client: ClientStatus::Complete,
            placed_seq: u64::MAX,
        })
        .collect();
    let unreadable: BTreeSet<AllocId> = (0..5000).map(alloc_id).collect();
    // Above this size, a job that somebody put without a check is quarantined.
    let mut order = model::fixtures::job(1).work;
    order.command = vec!["\u{1b}".repeat(MAX_COMMAND_BYTES)];
    let alloc =
        model::Alloc::place(alloc_id(0), &model::fixtures::job(1), &model::fixtures::ready(0), model::fixtures::at(1));
    let mut alloc = alloc.unwrap();
    alloc.work = order;
    let order = alloc.order(vec!["h".repeat(253); 24]);
    let orders = runtime::http::first_part(vec![order.clone(); 40]);
    assert!((2..40).contains(&orders.len()), "a part of them: {}", orders.len());
    let list = OrderList { allocs: orders, others, unreadable: unreadable.clone() };
    let heartbeat = HeartbeatAnswer {
        status: NodeStatus::Ready,
        incarnation: "i".repeat(128),
        seq: u64::MAX,
        next_heartbeat_s: 1.0,
        retry_s: 30.0,
        ask_until_ms: Some(u64::MAX),
        intent: Intent::Drain,
        must_report: true,
        report_handles: true,
        orders: Some(list.clone()),
        follows: unreadable.clone(),
    };
    let refused: Vec<RefusedUpdate> = (0..10_000)
        .map(|n| RefusedUpdate { alloc_id: alloc_id(n), reason: format!("{} already ended as complete", alloc_id(n)) })
        .collect();
    let report = AllocReportAnswer {
        status: NodeStatus::Ready,
        seq: u64::MAX,
        accepted: Vec::new(),
        refused,
        next_heartbeat_s: Some(0.2),
        jobs_wait: true,
        orders: Some(list),
    };
    // A request of 2 MiB has this many names.
    let names =
        |many: usize| runtime::http::first_part((0..many).map(|_| "\"\u{1b}".repeat(512)).collect::<Vec<String>>());
    let handles = HandleReportAnswer {
        seq: u64::MAX,
        destroy: names(1000),
        more: true,
        conflicts: names(2000),
        refused: true,
        next_report_s: 1.0,
        left: u64::MAX,
        settled: Some("s".repeat(128)),
    };
    for (what, response) in [
        ("heartbeat", runtime::http::answer(Ok(heartbeat))),
        ("allocs", runtime::http::answer(Ok(report))),
        ("handles", runtime::http::answer(Ok(handles))),
    ] {
        assert!(bytes(&response) < LIMIT, "{what}: {} bytes", bytes(&response));
    }
    // The computed size of an entry is its real size.
    let body = |entries: Vec<model::wire::AllocOrder>| bytes(&runtime::http::answer(Ok(entries)));
    let (one, two) = (body(vec![order.clone()]), body(vec![order.clone(), order.clone()]));
    assert_eq!(two - one, runtime::http::bytes_in_answer(&order) + 1, "and a comma");
}

#[tokio::test]
async fn a_node_cannot_put_anything_but_a_host_into_the_environment_of_others() {
    let mut world = World::new().await;
    world.submit(job(&["forever"])).await;
    for _ in 0..6 {
        world.step().await;
    }
    let (_, node) = world.nodes.pop_first().unwrap();
    let path = format!("/v1/nodes/{}/heartbeat", node.file.node_id);
    let right = node.protocol.heartbeat(None);
    let send = async |beat: &Heartbeat| {
        world.pass(1);
        answer(&world.ingest.handle(&http(&path, node.file.token.as_deref(), beat), world.now()).await)
    };
    for address in ["-oProxyCommand=touch /tmp/x", "10.0.0.1,10.0.0.2", "a\nb", "", "10.0.0.1 "] {
        let (status, said) = send(&Heartbeat { address: Some(address.into()), ..right.clone() }).await;
        assert_eq!((status, &said["error"]), (400, &"bad_request".into()), "{address:?}: {said}");
        assert!(said["message"].as_str().unwrap().starts_with("address must be an IP address"), "{said}");
    }
    for wrong in [
        Heartbeat { instance_id: "i-1,i-2".into(), ..right.clone() },
        Heartbeat { boot_id: "\u{1b}[2J".into(), ..right.clone() },
        Heartbeat { incarnation: Some("a b".into()), ..right.clone() },
    ] {
        assert_eq!(send(&wrong).await.0, 400, "{wrong:?}");
    }
    assert_eq!(send(&right).await.0, 200);
}
