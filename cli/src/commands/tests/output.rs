//! `logs`, and the output of `run`: from a node, from the row of the alloc, or missing.

use super::*;
use crate::commands::output::output_stream::MISSING;
use crate::commands::submit::run::run_with;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use model::elements::{Pack, Told};
use model::ids::AllocId;
use model::output::{Piece, Switches, Then};
use model::wire::MAX_LOG_TAIL_BYTES;
use model::{JobSet, Life, Work};
use std::collections::BTreeSet;
use std::io::Write;
use tokio::sync::mpsc::unbounded_channel;

/// The node of slot 0, which sends its output to each reader.
pub(super) struct FakeNode {
    store: Store,
    output: Mutex<String>,
    ended: Mutex<bool>,
    /// The byte from which on the node has the output; `None`: it has nothing.
    has: Option<usize>,
    /// The most bytes in a piece.
    most: usize,
    /// The bytes at which the stream changes.
    switches: Switches,
}

impl FakeNode {
    pub(super) fn new(world: &World, output: &str) -> Self {
        let (output, ended) = (Mutex::new(output.to_owned()), Mutex::new(false));
        Self { store: world.store().clone(), output, ended, has: Some(0), most: 50_000, switches: Switches::default() }
    }

    /// A node whose alloc has ended.
    pub(super) fn ended(world: &World, output: &str) -> Self {
        let node = Self::new(world, output);
        *node.ended.lock().unwrap() = true;
        node
    }

    fn prints(&self, more: &str) {
        self.output.lock().unwrap().push_str(more);
    }

    /// Sends pieces to each reader while `what` runs.
    pub(super) async fn answering<T>(&self, what: impl Future<Output = T>) -> T {
        tokio::select! {
            said = what => said,
            never = self.send() => never,
        }
    }

    async fn send<T>(&self) -> T {
        let mut sent: BTreeMap<String, (u64, usize)> = BTreeMap::new();
        let mut over = BTreeSet::new();
        loop {
            tokio::task::yield_now().await;
            let record = self.store.node(fixtures::slot(0)).await.unwrap();
            let follows = record.as_ref().and_then(NodeRecord::life).map(|life: &Life| life.follows.clone());
            for follow in
                follows.unwrap_or_default().iter().filter(|f| !over.contains(&f.follow_id)).collect::<Vec<_>>()
            {
                let (output, ended) = (self.output.lock().unwrap().clone().into_bytes(), *self.ended.lock().unwrap());
                let last = |bytes: u64| output.len().saturating_sub(usize::try_from(bytes).unwrap());
                let start = follow.last_bytes.map_or(0, last).max(self.has.unwrap_or(0));
                let (no, from) = *sent.entry(follow.follow_id.clone()).or_insert((0, start));
                let to = output.len().min(from + self.most);
                let then = match (self.has, ended && to == output.len()) {
                    (None, _) => Then::Missing,
                    (Some(_), true) => Then::End,
                    (Some(_), false) => Then::More,
                };
                let data = if self.has.is_some() { &output[from..to] } else { &[] };
                if no > 0 && data.is_empty() && then == Then::More {
                    continue;
                }
                let piece = Piece {
                    follow_id: follow.follow_id.clone(),
                    no,
                    offset: from as u64,
                    data: BASE64_STANDARD.encode(data),
                    switches: self.switches.part(from as u64, 0),
                    bytes: data.len() as u64,
                    size: output.len() as u64,
                    then,
                    expires_at: 1,
                };
                self.store.put_piece(&piece).await.unwrap();
                sent.insert(follow.follow_id.clone(), (no + 1, to));
                if then != Then::More {
                    over.insert(follow.follow_id.clone());
                }
            }
        }
    }
}

#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Printed {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Waits until this text was printed.
    async fn until(&self, what: &str, world: &World) {
        for _ in 0..100_000 {
            if self.text().contains(what) {
                return;
            }
            world.store().node(fixtures::slot(0)).await.unwrap();
        }
        panic!("never printed: {what:?}: {}", self.text());
    }
}

/// Runs a command line that prints to `out` and `err`.
async fn print(world: &World, line: &[&str], out: &Printed, err: &Printed) -> anyhow::Result<Outcome> {
    let (cluster, clock) = (world.cluster.clone(), world.clock());
    let (mut out, mut err) = (out.clone(), err.clone());
    let mut context = Context {
        screen: world.screen,
        colours: false,
        err_screen: Screen::Pipe,
        connect: Box::new(move || {
            let cluster = cluster.clone();
            Box::pin(async move { Ok(cluster) })
        }),
        clock,
        input: &mut &b""[..],
        out: &mut out,
        err: &mut err,
    };
    match parse(line).unwrap() {
        Command::Run(args) => {
            let (_hear, heard) = unbounded_channel();
            run_with(&mut context, &args, heard).await
        }
        command => crate::command::run(command, &mut context).await,
    }
}

