//! What happened in a world, counted.
//!
//! Guarantees: the summary names everything that can happen, even if it never happened, because a situation that never
//! happened is not tested. A situation or action that is not listed here breaks the world.
//! Does not: judge whether something happened often enough.

use crate::fault::Fault;
use model::ActionName;
use runtime::answer::ActionOutcome;
use std::collections::{BTreeMap, BTreeSet};

/// The states and situations that a world can reach.
pub const SITUATIONS: &[&str] = &[
    "a brake let go by itself",
    "a brake was released",
    "a call named an id that EC2 does not know",
    "a condition failed",
    "a copy was placed for an unknown alloc",
    "a copy stayed because the nodes of others go",
    "a function was overdue",
    "a handle became creating",
    "a handle became destroying",
    "a handle became gone",
    "a handle became live",
    "a handle became unknown",
    "a handle could not be read",
    "a handle was destroyed",
    "a handle's row was deleted",
    "a job became cancelled",
    "a job became complete",
    "a job became failed",
    "a job became placed",
    "a job became regrouping",
    "a job became rejected",
    "a job could not be read",
    "a job of an array was placed",
    "a job of several members was placed",
    "a job was placed",
    "a job was placed at an end",
    "a job was submitted",
    "a part of a job was placed",
    "credentials were given",
    "credentials were refused",
    "a placing was cut short",
    "a job went back to the queue",
    "a job was moved at no cost",
    "a batch was cut short",
    "a list of what starts next went wrong",
    "a launch call was made",
    "a launch went on with its next way",
    "a launch was in a capacity reservation",
    "a capacity block ended under an instance",
    "a launch token was used again",
    "a node became disconnected",
    "a node became down",
    "a node became ready",
    "a node became syncing",
    "a node had more to destroy than it may at once",
    "a node lost its status",
    "a node record could not be read",
    "a node was drained for an interruption",
    "a node waited for its GPUs",
    "a node was told that it is gone",
    "a process started",
    "a record became assigned",
    "a record became cleaned",
    "a record became in_use",
    "a record became shutting_down",
    "a record was cleaned: its instance is nowhere",
    "a record was cleaned: its instance is terminated",
    "a record was deleted",
    "a request's function was cut off by its time-out",
    "a request's function was killed",
    "a run could not observe",
    "a run was cut off by its time-out",
    "a run was killed",
    "a small job came late",
    "a stale report came",
    "a transaction's condition failed",
    "all were silent, and some went",
    "a silence was believed without proof",
    "an agent was killed",
    "a complete alloc has outputs",
    "a follower has its input",
    "a try begins with a checkpoint",
    "an alloc got GPUs",
    "an alloc got GPUs beside another one",
    "an alloc lacked GPUs",
    "an alloc became complete",
    "an alloc became failed",
    "an alloc became lost",
    "an alloc became pending",
    "an alloc became running",
    "an alloc became unknown",
    "an alloc could not be read",
    "an array had room",
    "an array was full",
    "a share had room",
    "a share was full",
    "what a share has used was counted",
    "a share waited for another",
    "a bill was added up",
    "an array was submitted",
    "a pack was submitted",
    "a pack ended at its bound of failures",
    "a pack was complete",
    "a pack went on with what was left",
    "an entry of control could not be read",
    "an event could not be read",
    "a demand set was written",
    "a job follows others",
    "a job no longer follows another",
    "a job was paused",
    "a job was put off",
    "a job was submitted with a key",
    "a program has its jobs",
    "a program was killed while it submitted",
    "a submission with keys had an error",
    "an event was kept",
    "an instance was launched",
    "an instance was none of its batch",
    "an instance was terminated",
    "an orphan was terminated",
    "an unknown alloc came back",
    "clean-stale-records ran",
    "one of several copies stayed",
    "poll-and-scale ran",
    "sweep-dispatch ran",
];

/// The situations in which something was killed.
pub const KILLS: [&str; 3] = ["a request's function was killed", "a run was killed", "an agent was killed"];

