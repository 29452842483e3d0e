//! The cloud: everything nodekeeper asks of EC2, and the only file that knows EC2.
//!
//! Guarantees: lists are complete or an error; a launch is one call, over before its claim
//! is, and made at most once by the SDK; errors are typed by what the caller must do.
//! Does not: decide what to launch, or repeat a launch. Rules about tokens and errors: EC2 API
//! reference, "Ensuring idempotency" and "Error codes".

use crate::auth::{MasterKey, hex};
use crate::causes::chain;
use crate::ids::{ClusterName, NodeId};
use crate::model::{Life, Market, Offering};
use crate::policy::Policy;
use crate::time::Time;
use crate::wire::{NODE_FILE, NodeFile};
use async_trait::async_trait;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::retry::RetryConfig;
use aws_sdk_ec2::config::timeout::TimeoutConfig;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::types::{
    Filter, InstanceMarketOptionsRequest, InstanceStateName, InstanceType, LaunchTemplateSpecification, MarketType,
    ResourceType, Tag, TagSpecification,
};
use base64::Engine;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::time::Duration;

/// The tag that says whose an instance is.
pub const CLUSTER_TAG: &str = "nodekeeper:cluster";
/// The tag that ties an instance to its node.
pub const NODE_TAG: &str = "nodekeeper:node-id";
/// The tag that says what it was launched as.
pub const SIZE_TAG: &str = "nodekeeper:size";

/// How long one launch call may take, in seconds: well within its claim.
const LAUNCH_CALL_S: u64 = 25;
/// How long any other call may take, retries included, in seconds.
const CALL_S: u64 = 30;
/// The most ids of one TerminateInstances call.
const TERMINATE_IDS: usize = 1000;
/// The page size of DescribeInstances: its maximum.
const PAGE: i32 = 1000;

/// What EC2 says an instance is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstanceState {
    /// Starting.
    Pending,
    /// Up.
    Running,
    /// On its way to terminated.
    ShuttingDown,
    /// Gone for good.
    Terminated,
    /// Being stopped, by someone else: we never stop.
    Stopping,
    /// Stopped, by someone else.
    Stopped,
}

/// An instance as EC2 lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// EC2's name for it.
    pub instance_id: String,
    /// What it is doing.
    pub state: InstanceState,
    /// When it was launched.
    pub launched_at: Time,
    /// Its zone, where told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Its tags.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
}

impl Instance {
    /// The node it was launched as; `None` where the tag is missing or makes no sense.
    pub fn node_id(&self) -> Option<NodeId> {
        self.tags.get(NODE_TAG).and_then(|t| t.parse().ok())
    }
}

/// Everything of one launch call but its client token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchRequest {
    /// What is launched.
    pub offering: Offering,
    /// The instance's tags.
    pub tags: BTreeMap<String, String>,
    /// The script of its first boot, not encoded.
    pub user_data: String,
}

/// What a launch request needs besides the record and the policy.
#[derive(Clone, Debug)]
pub struct LaunchSettings {
    /// The deployment.
    pub cluster: ClusterName,
    /// What node tokens are made with; `None` where callers are known by IAM.
    pub key: Option<MasterKey>,
    /// Where nodes send heartbeats.
    pub heartbeat_url: String,
    /// Where nodes report handles.
    pub sweep_url: String,
}

impl LaunchRequest {
    /// Renders the request of a node. The same record, policy and settings give the same
    /// request, byte for byte.
    pub fn render(settings: &LaunchSettings, policy: &Policy, node_id: NodeId, offering: &Offering) -> Self {
        let cluster = &settings.cluster;
        let mut tags = policy.launch.tags.clone();
        tags.insert(CLUSTER_TAG.into(), cluster.to_string());
        tags.insert(NODE_TAG.into(), node_id.to_string());
        tags.insert(SIZE_TAG.into(), offering.size.clone());
        tags.insert("Name".into(), format!("{cluster}-{}", node_id.slot()));
        let file = NodeFile {
            cluster: cluster.clone(),
            node_id,
            token: settings.key.as_ref().map(|k| k.token(cluster, node_id)),
            heartbeat_url: settings.heartbeat_url.clone(),
            sweep_url: settings.sweep_url.clone(),
        };
        // The zone is what EC2 answers, not what we ask for.
        let offering = Offering { zone: None, ..offering.clone() };
        Self { offering, tags, user_data: user_data(&file, &policy.launch.user_data) }
    }

