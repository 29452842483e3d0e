//! The environment variables by which other programs find this system.
//!
//! Guarantees: only its owner can read the environment file, which holds the node key and the credentials of this
//! start.
//! Does not: change the environment of this program.

use super::access::Gates;
use super::args::{LocalArgs, LocalAuth};
use super::directory::{self, Layout, REGION};
use super::error;
use super::machines::credentials;
use model::Function;
use model::functions::{GRANT_CREDENTIALS, HEARTBEAT_INGEST, SWEEP_DISPATCH};
use std::collections::BTreeMap;
use std::path::Path;

/// The environment of the functions, and of other programs that use this system.
pub(super) fn variables(args: &LocalArgs, places: &Layout, key: &str, access: &Gates) -> BTreeMap<String, String> {
    let url = |function: Function| format!("{}/lambda-url/{}", places.functions, function.name);
    let auth = match args.node_auth {
        LocalAuth::Token => ("NODEKEEPER_NODE_KEY", key.to_owned()),
        LocalAuth::Iam => ("NODEKEEPER_NODE_ROLE", credentials::role_arn()),
    };
    let common = [
        ("NODEKEEPER_CLUSTER", args.cluster.to_string()),
        auth,
        ("NODEKEEPER_HEARTBEAT_URL", url(HEARTBEAT_INGEST)),
        ("NODEKEEPER_SWEEP_URL", url(SWEEP_DISPATCH)),
        ("NODEKEEPER_GRANT_URL", url(GRANT_CREDENTIALS)),
        ("AWS_ENDPOINT_URL_DYNAMODB", format!("http://{}", places.dynamo)),
        ("AWS_ENDPOINT_URL_EC2", format!("http://{}", places.ec2)),
        ("AWS_ENDPOINT_URL_PRICING", format!("http://{}", places.ec2)),
        ("AWS_ENDPOINT_URL_SERVICE_QUOTAS", format!("http://{}", places.ec2)),
        ("AWS_REGION", REGION.to_owned()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
    ];
    common
        .into_iter()
        .chain(access.variables())
        .chain(places.endpoints())
        .chain(machines(&places.dir))
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

/// Where `nodekeeper exec` finds the machines. A path that would need quotes in a shell is left out.
fn machines(dir: &Path) -> Option<(&'static str, String)> {
    let path = dir.join("machines").display().to_string();
    let is_plain = path.chars().all(|c| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | '@'));
    is_plain.then_some(("NODEKEEPER_MACHINES", path))
}

/// Writes lines that a shell and `cargo lambda watch --env-file` both read.
pub(super) fn write_file(path: &Path, variables: &BTreeMap<String, String>) -> anyhow::Result<()> {
    let lines: String = variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    directory::private_file(path, &lines).map_err(error::file("write", path))
}
