//! The model: the records that nodekeeper keeps, how each may change, and the words for them.
//!
//! The folders have an order: each uses only those above it. Users name the modules, not the folders. The types that most files name
//! stand at the root.
//!
//! | folder | what | modules |
//! | --- | --- | --- |
//! | `base` | words and amounts | [`ids`], [`time`], [`money`], [`amounts`], [`signals`], [`rng`], [`ranges`], [`enums`], [`names`], [`batch`], [`auth`], [`functions`] |
//! | `machine` | what a machine has, what work asks of it, and whether the two fit | [`mod@machine`], [`reservation`] |
//! | `job` | what a user submits, how it ends, and what it used | [`spec`], [`needs`], [`work`], [`files`], [`image`], [`rights`], [`elements`], [`mod@array`], [`failure_policy`], [`retry`], [`end_cause`], [`tries`], [`usage`], [`output`], [`stored`] |
//! | [`wire`] | HTTP bodies | |
//! | `run` | the records, each with its state machine, what planning reads of them, and why something is not done | [`node`], [`Job`], [`alloc`], [`handle`], [`summary`], [`after`], [`reason`] |
//! | `say` | what is kept of a run for people | [`explain`], [`events`] |
//! | `offer` | what the cloud offers, at which prices, and what its refusals mean | [`catalogue`], [`quotas`], [`refusal`] |
//! | [`policy`] | every knob, its bounds, default and meaning | |
//! | [`control`] | the control table | [`brake`], [`announced`] |
//! | `act` | what a run does, and the cloud as a trait | [`action`], [`launch`], [`limits`], [`cloud`] |
//!
//! A transition takes the record as read, what happened and the time. It returns the new record, or says why the
//! transition is not possible. The store writes the difference, conditional on the version.
//!
//! Guarantees: a record holds only the data of its state; final allocs do not change; `desired` never
//! goes back from stop to run.
//! Does not: do I/O, know how a record is stored, or depend on AWS. No transition reads a clock.

mod act;
mod base;
pub mod control;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod job;
pub mod machine;
mod offer;
pub mod policy;
mod run;
mod say;
pub mod wire;

pub use act::{action, cloud, launch, limits};
pub use base::{
    amounts, auth, batch, enums, error_chain, functions, ids, left_out, money, names, ranges, rng, signals, time,
};
pub use control::{announced, brake};
pub use job::{
    array, container_env, elements, end_cause, failure_policy, files, image, needs, output, retry, rights, spec,
    stored, tries, usage, work,
};
pub use machine::reservation;
pub use offer::{catalogue, quotas, refusal};
pub use run::{after, alloc, handle, node, reason, summary};
pub use say::{events, explain};

pub(crate) use base::{mistakes, text_form};
pub(crate) use job::pack_progress;
pub(crate) use run::{alloc_ids, instance, job_record};

pub use action::{Describe, EventPolicy, Plan};
pub use alloc::{Alloc, ReportOutcome, ResolvedCopy};
pub use alloc_ids::AllocIds;
pub use array::Array;
pub use auth::NodeKey;
pub use batch::Batch;
pub use brake::BrakeChange;
pub use catalogue::{Catalogue, CataloguePart, Offers, PartState, Subnet, TypeFacts};
pub use cloud::{Cloud, CloudError, Instance, LaunchAnswer, LaunchError, NewInstance, Refusal};
pub use control::{Control, ControlKey};
pub use elements::{ElementReport, Outcome, Pack};
pub use end_cause::{EndCause, Ending, FREE_MOVES, Payer, RunReport};
pub use enums::{
    ActionName, AfterEnd, Arch, BrakeKind, Class, ClientStatus, Desired, HandleKind, HandleState, InstanceState,
    Intent, JobState, Market, MarketNeed, NodeStateName, NodeStatus, Reach, Reconcile,
};
pub use error_chain::{MAX_REASON_BYTES, short_reason};
pub use events::{Event, Subject};
pub use explain::{Explanation, SetNote, Waiting};
pub use failure_policy::FailurePolicy;
pub use files::{Checkpoint, Content, Inputs, Output, Source, StoredOutput};
pub use functions::Function;
pub use handle::{Handle, MAX_DUE_S, cache_handle};
pub use ids::{AllocId, ClusterName, JobId, NodeId, Slot};
pub use image::ImageDigest;
pub use job_record::{Job, Pause};
pub use launch::{LaunchCall, LaunchRequest, LaunchSettings};
pub use limits::Limit;
pub use machine::{Capacity, MAX_LABELS, Machine, MachineKind, MachineNeed};
pub use mistakes::BadJob;
pub use money::Usd;
pub use needs::{MAX_NODES, Needs};
pub use node::{
    ABSENCE_CONFIRM, Contact, InUse, LAUNCH_CLAIM, LONGEST_UPTIME_MS, Life, NewLife, NodeRecord, NodeState,
    NotPossible, Offering, ShuttingDown, Version,
};
pub use output::{Stream, Switches};
pub use pack_progress::JobSet;
pub use policy::Policy;
pub use ranges::Ranges;
pub use reason::Reason;
pub use refusal::Scope;
pub use reservation::{CapacityReservation, Reserved};
pub use retry::RetryRule;
pub use rng::Rng;
pub use signals::Signal;
pub use spec::{DEFAULT_PRIORITY, JobSpec, MAX_PRIORITY};
pub use stored::S3Place;
pub use summary::{AllocSummary, EndedAlloc, JobSummary, counts_for};
pub use text_form::BadText;
pub use time::{Span, Time};
pub use tries::{JobTimes, Tries};
pub use usage::Usage;
pub use work::{
    Environment, INPUT_VARIABLE, MAX_COMMAND_BYTES, MAX_TRANSACTION_ITEMS, Work, cache_variable, variable_fault,
};
