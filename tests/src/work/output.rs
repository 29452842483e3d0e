//! The output of jobs on its way to readers: what a node may write, for which reader, and for how long.

use crate::world::all_rows::AllRows;
use crate::world::node::{answer, http};
use crate::world::raw::{Raw, item, s};
use crate::world::{World, job};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::JobSpec;
use model::ids::{AllocId, NodeId};
use model::output::{FOLLOW_LASTS, Follow, MAX_FOLLOW_ID_BYTES, MAX_PIECE_BYTES, MAX_PIECE_SWITCHES};
use model::time::{Span, Time};
use serde_json::{Value, json};

struct Working {
    node: NodeId,
    instance: String,
    token: String,
    alloc: AllocId,
}

/// A world with this many working nodes.
async fn working(nodes: usize) -> (World, Vec<Working>) {
    let mut world = World::new().await;
    for _ in 0..nodes {
        world
            .submit(JobSpec { needs: model::Needs { vcpus: 2, ..job(&["forever"]).needs }, ..job(&["forever"]) })
            .await;
    }
    for _ in 0..6 {
        world.step().await;
    }
    let allocs = world.look.live_allocs().await.unwrap();
    assert_eq!(allocs.len(), nodes);
    let of = |alloc: &model::AllocSummary| {
        let (instance, node) = world.nodes.iter().find(|(_, n)| n.file.node_id == alloc.node_id).unwrap();
        let token = node.file.token.clone().unwrap();
        Working { node: alloc.node_id, instance: instance.clone(), token, alloc: alloc.alloc_id }
    };
    let working = allocs.iter().map(of).collect();
    (world, working)
}

impl World {
    /// Writes the row of a reader who follows the alloc of this node.
    async fn follow(&self, of: &Working, follow_id: &str, until_at: Time) {
        let record = self.record(of.node).await;
        let follow = Follow { follow_id: follow_id.into(), alloc_id: of.alloc, last_bytes: None, until_at };
        let after = record.with_follow(&follow, self.now()).unwrap();
        self.look.write(Some(&record), &after, Vec::new()).await.unwrap();
    }

    async fn send(&self, from: &Working, what: &str, body: &Value) -> (u64, Value) {
        let path = format!("/v1/nodes/{}/{what}", from.node);
        answer(&self.ingest.handle(&http(&path, Some(&from.token), body), self.now()).await)
    }

    /// Sends a piece, or asks for the number of the next one. Returns whether more is wanted, and the next number.
    async fn piece(&self, from: &Working, follow_id: &str, alloc: AllocId, piece: Option<Value>) -> (bool, Value) {
        let mut body = json!({"follow_id": follow_id, "alloc_id": alloc});
        if let Some(piece) = piece {
            body["piece"] = piece;
        }
        let (status, answer) = self.send(from, "output", &body).await;
        assert_eq!(status, 200, "{answer}");
        (answer["wanted"].as_bool().unwrap(), answer["next"].clone())
    }

    async fn beat(&mut self, from: &Working) -> Value {
        self.pass(5);
        let beat = self.nodes[&from.instance].protocol.heartbeat(None);
        let (status, answer) = self.send(from, "heartbeat", &serde_json::to_value(beat).unwrap()).await;
        assert_eq!(status, 200, "{answer}");
        answer
    }

    async fn follows(&self, of: &Working) -> usize {
        self.record(of.node).await.life().unwrap().follows.len()
    }
}

fn piece(no: u64, offset: u64, data: &[u8], then: &str) -> Option<Value> {
    let size = offset + data.len() as u64;
    Some(json!({"no": no, "offset": offset, "data": BASE64_STANDARD.encode(data), "size": size, "then": then}))
}

const NOTHING: (bool, Value) = (false, Value::Null);

