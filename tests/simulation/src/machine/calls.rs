//! The calls of a node: heartbeats, alloc reports and handle reports, and what the node does with the answers.

use super::Machine;
use crate::core::{Fault, lock};
use model::wire::{
    AllocReportAnswer, AllocUpdate, CredentialsRequest, ErrorCode, HandleReportAnswer, HeartbeatAnswer, JobCredentials,
    ReportedHandle,
};
use model::{AllocId, HandleKind, Span, Time};
use nodekeeper_agent::protocol::HandleList;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;

/// After this time, the handles are reported again without a request, as the agent does.
const AT_LEAST_EVERY: Span = Span::from_s(3600);

enum Answer<T> {
    Told(T),
    Refused(ErrorCode),
    Nothing,
}

impl Machine {
    async fn post<A: DeserializeOwned>(&self, what: &'static str, body: &impl Serialize) -> Answer<A> {
        let body = serde_json::to_string(body).unwrap_or_default();
        let answer = self.functions.post(self.file.node_id, what, self.file.token.as_deref(), body).await;
        let Some((status, body)) = answer else { return Answer::Nothing };
        if status == 200 {
            return self
                .invariant_answers_are_of_the_documented_form(what, &body)
                .map_or(Answer::Nothing, Answer::Told);
        }
        match serde_json::from_str::<model::wire::ErrorBody>(&body) {
            Ok(error) => Answer::Refused(error.error),
            Err(_) => Answer::Nothing,
        }
    }

    /// Every answer to a node has the documented form.
    fn invariant_answers_are_of_the_documented_form<A: DeserializeOwned>(&self, what: &str, body: &str) -> Option<A> {
        let broken = |e| {
            self.core.broken("invariant_answers_are_of_the_documented_form", format!("{what}: {e}: {body}"));
        };
        serde_json::from_str(body).map_err(broken).ok()
    }

    /// A node is never refused because of the credentials it was launched with.
    fn invariant_good_credentials_are_accepted(&self, refused: ErrorCode) {
        if refused == ErrorCode::Unauthorized {
            self.core.broken("invariant_good_credentials_are_accepted", self.file.node_id.to_string());
        }
    }

    fn later(&self, least: i64, most: i64) -> Time {
        self.core.now() + Span::from_ms(self.core.between(least * 1000, most * 1000))
    }

    /// Sends one heartbeat. Returns false if the control plane answered 410.
    pub(super) async fn heartbeat(&mut self) -> bool {
        let uptime_ms = u64::try_from(self.core.now().since(self.booted_at).as_ms()).ok();
        let beat = self.protocol.heartbeat(uptime_ms);
        let asked_at = self.core.now();
        match self.post::<HeartbeatAnswer>("heartbeat", &beat).await {
            Answer::Told(answer) => {
                if self.core.happens(Fault::AgentCrashes) {
                    // The agent is killed before the answer is on disk.
                    self.restart(3).await;
                    return true;
                }
                let registered = self.protocol.on_heartbeat(&answer);
                self.save();
                if self.core.happens(Fault::AgentCrashes) {
                    // The agent is killed before it acts on the answer.
                    self.restart(3).await;
                    return true;
                }
                let ms = (answer.next_heartbeat_s * 1000.0) as i64;
                self.heartbeat_at = self.core.now() + Span::from_ms(ms);
                // The time of the next call counts from the request, because the policy's grace covers a slow answer.
                let mut ground = lock(&self.ground);
                ground.next_call_at = Some(asked_at + Span::from_ms(ms));
                ground.answered_at = Some(self.core.now());
                ground.said_busy = beat.health.busy;
                drop(ground);
                if answer.report_handles {
                    self.handles_at = self.handles_at.min(self.later(0, 2));
                }
                if registered || answer.must_report {
                    self.report_at = self.core.now();
                    self.handles_at = self.handles_at.min(self.later(0, 2));
                }
                return true;
            }
            Answer::Refused(ErrorCode::Gone) => {
                self.check.told_gone(&self.check.tables(), self.file.node_id);
                return false;
            }
            Answer::Refused(ErrorCode::WrongIncarnation) => {
                self.protocol.register_anew();
                self.save();
                self.heartbeat_at = self.later(0, 2);
            }
            Answer::Refused(code) => {
                self.invariant_good_credentials_are_accepted(code);
                self.heartbeat_at = self.later(4, 20);
            }
            Answer::Nothing => self.heartbeat_at = self.later(4, 20),
        }
        true
    }

    pub(super) async fn report(&mut self) {
        let Some(mut report) = self.protocol.report() else { return };
        self.save();
        if self.core.happens(Fault::Liar) {
            // The node reports an alloc of another node, which it must not do.
            if let Some(other) = self.check.somebody_elses(self.file.node_id) {
                let lie = AllocUpdate {
                    alloc_id: other,
                    client: model::ClientStatus::Complete,
                    cause: Some(model::EndCause::Exited { code: 0 }),
                    phase: None,
                    run: Default::default(),
                };
                report.allocs.push(lie);
            }
        }
        match self.post::<AllocReportAnswer>("allocs", &report).await {
            Answer::Told(_) if self.core.happens(Fault::AgentCrashes) => {
                // The agent is killed before the answer is on disk.
                self.restart(3).await;
            }
            Answer::Told(answer) => {
                self.protocol.on_report(&answer);
                self.save();
                self.report_at = self.core.now();
                self.handles_at = self.handles_at.min(self.later(0, 2));
                // Room has come, and no work with it.
                let has_work = answer.orders.as_ref().is_some_and(|list| !list.allocs.is_empty());
                if let Some(first_s) = answer.next_heartbeat_s.filter(|_| !has_work) {
                    let first_at = self.core.now() + Span::from_ms((first_s * 1000.0) as i64);
                    self.heartbeat_at = self.heartbeat_at.min(first_at);
                }
            }
            Answer::Refused(code) => {
                self.protocol.on_report_refused(code);
                self.save();
                self.report_at = self.later(1, 10);
                if matches!(code, ErrorCode::NotReady | ErrorCode::WrongIncarnation) {
                    self.heartbeat_at = self.core.now();
                }
                if code == ErrorCode::Gone {
                    self.heartbeat_at = self.core.now();
                }
            }
            Answer::Nothing => self.report_at = self.later(1, 20),
        }
    }