/// The last 8 KiB of an output, as a node reports them.
pub(super) fn tail_of(output: &str) -> String {
    output[output.len().saturating_sub(MAX_LOG_TAIL_BYTES)..].to_owned()
}

async fn end(world: &World, job: &Job, alloc: &Alloc, output: &str) {
    let ending = Ending { log_tail: Some(tail_of(output)), ..Ending::exited(0) };
    let after = alloc.end(&ending, Span::from_s(9), at(1001));
    world.store().write(Some(alloc), &after, Vec::new()).await.unwrap();
    let after = job.after_end(&alloc.summary, &ending, &[], JobSet::Leaves, Span::from_s(9).into(), at(1001));
    world.store().write(Some(job), &after, Vec::new()).await.unwrap();
}

/// A world with one job on slot 0 that has ended with this output.
pub(super) async fn ended(output: &str) -> (World, Alloc) {
    let world = World::with_policy().await;
    let (job, alloc) = world.put_running(1).await;
    end(&world, &job, &alloc, output).await;
    (world, alloc)
}

pub(super) async fn readers(world: &World) -> usize {
    world.store().node(fixtures::slot(0)).await.unwrap().unwrap().life().unwrap().follows.len()
}

pub(super) fn long() -> String {
    (0..20_000).map(|n| format!("line {n}\n")).collect()
}

#[tokio::test]
async fn the_whole_output_of_an_ended_job_comes_from_its_node() {
    let (world, alloc) = ended(&long()).await;
    let node = FakeNode::ended(&world, &long());
    let said = node.answering(world.run(&["logs", &id(1)])).await;
    assert!(said.out == long(), "{} bytes, {}", said.out.len(), said.err);
    assert_eq!((said.err.lines().count(), readers(&world).await), (1, 0), "{}", said.err);
    let alloc_id = alloc.id().to_string();
    let last = node.answering(world.run(&["logs", &alloc_id, "--tail", "2"])).await;
    assert_eq!(last.out, "line 19998\nline 19999\n");
    // More lines than one piece has.
    let last = node.answering(world.run(&["logs", &alloc_id, "-n", "15000"])).await;
    assert!(long().ends_with(&last.out) && last.out.starts_with("line 5000\n"), "{}", last.out.len());
    let followed = node.answering(world.run(&["logs", "-f", &id(1)])).await;
    assert!(followed.out == long() && followed.err.ends_with(" complete\n"), "{}", followed.err);
}

#[tokio::test]
async fn a_short_output_stands_in_the_row_and_needs_no_node() {
    let (world, _) = ended("one\ntwo\nthree\n").await;
    let (said, changed) = world.changes(&["logs", &id(1), "-n", "2"]).await;
    assert_eq!((said.out.as_str(), changed), ("two\nthree\n", Vec::new()));
    // A row is not taken as whole if its text had to be replaced in part, or if its end was cut for a report of many allocs.
    for cut in ["a\u{fffd}b", "…end\n"] {
        let (world, _) = ended(cut).await;
        let said = FakeNode::ended(&world, "the whole\n").answering(world.run(&["logs", &id(1)])).await;
        assert_eq!(said.out, "the whole\n");
    }
}

#[tokio::test]
async fn a_running_job_shows_what_there_is_now() {
    let world = World::with_policy().await;
    world.put_running(1).await;
    let said = FakeNode::new(&world, &long()).answering(world.run(&["logs", &id(1)])).await;
    assert!(said.out == long() && said.result.unwrap() == Outcome::Done, "{}", said.err);
    let said = FakeNode::new(&world, "").answering(world.run(&["logs", &id(1)])).await;
    assert_eq!((said.out.as_str(), readers(&world).await), ("", 0), "it has printed nothing: {}", said.err);
}

#[tokio::test]
async fn a_follower_gets_lines_as_they_come_and_all_of_them() {
    let world = World::with_policy().await;
    let (job, alloc) = world.put_running(1).await;
    let (out, err, node) = (Printed::default(), Printed::default(), FakeNode::new(&world, "one\n"));
    let happens = async {
        out.until("one\n", &world).await;
        node.prints(&long());
        out.until("line 19999\n", &world).await;
        node.prints("end\n");
        *node.ended.lock().unwrap() = true;
        end(&world, &job, &alloc, &(long() + "end\n")).await;
    };
    let line = ["logs", "--follow", &id(1)];
    let (result, ()) = node.answering(async { tokio::join!(print(&world, &line, &out, &err), happens) }).await;
    assert_eq!((result.unwrap(), readers(&world).await), (Outcome::Done, 0));
    assert!(out.text() == format!("one\n{}end\n", long()), "{}", err.text());
    assert!(err.text().ends_with(" complete\n"), "{}", err.text());
}

