//! CreateFleet of the type `instant`: one call that launches by the best of several ways.
//!
//! A way is an override with its template. Ways are tried in the order of the allocation strategy, and each launches what quota
//! and capacity allow, as RunInstances does. The `errorSet` of the answer has each way that launched nothing, with its error:
//!
//! | error of a way | what it means | source |
//! | --- | --- | --- |
//! | that of RunInstances | quota, capacity, addresses, reservation, image, tags, rights | measured; aws/karpenter-provider-aws 5850 |
//! | `InvalidFleetConfiguration` | the zone does not have the type, or nobody has it | measured; aws/karpenter-provider-aws 2243, 6483 |
//! | `RequestLimitExceeded` | too many instances in a short time | aws/aws-parallelcluster-node 734; aws/karpenter-provider-aws 8923 |
//! | `UnfulfillableCapacity` | the way was not tried, because EC2 gave up after others | aws/aws-parallelcluster-node 734; measured |
//!
//! A fault of RunInstances fails the ways that it names.
//!
//! Guarantees: a call with a used client token gets the answer of the first call; a call that breaks a rule (`rules`) is
//! refused as a whole.
//! Does not: know other types of fleets, fleets of both markets, weights or attributes in place of types; forget a token. If the
//! ways of a type share a quota or a shortage, less than `MinTargetCapacity` may be launched. Launch indexes begin anew in each
//! way, because EC2 documents no more.
//! Source: "CreateFleet", EC2 API Reference; "Allocation strategies for Spot Instances", EC2 User Guide.

pub(crate) mod rules;

use model::Market;

use crate::actions::run::{Launch, RESERVATION, identity, token};
use crate::actions::templates;
use crate::api_error::ApiError;
use crate::call::Ec2Call;
use crate::catalogue;
use crate::settings::InstanceType;
use crate::wire::{Params, Xml};

struct FleetCall {
    total: u32,
    market: Market,
    /// The options of its market.
    options: Params,
    ways: Vec<Way>,
}

/// An override of a template: its parameters in CreateFleet, and the parameters of RunInstances that launch the same.
struct Way {
    given: Params,
    template: Params,
    launch: Params,
}

/// What a way launched, or why it launched nothing.
struct Tried<'a> {
    way: &'a Way,
    launched: Result<(String, Vec<String>), ApiError>,
}