    /// A digest of the whole request: another policy, another digest.
    pub fn digest(&self) -> String {
        let json = serde_json::to_vec(self).unwrap_or_default();
        hex(Sha256::digest(json).get(..8).unwrap_or_default())
    }
}

const USER_DATA_END: &str = "NODEKEEPER_NODE_JSON";

fn user_data(file: &NodeFile, more: &str) -> String {
    let json = serde_json::to_string(file).unwrap_or_default();
    let directory = NODE_FILE.rsplit_once('/').map_or("/", |(d, _)| d);
    format!(
        "#!/bin/sh\n(umask 077; mkdir -p {directory}; cat > {NODE_FILE} <<'{USER_DATA_END}'\n{json}\n{USER_DATA_END}\n)\n{more}\n"
    )
}

/// The node file that user data would write: for a machine that is not a machine.
pub fn node_file_in(user_data: &str) -> Option<NodeFile> {
    let marker = format!("<<'{USER_DATA_END}'\n");
    let (_, rest) = user_data.split_once(&marker)?;
    let (json, _) = rest.split_once(&format!("\n{USER_DATA_END}\n"))?;
    serde_json::from_str(json).ok()
}

/// Why a launch call did not launch, by what the caller must do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// This type, zone and market are short: take another offering.
    #[error("no capacity: {0}")]
    Capacity(String),
    /// The account's limit: launch nothing more for a while.
    #[error("quota: {0}")]
    Quota(String),
    /// Too many calls: stop calling in this run. Not a refusal.
    #[error("throttled: {0}")]
    Throttled(String),
    /// A person must look: the request itself is wrong.
    #[error("bad request: {0}")]
    BadRequest(String),
    /// The token's instance has been terminated: this life is over.
    #[error("its instance is terminated already: {0}")]
    Spent(String),
    /// Whether it launched is not known: the same token may be used again.
    #[error("the answer was lost: {0}")]
    Lost(String),
}

/// Why EC2 did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloudError {
    /// No answer, or none that makes sense.
    #[error("EC2 did not answer ({operation}): check AWS_ENDPOINT_URL_EC2, the region and the credentials: {detail}")]
    Unreachable {
        /// What was asked.
        operation: &'static str,
        /// What the client says.
        detail: String,
    },
    /// It refused.
    #[error("EC2 refused {operation}: {code}: {message}")]
    Refused {
        /// What was asked.
        operation: &'static str,
        /// Its code.
        code: String,
        /// Its words.
        message: String,
    },
}

/// The cloud.
#[async_trait]
pub trait Cloud: Send + Sync {
    /// Every instance with our cluster tag, in any state EC2 still lists; all pages or an error.
    async fn instances(&self) -> Result<Vec<Instance>, CloudError>;
    /// One instance, asked for by id; `None` if EC2 does not know it.
    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError>;
    /// One launch call of one instance.
    async fn launch(&self, request: &LaunchRequest, client_token: &str) -> Result<Instance, LaunchError>;
    /// Terminates these. An id EC2 does not know does not keep the others from being terminated.
    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError>;
    /// The last of an instance's console output, if there is any.
    async fn console_output(&self, instance_id: &str) -> Result<Option<String>, CloudError>;
}

/// EC2 through the AWS SDK.
#[derive(Clone)]
pub struct Ec2 {
    client: Client,
    cluster: ClusterName,
}

impl fmt::Debug for Ec2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ec2({})", self.cluster)
    }
}

impl Ec2 {
    /// The instances tagged `{cluster}` behind this client.
    pub const fn new(client: Client, cluster: ClusterName) -> Self {
        Self { client, cluster }
    }
}

