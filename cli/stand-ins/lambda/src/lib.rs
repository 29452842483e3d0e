//! A stand-in for AWS Lambda on this machine: it runs the same binaries that are deployed.
//!
//! Each function is a process built on `lambda_runtime` that polls the Runtime API served here
//! (`runtime_api`). Invocations come through the Invoke API as the AWS SDK and `aws lambda invoke`
//! speak it (`invoke_api`), through function URLs (`url`), by schedule (`event`), or from this
//! program ([`Lambda::invoke`]).
//!
//! Guarantees: a process handles one invocation at a time; a process that exceeds its time-out is
//! killed; callers see function errors, time-outs and crashes as in AWS; no process outlives
//! [`Lambda::shutdown`] or this program.
//!
//! Only programs of the same user are answered, and no page in a browser ([`guard`]). The Invoke API and function URLs may ask
//! for signatures; the Runtime API asks for none, as in AWS.
//!
//! Deliberately absent: permissions, memory limits, response streaming, events for extensions (they may register and wait), versions and aliases (a
//! qualifier is ignored), reserved concurrency. Unlike in AWS, callers beyond `max_concurrency` wait
//! for a while; AWS refuses them at once.
//!
//! | where | what |
//! | --- | --- |
//! | [`Lambda`] | the running stand-in |
//! | `function` | one function: its processes and the invocations that wait for them |
//! | `process` | starts, watches and ends an operating system process |
//! | `runtime_api`, `invoke_api`, `url` | the three HTTP interfaces |
//! | `event` | asynchronous invocations, schedules |
//! | `settings`, `host`, `functions` | what is run, and what all parts share |

mod body;
mod error;
mod event;
mod function;
mod functions;
mod host;
mod invoke_api;
mod lambda;
mod process;
mod request_id;
mod runtime_api;
mod settings;
mod stats;
#[cfg(test)]
mod tests;
mod url;

pub use error::{FunctionError, InvokeError};
pub use host::LogSink;
pub use invoke_api::unsigned;
pub use lambda::Lambda;
pub use process::death_signal_wrapper;
pub use settings::{FunctionConfig, LambdaSettings, Schedule, SettingsError};
pub use stats::{LastRun, Stats};
