//! The meaning of EC2's error codes: how wide each is, and what the caller must do.
//!
//! Guarantees: the error code decides and not the HTTP status, because EC2 answers a capacity shortage as a server
//! error (HTTP 500). Some codes mean different things, and the message tells them apart. The status decides only if the code
//! is not in the table: then a client error concerns that one request, so that no other launch waits for it.
//! Does not: retry anything.
//! Source: EC2 API reference, "Error codes for the Amazon EC2 API": what RunInstances, CreateFleet and TerminateInstances can
//! answer. Codes that only other actions answer are left out.

use model::Class::{self, Quota, Refused, Short, Throttled, Unanswered, Wrong};
use model::enums::Reach::{self, Account, Family, Fleet, Market, Offering, Request, Subnet, Template, Type};
use model::{LaunchError, Refusal};

/// What a code means for a launch: the class of the limit, which says for how long it holds, and what it is about.
type Meaning = (Class, Reach);

const TOO_MANY: Meaning = (Throttled, Account);

/// It is not known whether an instance was launched.
const LOST: Meaning = (Unanswered, Offering);

/// Codes whose message narrows the meaning. The first row whose code and part of the message fit applies.
const BY_MESSAGE: &[(&str, &str, Meaning)] = &[
    // The message names the resource that the caller may not use.
    ("UnauthorizedOperation", ":subnet/", (Refused, Subnet)),
    ("UnauthorizedOperation", ":launch-template/", (Refused, Template)),
    ("UnauthorizedOperation", ":image/", (Refused, Template)),
    ("UnauthorizedOperation", ":snapshot/", (Refused, Template)),
    ("UnauthorizedOperation", ":key-pair/", (Refused, Template)),
    ("UnauthorizedOperation", ":placement-group/", (Refused, Template)),
    ("UnauthorizedOperation", "iam:PassRole", (Refused, Template)),
    ("UnauthorizedOperation", ":spot-instances-request/", (Refused, Market)),
    ("UnauthorizedOperation", ":security-group/", (Refused, Request)),
    ("UnauthorizedOperation", ":network-interface/", (Refused, Request)),
    ("UnauthorizedOperation", ":volume/", (Refused, Request)),
    // A policy may allow some types, or some tags.
    ("UnauthorizedOperation", ":instance/", (Refused, Request)),
    // A policy of the organization forbids something of this call. It may allow other calls.
    ("UnauthorizedOperation", "explicit deny", (Refused, Request)),
    // An image that belongs to somebody else.
    ("AuthFailure", "image", (Refused, Template)),
    // A product of the marketplace that the account has not subscribed to.
    ("OptInRequired", "arketplace", (Refused, Template)),
    // The limit of one type, and not of its family.
    ("InstanceLimitExceeded", "for the specified instance type", (Quota, Type)),
    ("InvalidParameterValue", "instance profile", (Refused, Template)),
    ("InvalidParameterValue", "instanceProfile", (Refused, Template)),
    ("InvalidParameterValue", "KMS", (Refused, Template)),
    ("InvalidParameterValue", "snapshot", (Refused, Template)),
    ("InvalidParameterValue", "volume", (Refused, Template)),
    // The image does not run on the type. It runs on other types of the same size.
    ("InvalidParameterValue", "does not match the architecture", (Refused, Type)),
    ("InvalidParameterValue", "boot mode", (Refused, Type)),
    ("InvalidParameterCombination", "(ENA) is required", (Refused, Type)),
    ("InvalidParameterCombination", "Virtualization type", (Refused, Type)),
    ("Unsupported", "boot mode", (Refused, Type)),
    // The field of the call that not every region knows.
    ("InvalidParameter", "LaunchTemplateSpecificationUserData", (Wrong, Fleet)),
    ("InvalidParameterValue", "LaunchTemplateSpecificationUserData", (Wrong, Fleet)),
    ("InvalidParameterCombination", "LaunchTemplateSpecificationUserData", (Wrong, Fleet)),
];

