//! The rules that a call of CreateFleet of the type `instant` must keep. EC2 refuses the whole call if it breaks one of them.
//! What EC2 answers about one way of a call is in `fleet`.
//!
//! Guarantees: each rule has its source, and its own case in the tests.
//! Does not: know who may do what.
//!
//! Sources by their short names: "API" is the EC2 API Reference, "guide" the EC2 User Guide, "model" the service model of botocore
//! 1.43.106, and a name with a number is an issue or a pull request on GitHub. "measured" is a public report of calls to EC2 on
//! 2026-10-07 (find it by its words "the fleet tries at most three pools").

use crate::actions::run::user_data;
use crate::api_error::{ApiError, clip};
use crate::settings::Ec2Settings;
use crate::wire::Params;
use std::collections::{BTreeMap, BTreeSet};

#[cfg_attr(
    not(test),
    expect(dead_code, reason = "what a rule says and where it comes from is for people; a test asks for both")
)]
pub(crate) struct Rule {
    pub(crate) text: &'static str,
    pub(crate) source: &'static str,
    code: &'static str,
    /// The message of the refusal, if the call breaks the rule.
    breaks: fn(&Params, &Ec2Settings) -> Option<String>,
}

const INVALID: &str = "InvalidParameterValue";
const COMBINATION: &str = "InvalidParameterCombination";
const SPEC: &str = "LaunchTemplateSpecification";
const USER_DATA: &str = "LaunchTemplateSpecificationUserData";
/// The options of the markets.
const OPTIONS: [&str; 2] = ["SpotOptions", "OnDemandOptions"];

