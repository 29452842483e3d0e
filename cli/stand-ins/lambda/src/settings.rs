//! What the stand-in runs: functions, schedules, their environment. Checked once, at the start.

use guard::Signatures;
use guard::sigv4::Issuer;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// The functions, and when they run.
#[derive(Clone, Debug)]
pub struct LambdaSettings {
    /// All functions; names are unique.
    pub functions: Vec<FunctionConfig>,
    /// Which functions run by the clock.
    pub schedules: Vec<Schedule>,
    /// The region in the functions' environment and ARNs.
    pub region: String,
    /// The start of every function's environment: `PATH`, `HOME` and `RUST_LOG` of this program. Nothing else of
    /// this program's environment reaches a function.
    pub inherited_env: BTreeMap<String, String>,
    /// Who may call function URLs; `None`: everybody may, as with the authorisation type `NONE`.
    pub url_auth: Option<Arc<dyn Issuer>>,
    /// What requests to the Invoke API must be signed with; `None`: every request is answered.
    pub invoke_auth: Option<Signatures>,
}

#[derive(Clone, Debug)]
pub struct FunctionConfig {
    /// The function's name, in paths and ARNs.
    pub name: String,
    /// The path of the function's binary.
    pub program: PathBuf,
    /// The function's environment, without the variables that Lambda itself sets.
    pub env: BTreeMap<String, String>,
    /// An invocation that takes longer is cut off.
    pub timeout_ms: u64,
    /// The memory that the function is told it has; nothing enforces it here.
    pub memory_mb: u32,
    /// The most processes at one time.
    pub max_concurrency: usize,
    /// The most invocations that wait while all processes are busy; more are refused with 429.
    pub max_waiting: usize,
}

/// Runs a function by the clock.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// The function's name.
    pub function: String,
    /// The time from the start to the first run.
    pub first_after_ms: u64,
    /// The time from one run to the next.
    pub every_ms: u64,
    /// The payload of each run.
    pub payload: Value,
}

/// Why the stand-in cannot serve these settings.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// A name that cannot be part of a path or an ARN.
    #[error("function name {0:?} is not 1 to 64 letters, digits, '-' or '_': rename it")]
    BadName(String),
    /// Two functions with one name.
    #[error("function {0} is given twice: leave one out")]
    Duplicate(String),
    /// A number that must not be zero.
    #[error("{field} of function {function} is 0: give at least 1")]
    Zero {
        /// The function's name.
        function: String,
        /// The field of its settings.
        field: &'static str,
    },
    /// A schedule for an unknown function.
    #[error("a schedule names function {0}, which is not configured: add the function or drop the schedule")]
    UnknownFunction(String),
    /// The listener has no address.
    #[error("the local Lambda cannot tell its own address ({0}): bind its listener to a loopback address")]
    Listener(#[from] std::io::Error),
}

impl LambdaSettings {
    /// Finds the first mistake, if there is one.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        let mut names = BTreeSet::new();
        for function in &self.functions {
            let name = &function.name;
            let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if !(1..=64).contains(&name.len()) || !name.chars().all(allowed) {
                return Err(SettingsError::BadName(name.clone()));
            }
            if !names.insert(name.as_str()) {
                return Err(SettingsError::Duplicate(name.clone()));
            }
            for (field, is_zero) in [
                ("timeout_ms", function.timeout_ms == 0),
                ("max_concurrency", function.max_concurrency == 0),
                ("max_waiting", function.max_waiting == 0),
            ] {
                if is_zero {
                    return Err(SettingsError::Zero { function: name.clone(), field });
                }
            }
        }
        for schedule in &self.schedules {
            if !names.contains(schedule.function.as_str()) {
                return Err(SettingsError::UnknownFunction(schedule.function.clone()));
            }
            if schedule.every_ms == 0 {
                let function = schedule.function.clone();
                return Err(SettingsError::Zero { function, field: "every_ms of a schedule" });
            }
        }
        Ok(())
    }
}
