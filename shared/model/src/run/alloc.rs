//! The alloc: one copy of one member of a job, on one node.
//!
//! Guarantees: `complete`, `failed` and `lost` are final; `desired` never goes back from stop to run; a
//! report changes an alloc only if it comes from the alloc's own node.
//! Does not: change the sets of live allocs of the node and the job. They change in one transaction
//! with the alloc's end, in `store::transactions`.
//! Rules: `docs/rules.md#section-6`. Source: Nomad PR 15068.

use crate::enums::{ClientStatus, Desired};
use crate::files::{self, CHECKPOINT_PLACES};
use crate::wire::{AllocOrder, AllocStatus, AllocUpdate, MAX_LOG_TAIL_BYTES, MAX_TAIL_SWITCHES};
use crate::{
    AllocId, AllocSummary, Checkpoint, ElementReport, EndCause, Ending, Environment, Job, NodeId, NodeRecord,
    RunReport, S3Place, Span, Switches, Time, Usage, Version, Work,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The longest phase that a row keeps, in bytes: the words of a runtime about a registry are long.
const MAX_PHASE_BYTES: usize = 400;

/// A row of the allocs table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alloc {
    /// The part that planning needs.
    #[serde(flatten)]
    pub summary: AllocSummary,
    /// Raised by every write.
    pub version: Version,
    /// A copy from its job, for reports of what jobs use.
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub work: Work,
    /// Variables added to the environment.
    #[serde(default, skip_serializing_if = "Environment::is_empty")]
    pub env: Environment,
    /// Where its node stores the whole output; `None`: nowhere. A later policy does not change it.
    pub output_s3: Option<S3Place>,
    /// Why the alloc ended.
    pub cause: Option<EndCause>,
    /// The exit code that the cause has ([`EndCause::exit_code`]).
    pub exit_code: Option<i32>,
    #[serde(flatten)]
    pub run: RunReport,
    /// When the alloc became final.
    pub finished_at: Option<Time>,
    /// Whether its room went to another job in the write that ended it, and no run need look (`docs/rules.md#next`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub handed_on: bool,
    /// Epoch **seconds**: DynamoDB deletes the row some time after.
    pub expires_at: Option<i64>,
}

/// Whether a copy stays when a reconnect is resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResolvedCopy {
    Stays,
    /// The copy is told to stop.
    Stops,
}

/// The effect of a node's report on an alloc.
#[derive(Clone, Debug, PartialEq)]
pub enum ReportOutcome {
    /// Nothing changes: the report says nothing new.
    Unchanged,
    /// The alloc changes and stays live.
    Changed(Box<Alloc>),
    Ends(Box<Ending>),
    Refused(String),
}

impl Alloc {
    /// A new alloc on `node`; `None` if the node does not take work. Its `placed_seq` is the `seq` that the
    /// placing write gives the node.
    pub fn place(id: AllocId, job: &Job, node: &NodeRecord, now: Time) -> Option<Self> {
        let life = node.life().filter(|_| node.takes_work())?;
        Some(Self {
            summary: AllocSummary {
                alloc_id: id,
                slot: node.slot,
                node_id: life.node_id,
                desired: Desired::Run,
                client: ClientStatus::Pending,
                placed_seq: life.next_seq(now),
                placed_at: now,
                started_at: None,
                phase: None,
                awaiting: false,
                unknown_since_at: None,
                stopping_since_at: None,
                replaces: None,
                replaced_by: None,
                price_per_hour: life.offering.price_of(&job.summary.needs),
                share: job.summary.share.clone(),
                by: job.summary.by.clone(),
                needs: job.summary.needs.clone(),
                failure_policy: job.failure_policy.of_alloc(),
            },
            version: Version::UNWRITTEN,
            name: job.summary.name.clone(),
            labels: job.summary.labels.clone(),
            work: job.work_left(),
            env: job.env.clone(),
            output_s3: None,
            cause: None,
            exit_code: None,
            run: RunReport::default(),
            finished_at: None,
            handed_on: false,
            expires_at: None,
        })
    }

    pub fn id(&self) -> AllocId {
        self.summary.alloc_id
    }

