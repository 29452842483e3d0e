//! The screen of `top`, its keys, and its changes.

use super::draw::draw;
use super::keys::press;
use super::operator_action::OperatorAction;
use super::paint::Paint;
use super::reader::{self, RefreshRequest, Update};
use super::state::{Detail, Effect, Selection, Snapshot, State, View};
use crate::commands::tests::World;
use crate::view::status::{Check, Level, Status};
use crate::view::story::Happening;
use crate::view::{JobDetail, JobRow, NodeDetail, NodeRow, Pace, Source, Views};
use model::events::{Event, Subject};
use model::fixtures::{self, at};
use model::ids::{JobId, NodeId, Slot};
use model::money::Usd;
use model::rng::Rng;
use model::time::Span;
use model::{ActionName, Alloc, Capacity, Ending, Intent, JobState, Market};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

const PLAIN: Paint = Paint { colours: false };

fn job(n: u32, name: &str, state: JobState) -> JobRow {
    JobRow {
        job_id: fixtures::job_id(n),
        name: (!name.is_empty()).then(|| name.to_owned()),
        state,
        priority: 500,
        nodes: 1,
        capacity: Capacity { vcpus: 2, ..Capacity::default() },
        submitted_at: at(100),
        finished_at: None,
        reason: Some(format!("why {n}")),
        waits_because: None,
        cause: None,
        exit_code: None,
        usage: None,
        elements: None,
        command: Some(format!("train --run {n}")),
        slots: Vec::new(),
    }
}

fn node(slot: u32, state: &str) -> NodeRow {
    NodeRow {
        slot: Slot::new(slot).unwrap(),
        state: state.to_owned(),
        node_id: fixtures::ready(slot).node_id(),
        size: Some("small".into()),
        instance_type: Some("m7a.large".into()),
        market: Some(Market::OnDemand),
        price_per_hour: Some(Usd::from_micros(100_000)),
        instance_id: Some(format!("i-{slot:017}")),
        intent: Some(Intent::Run),
        assigned_at: Some(at(200)),
        heard_at: Some(at(990)),
        gpus: None,
        gpus_usable: None,
        busy: false,
        reason: "its complete report was taken".into(),
        next: None,
        allocs: 0,
        work: Vec::new(),
    }
}

fn status(checks: Vec<Check>, nodes: usize, jobs: usize) -> Status {
    let counts = |word: &str, n: usize| BTreeMap::from_iter((n > 0).then(|| (word.to_owned(), n)));
    let well = checks.iter().all(|c| c.level != Level::Wrong);
    let price_per_hour = Usd::from_micros(350_000);
    Status {
        well,
        checks,
        nodes: counts("ready", nodes),
        jobs: counts("queued", jobs),
        more_jobs_wait: false,
        price_per_hour,
    }
}

fn check(what: &str, level: Level, says: &str, to_do: &str) -> Check {
    Check { what: what.into(), level, says: says.into(), to_do: to_do.into() }
}

/// A state that has read these rows, at 1000 s.
fn state(nodes: Vec<NodeRow>, jobs: Vec<JobRow>, checks: Vec<Check>) -> State {
    let mut state = State::default();
    let status = status(checks, nodes.len(), jobs.len());
    state.saw(Arc::new(Snapshot { at: at(1000), cluster: "prod".into(), status, jobs, nodes }));
    state
}

fn some() -> State {
    let mut idle = node(1, "ready");
    idle.next = Some("idle, and idle.timeout_s is over in 3 s".into());
    let jobs = vec![
        job(1, "train", JobState::Placed),
        job(2, "", JobState::Queued),
        job(3, "render", JobState::Failed),
        job(4, "old", JobState::Complete),
    ];
    state(vec![node(0, "ready"), idle, node(2, "down")], jobs, Vec::new())
}

/// The screen as text, 3 s after what was read.
fn screen(state: &mut State, width: u16, height: u16) -> String {
    drawn(state, width, height, PLAIN).backend().to_string().replace('"', "")
}

fn drawn(state: &mut State, width: u16, height: u16, paint: Paint) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state, at(1003), paint)).unwrap();
    terminal
}

fn key(state: &mut State, code: KeyCode) -> Option<Effect> {
    press(state, KeyEvent::new(code, KeyModifiers::NONE))
}

fn keys(state: &mut State, text: &str) -> Option<Effect> {
    text.chars().map(|c| key(state, KeyCode::Char(c))).last().flatten()
}