fn cloud_error<E, R>(operation: &'static str, error: &SdkError<E, R>) -> CloudError
where
    E: ProvideErrorMetadata + Error + 'static,
    R: fmt::Debug + 'static,
{
    match error.as_service_error() {
        Some(e) => CloudError::Refused {
            operation,
            code: e.code().unwrap_or("no code").to_owned(),
            message: e.message().unwrap_or("no message").to_owned(),
        },
        None => CloudError::Unreachable { operation, detail: chain(error) },
    }
}

/// What a RunInstances error code asks of the caller. EC2 answers a shortage as a server
/// error, so the code decides and not the status.
fn launch_error(code: &str, message: &str, status: u16) -> LaunchError {
    let text = format!("{code}: {message}");
    match code {
        "InsufficientInstanceCapacity"
        | "InsufficientHostCapacity"
        | "InsufficientReservedInstanceCapacity"
        | "InsufficientCapacityOnOutpost"
        | "InsufficientFreeAddressesInSubnet"
        | "SpotMaxPriceTooLow"
        | "Unsupported"
        | "UnsupportedOperation" => LaunchError::Capacity(text),
        "InstanceLimitExceeded"
        | "VcpuLimitExceeded"
        | "MaxSpotInstanceCountExceeded"
        | "MaxSpotFleetRequestCountExceeded"
        | "VolumeLimitExceeded"
        | "MaxIOPSLimitExceeded"
        | "AddressLimitExceeded" => LaunchError::Quota(text),
        code if is_throttling(code) => LaunchError::Throttled(text),
        "IdempotentInstanceTerminated" => LaunchError::Spent(text),
        // Another run's call with this token said something else: neither a refusal nor ours.
        "IdempotentParameterMismatch" | "ClientTokenInProgress" | "IncompleteOperation" => LaunchError::Lost(text),
        _ if status >= 500 || status == 0 => LaunchError::Lost(text),
        _ => LaunchError::BadRequest(text),
    }
}

fn listed(instance: &aws_sdk_ec2::types::Instance) -> Option<Instance> {
    let state = match instance.state()?.name()? {
        InstanceStateName::Pending => InstanceState::Pending,
        InstanceStateName::Running => InstanceState::Running,
        InstanceStateName::ShuttingDown => InstanceState::ShuttingDown,
        InstanceStateName::Terminated => InstanceState::Terminated,
        InstanceStateName::Stopping => InstanceState::Stopping,
        InstanceStateName::Stopped => InstanceState::Stopped,
        _ => return None,
    };
    let launched = instance.launch_time().and_then(|t| t.to_millis().ok()).unwrap_or(0);
    let tags = instance.tags().iter().filter_map(|t| Some((t.key()?.to_owned(), t.value().unwrap_or("").to_owned())));
    Some(Instance {
        instance_id: instance.instance_id()?.to_owned(),
        state,
        launched_at: Time::from_ms(launched),
        zone: instance.placement().and_then(|p| p.availability_zone()).map(str::to_owned),
        tags: tags.collect(),
    })
}

#[async_trait]
impl Cloud for Ec2 {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        let operation = "DescribeInstances";
        // Exactly one filter: EC2 is slow with more.
        let filter = Filter::builder().name(format!("tag:{CLUSTER_TAG}")).values(self.cluster.as_str()).build();
        let mut found = Vec::new();
        let mut from: Option<String> = None;
        loop {
            let page = self
                .client
                .describe_instances()
                .filters(filter.clone())
                .max_results(PAGE)
                .set_next_token(from.take())
                .send()
                .await
                .map_err(|e| cloud_error(operation, &e))?;
            for instance in page.reservations().iter().flat_map(|r| r.instances()) {
                // An instance that cannot be understood makes the list partial: act on nothing.
                found.push(listed(instance).ok_or_else(|| CloudError::Unreachable {
                    operation,
                    detail: format!("an instance without id or known state: {:?}", instance.instance_id()),
                })?);
            }
            from = page.next_token.filter(|t| !t.is_empty());
            if from.is_none() {
                return Ok(found);
            }
        }
    }

    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError> {
        match self.client.describe_instances().instance_ids(instance_id).send().await {
            Ok(page) => Ok(page.reservations().iter().flat_map(|r| r.instances()).find_map(listed)),
            Err(e) if unknown_id(e.as_service_error().and_then(ProvideErrorMetadata::code)) => Ok(None),
            Err(e) => Err(cloud_error("DescribeInstances", &e)),
        }
    }

    async fn launch(&self, request: &LaunchRequest, client_token: &str) -> Result<Instance, LaunchError> {
        let offering = &request.offering;
        let mut tags = TagSpecification::builder().resource_type(ResourceType::Instance);
        for (key, value) in &request.tags {
            tags = tags.tags(Tag::builder().key(key).value(value).build());
        }
        let template =
            LaunchTemplateSpecification::builder().set_version(offering.template_version.map(|v| v.to_string()));
        let template = if offering.template.starts_with("lt-") {
            template.launch_template_id(&offering.template)
        } else {
            template.launch_template_name(&offering.template)
        };
        let spot = (offering.market == Market::Spot)
            .then(|| InstanceMarketOptionsRequest::builder().market_type(MarketType::Spot).build());
        let one_call = aws_sdk_ec2::config::Builder::default()
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::builder().operation_timeout(Duration::from_secs(LAUNCH_CALL_S)).build());
        let answer = self
            .client
            .run_instances()
            .min_count(1)
            .max_count(1)
            .client_token(client_token)
            .instance_type(InstanceType::from(offering.instance_type.as_str()))
            .launch_template(template.build())
            .set_subnet_id(offering.subnet_id.clone())
            .set_instance_market_options(spot)
            .tag_specifications(tags.build())
            .user_data(base64::engine::general_purpose::STANDARD.encode(&request.user_data))
            .customize()
            .config_override(one_call)
            .send()
            .await
            .map_err(|e| match e.as_service_error() {
                Some(service) => {
                    let status = e.raw_response().map_or(0, |r| r.status().as_u16());
                    launch_error(service.code().unwrap_or(""), service.message().unwrap_or("no message"), status)
                }
                None => LaunchError::Lost(chain(&e)),
            })?;
        answer.instances().iter().find_map(listed).ok_or_else(|| LaunchError::Lost("an answer without instance".into()))
    }

    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError> {
        let mut first_error = None;
        for chunk in instance_ids.chunks(TERMINATE_IDS) {
            let Err(error) = self.terminate_call(chunk).await else { continue };
            // One unknown or protected id fails the call for all, or for all of its zone: then each is
            // asked for alone.
            if !matches!(&error, CloudError::Refused { code, .. } if of_one(code)) {
                first_error.get_or_insert(error);
                continue;
            }
            for id in chunk {
                match self.terminate_call(std::slice::from_ref(id)).await {
                    Err(CloudError::Refused { code, .. }) if unknown_id(Some(&code)) => {}
                    Err(error) => {
                        let goes_on = matches!(&error, CloudError::Refused { code, .. } if of_one(code));
                        first_error.get_or_insert(error);
                        if !goes_on {
                            break;
                        }
                    }
                    Ok(()) => {}
                }
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    async fn console_output(&self, instance_id: &str) -> Result<Option<String>, CloudError> {
        let answer = self
            .client
            .get_console_output()
            .instance_id(instance_id)
            .send()
            .await
            .map_err(|e| cloud_error("GetConsoleOutput", &e))?;
        let bytes = answer.output().and_then(|o| base64::engine::general_purpose::STANDARD.decode(o.trim()).ok());
        Ok(bytes.map(|b| String::from_utf8_lossy(&b).into_owned()).filter(|t| !t.is_empty()))
    }
}

impl Ec2 {
    async fn terminate_call(&self, ids: &[String]) -> Result<(), CloudError> {
        self.client
            .terminate_instances()
            .set_instance_ids(Some(ids.to_vec()))
            .customize()
            .config_override(
                aws_sdk_ec2::config::Builder::default()
                    .timeout_config(TimeoutConfig::builder().operation_timeout(Duration::from_secs(CALL_S)).build()),
            )
            .send()
            .await
            .map(|_| ())
            .map_err(|e| cloud_error("TerminateInstances", &e))
    }
}

fn unknown_id(code: Option<&str>) -> bool {
    matches!(code, Some("InvalidInstanceID.NotFound" | "InvalidInstanceID.Malformed"))
}

/// Whether a refusal can be the fault of one of the ids it was about (what the role may end can hang on an
/// instance's tags). Of anything else, also what is said of one id alone, more calls are not the cure.
fn of_one(code: &str) -> bool {
    code.starts_with("InvalidInstanceID.")
        || matches!(
            code,
            "OperationNotPermitted" | "UnauthorizedOperation" | "IncorrectInstanceState" | "UnsupportedOperation"
        )
}

fn is_throttling(code: &str) -> bool {
    matches!(
        code,
        "RequestLimitExceeded"
            | "Throttling"
            | "ThrottlingException"
            | "RequestThrottled"
            | "EC2ThrottledException"
            | "RequestThrottledException"
            | "ResourceCountExceeded"
    )
}

/// The client token of a life's launch call.
pub fn client_token(life: &Life) -> String {
    format!("{}-{}", life.node_id, life.attempt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fixtures;
    use crate::policy;

    fn settings() -> LaunchSettings {
        LaunchSettings {
            cluster: "c".parse().unwrap(),
            key: Some(MasterKey::from_hex(&"0f".repeat(32)).unwrap()),
            heartbeat_url: "http://h".into(),
            sweep_url: "http://s".into(),
        }
    }

    #[test]
    fn the_same_record_and_policy_render_the_same_request() {
        let policy = Policy::from_json(&policy::example_json()).unwrap();
        let node = fixtures::node_id(3);
        let request = LaunchRequest::render(&settings(), &policy, node, &fixtures::offering());
        let mut bound = fixtures::offering();
        bound.zone = Some("eu-1a".into());
        assert_eq!(LaunchRequest::render(&settings(), &policy, node, &bound).digest(), request.digest());
        let mut other = policy.clone();
        other.launch.user_data = "echo hello".into();
        assert_ne!(LaunchRequest::render(&settings(), &other, node, &bound).digest(), request.digest());
        assert_eq!(request.tags["Name"], "c-3");
        assert!(client_token(fixtures::assigned(3).life().unwrap()).len() <= 64);
    }

    #[test]
    fn user_data_carries_the_node_file_and_the_operators_commands() {
        let mut policy = Policy::from_json(&policy::example_json()).unwrap();
        policy.launch.user_data = "systemctl start nodekeeper-agent".into();
        let request = LaunchRequest::render(&settings(), &policy, fixtures::node_id(3), &fixtures::offering());
        let file = node_file_in(&request.user_data).unwrap();
        assert_eq!((file.node_id, file.heartbeat_url.as_str()), (fixtures::node_id(3), "http://h"));
        assert_eq!(file.token.unwrap().len(), 64);
        assert!(request.user_data.ends_with("systemctl start nodekeeper-agent\n"));
        assert!(node_file_in("#!/bin/sh").is_none());
    }

    #[test]
    fn launch_errors_are_typed_by_what_to_do() {
        assert!(matches!(launch_error("InsufficientInstanceCapacity", "", 500), LaunchError::Capacity(_)));
        assert!(matches!(launch_error("VcpuLimitExceeded", "", 400), LaunchError::Quota(_)));
        assert!(matches!(launch_error("RequestLimitExceeded", "", 503), LaunchError::Throttled(_)));
        assert!(of_one("OperationNotPermitted") && of_one("InvalidInstanceID.NotFound"));
        assert!(!of_one("RequestLimitExceeded"));
        assert!(matches!(launch_error("InvalidParameterValue", "", 400), LaunchError::BadRequest(_)));
        assert!(matches!(launch_error("InternalError", "", 500), LaunchError::Lost(_)));
        assert!(matches!(launch_error("IdempotentInstanceTerminated", "", 400), LaunchError::Spent(_)));
    }
}
