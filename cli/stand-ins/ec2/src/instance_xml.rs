//! Instances as XML, with the elements that the AWS SDK reads.

use model::Market;

use crate::instance::{Instance, State};
use crate::wire::Xml;

const OWNER: &str = "000000000000";

/// `<name>` with the code and name of a state.
pub(crate) fn state(xml: &mut Xml, name: &str, state: State) {
    let (word, code) = state.name_and_code();
    xml.element(name, |xml| {
        xml.value("code", code);
        xml.text("name", word);
    });
}

/// The content of a reservation.
pub(crate) fn reservation<'a>(xml: &mut Xml, id: &str, instances: impl IntoIterator<Item = &'a Instance>) {
    xml.text("reservationId", id);
    xml.text("ownerId", OWNER);
    xml.element("groupSet", |_| {});
    xml.items("instancesSet", instances, instance);
}

fn instance(xml: &mut Xml, instance: &Instance) {
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
    if instance.state != State::Terminated {
        xml.text("subnetId", &instance.subnet_id);
        xml.text("vpcId", "vpc-local");
        xml.text("privateIpAddress", &instance.private_ip);
        xml.text("privateDnsName", &format!("ip-{}.ec2.internal", instance.private_ip.replace('.', "-")));
    }
    if let Some(reason) = instance.state_reason {
        let (code, message) = reason.code_and_message();
        xml.element("stateReason", |xml| {
            xml.text("code", code);
            xml.text("message", message);
        });
    }
    xml.text("architecture", "x86_64");
    xml.text("rootDeviceType", "ebs");
    if instance.market == Market::Spot {
        xml.text("instanceLifecycle", "spot");
    }
    if let Some(token) = &instance.client_token {
        xml.text("clientToken", token);
    }
    xml.tags("tagSet", &instance.tags);
}
