//! Every kind of write of the store on a real database, with its conditions and with proof of which rows changed.
//!
//! Guarantees: the same suite passes on the embedded DynamoDB (through the SDK and in process), on an emulator from
//! another project, and on the model of the simulation.

use super::placing;
use super::store_tables::{KEEP, Place, Tables, placing_at, spec};
use crate::second_opinions::Emulator;
use crate::world::all_rows::AllRows;
use crate::world::{START, dynamo_client, dynamo_url, fresh_cluster};
use model::control::{FailedStarts, LaunchWait};
use model::fixtures::{self, at, slot};
use model::wire::{Heartbeat, NodeHealth, ReportCounter};
use model::{
    ActionName, Alloc, ClientStatus, ControlKey, Desired, Ending, Event, Handle, HandleState, Job, JobId, JobSpec,
    JobState, NodeId, NodeRecord, NodeState, NodeStatus, RunReport, Span, Subject, Time, Work,
};
use nodekeeper_cli::local::tables;
use std::collections::BTreeSet;
use std::sync::Arc;
use store::{
    Dynamo, End, Pulse, Store, change_handle, delete, delete_handle, insert_handle, no_live_allocs, silent_since,
};
use store::{Retention, transactions};

async fn suite(place: Place<'_>) {
    a_version_is_written_once(place).await;
    a_steady_heartbeat_touches_only_the_pulse(place).await;
    the_node_that_just_spoke_wins(place).await;
    placing::is_all_or_nothing(place).await;
    placing::of_many_members_is_all_or_nothing(place).await;
    placing::skips_an_id_that_a_restore_left_traces_of(place).await;
    an_end_is_one_transaction(place).await;
    a_job_never_ends_twice(place).await;
    cleaning_leaves_nothing_behind(place).await;
    the_queue_is_in_order(place).await;
    reports_are_numbered(place).await;
    handles_are_changed_as_read(place).await;
    a_destroyed_cache_is_made_anew_and_what_failed_is_kept(place).await;
    long_lists_are_read_to_the_last_page(place).await;
    many_events_are_written_together(place).await;
    what_is_told_once_has_its_time_and_comes_again_after_its_span(place).await;
    the_jobs_that_ended_last_are_read_newest_first(place).await;
    jobs_are_found_by_their_ids_and_names(place).await;
}

async fn a_destroyed_cache_is_made_anew_and_what_failed_is_kept(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let node = tables.ready(0).await;
    let cached = || JobSpec { work: Work { caches: vec!["data".into()], ..spec().work }, ..spec() };
    let (first, second) = (tables.job(0, cached()).await, tables.job(1, cached()).await);
    let node = store::placing::place(&tables.store, &first, &[(0, &node)], &placing_at(80)).await.unwrap().remove(0);
    let alloc = tables.store.alloc(fixtures::alloc_id(0)).await.unwrap().unwrap();
    let failed = Ending::exited(1);
    // The first look at the container's handle was due at 680 s. The handle of a failed alloc is kept for
    // `failed_handles`, which is longer here.
    let long = Retention { failed_handles: Span::from_s(3600), ..KEEP };
    let node = transactions::end_alloc(
        &tables.store,
        Some(&node),
        &alloc,
        &failed,
        transactions::EndExtras::default(),
        long,
        at(90),
    )
    .await
    .unwrap()
    .unwrap();
    let left = tables.store.handle(fixtures::node_id(0), &alloc.id().to_string()).await.unwrap().unwrap();
    assert_eq!(left.due_at, at(90 + 3600));
    let cache = || tables.store.handle(fixtures::node_id(0), "cache:data");
    for (state, placed) in [(HandleState::Destroying, false), (HandleState::Gone, true)] {
        let row = cache().await.unwrap().unwrap();
        tables.store.apply(&change_handle(&row, &Handle { state, ..row.clone() })).await.unwrap();
        let result = store::placing::place(&tables.store, &second, &[(0, &node)], &placing_at(100)).await;
        assert_eq!(result.is_ok(), placed, "{state}");
    }
    let anew = cache().await.unwrap().unwrap();
    assert_eq!(anew.state, HandleState::Creating);
    assert!(anew.seq > node.life().unwrap().seq, "no older report can judge it");
}