    /// The effect of a report of the node `from` on the alloc.
    pub fn reported(&self, update: &AllocUpdate, from: NodeId, now: Time) -> ReportOutcome {
        if self.summary.node_id != from {
            return ReportOutcome::Refused(format!("{} is not on node {from}", update.alloc_id));
        }
        if self.summary.client.is_final() {
            // The node repeats an end that was already accepted, or its report comes too late. In both cases the
            // alloc stays as it is, and no further report of it is needed.
            return if self.summary.client == update.client {
                ReportOutcome::Unchanged
            } else {
                ReportOutcome::Refused(format!("{} already ended as {}", self.id(), self.summary.client))
            };
        }
        match update.client {
            ClientStatus::Complete | ClientStatus::Failed | ClientStatus::Lost => match &update.cause {
                Some(cause) if cause.client() == update.client => self.ended(cause, &update.run),
                _ => ReportOutcome::Refused(format!("the report has no cause that fits the state {}", update.client)),
            },
            ClientStatus::Unknown => ReportOutcome::Refused("a node cannot report an alloc as unknown".to_owned()),
            // If a node reports an unknown alloc again, the alloc is still on that node. The alloc counts as running,
            // even if the report says `pending`.
            ClientStatus::Pending if self.summary.client == ClientStatus::Running => ReportOutcome::Unchanged,
            ClientStatus::Pending if self.summary.client == ClientStatus::Pending => {
                self.changed_to(self.with_phase(update))
            }
            ClientStatus::Pending | ClientStatus::Running => {
                let mut new = self.with_phase(update);
                let RunReport { elements, usage, image_digest, checkpoint, .. } = self.run_after(&update.run);
                new.run = RunReport { elements, usage, image_digest, checkpoint, ..new.run };
                new.summary.client = ClientStatus::Running;
                new.summary.unknown_since_at = None;
                new.summary.started_at = new.summary.started_at.or(Some(now));
                self.changed_to(new)
            }
        }
    }

    fn with_phase(&self, update: &AllocUpdate) -> Self {
        let mut new = self.clone();
        new.summary.phase = update.phase.clone().map(|mut phase| {
            phase.truncate(phase.floor_char_boundary(MAX_PHASE_BYTES));
            phase
        });
        new
    }

    fn changed_to(&self, new: Self) -> ReportOutcome {
        if new == *self { ReportOutcome::Unchanged } else { ReportOutcome::Changed(Box::new(new)) }
    }

    /// The end that a node reports. A complete alloc must have all of its outputs, because jobs that follow its job rely on them.
    fn ended(&self, cause: &EndCause, reported: &RunReport) -> ReportOutcome {
        let kept = match cause.client() {
            ClientStatus::Complete => files::all_of(&self.work.outputs, &reported.kept),
            _ => Ok(files::some_of(&self.work.outputs, &reported.kept)),
        };
        let kept = match kept {
            Ok(kept) => kept,
            Err(path) => {
                return ReportOutcome::Refused(format!("the report does not say where its output {path} is"));
            }
        };
        let (log_tail, tail_switches) = tail_of(reported);
        let run = RunReport { log_tail, tail_switches, kept, ..self.run_after(reported) };
        ReportOutcome::Ends(Box::new(Ending { cause: self.cause_of(cause.clone().clipped(), &run.elements), run }))
    }

    /// Whether the alloc was told to stop, and ended for that. Its end counts for no job, whatever its exit code is.
    pub const fn was_stopped(&self) -> bool {
        matches!(self.cause, Some(EndCause::Stopped { .. }))
    }

    /// Whether it completed its member, so that its outputs are outputs of the job.
    pub fn has_succeeded(&self) -> bool {
        self.summary.client == ClientStatus::Complete && !self.was_stopped()
    }

    /// What is known of the run after this newer report. The first digest of the image that the node reported stays.
    fn run_after(&self, newer: &RunReport) -> RunReport {
        let elements = self.work.pack.as_ref().map(|pack| self.run.elements.then(&newer.elements, &pack.elements));
        let is_own = |newer: &Checkpoint| newer.alloc_id == self.id() && newer.place < CHECKPOINT_PLACES;
        let newer_checkpoint = newer.checkpoint.clone().filter(|newer| self.work.keep.is_some() && is_own(newer));
        let newer_digest = newer.image_digest.clone().filter(|_| self.work.image.is_some());
        RunReport {
            elements: elements.unwrap_or_default(),
            usage: newer.usage.and_then(Usage::possible).or(self.run.usage),
            image_digest: self.run.image_digest.clone().or(newer_digest),
            checkpoint: newer_checkpoint.or_else(|| self.run.checkpoint.clone()),
            ..newer.clone()
        }
    }

