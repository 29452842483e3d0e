//! EC2, the price list and Service Quotas through the AWS SDK: the only crate that knows their APIs.
//!
//! Guarantees: a list is complete or an error; a launch is one call, which the SDK does not retry and which
//! ends before the launch claim does; errors are typed by what the caller must do.
//! Does not: decide what to launch, or repeat a launch.
//! Source of the rules about tokens and errors: EC2 API reference, "Ensuring idempotency" and "Error codes".

pub mod by_id;
mod calls;
mod fleet;
mod launch;
mod offers;
mod price_list;
mod quotas;
mod refusal;
mod run_instances;

pub use offers::AwsOffers;
pub use price_list::PRICES_REGION;

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::timeout::TimeoutConfig;
use aws_sdk_ec2::types::{Filter, Reservation};
use base64::Engine;
use by_id::ById;
use calls::{AT_ONCE, FILTER_VALUES, cloud_error};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, TryStreamExt};
use model::cloud::{BATCH_TAG, CLUSTER_TAG, NODE_TAG};
use model::enums::Class;
use model::{
    Cloud, CloudError, ClusterName, Instance, LaunchAnswer, LaunchCall, LaunchError, LaunchRequest, NodeId, Offers,
    Reach, Refusal, Time,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How long any other call may take, retries included, in seconds.
const CALL_S: u64 = 30;
/// The most ids TerminateInstances takes in one call.
const TERMINATE_IDS: usize = 1000;
/// The most instances DescribeInstances lists on one page.
const PAGE: i32 = 1000;
/// How many ids one call of DescribeInstances names. EC2 takes 1,000. Fewer ids make smaller answers, of which several are
/// in memory at the same time: EC2 describes an instance in about 5 KB.
const DESCRIBE_IDS: usize = 250;
const DESCRIBE: &str = "DescribeInstances";
/// The code of the error for a dry run that EC2 would carry out.
const WOULD_LAUNCH: &str = "DryRunOperation:";

/// EC2 through the AWS SDK.
#[derive(Clone)]
pub struct Ec2 {
    client: Client,
    cluster: ClusterName,
    offers: Option<Arc<dyn Offers>>,
}

impl Ec2 {
    /// The instances of this cluster, with a client of this configuration.
    pub fn connect(aws: &SdkConfig, cluster: ClusterName) -> Self {
        Self::new(Client::new(aws), cluster)
    }

    /// Adds the clients that ask what AWS offers. A program that does not call this is a twelfth smaller.
    #[must_use]
    pub fn with_offers(self, aws: &SdkConfig) -> Self {
        let offers = AwsOffers { client: self.client.clone(), aws: aws.clone() };
        Self { offers: Some(Arc::new(offers)), ..self }
    }

    /// The instances of this cluster, reached through this client. It cannot say what AWS offers.
    pub const fn new(client: Client, cluster: ClusterName) -> Self {
        Self { client, cluster, offers: None }
    }
}

fn listed(instance: &aws_sdk_ec2::types::Instance) -> Option<Instance> {
    let launched = instance.launch_time().and_then(|t| t.to_millis().ok()).unwrap_or(0);
    let tags = instance.tags().iter().filter_map(|t| Some((t.key()?.to_owned(), t.value().unwrap_or("").to_owned())));
    Some(Instance {
        instance_id: instance.instance_id()?.to_owned(),
        state: instance.state()?.name()?.as_str().parse().ok()?,
        launched_at: Time::from_ms(launched),
        instance_type: instance.instance_type().map(|kind| kind.as_str().to_owned()),
        subnet_id: instance.subnet_id().map(str::to_owned),
        zone: instance.placement().and_then(|p| p.availability_zone()).map(str::to_owned),
        tags: tags.collect(),
    })
}

/// All the instances of an answer. An instance that cannot be read is an error: the list would be partial, and nothing may
/// be done on a partial list.
fn all_of(reservations: &[Reservation]) -> Result<Vec<Instance>, CloudError> {
    let unknown = |instance: &aws_sdk_ec2::types::Instance| CloudError::Unreachable {
        operation: DESCRIBE,
        detail: format!("it listed an instance without an id or with an unknown state: {:?}", instance.instance_id()),
    };
    let instances = reservations.iter().flat_map(Reservation::instances);
    instances.map(|instance| listed(instance).ok_or_else(|| unknown(instance))).collect()
}

#[async_trait]
impl Cloud for Ec2 {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        self.with_tag(CLUSTER_TAG, &[self.cluster.to_string()]).await
    }

    async fn instances_by_id(&self, instance_ids: &[String]) -> Result<Vec<Instance>, CloudError> {
        let calls: Vec<_> = instance_ids.chunks(DESCRIBE_IDS).map(|ids| by_id::instances(self, ids).boxed()).collect();
        self.ours(calls).await
    }

    async fn instances_of(&self, nodes: &BTreeSet<NodeId>) -> Result<Vec<Instance>, CloudError> {
        let nodes_by_tag: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
        let ulids: BTreeSet<_> = nodes.iter().map(|node_id| node_id.ulid()).collect();
        // A batch begins with the ULID of its nodes.
        let batches: Vec<String> = ulids.iter().map(|ulid| format!("{ulid}:*")).collect();
        let of_nodes = nodes_by_tag.chunks(FILTER_VALUES).map(|values| self.with_tag(NODE_TAG, values).boxed());
        let of_batches = batches.chunks(FILTER_VALUES).map(|values| self.with_tag(BATCH_TAG, values).boxed());
        let mut found = self.ours(of_nodes.chain(of_batches).collect()).await?;
        found.retain(|i| i.node_id().is_none_or(|node_id| nodes.contains(&node_id)));
        Ok(found)
    }

    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError> {
        Ok(by_id::instances(self, &[instance_id.to_owned()]).await?.pop())
    }

    async fn launch(&self, request: &LaunchRequest, client_token: &str) -> Result<LaunchAnswer, LaunchError> {
        let Some(first) = request.ways.first() else {
            return Err(
                Refusal { reach: Reach::Request, class: Class::Wrong, message: "it has no way".to_owned() }.into()
            );
        };
        let answer = match request.call {
            LaunchCall::Fleet => fleet::launch(&self.client, request, first, client_token).await,
            LaunchCall::One => run_instances::launch(&self.client, request, first, client_token).await,
        };
        match answer {
            Err(LaunchError::Refused(refusal)) if refusal.message.starts_with(WOULD_LAUNCH) => {
                Ok(LaunchAnswer::default())
            }
            answer => answer,
        }
    }

    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError> {
        let mut first_error = None;
        for chunk in instance_ids.chunks(TERMINATE_IDS) {
            if let Err(error) = by_id::terminate(self, chunk).await {
                first_error.get_or_insert(error);
            }
        }
        first_error.map_or(Ok(()), Err)
    }

    fn offers(&self) -> Option<&dyn Offers> {
        self.offers.as_deref()
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
    /// Every instance with this tag and one of these values, at most [`FILTER_VALUES`]. All pages, or an error.
    async fn with_tag(&self, tag: &str, values: &[String]) -> Result<Vec<Instance>, CloudError> {
        // There is only one filter, because EC2 answers slowly with more.
        let filter = Filter::builder().name(format!("tag:{tag}")).set_values(Some(values.to_vec())).build();
        let pages = self.client.describe_instances().filters(filter).into_paginator().page_size(PAGE);
        // A list that ends where EC2 repeats a token would be partial.
        let reservations = pages.stop_on_duplicate_token(false).items().send();
        let reservations = reservations.collect::<Result<Vec<Reservation>, _>>().await;
        all_of(&reservations.map_err(|e| cloud_error(DESCRIBE, &e))?)
    }

    /// Makes these calls, several at the same time, and returns the instances that have our cluster tag. All calls must
    /// succeed.
    async fn ours(
        &self,
        calls: Vec<BoxFuture<'_, Result<Vec<Instance>, CloudError>>>,
    ) -> Result<Vec<Instance>, CloudError> {
        let found: Vec<Vec<Instance>> = futures::stream::iter(calls).buffer_unordered(AT_ONCE).try_collect().await?;
        let mut found: Vec<Instance> = found.into_iter().flatten().collect();
        found.retain(|i| i.tags.get(CLUSTER_TAG).is_some_and(|cluster| cluster == self.cluster.as_str()));
        // An instance may have the tags of a node and of a batch.
        found.sort_by(|a, b| a.instance_id.cmp(&b.instance_id));
        found.dedup_by(|a, b| a.instance_id == b.instance_id);
        Ok(found)
    }
}

#[async_trait]
impl ById for Ec2 {
    async fn describe(&self, instance_ids: &[String]) -> Result<Vec<Instance>, CloudError> {
        let call = self.client.describe_instances().set_instance_ids(Some(instance_ids.to_vec()));
        let answer = call.send().await.map_err(|e| cloud_error(DESCRIBE, &e))?;
        all_of(answer.reservations())
    }

    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError> {
        self.client
            .terminate_instances()
            .set_instance_ids(Some(instance_ids.to_vec()))
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
