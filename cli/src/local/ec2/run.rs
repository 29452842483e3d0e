//! RunInstances: what is asked for, whether it was asked before, and what there is of it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use shared::model::Market;

use super::Call;
use super::config::{Config, Subnet};
use super::refusal::Refusal;
use super::shape;
use super::tags::{self, Tags};
use super::templates;
use super::wire::{Params, Xml};
use super::world::{Instance, SpentToken, State};

/// "Up to 64 ASCII characters" ("Ensuring idempotency", EC2 Developer Guide).
const MOST_TOKEN_CHARS: usize = 64;
/// "User data is limited to 16 KB, in raw form, before it is base64-encoded" ("Run commands
/// when you launch an EC2 instance", EC2 User Guide).
const MOST_USER_DATA: usize = 16 * 1024;
/// More at once than any account may have by default.
const MOST_INSTANCES: u32 = 1_000;
/// "If you don't specify one, … Default: m1.small" ("RunInstances", EC2 API Reference).
const DEFAULT_TYPE: &str = "m1.small";
/// What a launch may tag ("RunInstances", EC2 API Reference, TagSpecification.N).
const TAGGABLE: [&str; 4] = ["instance", "volume", "network-interface", "spot-instances-request"];

/// A valid request.
struct Launch<'a> {
    min: u32,
    max: u32,
    token: Option<&'a str>,
    instance_type: String,
    vcpus: u32,
    market: Market,
    subnet: &'a Subnet,
    subnet_index: usize,
    image_id: Option<String>,
    user_data: String,
    tags: Tags,
    ends_when_off: bool,
}

