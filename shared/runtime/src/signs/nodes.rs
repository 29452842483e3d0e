//! Signs: nodes and instances.
//!
//! Guarantees: a state that usually ends by itself needs an operator only after the time that it usually takes.
//! Does not: change a node. The plan decides what follows, by rules of its own.

use super::facts::{Facts, ForeseenPlan, Raised, SignLevel, at_most, first};
use super::say::{one_line, rough, several, when};
use model::control::ListReport;
use model::node::Reached;
use model::{JobState, NodeRecord, NodeState, NodeStatus, Slot, Span, Time};

/// How many nodes or instances a sign names.
const NAMED: usize = 5;
/// How long after its time a node that boots, synchronizes or is silent should have been replaced.
const MARGIN: Span = Span::from_s(300);
/// Drivers show their GPUs within this time. The sign names what is missing then, long before the run gives the node up.
const AWAITED: Span = Span::from_s(120);
/// A failed start that is older says nothing about the next one.
const STARTS_COUNT: Span = Span::from_s(86_400);
/// How long EC2's list may lack instances before an operator must act.
const UNLISTED: Span = Span::from_s(900);
/// The least time between two runs of poll-and-scale: a minute, less the first one's duration and late start.
const TWO_RUNS: Span = Span::from_s(45);
/// The same for clean-stale-records, which runs each five minutes.
const TWO_CLEANINGS: Span = Span::from_s(285);
/// Most instances end within this time.
const ENDS: Span = Span::from_s(600);
/// Nearly all instances end within this time.
const ENDS_AT_MOST: Span = Span::from_s(1800);
/// A wanted node should be ready within this time.
const READY: Span = Span::from_s(1800);

