//! A node of the world: the agent's real protocol, on a machine whose processes are simulated.

use super::switch::Switch;
use ec2_stand_in::MachineStart;
use model::wire::{
    AllocOrder, BindingAnswer, BindingRequest, ErrorBody, ErrorCode, HandleReportAnswer, NodeFile, ReportedHandle,
};
use model::{AllocId, Batch, Ending, HandleKind, NodeKey, RunReport, Time};
use nodekeeper_agent::protocol::{Durable, HandleList, Identity, MachineTask, Node as Protocol, Observed};
use runtime::clock::RunClock;
use runtime::lambda::Reply;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

pub struct Node {
    pub file: NodeFile,
    /// The batch of the node, until the node knows its own id.
    unbound: Option<BindingRequest>,
    /// The key that makes its token, if the node was launched in a batch.
    pub key: Option<NodeKey>,
    pub protocol: Protocol,
    /// The handles on the node's disk.
    pub handles: BTreeSet<String>,
    /// The handles that do not have the node's own label, with what they have instead.
    pub relabelled: BTreeMap<String, Option<String>>,
    /// The handles that belong to another node, as the answer to the last report says.
    pub conflicts: Vec<String>,
    /// How many reports of handles, or parts of them, the node has sent.
    pub handle_reports: usize,
    /// The handles that the node cannot destroy.
    pub stuck: BTreeSet<String>,
    /// How often each alloc was started here.
    pub started: BTreeMap<AllocId, u32>,
    /// Whether the node got the answer 410.
    pub gone: bool,
    /// Whether the node is cut off from the network.
    pub silent: bool,
}

/// An HTTP request in the form in which a function URL passes it on.
pub fn http(path: &str, token: Option<&str>, body: &impl Serialize) -> Value {
    let mut headers = json!({"content-type": "application/json"});
    if let Some(token) = token {
        headers["authorization"] = json!(format!("Bearer {token}"));
    }
    json!({"version": "2.0", "rawPath": path, "headers": headers, "isBase64Encoded": false,
        "requestContext": {"http": {"method": "POST", "path": path}},
        "body": serde_json::to_string(body).unwrap()})
}

/// The status and the body of a function URL's answer.
pub fn answer(response: &Value) -> (u64, Value) {
    let body = serde_json::from_str(response["body"].as_str().unwrap()).unwrap();
    (response["statusCode"].as_u64().unwrap(), body)
}

fn read<T: DeserializeOwned>(response: &Value) -> Result<T, ErrorCode> {
    let (status, body) = answer(response);
    if status == 200 {
        Ok(serde_json::from_value(body).unwrap())
    } else {
        let error: ErrorBody = serde_json::from_value(body).unwrap();
        assert_eq!(u64::from(error.error.status()), status);
        Err(error.error)
    }
}

impl Node {
    pub fn boot(machine: &MachineStart) -> Self {
        let file = model::launch::node_file_in(&machine.user_data).expect("user data with a node file");
        let instance_id = machine.instance_id.clone();
        let request = |batch: &Batch| BindingRequest { instance_id: instance_id.clone(), batch: batch.clone() };
        let unbound = file.batch.as_ref().map(request);
        let any = file.any_node().unwrap();
        let file = file.of(any);
        let identity = Identity { instance_id, address: Some(machine.private_ip.clone()) };
        let protocol = Protocol::new(identity, Durable::new(file.node_id, "boot-1".to_owned()));
        Self {
            file,
            unbound,
            key: None,
            protocol,
            handles: BTreeSet::new(),
            relabelled: BTreeMap::new(),
            conflicts: Vec::new(),
            handle_reports: 0,
            stuck: BTreeSet::new(),
            started: BTreeMap::new(),
            gone: false,
            silent: false,
        }
    }

    fn path(&self, what: &str) -> String {
        format!("/v1/nodes/{}/{what}", self.file.node_id)
    }

    fn token(&self) -> Option<String> {
        let made = || self.key.as_ref().map(|key| key.token(&self.file.cluster, self.file.node_id));
        self.file.token.clone().or_else(made)
    }

    /// Asks for the node's id in its batch, if the node does not know it yet.
    async fn knows_itself(&mut self, ingest: &heartbeat_ingest::Ingest, switch: &Switch, now: Time) -> bool {
        let Some(request) = &self.unbound else { return true };
        let event = http(&self.path("binding"), self.token().as_deref(), request);
        let Some(response) = switch.guard(ingest.handle(&event, now)).await else { return false };
        match read::<BindingAnswer>(&response) {
            Ok(BindingAnswer { node_id }) => {
                self.unbound = None;
                self.file.node_id = node_id;
                self.protocol.durable.node_id = node_id;
                true
            }
            Err(code) => {
                self.gone = code == ErrorCode::Gone;
                false
            }
        }
    }

