//! The errors of this stand-in, each with EC2's code, text and HTTP status.
//!
//! Codes and their meaning are those of "Error codes for the Amazon EC2 API", EC2 API
//! Reference. Client errors are 4xx and server errors 5xx. **A capacity shortage is a server
//! error**: the AWS SDK retries it unless told not to.

/// Why a request is refused. The text is the `Message` that a client sees.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    /// The HTTP status of the answer.
    pub(crate) status: u16,
    /// The error code by which clients tell errors apart.
    pub(crate) code: String,
    pub(crate) message: String,
}

impl ApiError {
    /// A client error, as most are.
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self { status: 400, code: code.to_owned(), message: message.into() }
    }

    /// The error for a request whose signature is refused. The server of the stand-in checks signatures.
    pub(crate) fn unsigned(why: &str) -> Self {
        let message = format!("AWS was not able to validate the provided access credentials: {why}");
        Self { status: 401, ..Self::new("AuthFailure", message) }
    }

    pub(crate) fn missing(parameter: &str) -> Self {
        Self::new("MissingParameter", format!("The request must contain the parameter {parameter}"))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new("InvalidParameterValue", message)
    }

    pub(crate) fn combination(message: &str) -> Self {
        Self::new("InvalidParameterCombination", message)
    }

    /// `InvalidParameterValue` in EC2's usual wording; `why` says what is wrong.
    pub(crate) fn value(value: &str, name: &str, why: &str) -> Self {
        Self::invalid(format!("Value ({}) for parameter {name} is invalid: {why}.", clip(value)))
    }

    pub(crate) fn no_instances(ids: &[String]) -> Self {
        let which = match ids {
            [id] => format!("ID '{id}' does"),
            ids => format!("IDs '{}' do", ids.join(", ")),
        };
        Self::new("InvalidInstanceID.NotFound", format!("The instance {which} not exist"))
    }

    pub(crate) fn no_subnet(id: &str) -> Self {
        Self::new("InvalidSubnetID.NotFound", format!("The subnet ID '{}' does not exist", clip(id)))
    }

    pub(crate) fn other_request() -> Self {
        let message =
            "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).";
        Self::new("IdempotentParameterMismatch", message)
    }

    /// The answer to a call with `DryRun` that would be carried out.
    pub(crate) fn dry_run() -> Self {
        let message = "Request would have succeeded, but DryRun flag is set.";
        Self { status: 412, ..Self::new("DryRunOperation", message) }
    }

    pub(crate) fn throttled() -> Self {
        Self { status: 503, ..Self::new("RequestLimitExceeded", "Request limit exceeded.") }
    }

    /// The action is done, but a fault replaces its answer by this error.
    pub(crate) fn internal() -> Self {
        Self { status: 500, ..Self::new("InternalError", "An internal error has occurred") }
    }
}

/// The beginning of a text of a request. An answer repeats no more of it.
pub(crate) fn clip(text: &str) -> String {
    text.chars().take(100).collect()
}