/// Whether a line of the screen has all these words, in this order.
fn has(screen: &str, words: &[&str]) -> bool {
    screen.lines().any(|line| {
        let mut rest = Some(line);
        words.iter().all(|word| {
            rest = rest.and_then(|r| r.split_once(word)).map(|(_, behind)| behind);
            rest.is_some()
        })
    })
}

fn opened_job(n: u32) -> Opening {
    let mut job = fixtures::job(n);
    job.summary.name = Some("train".into());
    job.env = BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]).into_iter().collect();
    let alloc = Alloc::place(fixtures::alloc_id(n), &job, &fixtures::ready(0), at(100)).unwrap();
    let tail = "step 1\n\x1b[31mred\u{202e}\tend\n".to_owned();
    let ending = Ending { log_tail: Some(tail), ..Ending::lost("its node is gone") };
    let alloc = alloc.end(&ending, Span::from_s(9999), at(800));
    let story = vec![Happening {
        at: at(100),
        subject: Subject::Alloc(alloc.id()).to_string(),
        action: "place".into(),
        reason: "on slot 0: it fits".into(),
    }];
    let detail = JobDetail::of(job.clone(), vec![alloc], Some("no size\x07 fits"), story);
    Opening { thing: Selection::Job(job.summary.job_id), detail: Detail::Job(Box::new(detail)) }
}

struct Opening {
    thing: Selection,
    detail: Detail,
}

#[test]
fn nodes_are_a_list_with_what_the_next_run_does_with_them() {
    let mut state = some();
    let screen = screen(&mut state, 120, 24);
    assert!(has(&screen, &["prod", "all is well", "$0.35 an hour", "3 s ago"]), "{screen}");
    assert!(has(&screen, &["1 nodes: 3 ready"]) && has(&screen, &["2 jobs: 4 queued"]), "{screen}");
    assert!(has(&screen, &["SLOT", "STATE", "SIZE", "INSTANCE", "HEARD", "UP", "NEXT OR REASON"]), "{screen}");
    assert!(
        has(&screen, &["1", "ready", "small", "i-00000000000000001", "13 s", "13 min", "idle.timeout_s"]),
        "{screen}"
    );
    assert!(has(&screen, &["2", "down"]), "{screen}");
    assert!(!screen.contains("INTENT"), "an empty column is left out: {screen}");
    assert!(has(&screen, &["? help", "q quit"]), "{screen}");
}

#[test]
fn jobs_are_a_list_with_why_they_wait() {
    let mut state = some();
    assert_eq!(key(&mut state, KeyCode::Char('2')), None);
    let drawn = screen(&mut state, 120, 24);
    assert!(has(&drawn, &["JOB", "NAME", "STATE", "NEEDS", "AGE", "WHY"]), "{drawn}");
    assert!(has(&drawn, &["train", "placed", "500", "2 vCPU", "15 min", "why 1"]), "{drawn}");
    assert!(has(&drawn, &["train --run 2", "queued"]), "a job without a name has its command: {drawn}");
    key(&mut state, KeyCode::Tab);
    assert_eq!(state.view, View::Nodes);
}

#[test]
fn a_job_is_told_with_its_story_and_its_output_without_its_environment() {
    let mut state = some();
    keys(&mut state, "2");
    let Opening { thing, detail } = opened_job(1);
    assert_eq!(key(&mut state, KeyCode::Enter), Some(Effect::Open(Some(thing))));
    assert!(has(&screen(&mut state, 80, 24), &["is being read"]));
    state.detailed(thing, Ok(detail));
    let drawn = screen(&mut state, 80, 40);
    assert!(has(&drawn, &["waits because", "no size  fits"]), "{drawn}");
    assert!(has(&drawn, &["15 min ago", "place", "on slot 0: it fits"]), "{drawn}");
    assert!(has(&drawn, &["output of", ".0.0 on slot 0 (lost", "3 min ago"]), "{drawn}");
    assert!(has(&drawn, &["its node is gone"]), "{drawn}");
    assert!(!drawn.contains("hunter2"), "{drawn}");
    // A terminal obeys nothing of it, and the tab is spaces.
    assert!(has(&drawn, &["\\x1b[31mred\\x202e       end"]), "{drawn}");
    assert!(!drawn.contains(|c: char| c != '\n' && c.is_control()) && !drawn.contains('\u{202e}'), "{drawn}");
    // A late answer about another job changes nothing.
    state.detailed(Selection::Job(fixtures::job_id(9)), Err("no".into()));
    assert!(!screen(&mut state, 80, 40).contains("cannot be read"));
    keys(&mut state, "l");
    let drawn = screen(&mut state, 80, 24);
    assert!(has(&drawn, &["step 1"]) && !drawn.contains("what happened"), "{drawn}");
    assert_eq!(key(&mut state, KeyCode::Esc), Some(Effect::Open(None)));
    assert!(state.opened.is_none());
}

