//! The launch call: CreateFleet of the type `instant`.
//!
//! Guarantees: each way of the request is one override, so EC2 may launch by any of them; each refusal comes with the way that
//! it is about, and a way that EC2 did not try is not refused.
//! Does not: ask for capacity of both markets, or for weights: a node is one instance.
//! Source: EC2 API reference, "CreateFleet"; EC2 User Guide, "Allocation strategies".

use crate::launch::{Template, error_of, failed, one_call, tags, user_data};
use aws_sdk_ec2::Client;
use aws_sdk_ec2::operation::create_fleet::CreateFleetOutput;
use aws_sdk_ec2::operation::create_fleet::builders::CreateFleetFluentBuilder;
use aws_sdk_ec2::types::{
    CapacityReservationOptionsRequest, CreateFleetError, CreateFleetInstance, DefaultTargetCapacityType,
    FleetCapacityReservationTargetRequest, FleetCapacityReservationUsageStrategy, FleetLaunchTemplateConfigRequest,
    FleetLaunchTemplateOverridesRequest, FleetLaunchTemplateSpecificationRequest, FleetOnDemandAllocationStrategy,
    FleetReservationType, FleetType, InstanceType, LaunchTemplateAndOverridesResponse, OnDemandOptionsRequest,
    ReservedCapacityAllocationStrategy, ReservedCapacityOptionsRequest, SpotAllocationStrategy, SpotOptionsRequest,
    TargetCapacitySpecificationRequest,
};
use model::{LaunchAnswer, LaunchError, LaunchRequest, Market, NewInstance, Offering, Reserved};

/// The HTTP status for an error about one way: the call itself was answered.
const ANSWERED: u16 = 400;

/// The error for a way that EC2 did not try, because it gave up after some of the others: its code, and how its text begins. EC2
/// has the same code for a lack of spot capacity. Source: aws-parallelcluster-node, pull request 734.
const UNTRIED: (&str, &str) = ("UnfulfillableCapacity", "Unable to fulfill capacity due to your request configuration");

pub(crate) async fn launch(
    client: &Client,
    request: &LaunchRequest,
    first: &Offering,
    client_token: &str,
) -> Result<LaunchAnswer, LaunchError> {
    let call = client
        .create_fleet()
        .r#type(FleetType::Instant)
        .client_token(client_token)
        .set_dry_run(request.is_dry_run.then_some(true))
        .launch_template_configs(configuration(request, first))
        .tag_specifications(tags(request));
    let sent = asking(call, request, first.market).customize().config_override(one_call()).send().await;
    Ok(read(&sent.map_err(|e| failed(first, &e))?, &request.ways))
}

/// The template with its ways, the best first.
fn configuration(request: &LaunchRequest, first: &Offering) -> FleetLaunchTemplateConfigRequest {
    let Template { id, name, version } = Template::of(first);
    let template = FleetLaunchTemplateSpecificationRequest::builder()
        .set_launch_template_id(id)
        .set_launch_template_name(name)
        .version(version)
        .launch_template_specification_user_data(user_data(request));
    let ways = (0_u32..).zip(&request.ways).map(|(n, way)| {
        FleetLaunchTemplateOverridesRequest::builder()
            .instance_type(InstanceType::from(way.instance_type.as_str()))
            .set_subnet_id(way.subnet_id.clone())
            // The strategy of the spot market ignores priorities.
            .set_priority((way.market != Market::Spot).then(|| f64::from(n)))
            .build()
    });
    FleetLaunchTemplateConfigRequest::builder()
        .launch_template_specification(template.build())
        .set_overrides(Some(ways.collect()))
        .build()
}