    /// This end, completed with what the node reported while the alloc ran.
    pub fn with_elements(&self, ending: &Ending) -> Ending {
        Ending { run: self.run_after(&ending.run), ..ending.clone() }
    }

    /// The cause of the end of a pack. The pack ran to its end only if each element has a result; otherwise the rest of it is lost.
    fn cause_of(&self, told: EndCause, elements: &ElementReport) -> EndCause {
        let Some(pack) = &self.work.pack else { return told };
        let has_run = matches!(told, EndCause::Exited { code: 0 } | EndCause::ElementsFailed { .. });
        // A stop with exit code 0 that nobody ordered. If it counted as a success, the elements that are left would never run.
        let was_cut_short = told.client() == ClientStatus::Complete && self.summary.desired == Desired::Run;
        if !has_run && !was_cut_short {
            return told;
        }
        let left = pack.elements.without(&elements.results.ended()).count();
        let why = || EndCause::Lost { why: format!("its node does not say how {left} of its elements ended") };
        elements.results.cause(pack).unwrap_or_else(why)
    }

    /// The alloc after its end. A lost alloc also gets `desired` = stop, so that its process is stopped if it still
    /// runs somewhere.
    pub fn end(&self, ending: &Ending, keep: Span, now: Time) -> Self {
        let mut new = self.clone();
        new.summary.client = ending.client();
        if ending.client() == ClientStatus::Lost {
            new.summary.desired = Desired::Stop;
        }
        new.summary.awaiting = false;
        (new.summary.unknown_since_at, new.summary.phase) = (None, None);
        new.cause = Some(ending.cause.clone());
        new.exit_code = ending.cause.exit_code();
        new.run = self.run_after(&ending.run);
        new.run.log_tail = new.run.log_tail.filter(|tail| !tail.is_empty());
        new.finished_at = Some(now);
        new.expires_at = Some((now + keep).as_epoch_s());
        // The row of its job has the environment.
        new.env = Environment::new();
        new
    }

    /// The alloc in the state `unknown`: its node is silent and its job waits for it. `None` if the alloc has
    /// not begun.
    pub fn unknown(&self, now: Time) -> Option<Self> {
        self.summary.has_begun().then(|| {
            let mut new = self.clone();
            new.summary.client = ClientStatus::Unknown;
            new.summary.unknown_since_at = Some(now);
            new.summary.awaiting = true;
            new
        })
    }

    /// The alloc with the order to stop; `None` if the alloc is final or already has this order.
    pub fn stop(&self, now: Time) -> Option<Self> {
        (!self.summary.client.is_final() && self.summary.desired == Desired::Run).then(|| {
            let mut new = self.clone();
            new.summary.desired = Desired::Stop;
            new.summary.stopping_since_at = Some(now);
            new
        })
    }

    /// The alloc after a reconnect was resolved: this copy stays, or is told to stop.
    pub fn resolved(&self, copy: ResolvedCopy, now: Time) -> Self {
        let mut new = match copy {
            ResolvedCopy::Stays => self.clone(),
            ResolvedCopy::Stops => self.stop(now).unwrap_or_else(|| self.clone()),
        };
        new.summary.awaiting = false;
        new.summary.replaced_by = None;
        new
    }

    /// The alloc without its order, for a node that has the order.
    pub const fn status(&self) -> AllocStatus {
        let AllocSummary { alloc_id, desired, client, placed_seq, .. } = self.summary;
        AllocStatus { alloc_id, desired, client, placed_seq }
    }

    /// The order that the node gets for this alloc.
    pub fn order(&self, hosts: Vec<String>) -> AllocOrder {
        AllocOrder {
            alloc_id: self.id(),
            desired: self.summary.desired,
            client: self.summary.client,
            placed_seq: self.summary.placed_seq,
            needs: self.summary.needs.clone(),
            work: self.work.clone(),
            env: self.env.clone(),
            failure_policy: self.summary.failure_policy.clone(),
            hosts,
            output_s3: self.output_s3.clone(),
            grant_url: None,
        }
    }
}