#[tokio::test]
async fn a_reader_whose_clock_is_slow_is_still_a_reader_for_the_functions() {
    let world = World::with_policy().await;
    let (job, alloc) = world.put_running(1).await;
    let before = world.store().node(fixtures::slot(0)).await.unwrap().unwrap();
    let mut after = before.clone();
    let heard_at = at(1000 + 600);
    if let model::NodeState::InUse(node) = &mut after.state {
        (node.contact.last_ping_at, node.contact.lease_expires_at) = (heard_at, heard_at + Span::from_s(90));
    }
    world.store().write(Some(&before), &after, Vec::new()).await.unwrap();
    let (out, err, node) = (Printed::default(), Printed::default(), FakeNode::new(&world, "one\n"));
    let happens = async {
        out.until("one\n", &world).await;
        let record = world.store().node(fixtures::slot(0)).await.unwrap().unwrap();
        assert!(record.life().unwrap().is_read(heard_at));
        end(&world, &job, &alloc, "one\n").await;
    };
    let line = ["logs", "-f", &id(1)];
    let (result, ()) = node.answering(async { tokio::join!(print(&world, &line, &out, &err), happens) }).await;
    assert_eq!(result.unwrap(), Outcome::Done, "{}", err.text());
}

#[tokio::test]
async fn the_row_completes_a_short_output_whose_node_says_no_more() {
    let world = World::with_policy().await;
    let (job, alloc) = world.put_running(1).await;
    let (out, err, node) = (Printed::default(), Printed::default(), FakeNode::new(&world, "one\n"));
    let happens = async {
        out.until("one\n", &world).await;
        end(&world, &job, &alloc, "one\ntwo\n").await;
    };
    let line = ["logs", "-f", &id(1)];
    let (result, ()) = node.answering(async { tokio::join!(print(&world, &line, &out, &err), happens) }).await;
    assert_eq!((result.unwrap(), out.text().as_str()), (Outcome::Done, "one\ntwo\n"), "{}", err.text());
}

#[tokio::test]
async fn without_its_node_the_end_of_the_output_is_printed_and_a_note() {
    let tail = tail_of(&long());
    // The node is gone.
    let world = World::with_policy().await;
    let (job, node) = (world.put_job(1).await, fixtures::ready(0));
    let alloc = Alloc::place(fixtures::alloc_id(1), &job, &node, at(100)).unwrap();
    let placed = job.with_placed(&[alloc.id()]).unwrap();
    let placed = world.store().write(Some(&job), &placed, Vec::new()).await.unwrap();
    let alloc = world.store().write(None, &alloc, Vec::new()).await.unwrap();
    end(&world, &placed, &alloc, &long()).await;
    let said = world.run(&["logs", &id(1)]).await;
    assert_eq!((said.result.unwrap(), said.out.as_str()), (Outcome::Code(MISSING), tail.as_str()));
    assert!(
        said.err.contains(" is no more\n") && said.err.contains("the last 8192 bytes of the output"),
        "{}",
        said.err
    );
    // The row has all of the last lines.
    let said = world.run(&["logs", &id(1), "--tail", "2"]).await;
    assert_eq!((said.result.unwrap(), said.out.as_str()), (Outcome::Done, "line 19998\nline 19999\n"));
    // A reader that follows the output never gets only its end.
    let said = world.run(&["logs", "--follow", &id(1)]).await;
    assert_eq!((said.result.unwrap(), said.out.as_str()), (Outcome::Code(MISSING), ""));
    assert!(said.err.contains("prints the last 8192 bytes of it"), "{}", said.err);
    // The node has no output any more, or only the end of it.
    let (world, _) = ended(&long()).await;
    let node = FakeNode { has: None, ..FakeNode::ended(&world, &long()) };
    let said = node.answering(world.run(&["logs", &id(1)])).await;
    assert!(said.out == tail && said.err.contains("its node does not have it"), "{}", said.err);
    let node = FakeNode { has: Some(100_000), ..FakeNode::ended(&world, &long()) };
    let said = node.answering(world.run(&["logs", &id(1)])).await;
    assert!(said.out == tail && said.err.contains("its node sends it from byte 100000 on"), "{}", said.err);
    assert_eq!(said.result.unwrap(), Outcome::Code(MISSING));
}