#[test]
fn a_node_is_told_with_its_events() {
    let mut state = some();
    assert_eq!(keys(&mut state, "jkw"), Some(Effect::Open(Some(Selection::Node(Slot::new(0).unwrap())))));
    let record = fixtures::ready(0);
    let event = |s, action, reason: &str| {
        let subject = Subject::Slot(record.slot);
        Event::new(&subject, action, reason, at(s), Span::from_s(9999), &Rng::seeded(1))
    };
    let events =
        vec![event(400, ActionName::Ready, "it is\x1b[2J ready"), event(300, ActionName::Launch, "job train needs it")];
    let detail = NodeDetail { row: node(0, "ready"), record: record.clone(), events, lives: Vec::new() };
    state.detailed(Selection::Node(record.slot), Ok(Detail::Node(Box::new(detail))));
    let drawn = screen(&mut state, 80, 30);
    assert!(has(&drawn, &["slot 0: 0-"]) && has(&drawn, &["market", "on_demand, $0.10 an hour"]), "{drawn}");
    assert!(has(&drawn, &["10 min ago", "ready", "it is [2J ready"]), "{drawn}");
    assert!(has(&drawn, &["11 min ago", "launch", "job train needs it"]), "{drawn}");
}

#[test]
fn what_status_finds_stands_at_the_top() {
    let checks = vec![
        check("poll-and-scale", Level::Well, "last succeeded 3 s ago", ""),
        check("idle", Level::Look, "slot 3 stays", ""),
        check("brake#missing", Level::Wrong, "held back: 4 of\x1b[7m 6 nodes", "`nodekeeper release missing`"),
    ];
    let mut state = state(Vec::new(), Vec::new(), checks);
    let drawn = screen(&mut state, 100, 24);
    assert!(has(&drawn, &["not all is well: 1 of 3 checks"]), "{drawn}");
    assert!(
        has(&drawn, &["WRONG brake#missing: held back: 4 of [7m 6 nodes: `nodekeeper release missing`"]),
        "{drawn}"
    );
    assert!(has(&drawn, &["look  idle: slot 3 stays"]) && !drawn.contains("poll-and-scale"), "{drawn}");
    assert!(drawn.find("brake#").unwrap() < drawn.find("idle:").unwrap(), "{drawn}");
    let low = screen(&mut state, 100, 12);
    assert!(
        has(&low, &["WRONG", "and 1 more: `nodekeeper status`", "brake#missing"]) && !low.contains("look"),
        "{low}"
    );
}

#[test]
fn an_empty_cluster_and_one_that_was_not_read_yet_are_drawn() {
    let mut state = State::default();
    assert!(has(&screen(&mut state, 60, 10), &["the cluster is being read"]));
    for key_ in "jk12/x\n?wldc".chars() {
        key(&mut state, if key_ == '\n' { KeyCode::Enter } else { KeyCode::Char(key_) });
        screen(&mut state, 60, 10);
    }
    let mut state = self::state(Vec::new(), Vec::new(), Vec::new());
    assert!(has(&screen(&mut state, 60, 10), &["no nodes are up"]));
    keys(&mut state, "2");
    let drawn = screen(&mut state, 60, 10);
    assert!(has(&drawn, &["no jobs are stored"]) && has(&drawn, &["1 nodes: none"]), "{drawn}");
}

#[test]
fn a_failed_look_is_told_and_the_rows_stay() {
    let mut state = some();
    state.failed(at(990), "the table\x1b[2J prod-nodes does not exist".into());
    state.failed(at(1002), "DynamoDB does not answer".into());
    let drawn = screen(&mut state, 100, 20);
    assert!(has(&drawn, &["cannot read for 13 s: DynamoDB does not answer; what is shown is 3 s old"]), "{drawn}");
    assert!(has(&drawn, &["2", "down"]), "{drawn}");
    let seen = state.seen.clone().unwrap();
    state.saw(seen);
    assert!(!screen(&mut state, 100, 20).contains("cannot read"));
    let mut never = State::default();
    never.failed(at(1003), "no credentials".into());
    assert!(has(&screen(&mut never, 100, 20), &["cannot read for 0 s: no credentials"]));
}