impl Ec2Call<'_> {
    pub(crate) fn create_fleet(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        rules::check(self.params, self.settings)?;
        self.unless_dry_run()?;
        let token = token(self.params)?;
        if let Some((params, answer)) = token.and_then(|token| self.world.fleets.get(token)) {
            if *params != identity(self.params) {
                return Err(ApiError::other_request());
            }
            xml.raw(answer);
            return Ok(());
        }
        let mut fleet = FleetCall::read(self.params)?;
        // AWS does not document limits of CreateFleet, so its calls count like those of RunInstances.
        if let Some(throttle) = &self.settings.throttle
            && !self.world.run_requests.take(1, throttle.run_requests, self.now)
        {
            return Err(ApiError::throttled());
        }
        for way in &fleet.ways {
            templates::of(&way.launch, self.settings)?;
        }
        self.order(&mut fleet)?;
        let fleet_id = self.world.fresh_id("fleet-", self.settings.seed);
        let tried = self.try_ways(&fleet)?;
        let answer = Xml::part(|xml| write(xml, &fleet_id, fleet.market, &tried));
        xml.raw(&answer);
        if let Some(token) = token {
            self.world.fleets.insert(token.to_owned(), (identity(self.params), answer));
        }
        Ok(())
    }

    /// Sorts the ways by the allocation strategy. A lower priority or price comes first; ways without one come last.
    fn order(&self, fleet: &mut FleetCall) -> Result<(), ApiError> {
        let strategy = fleet.options.filled("AllocationStrategy").unwrap_or("lowest-price");
        let is_by_priority = match strategy {
            "lowest-price" | "price-capacity-optimized" | "capacity-optimized" => false,
            "prioritized" | "capacity-optimized-prioritized" => true,
            other => return Err(ApiError::value(other, "AllocationStrategy", "the stand-in does not know it")),
        };
        let types = catalogue::types(self.settings);
        let market = fleet.market;
        let price = |way: &Way| -> Option<f64> {
            let kind: &InstanceType =
                types.iter().find(|kind| Some(kind.name.as_str()) == way.given.filled("InstanceType"))?;
            let subnet =
                self.settings.subnets.iter().find(|s| Some(s.subnet_id.as_str()) == way.given.filled("SubnetId"));
            let zone = subnet.or(self.settings.subnets.first()).map(|subnet| subnet.zone.as_str())?;
            let price = if market == Market::Spot { kind.spot_price(zone) } else { kind.on_demand.clone() };
            price?.parse().ok()
        };
        let priority = |way: &Way| way.given.filled("Priority").and_then(|n| n.parse::<f64>().ok());
        let rank = |way: &Way| if is_by_priority { priority(way) } else { price(way) }.unwrap_or(f64::INFINITY);
        fleet.ways.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
        Ok(())
    }

    /// Launches by these ways until there are enough instances.
    fn try_ways<'f>(&mut self, fleet: &'f FleetCall) -> Result<Vec<Tried<'f>>, ApiError> {
        let is = |name: &str| fleet.options.filled(name) == Some("true");
        let (one_type, one_zone) = (is("SingleInstanceType"), is("SingleAvailabilityZone"));
        let least = fleet.options.number::<u32>("MinTargetCapacity")?.unwrap_or(0);
        if let Some(throttle) = &self.settings.throttle
            && !self.world.run_instances.take(fleet.total, throttle.run_instances, self.now)
        {
            return Ok(given_up(&fleet.ways, ApiError::throttled()));
        }
        let most = self.settings.pools_tried.unwrap_or(usize::MAX);
        let (settings, mut tried, mut left) = (self.settings, Vec::new(), fleet.total);
        // The type and the zone of the first launched instance, which the others must share.
        let mut only: Option<(String, String)> = None;
        for way in &fleet.ways {
            if left == 0 {
                break;
            }
            if tried.iter().filter(|tried: &&Tried<'_>| tried.launched.is_err()).count() >= most {
                tried.push(Tried { way, launched: Err(untried()) });
                continue;
            }
            let fault = self.world.faults.fail_part("RunInstances", &way.launch);
            let launch = match fault.and_then(|()| Launch::read(&way.launch, settings).map_err(of_fleet)) {
                Ok(launch) => launch,
                Err(error) => {
                    tried.push(Tried { way, launched: Err(error) });
                    continue;
                }
            };
            let key = (launch.instance_type.clone(), launch.subnet.zone.clone());
            let differs = |only: &(String, String)| (one_type && only.0 != key.0) || (one_zone && only.1 != key.1);
            if only.as_ref().is_some_and(differs) {
                continue;
            }
            let possible = self.launchable(&launch);
            if only.is_none() && possible.is_ok() && self.within_reach(fleet, &key, (one_type, one_zone)) < least {
                continue;
            }
            let launched = possible.map(|count| self.launch(&launch, count.min(left)));
            if let Ok((_, instances)) = &launched {
                left = left.saturating_sub(u32::try_from(instances.len()).unwrap_or(u32::MAX));
                only.get_or_insert(key);
            }
            tried.push(Tried { way, launched });
        }
        Ok(tried)
    }

    /// How many instances all ways of this type or zone together can launch.
    fn within_reach(
        &self,
        fleet: &FleetCall,
        (kind, zone): &(String, String),
        (one_type, one_zone): (bool, bool),
    ) -> u32 {
        let possible = fleet.ways.iter().filter_map(|way| {
            let launch = Launch::read(&way.launch, self.settings).ok()?;
            let is_alike = (!one_type || launch.instance_type == *kind) && (!one_zone || launch.subnet.zone == *zone);
            is_alike.then(|| self.launchable(&launch).ok()).flatten()
        });
        possible.fold(0, u32::saturating_add)
    }
}

impl FleetCall {
    fn read(params: &Params) -> Result<Self, ApiError> {
        if params.filled("Type") != Some("instant") {
            let kind = params.filled("Type").unwrap_or("");
            return Err(ApiError::value(kind, "Type", "the stand-in knows instant fleets only"));
        }
        let target = params.structure("TargetCapacitySpecification").unwrap_or_default();
        let total = target.number::<u32>("TotalTargetCapacity")?.filter(|n| *n > 0);
        let total = total.ok_or_else(|| ApiError::missing("TargetCapacitySpecification.TotalTargetCapacity"))?;
        let (market, options) = match target.filled("DefaultTargetCapacityType") {
            Some("spot") => (Market::Spot, "SpotOptions"),
            None | Some("on-demand") => (Market::OnDemand, "OnDemandOptions"),
            Some("reserved-capacity") => (Market::Reserved, "ReservedCapacityOptions"),
            Some(other) => {
                let why = "it must be spot, on-demand or reserved-capacity";
                return Err(ApiError::value(other, "DefaultTargetCapacityType", why));
            }
        };
        let options = params.structure(options).unwrap_or_default();
        let reservation = reservation_of(&options, market)?;

        if target.get("OnDemandTargetCapacity").or(target.get("SpotTargetCapacity")).is_some() {
            return Err(ApiError::invalid("The stand-in knows fleets of one market only"));
        }
        let mut ways = Vec::new();
        for config in params.structures("LaunchTemplateConfigs") {
            let template = config.structure("LaunchTemplateSpecification").unwrap_or_default();
            if template.filled("Version").is_none() {
                return Err(ApiError::missing("LaunchTemplateSpecification.Version"));
            }
            let mut overrides = config.structures("Overrides");
            if overrides.is_empty() {
                overrides.push(Params::default());
            }
            ways.extend(overrides.into_iter().map(|given| Way {
                launch: as_launch(params, &template, &given, (total, market, reservation)),
                template: template.clone(),
                given,
            }));
        }
        if ways.is_empty() {
            return Err(ApiError::missing("LaunchTemplateConfigs"));
        }
        Ok(Self { total, market, ways, options: options.clone() })
    }
}

