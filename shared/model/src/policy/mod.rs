//! The policy: what an operator decides, checked as a whole and stored as one versioned item.
//!
//! Guarantees: one table ([`KNOBS`], [`SIZE_KNOBS`]) gives every knob its meaning, bounds and default; reading a
//! document gives a [`Policy`] only if the whole document is right; otherwise it gives every mistake, each with its
//! path and what is allowed.
//! Does not: read files, or know where the document is kept (the store does).

mod agent;
mod check;
mod effective;
mod knobs;
mod reference;
mod share;
mod sharing;
mod size;
#[cfg(test)]
mod tests;
mod types;

pub use crate::enums::{Fallback, Generation};
pub use agent::{AGENT_OPTIONS, AgentFile};
pub use check::{BadPolicy, Mistake};
pub use knobs::{
    KNOBS, Knob, KnobKind, MAX_USER_DATA_BYTES, OWN_USER_DATA_BYTES, SEVERAL_KNOBS, SHARE_KNOBS, SIZE_KNOBS,
};
pub use reference::{example_json, reference};
pub use share::{MAX_SHARES, NO_SHARE, Share, WorkAmount, WorkLimits};
pub use size::{Requirements, SeveralTypes, Size};
pub use types::{
    AgentPolicy, BootPolicy, HeartbeatPolicy, HistoryPolicy, IdlePolicy, LONGEST_JITTER, LaunchPolicy, NodesPolicy,
    OutputPolicy, Policy, PollPolicy, QuotaPolicy, SharesPolicy, ShortagePolicy, ShutdownPolicy, StalePolicy,
    SweepPolicy, WatchdogPolicy,
};
