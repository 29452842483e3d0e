//! The meaning of EC2's error codes: what the caller must do.
//!
//! Guarantees: the error code decides and not the HTTP status, because EC2 answers a capacity shortage as a server
//! error (HTTP 500); the status decides only if the code is in no list.
//! Does not: retry anything.
//! Source of the codes: EC2 API reference, "Error codes for the Amazon EC2 API".

use model::cloud::LaunchError;

/// EC2 is short of this type in this zone and market, or does not offer it there: another offering may work.
const CAPACITY: &[&str] = &[
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientCapacityOnOutpost",
    "InsufficientFreeAddressesInSubnet",
    "SpotMaxPriceTooLow",
    "Unsupported",
    "UnsupportedOperation",
];

/// The account's limit is reached: nothing can be launched until something ends.
const QUOTA: &[&str] = &[
    "InstanceLimitExceeded",
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "MaxSpotFleetRequestCountExceeded",
    "VolumeLimitExceeded",
    "MaxIOPSLimitExceeded",
    "AddressLimitExceeded",
];

/// Too many calls.
const THROTTLED: &[&str] = &[
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "RequestThrottled",
    "EC2ThrottledException",
    "RequestThrottledException",
    "ResourceCountExceeded",
];

/// EC2 does not accept the caller: credentials, clock, account or permissions. Another request would fail as well.
const NOT_ALLOWED: &[&str] = &[
    "AuthFailure",
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "IncompleteSignature",
    "InvalidSignatureException",
    "RequestExpired",
    "ExpiredToken",
    "ExpiredTokenException",
    "OptInRequired",
    "PendingVerification",
    "Blocked",
];

/// The instance of this client token has been terminated already.
const SPENT: &[&str] = &["IdempotentInstanceTerminated"];

/// It is not known whether an instance was launched. `IdempotentParameterMismatch` means that another run used this
/// client token with other parameters. This is not a refusal: the call of the other run may have launched an
/// instance.
const LOST: &[&str] = &["IdempotentParameterMismatch", "ClientTokenInProgress", "IncompleteOperation"];

/// EC2 does not know an instance with this id.
const UNKNOWN_INSTANCE: &[&str] = &["InvalidInstanceID.NotFound", "InvalidInstanceID.Malformed"];

/// Refusals that a single instance of a call can cause: permission to terminate may depend on an instance's
/// tags, and an instance may be protected.
const OF_ONE_INSTANCE: &[&str] =
    &["OperationNotPermitted", "UnauthorizedOperation", "IncorrectInstanceState", "UnsupportedOperation"];

/// The kind of a RunInstances error.
pub(crate) fn launch_error(code: &str, message: &str, status: u16) -> LaunchError {
    let text = format!("{code}: {message}");
    let is_in = |codes: &[&str]| codes.contains(&code);
    if is_in(CAPACITY) {
        LaunchError::Capacity(text)
    } else if is_in(QUOTA) {
        LaunchError::Quota(text)
    } else if is_in(THROTTLED) {
        LaunchError::Throttled(text)
    } else if is_in(NOT_ALLOWED) {
        LaunchError::NotAllowed(text)
    } else if is_in(SPENT) {
        LaunchError::Spent(text)
    } else if is_in(LOST) || status >= 500 || status == 0 {
        LaunchError::Lost(text)
    } else if matches!(status, 401 | 403) {
        LaunchError::NotAllowed(text)
    } else {
        LaunchError::BadRequest(text)
    }
}

/// Whether EC2 does not know the instance.
pub(crate) fn is_unknown_instance(code: Option<&str>) -> bool {
    code.is_some_and(|code| UNKNOWN_INSTANCE.contains(&code))
}

/// Whether a single id can be the cause of this refusal. If it can, retrying the ids one by one helps; for any other
/// error it does not.
pub(crate) fn can_be_of_one_instance(code: &str) -> bool {
    code.starts_with("InvalidInstanceID.") || OF_ONE_INSTANCE.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(code: &str, status: u16) -> &'static str {
        match launch_error(code, "", status) {
            LaunchError::Capacity(_) => "capacity",
            LaunchError::Quota(_) => "quota",
            LaunchError::Throttled(_) => "throttled",
            LaunchError::NotAllowed(_) => "not allowed",
            LaunchError::BadRequest(_) => "bad request",
            LaunchError::Spent(_) => "spent",
            LaunchError::Lost(_) => "lost",
        }
    }

    #[test]
    fn every_code_has_its_kind_whatever_the_status() {
        let table = [
            (CAPACITY, "capacity"),
            (QUOTA, "quota"),
            (THROTTLED, "throttled"),
            (NOT_ALLOWED, "not allowed"),
            (SPENT, "spent"),
            (LOST, "lost"),
        ];
        let mut seen = std::collections::BTreeSet::new();
        for (codes, expected) in table {
            for code in codes {
                assert!(seen.insert(*code), "{code} is in two lists");
                for status in [0, 400, 500, 503] {
                    assert_eq!(kind(code, status), expected, "{code} with status {status}");
                }
            }
        }
        assert_eq!(seen.len(), 42);
    }

    #[test]
    fn a_code_in_no_list_is_judged_by_its_status() {
        for (code, status, expected) in [
            ("InvalidParameterValue", 400, "bad request"),
            ("InvalidAMIID.NotFound", 400, "bad request"),
            ("OfTheFuture", 401, "not allowed"),
            ("OfTheFuture", 403, "not allowed"),
            ("InternalError", 500, "lost"),
            ("Unavailable", 503, "lost"),
            ("", 0, "lost"),
        ] {
            assert_eq!(kind(code, status), expected, "{code} with status {status}");
        }
    }

    #[test]
    fn only_an_error_that_one_instance_can_cause_is_retried_one_by_one() {
        for code in OF_ONE_INSTANCE.iter().chain(UNKNOWN_INSTANCE) {
            assert!(can_be_of_one_instance(code), "{code}");
        }
        for code in THROTTLED.iter().chain(&["InternalError", ""]) {
            assert!(!can_be_of_one_instance(code), "{code}");
        }
        assert!(is_unknown_instance(Some("InvalidInstanceID.NotFound")) && !is_unknown_instance(None));
        assert!(!is_unknown_instance(Some("OperationNotPermitted")));
    }
}
