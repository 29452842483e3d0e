//! Instances as XML, with the elements that the AWS SDK reads.
//!
//! Guarantees: an answer is about as long as EC2's, so that a client's memory and time are real.
//! Does not: give true values where nodekeeper reads none: every instance is `x86_64`, with the same security group.

use model::Market;

use crate::instance::{Ec2Instance, InstanceState, code};
use crate::wire::Xml;

const OWNER: &str = "000000000000";

/// `<name>` with the code and name of a state.
pub(crate) fn state(xml: &mut Xml, name: &str, state: InstanceState) {
    let (word, code) = (state.as_str(), code(state));
    xml.element(name, |xml| {
        xml.value("code", code);
        xml.text("name", word);
    });
}

/// The content of a reservation.
pub(crate) fn reservation<'a>(xml: &mut Xml, id: &str, instances: impl IntoIterator<Item = &'a Ec2Instance>) {
    xml.text("reservationId", id);
    xml.text("ownerId", OWNER);
    xml.element("groupSet", |_| {});
    xml.items("instancesSet", instances, instance);
}

fn instance(xml: &mut Xml, instance: &Ec2Instance) {
    xml.text("instanceId", &instance.instance_id);
    if let Some(image) = &instance.image_id {
        xml.text("imageId", image);
    }
    state(xml, "instanceState", instance.state);
    xml.value("amiLaunchIndex", instance.launch_index);
    xml.text("instanceType", &instance.instance_type);
    xml.value("launchTime", instance.launched_at);
    xml.element("placement", |xml| {
        xml.text("availabilityZone", &instance.zone);
        xml.text("groupName", "");
        xml.text("tenancy", "default");
    });
    xml.element("monitoring", |xml| xml.text("state", "disabled"));
    // A terminated instance no longer has a network interface.
    if instance.state != InstanceState::Terminated {
        xml.text("subnetId", &instance.subnet_id);
        xml.text("vpcId", "vpc-local");
        xml.text("privateIpAddress", &instance.private_ip);
        xml.text("privateDnsName", &dns(&instance.private_ip));
    }
    if let Some(reason) = instance.state_reason {
        let (code, message) = reason.code_and_message();
        xml.element("stateReason", |xml| {
            xml.text("code", code);
            xml.value("message", format_args!("{code}: {message}"));
        });
    }
    if instance.state != InstanceState::Terminated {
        xml.raw(&details(instance));
    }
    xml.text("architecture", "x86_64");
    xml.text("rootDeviceType", "ebs");
    if instance.market == Market::Spot {
        xml.text("instanceLifecycle", "spot");
    }
    if let Some(reservation) = &instance.capacity_reservation {
        xml.text("capacityReservationId", reservation);
    }
    if let Some(token) = &instance.client_token {
        xml.text("clientToken", token);
    }
    xml.tags("tagSet", &instance.tags);
}

/// The parts of a live instance that nodekeeper does not need: the security group, the volume, the network interface, and options.
/// With them an answer is about as long as EC2's, so that a client's memory and time are real.
fn details(instance: &Ec2Instance) -> String {
    let ip = &instance.private_ip;
    include_str!("details.xml")
        .replace('\n', "")
        .replace("{seed}", instance.instance_id.trim_start_matches("i-"))
        .replace("{since}", &instance.launched_at.to_string())
        .replace("{subnet}", &instance.subnet_id)
        .replace("{dns}", &dns(ip))
        .replace("{ip}", ip)
}

fn dns(ip: &str) -> String {
    format!("ip-{}.ec2.internal", ip.replace('.', "-"))
}
