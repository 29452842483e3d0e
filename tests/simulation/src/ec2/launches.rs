//! Launches: the call, what EC2 refuses, and the instances that it makes.
//!
//! Guarantees: a token that EC2 has carried out answers with the same instances again; a launch that takes longer than its
//! caller waits may still be carried out.
//! Does not: boot an instance (`life` does).

use super::{Ec2, Real, Refused, Region};
use crate::caller::Caller;
use crate::check::cloud::nodes_of;
use crate::core::{Fault, lock};
use model::cloud::{Instance, InstanceState, LaunchError, Refusal};
use model::enums::Reach;
use model::ids::NodeId;
use model::launch::LaunchRequest;
use model::time::{Span, Time};
use model::{Class, Offering};
use std::sync::Arc;
use std::time::Duration;

/// What EC2 does not accept, and how wide that is.
const REFUSED: &[(Reach, Class, &str)] = &[
    (Reach::Market, Class::Refused, "AuthFailure.ServiceLinkedRoleCreationNotPermitted"),
    (Reach::Subnet, Class::Refused, "InvalidSubnetID.NotFound"),
    (Reach::Subnet, Class::Short, "InsufficientFreeAddressesInSubnet"),
    (Reach::Template, Class::Refused, "InvalidAMIID.Unavailable"),
    (Reach::Request, Class::Refused, "InvalidParameterValue"),
    (Reach::Request, Class::Wrong, "InvalidUserData.Malformed"),
];

/// The quotas that can be reached.
const QUOTAS: &[(Reach, Class, &str)] = &[
    (Reach::Family, Class::Quota, "VcpuLimitExceeded"),
    (Reach::Type, Class::Quota, "InstanceLimitExceeded"),
    (Reach::Market, Class::Quota, "MaxSpotFleetRequestCountExceeded"),
];

fn refusal(reach: Reach, class: Class, code: &str) -> Refusal {
    Refusal { reach, class, message: format!("{code} (simulated)") }
}

impl Refused {
    /// Whether the refusal is about a launch of this offering.
    fn is_about(&self, offering: &Offering) -> bool {
        let like = &self.like;
        let same_market = like.market == offering.market;
        let same_type = same_market && like.instance_type == offering.instance_type;
        let same_place = like.subnet_id == offering.subnet_id;
        match self.refusal.reach {
            Reach::Account => true,
            Reach::Market => same_market,
            // Each simulated type is a family.
            Reach::Family | Reach::Type => same_type,
            Reach::Subnet => same_place,
            Reach::Template => {
                (&like.template, like.template_version) == (&offering.template, offering.template_version)
            }
            Reach::Offering => same_type && same_place,
            Reach::Request => same_market && like.size == offering.size && same_place,
        }
    }
}

