//! The launch call where EC2 does not know the user data of a fleet: RunInstances, by one way.
//!
//! Guarantees: it asks for what a fleet of this one way asks for.
//! Does not: try another way.
//! Source: EC2 API reference, "RunInstances".

use crate::launch::{Template, failed, one_call, tags, user_data};
use aws_sdk_ec2::Client;
use aws_sdk_ec2::types::{
    CapacityReservationSpecification, CapacityReservationTarget, Instance, InstanceMarketOptionsRequest, InstanceType,
    LaunchTemplateSpecification, MarketType,
};
use model::enums::ReservationKind;
use model::{LaunchAnswer, LaunchError, LaunchRequest, Market, NewInstance, Offering, Reach, Reserved};

pub(crate) async fn launch(
    client: &Client,
    request: &LaunchRequest,
    way: &Offering,
    client_token: &str,
) -> Result<LaunchAnswer, LaunchError> {
    let Template { id, name, version } = Template::of(way);
    let template = LaunchTemplateSpecification::builder()
        .set_launch_template_id(id)
        .set_launch_template_name(name)
        .version(version);
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let call = client
        .run_instances()
        .client_token(client_token)
        .set_dry_run(request.is_dry_run.then_some(true))
        .launch_template(template.build())
        .instance_type(InstanceType::from(way.instance_type.as_str()))
        .set_subnet_id(way.subnet_id.clone())
        .set_instance_market_options(market(way))
        .set_capacity_reservation_specification(way.reservation.as_ref().map(in_reservation))
        .user_data(user_data(request))
        .tag_specifications(tags(request))
        .min_count(number(request.least))
        .max_count(number(request.count));
    let answer = call.customize().config_override(one_call()).send().await.map_err(|e| match failed(way, &e) {
        // There is no simpler call than this one.
        LaunchError::Refused(mut refusal) if refusal.reach == Reach::Fleet => {
            refusal.reach = Reach::Request;
            refusal.into()
        }
        other => other,
    })?;
    let launched = |instance: &Instance| {
        Some(NewInstance {
            instance_id: instance.instance_id()?.to_owned(),
            instance_type: instance.instance_type().map(|kind| kind.as_str().to_owned()),
            subnet_id: instance.subnet_id().map(str::to_owned),
            zone: instance.placement().and_then(|place| place.availability_zone()).map(str::to_owned),
        })
    };
    Ok(LaunchAnswer { instances: answer.instances().iter().filter_map(launched).collect(), ..LaunchAnswer::default() })
}

fn market(way: &Offering) -> Option<InstanceMarketOptionsRequest> {
    let is_block = way.reservation.as_ref().is_some_and(|of| of.kind == ReservationKind::CapacityBlock);
    let market = match way.market {
        Market::Spot => MarketType::Spot,
        Market::Reserved if is_block => MarketType::CapacityBlock,
        Market::OnDemand | Market::Reserved => return None,
    };
    Some(InstanceMarketOptionsRequest::builder().market_type(market).build())
}

fn in_reservation(reservation: &Reserved) -> CapacityReservationSpecification {
    let target = CapacityReservationTarget::builder().capacity_reservation_id(&reservation.id).build();
    CapacityReservationSpecification::builder().capacity_reservation_target(target).build()
}
