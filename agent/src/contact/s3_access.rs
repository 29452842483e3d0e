//! The agent's way to S3: region, endpoint and credentials.
//!
//! Guarantees: credentials in the agent's environment come before those of the instance's role. What is not known yet is asked for
//! again at the next attempt.
//! Does not: look for credentials anywhere else.

use super::client::NodeClock;
use super::imds::Imds;
use super::role_keys::RoleKeys;
use crate::services::Services;
use async_trait::async_trait;
use aws_credential_types::Credentials;
use s3::{Access, Keys, S3, S3Error};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::OnceCell;

#[derive(Clone, Debug, Default)]
pub struct S3Environment {
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`.
    pub credentials: Option<Credentials>,
    /// `AWS_REGION`
    pub region: Option<String>,
    /// `AWS_ENDPOINT_URL_S3`, or else `AWS_ENDPOINT_URL`.
    pub endpoint: Option<String>,
}

/// Connects to S3 as soon as something is to be stored.
pub struct S3Access {
    keys: Arc<NodeKeys>,
    /// The region, if it is known without the metadata service.
    region: Option<String>,
    endpoint: Option<String>,
    imds: Option<Imds>,
    connected: OnceCell<S3>,
}

impl S3Access {
    /// Uses the credentials of the environment, or else the instance's role. `region` comes from the options or from the node file.
    pub fn new(
        environment: S3Environment,
        role: Option<Arc<RoleKeys>>,
        imds: Option<Imds>,
        region: Option<String>,
        services: Services,
        clock: NodeClock,
    ) -> Self {
        let S3Environment { credentials, region: of_environment, endpoint } = environment;
        let keys = Arc::new(NodeKeys { given: credentials, role, services, clock });
        Self { keys, region: region.or(of_environment), endpoint, imds, connected: OnceCell::new() }
    }

    pub async fn s3(&self) -> Result<&S3, S3Error> {
        self.connected
            .get_or_try_init(|| async {
                let region = match (&self.region, &self.imds) {
                    (Some(region), _) => region.clone(),
                    (None, Some(imds)) => imds.region().await.map_err(|e| S3Error::NoKeys(e.to_string()))?,
                    (None, None) => return Err(S3Error::NoKeys("the region is not known: give --region".to_owned())),
                };
                S3::new(Arc::clone(&self.keys) as Arc<dyn Keys>, region, self.endpoint.as_deref())
            })
            .await
    }
}

/// Where a supervisor finds S3 and the contents of the node: part of `task.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesSource {
    /// The directory in which this node keeps the contents of files.
    pub cache: PathBuf,
    /// The instance metadata service, if the node uses it.
    pub imds_url: Option<String>,
    /// The region, if it is known without the metadata.
    pub region: Option<String>,
}

impl FilesSource {
    /// S3 with the rights of the node.
    pub(crate) fn access(&self, environment: S3Environment, clock: NodeClock) -> Result<S3Access, S3Error> {
        let imds = self.imds_url.as_deref().map(Imds::new).transpose();
        let imds = imds.map_err(|e| S3Error::NoKeys(e.to_string()))?;
        let role = imds.clone().map(|imds| Arc::new(RoleKeys::new(imds)));
        let services = Services::of_node(self.cache.parent().unwrap_or(&self.cache));
        Ok(S3Access::new(environment, role, imds, self.region.clone(), services, clock))
    }
}

struct NodeKeys {
    given: Option<Credentials>,
    role: Option<Arc<RoleKeys>>,
    services: Services,
    clock: NodeClock,
}

#[async_trait]
impl Keys for NodeKeys {
    async fn access(&self) -> Result<Access, String> {
        let at = (self.clock)();
        if let Some(credentials) = &self.given {
            return Ok(Access { credentials: credentials.clone(), at: SystemTime::from(at) });
        }
        let Some(role) = &self.role else {
            return Err("the node has no role, and the agent's environment has no AWS_ACCESS_KEY_ID".to_owned());
        };
        role.access(at).await.map_err(|e| e.to_string())
    }

    async fn refused(&self, _: &Access, date: Option<&str>) {
        if let (None, Some(role)) = (&self.given, &self.role) {
            role.refused(date, (self.clock)()).await;
        }
    }

    fn answered(&self, url: &str, why: Option<&str>) {
        self.services.note("s3", url, why);
    }
}