/// The first [`NAMED`] of these, and how many more there are.
fn named<T: ToString>(all: &[T]) -> String {
    let mut text = all.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if let Some(more) = all.len().checked_sub(NAMED).filter(|more| *more > 0) {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

/// The nodes that take no work: their agents say so, or they cannot reach a service that others reach.
pub(super) fn refusing(facts: &Facts<'_>) -> Vec<Raised> {
    let reached = Reached::of(facts.nodes, facts.now);
    let refusing = facts.nodes.iter().filter_map(|n| Some((n.slot, reached.refusal(n)?)));
    let raised = refusing.map(|(slot, why)| {
        let says = format!("slot {slot} takes no work: {}", one_line(&why));
        Raised::new("node", SignLevel::Wrong, says, "it is shut down when idle; mend the image or `launch.user_data`")
    });
    first(raised.collect(), |more| format!("and {more} more nodes take no work"))
}

/// The services that some nodes cannot reach, while no node gets through.
pub(super) fn services(facts: &Facts<'_>) -> Vec<Raised> {
    let away = Reached::of(facts.nodes, facts.now).away(facts.nodes, facts.now);
    let raised = away.into_iter().map(|(service, (nodes, why))| {
        let says = format!("{} cannot reach {service}, and no node gets through: {why}", several(nodes, "node"));
        let to_do =
            "look at the service, and at the way of the nodes to it; their jobs are lost and tried again meanwhile";
        Raised::new("service", SignLevel::Wrong, one_line(&says), to_do)
    });
    first(raised.collect(), |more| format!("and {more} more services"))
}

/// The nodes that can use fewer GPUs than their sizes have. The sign `node` tells of one that can use none, and `booting` of one that
/// has not been ready yet.
pub(super) fn sick_gpus(facts: &Facts<'_>) -> Vec<Raised> {
    let takes_work =
        |node: &&NodeRecord| node.status().is_some() && node.refuses().is_none() && node.awaits().is_none();
    let takes_work = facts.nodes.iter().filter(takes_work);
    let sick = takes_work.filter_map(|node| Some((node.slot, node.sick_gpus()?)));
    let raised = sick.map(|(slot, why)| {
        let says = format!("slot {slot}: {}", one_line(&why));
        let to_do = format!("`nodekeeper drain {slot}` has it replaced when what runs there has ended");
        Raised::new("gpus", SignLevel::Wrong, says, to_do)
    });
    first(raised.collect(), |more| format!("and {more} more nodes"))
}

/// The nodes with allocs that cannot be ended. Such an alloc holds its slot, and the handles of its job.
pub(super) fn unended(facts: &Facts<'_>) -> Vec<Raised> {
    let unended = facts.nodes.iter().filter_map(|node| Some((node.slot, node.contact()?.health.unended.as_deref()?)));
    let raised = unended.map(|(slot, allocs)| {
        let says = format!("slot {slot} cannot end {}: processes were killed and do not die", one_line(allocs));
        let to_do =
            format!("what do they wait for, a disk, NFS? `nodekeeper drain {slot} --by 0s` gives the machine up");
        Raised::new("unended", SignLevel::Wrong, says, to_do)
    });
    first(raised.collect(), |more| format!("and {more} more nodes"))
}

/// The nodes in use whose lease is over, and since when.
pub(super) fn silent(facts: &Facts<'_>) -> Vec<Raised> {
    let in_use = || facts.nodes.iter().filter(|n| n.status().is_some());
    let is_silent = |node: &&NodeRecord| node.contact().is_some_and(|c| c.lease_expires_at < facts.now);
    let heard = |node: &NodeRecord| node.contact().map(|c| (node.slot, c.last_ping_at));
    let silent: Vec<(Slot, Time)> = in_use().filter(is_silent).filter_map(heard).collect();
    if silent.is_empty() {
        return Vec::new();
    }
    let unusual = silent.len() as f64 > facts.policy.heartbeat.brake_fraction * in_use().count() as f64;
    let replaced_after = Span::from_s(facts.policy.shutdown.down_after_s) + MARGIN;
    let stays = silent.iter().any(|(_, heard)| facts.now.since(*heard) > replaced_after);
    let level = if (silent.len() > 1 && unusual) || stays { SignLevel::Wrong } else { SignLevel::Caution };
    let slots: Vec<String> =
        silent.iter().map(|(slot, heard)| format!("slot {slot} heard {}", when(*heard, facts.now))).collect();
    let says = format!("{} of {} in use silent: {}", silent.len(), several(in_use().count(), "node"), named(&slots));
    let to_do = if level == SignLevel::Wrong {
        "look at the instances in the console and at their way to the URL of heartbeat-ingest; `nodekeeper plan` says why they stay"
    } else {
        ""
    };
    vec![Raised::new("silent", level, says, to_do)]
}

pub(super) fn starts(facts: &Facts<'_>) -> Vec<Raised> {
    let (starts, now) = (facts.control.failed_starts(), facts.now);
    let recent = starts.since_at.is_some_and(|at| now.since(at) < STARTS_COUNT);
    let count = if recent || starts.applies(now) { starts.count.unwrap_or(0) } else { 0 };
    let level = match count {
        0 => return Vec::new(),
        1 => SignLevel::Caution,
        _ => SignLevel::Wrong,
    };
    let last = starts.since_at.map(|at| format!(", the last {}", when(at, now))).unwrap_or_default();
    let pause = starts.until_at.filter(|_| starts.applies(now));
    let pause = pause.map(|until| format!("; next try in {}", rough(until.since(now)))).unwrap_or_default();
    let message = starts.message.as_ref().map(|m| format!(": {}", one_line(m))).unwrap_or_default();
    let says = format!("{} failed in a row{last}{pause}{message}", several(count, "start"));
    let to_do = "see their console output in `nodekeeper history cluster`, and correct image, user data or network";
    vec![Raised::new("boot_failures", level, says, to_do)]
}

/// Since when a node boots or synchronizes.
fn boots_since(node: &NodeRecord) -> Option<(Time, &'static str)> {
    match &node.state {
        NodeState::Assigned(life) => Some((life.assigned_at, "boots")),
        NodeState::InUse(node) if node.contact.status == NodeStatus::Syncing => {
            Some((node.contact.syncing_since_at?, "synchronizes"))
        }
        _ => None,
    }
}

pub(super) fn booting(facts: &Facts<'_>) -> Vec<Raised> {
    let look = Span::from_s(facts.policy.boot.timeout_s) + MARGIN;
    let wrong = look + Span::from_s(facts.policy.heartbeat.blackout_s);
    let late = facts.nodes.iter().filter_map(|node| {
        let (since, does) = boots_since(node)?;
        let waited = facts.now.since(since);
        let level = if waited > wrong { SignLevel::Wrong } else { SignLevel::Caution };
        let untaken = node.contact().and_then(|c| c.untaken.as_deref()).map(|why| format!(": {}", one_line(why)));
        let untaken = untaken.unwrap_or_default();
        let (told_after, says) = match node.awaits() {
            Some(lacks) => (AWAITED, format!("slot {} boots since {}: {lacks}", node.slot, rough(waited))),
            None => (look, format!("slot {} {does} since {} and is not given up{untaken}", node.slot, rough(waited))),
        };
        (waited > told_after).then_some((level, says))
    });
    at_most("booting", late, "nodekeeper nodes")
}

pub(super) fn unready(facts: &Facts<'_>) -> Vec<Raised> {
    let jobs = facts
        .jobs
        .iter()
        .filter(|job| job.state == JobState::Queued && !job.is_ineligible())
        .map(|job| job.submitted_at);
    let nodes = facts.nodes.iter().filter_map(boots_since).map(|(since, _)| since);
    let waited = jobs.chain(nodes).min().map(|since| facts.now.since(since)).filter(|waited| *waited >= READY);
    let (ForeseenPlan::Planned(_, count @ 1..), Some(waited)) = (facts.next, waited) else { return Vec::new() };
    let says = format!("{} wanted and not ready, and the longest wait is {}", several(count, "node"), rough(waited));
    vec![Raised::new(
        "unready",
        SignLevel::Caution,
        says,
        "`nodekeeper plan` says what limits launches and which nodes boot",
    )]
}

pub(super) fn shutting_down(facts: &Facts<'_>) -> Vec<Raised> {
    let late = facts.nodes.iter().filter(|node| matches!(node.state, NodeState::ShuttingDown(_))).filter_map(|node| {
        let waited = facts.now.since(node.modified_at);
        let level = if waited > ENDS_AT_MOST { SignLevel::Wrong } else { SignLevel::Caution };
        let instance = node.life().and_then(|life| life.instance_id.as_deref()).unwrap_or("its instance");
        let says = format!("slot {} is shut down since {}, and EC2 has not ended {instance}", node.slot, rough(waited));
        (waited > ENDS).then_some((level, says))
    });
    at_most("shutting_down", late, "nodekeeper nodes")
}

/// The instances that EC2 does not list. In a large fleet, poll-and-scale asks only for those in question, and only
/// clean-stale-records reads the whole list.
pub(super) fn unlisted(facts: &Facts<'_>) -> Vec<Raised> {
    let raised = unlisted_in_part(facts);
    if raised.is_empty() { unlisted_in_all(facts) } else { raised }
}

/// What poll-and-scale found.
pub(super) fn unlisted_in_part(facts: &Facts<'_>) -> Vec<Raised> {
    unlisted_of(&facts.polled, TWO_RUNS, facts.now)
}

/// What clean-stale-records found.
pub(super) fn unlisted_in_all(facts: &Facts<'_>) -> Vec<Raised> {
    unlisted_of(&facts.cleaned, TWO_CLEANINGS, facts.now)
}

/// Two runs found it if it lasts for this long.
fn unlisted_of(found: &ListReport, two_runs: Span, now: Time) -> Vec<Raised> {
    let since = found.unlisted_since_at.filter(|_| found.unlisted > 0);
    let Some(span) = since.map(|since| now.since(since)).filter(|span| *span >= two_runs) else { return Vec::new() };
    let (unlisted, named) = (found.unlisted, several(found.named, "instance"));
    let (says, all) = match unlisted == found.named {
        true => (format!("EC2 has listed none of the {named} that records name for {}", rough(span)), true),
        false => (format!("EC2 has not listed {unlisted} of the {named} that records name for {}", rough(span)), false),
    };
    let to_do = "look in the console whether they are there: the list may be wrong, or somebody has terminated them";
    let level = if all || span >= UNLISTED { SignLevel::Wrong } else { SignLevel::Caution };
    vec![Raised::new("instances", level, says, to_do)]
}

pub(super) fn strangers(facts: &Facts<'_>) -> Vec<Raised> {
    let strangers = &facts.cleaned.strangers;
    if strangers.is_empty() {
        return Vec::new();
    }
    let are = if strangers.len() == 1 { "instance has" } else { "instances have" };
    let says = format!(
        "{} {are} the tag of the cluster and no readable node id, so nobody ends it: {}",
        strangers.len(),
        named(strangers)
    );
    vec![Raised::new("strangers", SignLevel::Wrong, says, "terminate it, or take the tag nodekeeper:cluster off it")]
}

pub(super) fn orphans(facts: &Facts<'_>) -> Vec<Raised> {
    let (count, since) = (facts.cleaned.orphans, facts.cleaned.orphans_since_at);
    let Some(since) = since.filter(|_| count > 0) else { return Vec::new() };
    let again = facts.cleaned.orphans_runs > 1;
    let level = if again { SignLevel::Wrong } else { SignLevel::Caution };
    let says = format!("{} without a node, found {}", several(count, "instance"), when(since, facts.now));
    let to_do = if again {
        "`nodekeeper release orphans --show` lists what a brake holds; else the log of clean-stale-records says why they are not terminated"
    } else {
        ""
    };
    vec![Raised::new("orphans", level, says, to_do)]
}