#[test]
fn every_size_of_a_terminal_is_drawn() {
    let mut jobs = some();
    keys(&mut jobs, "2");
    let narrow = screen(&mut jobs, 40, 16);
    assert!(has(&narrow, &["JOB", "NAME", "STATE", "WHY"]) && has(&narrow, &["train", "placed", "why 1"]), "{narrow}");
    assert!(!narrow.contains("NEEDS"), "{narrow}");
    let narrow = screen(&mut some(), 40, 16);
    assert!(has(&narrow, &["1", "ready", "idle, and"]) && !narrow.contains("INSTANCE"), "{narrow}");
    let Opening { thing, detail } = opened_job(1);
    let mut opened = some();
    keys(&mut opened, "2w");
    opened.detailed(thing, Ok(detail));
    assert!(screen(&mut opened, 40, 60).contains("place"));
    for width in [1, 2, 3, 5, 9, 17, 33] {
        for height in [1, 2, 3, 4, 5, 8] {
            for state in [&mut some(), &mut jobs, &mut opened] {
                screen(state, width, height);
                state.help = true;
                screen(state, width, height);
                state.help = false;
            }
        }
    }
}

#[test]
fn a_filter_keeps_rows_with_all_its_words() {
    let mut state = some();
    keys(&mut state, "2/render");
    let drawn = screen(&mut state, 80, 20);
    assert!(drawn.contains("render ") && !drawn.contains("train") && has(&drawn, &["/render_"]), "{drawn}");
    key(&mut state, KeyCode::Enter);
    assert!(has(&screen(&mut state, 80, 20), &["1 jobs with render; Esc shows all"]));
    // Keys are commands again.
    assert_eq!(selected(&state), fixtures::job_id(3));
    key(&mut state, KeyCode::Esc);
    assert_eq!(state.jobs.len(), 4);
    assert_eq!(selected(&state), fixtures::job_id(3), "the selected row stays selected");
    keys(&mut state, "/queued");
    assert_eq!((state.jobs.len(), selected(&state)), (1, fixtures::job_id(2)), "a state is a word too");
    for _ in 0..20 {
        key(&mut state, KeyCode::Backspace);
    }
    assert_eq!(state.jobs.len(), 4);
    keys(&mut state, "nothing");
    assert!(has(&screen(&mut state, 80, 20), &["no job is like that"]));
    key(&mut state, KeyCode::Esc);
    keys(&mut state, "1/down");
    assert_eq!((state.nodes.len(), state.jobs.len()), (1, 4), "each list has its own filter");
}

fn selected(state: &State) -> JobId {
    let Some(Selection::Job(id)) = state.jobs.selected() else { panic!("no job is selected") };
    id
}

#[test]
fn motions_stay_within_the_list_and_within_a_text() {
    let rows = (0..50).map(|n| job(n, "j", JobState::Queued)).collect();
    let mut state = state(Vec::new(), rows, Vec::new());
    keys(&mut state, "2");
    screen(&mut state, 80, 14);
    key(&mut state, KeyCode::PageDown);
    // 14 lines without 3 of the head, the heads of the columns and the foot.
    assert_eq!(selected(&state), fixtures::job_id(9));
    key(&mut state, KeyCode::End);
    assert_eq!(selected(&state), fixtures::job_id(49));
    key(&mut state, KeyCode::Down);
    key(&mut state, KeyCode::Up);
    assert_eq!(selected(&state), fixtures::job_id(48));
    key(&mut state, KeyCode::PageUp);
    key(&mut state, KeyCode::Home);
    key(&mut state, KeyCode::Up);
    assert_eq!(selected(&state), fixtures::job_id(0));
    keys(&mut state, "2w");
    let Opening { detail, .. } = opened_job(0);
    state.detailed(Selection::Job(fixtures::job_id(0)), Ok(detail));
    screen(&mut state, 80, 10);
    let (all, fit) = state.opened.as_ref().unwrap().lines;
    key(&mut state, KeyCode::End);
    assert_eq!(state.opened.as_ref().unwrap().line, all - fit);
    keys(&mut state, "jk");
    assert_eq!(state.opened.as_ref().unwrap().line, all - fit - 1);
    key(&mut state, KeyCode::Home);
    assert_eq!((state.opened.as_ref().unwrap().line, selected(&state)), (0, fixtures::job_id(0)));
}

/// Presses a key that asks, and gives this answer.
fn asked(state: &mut State, key_: char, answer: KeyCode) -> (String, Option<Effect>) {
    assert_eq!(keys(state, &key_.to_string()), None, "nothing is done before the answer");
    let question = screen(state, 100, 20);
    (question.lines().last().unwrap().trim().to_owned(), key(state, answer))
}

