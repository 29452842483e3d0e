//! `logs`, and the output of `run`: from S3, from the row of the alloc, or missing.

use super::output_store::{FakeS3, KEY};
use super::*;
use crate::commands::output::output_stream::MISSING;
use crate::commands::submit::run::run_with;
use model::stored::{END, MORE};
use model::wire::MAX_LOG_TAIL_BYTES;
use model::{AllocId, ElementReport, JobSet, Pack, Switches, Work};
use std::io::Write;
use tokio::sync::mpsc::unbounded_channel;

/// The node of slot 0. It stores its output while somebody follows it, and when its alloc has ended.
pub(super) struct FakeNode {
    store: Store,
    s3: FakeS3,
    output: Mutex<String>,
    ended: Mutex<bool>,
    /// How many bytes it stores at a time.
    most: usize,
    /// The bytes at which the stream changes.
    switches: Switches,
}

impl FakeNode {
    pub(super) fn new(world: &World, s3: &FakeS3, output: &str) -> Self {
        let (output, ended) = (Mutex::new(output.to_owned()), Mutex::new(false));
        let (store, s3) = (world.store().clone(), s3.clone());
        Self { store, s3, output, ended, most: 50_000, switches: Switches::default() }
    }

    fn prints(&self, more: &str) {
        self.output.lock().unwrap().push_str(more);
    }

    /// Works as a node does while `what` runs.
    pub(super) async fn answering<T>(&self, what: impl Future<Output = T>) -> T {
        tokio::select! {
            said = what => said,
            never = self.work() => never,
        }
    }

