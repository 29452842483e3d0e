//! `key`.

use super::*;
use crate::local::secrets::{LocalSecret, NAME};

/// The value of the secret with this label.
async fn value(world: &World, label: &str) -> Option<String> {
    let answer = world.cluster.secrets.get_secret_value().secret_id(NAME).version_stage(label).send().await;
    answer.ok().and_then(|a| a.secret_string().map(str::to_owned))
}

/// A node in this slot whose token is made with this version of the key.
async fn node_with(world: &World, slot: u32, key_version: u32) {
    let mut node = fixtures::ready(slot);
    let model::NodeState::InUse(node_in_use) = &mut node.state else { panic!("not in use") };
    node_in_use.life.key_version = key_version;
    world.put_node(&node).await;
}

#[tokio::test]
async fn a_rotation_stores_the_next_version_and_keeps_the_current_key_as_the_previous_one() {
    let world = World::with_policy().await;
    node_with(&world, 0, 1).await;
    let (said, changed) = world.changes(&["key", "rotate", "--secret", NAME]).await;
    let out = said.done();
    assert!(out.starts_with("stored as version 2; the functions use it within 300 s"), "{out}");
    assert_eq!(changed, ["events/cluster/key_rotated"]);
    let (current, previous) = (value(&world, "AWSCURRENT").await.unwrap(), value(&world, "AWSPREVIOUS").await.unwrap());
    assert_eq!(previous, format!("1:{}", "0f".repeat(32)));
    assert!(current.starts_with("2:") && current.parse::<model::auth::NumberedKey>().unwrap().version == 2);
    assert!(!out.contains(current.trim_start_matches("2:")), "no key is printed");
    let shown = world.run(&["key", "show", "--secret", NAME]).await.done();
    assert_eq!(shown, "the current key has version 2\n1 node with an older key: slots 0\n");
}

#[tokio::test]
async fn a_rotation_that_would_lock_out_a_node_is_refused() {
    let world = World::with_policy().await;
    world.run(&["key", "rotate", "--secret", NAME]).await.done();
    node_with(&world, 0, 2).await;
    node_with(&world, 1, 1).await;
    let before = value(&world, "AWSCURRENT").await;
    let (said, changed) = world.changes(&["key", "rotate", "--secret", NAME]).await;
    let error = said.error();
    assert!(
        error.contains("nothing was stored") && error.contains("(slots 1)") && error.contains("--force"),
        "{error}"
    );
    assert_eq!((changed, value(&world, "AWSCURRENT").await), (Vec::new(), before));
    assert_eq!(
        world.run(&["key", "show", "--json", "--secret", NAME]).await.json(),
        serde_json::json!({"version": 2, "older": [1]})
    );
    let out = world.run(&["key", "rotate", "--force", "--secret", NAME]).await.done();
    assert!(out.starts_with("stored as version 3;"), "{out}");
}

#[tokio::test]
async fn a_rotation_is_refused_while_a_function_may_launch_with_an_older_key() {
    let world = World::with_policy().await;
    let secrets = secrets(&LocalSecret::new(&"0f".repeat(32), Arc::new(|| at(800)))).await;
    let mut world = World { cluster: Cluster { secrets, ..world.cluster.clone() }, ..world };
    world.run(&["key", "rotate", "--secret", NAME]).await.done();
    world.now = at(1159);
    let error = world.run(&["key", "rotate", "--secret", NAME]).await.error();
    assert!(error.contains("version 2 is 5 min old, and until it is 6 min old"), "{error}");
    world.now = at(1160);
    assert!(world.run(&["key", "rotate", "--secret", NAME]).await.done().starts_with("stored as version 3;"));
    world.now = at(900);
    assert!(
        world.run(&["key", "rotate", "--force", "--secret", NAME]).await.done().starts_with("stored as version 4;")
    );
}

#[tokio::test]
async fn of_two_rotations_at_once_one_is_refused() {
    let world = World::with_policy().await;
    world.run(&["key", "rotate", "--secret", NAME]).await.done();
    // Somebody who read version 1 before that rotation rotates now: the value that they read is the current one again.
    let put = world.cluster.secrets.put_secret_value().secret_id(NAME).client_request_token("earlier");
    put.secret_string(format!("1:{}", "0f".repeat(32))).send().await.unwrap();
    let (said, changed) = world.changes(&["key", "rotate", "--secret", NAME]).await;
    let error = said.error();
    assert!(error.contains("version 2 was stored before or at the same time"), "{error}");
    assert_eq!(changed, Vec::<String>::new());
}

#[tokio::test]
async fn a_secret_that_is_missing_or_holds_something_else_is_named() {
    let world = World::with_policy().await;
    let error = world.run(&["key", "show", "--secret", "other"]).await.error();
    assert!(error.contains("secret other cannot be read: there is no such secret"), "{error}");
    let secrets = secrets(&LocalSecret::new("hello", Arc::new(|| at(0)))).await;
    let world = World { cluster: Cluster { secrets, ..world.cluster.clone() }, ..world };
    let error = world.run(&["key", "rotate", "--secret", NAME]).await.error();
    assert!(error.contains("does not hold the key"), "{error}");
}
