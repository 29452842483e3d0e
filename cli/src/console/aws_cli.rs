//! Calls of AWS that only `up`, `down` and `doctor` make, by the AWS CLI.
//!
//! Guarantees: an error has the code and the message of AWS, and says what to do about it as far as the code tells that.
//! Does not: repeat a call. The AWS CLI does.
//!
//! The SDK would need six more service clients for calls that a cluster sees once, and the AWS CLI has `cloudformation package` and
//! `deploy`.

use serde_json::Value;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use tokio::process::Command;

/// The AWS CLI, with the region of this command. It has the same environment and the same profile.
#[derive(Clone, Debug, Default)]
pub struct AwsCli {
    pub program: PathBuf,
    pub region: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`aws {call}`: {message}{}", self.cure())]
pub(crate) struct AwsError {
    /// The service and the operation, like `ec2 describe-subnets`.
    call: String,
    /// The code that AWS gave, like `AccessDenied`; empty if AWS did not answer.
    pub(crate) code: String,
    pub(crate) message: String,
}

/// AWS refuses signatures of a clock that is off by five minutes.
const CLOCK: &str = "set the clock of this machine";

const NOT_ALLOWED: &str = "whoever manages the account must allow it, or give another profile (AWS_PROFILE)";

/// What AWS or its CLI says if the same call may succeed later.
const BUSY: [&str; 5] = [
    "Could not connect to the endpoint",
    "timeout on endpoint",
    "Throttling",
    "RequestLimitExceeded",
    "ServiceUnavailable",
];

/// Codes and texts of errors, and what to do about them.
const CURES: &[(&str, &str)] = &[
    ("RequestTimeTooSkewed", CLOCK),
    ("RequestExpired", CLOCK),
    ("Signature expired", CLOCK),
    ("Signature not yet current", CLOCK),
    ("Expired", "sign in again: `aws login`, `aws sso login`, or other keys"),
    ("InvalidClientTokenId", "AWS does not know these credentials: see `aws configure list`"),
    ("UnrecognizedClient", "AWS does not know these credentials, or this region is not enabled in the account"),
    ("AuthFailure", "AWS does not take these credentials here: the region may not be enabled in the account"),
    ("OptInRequired", "the account cannot use this service in this region yet"),
    ("Unable to locate credentials", "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ("ssm:GetParameter", "if a rule of the organization denies it to all, name an image: --parameter NodeImage=ami-…"),
    ("AccessDenied", NOT_ALLOWED),
    ("UnauthorizedOperation", NOT_ALLOWED),
    ("not authorized", NOT_ALLOWED),
    ("Could not connect to the endpoint", "the region has no such service, its name is wrong, or there is no network"),
    ("is not there", "install it (https://aws.amazon.com/cli), or use AWS CloudShell, which has it"),
    ("UnreservedConcurrentExecution", "the account has too few: give --parameter UrlConcurrency=0"),
    ("default VPC", "the account has no default network: give --parameter MakeNetwork=true, or --subnets"),
];

impl AwsError {
    pub(crate) fn is_busy(&self) -> bool {
        BUSY.iter().any(|text| self.code.contains(text) || self.message.contains(text))
    }

    fn cure(&self) -> String {
        cure(&format!("{}: {}", self.code, self.message))
    }

    /// Whether AWS refused for the permissions of the caller.
    pub(crate) fn is_denied(&self) -> bool {
        // The answer to a question about a bucket or an object has no text.
        self.code.starts_with("AccessDenied") || self.code == "UnauthorizedOperation" || self.code == "403"
    }

    fn of(call: String, stderr: &str) -> Self {
        // `An error occurred (CODE) when calling the OPERATION operation: MESSAGE`, perhaps after a word of the AWS CLI.
        let parts = stderr.split_once("An error occurred (").and_then(|(_, rest)| rest.split_once(')'));
        let of_aws = parts.and_then(|(code, rest)| Some((code.to_owned(), rest.split_once(": ")?.1)));
        let (code, message) = of_aws.unwrap_or_else(|| (String::new(), stderr));
        Self { call, code, message: message.split_whitespace().collect::<Vec<_>>().join(" ") }
    }
}

/// What to do about an error or a reason of AWS with this text, as the end of a sentence; empty if that is not known.
pub(crate) fn cure(text: &str) -> String {
    let known = CURES.iter().find(|(part, _)| text.contains(part));
    known.map_or(String::new(), |(_, cure)| format!("; {cure}"))
}

impl AwsCli {
    /// The answer as JSON, or null if there is none.
    pub(crate) async fn call<A: AsRef<OsStr>>(&self, args: &[A]) -> Result<Value, AwsError> {
        let output = self.command(args).stdin(Stdio::null()).output().await;
        let answer = Self::answer(args, output)?;
        Ok(serde_json::from_str(&answer).unwrap_or_default())
    }

    /// The command that makes this call.
    pub(crate) fn command<A: AsRef<OsStr>>(&self, args: &[A]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).args(["--region", &self.region, "--output", "json"]);
        command.env("AWS_PAGER", "").env("AWS_CLI_AUTO_PROMPT", "off").kill_on_drop(true);
        command
    }

    /// The output of a call that succeeded.
    pub(crate) fn answer<A: AsRef<OsStr>>(args: &[A], ended: std::io::Result<Output>) -> Result<String, AwsError> {
        let call: Vec<_> = args.iter().take(2).map(|arg| arg.as_ref().to_string_lossy()).collect();
        let call = call.join(" ");
        match ended {
            Ok(output) if output.status.success() => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            Ok(output) => Err(AwsError::of(call, &String::from_utf8_lossy(&output.stderr))),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(AwsError { call, code: String::new(), message: "the AWS CLI is not there".into() })
            }
            Err(error) => Err(AwsError { call, code: String::new(), message: error.to_string() }),
        }
    }
}

/// A text in an answer, by its JSON pointer; empty if it is not there.
pub(crate) fn text<'a>(answer: &'a Value, at: &str) -> &'a str {
    answer.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

/// A list in an answer; empty if it is not there.
pub(crate) fn list<'a>(answer: &'a Value, at: &str) -> &'a [Value] {
    answer.pointer(at).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
