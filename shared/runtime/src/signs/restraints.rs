//! Signs: limits, brakes, caps and quotas, which hold something back; also rows that no run uses, and recent warnings.
//!
//! Does not: end a limit or a brake, or correct a row.

use super::facts::{Facts, Raised, SignLevel, caps as caps_of};
use super::say::{one_line, rough, when};
use crate::catalogue;
use crate::observation::RECENT;
use model::control::UnreadableEntry;
use model::quotas::{self, QuotaUse};
use model::{ActionName, BrakeKind, ControlKey, Event, Limit, Reason, Subject};
use std::collections::HashSet;
use store::Table;

const CORRECT: &str = "correct or delete it";

/// The limits on launches: what each is about, since when and until when, and which jobs wait for it. The failed starts have
/// a sign of their own. A quota without waiting jobs is not wrong.
pub(super) fn limits(facts: &Facts<'_>) -> Vec<Raised> {
    let limits = facts.control.limits(facts.now);
    limits.iter().filter(|limit| limit.key != ControlKey::FailedStarts).map(|limit| limited(limit, facts)).collect()
}

fn limited(limit: &Limit, facts: &Facts<'_>) -> Raised {
    let waiting = facts.next.explained().map(|explained| limit.waiting_words(explained));
    let is_idle = limit.is_quota() && waiting.as_ref().is_some_and(String::is_empty);
    let level = if limit.needs_a_person() && !is_idle { SignLevel::Wrong } else { SignLevel::Caution };
    let since = limit.row.since_at.map(|at| format!(", since {}", when(at, facts.now))).unwrap_or_default();
    let left = limit.row.until_at.map(|until| format!("; next try in {}", rough(until.since(facts.now))));
    let waiting = waiting.filter(|words| !words.is_empty()).map(|words| format!("; {words}")).unwrap_or_default();
    let message = limit.row.message.as_ref().map(|m| format!(": {}", one_line(m))).unwrap_or_default();
    let says = format!("{limit}{since}{}{waiting}{message}", left.unwrap_or_default());
    Raised::new(&limit.key.to_string(), level, says, limit.to_do())
}

/// What keeps the policy from buying what it names.
pub(super) fn offers(facts: &Facts<'_>) -> Vec<Raised> {
    let level = |is_wrong| if is_wrong { SignLevel::Wrong } else { SignLevel::Caution };
    let faults = catalogue::faults(&facts.policy, facts.now);
    faults.iter().map(|fault| Raised::new("offers", level(fault.is_wrong), one_line(&fault.text), "")).collect()
}

/// Quotas of vCPUs that are nearly used, before EC2 refuses a launch for them.
pub(super) fn quotas(facts: &Facts<'_>) -> Vec<Raised> {
    let used = quotas::used(&facts.policy.catalogue.quotas, facts.nodes);
    let raise = |quota: &QuotaUse| {
        let says = format!("{} of {} vCPUs are used by this cluster", quota.used_vcpus, quota.vcpus);
        Raised::new(&quota.quota, SignLevel::Caution, says, "ask for more in Service Quotas, or lower nodes.max")
    };
    used.iter().filter(|quota| quota.is_nearly_used()).map(raise).collect()
}

/// What the brakes hold back, and their releases.
pub(super) fn brakes(facts: &Facts<'_>) -> Vec<Raised> {
    BrakeKind::ALL.iter().filter_map(|kind| braked(facts, *kind)).collect()
}

fn braked(facts: &Facts<'_>, kind: BrakeKind) -> Option<Raised> {
    let (brake, release) = (facts.control.brake(kind), facts.control.release(kind));
    if brake.holds_back(facts.now) {
        let message = brake.message.as_ref().map(|m| format!(": {}", one_line(m))).unwrap_or_default();
        let to_do = format!("`nodekeeper release {kind} --show` lists it; wait, or `nodekeeper release {kind}`");
        let key = ControlKey::Brake(kind).to_string();
        return Some(Raised::new(&key, SignLevel::Wrong, format!("held back{message}"), to_do));
    }
    let left = rough(release.until_at.filter(|_| release.applies(facts.now))?.since(facts.now));
    let says = format!("an operator released what was held; if no run uses the release, it ends in {left}");
    Some(Raised::new(&ControlKey::Release(kind).to_string(), SignLevel::Caution, says, ""))
}

/// A month that has cost its budget: nothing is launched in it any more.
pub(super) fn budget(facts: &Facts<'_>) -> Vec<Raised> {
    let reason = facts.policy.budget_spent(facts.nodes, facts.now);
    let raise = |why: Reason| {
        Raised::new("budget", SignLevel::Wrong, why.to_string(), "raise budget.dollars_per_month, or wait")
    };
    reason.map(raise).into_iter().collect()
}

pub(super) fn caps(facts: &Facts<'_>) -> Vec<Raised> {
    let caps = facts.next.explained().into_iter().flat_map(caps_of);
    caps.map(|cap| Raised::new(cap.word(), SignLevel::Caution, cap.to_string(), "")).collect()
}

/// The rows that nobody uses, and what else a person must correct in the tables.
pub(super) fn rows(facts: &Facts<'_>) -> Vec<Raised> {
    let explained = facts.next.explained().into_iter().flat_map(|explained| &explained.rows);
    let others = explained.map(|(subject, why)| (subject, why.to_string(), ""));
    let rows = facts.rows.iter().filter(|row| row.table != Table::Control);
    let rows = rows.map(|row| (&row.subject, row.what.clone(), CORRECT));
    let raise = |(subject, why, to_do): (&Subject, String, &str)| {
        Raised::new("row", SignLevel::Wrong, one_line(&format!("{subject}: {why}")), to_do)
    };
    let level = |is_known| if is_known { SignLevel::Wrong } else { SignLevel::Caution };
    let entry = |entry: &UnreadableEntry| {
        Raised::new("row", level(entry.is_of_this_version), one_line(&entry.to_string()), CORRECT)
    };
    others.chain(rows).map(raise).chain(facts.control.unreadable.iter().map(entry)).collect()
}

/// The rows of a table that only one function reads.
pub(super) fn rows_of(facts: &Facts<'_>, table: Table) -> Vec<Raised> {
    let rows = facts.rows.iter().filter(|row| row.table == table);
    rows.map(|row| Raised::new("row", SignLevel::Wrong, one_line(&row.what), CORRECT)).collect()
}

/// The warnings of the last hour. Of several with the same subject and reason, only the newest.
pub(super) fn warnings(facts: &Facts<'_>) -> Vec<Raised> {
    let is_recent = |event: &&Event| event.action == ActionName::Warn.as_str() && facts.now.since(event.at()) <= RECENT;
    let mut keys = HashSet::new();
    let newest = facts.events.iter().filter(is_recent).filter(|event| keys.insert((&event.subject, &event.reason)));
    let raise = |event: &Event| {
        let says = format!("warned {}: {}", when(event.at(), facts.now), one_line(&event.reason));
        Raised::new(&event.subject, SignLevel::Caution, says, "")
    };
    newest.map(raise).collect()
}