    /// One round: heartbeat, orders, work, reports.
    pub async fn live(
        &mut self,
        ingest: &heartbeat_ingest::Ingest,
        sweep: &sweep_dispatch::Sweep,
        switch: &Switch,
        now: Time,
        clock: RunClock,
    ) {
        if self.gone || self.silent {
            return;
        }
        if !self.knows_itself(ingest, switch, now).await {
            return;
        }
        let token = self.token();
        let event = http(&self.path("heartbeat"), token.as_deref(), &self.protocol.heartbeat(None));
        // The function was killed. The node gets no answer, and tries again in its next round.
        let Some(response) = switch.guard(ingest.handle(&event, now)).await else { return };
        match read(&response) {
            Ok(answer) => _ = self.protocol.on_heartbeat(&answer),
            Err(ErrorCode::WrongIncarnation) => self.protocol.register_anew(),
            Err(ErrorCode::Gone) => self.gone = true,
            Err(_) => {}
        }
        self.work();
        if let Some(report) = self.protocol.report() {
            let event = http(&self.path("allocs"), token.as_deref(), &report);
            let Some(response) = switch.guard(ingest.handle(&event, now)).await else { return };
            match read(&response) {
                Ok(answer) => self.protocol.on_report(&answer),
                Err(code) => self.protocol.on_report_refused(code),
            }
        }
        let as_of = self.protocol.durable.as_of;
        let label = Some(self.file.node_id.to_string());
        let handles = self.handles.iter().map(|h| ReportedHandle {
            stays: self.stuck.contains(h).then(|| "it is mounted".to_owned()),
            handle: h.clone(),
            kind: if h.starts_with("cache:") { HandleKind::Volume } else { HandleKind::Container },
            label: self.relabelled.get(h).cloned().unwrap_or_else(|| label.clone()),
        });
        let list = HandleList { handles: handles.collect(), complete: true };
        let Some(round) = self.protocol.handle_round(as_of, list) else { return };
        let Some(report) = self.protocol.handle_report(&round) else { return };
        self.handle_reports += 1;
        let event = http(&self.path("handles"), token.as_deref(), &report);
        let Some(reply) = switch.guard(sweep.handle(event, clock)).await else { return };
        let Reply::Http(response) = reply.unwrap() else { panic!("a report was taken for the schedule") };
        let Ok(answer) = read::<HandleReportAnswer>(&response) else { return };
        self.protocol.end_handle_round(&round, &answer);
        self.conflicts = answer.conflicts;
        for handle in answer.destroy {
            let running = handle.parse().is_ok_and(|id| self.protocol.unfinished().contains(&id));
            assert!(!running, "told to destroy {handle}, which runs");
            if !self.stuck.contains(&handle) {
                self.handles.remove(&handle);
            }
        }
    }

    /// Running allocs end in the next round. New allocs start.
    fn work(&mut self) {
        for id in self.protocol.unfinished() {
            if *self.protocol.observed(id) == Observed::Running {
                let order = self.protocol.durable.allocs[&id].order.clone();
                self.finish(&order);
            }
        }
        for work in self.protocol.work() {
            match work {
                MachineTask::Run(order) => {
                    self.handles.insert(order.alloc_id.to_string());
                    self.handles.extend(order.work.caches.iter().map(|c| format!("cache:{c}")));
                    *self.started.entry(order.alloc_id).or_default() += 1;
                    self.protocol.observe(order.alloc_id, Observed::Running);
                }
                MachineTask::Stop(order, _) => self.end(&order, 143),
            }
        }
    }

    fn finish(&mut self, order: &AllocOrder) {
        match order.work.command.first().map(String::as_str) {
            Some("fail") => self.end(order, 1),
            // A demand runs nothing, and does not end by itself.
            None | Some("forever") => {}
            _ => self.end(order, 0),
        }
    }

    pub fn end(&mut self, order: &AllocOrder, exit_code: i32) {
        let cause = model::EndCause::Exited { code: exit_code };
        let ended = Ending {
            run: RunReport { log_tail: Some("the end\n".into()), ..RunReport::default() },
            ..Ending::new(cause)
        };
        self.protocol.observe(order.alloc_id, Observed::Ended(Box::new(ended)));
    }
}
