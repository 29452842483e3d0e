//! The picture of a world's history: what each node did, how long the queue was, and which faults happened when.
//!
//! Guarantees: one seed gives one picture, byte by byte. Each fault of the world is marked once, under its name or under
//! what it belongs to.
//! Does not: reckon anything. `past` rebuilds the history from the events and records that the world left, as the page
//! does.

use crate::core::{Fault, MOST_MARKS, START};
use crate::scenario::Scenario;
use crate::world::Outcome;
use history::{Lane, Picture, Tone};
use model::time::{Span, Time};
use std::collections::BTreeMap;

/// How a fault is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    /// In a lane of its own, after the lanes of faults like it.
    Own(Like),
    /// Among many small ones, which happen too often to have a lane each.
    Calls,
    Requests,
    Handles,
}

/// What a fault is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Like {
    Crash,
    Outage,
    Cloud,
    People,
}

impl Place {
    /// The name, the hint and the colour of a lane that many kinds share.
    const fn shared(self) -> Option<(&'static str, &'static str, Tone)> {
        match self {
            Self::Own(_) => None,
            Self::Calls => {
                Some(("calls of AWS", "single calls that are slow, fail, or show an old state", Tone::Cloud))
            }
            Self::Requests => Some((
                "requests, runs, work",
                "requests that are lost or late, runs that are late or twice, work that fails",
                Tone::Outage,
            )),
            Self::Handles => Some(("handles", "directories and containers that appear, stick or vanish", Tone::Crash)),
        }
    }
}

impl Like {
    const fn tone(self) -> Tone {
        match self {
            Self::Crash => Tone::Crash,
            Self::Outage => Tone::Outage,
            Self::Cloud => Tone::Cloud,
            Self::People => Tone::People,
        }
    }
}

/// Where a fault is drawn.
const fn place(fault: Fault) -> Place {
    use Fault as F;
    match fault {
        F::Killed
        | F::AgentCrashes
        | F::StateLost
        | F::Reboots
        | F::DiskLost
        | F::Hangs
        | F::Restored
        | F::InstanceDies
        | F::Stopped
        | F::TerminatedByOthers
        | F::ZoneLost => Place::Own(Like::Crash),
        F::FunctionDown
        | F::IngestDown
        | F::CutOff
        | F::CutOffForever
        | F::PartOfTheNetwork
        | F::Deaf
        | F::NeverReports
        | F::AgentRefuses
        | F::CannotStart
        | F::GpuSick
        | F::RowUnreadable => Place::Own(Like::Outage),
        F::ListCollapses
        | F::ListLoses
        | F::Quota
        | F::Shortage
        | F::NeverBoots
        | F::DiesBooting
        | F::SpotTaken
        | F::SpotTakenAtOnce
        | F::LaunchAnswerLost
        | F::LaunchNotAllowed
        | F::BatchCutShort => Place::Own(Like::Cloud),
        F::OperatorHolds
        | F::OperatorDrains
        | F::OperatorCancels
        | F::OperatorResizes
        | F::OperatorRewrites
        | F::OperatorDropsSize
        | F::OperatorKeeps
        | F::OperatorRewritesSize
        | F::OperatorRewritesTimes
        | F::ForeignWork
        | F::ArrayArrives
        | F::PackArrives
        | F::GpusWanted
        | F::JobFollows
        | F::ControllerWants => Place::Own(Like::People),
        F::DbSlow
        | F::DbThrottles
        | F::DbFails
        | F::DbAnswerLost
        | F::DbContended
        | F::DbSentTwice
        | F::IndexLags
        | F::StaleScan
        | F::PageFails
        | F::ListLags
        | F::ListForgets
        | F::ListFails
        | F::ListsOlderState
        | F::IdsNotNamed
        | F::Ec2Slow
        | F::LaunchSlow
        | F::LaunchThrottled
        | F::BadRequest
        | F::BootsSlowly
        | F::TerminateFails
        | F::TerminatesSome
        | F::TerminatesSlowly => Place::Calls,
        F::RunLate
        | F::RunTwice
        | F::RunsOverlap
        | F::ShortRun
        | F::OtherVersion
        | F::ClockSkew
        | F::RequestLost
        | F::AnswerLost
        | F::RequestLate
        | F::RequestTwice
        | F::Busy
        | F::WorkFails
        | F::IgnoresTerm
        | F::Liar => Place::Requests,
        F::StrayHandle
        | F::ForeignHandle
        | F::HandleVanishes
        | F::HandleSticks
        | F::AppearsLate
        | F::ListingPartial => Place::Handles,
    }
}

/// The faults by their lanes, from top to bottom. A kind that never happened has no lane.
fn lanes(marks: &[(Time, Fault)]) -> Vec<Lane> {
    let mut lanes: BTreeMap<(Place, Option<Fault>), Lane> = BTreeMap::new();
    for (at, fault) in marks {
        let place = place(*fault);
        let own = place.shared().is_none().then_some(*fault);
        let lane = lanes.entry((place, own)).or_insert_with(|| {
            let (name, hint, tone) = match (place.shared(), place) {
                (Some((name, hint, tone)), _) => (name.to_owned(), hint, tone),
                (None, Place::Own(like)) => (format!("{fault:?}"), fault.meaning().trim(), like.tone()),
                (None, _) => (format!("{fault:?}"), fault.meaning().trim(), Tone::Outage),
            };
            Lane { name, hint: hint.to_owned(), tone, marks: Vec::new() }
        });
        lane.marks.push((*at, format!("{fault:?}")));
    }
    lanes.into_values().collect()
}

/// The picture of a world that was run with [`crate::world::How::drawing`], and the command that ran it. `None` if it left
/// no history.
pub fn draw(scenario: &Scenario, outcome: &Outcome, command: &str) -> Option<String> {
    let past = outcome.past.as_ref()?;
    let faults_end = START + Span::from_ms((scenario.hours * 3_600_000.0) as i64);
    let mut moments = Vec::new();
    let has_faults = scenario.faults().next().is_some();
    if has_faults && past.to > faults_end {
        moments.push((faults_end, "the faults stop: everything must end".to_owned()));
    }
    let verdict = match &outcome.broken {
        Some(broken) => {
            moments.push((broken.at, format!("broken: {}", broken.rule)));
            format!("{} was broken", broken.rule)
        }
        None => "every invariant held".to_owned(),
    };
    let mut remarks = vec![
        "The names on the left are faults, with how often each happened. A tick stands for one or more.".to_owned(),
    ];
    if outcome.marks.len() >= MOST_MARKS {
        remarks.push(format!("Only the first {MOST_MARKS} faults are marked."));
    }
    let picture = Picture {
        title: format!(
            "Simulation, seed {}: {} h {}; {verdict}",
            scenario.seed,
            scenario.hours,
            if has_faults { "with faults" } else { "without faults" }
        ),
        command: command.to_owned(),
        past,
        lanes: lanes(&outcome.marks),
        moments,
        remarks,
    };
    Some(picture.svg())
}