/// The meaning of each code if no row of [`BY_MESSAGE`] applies. A space separates two codes.
const CODES: &[(Meaning, &str)] = &[
    // EC2 has not got this type in this market and place, or does not offer it there: another offering may work.
    (
        (Short, Offering),
        "InsufficientInstanceCapacity InsufficientCapacity InsufficientHostCapacity InsufficientCapacityOnHost \
         InsufficientCapacityOnOutpost InsufficientReservedInstanceCapacity InsufficientReservedInstancesCapacity \
         InsufficientVolumeCapacity IncompatibleHostRequirements UnavailableHostRequirements UnfulfillableCapacity \
         SpotMaxPriceTooLow Unsupported InvalidFleetConfiguration",
    ),
    ((Short, Subnet), "InsufficientFreeAddressesInSubnet InsufficientAddressCapacity"),
    // The capacity that the template asks for.
    (
        (Short, Template),
        "ReservationCapacityExceeded InvalidCapacityReservationState.PendingActivation \
         MaxScheduledInstanceCapacityExceeded",
    ),
    ((Quota, Family), "VcpuLimitExceeded InstanceLimitExceeded MaxSpotInstanceCountExceeded"),
    ((Quota, Market), "MaxSpotFleetRequestCountExceeded MaxFleetCountExceeded"),
    ((Quota, Account), "NetworkInterfaceLimitExceeded"),
    // The volumes, addresses and hosts that the template asks for.
    ((Quota, Template), "VolumeLimitExceeded MaxIOPSLimitExceeded AddressLimitExceeded HostLimitExceeded"),
    // Fewer instances in one call may work.
    ((Quota, Request), "ResourceCountExceeded RequestResourceCountExceeded ResourceLimitExceeded"),
    (
        TOO_MANY,
        "RequestLimitExceeded Throttling ThrottlingException RequestThrottled EC2ThrottledException \
         RequestThrottledException",
    ),
    // EC2 does not accept the caller: its credentials, its clock, its account or its permissions.
    (
        (Refused, Account),
        "AuthFailure AccessDenied AccessDeniedException UnauthorizedOperation InvalidClientTokenId \
         UnrecognizedClientException MissingAuthenticationToken SignatureDoesNotMatch IncompleteSignature \
         InvalidSignatureException RequestExpired InvalidSecurity.RequestHasExpired ExpiredToken ExpiredTokenException \
         OptInRequired PendingVerification",
    ),
    ((Wrong, Account), "Blocked AccountDisabled NoSuchVersion UnsupportedProtocol"),
    // EC2 makes the role that spot needs when it is first used.
    ((Refused, Market), "AuthFailure.ServiceLinkedRoleCreationNotPermitted"),
    ((Refused, Subnet), "InvalidSubnetID.NotFound InvalidSubnetId.NotFound InvalidSubnet"),
    ((Wrong, Subnet), "InvalidSubnetID.Malformed InvalidSubnetId.Malformed"),
    // What the template names is not there, or not there yet.
    (
        (Refused, Template),
        "InvalidLaunchTemplateId.NotFound InvalidLaunchTemplateId.VersionNotFound \
         InvalidLaunchTemplateName.NotFoundException SsmAccessDenied InvalidAMIID.NotFound InvalidAMIID.Unavailable InvalidManifest \
         InvalidSnapshot.NotFound InvalidVolume.NotFound InvalidKeyPair.NotFound InvalidPlacementGroup.Unknown \
         InvalidCapacityReservationId.NotFound InvalidLaunchTargets InvalidHostID.NotFound InvalidHostId.NotFound \
         InvalidHostState InvalidElasticGpuID.NotFound InvalidNetworkInterface.NotFound \
         InvalidNetworkInterfaceID.NotFound InvalidNetworkInterface.InUse InvalidIPAddress.InUse \
         CustomerKeyHasBeenRevoked ScheduledInstanceSlotNotOpen ScheduledInstanceSlotUnavailable \
         CreditSpecificationUpdateInProgress DefaultVpcDoesNotExist VPCIdNotSpecified VPCResourceNotSpecified",
    ),
    // What the template names can never be.
    (
        (Wrong, Template),
        "InvalidLaunchTemplateId.Malformed InvalidLaunchTemplateName.MalformedException InvalidAMIID.Malformed \
         InvalidBlockDeviceMapping InvalidSnapshotID.Malformed InvalidVolumeID.Malformed InvalidKernelId.Malformed \
         InvalidRamDiskId.Malformed InvalidGroupId.Malformed InvalidSecurityGroupId.Malformed \
         InvalidPlacementGroupId.Malformed InvalidIamInstanceProfileArn.Malformed \
         InvalidCapacityReservationId.Malformed InvalidNetworkInterfaceId.Malformed InvalidHostID.Malformed \
         InvalidHostId.Malformed InvalidElasticGpuID.Malformed InvalidAffinity InvalidCpuCredits \
         InvalidCpuCredits.Malformed InvalidProductInfo InvalidScheduledInstance ScheduledInstanceParameterMismatch \
         SecurityGroupsPerInstanceLimitExceeded SecurityGroupsPerInterfaceLimitExceeded SecurityGroupLimitExceeded \
         BootForVolumeTypeUnsupported UnknownVolumeType VolumeIOPSLimit",
    ),
    // The type, the template and the subnet do not fit together, or the message alone says what is wrong.
    (
        (Refused, Request),
        "InvalidParameter InvalidParameterValue InvalidParameterCombination InvalidParameterDependency \
         ClientInvalidParameterValue InvalidRequest InvalidInput ValidationError InvalidGroup.NotFound \
         InvalidSecurityGroupID.NotFound InvalidInstanceType InvalidInstanceFamily InvalidAvailabilityZone \
         InvalidZone.NotFound InvalidTenancy InvalidInstanceAttributeValue InvalidSpotFleetRequestConfig \
         TagPolicyViolation OperationNotPermitted IncorrectState InvalidState AttachmentLimitExceeded \
         PrivateIpAddressLimitExceeded InvalidInterface.IpAddressLimitExceeded EncryptedVolumesNotSupported \
         InstanceCreditSpecification.NotSupported NonEBSInstance UnsupportedOperation UnsupportedException \
         UnsupportedHibernationConfiguration UnsupportedHostConfiguration UnsupportedInstanceTypeOnHost \
         UnsupportedTenancy InvalidHostConfiguration VolumeTypeNotAvailableInZone InvalidVolume.ZoneMismatch \
         InvalidVolumeID.ZoneMismatch ZonesMismatched",
    ),
    // A field of the fleet that EC2 does not know, or ways that it does not take together: a call of one way has neither.
    ((Wrong, Fleet), "UnknownParameter InvalidFleetConfig"),
    // The request is not a request that EC2 knows.
    (
        (Wrong, Request),
        "InvalidAction InvalidCharacter InvalidClientToken InvalidQueryParameter MalformedQueryString MissingAction \
         MissingInput MissingParameter InvalidUserData.Malformed InvalidTagKey.Malformed InvalidID \
         TagLimitExceeded RequestEntityTooLarge",
    ),
    // `IdempotentParameterMismatch` means that another run used this client token with other parameters. This is not a
    // refusal: the call of the other run may have launched an instance. `IdempotentInstanceTerminated`: it has, and the instance is gone.
    (
        LOST,
        "IdempotentParameterMismatch IdempotentInstanceTerminated ClientTokenInProgress IncompleteOperation InternalError InternalFailure \
         ServerInternal ServiceUnavailable Unavailable RetryableError BandwidthLimitExceeded ConcurrentTagAccess",
    ),
];

