//! Placing the members of a job, on every database of the store's suite.

use super::store_tables::{Place, Tables, placing_at, spec};
use crate::world::all_rows::AllRows;
use model::fixtures::{self, at};
use model::{Alloc, AllocId, JobSpec, JobState, Needs, NodeRecord, Work};
use store::placing::place;

pub(crate) async fn is_all_or_nothing(db: Place<'_>) {
    let tables = Tables::new(db).await;
    let (a, b) = (tables.ready(0).await, tables.ready(1).await);
    let job = tables
        .job(
            0,
            JobSpec {
                needs: Needs { nodes: 2, ..spec().needs },
                work: Work { caches: vec!["data".into()], ..spec().work },
                ..spec()
            },
        )
        .await;
    // One of the two nodes changes before the transaction, so nothing is placed.
    let held = b.with_intent(model::Intent::Hold, None, at(70)).unwrap();
    let held = tables.store.write(Some(&b), &held, Vec::new()).await.unwrap();
    let before = tables.all().await;
    let members = [(0, &a), (1, &b)];
    assert!(place(&tables.store, &job, &members, &placing_at(80)).await.unwrap_err().is_conflict());
    assert_eq!(tables.all().await, before);
    let resumed = held.with_intent(model::Intent::Run, None, at(81)).unwrap();
    let b = tables.store.write(Some(&held), &resumed, Vec::new()).await.unwrap();
    let members = [(0, &a), (1, &b)];
    place(&tables.store, &job, &members, &placing_at(82)).await.unwrap();
    let (nodes, jobs, handles) = tables.all().await;
    let ids: Vec<AllocId> = jobs[0].summary.allocs.iter().copied().collect();
    assert_eq!((jobs[0].summary.state, jobs[0].summary.tries.copies), (JobState::Placed, 2));
    assert_eq!(ids.iter().map(|i| (i.member, i.copy)).collect::<Vec<_>>(), [(0, 0), (1, 1)]);
    for (n, id) in ids.iter().enumerate() {
        let life = nodes[n].life().unwrap();
        assert_eq!(life.allocs.iter().collect::<Vec<_>>(), [id]);
        let alloc = tables.store.alloc(*id).await.unwrap().unwrap();
        assert_eq!((alloc.summary.node_id, alloc.summary.placed_seq), (life.node_id, life.seq));
        let names: Vec<_> = handles.iter().filter(|h| h.node_id == life.node_id).map(|h| h.handle.clone()).collect();
        assert_eq!(names, ["cache:data"]);
    }
    assert_eq!(tables.store.live_allocs().await.unwrap().len(), 2);
    // A caller that read the job as queued cannot place it again.
    let (c, d) = (tables.ready(2).await, tables.ready(3).await);
    let again = place(&tables.store, &job, &[(0, &c), (1, &d)], &placing_at(83)).await;
    assert!(again.unwrap_err().is_conflict());
}

pub(crate) async fn of_many_members_is_all_or_nothing(db: Place<'_>) {
    let tables = Tables::new(db).await;
    // One transaction takes 48 members.
    let nodes = ready_nodes(&tables, 60).await;
    let spec_of = || JobSpec { needs: Needs { nodes: 60, ..spec().needs }, ..spec() };
    let job = tables.job(0, spec_of()).await;
    let members: Vec<(u32, &NodeRecord)> = (0..).zip(&nodes).collect();
    // A node of the second part changes. The members of the first part are placed, and none of them may start.
    let held = nodes[55].with_intent(model::Intent::Hold, None, at(70)).unwrap();
    tables.store.write(Some(&nodes[55]), &held, Vec::new()).await.unwrap();
    let cut = place(&tables.store, &job, &members, &placing_at(80)).await;
    assert!(cut.unwrap_err().is_conflict());
    let (_, jobs, _) = tables.all().await;
    let allocs = &jobs[0].summary.allocs;
    assert_eq!((jobs[0].summary.state, allocs.len(), jobs[0].lost_count), (JobState::Regrouping, 48, 0));
    assert_eq!(jobs[0].reason.as_deref(), Some("only 48 of its 60 members could be placed"));
    assert!(!allocs.iter().any(|id| jobs[0].lets_start(*id)));
    let tables = Tables::new(db).await;
    let nodes = ready_nodes(&tables, 60).await;
    let job = tables.job(0, spec_of()).await;
    let members: Vec<(u32, &NodeRecord)> = (0..).zip(&nodes).collect();
    assert_eq!(place(&tables.store, &job, &members, &placing_at(80)).await.unwrap().len(), 60);
    let (_, jobs, handles) = tables.all().await;
    let allocs = &jobs[0].summary.allocs;
    assert_eq!((jobs[0].summary.state, allocs.len(), handles), (JobState::Placed, 60, vec![]));
    assert_eq!((jobs[0].summary.tries.copies, jobs[0].hosts.len()), (60, 60));
    assert!(allocs.iter().all(|id| id.copy == id.member && jobs[0].lets_start(*id)));
}

async fn ready_nodes(tables: &Tables, n: usize) -> Vec<NodeRecord> {
    let mut nodes = Vec::new();
    for slot in (0..).take(n) {
        nodes.push(tables.ready(slot).await);
    }
    nodes
}

pub(crate) async fn skips_an_id_that_a_restore_left_traces_of(db: Place<'_>) {
    let tables = Tables::new(db).await;
    let node = tables.ready(0).await;
    let job = tables.job(0, spec()).await;
    // An alloc with the same id ran before a restore, and its row is still there.
    let id = fixtures::alloc_id(0);
    let trace = Alloc::place(id, &job, &node, at(70)).unwrap();
    tables.store.write(None, &trace, Vec::new()).await.unwrap();
    let placed = place(&tables.store, &job, &[(0, &node)], &placing_at(80)).await;
    assert!(placed.unwrap_err().is_conflict());
    let (nodes, jobs, _) = tables.all().await;
    assert_eq!(nodes, std::slice::from_ref(&node));
    assert_eq!((jobs[0].summary.state, jobs[0].summary.tries.copies), (JobState::Queued, 1));
    place(&tables.store, &jobs[0], &[(0, &node)], &placing_at(90)).await.unwrap();
    let next = AllocId { copy: 1, ..id };
    let (_, jobs, _) = tables.all().await;
    assert_eq!(jobs[0].summary.allocs.iter().collect::<Vec<_>>(), [&next]);
}