pub const ACTIONS: &[(&str, ActionName)] = &[
    ("poll-and-scale", ActionName::Abandon),
    ("poll-and-scale", ActionName::BindInstance),
    ("poll-and-scale", ActionName::Clean),
    ("poll-and-scale", ActionName::Disconnect),
    ("poll-and-scale", ActionName::Drain),
    ("poll-and-scale", ActionName::HoldBack),
    ("poll-and-scale", ActionName::Launch),
    ("poll-and-scale", ActionName::LoseAlloc),
    ("poll-and-scale", ActionName::ListAlloc),
    ("poll-and-scale", ActionName::MarkDown),
    ("poll-and-scale", ActionName::Place),
    ("poll-and-scale", ActionName::Reject),
    ("poll-and-scale", ActionName::Relaunch),
    ("poll-and-scale", ActionName::Replace),
    ("poll-and-scale", ActionName::Requeue),
    ("poll-and-scale", ActionName::Advance),
    ("poll-and-scale", ActionName::ResolveReconnect),
    ("poll-and-scale", ActionName::SetIdle),
    ("poll-and-scale", ActionName::ShutDown),
    ("poll-and-scale", ActionName::StopAlloc),
    ("poll-and-scale", ActionName::Terminate),
    ("poll-and-scale", ActionName::UnknownAlloc),
    ("poll-and-scale", ActionName::Warn),
    ("clean-stale-records", ActionName::Clean),
    ("clean-stale-records", ActionName::TerminateOrphan),
    ("clean-stale-records", ActionName::DeleteRecord),
    ("clean-stale-records", ActionName::ForgetEntry),
    ("clean-stale-records", ActionName::ReadOffers),
    ("clean-stale-records", ActionName::HoldBack),
    ("sweep-dispatch", ActionName::HoldBack),
    ("sweep-dispatch", ActionName::MarkDestroying),
    ("sweep-dispatch", ActionName::LookLater),
    ("sweep-dispatch", ActionName::ForgetHandle),
    ("sweep-dispatch", ActionName::Purge),
];

/// The counts of one or more worlds.
#[derive(Clone, Debug, Default)]
pub struct Happened {
    /// The counts of faults, by the place of the fault in [`Fault::ALL`].
    pub faults: Vec<u64>,
    /// The counts of states and situations that were reached.
    pub counts: BTreeMap<&'static str, u64>,
    /// The counts of actions of the scheduled functions, by outcome.
    pub did: BTreeMap<(&'static str, ActionName, ActionOutcome), u64>,
    /// The calls of AWS that each function made: the operation, and the table and index.
    pub calls: BTreeMap<&'static str, BTreeSet<String>>,
}

impl Happened {
    pub fn add(&mut self, other: &Self) {
        self.faults.resize(Fault::ALL.len(), 0);
        for (sum, n) in self.faults.iter_mut().zip(&other.faults) {
            *sum += n;
        }
        for (what, n) in &other.counts {
            *self.counts.entry(what).or_default() += n;
        }
        for (function, calls) in &other.calls {
            self.calls.entry(function).or_default().extend(calls.iter().cloned());
        }
        for (what, n) in &other.did {
            *self.did.entry(*what).or_default() += n;
        }
    }

    /// How many runs, requests' functions and agents were killed.
    pub fn kills(&self) -> u64 {
        KILLS.iter().filter_map(|what| self.counts.get(what)).sum()
    }

    /// The counts as a table: faults, situations, actions with their outcomes.
    pub fn table(&self) -> String {
        let mut lines = vec!["faults:".to_owned()];
        let faults = Fault::ALL.iter().zip(self.faults.iter().copied().chain(std::iter::repeat(0)));
        lines.extend(faults.map(|(f, n)| format!("{n:>12}  {:<18} {}", format!("{f:?}"), f.meaning().trim())));
        lines.push("\nreached:".to_owned());
        let count = |what: &str| self.counts.get(what).copied().unwrap_or(0);
        lines.extend(SITUATIONS.iter().map(|what| format!("{:>12}  {what}", count(what))));
        lines.push("\nactions:".to_owned());
        for (function, action) in ACTIONS {
            let outcomes = self.did.iter().filter(|((f, a, _), _)| f == function && a == action);
            let mut line: Vec<String> = outcomes.clone().map(|((.., done), n)| format!("{done:?} {n}")).collect();
            if !outcomes.clone().any(|((.., done), _)| matches!(done, ActionOutcome::Done | ActionOutcome::Reported)) {
                line.push("never done".to_owned());
            }
            lines.push(format!("  {function:<20} {action:<18} {}", line.join(", ")));
        }
        lines.join("\n")
    }
}