pub(crate) const RULES: &[Rule] = &[
    Rule {
        text: "every parameter is one that EC2 knows",
        source: "API, Error codes: UnknownParameter; model: CreateFleetRequest",
        code: "UnknownParameter",
        breaks: |params, settings| {
            let name = params.pairs().map(|(name, _)| name).find(|name| !is_of_ec2(name, settings))?;
            Some(format!("The parameter {} is not recognized", clip(name)))
        },
    },
    Rule {
        text: "no two ways are one instance pool: the subnets of a call are in different zones",
        source: "guide, Quotas for EC2 Fleet and Spot Fleet (a request cannot span different subnets of one zone); \
                 github-aws-runners/terraform-aws-github-runner 2904 and 5297; aws-samples/aws-plugin-for-slurm 19; \
                 aws/aws-parallelcluster 4352 (the same type twice)",
        code: "InvalidFleetConfig",
        breaks: |params, settings| {
            let ways = ways(params);
            let mut subnet_of: BTreeMap<&str, &str> = BTreeMap::new();
            let mut pools = BTreeSet::new();
            let mut is_double = |way: &Params| {
                let (kind, subnet) = (way.filled("InstanceType"), way.filled("SubnetId").unwrap_or_default());
                let known = settings.subnets.iter().find(|known| known.subnet_id == subnet);
                let other = known.and_then(|known| subnet_of.insert(&known.zone, &known.subnet_id));
                !pools.insert((kind.map(str::to_owned), subnet.to_owned()))
                    || other.is_some_and(|other| other != subnet)
            };
            ways.iter()
                .any(&mut is_double)
                .then(|| "The fleet configuration contains duplicate instance pools.".to_owned())
        },
    },
    Rule {
        text: "at most 50 launch template configurations",
        source: "model: FleetLaunchTemplateConfigListRequest",
        code: INVALID,
        breaks: |params, _| {
            (params.structures("LaunchTemplateConfigs").len() > 50)
                .then(|| "LaunchTemplateConfigs can have at most 50 items.".to_owned())
        },
    },
    Rule {
        text: "a way names one subnet",
        source: "API, FleetLaunchTemplateOverridesRequest: SubnetId",
        code: INVALID,
        breaks: |params, _| {
            let ways = ways(params);
            let many = ways.iter().find_map(|way| way.filled("SubnetId").filter(|subnet| subnet.contains(',')))?;
            Some(format!("Value ({}) for parameter SubnetId: a fleet of type instant takes one subnet.", clip(many)))
        },
    },
    Rule {
        text: "a way names an instance type or requirements, and not both",
        source: "API, FleetLaunchTemplateOverridesRequest: InstanceType; github-aws-runners/terraform-aws-github-runner 5315",
        code: COMBINATION,
        breaks: |params, _| {
            let is_both =
                |way: &Params| way.filled("InstanceType").is_some() && way.structure("InstanceRequirements").is_some();
            ways(params)
                .iter()
                .any(is_both)
                .then(|| "InstanceType and InstanceRequirements can not be specified together.".to_owned())
        },
    },
    Rule {
        text: "a priority is a whole number from 0 on",
        source: "API, FleetLaunchTemplateOverridesRequest: Priority",
        code: INVALID,
        breaks: |params, _| {
            let is_wrong = |text: &&str| text.parse::<f64>().ok().is_none_or(|n| n < 0.0 || n.fract() != 0.0);
            let ways = ways(params);
            let wrong = ways.iter().find_map(|way| way.filled("Priority").filter(is_wrong))?;
            Some(format!("Value ({}) for parameter Priority must be a whole number from 0 on.", clip(wrong)))
        },
    },
    Rule {
        text: "user data is at most 16 KB in base64",
        source: "API, FleetLaunchTemplateSpecificationRequest: LaunchTemplateSpecificationUserData; the code: \
                 aws/karpenter-provider-aws, pkg/errors (IsUserDataTooLarge)",
        code: "InvalidUserData.Malformed",
        breaks: |params, _| {
            let given =
                params.structures("LaunchTemplateConfigs").into_iter().filter_map(|config| config.structure(SPEC));
            given.filter_map(|spec| user_data(&spec, USER_DATA).err()).map(|error| error.message).next()
        },
    },
    Rule {
        text: "at most 10,000 instances",
        source: "guide, Quotas for EC2 Fleet and Spot Fleet",
        code: INVALID,
        breaks: |params, _| {
            let total = params.filled("TargetCapacitySpecification.TotalTargetCapacity")?;
            total
                .parse::<u64>()
                .is_ok_and(|n| n > 10_000)
                .then(|| format!("Value ({}) for parameter TotalTargetCapacity must be at most 10000.", clip(total)))
        },
    },
    Rule {
        text: "a least number of instances is at most 1,000",
        source: "API, OnDemandOptionsRequest and SpotOptionsRequest: MinTargetCapacity",
        code: INVALID,
        breaks: |params, _| {
            let least = OPTIONS.iter().filter_map(|of| params.filled(&format!("{of}.MinTargetCapacity")));
            let wrong = least.into_iter().find(|n| n.parse::<u64>().is_ok_and(|n| n > 1_000))?;
            Some(format!("Value ({}) for parameter MinTargetCapacity must be at most 1000.", clip(wrong)))
        },
    },
    Rule {
        text: "a least number of instances needs one type or one zone",
        source: "API, OnDemandOptionsRequest and SpotOptionsRequest: MinTargetCapacity",
        code: COMBINATION,
        breaks: |params, _| {
            let is = |of: &str, name: &str| params.filled(&format!("{of}.{name}")) == Some("true");
            let needs = |of: &&&str| {
                params.filled(&format!("{of}.MinTargetCapacity")).is_some_and(|n| n != "0")
                    && !is(of, "SingleInstanceType")
                    && !is(of, "SingleAvailabilityZone")
            };
            OPTIONS
                .iter()
                .find(needs)
                .map(|_| "MinTargetCapacity needs SingleInstanceType or SingleAvailabilityZone".to_owned())
        },
    },
    Rule {
        text: "an interrupted spot instance is terminated",
        source: "measured",
        code: INVALID,
        breaks: |params, _| {
            params.filled("SpotOptions.InstanceInterruptionBehavior").filter(|what| *what != "terminate").map(|_| {
                "SpotOptions.InstanceInterruptionBehavior must be null or \"terminate\" for given fleet type."
                    .to_owned()
            })
        },
    },
    Rule {
        text: "what keeps a fleet up is for fleets of the type maintain",
        source: "API, CreateFleet: ReplaceUnhealthyInstances; SpotOptionsRequest: MaintenanceStrategies",
        code: COMBINATION,
        breaks: |params, _| {
            let given = params.filled("ReplaceUnhealthyInstances").is_some_and(|is| is == "true")
                || params.structure("SpotOptions.MaintenanceStrategies").is_some();
            given.then(|| "This parameter is supported only for fleets of type maintain.".to_owned())
        },
    },
    Rule {
        text: "a number of spot pools is for the strategy lowest-price",
        source: "API, SpotOptionsRequest: InstancePoolsToUseCount",
        code: COMBINATION,
        breaks: |params, _| {
            params.filled("SpotOptions.InstancePoolsToUseCount")?;
            let strategy = params.filled("SpotOptions.AllocationStrategy").unwrap_or("lowest-price");
            (strategy != "lowest-price").then(|| "InstancePoolsToUseCount needs the strategy lowest-price.".to_owned())
        },
    },
    Rule {
        text: "options of reserved capacity go with reserved capacity",
        source: "API, ReservedCapacityOptionsRequest",
        code: COMBINATION,
        breaks: |params, _| {
            params.structure("ReservedCapacityOptions")?;
            let market = params.filled("TargetCapacitySpecification.DefaultTargetCapacityType");
            (market != Some("reserved-capacity"))
                .then(|| "ReservedCapacityOptions needs DefaultTargetCapacityType reserved-capacity.".to_owned())
        },
    },
    Rule {
        text: "a fleet tags the fleet, its instances, volumes, interfaces and spot requests",
        source: "API, CreateFleet: TagSpecification.N; aws/karpenter-provider-aws (spot-instances-request)",
        code: INVALID,
        breaks: |params, _| {
            const KINDS: [&str; 5] = ["fleet", "instance", "volume", "network-interface", "spot-instances-request"];
            let tagged = params.structures("TagSpecification");
            let kind = |tags: &Params| tags.filled("ResourceType").unwrap_or_default().to_owned();
            let wrong = tagged.iter().map(kind).find(|kind| !KINDS.contains(&kind.as_str()))?;
            Some(format!("'{}' is not a valid taggable resource type for this operation.", clip(&wrong)))
        },
    },
];

