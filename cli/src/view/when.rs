//! When a job that waits starts: as far as the boots of this cluster tell it.
//!
//! Guarantees: a time is the middle of the measured boots of nodes of the same size, or of all nodes, and says how many they are.
//! Does not: guess when other jobs end. It then says that nobody knows.

use crate::console::show::rough;
use model::{JobId, NodeRecord, Reason, Slot, Span, Time};
use poll_and_scale::FleetPlan;
use runtime::observation::Observation;

/// When the job starts, in words; `None` if it does not wait, or if its own times say it.
pub(crate) fn starts(plan: &FleetPlan, observed: &Observation, id: JobId, now: Time) -> Option<String> {
    let waiting = plan.explained.waiting.iter().find(|waiting| waiting.jobs.contains(&id))?;
    let mut slots = Vec::new();
    for why in &waiting.why {
        match why {
            Reason::NodesBoot { slots: boot } | Reason::NodesLaunched { slots: boot } => slots.extend_from_slice(boot),
            Reason::NotBefore { .. } | Reason::RetryWaits { .. } | Reason::Paused {} => return None,
            _ => {
                return Some("not known: that depends on when other work ends, or on what its reason names".to_owned());
            }
        }
    }
    // A job of several members starts with the last of its nodes.
    let lefts = slots.iter().map(|slot| left(observed, *slot, now)).collect::<Option<Vec<_>>>();
    let Some((left, boots)) = lefts.and_then(|lefts| lefts.into_iter().max()) else {
        return Some("when its node has booted: no boot was measured so far".to_owned());
    };
    let measured = if boots == 1 { "one boot was".to_owned() } else { format!("{boots} boots were") };
    Some(match left > Span::ZERO {
        true => format!("in about {}: its node boots ({measured} measured)", rough(left)),
        false => format!("at any moment: its node boots longer than usual ({measured} measured)"),
    })
}

/// How long the boot of the node of this slot still takes, and how many boots say so.
fn left(observed: &Observation, slot: Slot, now: Time) -> Option<(Span, usize)> {
    let life = observed.nodes.iter().find(|node| node.slot == slot).and_then(NodeRecord::life);
    let size = life.map(|life| life.offering.size.as_str());
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
    let middle = *boots.get(boots.len() / 2)?;
    let since = life.map_or(Span::ZERO, |life| now.since(life.assigned_at));
    Some((Span::from_ms((middle.as_ms() - since.as_ms()).max(0)), boots.len()))
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
            starts(&poll_and_scale::plan(&observed, at(now_s)), &observed, fixtures::job_id(7), at(now_s)).unwrap()
        };
        let held = |n| fixtures::ready(n).with_intent(model::Intent::Hold, None, at(61)).unwrap();
        let boots = || fixtures::bound(5);
        let cases = [
            (vec![held(0), held(1), boots()], 9, 20, "in about 40 s: its node boots (2 boots were measured)"),
            (vec![held(0), boots()], 9, 70, "at any moment: its node boots longer than usual (one boot was measured)"),
            (vec![boots()], 9, 20, "when its node has booted: no boot was measured so far"),
            (vec![held(0)], 1, 20, "not known: that depends on when other work ends, or on what its reason names"),
        ];
        for (nodes, max, now_s, text) in cases {
            assert_eq!(says(nodes, max, now_s), text);
        }
    }
}