async fn tables_are_made_once(url: &str) {
    let dynamo = Dynamo::new(dynamo_client(url), fresh_cluster());
    assert_eq!(tables::make(&dynamo).await.unwrap().len(), store::TABLES.len());
    assert_eq!(tables::make(&dynamo).await.unwrap(), Vec::<String>::new());
    let missing = Store::new(Arc::new(Dynamo::new(dynamo_client(url), "no-such".parse().unwrap())));
    let error = missing.nodes().await.unwrap_err().to_string();
    assert!(error.contains("no-such-nodes does not exist") && error.contains("nodekeeper up"), "{error}");
}

async fn a_version_is_written_once(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let record = tables.ready(0).await;
    let other = tables.ready(1).await;
    let held = record.with_intent(model::Intent::Hold, None, at(70)).unwrap();
    let written = tables.store.write(Some(&record), &held, Vec::new()).await.unwrap();
    assert_eq!(written.version.number(), record.version.number() + 1);
    // The loser of the race changes nothing, in this row or any other.
    let late = record.shut_down(at(71), "idle").unwrap();
    assert!(tables.store.write(Some(&record), &late, Vec::new()).await.unwrap_err().is_conflict());
    assert_eq!(tables.all().await.0, [written, other]);
    // An existing row is not created again.
    assert!(tables.store.write(None, &fixtures::assigned(0), Vec::new()).await.unwrap_err().is_conflict());
}

/// The pulse that this heartbeat writes for the node in slot 0.
fn pulse(heartbeat: &Heartbeat, now: Time) -> Pulse<'_> {
    let lease_expires_at = now + Span::from_s(90);
    Pulse { node_id: fixtures::node_id(0), heartbeat, incarnation: "inc-1", now, lease_expires_at }
}

async fn a_steady_heartbeat_touches_only_the_pulse(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let record = tables.ready(0).await;
    let said = |now: Time| Heartbeat { uptime_ms: Some(now.as_ms().unsigned_abs()), ..fixtures::heartbeat("i-0") };
    let after = tables.store.pulse(&pulse(&said(at(100)), at(100))).await.unwrap().unwrap();
    assert_eq!(after.version, record.version);
    let contact = after.contact().unwrap();
    assert_eq!((contact.last_ping_at, contact.lease_expires_at), (at(100), at(190)));
    // An older heartbeat, another `busy` or `refuses`, and another caller change nothing. The answer is the current
    // row.
    let next = said(at(101));
    let says = |health: NodeHealth| Heartbeat { health, ..next.clone() };
    let others = [
        says(NodeHealth { busy: true, ..NodeHealth::default() }),
        says(NodeHealth { refuses: Some("no".into()), ..NodeHealth::default() }),
        says(NodeHealth { gpus_usable: 1, ..NodeHealth::default() }),
        says(NodeHealth { gpus_sick: Some("GPU 0".into()), ..NodeHealth::default() }),
        says(NodeHealth { unended: Some("alloc 0".into()), ..NodeHealth::default() }),
        says(NodeHealth { fails: Some("s3: x".into()), ..NodeHealth::default() }),
        says(NodeHealth { reaches: Some("s3".into()), ..NodeHealth::default() }),
        Heartbeat { instance_id: "i-9".into(), ..next.clone() },
        Heartbeat { boot_id: "boot-2".into(), ..next.clone() },
        Heartbeat { uptime_ms: Some(at(100).as_ms().unsigned_abs() - 1), ..next.clone() },
    ];
    let others = others.iter().map(|other| pulse(other, at(101))).chain([
        pulse(&next, at(99)),
        Pulse { incarnation: "inc-2", ..pulse(&next, at(101)) },
        Pulse { node_id: NodeId::new(slot(0), ulid(9)), ..pulse(&next, at(101)) },
    ]);
    for other in others {
        assert_eq!(tables.store.pulse(&other).await.unwrap().unwrap_err(), Some(after.clone()), "{other:?}");
    }
    let nobody = Pulse { node_id: fixtures::node_id(7), ..pulse(&next, at(101)) };
    assert_eq!(tables.store.pulse(&nobody).await.unwrap().unwrap_err(), None);
    assert_eq!(tables.all().await.0, [after]);
}

fn ulid(n: u128) -> model::ids::Ulid {
    model::ids::Ulid::from_parts(1, n)
}

