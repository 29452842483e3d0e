//! Each command treats the elements of an array alike, whether each element is a job or a pack has many: `NAME[3-4]`, `rerun`, followers.

use crate::commands::tests::*;
use futures::future::join_all;
use model::elements::{ElementCounts, Results};
use model::{Array, JobState, Outcome, Pack, Ranges};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The options that make an array of six elements: each a job, or in packs of three.
const KINDS: [&[&str]; 2] = [&["--count", "6"], &["--count", "6", "--pack", "3"]];

impl World {
    /// The new jobs of a command that prints their ids. They are newer than all that is there.
    async fn made(&mut self, line: &[&str]) -> Vec<Job> {
        self.now = self.now + Span::from_s(1);
        let said = self.run(line).await;
        assert_eq!(said.result.unwrap(), Exit::Done, "{line:?}: {}", said.err);
        let ids: Vec<JobId> = said.out.lines().map(|line| line.parse().unwrap()).collect();
        self.store().jobs_of(ids).await.unwrap().all().unwrap()
    }

    /// An array whose element 4 failed. All others are complete.
    async fn with_array(&mut self, kind: &[&str]) -> Vec<Job> {
        let line: Vec<&str> = ["submit", "--name", "a"].iter().chain(kind).chain(&["--", "work"]).copied().collect();
        let jobs = self.made(&line).await;
        self.end(&jobs, "4").await;
        jobs
    }

    /// Ends these jobs. These of their elements failed.
    async fn end(&self, jobs: &[Job], failed: &str) {
        for before in jobs {
            let (mut after, all) = (before.clone(), elements(before));
            let failed = all.within(&failed.parse().unwrap_or_default());
            let mut results = Results::default();
            results.add(Outcome::SUCCESS, &all.without(&failed));
            results.add(Outcome::Exit(1), &failed);
            after.summary.state = if failed.is_empty() { JobState::Complete } else { JobState::Failed };
            after.summary.tries.cause = results.cause(&Pack::of(all.clone()));
            if before.work.pack.is_some() {
                after.summary.tries.elements = Some(ElementCounts::of(&all, &results));
                after.elements.results = results;
            }
            after.finished_at = Some(self.now);
            self.store().write(Some(before), &after, Vec::new()).await.unwrap();
        }
    }
}

/// The numbers of a job in its array.
fn elements(job: &Job) -> Ranges {
    match &job.work.pack {
        Some(pack) => pack.elements.clone(),
        None => [Array::number(job.summary.job_id)].into_iter().collect(),
    }
}

fn all_elements(jobs: &[Job]) -> String {
    let mut all = Ranges::default();
    jobs.iter().for_each(|job| all.extend(&elements(job)));
    all.to_string()
}

/// The elements in each state, as `job` shows them.
async fn states(world: &World, name: &str) -> Value {
    world.run(&["job", name, "--json"]).await.json()["states"].clone()
}

#[tokio::test]
async fn rerun_runs_exactly_the_elements_that_are_meant() {
    for kind in KINDS {
        // By the name, and by the id of a job of the array.
        for (name, options, again) in [
            ("a", &["--failed"][..], "4"),
            ("a", &[], "0-5"),
            ("a[*]", &[], "0-5"),
            ("a[3]", &[], "3"),
            ("a[0]", &[], "0"),
            ("a[3-4]", &[], "3-4"),
            ("a[1,5]", &[], "1,5"),
            ("a[2-4]", &["--failed"], "4"),
            ("a[3]", &["--failed"], ""),
            ("ID[*]", &["--failed"], "4"),
            ("ID[3-4]", &[], "3-4"),
        ] {
            let mut world = World::with_policy().await;
            let id = world.with_array(kind).await[0].summary.job_id.to_string();
            let name = name.replace("ID", &id);
            let line: Vec<&str> = ["rerun", &name, "--key", "k"].iter().chain(options).copied().collect();
            if again.is_empty() {
                let error = world.run(&line).await.error();
                assert!(error.contains("no stored job"), "{line:?}: {error}");
                continue;
            }
            let new = world.made(&line).await;
            assert_eq!(all_elements(&new), again, "{kind:?} {line:?}");
            for job in &new {
                let first = elements(job).iter().next();
                assert_eq!(
                    Some(Array::number(job.summary.job_id)),
                    first,
                    "a pack has the number of its first element"
                );
                assert_eq!((job.summary.array_count, job.summary.state), (Some(6), JobState::Queued));
            }
            assert_eq!(world.made(&line).await, new, "the key means the same elements");
            let other = ["rerun", &format!("{id}[2]"), "--key", "k"];
            assert!(world.run(&other).await.error().contains("another"), "{line:?}: and no others");
        }
    }
}