/// The last part of the output in a report, and its switches.
fn tail_of(reported: &RunReport) -> (Option<String>, Switches) {
    let tail = reported.log_tail.as_deref();
    let begin = |t: &str| t.ceil_char_boundary(t.len().saturating_sub(MAX_LOG_TAIL_BYTES));
    let clipped = tail.map(|t| t.get(begin(t)..).unwrap_or_default());
    let cut = tail.map_or(0, str::len).saturating_sub(clipped.map_or(0, str::len));
    let is_small = reported.tail_switches.len() <= MAX_TAIL_SWITCHES;
    let switches = if is_small { reported.tail_switches.part(cut as u64, 0) } else { Switches::default() };
    (clipped.map(str::to_owned), switches)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elements::Pack;
    use crate::files::StoredOutput;
    use crate::fixtures::{self, at};
    use crate::ranges::Ranges;

    fn running() -> Alloc {
        let alloc = Alloc::place(fixtures::alloc_id(0), &fixtures::job(0), &fixtures::ready(0), at(1)).unwrap();
        let ReportOutcome::Changed(alloc) = alloc.reported(&says(ClientStatus::Running), fixtures::node_id(0), at(2))
        else {
            panic!("not taken over")
        };
        *alloc
    }

    fn says(client: ClientStatus) -> AllocUpdate {
        AllocUpdate { alloc_id: fixtures::alloc_id(0), client, cause: None, phase: None, run: RunReport::default() }
    }

    #[test]
    fn ua_24_a_final_alloc_never_changes() {
        let ended = running().end(&Ending::lost("gone"), Span::from_s(1), at(3));
        for client in ClientStatus::ALL {
            let report = ended.reported(&says(*client), fixtures::node_id(0), at(4));
            assert!(matches!(report, ReportOutcome::Unchanged | ReportOutcome::Refused(_)), "{client}: {report:?}");
        }
        assert_eq!(ended.stop(at(4)), None);
        assert_eq!(ended.unknown(at(4)), None);
    }

    #[test]
    fn what_its_node_prepares_waits_for_a_silent_node_like_what_runs() {
        let pending = Alloc::place(fixtures::alloc_id(0), &fixtures::job(0), &fixtures::ready(0), at(1)).unwrap();
        assert_eq!(pending.unknown(at(9)), None, "the node may not have its order");
        let mut pulls = pending;
        pulls.summary.phase = Some("pulling a".into());
        assert_eq!(pulls.unknown(at(9)).map(|alloc| alloc.summary.client), Some(ClientStatus::Unknown));
    }

    #[test]
    fn a_phase_is_noted_until_the_command_runs_or_the_alloc_has_ended() {
        let pending = Alloc::place(fixtures::alloc_id(0), &fixtures::job(0), &fixtures::ready(0), at(1)).unwrap();
        let after = |alloc: &Alloc, client, phase: Option<&str>| {
            let update = AllocUpdate { phase: phase.map(str::to_owned), ..says(client) };
            match alloc.reported(&update, fixtures::node_id(0), at(9)) {
                ReportOutcome::Changed(new) => Some(*new),
                _ => None,
            }
        };
        let seen = |alloc: &Alloc| (alloc.summary.client, alloc.summary.phase.clone(), alloc.summary.started_at);
        assert_eq!(after(&pending, ClientStatus::Pending, None), None, "nothing is written");
        let pulling = after(&pending, ClientStatus::Pending, Some("pulling a")).unwrap();
        assert_eq!(seen(&pulling), (ClientStatus::Pending, Some("pulling a".into()), None));
        assert_eq!(after(&pulling, ClientStatus::Pending, Some("pulling a")), None, "it is known");
        let runs = after(&pulling, ClientStatus::Running, None).unwrap();
        assert_eq!(seen(&runs), (ClientStatus::Running, None, Some(at(9))));
        assert_eq!(after(&runs, ClientStatus::Pending, Some("late")), None);
        let stores = after(&runs, ClientStatus::Running, Some("storing outputs")).unwrap();
        assert_eq!(stores.summary.phase.as_deref(), Some("storing outputs"));
        assert_eq!(stores.end(&Ending::exited(0), Span::from_s(1), at(10)).summary.phase, None);
    }

    #[test]
    fn ua_23_a_report_from_another_node_is_refused() {
        let report = running().reported(&says(ClientStatus::Complete), fixtures::node_id(1), at(4));
        assert!(matches!(report, ReportOutcome::Refused(_)));
    }

    #[test]
    fn ap_20_the_unknown_time_starts_once_and_again_after_a_return() {
        let unknown = running().unknown(at(10)).unwrap();
        assert_eq!(unknown.unknown(at(20)), None);
        let ReportOutcome::Changed(back) = unknown.reported(&says(ClientStatus::Pending), fixtures::node_id(0), at(30))
        else {
            panic!("not taken over")
        };
        assert_eq!((back.summary.client, back.summary.awaiting), (ClientStatus::Running, true));
        assert_eq!(back.unknown(at(40)).unwrap().summary.unknown_since_at, Some(at(40)));
    }

    #[test]
    fn a_node_reports_an_end_with_a_cause_that_fits_it() {
        let report =
            |client, cause| running().reported(&AllocUpdate { cause, ..says(client) }, fixtures::node_id(0), at(4));
        let lost = EndCause::NotStarted { why: "the disk is full".into() };
        assert_eq!(report(ClientStatus::Lost, Some(lost.clone())), ReportOutcome::Ends(Box::new(Ending::new(lost))));
        for (client, cause) in [
            (ClientStatus::Complete, None),
            (ClientStatus::Lost, None),
            (ClientStatus::Lost, Some(EndCause::Exited { code: 1 })),
            (ClientStatus::Complete, Some(EndCause::OverTime { limit_s: 2 })),
            (ClientStatus::Unknown, Some(EndCause::Lost { why: "x".into() })),
        ] {
            let outcome = report(client, cause.clone());
            assert!(matches!(outcome, ReportOutcome::Refused(_)), "{client} {cause:?}: {outcome:?}");
        }
    }

    #[test]
    fn a_pack_that_does_not_say_how_each_element_ended_is_lost() {
        let mut alloc = running();
        alloc.work.pack = Some(Pack::of(Ranges::of(0, 2)));
        let told = |alloc: &Alloc, cause: EndCause, results: &[(&str, &str)]| {
            let mut update = AllocUpdate { cause: Some(cause.clone()), ..says(cause.client()) };
            for (outcome, elements) in results {
                update.run.elements.results.add(outcome.parse().unwrap(), &elements.parse().unwrap());
            }
            match alloc.reported(&update, alloc.summary.node_id, at(9)) {
                ReportOutcome::Ends(ending) => ending.cause,
                other => panic!("{other:?}"),
            }
        };
        let (done, stopped) = (EndCause::Exited { code: 0 }, EndCause::Stopped { why: "x".into(), code: Some(0) });
        let failed = EndCause::ElementsFailed { failed: 1, elements: 3 };
        let lost = |cause: EndCause| matches!(cause, EndCause::Lost { why } if why.contains("how 1 of its elements"));
        let (all, some) = ([("exit:0", "0-1"), ("exit:3", "2")], [("exit:0", "0-1")]);
        for cause in [&done, &failed, &stopped] {
            assert_eq!(told(&alloc, cause.clone(), &all), failed, "{cause:?}: the elements say how it ended");
            assert!(lost(told(&alloc, cause.clone(), &some)), "{cause:?}");
        }
        assert_eq!(told(&alloc, done.clone(), &[("exit:0", "0-2")]), done);
        // An alloc that was told to stop ends as stopped, and its end counts for nothing.
        alloc.summary.desired = Desired::Stop;
        assert_eq!(told(&alloc, stopped.clone(), &some), stopped);
    }

    #[test]
    fn a_complete_alloc_has_all_its_outputs() {
        let mut alloc = running();
        alloc.work.outputs = vec!["a".parse().unwrap(), "b".parse().unwrap()];
        let stored = |path: &str| StoredOutput {
            path: path.to_owned(),
            content: format!("file:{}:7", "0".repeat(64)).parse().unwrap(),
            to: None,
        };
        let told = |cause: EndCause, kept: &[&str]| {
            let kept = kept.iter().map(|path| stored(path)).collect();
            let run = RunReport { kept, ..RunReport::default() };
            let update = AllocUpdate { cause: Some(cause.clone()), run, ..says(cause.client()) };
            match alloc.reported(&update, alloc.summary.node_id, at(9)) {
                ReportOutcome::Ends(ending) => {
                    Ok(ending.run.kept.into_iter().map(|output| output.path).collect::<Vec<_>>())
                }
                ReportOutcome::Refused(why) => Err(why),
                other => panic!("{other:?}"),
            }
        };
        let (done, stopped) = (EndCause::Exited { code: 0 }, EndCause::Stopped { why: String::new(), code: Some(0) });
        for cause in [done.clone(), stopped] {
            assert!(told(cause, &["a"]).is_err_and(|why| why.contains("its output b")));
        }
        assert_eq!(told(done, &["b", "x", "a"]), Ok(vec!["a".to_owned(), "b".to_owned()]), "and no others");
        assert_eq!(told(EndCause::Exited { code: 1 }, &["b"]), Ok(vec!["b".to_owned()]));
    }

    #[test]
    fn an_alloc_that_was_told_to_stop_has_no_outputs_of_its_job_whatever_its_exit_code_is() {
        let ended = |cause: EndCause| running().end(&Ending::new(cause), Span::from_s(9), at(9));
        let stopped = |code| EndCause::Stopped { why: String::new(), code: Some(code) };
        for (cause, has_succeeded, was_stopped) in [
            (EndCause::Exited { code: 0 }, true, false),
            (EndCause::Exited { code: 1 }, false, false),
            (stopped(0), false, true),
            (stopped(1), false, true),
        ] {
            let alloc = ended(cause.clone());
            assert_eq!((alloc.has_succeeded(), alloc.was_stopped()), (has_succeeded, was_stopped), "{cause:?}");
        }
        assert!(!running().has_succeeded());
    }

    #[test]
    fn what_a_node_says_of_usage_is_bounded_and_spoils_no_end() {
        let told = |usage: serde_json::Value| {
            let alloc_id = fixtures::alloc_id(0);
            let cause = EndCause::Exited { code: 0 };
            let said = serde_json::json!({"alloc_id": alloc_id, "client": "complete", "cause": cause, "usage": usage});
            let update: AllocUpdate = serde_json::from_value(said).unwrap();
            match running().reported(&update, fixtures::node_id(0), at(4)) {
                ReportOutcome::Ends(ending) => ending.run.usage.map(|usage| (usage.cpu_ms, usage.memory_mib)),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(told(serde_json::json!({"ran_ms": 1, "cpu_ms": 2, "memory_mib": 3, "more": 4})), Some((2, Some(3))));
        for lie in [
            serde_json::json!(null),
            serde_json::json!("much"),
            serde_json::json!([1]),
            serde_json::json!({"ran_ms": -1, "cpu_ms": 2}),
            serde_json::json!({"ran_ms": 1}),
            serde_json::json!({"ran_ms": 1, "cpu_ms": u64::MAX}),
            serde_json::json!({"ran_ms": 1, "cpu_ms": 1e99}),
        ] {
            assert_eq!(told(lie.clone()), None, "{lie}");
        }
    }

    #[test]
    fn what_is_told_while_it_runs_changes_it_once_and_outlives_its_node() {
        let digest = |n: u8| format!("sha256:{}", n.to_string().repeat(64)).parse().ok();
        let used = |cpu_ms| Usage { ran_ms: 9, cpu_ms, ..Usage::default() };
        let mut alloc = running();
        alloc.work.image = Some("alpine".into());
        let tell = |alloc: &Alloc, usage, image_digest| {
            let run = RunReport { usage, image_digest, ..RunReport::default() };
            let update = AllocUpdate { run, ..says(ClientStatus::Running) };
            alloc.reported(&update, alloc.summary.node_id, at(5))
        };
        let ReportOutcome::Changed(told) = tell(&alloc, Some(used(7)), digest(1)) else { panic!("nothing new") };
        assert_eq!((told.run.usage, &told.run.image_digest), (Some(used(7)), &digest(1)));
        assert_eq!(tell(&told, Some(used(7)), digest(1)), ReportOutcome::Unchanged);
        assert_eq!(tell(&told, None, None), ReportOutcome::Unchanged, "an agent that has just started knows less");
        let ReportOutcome::Changed(later) = tell(&told, Some(used(8)), digest(2)) else { panic!("nothing new") };
        assert_eq!(
            (later.run.usage, &later.run.image_digest),
            (Some(used(8)), &digest(1)),
            "what was told first stays"
        );
        let lost = later.end(&Ending::lost("gone"), Span::from_s(1), at(6));
        assert_eq!((lost.run.usage, lost.run.image_digest), (Some(used(8)), digest(1)));
        let ReportOutcome::Changed(process) = tell(&running(), Some(used(7)), digest(1)) else { panic!("nothing new") };
        assert_eq!(process.run.image_digest, None, "it has no image");
    }

    #[test]
    fn a_long_output_is_clipped_on_a_character_boundary() {
        let mut update = AllocUpdate { cause: Some(EndCause::Exited { code: 1 }), ..says(ClientStatus::Failed) };
        update.run.log_tail = Some("é".repeat(MAX_LOG_TAIL_BYTES));
        let ReportOutcome::Ends(ending) = running().reported(&update, fixtures::node_id(0), at(4)) else {
            panic!("no end")
        };
        assert_eq!(ending.run.log_tail.unwrap().len(), MAX_LOG_TAIL_BYTES);
    }
}