async fn the_node_that_just_spoke_wins(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let record = tables.ready(0).await;
    let missed = record.expire_lease(NodeStatus::Down, at(200), "silent").unwrap();
    let said = fixtures::heartbeat("i-0");
    let pulse = Pulse { lease_expires_at: at(300), ..pulse(&said, at(199)) };
    let spoke = tables.store.pulse(&pulse).await.unwrap().unwrap();
    let lost = tables.store.write(Some(&record), &missed, vec![silent_since(&record)]).await;
    assert!(lost.unwrap_err().is_conflict());
    assert_eq!(tables.all().await.0, std::slice::from_ref(&spoke));
    // After a read of the last heartbeat, the same write succeeds.
    tables.store.write(Some(&spoke), &missed, vec![silent_since(&spoke)]).await.unwrap();
    assert_eq!(tables.all().await.0[0].status(), Some(NodeStatus::Down));
}

async fn placed(tables: &Tables) -> (NodeRecord, Job, Alloc) {
    let node = tables.ready(0).await;
    let job = tables.job(0, spec()).await;
    let nodes = store::placing::place(&tables.store, &job, &[(0, &node)], &placing_at(80)).await.unwrap();
    let alloc = tables.store.alloc(fixtures::alloc_id(0)).await.unwrap().unwrap();
    let job = tables.store.job(job.summary.job_id).await.unwrap().unwrap();
    (nodes.into_iter().next().unwrap(), job, alloc)
}

async fn an_end_is_one_transaction(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let (node, job, alloc) = placed(&tables).await;
    let ending = Ending { run: RunReport { log_tail: Some("x".into()), ..RunReport::default() }, ..Ending::exited(0) };
    // Nothing changes if the caller's node record is not current.
    let old = fixtures::ready(0);
    let before = tables.all().await;
    let stale = transactions::end_alloc(
        &tables.store,
        Some(&old),
        &alloc,
        &ending,
        transactions::EndExtras::default(),
        KEEP,
        at(90),
    )
    .await;
    assert!(stale.unwrap_err().is_conflict());
    assert_eq!(tables.all().await, before);
    assert_eq!(tables.store.alloc(alloc.id()).await.unwrap().unwrap(), alloc);
    transactions::end_alloc(
        &tables.store,
        Some(&node),
        &alloc,
        &ending,
        transactions::EndExtras::default(),
        KEEP,
        at(91),
    )
    .await
    .unwrap();
    let (nodes, jobs, handles) = tables.all().await;
    assert_eq!(nodes[0].life().unwrap().allocs.len(), 0);
    assert_eq!(handles, [], "what a complete alloc left needs no row");
    assert!(nodes[0].life().unwrap().seq > node.life().unwrap().seq, "its node reports its handles");
    assert_eq!((jobs[0].summary.state, jobs[0].summary.allocs.len()), (JobState::Complete, 0));
    assert!(jobs[0].summary.version > job.summary.version);
    let ended = tables.store.alloc(alloc.id()).await.unwrap().unwrap();
    assert_eq!((ended.summary.client, ended.exit_code), (ClientStatus::Complete, Some(0)));
    assert!(tables.store.live_allocs().await.unwrap().is_empty(), "it left the index");
    assert!(tables.store.queue_listed(usize::MAX).await.unwrap().jobs.is_empty());
    assert_eq!(tables.store.events().await.unwrap(), [], "the rows tell it");
    let past = tables.store.ended_allocs(at(91), 9).await.unwrap();
    assert_eq!((past.rows.len(), past.rows[0].alloc_id, past.rows[0].finished_at), (1, alloc.id(), at(91)));
    assert_eq!(tables.store.ended_allocs(at(92), 9).await.unwrap().rows, []);
}

async fn a_job_never_ends_twice(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let (node, _, alloc) = placed(&tables).await;
    let after = transactions::end_alloc(
        &tables.store,
        Some(&node),
        &alloc,
        &Ending::exited(0),
        transactions::EndExtras::default(),
        KEEP,
        at(90),
    )
    .await;
    let node = after.unwrap().unwrap();
    let before = tables.all().await;
    let again = transactions::end_alloc(
        &tables.store,
        Some(&node),
        &alloc,
        &Ending::exited(1),
        transactions::EndExtras::default(),
        KEEP,
        at(91),
    )
    .await;
    assert!(again.unwrap_err().is_conflict());
    assert_eq!(tables.all().await, before);
}

