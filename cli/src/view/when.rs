//! When a job that waits starts: as far as the boots of this cluster tell it.
//!
//! Guarantees: the times come from measured boots of nodes of the same size, or of all nodes, and the text says how many there were. The
//! earliest time is that of a fast boot of any such node that boots, because the first job gets the first node. The latest time is that of
//! a slow boot of its own node, and of the wait for the run that it starts. `simulate`
//! counts how often a job starts in this range.
//! Does not: guess when other jobs end. It then says that nobody knows.

use model::{JobId, NodeRecord, Reason, Slot, Span, Time};
use poll_and_scale::FleetPlan;
use runtime::observation::Observation;
use std::fmt::{self, Display, Formatter};

/// A node is ready a moment after its first heartbeat, and that starts a run. In a large fleet such runs have a gap of up to 20 s.
const NEXT_RUN: Span = Span::from_s(20);

/// When a job that waits starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeseenStart {
    /// With its node. By the measured boots, this one still takes between `least` and `most`.
    Boots { least: Span, most: Span, measured: usize },
    /// With its node. No boot was measured, so nobody knows how long it takes.
    FirstBoot,
    /// When other work ends, or what its reason names.
    Unforeseen,
}

impl Display for ForeseenStart {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let boots = |n: usize| if n == 1 { "one boot was".to_owned() } else { format!("{n} boots were") };
        match *self {
            Self::Boots { most, measured, .. } if most <= Span::ZERO => {
                write!(f, "at any moment: its node boots longer than usual ({} measured)", boots(measured))
            }
            Self::Boots { least, most, measured } => {
                let (least, most) = (least.max(Span::ZERO).as_s(), most.as_s());
                let times = match most < 180.0 {
                    true => format!("{least:.0} to {most:.0} s"),
                    false => format!("{:.0} to {:.0} min", (least / 60.0).floor(), (most / 60.0).ceil()),
                };
                write!(f, "in {times}, or sooner where other work ends: its node boots ({} measured)", boots(measured))
            }
            Self::FirstBoot => f.write_str("when its node has booted: no boot was measured so far"),
            Self::Unforeseen => {
                f.write_str("not known: that depends on when other work ends, or on what its reason names")
            }
        }
    }
}

/// When the job starts; `None` if it does not wait, if it waits for a time of its own, or if it is paused.
pub fn starts(plan: &FleetPlan, observed: &Observation, id: JobId, now: Time) -> Option<ForeseenStart> {
    let waiting = plan.explained.waiting.iter().find(|waiting| waiting.jobs.contains(&id))?;
    let mut slots = Vec::new();
    for why in &waiting.why {
        match why {
            Reason::NodesBoot { slots: boot } | Reason::NodesLaunched { slots: boot } => slots.extend_from_slice(boot),
            Reason::NotBefore { .. } | Reason::RetryWaits { .. } | Reason::Paused {} => return None,
            _ => return Some(ForeseenStart::Unforeseen),
        }
    }
    // A job of several members starts with the last of its nodes.
    let boots = slots.iter().map(|slot| Boot::of(observed, *slot, now)).collect::<Option<Vec<_>>>();
    let last = boots.and_then(|boots| boots.into_iter().max_by_key(|boot| boot.most));
    Some(last.map_or(ForeseenStart::FirstBoot, |Boot { least, most, measured }| ForeseenStart::Boots {
        least,
        most,
        measured,
    }))
}

/// The shortest and the longest time until a node has work, and the number of boots that were measured.
struct Boot {
    least: Span,
    most: Span,
    measured: usize,
}

impl Boot {
    fn of(observed: &Observation, slot: Slot, now: Time) -> Option<Self> {
        let life = observed.nodes.iter().find(|node| node.slot == slot).and_then(NodeRecord::life);
        let size = life.map(|life| life.offering.size.as_str());
        let assigned_at = life.map_or(now, |life| life.assigned_at);
        let (fast, slow, measured) = measured(observed, size)?;
        let boots = observed.nodes.iter().filter(|node| node.contact().is_none()).filter_map(NodeRecord::life);
        let alike = boots.filter(|life| Some(life.offering.size.as_str()) == size).map(|life| life.assigned_at);
        let first = alike.fold(assigned_at, Time::min);
        Some(Self { least: (first + fast).since(now), most: (assigned_at + slow + NEXT_RUN).since(now), measured })
    }
}

/// A fast and a slow boot of this size, or of all, and how many were measured.
fn measured(observed: &Observation, size: Option<&str>) -> Option<(Span, Span, usize)> {
    let of = |is: &dyn Fn(&str) -> bool| {
        let lives = observed.nodes.iter().filter_map(|node| Some((node.life()?, node.contact()?)));
        let boots = lives.filter(|(life, _)| is(&life.offering.size));
        let mut boots: Vec<Span> = boots.map(|(life, c)| c.first_ping_at.since(life.assigned_at)).collect();
        boots.sort_unstable();
        boots
    };
    let mut boots = of(&|other| Some(other) == size);
    if boots.is_empty() {
        boots = of(&|_| true);
    }
    // Of ten boots the fastest and the slowest say little.
    let few = boots.len() / 10;
    let (fast, slow) = (*boots.get(few)?, *boots.get(boots.len() - 1 - few)?);
    // The next boot may be outside of what was measured.
    Some((Span::from_ms(fast.as_ms() * 4 / 5), Span::from_ms(slow.as_ms() * 6 / 5), boots.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures::{self, at};
    use model::policy::example_json;
    use model::{Job, JobSpec, Policy};

    #[test]
    fn a_time_comes_from_measured_boots_and_otherwise_it_is_said_that_none_is_known() {
        // Job 7 waits for slot 5, which was assigned at second 0. A node of the fixtures is heard first after 60 s.
        let says = |nodes: Vec<NodeRecord>, max: u32, now_s: i64| {
            let mut document = example_json();
            document["nodes"]["max"] = max.into();
            let mut observed = Observation::empty(Policy::from_json(&document).unwrap(), 1, at(now_s));
            for node in nodes {
                let instance = node.life().unwrap().instance_id.clone().unwrap();
                observed.instances.push(fixtures::running(&instance, &node));
                observed.nodes.push(node);
            }
            let mut spec = JobSpec::running(["true"]);
            spec.needs.vcpus = 2;
            observed.replace_job(Job::submit(fixtures::job_id(7), spec, at(0)).unwrap().summary);
            starts(&poll_and_scale::plan(&observed, at(now_s)), &observed, fixtures::job_id(7), at(now_s))
                .unwrap()
                .to_string()
        };
        let held = |n| fixtures::ready(n).with_intent(model::Intent::Hold, None, at(61)).unwrap();
        let boots = || fixtures::bound(5);
        let cases = [
            (
                vec![held(0), held(1), boots()],
                9,
                20,
                "in 28 to 72 s, or sooner where other work ends: its node boots (2 boots were measured)",
            ),
            (vec![held(0), boots()], 9, 143, "at any moment: its node boots longer than usual (one boot was measured)"),
            (vec![boots()], 9, 20, "when its node has booted: no boot was measured so far"),
            (vec![held(0)], 1, 20, "not known: that depends on when other work ends, or on what its reason names"),
        ];
        for (nodes, max, now_s, text) in cases {
            assert_eq!(says(nodes, max, now_s), text);
        }
    }
}