/// The answer about all ways if EC2 gives up after the first.
fn given_up(ways: &[Way], error: ApiError) -> Vec<Tried<'_>> {
    let errors = std::iter::once(error).chain(std::iter::repeat_with(untried));
    ways.iter().zip(errors).map(|(way, error)| Tried { way, launched: Err(error) }).collect()
}

fn untried() -> ApiError {
    let message =
        "Unable to fulfill capacity due to your request configuration. Please adjust your request and try again.";
    ApiError::new("UnfulfillableCapacity", message)
}

/// An error of RunInstances in the words of a fleet.
fn of_fleet(error: ApiError) -> ApiError {
    let is_of_zone = error.code == "Unsupported" || error.message.contains("no such instance type");
    if is_of_zone { ApiError { code: "InvalidFleetConfiguration".into(), ..error } } else { error }
}

/// The capacity reservation of a fleet in reserved capacity.
fn reservation_of(options: &Params, market: Market) -> Result<Option<&str>, ApiError> {
    if market != Market::Reserved {
        return Ok(None);
    }
    match options.list("CapacityReservationTarget.CapacityReservationId").as_slice() {
        [id] => Ok(Some(*id)),
        _ => Err(ApiError::invalid("The stand-in knows fleets in one capacity reservation, which is named by its id")),
    }
}

/// The parameters of RunInstances that launch the same.
fn as_launch(
    fleet: &Params,
    template: &Params,
    given: &Params,
    (total, market, reservation): (u32, Market, Option<&str>),
) -> Params {
    let total = total.to_string();
    let mut pairs = vec![("MinCount".to_owned(), "1"), ("MaxCount".to_owned(), total.as_str())];
    for name in ["InstanceType", "SubnetId", "ImageId"] {
        pairs.extend(given.filled(name).map(|value| (name.to_owned(), value)));
    }
    for name in ["LaunchTemplateId", "LaunchTemplateName", "Version"] {
        pairs.extend(template.filled(name).map(|value| (format!("LaunchTemplate.{name}"), value)));
    }
    let user_data = template.filled("LaunchTemplateSpecificationUserData");
    pairs.extend(user_data.map(|value| ("UserData".to_owned(), value)));
    pairs.extend(reservation.map(|id| (RESERVATION.to_owned(), id)));
    if market == Market::Spot {
        pairs.push(("InstanceMarketOptions.MarketType".to_owned(), "spot"));
    }
    let tags = fleet.structures("TagSpecification");
    // The tags of the fleet itself are not needed.
    for (n, tags) in tags.iter().enumerate().filter(|(_, tags)| tags.filled("ResourceType") != Some("fleet")) {
        pairs.extend(tags.pairs().map(|(name, value)| (format!("TagSpecification.{}.{name}", n + 1), value)));
    }
    Params::of(pairs)
}

fn write(xml: &mut Xml, fleet_id: &str, market: Market, tried: &[Tried<'_>]) {
    let lifecycle = if market == Market::Spot { "spot" } else { "on-demand" };
    let write_way = |xml: &mut Xml, way: &Way| {
        xml.element("launchTemplateAndOverrides", |xml| {
            xml.element("launchTemplateSpecification", |xml| {
                write_some(xml, &way.template, &["LaunchTemplateId", "LaunchTemplateName", "Version"]);
            });
            xml.element("overrides", |xml| write_some(xml, &way.given, &["InstanceType", "SubnetId", "Priority"]));
        });
        xml.text("lifecycle", lifecycle);
    };
    xml.text("fleetId", fleet_id);
    let errors = tried.iter().filter_map(|tried| Some((tried.way, tried.launched.as_ref().err()?)));
    xml.items("errorSet", errors, |xml, (way, error)| {
        write_way(xml, way);
        xml.text("errorCode", &error.code);
        xml.text("errorMessage", &error.message);
    });
    let launched = tried.iter().filter_map(|tried| Some((tried.way, tried.launched.as_ref().ok()?)));
    xml.items("fleetInstanceSet", launched, |xml, (way, (_, instances))| {
        write_way(xml, way);
        xml.items("instanceIds", instances, |xml, id| xml.content(id));
        write_some(xml, &way.given, &["InstanceType"]);
    });
}

/// Writes those of these parameters that are given, each as an element.
fn write_some(xml: &mut Xml, params: &Params, names: &[&str]) {
    for name in names {
        if let Some(value) = params.filled(name) {
            let element: String =
                name.char_indices().map(|(n, c)| if n == 0 { c.to_ascii_lowercase() } else { c }).collect();
            xml.text(&element, value);
        }
    }
}