async fn cleaning_leaves_nothing_behind(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let (node, _, alloc) = placed(&tables).await;
    let other = tables.ready(1).await;
    let cleaned =
        transactions::clean_node(&tables.store, &node, "instance gone", Vec::new(), KEEP, at(100)).await.unwrap();
    let (nodes, jobs, handles) = tables.all().await;
    assert_eq!(nodes, [cleaned.clone(), other], "the other record is as it was");
    assert_eq!(cleaned.state, NodeState::Cleaned { last_node_id: Some(fixtures::node_id(0)) });
    assert_eq!(handles, []);
    let lost = tables.store.alloc(alloc.id()).await.unwrap().unwrap();
    assert_eq!((lost.summary.client, lost.summary.desired), (ClientStatus::Lost, Desired::Stop));
    assert_eq!((jobs[0].summary.state, jobs[0].lost_count), (JobState::Queued, 1), "it is queued again");
    // The write replaces the whole row, so no attribute of the life is left but what it has cost.
    let row = store::row(&cleaned);
    let mut names: Vec<_> = row.keys().cloned().collect();
    names.sort_unstable();
    let spent = ["spent_month_at", "spent_usd"];
    assert_eq!(names, ["last_node_id", "modified_at", "reason", "slot", spent[0], spent[1], "state", "version"]);
    tables.store.apply(&delete(&cleaned)).await.unwrap();
    assert!(tables.store.node(slot(0)).await.unwrap().is_none());
}

async fn the_queue_is_in_order(place: Place<'_>) {
    let tables = Tables::new(place).await;
    for (n, priority) in [(1, 500), (2, 900), (3, 500), (4, 0), (5, 1000)] {
        tables.job(n, JobSpec { priority, ..spec() }).await;
    }
    let order: Vec<_> =
        tables.store.queue_listed(usize::MAX).await.unwrap().jobs.into_iter().map(|j| j.job_id).collect();
    assert_eq!(order, [5, 2, 1, 3, 4].map(fixtures::job_id));
    let job = tables.store.job(fixtures::job_id(2)).await.unwrap().unwrap();
    let cancelled = job.cancel("ann", Span::from_s(60), at(5)).unwrap();
    tables.store.write(Some(&job), &cancelled, Vec::new()).await.unwrap();
    let order: Vec<_> =
        tables.store.queue_listed(usize::MAX).await.unwrap().jobs.into_iter().map(|j| j.job_id).collect();
    assert_eq!(order, [5, 1, 3, 4].map(fixtures::job_id));
}

async fn reports_are_numbered(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let record = tables.ready(0).await;
    let note = |incarnation, counter, number, settled| {
        tables.store.note_report(fixtures::node_id(0), incarnation, counter, number, settled)
    };
    note("inc-1", ReportCounter::Allocs, 3, None).await.unwrap();
    assert!(note("inc-1", ReportCounter::Allocs, 3, None).await.unwrap_err().is_conflict());
    assert!(note("inc-1", ReportCounter::Allocs, 2, None).await.unwrap_err().is_conflict());
    assert!(note("inc-2", ReportCounter::Allocs, 4, None).await.unwrap_err().is_conflict());
    note("inc-1", ReportCounter::Handles, 1, Some("5#ab")).await.unwrap();
    let after = tables.store.node(slot(0)).await.unwrap().unwrap();
    let contact = after.contact().unwrap();
    assert_eq!((contact.alloc_report_no, contact.handle_report_no), (3, 1));
    assert_eq!((contact.settled.as_deref(), after.version), (Some("5#ab"), record.version));
}

async fn handles_are_changed_as_read(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let handle = Handle::of_alloc(fixtures::node_id(0), fixtures::alloc_id(0), 1, at(99));
    tables.store.apply(&insert_handle(&handle)).await.unwrap();
    assert!(tables.store.apply(&insert_handle(&handle)).await.unwrap_err().is_conflict());
    let live = Handle { state: HandleState::Live, ..handle.clone() };
    tables.store.apply(&change_handle(&handle, &live)).await.unwrap();
    assert!(tables.store.apply(&change_handle(&handle, &live)).await.unwrap_err().is_conflict());
    assert!(tables.store.apply(&delete_handle(&handle)).await.unwrap_err().is_conflict());
    assert_eq!(tables.all().await.2, std::slice::from_ref(&live));
    assert!(tables.store.handles_due(START).await.unwrap().rows.is_empty(), "it is not due yet");
    tables.store.apply(&delete_handle(&live)).await.unwrap();
    assert_eq!(tables.all().await.2, []);
    let never: FailedStarts = tables.store.entry(&ControlKey::FailedStarts).await.unwrap();
    let counted = never.with(LaunchWait { count: Some(1), ..LaunchWait::default() });
    let written = tables.store.write_entry(&never, &counted).await.unwrap();
    assert!(tables.store.write_entry(&never, &counted).await.unwrap_err().is_conflict());
    assert_eq!(tables.store.control().await.unwrap().failed_starts(), written);
    let _ = no_live_allocs();
}

