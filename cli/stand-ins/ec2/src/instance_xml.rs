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
    if instance.state != State::Terminated {
        details(xml, instance);
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

/// What EC2 also says about a live instance, and nodekeeper does not need: the security group, the volume, the network
/// interface, and options. With them an answer is about as long as EC2's, so that a client's memory and time are real.
fn details(xml: &mut Xml, instance: &Instance) {
    let since = instance.launched_at.to_string();
    let seed = instance.instance_id.trim_start_matches("i-").to_owned();
    xml.items("groupSet", [()], group);
    xml.text("rootDeviceName", "/dev/xvda");
    xml.items("blockDeviceMapping", [()], |xml, ()| {
        xml.text("deviceName", "/dev/xvda");
        xml.element("ebs", |xml| {
            xml.text("volumeId", &format!("vol-{seed}"));
            xml.text("status", "attached");
            xml.text("attachTime", &since);
            xml.text("deleteOnTermination", "true");
        });
    });
    network_interface(xml, instance, &seed, &since);
    xml.text("sourceDestCheck", "true");
    xml.text("hypervisor", "xen");
    xml.text("ebsOptimized", "true");
    xml.text("enaSupport", "true");
    xml.text("virtualizationType", "hvm");
    xml.element("iamInstanceProfile", |xml| {
        xml.text("arn", &format!("arn:aws:iam::{OWNER}:instance-profile/nodekeeper-nodes"));
        xml.text("id", "AIPA0123456789ABCDEFG");
    });
    xml.element("cpuOptions", |xml| {
        xml.text("coreCount", "1");
        xml.text("threadsPerCore", "2");
    });
    options(xml);
    xml.text("platformDetails", "Linux/UNIX");
    xml.text("usageOperation", "RunInstances");
    xml.text("usageOperationUpdateTime", &since);
    xml.text("bootMode", "uefi-preferred");
    xml.text("currentInstanceBootMode", "uefi");
}

fn group(xml: &mut Xml, (): ()) {
    xml.text("groupId", "sg-0123456789abcdef0");
    xml.text("groupName", "nodekeeper-nodes");
}

fn network_interface(xml: &mut Xml, instance: &Instance, seed: &str, since: &str) {
    let dns = format!("ip-{}.ec2.internal", instance.private_ip.replace('.', "-"));
    xml.items("networkInterfaceSet", [()], |xml, ()| {
        xml.text("networkInterfaceId", &format!("eni-{seed}"));
        xml.text("subnetId", &instance.subnet_id);
        xml.text("vpcId", "vpc-local");
        xml.text("description", "");
        xml.text("ownerId", OWNER);
        xml.text("status", "in-use");
        xml.text("macAddress", "02:00:00:00:00:01");
        xml.text("privateIpAddress", &instance.private_ip);
        xml.text("privateDnsName", &dns);
        xml.text("sourceDestCheck", "true");
        xml.items("groupSet", [()], group);
        xml.element("attachment", |xml| {
            xml.text("attachmentId", &format!("eni-attach-{seed}"));
            xml.text("deviceIndex", "0");
            xml.text("status", "attached");
            xml.text("attachTime", since);
            xml.text("deleteOnTermination", "true");
            xml.text("networkCardIndex", "0");
        });
        xml.items("privateIpAddressesSet", [()], |xml, ()| {
            xml.text("privateIpAddress", &instance.private_ip);
            xml.text("privateDnsName", &dns);
            xml.text("primary", "true");
        });
        xml.text("interfaceType", "interface");
        xml.element("operator", |xml| xml.text("managed", "false"));
    });
}

fn options(xml: &mut Xml) {
    xml.element("capacityReservationSpecification", |xml| xml.text("capacityReservationPreference", "open"));
    xml.element("hibernationOptions", |xml| xml.text("configured", "false"));
    xml.element("enclaveOptions", |xml| xml.text("enabled", "false"));
    xml.element("metadataOptions", |xml| {
        xml.text("state", "applied");
        xml.text("httpTokens", "required");
        xml.text("httpPutResponseHopLimit", "2");
        xml.text("httpEndpoint", "enabled");
        xml.text("httpProtocolIpv6", "disabled");
        xml.text("instanceMetadataTags", "disabled");
    });
    xml.element("privateDnsNameOptions", |xml| {
        xml.text("hostnameType", "ip-name");
        xml.text("enableResourceNameDnsARecord", "false");
        xml.text("enableResourceNameDnsAAAARecord", "false");
    });
    xml.element("maintenanceOptions", |xml| {
        xml.text("autoRecovery", "default");
        xml.text("rebootMigration", "default");
    });
}