impl Call<'_> {
    pub(super) fn run_instances(&mut self, xml: &mut Xml) -> Result<(), Refusal> {
        let (params, config, now) = (self.params, self.config, self.now);
        if let Some(throttle) = &config.throttle
            && !self.world.run_requests.take(1, throttle.run_requests, now)
        {
            return Err(Refusal::RequestLimitExceeded);
        }
        let launch = Launch::read(params, config)?;
        self.unless_dry_run()?;
        if let Some(earlier) = self.earlier(&launch)? {
            self.write(xml, &earlier.reservation_id, &earlier.instances);
            return Ok(());
        }
        let count = launch.max.min(self.room(&launch)?);
        if let Some(throttle) = &config.throttle
            && !self.world.run_instances.take(count, throttle.run_instances, now)
        {
            return Err(Refusal::RequestLimitExceeded);
        }
        let (reservation_id, instances) = self.launch(&launch, count);
        self.write(xml, &reservation_id, &instances);
        if let Some(token) = launch.token {
            let spent = SpentToken { params: identity(params), reservation_id, instances };
            self.world.tokens.insert((launch.subnet.zone.clone(), token.to_owned()), spent);
        }
        Ok(())
    }

    /// The launch that this one repeats, if its token was used before. "If you retry a successful
    /// request using the same client token, but one or more of the parameters are different,
    /// other than the Region or Availability Zone, the retry fails"; tokens of RunInstances are
    /// zonal ("Ensuring idempotency", EC2 Developer Guide), so in another zone it is a new one.
    fn earlier(&self, launch: &Launch<'_>) -> Result<Option<&SpentToken>, Refusal> {
        let Some(token) = launch.token else { return Ok(None) };
        let key = (launch.subnet.zone.clone(), token.to_owned());
        let Some(spent) = self.world.tokens.get(&key) else { return Ok(None) };
        if spent.params != identity(self.params) {
            return Err(Refusal::IdempotentParameterMismatch);
        }
        let lives = |id: &String| self.world.find(id).is_some_and(|i| i.state != State::Terminated);
        if !spent.instances.iter().any(lives) {
            return Err(Refusal::IdempotentInstanceTerminated);
        }
        Ok(Some(spent))
    }

    /// How many instances there is quota and capacity for; refused if that is less than wanted
    /// at least. "If you specify a value that is more capacity than Amazon EC2 can launch, it
    /// launches the largest possible number of instances above the minimum count"
    /// ("RunInstances", EC2 API Reference, MaxCount). On-demand and spot have quotas of their own.
    fn room(&self, launch: &Launch<'_>) -> Result<u32, Refusal> {
        let mut room = launch.max;
        let mut limit = |most: u32, refusal: Refusal| {
            room = room.min(most);
            if most < launch.min { Err(refusal) } else { Ok(()) }
        };
        let faults = &self.world.faults;
        let counts = |i: &Instance| i.market == launch.market && !matches!(i.state, State::Terminated | State::Stopped);
        let used = |each: fn(&Instance) -> u32| -> u32 {
            self.world.listed(None).filter(|(_, i)| counts(i)).map(|(_, i)| each(i)).sum()
        };
        match launch.market {
            Market::OnDemand => {
                if let Some(most) = faults.max_instances {
                    let left = most.saturating_sub(used(|_| 1));
                    limit(left, Refusal::InstanceLimitExceeded(left))?;
                }
                if let Some(most) = faults.max_vcpus {
                    let left = most.saturating_sub(used(|i| i.vcpus)) / launch.vcpus.max(1);
                    limit(left, Refusal::VcpuLimitExceeded(most))?;
                }
            }
            Market::Spot => {
                if let Some(most) = faults.max_spot_instances {
                    limit(most.saturating_sub(used(|_| 1)), Refusal::MaxSpotInstanceCountExceeded)?;
                }
            }
        }
        let zone = &launch.subnet.zone;
        for shortage in &faults.shortages {
            if shortage.concerns(&launch.instance_type, zone, launch.market) {
                let (instance_type, zone) = (launch.instance_type.clone(), zone.clone());
                limit(shortage.left, Refusal::InsufficientInstanceCapacity { instance_type, zone })?;
            }
        }
        Ok(room)
    }

    fn launch(&mut self, launch: &Launch<'_>, count: u32) -> (String, Vec<String>) {
        let seed = self.config.seed;
        for shortage in &mut self.world.faults.shortages {
            if shortage.concerns(&launch.instance_type, &launch.subnet.zone, launch.market) {
                shortage.left = shortage.left.saturating_sub(count);
            }
        }
        let reservation_id = self.world.fresh_id("r-", seed);
        let mut ids = Vec::new();
        for launch_index in 0..count {
            let instance = Instance {
                instance_id: self.world.fresh_id("i-", seed),
                reservation_id: reservation_id.clone(),
                state: State::Pending,
                launched_at: self.now,
                instance_type: launch.instance_type.clone(),
                vcpus: launch.vcpus,
                market: launch.market,
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
            self.world.launch(instance, self.config);
        }
        (reservation_id, ids)
    }

    fn write(&self, xml: &mut Xml, reservation_id: &str, ids: &[String]) {
        shape::reservation(xml, reservation_id, ids.iter().filter_map(|id| self.world.find(id)));
    }
}

impl<'a> Launch<'a> {
    fn read(params: &'a Params, config: &'a Config) -> Result<Self, Refusal> {
        let template = templates::of_launch(params, config)?;
        let (min, max) = counts(params)?;
        let (subnet_index, subnet) = subnet(params, config)?;
        let instance_type = params
            .filled("InstanceType")
            .or(template.and_then(|t| t.instance_type.as_deref()))
            .unwrap_or(DEFAULT_TYPE)
            .to_owned();
        Ok(Self {
            min,
            max,
            token: token(params)?,
            vcpus: vcpus(&instance_type, &subnet.zone, config)?,
            instance_type,
            market: match market(params)? {
                Some(market) => market,
                None => template.and_then(|t| t.market).unwrap_or(Market::OnDemand),
            },
            subnet,
            subnet_index,
            image_id: params.filled("ImageId").map(str::to_owned).or_else(|| template.and_then(|t| t.image_id.clone())),
            // "Any parameters that you specify in RunInstances override the same parameters in
            // the launch template" ("RunInstances", EC2 API Reference): also all of its user data.
            user_data: match user_data(params)? {
                Some(own) => own,
                None => template.and_then(|t| t.user_data.clone()).unwrap_or_default(),
            },
            tags: instance_tags(params)?,
            ends_when_off: match params.filled("InstanceInitiatedShutdownBehavior") {
                None | Some("stop") => false,
                Some("terminate") => true,
                Some(other) => {
                    return Err(Refusal::value(
                        other,
                        "InstanceInitiatedShutdownBehavior",
                        "stop or terminate is wanted",
                    ));
                }
            },
        })
    }
}

