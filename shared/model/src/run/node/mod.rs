//! The node record: one row of the nodes table, and every way it may change.
//!
//! ```text
//!             assign                first heartbeat             shut down
//!  cleaned ───────────▶ assigned ───────────────────▶ in_use ───────────────▶ shutting_down
//!     ▲                   │   │  boot timed out                                    ▲   │
//!     │ launch refused    │   └────────────────────────────────────────────────────┘   │
//!     ├───────────────────┘                                                            │
//!     ├── instance listed terminated (from any state) ─────────────────────────────────┤
//!     └── stale, or unlisted twice and unknown by id (from any state) ─────────────────┘
//! ```
//!
//! Guarantees: each transition starts only from the states that the picture allows; a new life
//! keeps nothing of the old one but the slot and the version; the pulse moves only forward.
//! Does not: check versions (the store does, in the write) or decide *when* a transition is
//! due (each function does, in its plan).
//! Rules: `docs/rules.md#section-3`. Sources: Arvados #12073 for the states, Nomad PR 15068 for
//! `status` and the gate.

mod reach;
#[cfg(test)]
mod tests;
mod transitions;
mod types;

pub use reach::Reached;
pub use transitions::{Idleness, NewLife};
pub use types::{
    ABSENCE_CONFIRM, Contact, InUse, LAUNCH_CLAIM, LONGEST_UPTIME_MS, Life, NodeRecord, NodeState, NotPossible,
    Offering, ShuttingDown, Version,
};
