//! What the stand-in's region offers, and how fast it is. Fixed for its life; what goes wrong
//! in it stands in [`Faults`](super::Faults).

use serde::{Deserialize, Serialize};
use shared::model::Market;

/// The region. The defaults are those of `nodekeeper local`: quick, and with nothing in the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where instances can be launched. The first is the default subnet.
    pub subnets: Vec<Subnet>,
    /// The launch templates that requests may name.
    pub launch_templates: Vec<LaunchTemplate>,
    /// The instance types there are; with none listed, every name is one, of one vCPU.
    pub instance_types: Vec<InstanceType>,
    /// How long an instance is `pending`.
    pub pending_ms: i64,
    /// How long it is `shutting-down`, or `stopping`.
    pub shutting_down_ms: i64,
    /// How long a terminated one is still listed (EC2: about an hour).
    pub terminated_listed_ms: i64,
    /// How long a new one is known to nobody but the answer that launched it.
    pub list_lag_ms: i64,
    /// Instances a page of DescribeInstances when the request does not say.
    pub page_size: usize,
    /// How long a page token is good.
    pub page_token_ms: i64,
    /// Request throttling; none by default.
    pub throttle: Option<Throttle>,
    /// Two stand-ins with the same seed, clock and requests give the same ids.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            subnets: vec![Subnet { subnet_id: "subnet-local".into(), zone: "local-1a".into() }],
            launch_templates: Vec::new(),
            instance_types: Vec::new(),
            pending_ms: 1_500,
            shutting_down_ms: 1_000,
            terminated_listed_ms: 60_000,
            list_lag_ms: 0,
            page_size: 1_000,
            page_token_ms: 3_600_000,
            throttle: None,
            seed: 0,
        }
    }
}

/// A subnet and the availability zone it is in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subnet {
    /// Its id.
    pub subnet_id: String,
    /// Its availability zone.
    pub zone: String,
}

/// An instance type that can be launched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstanceType {
    /// Its name, as `m7i.large`.
    pub name: String,
    /// What it counts against a vCPU quota.
    pub vcpus: u32,
    /// The zones that have it; empty: all.
    #[serde(default)]
    pub zones: Vec<String>,
}

/// A launch template with its versions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchTemplate {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What `$Default`, and a request without a version, mean.
    #[serde(default = "first_version")]
    pub default_version: u64,
    /// Its versions, in any order; the highest is `$Latest`.
    pub versions: Vec<TemplateVersion>,
}

fn first_version() -> u64 {
    1
}

/// One version of a launch template: what a request need not say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TemplateVersion {
    /// Its number.
    pub version: u64,
    /// The image.
    pub image_id: Option<String>,
    /// The instance type.
    pub instance_type: Option<String>,
    /// The market.
    pub market: Option<Market>,
    /// The user data, in plain text. A request's own takes its place.
    pub user_data: Option<String>,
}

/// The two buckets of RunInstances. The defaults are AWS's ("Request throttling for the Amazon
/// EC2 API", EC2 Developer Guide).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Throttle {
    /// One token a request.
    pub run_requests: Bucket,
    /// One token an instance asked for.
    pub run_instances: Bucket,
}

impl Default for Throttle {
    fn default() -> Self {
        Self {
            run_requests: Bucket { size: 5, refill_per_s: 2 },
            run_instances: Bucket { size: 1_000, refill_per_s: 2 },
        }
    }
}

/// A token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// How many tokens it holds when full.
    pub size: u32,
    /// How many come back in a second.
    pub refill_per_s: u32,
}