/// A page holds at most 1 MB, so commands of 16 KiB fill several pages.
async fn long_lists_are_read_to_the_last_page(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let long = "x".repeat(16_000);
    for n in 0..140 {
        tables.job(n, JobSpec { work: Work { command: vec![long.clone()], ..spec().work }, ..spec() }).await;
    }
    assert_eq!(tables.store.jobs().await.unwrap().len(), 140);
    assert_eq!(tables.store.queue_listed(usize::MAX).await.unwrap().jobs.len(), 140);
    let written: BTreeSet<u32> = (0..30).collect();
    for n in &written {
        tables.store.write(None, &fixtures::assigned(*n), Vec::new()).await.unwrap();
    }
    for segments in [1, 4] {
        let nodes = tables.store.nodes_listed(segments).await.unwrap().rows;
        assert_eq!(nodes.len(), 30);
        assert_eq!(nodes.iter().map(|n| n.slot.number()).collect::<BTreeSet<_>>(), written, "{segments} segments");
    }
}

/// One batch has at most 25 rows.
async fn many_events_are_written_together(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let event = |n: i64| {
        let rng = tables.store.rng();
        Event::new(&Subject::Cluster, ActionName::Warn, &format!("event {n}"), at(n), Span::from_s(60), rng)
    };
    for (before, many) in [(0, 1), (1, 60), (61, 0)] {
        let events: Vec<Event> = (before..before + many).map(event).collect();
        tables.store.record_events(&events).await;
        let told: BTreeSet<String> = tables.store.events().await.unwrap().into_iter().map(|e| e.reason).collect();
        let expected: BTreeSet<String> = (0..before + many).map(|n| format!("event {n}")).collect();
        assert_eq!(told, expected);
    }
}

/// Two functions notice the same problem, each once a minute.
async fn what_is_told_once_has_its_time_and_comes_again_after_its_span(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let (hour, subject) = (Span::from_s(3600), Subject::Cluster);
    let once = |key, s| Event::once_in(hour, &subject, ActionName::Warn, (key, "it is so"), at(s), hour);
    for minute in 0..90 {
        let s = 1000 + minute * 60;
        tables.store.record_events(&[once("a", s), once("a", s + 1), once("b", s)]).await;
    }
    let told: Vec<Time> = tables.store.history("cluster", 100).await.unwrap().iter().map(Event::at).collect();
    // If both notice it at the same moment, the event of either may be written.
    let near = |told: &Time, s: i64| told.since(at(s)).as_ms().unsigned_abs() <= 61_000;
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(near(&told[0], 4600) && near(&told[1], 4600) && near(&told[2], 1000) && near(&told[3], 1000), "{told:?}");
    assert_eq!(tables.store.events().await.unwrap().len(), 4, "the rows that keep it from being told are no events");
}

async fn the_jobs_that_ended_last_are_read_newest_first(place: Place<'_>) {
    let tables = Tables::new(place).await;
    for n in 0..40 {
        let job = tables.job(n, spec()).await;
        let end = if n % 4 == 0 {
            job.cancel("ann", KEEP.finished, at(1))
        } else {
            job.reject("too large", KEEP.finished, at(i64::from(n)))
        };
        tables.store.write(Some(&job), &end.unwrap(), Vec::new()).await.unwrap();
    }
    let ended = async |since, most| {
        let ended = tables.store.ended(&End::NOT_CANCELLED, at(since), most).await.unwrap();
        ended.iter().map(|e| e.at.since(at(0)).as_ms() / 1000).collect::<Vec<_>>()
    };
    assert_eq!(ended(30, 100).await, [39, 38, 37, 35, 34, 33, 31, 30]);
    assert_eq!(ended(0, 3).await, [39, 38, 37]);
    // Ids that a client chooses may all be in one part of the index.
    for n in 0..50_u32 {
        let id = JobId::new(model::ids::Ulid::from_parts(1_800_000_000_000, u128::from(n + 1) << 8));
        let job = tables.store.write(None, &Job::submit(id, spec(), at(0)).unwrap(), Vec::new()).await.unwrap();
        let end = job.reject("too large", KEEP.finished, at(100 + i64::from(n))).unwrap();
        tables.store.write(Some(&job), &end, Vec::new()).await.unwrap();
    }
    assert_eq!(ended(0, 40).await, (110..150).rev().collect::<Vec<_>>());
    assert_eq!(tables.store.queue_listed(usize::MAX).await.unwrap().jobs, [], "no run sees them");
}