#[tokio::test]
async fn a_node_that_does_not_answer_is_not_waited_for_long() {
    let (mut world, _) = ended(&long()).await;
    world.tick = Span::from_s(60);
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out == tail_of(&long()) && said.err.contains(" does not answer\n"), "{}", said.err);
    assert_eq!(readers(&world).await, 0);
    // A running job: without `--follow`, its node is not waited for either.
    let mut world = World::with_policy().await;
    world.put_running(1).await;
    world.tick = Span::from_s(60);
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out.is_empty() && said.err.contains("reports the end when it has ended"), "{}", said.err);
}

#[tokio::test]
async fn somebody_who_may_only_read_gets_the_end_of_the_output_and_a_note() {
    let (mut world, _) = ended(&long()).await;
    let owner = world.clone();
    world.cluster.store = Watched::denying(world.cluster.dynamo.clone(), Table::Nodes);
    let said = world.run(&["logs", &id(1)]).await;
    assert_eq!((said.result.unwrap(), said.out.as_str()), (Outcome::Code(MISSING), tail_of(&long()).as_str()));
    assert!(said.err.contains("your permissions do not allow it"), "{}", said.err);
    assert_eq!(readers(&owner).await, 0);

    let mut world = World::with_policy().await;
    let (job, alloc) = world.put_running(1).await;
    let owner = world.clone();
    world.cluster.store = Watched::denying(world.cluster.dynamo.clone(), Table::Nodes);
    let (out, err) = (Printed::default(), Printed::default());
    let happens = async {
        err.until("is not printed as it comes: your permissions do not allow it", &owner).await;
        end(&owner, &job, &alloc, &long()).await;
    };
    let line = ["logs", "-f", &id(1)];
    let (result, ()) = tokio::join!(print(&world, &line, &out, &err), happens);
    assert_eq!((result.unwrap(), out.text()), (Outcome::Code(MISSING), String::new()));
    assert!(err.text().contains("prints the last 8192 bytes of it"), "{}", err.text());
}

#[tokio::test]
async fn a_run_prints_lines_as_they_come_and_ends_as_its_command() {
    let world = World::with_policy().await;
    let record = world.put_node(&fixtures::ready(0)).await;
    let (out, err, node) = (Printed::default(), Printed::default(), FakeNode::new(&world, "one\n"));
    let happens = async {
        let job = loop {
            if let Some(job) = world.store().jobs().await.unwrap().pop() {
                break job;
            }
        };
        let alloc_id = AllocId { job_id: job.summary.job_id, member: 0, copy: 0 };
        let alloc = Alloc::place(alloc_id, &job, &record, at(1000)).unwrap();
        let alloc = world.store().write(None, &alloc, Vec::new()).await.unwrap();
        let placed = job.with_placed(&[alloc.id()]).unwrap();
        let placed = world.store().write(Some(&job), &placed, Vec::new()).await.unwrap();
        out.until("one\n", &world).await;
        node.prints(&long());
        *node.ended.lock().unwrap() = true;
        end(&world, &placed, &alloc, &long()).await;
    };
    let line = ["run", "--quiet", "--", "work"];
    let (result, ()) = node.answering(async { tokio::join!(print(&world, &line, &out, &err), happens) }).await;
    assert_eq!((result.unwrap(), err.text().as_str()), (Outcome::Done, ""));
    assert!(out.text() == format!("one\n{}", long()), "{}", out.text().len());
    assert_eq!(readers(&world).await, 0);
}

/// A run whose alloc is placed on the node, and ends as `ends` does: its exit code and what it printed on both streams.
async fn run_of(
    node: &FakeNode,
    world: &World,
    ends: impl AsyncFnOnce(&Job, &Alloc, &Printed),
) -> (u8, String, String) {
    let record = world.put_node(&fixtures::ready(0)).await;
    let (out, err) = (Printed::default(), Printed::default());
    let happens = async {
        let job = loop {
            if let Some(job) = world.store().jobs().await.unwrap().pop() {
                break job;
            }
        };
        let alloc_id = AllocId { job_id: job.summary.job_id, member: 0, copy: 0 };
        let alloc = Alloc::place(alloc_id, &job, &record, at(1000)).unwrap();
        let alloc = world.store().write(None, &alloc, Vec::new()).await.unwrap();
        let placed = job.with_placed(&[alloc.id()]).unwrap();
        let placed = world.store().write(Some(&job), &placed, Vec::new()).await.unwrap();
        ends(&placed, &alloc, &out).await;
    };
    let line = ["run", "--quiet", "--", "work"];
    let (result, ()) = node.answering(async { tokio::join!(print(world, &line, &out, &err), happens) }).await;
    let code = match result.unwrap() {
        Outcome::Code(code) => code,
        outcome => u8::from(outcome == Outcome::Failed),
    };
    (code, out.text(), err.text())
}

