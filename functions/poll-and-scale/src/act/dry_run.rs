//! A dry run: EC2 is asked for one node of each size, and launches none.
//!
//! CreateFleet judges in a dry run whether the caller may make it, and its form. RunInstances judges also what the launch uses: the
//! template with its image and its role, the type and the subnet. So both are made. A size has up to 32 ways, and a call takes up to a
//! second of the run and one of `launch.calls_per_second`. So only those ways are asked for which the first launch of the size would
//! name, and RunInstances for the first of them: `doctor` looks at all subnets itself.
//!
//! Guarantees: the calls are rendered as those of a launch; nothing is launched or written; after a refusal nothing that it covers is
//! asked for.
//! Does not: know whether EC2 has capacity or a quota room: EC2 looks at neither in a dry run. It leaves the sizes for which the run
//! has no time.
//! Source: EC2 API reference, "CreateFleet" and "RunInstances"; aws/karpenter-provider-aws, pull request 7624 (both calls).

use super::acting::Acting;
use super::ways::calls_of;
use crate::plan::every_offering;
use model::control::LimitChange;
use model::{Cloud, LaunchCall, LaunchRequest, LaunchSettings, Limit, NodeId, Offering, Slot};
use runtime::run::Run;
use runtime::signs::{Raised, SignLevel};
use std::collections::BTreeMap;

/// What EC2 refuses, each with what to do about it.
pub async fn dry_run(run: Run<'_>, cloud: &dyn Cloud, settings: &LaunchSettings) -> Vec<Raised> {
    let acting = Acting::new(run, cloud, settings);
    let (policy, mut raised) = (&acting.run.observed.policy, Vec::new());
    let mut of_size: BTreeMap<&str, Vec<Offering>> = BTreeMap::new();
    for size in &policy.size {
        of_size.entry(&size.name).or_default().extend(every_offering(policy, size, None));
    }
    for ways in of_size.values_mut() {
        ways.sort_by_key(|way| way.price_per_hour);
        let mut calls = calls_of(ways, policy.launch.zone_share, acting.rate.launch_call());
        let Some(mut ways) = acting.next_ways(&mut calls).await else { continue };
        raised.extend(acting.try_call(LaunchCall::Fleet, &ways).await);
        ways.truncate(1);
        raised.extend(acting.try_call(LaunchCall::One, &ways).await);
    }
    raised
}

impl Acting<'_> {
    /// What EC2 refuses of this call, unless it has refused that already. The words are those of the limit that a launch notes.
    async fn try_call(&self, call: LaunchCall, ways: &[Offering]) -> Option<Raised> {
        let (first, slot) = (ways.first()?, Slot::below(1).next()?);
        let is_fleet_refused = call == LaunchCall::Fleet && self.rate.launch_call() == LaunchCall::One;
        if is_fleet_refused || self.rate.is_refused(first) {
            return None;
        }
        let node_id = NodeId::new(slot, self.run.store.rng().ulid(self.run.now()));
        let request = LaunchRequest { call, is_dry_run: true, ..self.render(node_id, ways) };
        let error = self.cloud.launch(&request, &node_id.to_string()).await.err()?;
        let LimitChange { key, after: row, .. } = self.limit_after(first, &error);
        let limit = Limit { key, row };
        let level = if limit.needs_a_person() { SignLevel::Wrong } else { SignLevel::Caution };
        let text = format!("{limit}, met with size {}: {error}", first.size);
        Some(Raised::new("launch", level, text, limit.to_do()))
    }
}
