//! Launches: the call, what EC2 refuses, and the instances that it makes.
//!
//! Guarantees: a token that EC2 has carried out gives the same answer again; a launch that takes longer than its caller waits
//! may still be carried out; a call may launch any number of instances, in any split over its ways.
//! Does not: boot an instance (`life` does).

use super::{Ec2, Real, Refused, Region};
use crate::caller::Caller;
use crate::check::cloud::nodes_of;
use crate::core::{Fault, lock};
use model::{
    Class, Instance, InstanceState, LaunchAnswer, LaunchCall, LaunchError, LaunchRequest, Market, NewInstance, NodeId,
    Offering, Reach, Refusal, Span, Time,
};
use std::sync::Arc;
use std::time::Duration;

/// The refusals of a part of a launch: how wide each is, its class and its code.
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
            Reach::Fleet => false,
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
    pub(super) async fn launch(
        self: &Arc<Self>,
        request: &LaunchRequest,
        client_token: &str,
    ) -> Result<LaunchAnswer, LaunchError> {
        let core = &self.core;
        let caller = Caller::current();
        caller.point().await;
        // A launch call makes instances and tags them.
        for operation in ["ec2:CreateFleet", "ec2:RunInstances", "ec2:CreateTags"] {
            core.called(caller.function(), operation, "");
        }
        core.count("a launch call was made");
        self.check.invariant_launch_calls_keep_their_pace(&caller);
        let nodes = nodes_of(request);
        nodes.iter().for_each(|node| caller.was_answered(*node, false));
        let first = request.ways.first().cloned();
        let within = !core.scenario.request_limits || {
            let (mut region, now) = (lock(&self.region), core.now());
            region.launch_limits.allow(request.count, now)
        };
        if !within || core.happens(Fault::LaunchThrottled) {
            let error = LaunchError::Throttled("RequestLimitExceeded (simulated)".into());
            first.iter().for_each(|way| caller.was_told(way, &error, core.now()));
            nodes.iter().for_each(|node| caller.was_refused(*node));
            return Err(error);
        }
        let mut result = self.wait_for(&caller, request, client_token).await;
        if result.is_ok() && core.happens(Fault::LaunchAnswerLost) {
            result = Err(LaunchError::Lost("the answer was lost (simulated)".into()));
        }
        match &result {
            Ok(answer) => self.was_answered(&caller, &nodes, request, answer),
            Err(error) => {
                first.iter().for_each(|way| caller.was_told(way, error, core.now()));
                if matches!(error, LaunchError::Refused(_)) {
                    nodes.iter().for_each(|node| caller.was_refused(*node));
                }
            }
        }
        caller.point().await;
        result
    }

    /// Waits for EC2 to carry out the call. The client gives up after 25 s. A call that is under way then may still be carried
    /// out.
    async fn wait_for(
        self: &Arc<Self>,
        caller: &Arc<Caller>,
        request: &LaunchRequest,
        client_token: &str,
    ) -> Result<LaunchAnswer, LaunchError> {
        let core = &self.core;
        let slow = core.happens(Fault::LaunchSlow);
        let lands_ms = if slow { core.of(Fault::LaunchSlow, 5_000, 35_000) } else { core.between(50, 1500) };
        let (landing, request, token) = (Arc::clone(self), request.clone(), client_token.to_owned());
        let under_way = Arc::clone(caller);
        let landed = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(lands_ms.unsigned_abs())).await;
            let (answer, are_new) = landing.land(&under_way, &request, &token)?;
            for instance in answer.instances.iter().filter(|_| are_new) {
                let kind = instance.instance_type.clone().unwrap_or_default();
                let market = request.ways.first().map_or(Market::OnDemand, |way| way.market);
                landing.grow(instance.instance_id.clone(), kind, market);
            }
            Ok(answer)
        });
        match tokio::time::timeout(Duration::from_secs(25), landed).await {
            Ok(Ok(result)) => result,
            _ => Err(LaunchError::Lost("no answer in 25 s (simulated)".into())),
        }
    }

    /// Notes the answer for each node and for each way.
    fn was_answered(&self, caller: &Caller, nodes: &[NodeId], request: &LaunchRequest, answer: &LaunchAnswer) {
        let core = &self.core;
        for (way, error) in &answer.refused {
            caller.was_told(way, error, core.now());
        }
        let without: Vec<_> = nodes.iter().skip(answer.instances.len()).collect();
        for node in &without {
            caller.was_refused(**node);
            caller.was_answered(**node, true);
        }
        if without.is_empty() || answer.instances.is_empty() {
            return;
        }
        core.count("a batch was cut short");
        if let (Some(way), true) = (request.ways.first(), answer.refused.is_empty()) {
            caller.was_told(way, &Refusal::short("").into(), core.now());
        }
    }

    /// EC2 carries out or refuses a launch request. Returns the answer, and whether its instances are new.
    fn land(&self, caller: &Caller, request: &LaunchRequest, token: &str) -> Result<(LaunchAnswer, bool), LaunchError> {
        let mut region = lock(&self.region);
        if let Some((earlier, answer)) = region.tokens.get(token) {
            self.core.count("a launch token was used again");
            self.check.invariant_a_launch_is_repeated_as_it_was(token, earlier, request);
            if earlier != request {
                return Err(LaunchError::Lost("IdempotentParameterMismatch".into()));
            }
            return Ok((answer.clone(), false));
        }
        self.check.launching(&self.check.tables(), caller, request, token);
        let first = request.ways.first().and_then(|way| way.reservation.as_ref());
        if let Some(known) = first.and_then(|reserved| self.reservation(&region, &reserved.id)) {
            self.check.invariant_no_call_asks_for_more_than_is_reserved(request, &known);
        }
        let nodes = nodes_of(request);
        if nodes.is_empty() {
            return Err(refusal(Reach::Request, Class::Wrong, "no node id").into());
        }
        self.check.invariant_a_call_names_one_subnet_of_each_zone(request, |subnet| self.zone_of(subnet));
        if self.core.happens(Fault::FleetNotTaken) {
            let lasts = Span::from_s(self.core.of(Fault::FleetNotTaken, 30, 7_200));
            region.no_fleet_until = Some(self.core.now() + lasts);
        }
        if request.call == LaunchCall::Fleet && region.no_fleet_until.is_some_and(|until| self.core.now() < until) {
            return Err(refusal(Reach::Fleet, Class::Wrong, "UnknownParameter").into());
        }
        let mut answer = LaunchAnswer::default();
        for way in self.in_order(&request.ways) {
            let left = nodes.len() - answer.instances.len();
            if left == 0 {
                break;
            }
            let zone = self.zone_of(way.subnet_id.as_deref());
            let error = match self.possible(&mut region, request, way, left) {
                Ok(count) => {
                    for _ in 0..count {
                        self.check.launched(&nodes, region.instances.values());
                        answer.instances.push(self.create(&mut region, request, (way, zone), &nodes));
                    }
                    continue;
                }
                Err(error) => error,
            };
            // An error of the whole call is not the error of one way.
            if let LaunchError::Refused(refused) = &error
                && answer.instances.is_empty()
                && matches!(refused.class, Class::Refused | Class::Wrong)
                && matches!(refused.reach, Reach::Account | Reach::Template | Reach::Request)
            {
                return Err(error);
            }
            answer.refused.push((way.clone(), error));
        }
        if !answer.refused.is_empty() && !answer.instances.is_empty() {
            self.core.count("a launch went on with its next way");
        }
        region.tokens.insert(token.to_owned(), (request.clone(), answer.clone()));
        Ok((answer, true))
    }

    /// The order in which EC2 tries the ways of a call. On the spot market the order is not known.
    fn in_order<'w>(&self, ways: &'w [Offering]) -> Vec<&'w Offering> {
        let mut ordered: Vec<&Offering> = ways.iter().collect();
        if ways.len() > 1 && ways.first().is_some_and(|way| way.market == Market::Spot) {
            let first = self.core.between(0, ways.len() as i64 - 1);
            ordered.rotate_left(usize::try_from(first).unwrap_or(0));
        }
        ordered
    }

    /// How many of `left` instances EC2 launches by this way.
    fn possible(
        &self,
        region: &mut Region,
        request: &LaunchRequest,
        way: &Offering,
        left: usize,
    ) -> Result<usize, LaunchError> {
        let zone = self.zone_of(way.subnet_id.as_deref());
        self.refuse(region, way, zone)?;
        let room = self.core.scenario.quota.saturating_sub(region.live());
        if left > room && (request.least > room || self.core.maybe(0.5)) {
            return Err(refusal(Reach::Account, Class::Quota, "InstanceLimitExceeded").into());
        }
        let short = || Err(refusal(Reach::Offering, Class::Short, "InsufficientInstanceCapacity").into());
        let mut count = left.min(room).min(self.room(region, way, zone));
        if count > 1 && self.core.happens(Fault::BatchCutShort) {
            count = usize::try_from(self.core.of(Fault::BatchCutShort, 1, count as i64 - 1)).unwrap_or(1);
        }
        // With a minimum, one way launches enough instances, or none is launched.
        if count == 0 || count < request.least { short() } else { Ok(count) }
    }

    /// How many more instances a pool has room for.
    fn room(&self, region: &Region, offering: &Offering, zone: &str) -> usize {
        if let Some(reserved) = &offering.reservation {
            self.core.count("a launch was in a capacity reservation");
            return self.room_in(region, &reserved.id, zone, self.core.now());
        }
        let Some(pools) = self.core.scenario.pools() else { return usize::MAX };
        let of_pool = |real: &&Real| {
            let (is_type, is_zone) =
                (real.instance_type == offering.instance_type, real.instance.zone.as_deref() == Some(zone));
            is_type && is_zone && real.market == offering.market && real.is_live()
        };
        let used = region.instances.values().filter(of_pool).count();
        pools.room(&offering.instance_type, zone, offering.market, self.hour()).saturating_sub(used)
    }

    /// The errors of a launch: a refusal of a part of it, the account's limit, or no capacity.
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
        (way, zone): (&Offering, &str),
        nodes: &[NodeId],
    ) -> NewInstance {
        let now = self.core.now();
        region.launched += 1;
        let instance = Instance {
            instance_id: format!("i-{:08x}", region.launched),
            state: InstanceState::Pending,
            launched_at: now,
            zone: Some(zone.to_owned()),
            instance_type: Some(way.instance_type.clone()),
            subnet_id: way.subnet_id.clone(),
            tags: request.tags.clone(),
        };
        let lag = if self.core.happens(Fault::ListLags) { self.core.of(Fault::ListLags, 1, 300) } else { 0 };
        let launched = NewInstance::from(&instance);
        let real = Real {
            node: nodes.first().copied().filter(|_| nodes.len() == 1),
            nodes: nodes.into(),
            reservation: way.reservation.as_ref().map(|reserved| reserved.id.clone()),
            instance_type: way.instance_type.clone(),
            market: way.market,
            user_data: request.user_data.clone(),
            listed_from: now + Span::from_s(lag),
            hidden_until: None,
            untagged_at: None,
            forgotten_at: None,
            taken_at: None,
            before: None,
            machine: None,
            instance,
        };
        self.core.count("an instance was launched");
        self.core.tell(|| "ec2".into(), || format!("{} launched for {}", launched.instance_id, real.owner()));
        region.instances.insert(launched.instance_id.clone(), real);
        launched
    }
}
