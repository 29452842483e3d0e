//! RunInstances: reads the request, finds the earlier launch that the request repeats, checks quota and capacity, and
//! launches.
//!
//! Guarantees: a refused request and a dry run launch nothing; in one zone, a token launches once as long as EC2
//! remembers tokens.
//! Does not: check quota or capacity in a dry run, or refuse a parameter that it does not know.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::Market;

use super::tags::{self, Tags};
use super::{images, templates};
use crate::api_error::ApiError;
use crate::call::Ec2Call;
use crate::instance::{Ec2Instance, InstanceState};
use crate::settings::{Ec2Settings, Ec2Subnet};
use crate::wire::{Params, Xml};
use crate::world::UsedToken;
use crate::{catalogue, instance_xml};

/// "Up to 64 ASCII characters" ("Ensuring idempotency", EC2 Developer Guide).
const MAX_TOKEN_CHARS: usize = 64;
/// "User data is limited to 16 KB, in raw form, before it is base64-encoded" ("Run commands
/// when you launch an EC2 instance", EC2 User Guide).
const MAX_USER_DATA: usize = 16 * 1024;
/// More than any account may launch at once by default.
const MAX_INSTANCES: u32 = 1_000;
/// "If you don't specify one, … Default: m1.small" ("RunInstances", EC2 API Reference).
const DEFAULT_TYPE: &str = "m1.small";
/// The resource types that a launch may tag ("RunInstances", EC2 API Reference, TagSpecification.N).
const TAGGABLE: [&str; 4] = ["instance", "volume", "network-interface", "spot-instances-request"];

/// The parameter that names the capacity reservation of a launch.
pub(crate) const RESERVATION: &str = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId";

/// A valid request for a launch.
pub(crate) struct Launch<'a> {
    min: u32,
    pub(crate) max: u32,
    token: Option<&'a str>,
    pub(crate) instance_type: String,
    vcpus: u32,
    market: Market,
    capacity_reservation: Option<&'a str>,
    pub(crate) subnet: &'a Ec2Subnet,
    subnet_index: usize,
    image_id: Option<String>,
    user_data: String,
    tags: Tags,
    ends_when_off: bool,
}

