//! The calls of EC2 as the functions make them.
//!
//! Guarantees: a list shows only what EC2 would show then; a call that names an id that EC2 does not know is refused as a
//! whole, and has no effect.
//! Does not: launch (`launches` does), or end instances (`life` does).

use super::{Ec2, Real};
use crate::caller::{Caller, Kind};
use crate::core::{Fault, lock};
use async_trait::async_trait;
use cloud::by_id::{self, ById};
use model::{
    Cloud, CloudError, Instance, InstanceState, LaunchAnswer, LaunchError, LaunchRequest, NodeId, Offers, Span, Time,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long after a change a list may show the state before.
const OLDER_STATE: Span = Span::from_s(120);

impl Ec2 {
    pub(super) async fn call(&self, operation: &'static str) -> Result<Arc<Caller>, CloudError> {
        let caller = Caller::current();
        caller.point().await;
        // EC2 has one call for one instance by its id and for all instances.
        let name = if operation == "DescribeInstance" { "DescribeInstances" } else { operation };
        self.core.called(caller.function(), &format!("ec2:{name}"), "");
        let slow = self.core.happens(Fault::Ec2Slow);
        let ms = if slow {
            self.core.of(Fault::Ec2Slow, 500, 20_000)
        } else {
            self.core.between(1, self.core.scenario.latency_ms * 2)
        };
        tokio::time::sleep(Duration::from_millis(ms.unsigned_abs())).await;
        if slow && operation != "DescribeInstances" {
            caller.was_held_up(self.core.now());
        }
        if operation.starts_with("DescribeInstance") && self.core.happens(Fault::ListFails) {
            return Err(CloudError::Unreachable { operation, detail: "it broke (simulated)".into() });
        }
        Ok(caller)
    }

    /// The instance as a list shows it: perhaps in an older state.
    fn listed(&self, real: &Real) -> Instance {
        let mut instance = real.instance.clone();
        let recent = real.before.filter(|(_, changed_at)| self.core.now().since(*changed_at) < OLDER_STATE);
        if let Some((state, _)) = recent
            && self.core.happens(Fault::ListsOlderState)
        {
            instance.state = state;
        }
        instance
    }

    /// Makes a call, and returns what its answer shows of the instances that it should show.
    pub(super) async fn shown(
        &self,
        operation: &'static str,
        is_wanted: impl Fn(&Real, Time) -> bool,
    ) -> Result<Vec<Instance>, CloudError> {
        let caller = self.call(operation).await?;
        Ok(self.show(&caller, is_wanted).await)
    }

    /// As [`Self::shown`], after the call has begun.
    async fn show(&self, caller: &Caller, is_wanted: impl Fn(&Real, Time) -> bool) -> Vec<Instance> {
        let core = &self.core;
        let now = core.now();
        if core.happens(Fault::ListCollapses) {
            let until = now + Span::from_s(core.of(Fault::ListCollapses, 60, 900));
            lock(&self.region).collapse_until = Some(until);
        }
        let shown: Vec<Instance> = {
            let mut region = lock(&self.region);
            region.instances.retain(|_, r| r.forgotten_at.is_none_or(|at| now < at));
            let collapsed = region.collapse_until.is_some_and(|until| now < until);
            let shown = region.instances.values().filter(|r| is_wanted(r, now)).enumerate();
            shown
                .filter(|(n, _)| (!collapsed || n % 4 == 0) && !core.happens(Fault::ListForgets))
                .map(|(_, r)| self.listed(r))
                .collect()
        };
        let works = |i: &&Instance| matches!(i.state, InstanceState::Pending | InstanceState::Running);
        shown.iter().filter(|i| !works(i)).for_each(|i| caller.lists_as_leaving(&i.instance_id));
        caller.point().await;
        shown
    }
}

/// The cloud as the functions see it.
pub struct Seen(pub Arc<Ec2>);

#[async_trait]
impl Cloud for Seen {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        let listed = self.0.shown("DescribeInstances", |real, now| real.is_listed(now)).await?;
        let caller = Caller::current();
        if caller.kind == Kind::Run(clean_stale_records::FUNCTION) {
            // The observation of clean-stale-records counts from the end of the list (`docs/rules.md#R6`).
            caller.observes_from(self.0.core.now());
        }
        Ok(listed)
    }

    async fn instances_by_id(&self, instance_ids: &[String]) -> Result<Vec<Instance>, CloudError> {
        // The product's own code handles a call that EC2 refuses because of an unknown id.
        by_id::instances(&Naming::new(&self.0), instance_ids).await
    }

    async fn instances_of(&self, nodes: &BTreeSet<NodeId>) -> Result<Vec<Instance>, CloudError> {
        let of_nodes = |real: &Real, now| real.is_listed(now) && nodes.iter().any(|node| real.was_launched_for(*node));
        self.0.shown("DescribeInstance", of_nodes).await
    }

    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError> {
        let ec2 = &self.0;
        let caller = ec2.call("DescribeInstance").await?;
        let now = ec2.core.now();
        let found = ec2.one(instance_id);
        let found = found.filter(|r| !r.is_hidden(now) && r.forgotten_at.is_none_or(|at| now < at));
        caller.point().await;
        Ok(found.map(|r| r.instance))
    }

    async fn launch(&self, request: &LaunchRequest, client_token: &str) -> Result<LaunchAnswer, LaunchError> {
        let result = self.0.launch(request, client_token).await;
        let is_wasted = result.as_ref().map_or(true, |answer| answer.instances.is_empty());
        self.0.check.launch_called(request.count, is_wasted);
        result
    }

    fn offers(&self) -> Option<&dyn Offers> {
        let scenario = &self.0.core.scenario;
        let has_offers = [Fault::SeveralTypes, Fault::Reservations].iter().any(|what| scenario.chance(*what) > 0.0);
        (has_offers || scenario.replay.is_some()).then_some(self)
    }

    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError> {
        by_id::terminate(&Naming::new(&self.0), instance_ids).await
    }

    async fn console_output(&self, _: &str) -> Result<Option<String>, CloudError> {
        self.0.call("GetConsoleOutput").await?;
        Ok(Some("kernel panic (simulated)".into()))
    }
}