#[test]
fn a_job_is_cancelled_only_after_a_yes() {
    let mut state = some();
    keys(&mut state, "2");
    let short = crate::view::find::short(fixtures::job_id(1));
    let action = OperatorAction::Cancel { job: fixtures::job_id(1), name: Some("train".into()), slots: 0 };
    let (question, wish) = asked(&mut state, 'c', KeyCode::Char('y'));
    assert_eq!(question, format!("[y/n] Cancel job {short} train? It will not run."));
    assert_eq!(wish, Some(Effect::Do(action)));
    for no in [KeyCode::Char('n'), KeyCode::Esc, KeyCode::Enter, KeyCode::Char('q')] {
        assert_eq!(asked(&mut state, 'c', no).1, None);
        assert!(has(&screen(&mut state, 100, 20), &["nothing was changed"]), "{no:?}");
        assert_eq!(keys(&mut state, "y"), None, "the question is over");
    }
    // Other keys are no answer.
    assert_eq!(asked(&mut state, 'c', KeyCode::Down).1, None);
    assert!(state.question.is_some());
    key(&mut state, KeyCode::Esc);
    state.said = Some(Ok("it is cancelled".into()));
    assert!(has(&screen(&mut state, 100, 20), &["it is cancelled"]));
    key(&mut state, KeyCode::End);
    keys(&mut state, "c");
    let drawn = screen(&mut state, 100, 20);
    assert!(state.question.is_none() && has(&drawn, &["it has ended already (complete)"]), "{drawn}");
}

#[test]
fn a_node_is_drained_only_after_a_yes() {
    let mut state = some();
    let node = fixtures::ready(0).node_id().unwrap();
    let (question, wish) = asked(&mut state, 'd', KeyCode::Char('Y'));
    assert_eq!(question, "[y/n] Drain slot 0? It takes no new work and is shut down.");
    assert_eq!(wish, Some(Effect::Do(OperatorAction::Drain { node, allocs: 0 })));
    assert_eq!(asked(&mut state, 'd', KeyCode::Char('n')).1, None);
    keys(&mut state, "2d");
    assert!(state.question.is_none() && has(&screen(&mut state, 100, 20), &["d drains a node"]));
    keys(&mut state, "1c");
    assert!(state.question.is_none() && has(&screen(&mut state, 100, 20), &["c cancels a job"]));
    let mut draining = self::node(0, "ready");
    draining.intent = Some(Intent::Drain);
    assert!(OperatorAction::drain(&draining).unwrap_err().contains("already"));
    let two = OperatorAction::Drain { node, allocs: 2 };
    assert_eq!(two.question(), "Drain slot 0? It takes no new work and is shut down when its 2 allocs have ended.");
}

#[test]
fn help_quit_and_refresh_are_keys_of_every_view() {
    let mut state = some();
    keys(&mut state, "?");
    let drawn = screen(&mut state, 80, 24);
    assert!(has(&drawn, &["drain the node, after a question"]) && has(&drawn, &["Ctrl-C"]), "{drawn}");
    assert_eq!((keys(&mut state, "x"), state.help), (None, false));
    assert_eq!(keys(&mut state, "r"), Some(Effect::Refresh));
    assert_eq!(keys(&mut state, "q"), Some(Effect::Quit));
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    for before in ["", "/", "?", "c", "2w"] {
        let mut state = some();
        keys(&mut state, before);
        assert_eq!(press(&mut state, control_c), Some(Effect::Quit), "{before}");
    }
    keys(&mut state, "/q");
    assert_eq!(state.nodes.filter, "q", "while a filter is typed, q is a letter");
}

#[test]
fn colours_are_only_used_if_they_are_wanted() {
    let colours = |paint: Paint| {
        let mut state = some();
        let terminal = drawn(&mut state, 100, 20, paint);
        let cells = terminal.backend().buffer().content().iter();
        cells.map(|cell| cell.fg).filter(|c| *c != Color::Reset).collect::<Vec<_>>()
    };
    let painted = colours(Paint { colours: true });
    assert!(painted.contains(&Color::Green) && painted.contains(&Color::Red), "{painted:?}");
    assert!(colours(PLAIN).is_empty());
}