impl Ec2Call<'_> {
    pub(crate) fn run_instances(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        let (params, settings, now) = (self.params, self.settings, self.now);
        if let Some(throttle) = &settings.throttle
            && !self.world.run_requests.take(1, throttle.run_requests, now)
        {
            return Err(ApiError::throttled());
        }
        let launch = Launch::read(params, settings)?;
        self.unless_dry_run()?;
        if let Some(earlier) = self.repeated_launch(&launch)? {
            self.write(xml, &earlier.reservation_id, &earlier.instances);
            return Ok(());
        }
        let count = launch.max.min(self.launchable(&launch)?);
        if let Some(throttle) = &settings.throttle
            && !self.world.run_instances.take(count, throttle.run_instances, now)
        {
            return Err(ApiError::throttled());
        }
        let (reservation_id, instances) = self.launch(&launch, count);
        self.write(xml, &reservation_id, &instances);
        if let Some(token) = launch.token {
            let used = UsedToken { params: identity(params), reservation_id, instances };
            self.world.tokens.insert((launch.subnet.zone.clone(), token.to_owned()), used);
        }
        Ok(())
    }

    /// The launch that this request repeats, if its token was used before. "If you retry a successful
    /// request using the same client token, but one or more of the parameters are different,
    /// other than the Region or Availability Zone, the retry fails"; tokens of RunInstances are
    /// zonal ("Ensuring idempotency", EC2 Developer Guide): in another zone the token is a new one.
    fn repeated_launch(&self, launch: &Launch<'_>) -> Result<Option<&UsedToken>, ApiError> {
        let Some(token) = launch.token else { return Ok(None) };
        let key = (launch.subnet.zone.clone(), token.to_owned());
        let Some(used) = self.world.tokens.get(&key) else { return Ok(None) };
        if used.params != identity(self.params) {
            return Err(ApiError::other_request());
        }
        let lives = |id: &String| self.world.find(id).is_some_and(|i| i.state != InstanceState::Terminated);
        if !used.instances.iter().any(lives) {
            let message = "The instance launched by the earlier request with this client token has been terminated.";
            return Err(ApiError::new("IdempotentInstanceTerminated", message));
        }
        Ok(Some(used))
    }

    /// How many instances quota and capacity allow; an error if that is below the minimum count.
    /// "If you specify a value that is more capacity than Amazon EC2 can launch, it
    /// launches the largest possible number of instances above the minimum count"
    /// ("RunInstances", EC2 API Reference, MaxCount). On-demand and spot have quotas of their own.
    pub(crate) fn launchable(&self, launch: &Launch<'_>) -> Result<u32, ApiError> {
        let mut allowed = launch.max;
        let mut limit = |most: u32, error: ApiError| {
            allowed = allowed.min(most);
            if most < launch.min { Err(error) } else { Ok(()) }
        };
        let faults = &self.world.faults;
        let counts = |i: &Ec2Instance| {
            i.market == launch.market && !matches!(i.state, InstanceState::Terminated | InstanceState::Stopped)
        };
        let used = |each: fn(&Ec2Instance) -> u32| -> u32 {
            self.world.listed(None).filter(|(_, i)| counts(i)).map(|(_, i)| each(i)).sum()
        };
        let (instances, vcpus) = match launch.market {
            Market::OnDemand => (faults.max_instances, faults.max_vcpus),
            Market::Spot => (faults.max_spot_instances, faults.max_spot_vcpus),
            // The reservation itself counts against the quota.
            Market::Reserved => (None, None),
        };
        if let Some(most) = instances {
            let left = most.saturating_sub(used(|_| 1));
            let message = format!("Your quota allows for {left} more running instance(s). You requested more.");
            limit(left, over_quota(launch.market, "InstanceLimitExceeded", message))?;
        }
        if let Some(most) = vcpus {
            let left = most.saturating_sub(used(|i| i.vcpus)) / launch.vcpus.max(1);
            let message = format!(
                "You have requested more vCPU capacity than your current vCPU limit of {most} allows for the instance \
                 bucket that the specified instance type belongs to."
            );
            limit(left, over_quota(launch.market, "VcpuLimitExceeded", message))?;
        }
        let (zone, instance_type) = (&launch.subnet.zone, &launch.instance_type);
        if let Some(id) = launch.capacity_reservation {
            let full = format!("The requested reservation {id} does not have sufficient capacity for this request.");
            let room = self.room_in_reservation(id, instance_type, zone)?;
            limit(room, ApiError::new("ReservationCapacityExceeded", full))?;
        }
        if launch.subnet.addresses.is_some() {
            let subnet = &launch.subnet.subnet_id;
            let full = format!("There are not enough free addresses in subnet '{subnet}'");
            let message = format!("{full} to satisfy the requested number of instances.");
            limit(self.free_addresses(launch.subnet), ApiError::new("InsufficientFreeAddressesInSubnet", message))?;
        }
        for shortage in &faults.shortages {
            if shortage.applies_to(instance_type, zone, launch.market) {
                let lacking = format!("We currently do not have sufficient {instance_type} capacity");
                let message = format!("{lacking} in the Availability Zone you requested ({zone}).");
                let error = ApiError::new("InsufficientInstanceCapacity", message);
                limit(shortage.left, ApiError { status: 500, ..error })?;
            }
        }
        Ok(allowed)
    }

    pub(crate) fn launch(&mut self, launch: &Launch<'_>, count: u32) -> (String, Vec<String>) {
        let seed = self.settings.seed;
        for shortage in &mut self.world.faults.shortages {
            if shortage.applies_to(&launch.instance_type, &launch.subnet.zone, launch.market) {
                shortage.left = shortage.left.saturating_sub(count);
            }
        }
        let reservation_id = self.world.fresh_id("r-", seed);
        let mut ids = Vec::new();
        for launch_index in 0..count {
            let instance = Ec2Instance {
                instance_id: self.world.fresh_id("i-", seed),
                reservation_id: reservation_id.clone(),
                state: InstanceState::Pending,
                launched_at: self.now,
                instance_type: launch.instance_type.clone(),
                vcpus: launch.vcpus,
                market: launch.market,
                capacity_reservation: launch.capacity_reservation.map(str::to_owned),
                subnet_id: launch.subnet.subnet_id.clone(),
                zone: launch.subnet.zone.clone(),
                private_ip: self.world.fresh_address(launch.subnet_index),
                image_id: launch.image_id.clone(),
                client_token: launch.token.map(str::to_owned),
                tags: launch.tags.clone(),
                launch_index,
                state_reason: None,
                boots: !self.world.faults.fail_boot(),
                ends_when_off: launch.ends_when_off,
                user_data: launch.user_data.clone(),
            };
            ids.push(instance.instance_id.clone());
            self.world.launch(instance, self.settings);
        }
        (reservation_id, ids)
    }

    fn write(&self, xml: &mut Xml, reservation_id: &str, ids: &[String]) {
        instance_xml::reservation(xml, reservation_id, ids.iter().filter_map(|id| self.world.find(id)));
    }
}

