//! The launch call: CreateFleet of the type `instant`.
//!
//! Guarantees: one call, which the SDK does not retry; each way of the request is one override, so EC2 may launch by
//! any of them; each refusal comes with the way that it is about.
//! Does not: ask for capacity of both markets, or for weights: a node is one instance.
//! Source: EC2 API reference, "CreateFleet"; EC2 User Guide, "Allocation strategies".

use crate::refusal::launch_error;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::retry::RetryConfig;
use aws_sdk_ec2::config::timeout::TimeoutConfig;
use aws_sdk_ec2::error::ProvideErrorMetadata;
use aws_sdk_ec2::operation::create_fleet::CreateFleetOutput;
use aws_sdk_ec2::operation::create_fleet::builders::CreateFleetFluentBuilder;
use aws_sdk_ec2::types::{
    CapacityReservationOptionsRequest, CreateFleetInstance, DefaultTargetCapacityType,
    FleetCapacityReservationTargetRequest, FleetCapacityReservationUsageStrategy, FleetLaunchTemplateConfigRequest,
    FleetLaunchTemplateOverridesRequest, FleetLaunchTemplateSpecificationRequest, FleetOnDemandAllocationStrategy,
    FleetReservationType, FleetType, InstanceType, LaunchTemplateAndOverridesResponse, OnDemandOptionsRequest,
    ReservedCapacityAllocationStrategy, ReservedCapacityOptionsRequest, ResourceType, SpotAllocationStrategy,
    SpotOptionsRequest, Tag, TagSpecification, TargetCapacitySpecificationRequest,
};
use base64::Engine;
use model::cloud::{LaunchAnswer, LaunchError, NewInstance, Refusal};
use model::enums::{Class, Reach};
use model::error_chain::error_chain;
use model::launch::LaunchRequest;
use model::reservation::Reserved;
use model::{Market, Offering};
use std::time::Duration;

/// How long one launch call may take, in seconds. The launch claim lasts longer: 60 seconds.
const LAUNCH_CALL_S: u64 = 25;

/// The HTTP status for an error about one way: the call itself was answered.
const ANSWERED: u16 = 400;

pub(crate) async fn launch(
    client: &Client,
    request: &LaunchRequest,
    client_token: &str,
) -> Result<LaunchAnswer, LaunchError> {
    let Some(first) = request.ways.first() else {
        let (reach, class) = (Reach::Request, Class::Wrong);
        return Err(Refusal { reach, class, message: "the launch has no way".to_owned() }.into());
    };
    let one_call = aws_sdk_ec2::config::Builder::default()
        .retry_config(RetryConfig::disabled())
        .timeout_config(TimeoutConfig::builder().operation_timeout(Duration::from_secs(LAUNCH_CALL_S)).build());
    let call = client
        .create_fleet()
        .r#type(FleetType::Instant)
        .client_token(client_token)
        .launch_template_configs(configuration(request, first))
        .tag_specifications(tags(request));
    let sent = asking(call, request, first.market).customize().config_override(one_call).send().await;
    let answer = sent.map_err(|e| match e.as_service_error() {
        Some(service) => {
            let status = e.raw_response().map_or(0, |r| r.status().as_u16());
            error_of(first, service.code().unwrap_or(""), service.message().unwrap_or("no message"), status)
        }
        None => LaunchError::Lost(error_chain(&e)),
    })?;
    Ok(read(&answer, &request.ways))
}

/// The template with its ways, the best first.
fn configuration(request: &LaunchRequest, first: &Offering) -> FleetLaunchTemplateConfigRequest {
    let version = first.template_version.map_or_else(|| "$Default".to_owned(), |version| version.to_string());
    let user_data = base64::engine::general_purpose::STANDARD.encode(&request.user_data);
    let template = FleetLaunchTemplateSpecificationRequest::builder()
        .version(version)
        .launch_template_specification_user_data(user_data);
    let template = if first.template.starts_with("lt-") {
        template.launch_template_id(&first.template)
    } else {
        template.launch_template_name(&first.template)
    };
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

fn tags(request: &LaunchRequest) -> TagSpecification {
    let tags = request.tags.iter().map(|(key, value)| Tag::builder().key(key).value(value).build());
    TagSpecification::builder().resource_type(ResourceType::Instance).set_tags(Some(tags.collect())).build()
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

/// The error about a way. If it is about the reservation of the call, it says nothing of other launches by the same
/// template.
fn error_of(way: &Offering, code: &str, message: &str, status: u16) -> LaunchError {
    if way.reservation.is_some() && code.contains("Reservation") {
        let (reach, class) = (Reach::Offering, Class::Short);
        return Refusal { reach, class, message: format!("{code}: {message}") }.into();
    }
    launch_error(code, message, status)
}

fn read(answer: &CreateFleetOutput, ways: &[Offering]) -> LaunchAnswer {
    let instances = answer.instances().iter().flat_map(launched).collect();
    let refused = answer.errors().iter().filter_map(|error| {
        let way = way_of(error.launch_template_and_overrides(), ways)?;
        let (code, message) = (error.error_code().unwrap_or(""), error.error_message().unwrap_or("no message"));
        Some((way.clone(), error_of(way, code, message, ANSWERED)))
    });
    LaunchAnswer { instances, refused: refused.collect() }
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
