//! The stage for spot instances that EC2 takes back: several of one pool at the same time count as a shortage of the pool.
//!
//! Guarantees: while EC2 empties a pool, no run launches in it again and again; the limit grows and ends as that of a shortage
//! does, so the pool is used again. One interruption alone limits nothing.
//! Does not: drain the nodes; heartbeat-ingest does.

use super::actions::{Action, FleetPlan, Note};
use super::view::View;
use crate::SPOT_WARNING;
use model::{ControlKey, LaunchError, Limit, Market, Offering, Reason, Refusal, Span, Subject, Time};
use std::collections::BTreeMap;

/// With this many interruptions at the same time, a pool counts as short.
const MANY: usize = 2;

pub(super) fn plan(view: &mut View<'_>, plan: &mut FleetPlan) {
    let mut pools: BTreeMap<ControlKey, (Offering, Vec<Time>)> = BTreeMap::new();
    for (_, life) in view.lives().filter(|(_, life)| life.offering.market == Market::Spot) {
        let Some(by) = life.interrupt_at else { continue };
        // The zone comes from the catalogue, as for a launch, and not from the instance: so both name the same pool.
        let subnet = life.offering.subnet_id.as_deref();
        let zone = subnet.and_then(|id| view.observed.policy.catalogue.zone_of(id)).map(str::to_owned);
        let offering = Offering { zone, ..life.offering.clone() };
        pools.entry(ControlKey::shortage_of(&offering)).or_insert_with(|| (offering, Vec::new())).1.push(by);
    }
    for (offering, taken) in pools.into_values().filter(|(_, taken)| taken.len() >= MANY) {
        let last = taken.iter().max().copied().unwrap_or(view.now);
        let known = view.observed.control.shortage(&offering);
        let refused_at = known.until_at.zip(known.wait_s).map(|(until, wait_s)| until - Span::from_s(wait_s));
        // A limit applies already, or these interruptions began one that is over.
        if known.is_refused_already(view.now) || refused_at.is_some_and(|at| at >= last - SPOT_WARNING) {
            continue;
        }
        let (market, instance_type) = (offering.market, &offering.instance_type);
        let reason = Reason::PoolTakenBack { pool: format!("{market} {instance_type}"), instances: taken.len() };
        let error = LaunchError::from(Refusal::short(reason.to_string()));
        let (policy, version) = (&view.observed.policy, view.observed.policy_version);
        let change = view.observed.control.after_refusal(&offering, &error, policy, version, view.now);
        view.limits.push(Limit { key: change.key.clone(), row: change.after.clone() });
        plan.add(Action::HoldBack { subject: Subject::Cluster, note: Note::Limit(Box::new(change)) }, reason);
    }
}
