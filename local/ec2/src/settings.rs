//! What the stand-in's region offers, and how fast it is. The settings do not change after the start.
//!
//! Does not: hold failures; [`Faults`](crate::Faults) does.

use model::Market;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The region. The defaults are those of `nodekeeper local`: quick, and without limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ec2Settings {
    /// Where instances can be launched. The first is the default subnet.
    pub subnets: Vec<Ec2Subnet>,
    /// The launch templates that requests may name.
    pub launch_templates: Vec<LaunchTemplate>,
    /// What is known of images. An image that is not listed runs on every type.
    pub images: Vec<Image>,
    /// Whether CreateFleet takes user data. Some regions do not know this field of July 2026 yet.
    pub knows_fleet_user_data: bool,
    /// How many pools a fleet tries in vain before it gives up. A public report measured 3 for spot. Absent: all of them.
    pub pools_tried: Option<usize>,
    /// The instance types that exist. If none is listed, every name is a type with one vCPU, and lists of types and
    /// prices show the built-in catalogue.
    pub instance_types: Vec<InstanceType>,
    /// How long an instance is `pending`.
    pub pending_ms: i64,
    /// How long an instance is `shutting-down`, or `stopping`.
    pub shutting_down_ms: i64,
    /// How long a terminated instance is still listed (EC2: about an hour).
    pub terminated_listed_ms: i64,
    /// How long a new instance is unknown to every call but its launch.
    pub list_lag_ms: i64,
    /// Instances on a page of DescribeInstances if the request does not say how many. The most rows on a page of types,
    /// zones and prices, whatever the request says: AWS may put fewer on a page than a request allows.
    pub page_size: usize,
    /// How long a page token is valid.
    pub page_token_ms: i64,
    /// Request throttling; none by default.
    pub throttle: Option<Throttle>,
    /// How long DescribeInstances takes; no time by default.
    pub latency: Option<Latency>,
    /// Two stand-ins with the same seed, clock and requests give the same ids.
    pub seed: u64,
}

impl Default for Ec2Settings {
    fn default() -> Self {
        Self {
            subnets: vec![Ec2Subnet { subnet_id: "subnet-local".into(), zone: "local-1a".into(), addresses: None }],
            launch_templates: Vec::new(),
            images: Vec::new(),
            knows_fleet_user_data: true,
            pools_tried: None,
            instance_types: Vec::new(),
            pending_ms: 1_500,
            shutting_down_ms: 1_000,
            terminated_listed_ms: 60_000,
            list_lag_ms: 0,
            page_size: 1_000,
            page_token_ms: 3_600_000,
            throttle: None,
            latency: None,
            seed: 0,
        }
    }
}

/// A subnet and its availability zone.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ec2Subnet {
    pub subnet_id: String,
    pub zone: String,
    /// How many instances have room in it. Absent: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub addresses: Option<u32>,
}

/// An instance type that can be launched, and its facts in lists of types and prices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InstanceType {
    /// For example `m7i.large`.
    pub name: String,
    /// How many vCPUs it counts against a quota.
    pub vcpus: u32,
    /// The zones that offer it. Empty: all.
    pub zones: Vec<String>,
    pub memory_mib: u64,
    /// The architectures of its processors. Empty: `x86_64`.
    pub architectures: Vec<String>,
    pub is_previous_generation: bool,
    /// The boot modes that it has. Empty: all.
    pub boot_modes: Vec<String>,
    /// Whether its images must have the driver of the Elastic Network Adapter.
    pub needs_ena: bool,
    pub is_burstable: bool,
    pub is_bare_metal: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Gpus>,
    /// The size of the local disks together; 0 if it has none.
    pub local_disk_gb: u64,
    /// The dollars an hour as the price list writes them. Absent: the price list does not have the type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_demand: Option<String>,
    /// The spot prices by zone. A zone that is absent has about a third of the price on demand; an empty text: none.
    pub spot: BTreeMap<String, String>,
}

/// The GPUs of an instance type, all of one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpus {
    pub count: u32,
    /// For example `NVIDIA`.
    pub manufacturer: String,
    /// For example `A10G`.
    pub name: String,
    /// The memory of each.
    pub memory_mib: u64,
}

/// An image, as far as a type may not run it ("Compatibility for changing the instance type", EC2 User Guide).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Image {
    /// What a launch or a launch template names: an id, or `resolve:ssm:` with a parameter.
    pub id: String,
    pub architecture: String,
    /// The only boot mode that it has. Absent: any.
    pub boot_mode: Option<String>,
    pub is_hvm: bool,
    /// Whether it has the driver of the Elastic Network Adapter.
    pub has_ena: bool,
}

impl Default for Image {
    fn default() -> Self {
        let architecture = "x86_64".to_owned();
        Self { id: String::new(), architecture, boot_mode: None, is_hvm: true, has_ena: true }
    }
}

/// A launch template with its versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchTemplate {
    pub id: String,
    pub name: String,
    /// The version meant by `$Default`, and by a request that names none.
    #[serde(default = "first_version")]
    pub default_version: u64,
    /// In any order; the highest is `$Latest`.
    pub versions: Vec<TemplateVersion>,
}

fn first_version() -> u64 {
    1
}

/// One version of a launch template: the values that a request can leave out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TemplateVersion {
    pub version: u64,
    pub image_id: Option<String>,
    pub instance_type: Option<String>,
    pub market: Option<Market>,
    /// Plain text. The user data of a request replaces it.
    pub user_data: Option<String>,
}

/// The two buckets of RunInstances. The defaults are AWS's ("Request throttling for the Amazon
/// EC2 API", EC2 Developer Guide).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Throttle {
    /// One token for each request.
    pub run_requests: TokenBucket,
    /// One token for each instance that a request asks for.
    pub run_instances: TokenBucket,
}

impl Default for Throttle {
    fn default() -> Self {
        Self {
            run_requests: TokenBucket { size: 5, refill_per_s: 2 },
            run_instances: TokenBucket { size: 1_000, refill_per_s: 2 },
        }
    }
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenBucket {
    /// The tokens in a full bucket.
    pub size: u32,
    /// The tokens added each second.
    pub refill_per_s: u32,
}

/// How long DescribeInstances takes. AWS publishes no times. It recommends ids as the fastest way ("Pagination in the Amazon
/// EC2 API", EC2 Developer Guide). Users measured 24 to 33 s with up to five filters by tag, and a fifth of that without
/// them, for hundreds of instances (github-aws-runners/terraform-aws-github-runner, issue 5327). The time of a call by ids
/// is an assumption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Latency {
    /// The time of each call, in milliseconds.
    pub call_ms: u64,
    /// The time that each filter by tag adds to each page, in milliseconds.
    pub tag_filter_ms: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self { call_ms: 500, tag_filter_ms: 5_000 }
    }
}