    /// Asks for the credentials of an alloc: one of its own, or one of another node.
    pub(super) async fn ask_for_credentials(&mut self) {
        if !self.core.happens(Fault::RoleWanted) {
            return;
        }
        let node = self.file.node_id;
        let own = self.protocol.durable.allocs.keys().next().copied();
        let other = self.check.somebody_elses(node);
        let wanted = if self.core.of(Fault::RoleWanted, 0, 2) == 0 { other } else { own.or(other) };
        let (Some(alloc_id), Some(incarnation)) = (wanted, self.protocol.durable.incarnation.clone()) else { return };
        let before = self.check.is_wanted_on(&self.check.tables(), alloc_id, node);
        let asked = CredentialsRequest { incarnation, alloc_id };
        match self.post::<JobCredentials>("credentials", &asked).await {
            Answer::Told(_) => {
                self.core.count("credentials were given");
                self.check.invariant_credentials_are_of_what_runs_there(&self.check.tables(), before, alloc_id, node);
            }
            Answer::Refused(_) => self.core.count("credentials were refused"),
            Answer::Nothing => {}
        }
    }

    pub(super) async fn report_handles(&mut self) {
        let as_of = self.protocol.durable.as_of;
        let mut listed: Vec<ReportedHandle> = self
            .disk
            .handles
            .iter()
            .map(|(handle, label)| ReportedHandle {
                handle: handle.clone(),
                kind: if handle.starts_with("cache:") { HandleKind::Volume } else { HandleKind::Container },
                label: label.clone(),
                stays: None,
            })
            .collect();
        let partial = self.core.happens(Fault::ListingPartial);
        if partial {
            listed.truncate(listed.len() / 2);
        }
        let labels: BTreeMap<String, String> =
            listed.iter().filter_map(|h| Some((h.handle.clone(), h.label.clone()?))).collect();
        let list = HandleList { handles: listed, complete: !partial };
        let hour = self.core.now().since(self.reported_handles_at) >= AT_LEAST_EVERY;
        if hour {
            self.protocol.report_handles_again();
        }
        self.handles_at = self.later(30, 60);
        let Some(round) = self.protocol.handle_round(as_of, list) else { return };
        self.reported_handles_at = self.core.now();
        let Some(report) = self.protocol.handle_report(&round) else { return };
        self.save();
        match self.post::<HandleReportAnswer>("handles", &report).await {
            Answer::Told(answer) => {
                self.protocol.end_handle_round(&round, &answer);
                let next = self.core.now() + Span::from_ms((answer.next_report_s * 1000.0) as i64);
                self.handles_at = self.handles_at.min(next);
                let mut destroyed = false;
                for handle in &answer.destroy {
                    // As the agent does: it destroys only a handle that still has the reported label.
                    let label = self.disk.handles.get(handle).cloned().flatten();
                    if label.is_some() && label.as_ref() == labels.get(handle) {
                        destroyed |= self.destroy(handle);
                    }
                }
                if destroyed || answer.left > 0 {
                    self.handles_at = self.handles_at.min(self.later(0, 1));
                }
            }
            Answer::Refused(ErrorCode::WrongIncarnation) => {
                self.protocol.register_anew();
                self.save();
                self.heartbeat_at = self.core.now();
                self.handles_at = self.later(5, 20);
            }
            Answer::Refused(_) | Answer::Nothing => self.handles_at = self.later(5, 30),
        }
    }

    fn destroy(&mut self, handle: &str) -> bool {
        let used = match handle.parse::<AllocId>() {
            Ok(id) => self.protocol.durable.allocs.contains_key(&id) || self.processes.contains_key(&id),
            Err(_) => {
                let cache = handle.strip_prefix("cache:").unwrap_or_default();
                self.protocol.durable.allocs.values().any(|a| a.order.work.caches.iter().any(|c| c == cache))
            }
        };
        let now = self.core.now();
        if self.core.happens(Fault::HandleSticks) {
            self.stuck.insert(handle.to_owned(), now + Span::from_s(self.core.of(Fault::HandleSticks, 60, 3600)));
        }
        let stuck = self.stuck.get(handle).is_some_and(|until| now < *until) && !self.core.is_healed();
        if used || stuck {
            return false;
        }
        let label = self.disk.handles.remove(handle).flatten();
        self.check.destroying(&self.check.tables(), self.file.node_id, handle, label.as_deref());
        self.core.tell(|| self.name(), || format!("destroys {handle}"));
        self.write_ground();
        true
    }
}