#[tokio::test]
async fn a_node_writes_pieces_only_for_readers_on_its_own_record() {
    let (world, nodes) = working(2).await;
    let (own, other) = (&nodes[0], &nodes[1]);
    world.follow(own, "f1", world.now() + FOLLOW_LASTS).await;
    let nobody = [
        world.piece(other, "f1", own.alloc, piece(0, 0, b"false", "more")).await,
        world.piece(other, "f1", other.alloc, piece(0, 0, b"false", "more")).await,
        world.piece(own, "f1", other.alloc, piece(0, 0, b"false", "more")).await,
        world.piece(own, "f2", own.alloc, piece(0, 0, b"false", "more")).await,
        world.piece(own, "f2", own.alloc, None).await,
    ];
    assert_eq!(nobody, [NOTHING, NOTHING, NOTHING, NOTHING, NOTHING]);
    assert_eq!((world.look.piece("f1", 0).await.unwrap(), world.look.piece("f2", 0).await.unwrap()), (None, None));

    assert_eq!(world.piece(own, "f1", own.alloc, None).await, (true, Value::Null), "it begins");
    let second = (true, json!({"no": 1, "offset": 3}));
    assert_eq!(world.piece(own, "f1", own.alloc, piece(0, 0, b"one", "more")).await, second);
    let stored = world.look.piece("f1", 0).await.unwrap().unwrap();
    assert_eq!((stored.data.as_str(), stored.bytes, stored.size), (BASE64_STANDARD.encode("one").as_str(), 3, 3));
    assert_eq!(stored.expires_at, (world.now() + Span::from_s(3600)).as_epoch_s());
    // The same piece again: its answer was lost, or a new agent sends it.
    assert_eq!(world.piece(own, "f1", own.alloc, piece(0, 0, b"other", "more")).await, second);
    assert_eq!(world.piece(own, "f1", own.alloc, None).await, second);
    assert_eq!(world.look.piece("f1", 0).await.unwrap().unwrap(), stored, "it is written once");

    assert_eq!(world.piece(own, "f1", own.alloc, piece(1, 3, b"two", "end")).await, NOTHING);
    assert_eq!(world.piece(own, "f1", own.alloc, None).await, NOTHING, "that was the end");
}

#[tokio::test]
async fn nothing_is_taken_after_a_reader_has_ended() {
    let (world, nodes) = working(1).await;
    let own = &nodes[0];
    world.follow(own, "over", world.now() + Span::from_s(5)).await;
    world.follow(own, "left", world.now() + FOLLOW_LASTS).await;
    world.pass(5);
    let record = world.record(own.node).await;
    let after = record.without_follow(Some("left"), world.now()).unwrap();
    world.look.write(Some(&record), &after, Vec::new()).await.unwrap();
    for follow in ["over", "left"] {
        assert_eq!(world.piece(own, follow, own.alloc, piece(0, 0, b"x", "more")).await, NOTHING, "{follow}");
        assert_eq!(world.look.piece(follow, 0).await.unwrap(), None, "{follow}");
    }
}