    async fn work<T>(&self) -> T {
        let (mut stored, mut is_stored, mut has_beaten) = (0, false, false);
        loop {
            tokio::task::yield_now().await;
            let record = self.store.node(fixtures::slot(0)).await.unwrap();
            let is_followed = record.as_ref().and_then(NodeRecord::life).is_some_and(|life| !life.follows.is_empty());
            let (output, ended) = (self.output.lock().unwrap().clone(), *self.ended.lock().unwrap());
            if is_stored || !(ended || is_followed) {
                continue;
            }
            stored = output.len().min(stored + self.most);
            is_stored = ended && stored == output.len();
            if !self.switches.is_empty() {
                self.s3.put_switches(&serde_json::to_string(&self.switches).unwrap());
            }
            self.s3.put(KEY, &output.as_bytes()[..stored], if is_stored { END } else { MORE });
            if let (Some(before), false, true) = (record, has_beaten, stored == output.len()) {
                let mut after = before.clone();
                if let model::NodeState::InUse(node) = &mut after.state {
                    node.contact.last_ping_at = node.contact.last_ping_at + Span::from_s(1);
                }
                // A follower may write the record at the same time.
                has_beaten = self.store.write(Some(&before), &after, Vec::new()).await.is_ok();
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
async fn print(world: &World, line: &[&str], out: &Printed, err: &Printed) -> anyhow::Result<Exit> {
    let (cluster, clock) = (world.cluster.clone(), world.clock());
    let (mut out, mut err) = (out.clone(), err.clone());
    let mut context = Context {
        screen: world.screen,
        colours: false,
        err_screen: Screen::Pipe,
        in_screen: Screen::Pipe,
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
    let ending =
        Ending { run: RunReport { log_tail: Some(tail_of(output)), ..RunReport::default() }, ..Ending::exited(0) };
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

/// A world with a job on slot 0 whose output its node stores in S3.
async fn running() -> (World, FakeS3, Job, Alloc) {
    let (mut world, s3) = (World::with_policy().await, FakeS3::default());
    world.cluster.outputs = s3.serve().await;
    world.tick = Span::from_s(1);
    let (job, alloc) = world.put_running(1).await;
    let stored = stored_in_s3(&alloc);
    let alloc = world.store().write(Some(&alloc), &stored, Vec::new()).await.unwrap();
    (world, s3, job, alloc)
}

pub(super) fn stored_in_s3(alloc: &Alloc) -> Alloc {
    Alloc { output_s3: Some(format!("s3://logs/{KEY}").parse().unwrap()), ..alloc.clone() }
}

pub(super) fn long() -> String {
    (0..20_000).map(|n| format!("line {n}\n")).collect()
}

#[tokio::test]
async fn a_short_output_stands_in_the_row_and_needs_no_node() {
    let (world, _) = ended("one\ntwo\nthree\n").await;
    let (said, changed) = world.changes(&["logs", &id(1), "-n", "2"]).await;
    assert_eq!((said.out.as_str(), changed), ("two\nthree\n", Vec::new()));
    // A row is not taken as whole if its text had to be replaced in part, or if its end was cut for a report of many allocs.
    for cut in ["a\u{fffd}b", "…end\n"] {
        let (world, _) = ended(cut).await;
        let said = world.run(&["logs", &id(1)]).await;
        assert_eq!((said.result.unwrap(), said.out.as_str()), (Exit::Code(MISSING), cut));
    }
}

/// A line may be longer than what is read for the last lines.
#[tokio::test]
async fn last_lines_of_which_the_first_began_before_what_is_read_are_no_success() {
    let (world, s3, job, alloc) = running().await;
    let output = format!("one\n{}\nend\n", "x".repeat(2 * model::stored::PIECE_BYTES as usize));
    s3.put(KEY, output.as_bytes(), END);
    end(&world, &job, &alloc, &output).await;
    let last = async |lines: &str, more: &[&str]| {
        let said = world.run(&[&["logs", &id(1), "--tail", lines], more].concat()).await;
        (said.result.unwrap(), said.out.len(), said.err.contains("the first line began before what is read"))
    };
    assert_eq!(last("1", &[]).await, (Exit::Done, 4, false));
    let (exit, bytes, is_said) = last("2", &[]).await;
    assert!(exit == Exit::Code(MISSING) && bytes < output.len() - 4 && is_said);
    assert_eq!(last("2", &["--stdout"]).await, (Exit::Done, output.len() - 4, false));
}

/// JSON has texts only.
#[tokio::test]
async fn a_program_gets_bytes_that_are_no_text_as_they_are() {
    let (world, s3, job, alloc) = running().await;
    s3.put(KEY, b"a\xff\n", END);
    end(&world, &job, &alloc, "a\u{fffd}\n").await;
    let logs = format!(r#"{{"id": 1, "logs": "{}"}}"#, id(1));
    let answer = super::bulk::answers(&world, &[&logs]).await.remove(0);
    assert_eq!((&answer["stdout"], &answer["stdout_base64"]), (&"a\u{fffd}\n".into(), &"Yf8K".into()));
    assert_eq!((&answer["stderr"], answer.get("stderr_base64"), &answer["missing"]), (&"".into(), None, &false.into()));
}

#[tokio::test]
async fn a_running_job_shows_what_there_is_now() {
    let (world, s3, ..) = running().await;
    let said = FakeNode::new(&world, &s3, &long()).answering(world.run(&["logs", &id(1)])).await;
    assert!(said.out == long() && said.result.unwrap() == Exit::Done, "{}", said.err);
    let (world, s3, ..) = running().await;
    let node = FakeNode::new(&world, &s3, &long());
    let last = node.answering(world.run(&["logs", &id(1), "--tail", "2"])).await;
    assert_eq!(last.out, "line 19998\nline 19999\n", "{}", last.err);
    let (world, s3, ..) = running().await;
    let said = FakeNode::new(&world, &s3, "").answering(world.run(&["logs", &id(1)])).await;
    assert_eq!((said.result.unwrap(), said.out.as_str()), (Exit::Done, ""), "it has printed nothing: {}", said.err);
}

#[tokio::test]
async fn a_follower_gets_lines_as_they_come_and_all_of_them() {
    let (world, s3, job, alloc) = running().await;
    let (out, err, node) = (Printed::default(), Printed::default(), FakeNode::new(&world, &s3, "one\n"));
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
    assert_eq!(result.unwrap(), Exit::Done, "{}", err.text());
    assert!(out.text() == format!("one\n{}end\n", long()), "{}", err.text());
    assert!(err.text().ends_with(" complete\n"), "{}", err.text());
}

#[tokio::test]
async fn the_follow_of_somebody_whose_clock_is_slow_counts_for_the_functions() {
    let (world, _, job, alloc) = running().await;
    let before = world.store().node(fixtures::slot(0)).await.unwrap().unwrap();
    let mut after = before.clone();
    let heard_at = at(1000 + 600);
    if let model::NodeState::InUse(node) = &mut after.state {
        (node.contact.last_ping_at, node.contact.lease_expires_at) = (heard_at, heard_at + Span::from_s(90));
    }
    world.store().write(Some(&before), &after, Vec::new()).await.unwrap();
    let (out, err) = (Printed::default(), Printed::default());
    let happens = async {
        let until_at = loop {
            let record = world.store().node(fixtures::slot(0)).await.unwrap().unwrap();
            if let Some(until_at) = record.life().unwrap().follows.get(&alloc.id()) {
                break *until_at;
            }
        };
        assert!(until_at > heard_at);
        end(&world, &job, &alloc, "one\n").await;
    };
    let line = ["logs", "-f", &id(1)];
    let (result, ()) = tokio::join!(print(&world, &line, &out, &err), happens);
    assert_eq!(result.unwrap(), Exit::Done, "{}", err.text());
}

#[tokio::test]
async fn the_row_completes_a_short_output_whose_node_stores_no_more() {
    let (world, s3, job, alloc) = running().await;
    let (out, err, node) = (Printed::default(), Printed::default(), FakeNode::new(&world, &s3, "one\n"));
    let happens = async {
        out.until("one\n", &world).await;
        end(&world, &job, &alloc, "one\ntwo\n").await;
    };
    let line = ["logs", "-f", &id(1)];
    let (result, ()) = node.answering(async { tokio::join!(print(&world, &line, &out, &err), happens) }).await;
    assert_eq!((result.unwrap(), out.text().as_str()), (Exit::Done, "one\ntwo\n"), "{}", err.text());
}

/// Waits until the reader has asked S3 this often.
async fn polls(s3: &FakeS3, many: usize) {
    let mut asked = 0;
    while asked < many {
        tokio::task::yield_now().await;
        asked += s3.asked().iter().filter(|call| call.starts_with("HEAD")).count();
    }
}

/// The command printed nothing for long before its end, and its node stores the rest a moment after that.
#[tokio::test]
async fn the_rest_of_an_ended_alloc_is_waited_for() {
    let (mut world, s3, job, alloc) = running().await;
    world.tick = Span::from_s(4);
    s3.put(KEY, &long().as_bytes()[..30_000], MORE);
    let (out, err) = (Printed::default(), Printed::default());
    let happens = async {
        out.until("line 2000\n", &world).await;
        polls(&s3, 6).await;
        end(&world, &job, &alloc, &long()).await;
        polls(&s3, 4).await;
        s3.put(KEY, long().as_bytes(), END);
    };
    let line = ["logs", "-f", &id(1)];
    let (result, ()) = tokio::join!(print(&world, &line, &out, &err), happens);
    assert!(out.text() == long() && result.unwrap() == Exit::Done, "{}", err.text());
}

#[tokio::test]
async fn without_a_place_in_s3_the_end_of_the_output_is_printed_and_a_note() {
    let (world, _) = ended(&long()).await;
    let said = world.run(&["logs", &id(1)]).await;
    assert_eq!((said.result.unwrap(), said.out), (Exit::Code(MISSING), tail_of(&long())));
    for text in ["is missing: the policy named no place in S3", "the last 8192 bytes of the output"] {
        assert!(said.err.contains(text), "{}", said.err);
    }
    // The row has all of the last lines.
    let said = world.run(&["logs", &id(1), "--tail", "2"]).await;
    assert_eq!((said.result.unwrap(), said.out.as_str()), (Exit::Done, "line 19998\nline 19999\n"));
    // Somebody who follows the output never gets only its end.
    let said = world.run(&["logs", "--follow", &id(1)]).await;
    assert_eq!((said.result.unwrap(), said.out.as_str()), (Exit::Code(MISSING), ""));
    assert!(said.err.contains("prints the last 8192 bytes of it"), "{}", said.err);
}

#[tokio::test]
async fn a_node_that_does_not_answer_is_not_waited_for_long() {
    let (mut world, s3, ..) = running().await;
    world.tick = Span::from_s(60);
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.out.is_empty() && said.err.contains("reports the end when it has ended"), "{}", said.err);
    // What it stored before is printed.
    s3.put(KEY, b"one\n", MORE);
    let said = world.run(&["logs", &id(1)]).await;
    assert_eq!((said.result.unwrap(), said.out.as_str()), (Exit::Code(MISSING), "one\n"));
    assert!(
        said.err.contains("after byte 4 is missing: node ") && said.err.contains(" does not answer"),
        "{}",
        said.err
    );
}

#[tokio::test]
async fn somebody_who_may_only_read_gets_the_end_of_the_output_and_a_note() {
    let (mut world, s3, job, alloc) = running().await;
    s3.0.lock().unwrap().denies = true;
    let owner = world.clone();
    world.cluster.store = Watched::denying(world.cluster.dynamo.clone(), Table::Nodes);
    let said = world.run(&["logs", &id(1)]).await;
    assert!(said.err.contains("is not stored as it comes: your permissions do not allow it"), "{}", said.err);
    assert!(said.err.contains("reports the end when it has ended"), "{}", said.err);
    let (out, err) = (Printed::default(), Printed::default());
    let happens = async {
        err.until("is not stored as it comes: your permissions do not allow it", &owner).await;
        end(&owner, &job, &alloc, &long()).await;
    };
    let line = ["logs", "-f", &id(1)];
    let (result, ()) = tokio::join!(print(&world, &line, &out, &err), happens);
    assert_eq!((result.unwrap(), out.text()), (Exit::Code(MISSING), String::new()));
    assert!(err.text().contains("prints the last 8192 bytes of it"), "{}", err.text());
    let said = world.run(&["logs", &id(1)]).await;
    assert_eq!((said.result.unwrap(), said.out), (Exit::Code(MISSING), tail_of(&long())));
    assert!(said.err.contains("your permissions do not allow it (s3:GetObject"), "{}", said.err);
}

/// A run whose alloc is placed on the node, and ends as `ends` does: its exit code and what it printed on both streams.
async fn run_of(
    node: &FakeNode,
    world: &World,
    ends: impl AsyncFnOnce(&Job, &Alloc, &Printed),
) -> (u8, String, String) {
    let (out, err) = (Printed::default(), Printed::default());
    let happens = async {
        let job = loop {
            if let Some(job) = world.store().jobs().await.unwrap().pop() {
                break job;
            }
        };
        let alloc_id = AllocId { job_id: job.summary.job_id, member: 0, copy: 0 };
        let record = world.put_node(&fixtures::ready(0).with_alloc(alloc_id, at(1000)).unwrap()).await;
        let alloc = stored_in_s3(&Alloc::place(alloc_id, &job, &record, at(1000)).unwrap());
        let alloc = world.store().write(None, &alloc, Vec::new()).await.unwrap();
        let placed = job.with_placed(&[alloc.id()]).unwrap();
        let placed = world.store().write(Some(&job), &placed, Vec::new()).await.unwrap();
        ends(&placed, &alloc, &out).await;
    };
    let line = ["run", "--quiet", "--", "work"];
    let (result, ()) = node.answering(async { tokio::join!(print(world, &line, &out, &err), happens) }).await;
    let code = match result.unwrap() {
        Exit::Code(code) => code,
        outcome => u8::from(outcome == Exit::Failed),
    };
    (code, out.text(), err.text())
}

/// A world without a node, and S3.
async fn with_s3(tick: Span) -> (World, FakeS3) {
    let (world, s3) = (World::with_policy().await, FakeS3::default());
    let outputs = s3.serve().await;
    let cluster = Cluster { outputs, ..world.cluster.clone() };
    (World { cluster, tick, ..world }, s3)
}

#[tokio::test]
async fn a_run_prints_lines_as_they_come_and_ends_as_its_command() {
    let (world, s3) = with_s3(Span::from_s(1)).await;
    let node = FakeNode::new(&world, &s3, "one\n");
    let (code, out, err) = run_of(&node, &world, async |job, alloc, out| {
        out.until("one\n", &world).await;
        node.prints(&long());
        *node.ended.lock().unwrap() = true;
        end(&world, job, alloc, &long()).await;
    })
    .await;
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out == format!("one\n{}", long()), "{}", out.len());
}

#[tokio::test]
async fn a_run_whose_output_breaks_off_prints_nothing_behind_the_gap_and_has_a_code_of_its_own() {
    let (world, s3) = with_s3(Span::from_s(4)).await;
    // The node stores only this part, and the row has only the end.
    let node = FakeNode::new(&world, &s3, &long()[..30_000]);
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
    let (world, s3) = with_s3(Span::from_s(1)).await;
    let text = "out 1\nerr 1\nerr 2\nout 2\n";
    let switches = Switches::new(vec![6, 18]);
    // The output is longer than the row has, and what is stored at first ends within a stream.
    let rest = "more\n".repeat(1800);
    let all = text.to_owned() + &rest;
    let node = FakeNode { switches: switches.clone(), ..FakeNode::new(&world, &s3, &all[..14]) };
    let (code, out, err) = run_of(&node, &world, async |job, alloc, out| {
        out.until("out 1\n", &world).await;
        node.prints(&all[14..]);
        *node.ended.lock().unwrap() = true;
        end(&world, job, alloc, &all).await;
    })
    .await;
    assert_eq!((code, err.as_str()), (0, "err 1\nerr 2\n"));
    assert!(out == format!("out 1\nout 2\n{rest}"), "{}", out.len());
    // The row has a short output whole.
    let (world, alloc) = ended(text).await;
    let row = world.store().alloc(alloc.id()).await.unwrap().unwrap();
    let mut switched = row.clone();
    switched.run.tail_switches = switches;
    world.store().write(Some(&row), &switched, Vec::new()).await.unwrap();
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
}

#[tokio::test]
async fn logs_says_how_an_element_ended_whose_part_of_the_output_is_not_known() {
    let world = World::with_policy().await;
    let job = world.put_job(3).await;
    let pack = Pack { at_once: 3, ..Pack::of("0-9".parse().unwrap()) };
    let work = Work { pack: Some(pack), ..job.work.clone() };
    let job = world.store().write(Some(&job), &Job { work, ..job.clone() }, Vec::new()).await.unwrap();
    let alloc = Alloc::place(fixtures::alloc_id(3), &job, &fixtures::ready(0), at(100)).unwrap();
    let placed = job.with_placed(&[alloc.id()]).unwrap();
    world.store().write(Some(&job), &placed, Vec::new()).await.unwrap();
    let mut elements = ElementReport::default();
    elements.results.add("signal:9".parse().unwrap(), &"5-6".parse().unwrap());
    let mut alloc = alloc.end(&Ending::lost("gone"), Span::from_s(9), at(200));
    alloc.run.elements = elements;
    world.store().write(None, &alloc, Vec::new()).await.unwrap();
    let id = job.summary.job_id.to_string();
    for (element, says) in [
        ("5", "element 5 ended with signal:9, and which part of the output is its own is not known"),
        ("7", "nothing is known of element 7 yet"),
        ("10", "no stored job with the number 10"),
    ] {
        let error = world.run(&["logs", &format!("{id}[{element}]")]).await.error();
        assert!(error.contains(says), "{error}");
    }
    let several = world.run(&["logs", &format!("{id}[5-7]")]).await;
    assert!(several.err.contains("element 5 ended") && several.err.contains("of element 7"), "{}", several.err);
    assert_eq!(several.result.unwrap(), Exit::Code(74));
}