/// Sets how many instances, of which market, and in which order of the ways. EC2 can give all or none only within one
/// zone, and never in a reservation.
fn asking(call: CreateFleetFluentBuilder, request: &LaunchRequest, market: Market) -> CreateFleetFluentBuilder {
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let least = (request.least > 1).then(|| number(request.least));
    let one_zone = least.map(|_| true);
    let target = TargetCapacitySpecificationRequest::builder().total_target_capacity(number(request.count));
    let reservation = request.ways.first().and_then(|way| way.reservation.as_ref());
    match market {
        Market::Reserved => call
            .target_capacity_specification(
                target.default_target_capacity_type(DefaultTargetCapacityType::ReservedCapacity).build(),
            )
            .set_reserved_capacity_options(reservation.map(in_reservation)),
        Market::Spot => call
            .target_capacity_specification(target.default_target_capacity_type(DefaultTargetCapacityType::Spot).build())
            .spot_options(
                SpotOptionsRequest::builder()
                    .allocation_strategy(SpotAllocationStrategy::PriceCapacityOptimized)
                    .set_min_target_capacity(least)
                    .set_single_availability_zone(one_zone)
                    .build(),
            ),
        Market::OnDemand => call
            .target_capacity_specification(
                target.default_target_capacity_type(DefaultTargetCapacityType::OnDemand).build(),
            )
            .on_demand_options(
                OnDemandOptionsRequest::builder()
                    .allocation_strategy(FleetOnDemandAllocationStrategy::Prioritized)
                    // Open reservations come first: they cost the same whether they are used or not.
                    .capacity_reservation_options(
                        CapacityReservationOptionsRequest::builder()
                            .usage_strategy(FleetCapacityReservationUsageStrategy::UseCapacityReservationsFirst)
                            .build(),
                    )
                    .set_min_target_capacity(least)
                    .set_single_availability_zone(one_zone)
                    .build(),
            ),
    }
}

/// Launches in this reservation, whatever its kind, and nowhere else. The next call may launch elsewhere.
fn in_reservation(reservation: &Reserved) -> ReservedCapacityOptionsRequest {
    let target = FleetCapacityReservationTargetRequest::builder().capacity_reservation_ids(&reservation.id);
    ReservedCapacityOptionsRequest::builder()
        .allocation_strategy(ReservedCapacityAllocationStrategy::Prioritized)
        .reservation_types(FleetReservationType::from(reservation.kind.as_str()))
        .capacity_reservation_target(target.build())
        .build()
}

fn read(answer: &CreateFleetOutput, ways: &[Offering]) -> LaunchAnswer {
    let (code, text) = UNTRIED;
    let is_untried = |error: &&CreateFleetError| {
        error.error_code() == Some(code) && error.error_message().is_some_and(|message| message.starts_with(text))
    };
    let (mut untried, mut others): (Vec<_>, Vec<_>) = answer.errors().iter().partition(is_untried);
    // If EC2 says nothing else, it lacks spot capacity.
    if others.is_empty() {
        std::mem::swap(&mut untried, &mut others);
    }
    let way = |error: &CreateFleetError| way_of(error.launch_template_and_overrides(), ways).cloned();
    let refused = others.iter().filter_map(|error| {
        let (code, message) = (error.error_code().unwrap_or(""), error.error_message().unwrap_or("no message"));
        way(error).map(|way| (way.clone(), error_of(&way, code, message, ANSWERED)))
    });
    LaunchAnswer {
        instances: answer.instances().iter().flat_map(launched).collect(),
        refused: refused.collect(),
        untried: untried.into_iter().filter_map(way).collect(),
    }
}

fn launched(some: &CreateFleetInstance) -> Vec<NewInstance> {
    let overrides = some.launch_template_and_overrides().and_then(|way| way.overrides());
    let subnet_id = some.subnet_id().or_else(|| overrides?.subnet_id()).map(str::to_owned);
    let zone = some.availability_zone().or_else(|| overrides?.availability_zone()).map(str::to_owned);
    let instance_type = some.instance_type().or_else(|| overrides?.instance_type()).map(|t| t.as_str().to_owned());
    let instance = |id: &String| NewInstance {
        instance_id: id.clone(),
        instance_type: instance_type.clone(),
        subnet_id: subnet_id.clone(),
        zone: zone.clone(),
    };
    some.instance_ids().iter().map(instance).collect()
}

/// The way that a part of the answer is about; the first if EC2 names none.
fn way_of<'w>(about: Option<&LaunchTemplateAndOverridesResponse>, ways: &'w [Offering]) -> Option<&'w Offering> {
    let Some(overrides) = about.and_then(|about| about.overrides()) else { return ways.first() };
    let is = |way: &&Offering| {
        overrides.instance_type().is_none_or(|kind| kind.as_str() == way.instance_type)
            && overrides.subnet_id().is_none_or(|subnet| way.subnet_id.as_deref() == Some(subnet))
    };
    ways.iter().find(is).or(ways.first())
}
