//! What all calls have in common: their limits, and what their errors mean.
//!
//! Does not: judge the error of a launch; `refusal` does.

use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use model::CloudError;
use model::error_chain::error_chain;
use std::error::Error;
use std::fmt;

/// The most values of the filters of a call ("FilterLimitExceeded", EC2 API reference).
pub(crate) const FILTER_VALUES: usize = 200;
/// How many calls of one kind are made at the same time. EC2 allows 100 at once, and 20 a second.
pub(crate) const AT_ONCE: usize = 8;

/// The error of a call that is not a launch.
pub(crate) fn cloud_error<E, R>(operation: &'static str, error: &SdkError<E, R>) -> CloudError
where
    E: ProvideErrorMetadata + Error + 'static,
    R: fmt::Debug + 'static,
{
    // Without a code it is no error of the service: the answer could not be understood.
    match error.as_service_error().and_then(|e| Some((e.code()?, e.message()))) {
        Some((code, message)) => CloudError::Refused {
            operation,
            code: code.to_owned(),
            message: message.unwrap_or("no message").to_owned(),
        },
        None => CloudError::Unreachable { operation, detail: error_chain(error) },
    }
}
