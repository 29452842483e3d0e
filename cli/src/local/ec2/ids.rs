//! Instance ids in requests: well-formed, and known.

use super::Call;
use super::refusal::Refusal;

/// What one call may name ("DescribeInstances" and "TerminateInstances", EC2 API Reference).
const MOST: usize = 1_000;

impl Call<'_> {
    /// The ids named by `InstanceId.N`, each once, in order; or the first that is no id at all.
    pub(super) fn instance_ids(&self) -> Result<Vec<String>, Refusal> {
        let named = self.params.list("InstanceId");
        if named.len() > MOST {
            return Err(Refusal::InvalidParameterValue(format!("A call can name at most {MOST} instances")));
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

    /// One unknown id fails a call for all ("TerminateInstances", EC2 API Reference); the
    /// refusal names those that are unknown.
    pub(super) fn all_known(&self, ids: &[String]) -> Result<(), Refusal> {
        let known = |id: &String| self.world.find(id).is_some_and(|instance| self.is_known(instance));
        let unknown: Vec<String> = ids.iter().filter(|id| !known(id)).cloned().collect();
        if unknown.is_empty() { Ok(()) } else { Err(Refusal::InstanceNotFound(unknown)) }
    }
}

/// `i-` and 8 or 17 hexadecimal digits ("Resource IDs", EC2 User Guide).
pub(super) fn check(id: &str) -> Result<(), Refusal> {
    let digits = id.strip_prefix("i-").unwrap_or_default();
    let well_formed = matches!(digits.len(), 8 | 17) && digits.bytes().all(|b| b.is_ascii_hexdigit());
    if well_formed { Ok(()) } else { Err(Refusal::InstanceIdMalformed(id.chars().take(100).collect())) }
}
