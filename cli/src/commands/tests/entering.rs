//! `exec` and `shell`.

use super::*;
use crate::commands::operate::exec;

/// Job 1 with an alloc of this client status.
async fn with_client(client: ClientStatus) -> World {
    let mut world = World::with_policy().await;
    // Otherwise a command that finds its alloc would replace the test program.
    world.cluster.reach.local = Some("/no such directory".into());
    let (_, alloc) = world.put_running(1).await;
    let mut reported = alloc.clone();
    reported.summary.client = client;
    world.store().write(Some(&alloc), &reported, Vec::new()).await.unwrap();
    world
}

#[tokio::test]
async fn the_command_line_reaches_the_alloc() {
    let mut world = with_client(ClientStatus::Running).await;
    let alloc = world.store().alloc(fixtures::alloc_id(1)).await.unwrap().unwrap();
    let record = fixtures::ready(0);
    let line =
        |world: &World| exec::line(&world.cluster, &record, &alloc, &["sh", "-c", "echo 'a b'"].map(str::to_owned));
    world.cluster.reach.local = None;
    let said = line(&world).unwrap().join(" ");
    let begins = "aws ssm start-session --target i-0 --document-name AWS-StartInteractiveCommand --parameters {";
    assert!(said.starts_with(begins) && said.contains("sudo /usr/local/bin/nodekeeper-agent enter "), "{said}");
    let machines = tempfile::tempdir().unwrap();
    world.cluster.reach.local = Some(machines.path().to_owned());
    let said = line(&world).unwrap_err().to_string();
    assert!(said.contains("i-0 is not a machine of the local system in "), "{said}");
    std::fs::create_dir(machines.path().join("i-0")).unwrap();
    std::fs::write(machines.path().join("i-0/agent"), "").unwrap();
    let (dir, said) = (machines.path().display(), line(&world).unwrap().join(" "));
    assert_eq!(said, format!("{dir}/i-0/agent enter --data-dir {dir}/i-0/data {} -- sh -c echo 'a b'", alloc.id()));
}

#[tokio::test]
async fn who_looked_into_what_is_on_the_record_before_it_happens() {
    let mut world = with_client(ClientStatus::Running).await;
    let (job, alloc) = (fixtures::job(1).summary.job_id, fixtures::alloc_id(1));
    let machines = tempfile::tempdir().unwrap();
    world.cluster.reach.local = Some(machines.path().to_owned());
    std::fs::create_dir(machines.path().join("i-0")).unwrap();
    // The file is not executable, so that the command returns.
    std::fs::write(machines.path().join("i-0/agent"), "").unwrap();
    let (said, changed) = world.changes(&["exec", &job.to_string(), "--", "ls", "-l"]).await;
    assert!(said.error().contains("cannot run "));
    assert_eq!(changed, [format!("events/alloc#{alloc}/enter_alloc"), format!("events/job#{job}/enter_alloc")]);
    let history = world.run(&["history", &job.to_string()]).await.done();
    assert!(history.contains("enter_alloc") && history.contains("by ann: ls -l"), "{history}");
}

#[tokio::test]
async fn exec_says_why_there_is_nothing_to_look_into() {
    let job = fixtures::job(1).summary.job_id.to_string();
    let exec = ["exec", &job, "--", "true"];
    let world = with_client(ClientStatus::Pending).await;
    let said = world.run(&exec).await.error();
    assert!(said.contains("it has not started yet"), "{said}");
    let world = with_client(ClientStatus::Complete).await;
    let said = world.run(&["exec", &fixtures::alloc_id(1).to_string(), "--", "true"]).await.error();
    assert!(said.contains("it has ended: `nodekeeper logs "), "{said}");
    let world = with_client(ClientStatus::Unknown).await;
    let said = world.run(&exec).await.error();
    assert!(said.contains("nothing of it runs now"), "{said}");
    let world = with_client(ClientStatus::Running).await;
    let said = world.run(&["exec", &job, "--member", "3", "--", "true"]).await.error();
    assert!(said.contains("it has no member 3: its members are 0 to 0"), "{said}");
    // The second member of the job.
    let (stored, id) =
        (world.store().job(fixtures::job(1).summary.job_id).await.unwrap().unwrap(), fixtures::alloc_id(1));
    let second = model::ids::AllocId { member: 1, ..id };
    let mut alloc = Alloc::place(id, &fixtures::job(1), &fixtures::ready(1), at(100)).unwrap();
    (alloc.summary.alloc_id, alloc.summary.client) = (second, ClientStatus::Running);
    alloc.summary.needs.nodes = 2;
    world.store().write(None, &alloc, Vec::new()).await.unwrap();
    let mut both = stored.clone();
    both.summary.allocs.insert(second);
    both.summary.tries.copies = 1;
    both.summary.needs.nodes = 2;
    world.store().write(Some(&stored), &both, Vec::new()).await.unwrap();
    let said = world.run(&exec).await.error();
    assert!(said.contains("say which with --member, one of 0, 1"), "{said}");
}
