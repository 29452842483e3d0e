//! Instance ids in requests: checks that they are well-formed and known. One that is not fails the whole call, as in
//! EC2.

use crate::api_error::{ApiError, clip};
use crate::call::Ec2Call;

/// How many instances one call may name ("DescribeInstances" and "TerminateInstances", EC2 API Reference).
const MAX_IDS: usize = 1_000;

impl Ec2Call<'_> {
    /// The ids named by `InstanceId.N`, each once, in order; an error for the first malformed one.
    pub(crate) fn instance_ids(&self) -> Result<Vec<String>, ApiError> {
        let named = self.params.list("InstanceId");
        if named.len() > MAX_IDS {
            return Err(ApiError::invalid(format!("A call can name at most {MAX_IDS} instances")));
        }
        let mut ids: Vec<String> = Vec::new();
        for id in named {
            check(id)?;
            if !ids.iter().any(|known| known == id) {
                ids.push(id.to_owned());
            }
        }
        Ok(ids)
    }

    /// One unknown id fails the whole call ("TerminateInstances", EC2 API Reference); the error
    /// names the unknown ids.
    pub(crate) fn all_listed(&self, ids: &[String]) -> Result<(), ApiError> {
        let known = |id: &String| self.world.find(id).is_some_and(|instance| self.is_listed(instance));
        let unknown: Vec<String> = ids.iter().filter(|id| !known(id)).cloned().collect();
        if unknown.is_empty() { Ok(()) } else { Err(ApiError::no_instances(&unknown)) }
    }
}

/// `i-` and 8 or 17 hexadecimal digits ("Resource IDs", EC2 User Guide).
pub(crate) fn check(id: &str) -> Result<(), ApiError> {
    let digits = id.strip_prefix("i-").unwrap_or_default();
    let well_formed = matches!(digits.len(), 8 | 17) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if well_formed {
        return Ok(());
    }
    Err(ApiError::new("InvalidInstanceID.Malformed", format!("Invalid id: \"{}\"", clip(id))))
}