#[tokio::test]
async fn a_bad_piece_is_refused_and_nothing_is_written() {
    let (world, nodes) = working(1).await;
    let own = &nodes[0];
    world.follow(own, "f1", world.now() + FOLLOW_LASTS).await;
    let with = |piece: Value| json!({"follow_id": "f1", "alloc_id": own.alloc, "piece": piece});
    let of = |id: &str| json!({"follow_id": id, "alloc_id": own.alloc});
    let good = piece(0, 0, b"x", "more").unwrap();
    let but = |name: &str, value: Value| {
        let mut piece = good.clone();
        piece[name] = value;
        with(piece)
    };
    let before = world.look.node(own.node.slot()).await.unwrap();
    for body in [
        but("data", json!("no base64!")),
        but("data", json!(BASE64_STANDARD.encode(vec![7; MAX_PIECE_BYTES + 1]))),
        but("switches", json!((0..=MAX_PIECE_SWITCHES).collect::<Vec<_>>())),
        but("no", json!(-1)),
        but("then", json!("perhaps")),
        but("size", Value::Null),
        of(""),
        of(&"x".repeat(MAX_FOLLOW_ID_BYTES + 1)),
        json!({"follow_id": "f1", "alloc_id": "no"}),
        json!({"follow_id": "f1"}),
        json!([]),
    ] {
        let (status, answer) = world.send(own, "output", &body).await;
        assert_eq!((status, &answer["error"]), (400, &json!("bad_request")), "{answer}");
    }
    assert_eq!(world.look.piece("f1", 0).await.unwrap(), None);
    assert_eq!(world.look.node(own.node.slot()).await.unwrap(), before);
    // The largest piece that is allowed fits into a row.
    let mut largest = piece(0, 0, &vec![7; MAX_PIECE_BYTES], "more").unwrap();
    largest["switches"] = json!((1..=MAX_PIECE_SWITCHES).map(|n| MAX_PIECE_BYTES - n).rev().collect::<Vec<_>>());
    assert!(world.piece(own, "f1", own.alloc, Some(largest)).await.0);
    let stored = world.look.piece("f1", 0).await.unwrap().unwrap();
    assert_eq!(stored.switches.len(), MAX_PIECE_SWITCHES);
}

#[tokio::test]
async fn readers_are_told_to_the_node_and_leave_its_record_when_their_time_is_over() {
    let (mut world, nodes) = working(1).await;
    let own = &nodes[0];
    assert_eq!(world.beat(own).await["follows"], Value::Null);
    world.follow(own, "f1", world.now() + Span::from_s(20)).await;
    world.follow(own, "f2", world.now() + Span::from_s(40)).await;
    let ids = |answer: &Value| {
        let follows = answer["follows"].as_array().cloned().unwrap_or_default();
        follows.iter().map(|f| f["follow_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let answer = world.beat(own).await;
    assert_eq!(ids(&answer), ["f1", "f2"]);
    assert_eq!(answer["follows"][0]["alloc_id"], json!(own.alloc));
    world.pass(15);
    assert_eq!(ids(&world.beat(own).await), ["f2"]);
    assert_eq!(world.follows(own).await, 1);
    world.pass(20);
    assert_eq!((ids(&world.beat(own).await).len(), world.follows(own).await), (0, 0));
    // After that, a heartbeat makes one write again: the pulse.
    let version = async |world: &World| world.record(own.node).await.version;
    let (before, calls) = (version(&world).await, world.switch.log().len());
    world.beat(own).await;
    // Once a minute, each process also writes that heartbeats are accepted. This write is not counted.
    let mut writes = world.switch.log().split_off(calls);
    writes.retain(|write| !write.starts_with("write Control"));
    assert_eq!((version(&world).await, writes.len()), (before, 1), "{writes:?}");
}

#[tokio::test]
async fn a_node_does_not_send_the_output_of_an_alloc_that_it_was_not_told_of() {
    let (mut world, nodes) = working(1).await;
    let own = &nodes[0];
    world.follow(own, "f1", world.now() + FOLLOW_LASTS).await;
    // A new agent does not know the alloc, and the alloc's row is unreadable now.
    world.nodes.get_mut(&own.instance).unwrap().protocol.durable.as_of = 0;
    let (raw, key) = (Raw::of(&world), item(&[("alloc_id", s(own.alloc))]));
    let sound = raw.get("allocs", &key).await.unwrap();
    let mut broken = sound.clone();
    broken.insert("placed_seq".into(), s("seven"));
    raw.put("allocs", &broken).await;
    let answer = world.beat(own).await;
    assert_eq!((&answer["unreadable"], &answer["follows"]), (&json!([own.alloc]), &Value::Null), "{answer}");
    raw.put("allocs", &sound).await;
    let answer = world.beat(own).await;
    assert_eq!((answer["allocs"].as_array().unwrap().len(), answer["follows"].as_array().unwrap().len()), (1, 1));
}