#[test]
fn thousands_of_rows_are_filtered_and_drawn() {
    let jobs = (0..10_000).map(|n| job(n, &format!("job-{n}"), JobState::Queued)).collect();
    let mut state = state((0..1000).map(|n| node(n, "ready")).collect(), jobs, Vec::new());
    key(&mut state, KeyCode::End);
    assert!(has(&screen(&mut state, 80, 24), &["999", "ready"]));
    keys(&mut state, "2");
    key(&mut state, KeyCode::End);
    assert!(has(&screen(&mut state, 80, 24), &["job-9999"]));
    keys(&mut state, "/job-77");
    assert_eq!(state.jobs.len(), 111);
}

fn views(world: &World) -> Arc<Views> {
    Arc::new(Views::new(Source {
        cluster: "test".into(),
        store: world.store().clone(),
        cloud: Arc::clone(&world.cluster.cloud),
        clock: Arc::new(|| at(1000)),
        pace: Pace::AWS,
        extra: None,
    }))
}

#[tokio::test]
async fn the_lists_and_details_are_those_of_the_page() {
    let world = World::new().await;
    world.put_running(1).await;
    world.put_job(2).await;
    let (asked, wanted) = watch::channel(RefreshRequest::default());
    let (news, mut told) = mpsc::channel(8);
    tokio::spawn(reader::lists(views(&world), wanted.clone(), news.clone()));
    tokio::spawn(reader::details(views(&world), wanted, news));
    let Some(Update::Snapshot(seen)) = told.recv().await else { panic!("nothing was seen") };
    let ids: Vec<JobId> = seen.jobs.iter().map(|row| row.job_id).collect();
    assert_eq!((ids, seen.nodes.len()), (vec![fixtures::job_id(1), fixtures::job_id(2)], 1));
    let thing = Selection::Job(fixtures::job_id(1));
    asked.send_modify(|asked| asked.opened = Some(thing));
    let Some(Update::Detail(about, Ok(Detail::Job(job)))) = told.recv().await else { panic!("nothing was told") };
    assert_eq!((about, job.story.len()), (thing, 2));
    asked.send_modify(|asked| asked.opened = Some(Selection::Node(Slot::new(7).unwrap())));
    let Some(Update::Detail(_, Err(why))) = told.recv().await else { panic!("nothing was told") };
    assert!(why.contains("no longer stored"), "{why}");
}

#[tokio::test]
async fn a_look_that_fails_is_told() {
    let world = World::empty().await;
    let (_asked, wanted) = watch::channel(RefreshRequest::default());
    let (news, mut told) = mpsc::channel(8);
    tokio::spawn(reader::lists(views(&world), wanted, news));
    let Some(Update::Failed(why)) = told.recv().await else { panic!("it was read") };
    assert!(why.contains("test-"), "{why}");
}

#[tokio::test]
async fn what_the_question_named_is_changed_and_nothing_else() {
    let world = World::new().await;
    let (job, _) = world.put_running(1).await;
    let clock: crate::console::Clock = Arc::new(|| at(1000));
    let id = job.summary.job_id;
    let cancel = OperatorAction::Cancel { job: id, name: None, slots: 1 };
    let said = cancel.perform(&world.cluster, &clock).await.unwrap();
    assert_eq!(said, format!("{id} cancelled: 1 live alloc will stop in the next run"));
    assert_eq!(world.store().job(id).await.unwrap().unwrap().summary.state, JobState::Cancelled);
    let again = cancel.perform(&world.cluster, &clock).await.unwrap_err();
    assert!(again.to_string().contains("has ended already (cancelled)"), "{again}");

    let record = world.store().node(Slot::new(0).unwrap()).await.unwrap().unwrap();
    // A node that was in this slot before.
    let gone = NodeId::new(record.slot, ulid::Ulid::from_parts(1, 1));
    assert_ne!(record.node_id(), Some(gone));
    let error = OperatorAction::Drain { node: gone, allocs: 0 }.perform(&world.cluster, &clock).await.unwrap_err();
    assert!(error.to_string().contains("another one is there by now"), "{error}");
    let intent = async || {
        let record = world.store().node(Slot::new(0).unwrap()).await.unwrap().unwrap();
        record.life().unwrap().intent
    };
    assert_eq!(intent().await, Intent::Run);
    let drain = OperatorAction::Drain { node: record.node_id().unwrap(), allocs: 1 };
    assert!(drain.perform(&world.cluster, &clock).await.unwrap().starts_with("slot 0 drains"));
    assert_eq!(intent().await, Intent::Drain);
    assert!(drain.perform(&world.cluster, &clock).await.unwrap().starts_with("nothing changed"));
}
