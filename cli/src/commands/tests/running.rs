//! `run`, and `submit --wait`.

use super::*;
use crate::commands::submit::run::{Heard, run_with};
use model::{AllocId, EndCause, JobSet};
use tokio::sync::mpsc::unbounded_channel;

/// Runs a `run` command with these events of the person, while `happens` changes the world.
async fn ran(world: &World, line: &[&str], says: Vec<Heard>, happens: impl Future<Output = ()>) -> Said {
    let cluster = world.cluster.clone();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut context = Context {
        colours: false,
        err_screen: Screen::Pipe,
        in_screen: Screen::Pipe,
        screen: world.screen,
        connect: Box::new(move || {
            let cluster = cluster.clone();
            Box::pin(async move { Ok(cluster) })
        }),
        clock: Arc::new(|| at(1000)),
        input: &mut &b""[..],
        out: &mut out,
        err: &mut err,
    };
    let Command::Run(args) = parse(line).unwrap() else { panic!("{line:?}") };
    let (hear, heard) = unbounded_channel();
    says.into_iter().for_each(|what| hear.send(what).unwrap());
    let (result, ()) = tokio::join!(run_with(&mut context, &args, heard), happens);
    Said { result, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

/// Waits for the only live job, places it, and ends its alloc with this cause and output.
async fn end_as(world: &World, cause: EndCause, printed: &str) {
    let job = loop {
        let mut jobs = world.store().jobs().await.unwrap();
        jobs.retain(|job| !job.summary.state.is_ended());
        match jobs.pop() {
            Some(job) => break job,
            None => tokio::task::yield_now().await,
        }
    };
    let id = AllocId { job_id: job.summary.job_id, member: 0, copy: 0 };
    let alloc = Alloc::place(id, &job, &fixtures::ready(0), at(1000)).unwrap();
    let alloc = world.store().write(None, &alloc, Vec::new()).await.unwrap();
    let placed = world.store().write(Some(&job), &job.with_placed(&[id]).unwrap(), Vec::new()).await.unwrap();
    let log_tail = Some(printed.to_owned()).filter(|t| !t.is_empty());
    let ending = model::Ending {
        run: model::RunReport { log_tail, ..model::RunReport::default() },
        ..model::Ending::new(cause)
    };
    world.store().write(Some(&alloc), &alloc.end(&ending, Span::from_s(9), at(1001)), Vec::new()).await.unwrap();
    let after = placed.after_end(&alloc.summary, &ending, &[], JobSet::Leaves, Span::from_s(9).into(), at(1001));
    world.store().write(Some(&placed), &after, Vec::new()).await.unwrap();
}

#[tokio::test]
async fn a_run_prints_the_output_and_ends_as_its_command() {
    let world = World::with_policy().await;
    let ends = end_as(&world, EndCause::Exited { code: 0 }, "one\ntwo\n");
    let said = ran(&world, &["run", "--name", "x", "--", "work"], Vec::new(), ends).await;
    assert_eq!((said.result.unwrap(), said.out.as_str()), (Exit::Done, "one\ntwo\n"));
    assert!(said.err.contains(" is submitted (01") && said.err.ends_with(" complete\n"), "{}", said.err);
    for (cause, outcome) in [
        (EndCause::Exited { code: 3 }, 3),
        (EndCause::Exited { code: -1 }, 125),
        (EndCause::Signalled { signal: 9 }, 137),
        (EndCause::OverTime { limit_s: 2 }, 124),
        (EndCause::OverMemory { allowed_mib: 64, used_mib: None }, 137),
        (EndCause::NotFound { program: "work".into() }, 127),
        (EndCause::Rejected { why: "the job names no image".into() }, 125),
    ] {
        let words = cause.to_string();
        let ends = end_as(&world, cause, "");
        let said = ran(&world, &["run", "--quiet", "--", "work"], Vec::new(), ends).await;
        assert_eq!((said.result.unwrap(), said.out.as_str()), (Exit::Code(outcome), ""));
        assert!(
            said.err.lines().count() == 1 && said.err.contains(&format!(" failed: {words}; no retry")),
            "{}",
            said.err
        );
    }
    let job = &world.store().jobs().await.unwrap()[0];
    assert_eq!(job.work.command, ["work"]);
}

#[tokio::test]
async fn a_run_says_why_its_job_waits_and_a_yes_cancels_it() {
    let world = World::with_policy().await;
    let says = vec![Heard::Interrupt, Heard::Line("y\n".into())];
    let said = ran(&world, &["run", "--", "work"], says, async {}).await;
    assert_eq!((said.result.unwrap(), said.out.as_str()), (Exit::Code(130), ""));
    assert!(said.err.contains(" waits: this run launches for it: slot 0\n"), "{}", said.err);
    assert!(said.err.contains("Cancel the job? [y/N]") && said.err.ends_with(" cancelled: cancelled by ann\n"));
    assert_eq!(world.store().jobs().await.unwrap()[0].summary.state, JobState::Cancelled);
}

#[tokio::test]
async fn a_no_lets_the_job_go_on_and_a_second_interrupt_leaves_it() {
    let world = World::with_policy().await;
    let says = vec![Heard::Interrupt, Heard::Line("\n".into()), Heard::Interrupt, Heard::Interrupt];
    let said = ran(&world, &["run", "--", "work"], says, async {}).await;
    assert_eq!(said.result.unwrap(), Exit::Code(130));
    assert_eq!(said.err.matches("Cancel the job?").count(), 2, "{}", said.err);
    assert_eq!(said.err.matches(" goes on").count(), 4, "told twice, and in both questions: {}", said.err);
    assert_eq!(world.store().jobs().await.unwrap()[0].summary.state, JobState::Queued);
}

#[tokio::test]
async fn a_run_that_is_ended_leaves_its_job_or_cancels_it_as_its_option_says() {
    let nobody_answers = || vec![Heard::Interrupt, Heard::Line(String::new())];
    for (cancels, says, state) in [
        (false, vec![Heard::Terminated], JobState::Queued),
        (false, nobody_answers(), JobState::Queued),
        (true, vec![Heard::Terminated], JobState::Cancelled),
        (true, vec![Heard::Interrupt], JobState::Cancelled),
    ] {
        let world = World::with_policy().await;
        let option = if cancels { "--cancel-on-exit" } else { "--quiet" };
        let said = ran(&world, &["run", option, "--", "work"], says, async {}).await;
        assert_eq!(said.result.unwrap(), Exit::Code(130));
        assert_eq!(said.err.contains("goes on: `nodekeeper cancel"), !cancels, "{}", said.err);
        assert_eq!(world.store().jobs().await.unwrap()[0].summary.state, state);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_does_not_answer_is_not_the_end_of_a_job() {
    let away = || DbError::Unreachable { operation: "BatchGetItem", detail: "no route".to_owned() };
    let (code, message) = ("AccessDeniedException", "x is not authorized");
    let denied = || DbError::Refused { operation: "BatchGetItem", code: code.to_owned(), message: message.to_owned() };
    for (errors, exit) in [((0..60).map(|_| away()).collect::<Vec<_>>(), 3), ((0..60).map(|_| denied()).collect(), 69)]
    {
        let world = World::with_policy().await;
        let (db, mut person) = (Arc::new(Watched::new(world.cluster.dynamo.clone())), world.clone());
        person.cluster.store = Store::new(Arc::clone(&db) as Arc<dyn Db>);
        let happens = async {
            while world.store().jobs().await.unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            db.read_errors.lock().unwrap().extend(errors);
            end_as(&world, EndCause::Exited { code: 3 }, "").await;
        };
        let said = ran(&person, &["run", "--", "work"], Vec::new(), happens).await;
        assert_eq!(said.result.unwrap(), Exit::Code(exit), "{}", said.err);
    }
}

#[tokio::test]
async fn an_input_is_passed_on_with_the_job_or_refused() {
    let world = World::with_policy().await;
    world.run_with(&["submit", "--stdin", "--", "bash"], "exit 4\n").await.result.unwrap();
    let job = &world.store().jobs().await.unwrap()[0];
    assert_eq!(job.env.get(model::INPUT_VARIABLE).map(String::as_str), Some("ZXhpdCA0Cg=="));
    let error = world.run_with(&["submit", "--stdin", "--", "bash"], &"x".repeat(11_265)).await.error();
    assert!(error.contains("standard input has more than 11264 bytes"), "{error}");
    assert_eq!(world.store().jobs().await.unwrap().len(), 1);
    assert!(world.run_with(&["submit", "--stdin", "--", "cat"], &"x".repeat(11_264)).await.result.is_ok());
}

#[tokio::test]
async fn a_bad_run_submits_nothing() {
    let world = World::new().await;
    let said = ran(&world, &["run", "--nodes", "999", "--", "work"], Vec::new(), async {}).await;
    assert!(said.result.unwrap_err().is::<UsageError>());
    assert!(world.rows().await.is_empty());
    assert_eq!(parse(&["run"]).unwrap_err().exit_code(), 2);
}

#[tokio::test]
async fn a_wait_shows_the_end_of_the_output() {
    let world = World::with_policy().await;
    let ends = end_as(&world, EndCause::Exited { code: 0 }, "done\n");
    let (said, ()) = tokio::join!(world.run(&["submit", "--wait", "--", "work"]), ends);
    assert_eq!(said.result.unwrap(), Exit::Done);
    assert!(said.out.ends_with(" complete\ndone\n") && said.err.contains("== "), "{} {}", said.out, said.err);
}
