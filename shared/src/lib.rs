//! nodekeeper keeps a fleet of EC2 nodes matched to a queue of jobs, with no server of its own.
//!
//! This crate is what at least two of the functions, the agent and the command line need. This
//! page is the map.
//!
//! # Bird's eye view
//!
//! Four stateless functions wake up, read everything they need from DynamoDB and EC2, decide,
//! write a few conditional updates, and forget everything again. Agents on the nodes call in
//! over HTTP, run what they are told, and report.
//!
//! ```text
//! submit ─▶ job queued ─▶ slot assigned ─▶ instance launched ─▶ agent registers (syncing)
//!                                                                     │ complete report
//!           job complete ◀─ reported ◀─ runs ◀─ alloc placed ◀────── ready
//!                                                                     │ idle
//!           slot cleaned ◀─ EC2 says terminated ◀──────────── shutting_down
//! ```
//!
//! # Code map
//!
//! | where | what |
//! | --- | --- |
//! | [`model`] | records and their state machines, pure: node, job, alloc, handle |
//! | [`ids`], [`time`], [`chance`] | names, points in time, what tells ids apart and spreads load |
//! | [`wire`], [`auth`] | HTTP bodies, node credentials |
//! | [`policy`] | every knob, its bounds, default and meaning, in one table |
//! | `store` | DynamoDB: the only place that knows tables, attributes and conditions |
//! | `cloud` | EC2: the only place that knows its API; errors typed by what to do |
//! | `observation` | everything one run reads, in the order that makes it safe |
//! | `steps` | sequences of writes that several functions perform: place, end, stop, clean |
//! | [`brake`] | what an unusual share of anything waits for |
//! | `run` | one run's clock, deadline, lanes and answer |
//! | `http`, `lambda`, `env` | function URLs, the Lambda loop, the environment |
//! | `functions/poll-and-scale` | `plan` (a file a stage, pure) and `act` (one match) |
//! | `functions/heartbeat-ingest` | the pulse, alloc reports, the gate to `ready` |
//! | `functions/clean-stale-records` | stale records, orphans, surplus rows, the watchdog |
//! | `functions/sweep-dispatch` | marks handles; judges reports of handles |
//! | `agent` | the node's side; `protocol` is its pure core |
//! | `cli` | operators' commands; `local` is the whole system on one machine |
//! | `tests` | crashes at every write, races, scenarios, the database's contract, second opinions, end to end |
//! | `tests/simulation` | all of it in a simulated world that tries to break every rule |
//!
//! # What everything rests on
//!
//! * **No own state.** A function may be killed at any instruction, run twice, late or beside
//!   itself; the next run puts everything right from DynamoDB and EC2 alone.
//! * **Reads may be stale, writes never are.** Every write is conditional, on the version as
//!   read or on the row's absence. A lost race is left to the next run. What must be certain at
//!   the moment of a write stands on the record the write checks: hence the `allocs` sets on
//!   nodes and jobs, for a transaction cannot check the absence of items.
//! * **Two owners of a node record.** A steady heartbeat writes only the pulse and leaves the
//!   version alone; everything else raises it. A write that presumes silence also requires the
//!   last ping as read: the node that just spoke wins.
//! * **Write ahead.** A launch request, its digest and its claim are on the record before EC2 is
//!   called with a token derived from the record: the same launch can be finished by anyone.
//! * **Absence is weak, presence is strong.** What EC2 lists as terminated is gone; what it does
//!   not list may be new. What a report does not mention is gone only if the report must have
//!   known of it.
//! * **The functions' clock is the only one**, and it is an argument.
//! * **Every action carries a reason** that a person can read and look up.
//!
//! # What is deliberately absent
//!
//! A daemon, a queue of things to do (all is derived anew in each run), retries inside a run,
//! blind writes, nodes' clocks, one table for everything, and a trait for every operation:
//! `store::Db` and `cloud::Cloud` are the two boundaries to the outside.

pub mod auth;
pub mod brake;
#[cfg(feature = "aws")]
mod causes;
pub mod chance;
#[cfg(feature = "aws")]
pub mod cloud;
#[cfg(feature = "aws")]
pub mod env;
pub mod events;
#[cfg(feature = "aws")]
pub mod http;
pub mod ids;
#[cfg(feature = "aws")]
pub mod lambda;
pub mod model;
#[cfg(feature = "aws")]
pub mod observation;
pub mod policy;
#[cfg(feature = "aws")]
pub mod run;
#[cfg(feature = "aws")]
pub mod steps;
#[cfg(feature = "aws")]
pub mod store;
pub mod time;
pub mod wire;
