//! The commands of operators: submit and list jobs, hold and drain nodes, release brakes, ask why.
//!
//! Each group of commands has its own file. A command reads by `view`, writes by `changes`, and prints by `console`: tables for
//! people or, with `--json`, JSON for programs.
//!
//! Guarantees: every write is conditional, as in the functions. A change leaves an event that names the operator, except for
//! submissions: the row of the job says all. Nothing is printed as done before it is written. An error is one line that says what
//! is wrong, why, and what to do.
//! Does not: read the clock or the environment (`main.rs` does), or do the work of the functions: their next run acts on what a
//! command wrote.

pub(crate) mod advise;
mod amounts;
mod array_numbers;
mod bulk;
pub(crate) mod cancel;
pub(crate) mod cost;
pub(crate) mod demand;
pub(crate) mod exec;
pub(crate) mod fetch;
mod filter;
mod follow;
mod followed;
pub(crate) mod handles;
pub(crate) mod history;
pub(crate) mod init;
mod input;
pub(crate) mod job;
mod job_env;
pub(crate) mod job_file;
mod job_files;
mod job_line;
pub(crate) mod jobs;
pub(crate) mod logs;
mod machine_options;
pub(crate) mod nodes;
mod offers;
mod output_printer;
mod output_reader;
mod output_stream;
pub(crate) mod plan;
pub(crate) mod policy;
mod progress;
pub(crate) mod run;
pub(crate) mod sizes;
pub(crate) mod status;
mod stored_output;
mod strict_json;
pub(crate) mod submit;
pub(crate) mod teardown;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod watch;
mod what_if;
