//! Calls that name instances or subnets by their ids.
//!
//! EC2 refuses a whole call if it does not know one of the ids, or if one of the instances is protected. Nothing of the call
//! is carried out then.
//!
//! Guarantees: an id that EC2 does not know changes nothing for the others of the same call.
//! Does not: know how a call is made; the caller gives the calls.
//! Source: EC2 API reference, "Error codes": `InvalidInstanceID.NotFound`.

use crate::refusal::{can_be_of_one_instance, is_unknown_instance};
use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use model::{CloudError, Instance};
use std::collections::BTreeSet;

#[async_trait]
pub trait ById: Sync {
    /// One call of DescribeInstances with these ids, at least one.
    async fn describe(&self, instance_ids: &[String]) -> Result<Vec<Instance>, CloudError>;
    /// One call of TerminateInstances with these ids, at least one.
    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError>;
}

/// The instances with these ids that EC2 knows. The ids must fit into one call. Ids that EC2 does not know, or finds malformed,
/// are left out; any other error fails the whole list.
pub async fn instances(calls: &impl ById, instance_ids: &[String]) -> Result<Vec<Instance>, CloudError> {
    let describe = move |ids: Vec<String>| async move { calls.describe(&ids).await }.boxed();
    describe_existing(instance_ids, |code| is_unknown_instance(Some(code)), &describe).await
}

/// The things with these ids that EC2 knows. `describe` makes one call with at least one id. `is_unknown` says whether
/// an error code means that EC2 does not know one of the ids.
pub(crate) async fn describe_existing<'a, T>(
    ids: &[String],
    is_unknown: fn(&str) -> bool,
    describe: &(dyn Fn(Vec<String>) -> BoxFuture<'a, Result<Vec<T>, CloudError>> + Sync),
) -> Result<Vec<T>, CloudError> {
    let mut found = Vec::new();
    let mut parts = vec![ids.to_vec()];
    while let Some(mut ids) = parts.pop() {
        if ids.is_empty() {
            // A call without ids would list the whole account.
            continue;
        }
        let error = match describe(ids.clone()).await {
            Ok(things) => {
                found.extend(things);
                continue;
            }
            Err(error) => error,
        };
        // If EC2 does not know one of the ids, it refuses the call and names the ids that it does not know.
        let CloudError::Refused { code, message, .. } = &error else { return Err(error) };
        if !is_unknown(code) {
            return Err(error);
        }
        let asked = ids.len();
        let is_id = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let named: BTreeSet<&str> = message.split(|c| !is_id(c)).collect();
        ids.retain(|id| !named.contains(id.as_str()));
        match ids.len() {
            // EC2 named none of the ids. Each half is asked for separately, until the unknown ids stand alone.
            left if left == asked && asked > 1 => {
                parts.push(ids.split_off(asked / 2));
                parts.push(ids);
            }
            left if left < asked => parts.push(ids),
            _ => {}
        }
    }
    Ok(found)
}

/// Terminates these instances, as far as EC2 knows them. The ids must fit into one call. If some cannot be terminated, the
/// others still are, and the first error is returned.
pub async fn terminate(calls: &impl ById, instance_ids: &[String]) -> Result<(), CloudError> {
    let Err(error) = calls.terminate(instance_ids).await else { return Ok(()) };
    // If one id is unknown or protected, EC2 refuses all ids of the call, or all ids in the same zone. Then each instance
    // gets a call of its own.
    if !is_of_one(&error) {
        return Err(error);
    }
    let mut first_error = None;
    for id in instance_ids {
        match calls.terminate(std::slice::from_ref(id)).await {
            Err(CloudError::Refused { code, .. }) if is_unknown_instance(Some(&code)) => {}
            Err(error) => {
                let goes_on = is_of_one(&error);
                first_error.get_or_insert(error);
                if !goes_on {
                    break;
                }
            }
            Ok(()) => {}
        }
    }
    first_error.map_or(Ok(()), Err)
}

/// Whether a single instance of the call can be the reason.
fn is_of_one(error: &CloudError) -> bool {
    matches!(error, CloudError::Refused { code, .. } if can_be_of_one_instance(code))
}