#[tokio::test]
async fn what_failed_runs_again_once_if_several_people_ask_for_it() {
    for kind in KINDS {
        let mut world = World::with_policy().await;
        let failed = world.with_array(kind).await;
        world.now = world.now + Span::from_s(1);
        let ids = join_all((0..4).map(|_| world.run(&["rerun", "a", "--failed"]))).await;
        let ids: BTreeSet<String> = ids.into_iter().filter(|said| said.result.is_ok()).map(|said| said.out).collect();
        assert_eq!(ids.len(), 1, "{ids:?}");
        let queued = world.run(&["jobs", "--state", "queued", "--json"]).await.json();
        assert_eq!(queued.as_array().map(Vec::len), Some(1), "{kind:?}");
        // With other options it is another one.
        let all = format!("{}[*]", failed[0].summary.job_id);
        assert_eq!(world.made(&["rerun", &all, "--failed", "--memory", "4G"]).await.len(), 1);
    }
}

#[tokio::test]
async fn after_a_rerun_a_name_means_the_newest_of_each_element() {
    let mut world = World::with_policy().await;
    let old = world.with_array(KINDS[1]).await;
    // Another array with the name, of another size, has nothing to do with it.
    world.now = world.now - Span::from_s(9);
    let line = ["submit", "--name", "a", "--count", "9", "--pack", "9", "--", "work"];
    let other = world.made(&line).await;
    world.end(&other, "7").await;
    world.now = world.now + Span::from_s(9);
    assert_eq!(states(&world, "a").await, json!({"complete": 5, "failed": 1}));
    let refused = world.run(&["submit", "--after", "a", "--", "work"]).await.error();
    assert!(refused.contains("could never run"), "{refused}");
    let new = world.made(&["rerun", "a", "--failed"]).await;
    assert_eq!(states(&world, "a").await, json!({"complete": 5, "queued": 1}));
    world.end(&new, "").await;
    assert_eq!(states(&world, "a").await, json!({"complete": 6}));
    for (name, is) in [("a[4]", &new[0]), ("a[5]", &old[1]), ("a[0]", &old[0])] {
        assert_eq!(world.run(&["job", name, "--json"]).await.json()["job_id"], is.summary.job_id.to_string(), "{name}");
    }
    // What follows does not wait for the pack that failed: what it left ran again.
    let line = ["submit", "--name", "b", "--count", "6", "--pack", "3", "--after-each", "a", "--", "work"];
    let each = world.made(&line).await;
    let follows = |job: &Job| job.summary.after.keys().copied().collect::<Vec<_>>();
    let of = |job: &Job| job.summary.job_id;
    assert_eq!((follows(&each[0]), follows(&each[1])), (vec![of(&old[0])], vec![of(&new[0])]));
    let all = world.made(&["submit", "--after", "a", "--", "work"]).await;
    assert_eq!(follows(&all[0]), [of(&old[0]), of(&new[0])]);
    let again = world.made(&["rerun", "a[3-4]"]).await;
    assert_eq!((again.len(), all_elements(&again).as_str()), (2, "3-4"), "each from the pack that ran it last");
    // A whole new array hides all of this.
    world.made(&["submit", "--name", "a", "--count", "6", "--pack", "2", "--", "work"]).await;
    let error = world.run(&["job", "a"]).await.error();
    assert!(error.contains("fit `a`"), "the rerun and the new one are live: {error}");
}

#[tokio::test]
async fn a_command_that_changes_whole_jobs_refuses_a_part_of_a_pack() {
    for verb in [&["cancel"][..], &["pause"], &["continue"], &["change", "--priority", "7"]] {
        for (name, is_whole) in
            [("a[3]", false), ("a[0]", false), ("a[2-5]", false), ("a[3-5]", true), ("a[*]", true), ("a", true)]
        {
            let mut world = World::with_policy().await;
            world.made(&["submit", "--name", "a", "--count", "6", "--pack", "3", "--", "work"]).await;
            let said = world.run(&[verb[0], name].iter().chain(&verb[1..]).copied().collect::<Vec<_>>()).await;
            let is_refused = said.err.contains("is a part of the pack")
                || said.result.as_ref().is_err_and(|e| e.to_string().contains("is a part of the pack"));
            assert_eq!(is_refused, !is_whole, "{verb:?} {name}: {}", said.err);
        }
    }
}