/// The codes for an instance that EC2 does not know.
const UNKNOWN_INSTANCE: &[&str] = &["InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"];

/// Refusals that a single instance of a call can cause: permission to terminate may depend on an instance's
/// tags, and an instance may be protected.
const OF_ONE_INSTANCE: &[&str] = &[
    "OperationNotPermitted",
    "UnauthorizedOperation",
    "IncorrectInstanceState",
    "InvalidInstanceState",
    "IncorrectState",
    "InvalidState",
    "UnsupportedOperation",
];

fn meaning(code: &str, message: &str, status: u16) -> Meaning {
    // EC2 writes the same words with capitals in some messages and without them in others.
    let said = message.to_ascii_lowercase();
    let by_message = BY_MESSAGE.iter().find(|(of, part, _)| *of == code && said.contains(&part.to_ascii_lowercase()));
    let by_code =
        || CODES.iter().find(|(_, codes)| codes.split(' ').any(|known| known == code)).map(|(meaning, _)| *meaning);
    by_message.map(|(.., meaning)| *meaning).or_else(by_code).unwrap_or(match status {
        401 | 403 => (Refused, Account),
        429 => TOO_MANY,
        400..=499 => (Refused, Request),
        _ => LOST,
    })
}

/// The error of a launch call that EC2 answered with this code.
pub(crate) fn launch_error(code: &str, message: &str, status: u16) -> LaunchError {
    let ((class, reach), message) = (meaning(code, message, status), format!("{code}: {message}"));
    match class {
        Throttled => LaunchError::Throttled(message),
        Unanswered => LaunchError::Lost(message),
        Short | Quota | Refused | Wrong => Refusal { reach, class, message }.into(),
    }
}

pub(crate) fn is_unknown_instance(code: Option<&str>) -> bool {
    code.is_some_and(|code| UNKNOWN_INSTANCE.contains(&code))
}