/// Refuses a call that breaks a rule.
pub(crate) fn check(params: &Params, settings: &Ec2Settings) -> Result<(), ApiError> {
    let broken = |rule: &Rule| (rule.breaks)(params, settings).map(|message| ApiError::new(rule.code, message));
    RULES.iter().find_map(broken).map_or(Ok(()), Err)
}

fn ways(params: &Params) -> Vec<Params> {
    params.structures("LaunchTemplateConfigs").iter().flat_map(|config| config.structures("Overrides")).collect()
}

/// The names of the parameters, with N for each number; what ends with a dot is the beginning of a name.
const PARAMETERS: &[&str] = &[
    "Action",
    "Version",
    "DryRun",
    "ClientToken",
    "Context",
    "ExcessCapacityTerminationPolicy",
    "LaunchTemplateConfigs.N.LaunchTemplateSpecification.LaunchTemplateId",
    "LaunchTemplateConfigs.N.LaunchTemplateSpecification.LaunchTemplateName",
    "LaunchTemplateConfigs.N.LaunchTemplateSpecification.LaunchTemplateSpecificationUserData",
    "LaunchTemplateConfigs.N.LaunchTemplateSpecification.Version",
    "LaunchTemplateConfigs.N.Overrides.N.AvailabilityZone",
    "LaunchTemplateConfigs.N.Overrides.N.AvailabilityZoneId",
    "LaunchTemplateConfigs.N.Overrides.N.BlockDeviceMapping.N.",
    "LaunchTemplateConfigs.N.Overrides.N.IamInstanceProfile.",
    "LaunchTemplateConfigs.N.Overrides.N.ImageId",
    "LaunchTemplateConfigs.N.Overrides.N.InstanceRequirements.",
    "LaunchTemplateConfigs.N.Overrides.N.InstanceType",
    "LaunchTemplateConfigs.N.Overrides.N.KeyName",
    "LaunchTemplateConfigs.N.Overrides.N.MaxPrice",
    "LaunchTemplateConfigs.N.Overrides.N.MetadataOptions.",
    "LaunchTemplateConfigs.N.Overrides.N.Placement.",
    "LaunchTemplateConfigs.N.Overrides.N.Priority",
    "LaunchTemplateConfigs.N.Overrides.N.SubnetId",
    "LaunchTemplateConfigs.N.Overrides.N.WeightedCapacity",
    "OnDemandOptions.AllocationStrategy",
    "OnDemandOptions.CapacityReservationOptions.UsageStrategy",
    "OnDemandOptions.MaxTotalPrice",
    "OnDemandOptions.MinTargetCapacity",
    "OnDemandOptions.SingleAvailabilityZone",
    "OnDemandOptions.SingleInstanceType",
    "ReplaceUnhealthyInstances",
    "ReservedCapacityOptions.AllocationStrategy",
    "ReservedCapacityOptions.CapacityReservationTarget.CapacityReservationId.N",
    "ReservedCapacityOptions.CapacityReservationTarget.CapacityReservationResourceGroupArn.N",
    "ReservedCapacityOptions.ReservationType.N",
    "ReservedCapacityOptions.ReservedCapacityFallbackOptions.MarketType.N",
    "SpotOptions.AllocationStrategy",
    "SpotOptions.InstanceInterruptionBehavior",
    "SpotOptions.InstancePoolsToUseCount",
    "SpotOptions.MaintenanceStrategies.",
    "SpotOptions.MaxTotalPrice",
    "SpotOptions.MinTargetCapacity",
    "SpotOptions.SingleAvailabilityZone",
    "SpotOptions.SingleInstanceType",
    "TagSpecification.N.ResourceType",
    "TagSpecification.N.Tag.N.Key",
    "TagSpecification.N.Tag.N.Value",
    "TargetCapacitySpecification.DefaultTargetCapacityType",
    "TargetCapacitySpecification.OnDemandTargetCapacity",
    "TargetCapacitySpecification.SpotTargetCapacity",
    "TargetCapacitySpecification.TargetCapacityUnitType",
    "TargetCapacitySpecification.TotalTargetCapacity",
    "TerminateInstancesWithExpiration",
    "Type",
    "ValidFrom",
    "ValidUntil",
];

fn is_of_ec2(name: &str, settings: &Ec2Settings) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> = name.split('.').map(|part| if is_number(part) { "N" } else { part }).collect();
    let name = parts.join(".");
    let is_it = |known: &&&str| name == **known || (known.ends_with('.') && name.starts_with(**known));
    // Some regions do not know the field of July 2026 yet.
    PARAMETERS.iter().any(|known| is_it(&known)) && (settings.knows_fleet_user_data || !name.ends_with(USER_DATA))
}