/// What two requests with one client token must have in common: everything else.
fn identity(params: &Params) -> Params {
    params.clone().without(&["ClientToken", "DryRun"])
}

fn counts(params: &Params) -> Result<(u32, u32), Refusal> {
    let min = params.number::<u32>("MinCount")?.ok_or(Refusal::MissingParameter("MinCount"))?;
    let max = params.number::<u32>("MaxCount")?.ok_or(Refusal::MissingParameter("MaxCount"))?;
    if min < 1 {
        return Err(Refusal::value(&min.to_string(), "MinCount", "at least 1 is wanted"));
    }
    if max < min || max > MOST_INSTANCES {
        return Err(Refusal::value(&max.to_string(), "MaxCount", "between MinCount and 1000 is wanted"));
    }
    Ok((min, max))
}

fn token(params: &Params) -> Result<Option<&str>, Refusal> {
    match params.filled("ClientToken") {
        Some(token) if !token.is_ascii() || token.len() > MOST_TOKEN_CHARS => {
            Err(Refusal::value(token, "clientToken", "at most 64 ASCII characters are wanted"))
        }
        token => Ok(token),
    }
}

fn subnet<'a>(params: &Params, config: &'a Config) -> Result<(usize, &'a Subnet), Refusal> {
    let mut subnets = config.subnets.iter().enumerate();
    match params.filled("SubnetId") {
        Some(id) => subnets
            .find(|(_, subnet)| subnet.subnet_id == id)
            .ok_or_else(|| Refusal::SubnetNotFound(id.chars().take(100).collect())),
        // "If you don't specify a subnet ID, we choose a default subnet from your default VPC".
        None => subnets.next().ok_or(Refusal::MissingParameter("SubnetId")),
    }
}

fn vcpus(instance_type: &str, zone: &str, config: &Config) -> Result<u32, Refusal> {
    if config.instance_types.is_empty() {
        return Ok(1);
    }
    let Some(known) = config.instance_types.iter().find(|known| known.name == instance_type) else {
        return Err(Refusal::value(instance_type, "InstanceType", "there is no such instance type"));
    };
    if !known.zones.is_empty() && !known.zones.iter().any(|has| has == zone) {
        return Err(Refusal::Unsupported { instance_type: instance_type.to_owned(), zone: zone.to_owned() });
    }
    Ok(known.vcpus)
}

fn market(params: &Params) -> Result<Option<Market>, Refusal> {
    match params.filled("InstanceMarketOptions.MarketType") {
        None => Ok(None),
        Some("spot") => Ok(Some(Market::Spot)),
        Some(other) => Err(Refusal::value(other, "InstanceMarketOptions.MarketType", "spot is wanted")),
    }
}

fn user_data(params: &Params) -> Result<Option<String>, Refusal> {
    let Some(encoded) = params.filled("UserData") else { return Ok(None) };
    let encoded: String = encoded.split_ascii_whitespace().collect();
    let bytes = STANDARD.decode(encoded).map_err(|_| Refusal::UserDataMalformed)?;
    if bytes.len() > MOST_USER_DATA {
        return Err(Refusal::InvalidParameterValue("User data is limited to 16384 bytes".into()));
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// The tags that the instances get. Those of other things are checked and forgotten.
fn instance_tags(params: &Params) -> Result<Tags, Refusal> {
    let mut of_instances = Tags::new();
    let mut seen: Vec<String> = Vec::new();
    for specification in params.structures("TagSpecification") {
        let kind = specification.filled("ResourceType").unwrap_or_default();
        if !TAGGABLE.contains(&kind) {
            return Err(Refusal::value(kind, "TagSpecification.ResourceType", "this cannot be tagged by a launch"));
        }
        if seen.iter().any(|seen| seen == kind) {
            return Err(Refusal::value(kind, "TagSpecification.ResourceType", "the same resource type is given twice"));
        }
        seen.push(kind.to_owned());
        let tags = tags::read(&specification)?;
        if kind == "instance" {
            of_instances = tags;
        }
    }
    Ok(of_instances)
}