impl<'a> Launch<'a> {
    pub(crate) fn read(params: &'a Params, settings: &'a Ec2Settings) -> Result<Self, ApiError> {
        let template = templates::of(params, settings)?;
        let (min, max) = counts(params)?;
        let (subnet_index, subnet) = subnet(params, settings)?;
        let capacity_reservation = params.filled(RESERVATION);
        let instance_type = params
            .filled("InstanceType")
            .or(template.and_then(|t| t.instance_type.as_deref()))
            .unwrap_or(DEFAULT_TYPE)
            .to_owned();
        let vcpus = vcpus(&instance_type, &subnet.zone, settings)?;
        let market = match (capacity_reservation, market(params)?) {
            (Some(_), _) => Market::Reserved,
            (None, Some(market)) => market,
            (None, None) => template.and_then(|t| t.market).unwrap_or(Market::OnDemand),
        };
        let image_id =
            params.filled("ImageId").map(str::to_owned).or_else(|| template.and_then(|t| t.image_id.clone()));
        images::check(image_id.as_deref(), &instance_type, settings)?;
        Ok(Self {
            min,
            max,
            token: token(params)?,
            vcpus,
            instance_type,
            market,
            capacity_reservation,
            subnet,
            subnet_index,
            image_id,
            // "Any parameters that you specify in RunInstances override the same parameters in
            // the launch template" ("RunInstances", EC2 API Reference): also all of its user data.
            user_data: match user_data(params, "UserData")? {
                Some(own) => own,
                None => template.and_then(|t| t.user_data.clone()).unwrap_or_default(),
            },
            tags: instance_tags(params, market)?,
            ends_when_off: match params.filled("InstanceInitiatedShutdownBehavior") {
                None | Some("stop") => false,
                Some("terminate") => true,
                Some(other) => {
                    let why = "it must be stop or terminate";
                    return Err(ApiError::value(other, "InstanceInitiatedShutdownBehavior", why));
                }
            },
        })
    }
}

/// The error of a launch that is above a quota. Spot has one for both of its quotas.
fn over_quota(market: Market, code: &str, message: String) -> ApiError {
    if market == Market::Spot {
        return ApiError::new("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded");
    }
    ApiError::new(code, message)
}

/// The parameters on which two requests with one client token must agree: all but the token.
pub(crate) fn identity(params: &Params) -> Params {
    params.clone().without(&["ClientToken"])
}

fn counts(params: &Params) -> Result<(u32, u32), ApiError> {
    let min = params.number::<u32>("MinCount")?.ok_or_else(|| ApiError::missing("MinCount"))?;
    let max = params.number::<u32>("MaxCount")?.ok_or_else(|| ApiError::missing("MaxCount"))?;
    if min < 1 {
        return Err(ApiError::value(&min.to_string(), "MinCount", "it must be at least 1"));
    }
    if max < min || max > MAX_INSTANCES {
        return Err(ApiError::value(&max.to_string(), "MaxCount", "it must be between MinCount and 1000"));
    }
    Ok((min, max))
}

