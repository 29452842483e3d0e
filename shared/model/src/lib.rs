//! The model: the records that nodekeeper keeps, how each may change, and the words for them.
//!
//! | where | what |
//! | --- | --- |
//! | [`ids`], [`time`], [`money`], [`amounts`], [`signals`], [`rng`] | names, points in time, amounts, signals, seeded randomness |
//! | [`enums`], [`names`] | the closed sets of words in tables, requests and policy; what names from outside may be |
//! | [`node`], [`job`], [`alloc`], [`handle`] | the records, each with its state machine |
//! | [`mod@machine`] | what a machine has and is, what work asks of it, and whether the two fit |
//! | [`spec`], [`needs`], [`work`], [`failure_policy`] | what a user submits, and its parts, which rows, indexes and orders have too |
//! | [`retry`], [`tries`], [`usage`] | when a job is tried again, what came of its tries, and what they used |
//! | [`elements`], [`ranges`] | jobs whose command runs once for each of many elements; sets of numbers as text |
//! | [`summary`], [`mod@array`] | what planning reads of jobs and allocs; jobs that belong together |
//! | [`policy`] | every knob, its bounds, default and meaning |
//! | [`wire`], [`auth`], [`output`], [`stored`] | HTTP bodies, node credentials, output on its way to a reader, and where it is stored |
//! | [`action`], [`reason`], [`explain`], [`events`] | what a run does, why, why not, and what is kept of it |
//! | [`control`], [`limits`], [`brake`], [`announced`] | the control table; limits on launches; brakes; what was announced |
//! | [`functions`] | the table of functions |
//! | [`container_env`] | how a variable reaches a container |
//! | [`cloud`], [`launch`] | the cloud as a trait; the launch request |
//! | [`catalogue`] | what the cloud offers, at which prices |
//!
//! A transition takes the record as read, what happened and the time. It returns the new record, or says why the
//! transition is not possible. The store writes the difference, conditional on the version.
//!
//! Guarantees: a record holds only the data of its state; final allocs do not change; `desired` never
//! goes back from stop to run.
//! Does not: do I/O, know how a record is stored, or depend on AWS. No transition reads a clock.

pub mod action;
pub mod after;
pub mod alloc;
mod alloc_ids;
pub mod amounts;
pub mod announced;
pub mod array;
pub mod auth;
pub mod batch;
pub mod brake;
pub mod catalogue;
pub mod cloud;
pub mod container_env;
pub mod control;
pub mod elements;
pub mod end_cause;
pub mod enums;
pub mod error_chain;
pub mod events;
pub mod explain;
pub mod failure_policy;
pub mod files;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod functions;
pub mod handle;
pub mod ids;
pub mod image;
mod instance;
pub mod job;
pub mod launch;
pub mod left_out;
pub mod limits;
pub mod machine;
mod mistakes;
pub mod money;
pub mod names;
pub mod needs;
pub mod node;
pub mod output;
pub mod policy;
pub mod quotas;
pub mod ranges;
pub mod reason;
pub mod refusal;
pub mod reservation;
pub mod retry;
pub mod rights;
pub mod rng;
pub mod signals;
pub mod spec;
mod standing;
pub mod stored;
pub mod summary;
mod text_form;
pub mod time;
pub mod tries;
pub mod ulimits;
pub mod usage;
pub mod wire;
pub mod work;

pub use alloc::{Alloc, ReportOutcome, ResolvedCopy};
pub use alloc_ids::AllocIds;
pub use end_cause::{EndCause, Ending};
pub use enums::{
    ActionName, AfterEnd, Arch, BrakeKind, Class, ClientStatus, Desired, HandleKind, HandleState, Intent, JobState,
    Market, MarketNeed, NodeStateName, NodeStatus, Reconcile, UnknownWord,
};
pub use failure_policy::FailurePolicy;
pub use files::{Content, Output, Source, StoredOutput};
pub use handle::{Handle, MAX_DUE_S, cache_handle};
pub use job::{Job, JobSet};
pub use machine::{Capacity, MAX_LABELS, Machine, MachineKind, MachineNeed};
pub use mistakes::BadJob;
pub use money::{BadAmount, Usd};
pub use needs::{MAX_NODES, Needs};
pub use node::{
    ABSENCE_CONFIRM, Contact, InUse, LAUNCH_CLAIM, LONGEST_AHEAD, LONGEST_UPTIME_MS, Life, MAX_REASON_BYTES, NewLife,
    NodeRecord, NodeState, NotPossible, Offering, ShuttingDown, Version, short_reason,
};
pub use retry::RetryRule;
pub use signals::Signal;
pub use spec::JobSpec;
pub use summary::{AllocSummary, DEFAULT_PRIORITY, JobSummary, MAX_PRIORITY, counts_for};
pub use tries::{JobTimes, Tries};
pub use usage::Usage;
pub use work::{
    Environment, INPUT_VARIABLE, MAX_COMMAND_BYTES, MAX_TRANSACTION_ITEMS, VARIABLE_FORM, Work, cache_variable,
    is_variable,
};