/// The calls that name instances, of one caller.
struct Naming<'a> {
    ec2: &'a Arc<Ec2>,
    /// Whether a call was made already. A later call follows only from an unknown id. It takes time from a stream of
    /// its own, so that worlds without unknown ids stay as they were.
    again: AtomicBool,
}

impl<'a> Naming<'a> {
    const fn new(ec2: &'a Arc<Ec2>) -> Self {
        Self { ec2, again: AtomicBool::new(false) }
    }

    /// Begins a call. Returns the caller, and whether this is a later call.
    async fn begin(&self, operation: &'static str) -> Result<(Arc<Caller>, bool), CloudError> {
        let again = self.again.swap(true, Ordering::Relaxed);
        if !again {
            return Ok((self.ec2.call(operation).await?, false));
        }
        let caller = Caller::current();
        caller.point().await;
        let core = &self.ec2.core;
        let ms = core.of(Fault::IdsNotNamed, 1, core.scenario.latency_ms * 2);
        tokio::time::sleep(Duration::from_millis(ms.unsigned_abs())).await;
        Ok((caller, true))
    }

    /// The refusal of a call that names an id that EC2 does not know. Usually the message names the ids.
    fn refusal(&self, operation: &'static str, instance_ids: &[String]) -> Option<CloudError> {
        let (core, now) = (&self.ec2.core, self.ec2.core.now());
        let is_unknown = |id: &&String| self.ec2.one(id).is_none_or(|real| real.is_unknown(now));
        let unknown: Vec<&str> = instance_ids.iter().filter(is_unknown).map(String::as_str).collect();
        if unknown.is_empty() {
            return None;
        }
        core.count("a call named an id that EC2 does not know");
        let named = if core.happens(Fault::IdsNotNamed) { String::new() } else { unknown.join(", ") };
        let message = format!("The instance IDs '{named}' do not exist (simulated)");
        Some(CloudError::Refused { operation, code: "InvalidInstanceID.NotFound".into(), message })
    }
}

#[async_trait]
impl ById for Naming<'_> {
    async fn describe(&self, instance_ids: &[String]) -> Result<Vec<Instance>, CloudError> {
        let operation = "DescribeInstance";
        let (caller, _) = self.begin(operation).await?;
        if let Some(refusal) = self.refusal(operation, instance_ids) {
            return Err(refusal);
        }
        let wanted: BTreeSet<&str> = instance_ids.iter().map(String::as_str).collect();
        // Instances that have lost their tags are left out here already.
        let is_wanted = |real: &Real, now| real.is_listed(now) && wanted.contains(real.instance.instance_id.as_str());
        Ok(self.ec2.show(&caller, is_wanted).await)
    }

    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError> {
        let (ec2, operation) = (self.ec2, "TerminateInstances");
        let (caller, again) = self.begin(operation).await?;
        let core = &ec2.core;
        let failed = || CloudError::Unreachable { operation, detail: "it broke (simulated)".into() };
        if !again && core.happens(Fault::TerminateFails) {
            return Err(failed());
        }
        if let Some(refusal) = self.refusal(operation, instance_ids) {
            return Err(refusal);
        }
        let some = !again && core.happens(Fault::TerminatesSome);
        for (n, id) in instance_ids.iter().enumerate() {
            if some && n % 2 == 1 {
                continue;
            }
            let Some(real) = ec2.one(id) else { continue };
            if matches!(real.instance.state, InstanceState::Terminated | InstanceState::ShuttingDown) {
                continue;
            }
            ec2.check.terminating(&ec2.check.tables(), &caller, &real);
            core.count("an instance was terminated");
            let slow = core.happens(Fault::TerminatesSlowly);
            let after_s = if slow { core.of(Fault::TerminatesSlowly, 60, 1200) } else { core.between(5, 60) };
            ec2.end(id, after_s, &format!("terminated by {}", caller.name()));
        }
        caller.point().await;
        if some { Err(failed()) } else { Ok(()) }
    }
}