impl Ec2 {
    /// One launch call.
    pub(super) async fn launch(
        self: &Arc<Self>,
        request: &LaunchRequest,
        client_token: &str,
    ) -> Result<Vec<Instance>, LaunchError> {
        let ec2 = self;
        let core = &ec2.core;
        let caller = Caller::current();
        caller.point().await;
        // A launch call tags what it launches.
        for operation in ["ec2:RunInstances", "ec2:CreateTags"] {
            core.called(caller.function(), operation, "");
        }
        core.count("a launch call was made");
        ec2.check.invariant_launch_calls_keep_their_pace(&caller);
        let nodes = nodes_of(request);
        nodes.iter().for_each(|node| caller.was_answered(*node, false));
        let within = !core.scenario.request_limits || {
            let (mut region, now) = (lock(&ec2.region), core.now());
            region.launch_limits.allow(request.count, now)
        };
        if !within || core.happens(Fault::LaunchThrottled) {
            let error = LaunchError::Throttled("RequestLimitExceeded (simulated)".into());
            caller.was_told(&request.offering, &error, core.now());
            return Err(error);
        }
        // The client gives up after 25 s. A call that is under way then may still be carried out.
        let slow = core.happens(Fault::LaunchSlow);
        let lands_ms = if slow { core.of(Fault::LaunchSlow, 5_000, 35_000) } else { core.between(50, 1500) };
        let offering = request.offering.clone();
        let (landing, request, token) = (Arc::clone(ec2), request.clone(), client_token.to_owned());
        let under_way = Arc::clone(&caller);
        let landed = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(lands_ms.unsigned_abs())).await;
            let (instances, are_new) = landing.land(&under_way, &request, &token)?;
            for instance in instances.iter().filter(|_| are_new) {
                let offering = &request.offering;
                landing.grow(instance.instance_id.clone(), offering.instance_type.clone(), offering.market);
            }
            Ok(instances)
        });
        let result = match tokio::time::timeout(Duration::from_secs(25), landed).await {
            Ok(Ok(result)) => result,
            _ => Err(LaunchError::Lost("no answer in 25 s (simulated)".into())),
        };
        // Any other refusal of a repeated call says nothing about the first one.
        let has_none = matches!(&result, Err(LaunchError::Refused(refusal)) if refusal.is_after_token());
        nodes.iter().for_each(|node| caller.was_answered(*node, has_none));
        if let Err(error) = &result
            && !matches!(error, LaunchError::Lost(_) | LaunchError::Throttled(_))
        {
            nodes.iter().for_each(|node| caller.was_refused(*node));
        }
        if let Err(error) = &result {
            caller.was_told(&offering, error, core.now());
        }
        caller.point().await;
        if result.is_ok() && core.happens(Fault::LaunchAnswerLost) {
            return Err(LaunchError::Lost("the answer was lost (simulated)".into()));
        }
        if let Ok(instances) = &result {
            let without: Vec<_> = nodes.iter().skip(instances.len()).collect();
            for node in &without {
                caller.was_refused(**node);
                caller.was_answered(**node, true);
            }
            if !without.is_empty() {
                core.count("a batch was cut short");
                caller.was_told(&offering, &Refusal::short("").into(), core.now());
            }
        }
        result
    }

    /// EC2 carries out or refuses a launch request. Returns the instances, and whether they are new.
    fn land(
        &self,
        caller: &Caller,
        request: &LaunchRequest,
        token: &str,
    ) -> Result<(Vec<Instance>, bool), LaunchError> {
        let zone = self.zone_of(request.offering.subnet_id.as_deref());
        let mut region = lock(&self.region);
        if let Some((earlier, ids)) = region.tokens.get(&(zone.to_owned(), token.to_owned())) {
            self.core.count("a launch token was used again");
            self.check.invariant_a_launch_is_repeated_as_it_was(token, earlier, request);
            if earlier != request {
                return Err(LaunchError::Lost("IdempotentParameterMismatch".into()));
            }
            let known: Vec<&Real> = ids.iter().filter_map(|id| region.instances.get(id)).collect();
            let live = known.iter().filter(|r| r.is_live()).count();
            // The documentation does not say how EC2 answers if only a part of the instances is terminated.
            if live == 0 || (live < ids.len() && self.core.maybe(0.5)) {
                return Err(LaunchError::Spent("IdempotentInstanceTerminated".into()));
            }
            return Ok((known.into_iter().map(|r| r.instance.clone()).collect(), false));
        }
        self.check.launching(&self.check.tables(), caller, request, token);
        self.refuse(&mut region, &request.offering, zone)?;
        let mut nodes = nodes_of(request);
        if nodes.is_empty() {
            return Err(refusal(Reach::Request, Class::Wrong, "no node id").into());
        }
        let room = self.core.scenario.quota.saturating_sub(region.live());
        if nodes.len() > room && (request.least > room || self.core.maybe(0.5)) {
            return Err(refusal(Reach::Account, Class::Quota, "InstanceLimitExceeded").into());
        }
        nodes.truncate(room);
        let pool_room = self.room(&region, &request.offering, zone);
        if pool_room < request.least {
            return Err(refusal(Reach::Offering, Class::Short, "InsufficientInstanceCapacity").into());
        }
        nodes.truncate(pool_room);
        if nodes.len() > 1 && self.core.happens(Fault::BatchCutShort) {
            if request.least > 1 {
                return Err(refusal(Reach::Offering, Class::Short, "InsufficientInstanceCapacity").into());
            }
            nodes.truncate(usize::try_from(self.core.of(Fault::BatchCutShort, 1, nodes.len() as i64 - 1)).unwrap_or(1));
        }
        let mut launched = Vec::new();
        for (index, node_id) in (0..).zip(nodes) {
            self.check.launched(node_id, region.instances.values());
            launched.push(self.create(&mut region, request, zone, node_id, index));
        }
        let ids = launched.iter().map(|i| i.instance_id.clone()).collect();
        region.tokens.insert((zone.to_owned(), token.to_owned()), (request.clone(), ids));
        Ok((launched, true))
    }

    /// How many more instances a pool has room for.
    fn room(&self, region: &Region, offering: &Offering, zone: &str) -> usize {
        let Some(pools) = self.core.scenario.pools() else { return usize::MAX };
        let of_pool = |real: &&Real| {
            let (is_type, is_zone) =
                (real.instance_type == offering.instance_type, real.instance.zone.as_deref() == Some(zone));
            is_type && is_zone && real.market == offering.market && real.is_live()
        };
        let used = region.instances.values().filter(of_pool).count();
        pools.room(&offering.instance_type, zone, offering.market, self.hour()).saturating_sub(used)
    }

    /// The errors that EC2 answers a launch with: a refusal of some part of it, the account's limit, no capacity.
    fn refuse(&self, region: &mut Region, offering: &Offering, zone: &str) -> Result<(), LaunchError> {
        let now = self.core.now();
        for (fault, kinds) in [
            (Fault::BadRequest, REFUSED),
            (Fault::LaunchNotAllowed, &[(Reach::Account, Class::Refused, "AuthFailure")]),
            (Fault::Quota, QUOTAS),
        ] {
            if self.core.happens(fault) {
                let n = self.core.of(fault, 0, kinds.len() as i64 - 1);
                let until = now + Span::from_s(self.core.of(fault, 30, 900));
                let kind = usize::try_from(n).ok().and_then(|n| kinds.get(n));
                let refused = kind.map(|(reach, class, code)| refusal(*reach, *class, code));
                region.refusals.extend(refused.map(|refusal| Refused { refusal, like: offering.clone(), until }));
            }
        }
        region.refusals.retain(|refused| now < refused.until);
        if let Some(refused) = region.refusals.iter().find(|refused| refused.is_about(offering)) {
            return Err(refused.refusal.clone().into());
        }
        if region.live() >= self.core.scenario.quota {
            return Err(refusal(Reach::Account, Class::Quota, "InstanceLimitExceeded").into());
        }
        if self.core.scenario.gone_subnet.is_some() && self.core.scenario.gone_subnet == offering.subnet_id {
            return Err(refusal(Reach::Subnet, Class::Refused, "InvalidSubnetID.NotFound").into());
        }
        let place = (offering.instance_type.clone(), zone.to_owned(), offering.market);
        if self.core.happens(Fault::Shortage) {
            let until = now + Span::from_s(self.core.of(Fault::Shortage, 30, 3600));
            region.shortages.insert(place.clone(), until);
        }
        let is_lost = |(lost, until): &(String, Time)| lost == zone && now < *until;
        if region.lost_zone.as_ref().is_some_and(is_lost) {
            return Err(refusal(Reach::Offering, Class::Short, "InsufficientInstanceCapacity").into());
        }
        let never = self.core.scenario.never_had.as_ref() == Some(&place.0);
        if never || region.shortages.get(&place).is_some_and(|until| now < *until) {
            return Err(refusal(Reach::Offering, Class::Short, "InsufficientInstanceCapacity").into());
        }
        Ok(())
    }

    fn create(
        &self,
        region: &mut Region,
        request: &LaunchRequest,
        zone: &str,
        node_id: NodeId,
        index: u32,
    ) -> Instance {
        let now = self.core.now();
        region.launched += 1;
        let instance = Instance {
            instance_id: format!("i-{:08x}", region.launched),
            state: InstanceState::Pending,
            launched_at: now,
            zone: Some(zone.to_owned()),
            launch_index: Some(index),
            tags: request.tags.clone(),
        };
        let lag = if self.core.happens(Fault::ListLags) { self.core.of(Fault::ListLags, 1, 300) } else { 0 };
        let real = Real {
            instance: instance.clone(),
            node_id,
            instance_type: request.offering.instance_type.clone(),
            market: request.offering.market,
            user_data: request.user_data.clone(),
            listed_from: now + Span::from_s(lag),
            hidden_until: None,
            untagged_at: None,
            forgotten_at: None,
            taken_at: None,
            before: None,
            machine: None,
        };
        self.core.count("an instance was launched");
        self.core.tell(|| "ec2".into(), || format!("{} launched as {node_id}", instance.instance_id));
        region.instances.insert(instance.instance_id.clone(), real);
        instance
    }
}