/// Whether a single id can be the cause of this refusal. If it can, retrying the ids one by one helps; for any other
/// error it does not.
pub(crate) fn can_be_of_one_instance(code: &str) -> bool {
    code.starts_with("InvalidInstanceID.") || OF_ONE_INSTANCE.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_code_has_one_meaning_whatever_the_status() {
        let mut seen = BTreeSet::new();
        for (expected, codes) in CODES {
            for code in codes.split(' ') {
                assert!(seen.insert(code), "{code} is in two rows");
                for status in [0, 400, 403, 500, 503] {
                    assert_eq!(meaning(code, "", status), *expected, "{code} with status {status}");
                }
            }
        }
        for (code, ..) in BY_MESSAGE {
            assert!(seen.contains(code), "{code} has a meaning only with some messages");
        }
    }

    #[test]
    fn the_message_narrows_a_code_that_means_several_things() {
        let profile = "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name";
        let subnet = "You are not authorized to perform this operation. User: arn:aws:sts::1:assumed-role/r/f is not \
                      authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:eu-west-1:1:subnet/subnet-1";
        let passing = "User: u is not authorized to perform: iam:PassRole on resource: arn:aws:iam::1:role/nodes";
        let bucket = "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the instance bucket \
                      that the specified instance type belongs to.";
        let of_type = "You have requested more instances (3) than your current instance limit of 2 allows for the specified \
                       instance type.";
        let arch = "The architecture 'arm64' of the specified instance type does not match the architecture 'x86_64' of the \
                    specified AMI.";
        let ena =
            "Enhanced networking with the Elastic Network Adapter (ENA) is required for the 'm5.large' instance type.";
        for (code, message, expected) in [
            ("InvalidParameterValue", profile, (Refused, Template)),
            ("InvalidParameterValue", "Value (0) for parameter x is invalid", (Refused, Request)),
            ("UnauthorizedOperation", subnet, (Refused, Subnet)),
            ("UnauthorizedOperation", passing, (Refused, Template)),
            ("UnauthorizedOperation", "Encoded authorization failure message: aB3", (Refused, Account)),
            ("AuthFailure", "Not authorized for images: [ami-1]", (Refused, Template)),
            ("AuthFailure", "AWS was not able to validate the provided access credentials", (Refused, Account)),
            ("VcpuLimitExceeded", bucket, (Quota, Family)),
            ("InvalidParameterValue", arch, (Refused, Type)),
            ("InvalidParameterCombination", ena, (Refused, Type)),
            (
                "InvalidParameterCombination",
                "Virtualization type 'hvm' is required for instances of type 'm5.large'",
                (Refused, Type),
            ),
            ("InvalidParameterCombination", "MinTargetCapacity needs a single zone", (Refused, Request)),
            ("InvalidParameterValue", "LaunchTemplateSpecificationUserData is not supported", (Wrong, Fleet)),
            ("InstanceLimitExceeded", of_type, (Quota, Type)),
            ("InstanceLimitExceeded", "Your quota allows for 0 more running instance(s)", (Quota, Family)),
        ] {
            assert_eq!(meaning(code, message, 400), expected, "{code}: {message}");
        }
    }

    #[test]
    fn a_code_that_is_not_in_the_table_is_judged_by_its_status() {
        for (code, status, expected) in [
            ("OfTheFuture", 400, (Refused, Request)),
            ("OfTheFuture", 412, (Refused, Request)),
            ("OfTheFuture", 401, (Refused, Account)),
            ("OfTheFuture", 403, (Refused, Account)),
            ("OfTheFuture", 429, TOO_MANY),
            ("OfTheFuture", 500, LOST),
            ("OfTheFuture", 503, LOST),
            ("", 0, LOST),
        ] {
            assert_eq!(meaning(code, "", status), expected, "{code} with status {status}");
        }
    }

    #[test]
    fn only_an_error_that_one_instance_can_cause_is_retried_one_by_one() {
        for code in OF_ONE_INSTANCE.iter().chain(UNKNOWN_INSTANCE) {
            assert!(can_be_of_one_instance(code), "{code}");
        }
        for code in ["RequestLimitExceeded", "Throttling", "InternalError", "Unavailable", ""] {
            assert!(!can_be_of_one_instance(code), "{code}");
        }
        assert!(is_unknown_instance(Some("InvalidInstanceID.NotFound")) && !is_unknown_instance(None));
        assert!(!is_unknown_instance(Some("OperationNotPermitted")));
    }
}