#[tokio::test]
async fn a_run_whose_output_breaks_off_prints_nothing_behind_the_gap_and_has_a_code_of_its_own() {
    let mut world = World::with_policy().await;
    world.tick = Span::from_s(4);
    // The node sends only this part, and the row has only the end.
    let node = FakeNode::new(&world, &long()[..30_000]);
    let (code, out, err) = run_of(&node, &world, async |job, alloc, out| {
        out.until("line 2000\n", &world).await;
        end(&world, job, alloc, &long()).await;
    })
    .await;
    assert_eq!(code, MISSING, "{err}");
    assert!(out == long()[..30_000], "{} bytes", out.len());
    assert!(err.contains("after byte 30000 is missing: "), "{err}");
}

#[tokio::test]
async fn the_streams_of_a_run_stay_apart_and_logs_prints_both_or_one() {
    let world = World::with_policy().await;
    let text = "out 1\nerr 1\nerr 2\nout 2\n";
    let switches = Switches::new(vec![6, 18]);
    // The output is longer than the row has, and pieces end within each stream.
    let rest = "more\n".repeat(1800);
    let all = text.to_owned() + &rest;
    let node = FakeNode { switches: switches.clone(), most: 10, ..FakeNode::new(&world, &all) };
    let (code, out, err) = run_of(&node, &world, async |job, alloc, _| {
        *node.ended.lock().unwrap() = true;
        end(&world, job, alloc, &all).await;
    })
    .await;
    assert_eq!((code, err.as_str()), (0, "err 1\nerr 2\n"));
    assert!(out == format!("out 1\nout 2\n{rest}"), "{}", out.len());
    // The row has a short output whole.
    let (world, alloc) = ended(text).await;
    let row = world.store().alloc(alloc.id()).await.unwrap().unwrap();
    world.store().write(Some(&row), &Alloc { tail_switches: switches, ..row.clone() }, Vec::new()).await.unwrap();
    for (options, expected) in [
        (&[][..], text),
        (&["--stderr"], "err 1\nerr 2\n"),
        (&["--stdout"], "out 1\nout 2\n"),
        (&["--stderr", "-n", "1"], "err 2\n"),
        (&["-n", "2"], "err 2\nout 2\n"),
    ] {
        let said = world.run(&[&["logs", &id(1)][..], options].concat()).await;
        assert_eq!(said.out, expected, "{options:?}");
    }
}

#[tokio::test]
async fn logs_of_nothing_say_why() {
    let world = World::with_policy().await;
    world.put_job(1).await;
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out.is_empty() && said.err.contains("nothing has run yet"), "{}", said.err);
    let (world, _) = ended("x").await;
    let error = world.run(&["logs", &id(1), "--member", "7"]).await.error();
    assert!(error.contains("no alloc of the job has the member 7"), "{error}");
    assert_eq!(parse(&["logs", "x", "--json", "-f"]).unwrap_err().exit_code(), 2);
}

#[tokio::test]
async fn logs_says_how_an_element_ended_whose_part_of_the_output_is_not_known() {
    let world = World::with_policy().await;
    let job = world.put_job(3).await;
    let pack = Pack { elements: "0-9".parse().unwrap(), at_once: 3 };
    let work = Work { pack: Some(pack), ..job.work.clone() };
    let job = world.store().write(Some(&job), &Job { work, ..job.clone() }, Vec::new()).await.unwrap();
    let alloc = Alloc::place(fixtures::alloc_id(3), &job, &fixtures::ready(0), at(100)).unwrap();
    let placed = job.with_placed(&[alloc.id()]).unwrap();
    world.store().write(Some(&job), &placed, Vec::new()).await.unwrap();
    let mut elements = Told::default();
    elements.results.add("signal:9".parse().unwrap(), &"5-6".parse().unwrap());
    let alloc = Alloc { elements, ..alloc.end(&Ending::lost("gone"), Span::from_s(9), at(200)) };
    world.store().write(None, &alloc, Vec::new()).await.unwrap();
    let id = job.summary.job_id.to_string();
    for (element, says) in [
        ("5", "element 5 ended with signal:9, and which part of the output is its own is not known"),
        ("7", "nothing is known of element 7 yet"),
        ("10", "has the element 10"),
    ] {
        let error = world.run(&["logs", &id, "--element", element]).await.error();
        assert!(error.contains(says), "{error}");
    }
}
