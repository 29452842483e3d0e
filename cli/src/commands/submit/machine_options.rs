//! The options for the machine that work needs: of `submit` and `run`, and of `demand set`.
//!
//! Guarantees: an option has the same name and meaning wherever it is.
//! Does not: check what is asked for; [`MachineNeed`] does.

use clap::{ArgAction, Args};
use model::amounts::gibibytes;
use model::{Arch, BadText, MarketNeed};
use serde::Serialize;

/// An option has the name of its field in [`MachineNeed`].
#[derive(Args, Clone, Debug, Serialize)]
pub(crate) struct MachineOptions {
    /// Only on this instance type
    #[arg(long, value_name = "TYPE")]
    instance_type: Option<String>,
    /// Only on this market: on_demand or spot; with spot_first, spot if there is some, and otherwise on demand
    #[arg(long, value_parser = market)]
    market: Option<MarketNeed>,
    /// Only on this architecture: x86_64 or arm64 [default: x86_64, or arm64 if no size of the policy is x86_64]
    #[arg(long)]
    arch: Option<Arch>,
    /// Only on GPUs of this type, as `gpu_type` of a size of the policy names it
    #[arg(long, value_name = "NAME")]
    gpu_type: Option<String>,
    /// Only on GPUs that each have this memory or more: in GiB, or with a unit such as 24GiB
    #[arg(long = "gpu-memory", default_value = "0", value_name = "SIZE", value_parser = gibibytes)]
    gpu_memory_gib: u64,
    /// Only on a size with this label; may be given several times
    #[arg(long, value_name = "LABEL", action = ArgAction::Append)]
    require: Vec<String>,
}

/// Parses a market. `-` and `_` mean the same.
pub(crate) fn market(text: &str) -> Result<MarketNeed, BadText> {
    text.replace('-', "_").parse()
}