pub(crate) fn token(params: &Params) -> Result<Option<&str>, ApiError> {
    match params.filled("ClientToken") {
        Some(token) if !token.is_ascii() || token.len() > MAX_TOKEN_CHARS => {
            Err(ApiError::value(token, "clientToken", "it must be at most 64 ASCII characters"))
        }
        token => Ok(token),
    }
}

fn subnet<'a>(params: &Params, settings: &'a Ec2Settings) -> Result<(usize, &'a Ec2Subnet), ApiError> {
    let mut subnets = settings.subnets.iter().enumerate();
    match params.filled("SubnetId") {
        Some(id) => subnets.find(|(_, subnet)| subnet.subnet_id == id).ok_or_else(|| ApiError::no_subnet(id)),
        // "If you don't specify a subnet ID, we choose a default subnet from your default VPC".
        None => subnets.next().ok_or_else(|| ApiError::missing("SubnetId")),
    }
}

fn vcpus(instance_type: &str, zone: &str, settings: &Ec2Settings) -> Result<u32, ApiError> {
    if settings.instance_types.is_empty() {
        // Any type may be launched. A type that lists do not show counts as one vCPU.
        return Ok(catalogue::types(settings).iter().find(|k| k.name == instance_type).map_or(1, |k| k.vcpus));
    }
    let Some(known) = settings.instance_types.iter().find(|known| known.name == instance_type) else {
        return Err(ApiError::value(instance_type, "InstanceType", "no such instance type exists"));
    };
    if !known.zones.is_empty() && !known.zones.iter().any(|has| has == zone) {
        let refused = format!("Your requested instance type ({instance_type}) is not supported");
        let message = format!("{refused} in your requested Availability Zone ({zone}).");
        return Err(ApiError::new("Unsupported", message));
    }
    Ok(known.vcpus)
}

fn market(params: &Params) -> Result<Option<Market>, ApiError> {
    match params.filled("InstanceMarketOptions.MarketType") {
        None => Ok(None),
        Some("spot") => Ok(Some(Market::Spot)),
        // The call names the capacity block.
        Some("capacity-block") => Ok(Some(Market::Reserved)),
        Some(other) => {
            Err(ApiError::value(other, "InstanceMarketOptions.MarketType", "it must be spot or capacity-block"))
        }
    }
}

/// The user data that this parameter has. The code of what is too large: aws/karpenter-provider-aws, pkg/errors.
pub(crate) fn user_data(params: &Params, name: &str) -> Result<Option<String>, ApiError> {
    let Some(encoded) = params.filled(name) else { return Ok(None) };
    let encoded: String = encoded.split_ascii_whitespace().collect();
    let malformed = |message| ApiError::new("InvalidUserData.Malformed", message);
    let bytes = STANDARD.decode(encoded).map_err(|_| malformed("Invalid BASE64 encoding of user data."))?;
    if bytes.len() > MAX_USER_DATA {
        return Err(malformed("User data is limited to 16384 bytes"));
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// The tags of the instances. Tags of other resource types are checked and dropped.
fn instance_tags(params: &Params, market: Market) -> Result<Tags, ApiError> {
    let mut of_instances = Tags::new();
    let mut seen: Vec<String> = Vec::new();
    for specification in params.structures("TagSpecification") {
        let kind = specification.filled("ResourceType").unwrap_or_default();
        let refused = |why: &str| Err(ApiError::value(kind, "TagSpecification.ResourceType", why));
        if !TAGGABLE.contains(&kind) {
            return refused("a launch cannot tag this resource type");
        }
        if seen.iter().any(|seen| seen == kind) {
            return refused("the same resource type is given twice");
        }
        // Source: aws/karpenter-provider-aws 5850.
        if kind == "spot-instances-request" && market != Market::Spot {
            let message = "You cannot specify tags for Spot instances requests if there are no Spot instances requests being \
                           created by the request.";
            return Err(ApiError::invalid(message));
        }
        seen.push(kind.to_owned());
        let tags = tags::read(&specification)?;
        if kind == "instance" {
            of_instances = tags;
        }
    }
    Ok(of_instances)
}
