//! `cost`, and the cost in `status`.

use super::*;

#[tokio::test]
async fn cost_says_what_ran_and_for_whom() {
    let mut world = World::with_policy().await;
    let mut job = fixtures::job(1);
    job.summary.name = Some("train\u{1b}[2J".into());
    let (job, node) = (world.store().write(None, &job, Vec::new()).await.unwrap(), fixtures::ready(0));
    let alloc = Alloc::place(fixtures::alloc_id(1), &job, &node, at(100)).unwrap();
    let node = world.put_node(&node.with_alloc(alloc.id(), at(100)).unwrap()).await;
    let placed = job.with_placed(&[alloc.id()]).unwrap();
    world.store().write(Some(&job), &placed, Vec::new()).await.unwrap();
    let alloc = world.store().write(None, &alloc, Vec::new()).await.unwrap();

    // While the job runs, its time counts until now.
    world.now = at(3700);
    let out = world.run(&["cost", "--by", "job"]).await.done();
    assert!(!out.contains('\u{1b}'), "a name cannot drive the terminal: {out:?}");
    let line = out.lines().nth(1).unwrap();
    assert!(line.starts_with(&id(1)) && line.ends_with("1 h ago  1.00 h     $0.10"), "{out}");
    assert!(out.contains("without work: $0.0028 for 1 min of node time"), "{out}");
    assert!(out.contains("total: $0.10 for 1 node, 1.03 h of node time, since "), "{out}");
    assert!(out.ends_with("an estimate from the list prices in the policy, not a bill\n"), "{out}");

    // After the end of the job, the event has what the row had.
    let ending = Ending::exited(0);
    let keep =
        store::transactions::Retention::of(&model::policy::Policy::from_json(&model::policy::example_json()).unwrap());
    store::transactions::end_alloc(world.store(), Some(&node), &alloc, &ending, keep, at(3700)).await.unwrap();
    world.now = at(7300);
    let report = world.run(&["cost", "--json"]).await.json();
    assert_eq!((&report["lines"][0]["node_s"], &report["lines"][0]["usd"]), (&3600.into(), &0.1.into()));
    assert_eq!((&report["total_usd"], &report["without_work_usd"]), (&0.202_778.into(), &0.102_778.into()));
    let size = world.run(&["cost", "--by", "size", "--since", "1h", "--json"]).await.json();
    assert_eq!((&size["lines"][0]["what"], &size["lines"][0]["usd"]), (&"small".into(), &0.1.into()));
    let said = world.run(&["history", &alloc.id().to_string()]).await.done();
    assert!(!said.contains("placed_at="), "people do not read what is there for `cost`: {said}");

    let (out, _) = world.run(&["status"]).await.failed();
    assert!(out.contains("cost: $0.10 an hour by the policy's list prices"), "{out}");
}

#[tokio::test]
async fn without_nodes_nothing_cost_anything() {
    let world = World::with_policy().await;
    let out = world.run(&["cost"]).await.done();
    assert!(out.starts_with("without work: $0.00 for 0 s") && out.contains("total: $0.00 for 0 nodes"), "{out}");
    assert!(parse(&["cost", "--since", "100d"]).is_err() && parse(&["cost", "--by", "colour"]).is_err());
}
