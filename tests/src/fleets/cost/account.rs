//! An EC2 account without limits and without faults that counts its calls.

use super::meter::{Meter, Use};
use async_trait::async_trait;
use model::{Cloud, CloudError, Instance, InstanceState, LaunchAnswer, LaunchError, LaunchRequest, Span, Time};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// How long EC2 lists an instance after its end.
const LISTED_S: i64 = 3600;
/// The most instances of one page of EC2's list (`PAGE` in `shared/cloud`).
const PAGE: usize = 1000;

#[derive(Default)]
pub struct Account {
    /// The instances, each with the time of its end.
    instances: Mutex<BTreeMap<String, (Instance, Option<Time>)>>,
    started: Mutex<Vec<(String, String)>>,
    stopped: Mutex<Vec<String>>,
}

impl Account {
    /// The instances launched since the last call, with their user data.
    pub fn started(&self) -> Vec<(String, String)> {
        std::mem::take(&mut self.started.lock().unwrap())
    }

    /// The instances terminated since the last call.
    pub fn stopped(&self) -> Vec<String> {
        std::mem::take(&mut self.stopped.lock().unwrap())
    }

    pub fn running(&self) -> usize {
        self.instances.lock().unwrap().values().filter(|(_, ended)| ended.is_none()).count()
    }
}

/// The account as one invocation sees it.
pub struct Ec2 {
    pub account: Arc<Account>,
    pub meter: Meter,
    pub now: Time,
}

impl Ec2 {
    fn called(&self, calls: usize) {
        self.meter.count(Use { ec2: calls as f64, ..Use::default() });
    }
}

#[async_trait]
impl Cloud for Ec2 {
    async fn instances(&self) -> Result<Vec<Instance>, CloudError> {
        let mut instances = self.account.instances.lock().unwrap();
        instances.retain(|_, (_, ended)| ended.is_none_or(|at| self.now.since(at) < Span::from_s(LISTED_S)));
        self.called(instances.len().div_ceil(PAGE).max(1));
        Ok(instances.values().map(|(instance, _)| instance.clone()).collect())
    }

    async fn instance(&self, instance_id: &str) -> Result<Option<Instance>, CloudError> {
        self.called(1);
        Ok(self.account.instances.lock().unwrap().get(instance_id).map(|(instance, _)| instance.clone()))
    }

    async fn launch(&self, request: &LaunchRequest, _: &str) -> Result<LaunchAnswer, LaunchError> {
        self.called(1);
        let mut instances = self.account.instances.lock().unwrap();
        let way = &request.ways[0];
        let instance = Instance {
            instance_id: format!("i-{:017x}", instances.len()),
            state: InstanceState::Running,
            launched_at: self.now,
            zone: Some("us-east-1a".into()),
            instance_type: Some(way.instance_type.clone()),
            subnet_id: way.subnet_id.clone(),
            tags: request.tags.clone(),
        };
        self.account.started.lock().unwrap().push((instance.instance_id.clone(), request.user_data.clone()));
        instances.insert(instance.instance_id.clone(), (instance.clone(), None));
        Ok(LaunchAnswer { instances: vec![(&instance).into()], ..LaunchAnswer::default() })
    }

    async fn terminate(&self, instance_ids: &[String]) -> Result<(), CloudError> {
        self.called(1);
        let mut instances = self.account.instances.lock().unwrap();
        for id in instance_ids {
            if let Some((instance, ended)) = instances.get_mut(id).filter(|(_, ended)| ended.is_none()) {
                (instance.state, *ended) = (InstanceState::Terminated, Some(self.now));
                self.account.stopped.lock().unwrap().push(id.clone());
            }
        }
        Ok(())
    }

    async fn console_output(&self, _: &str) -> Result<Option<String>, CloudError> {
        self.called(1);
        Ok(None)
    }
}