async fn jobs_are_found_by_their_ids_and_names(place: Place<'_>) {
    let tables = Tables::new(place).await;
    let id = |n: u32| {
        let time = u64::try_from(at(i64::from(n)).as_ms()).unwrap();
        JobId::new(model::ids::Ulid::from_parts(time, u128::from(n) * 0x9E37_79B9_7F4A_7C15_F39C))
    };
    // One of the names begins with another name and `#`.
    let name =
        |n: u32| ["train", "train#x", "eval"].get(usize::try_from(n % 4).unwrap()).map(|name| (*name).to_owned());
    for n in 0..400 {
        let spec = JobSpec { name: name(n), priority: n % 3 * 400, ..JobSpec::running(["true"]) };
        let job = Job::submit(id(n), spec, at(i64::from(n))).unwrap();
        tables.store.write(None, &job, Vec::new()).await.unwrap();
    }
    let store = &tables.store;
    let newest_first = |wanted: &dyn Fn(u32) -> bool| (0..400).rev().filter(|n| wanted(*n)).map(id).collect::<Vec<_>>();
    let all = newest_first(&|_| true);
    // Each part begins after the end of the previous part.
    let (mut read, mut below, mut parts) = (Vec::new(), None, 0);
    loop {
        let found = store.newest(below, at(0), 20).await.unwrap();
        read.extend(found.ids);
        (below, parts) = (read.last().copied(), parts + 1);
        if !found.more {
            break;
        }
    }
    assert_eq!((read, parts > 1), (all.clone(), true), "in several parts");
    // A list has no gaps. It is complete unless `more` is set: pages may be short.
    let check = |found: store::JobIds, wanted: Vec<JobId>| {
        assert!(wanted.starts_with(&found.ids), "{found:?}");
        assert!(found.ids.len() == wanted.len() || (found.more && !found.ids.is_empty()), "{found:?}");
    };
    let found = store.newest(Some(id(200)), at(150), 1000).await.unwrap();
    check(found, newest_first(&|n| (150..200).contains(&n)));
    assert_eq!(store.newest(Some(id(100)), at(150), 10).await.unwrap().ids, []);
    check(store.named("train", None, 1000).await.unwrap(), newest_first(&|n| n % 4 == 0));
    check(store.named("train", Some(id(100)), 1000).await.unwrap(), newest_first(&|n| n % 4 == 0 && n < 100));
    assert_eq!(store.named("trai", None, 1000).await.unwrap().ids, []);
    let begin = store.with_names_beginning("trai", 1000).await.unwrap();
    let wanted = newest_first(&|n| n % 4 < 2);
    assert!(begin.ids.iter().all(|id| wanted.contains(id)) && (begin.more || begin.ids.len() == wanted.len()));
    let text = id(77).to_string();
    assert_eq!(store.with_end(&text[18..]).await.unwrap(), [id(77)]);
    assert_eq!(store.with_beginning(&text[..24], 10).await.unwrap().ids, [id(77)]);
    check(store.with_beginning(&text[..3], 1000).await.unwrap(), all.clone());
    let ids = |waiting: store::WaitingJobs| waiting.jobs.iter().map(|job| job.job_id).collect::<Vec<_>>();
    for most in [1, 10, 100] {
        let waiting = store.waiting_newest(most).await.unwrap();
        assert!(waiting.end.is_some(), "{most}");
        assert_eq!(ids(waiting), all[..most], "of all priorities");
    }
    let waiting = store.waiting_newest(400).await.unwrap();
    assert_eq!((waiting.end.clone(), ids(waiting)), (None, all));
}

#[tokio::test]
async fn the_suite_passes_on_the_embedded_dynamodb() {
    tables_are_made_once(dynamo_url()).await;
    suite(Place::Url(dynamo_url())).await;
}

#[tokio::test]
async fn nightly_the_suite_passes_on_the_embedded_dynamodb_in_process() {
    suite(Place::Embedded).await;
}

#[tokio::test]
async fn nightly_the_suite_passes_on_the_model() {
    suite(Place::Model).await;
}

#[tokio::test]
async fn nightly_the_suite_passes_on_ministack() {
    let emulator = Emulator::ministack();
    tables_are_made_once(&emulator.url).await;
    suite(Place::Url(&emulator.url)).await;
}
