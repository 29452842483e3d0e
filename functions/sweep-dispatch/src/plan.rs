//! The decision of a scheduled sweep: what is due, and what becomes of it. Pure.
//!
//! Guarantees: a container is marked only after its alloc is final, a cache only after it was
//! unused for its time; what an operator keeps is kept; every row gets a next look at most a
//! day ahead. Does not: judge what reports say; the report does.

use shared::events::Subject;
use shared::model::{AllocSummary, Handle, HandleKind, HandleState, MAX_DUE_S, NodeRecord};
use shared::observation::Observation;
use shared::run::{PlanAnswer, PlanRow};
use shared::time::{Span, Time};

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Mark it for destruction: its node is told.
    MarkDestroying(Handle),
    /// Look again later.
    Wait(Handle, Box<Handle>),
    /// Forget a tombstone.
    ForgetHandle(Handle),
    /// Delete the row of a node that is no more.
    Purge(Handle),
}

/// One action and its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// What.
    pub action: Action,
    /// Why.
    pub reason: String,
}

/// What one run decided.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In order.
    pub actions: Vec<Planned>,
}

impl Plan {
    fn add(&mut self, action: Action, reason: impl Into<String>) {
        self.actions.push(Planned { action, reason: reason.into() });
    }

    /// As `plan` answers it: looking again later is no action.
    pub fn answer(&self) -> PlanAnswer {
        let actions = self.actions.iter().filter(|p| !matches!(p.action, Action::Wait(..)));
        PlanAnswer { actions: actions.map(Planned::row).collect(), ..PlanAnswer::default() }
    }
}

impl Planned {
    fn handle(&self) -> &Handle {
        match &self.action {
            Action::MarkDestroying(h) | Action::Wait(h, _) | Action::ForgetHandle(h) | Action::Purge(h) => h,
        }
    }

    /// What its event is about.
    pub fn subject(&self) -> Subject {
        Subject::Slot(self.handle().node_id.slot())
    }

    /// As a row of a plan.
    pub fn row(&self) -> PlanRow {
        let handle = self.handle();
        PlanRow {
            action: match &self.action {
                Action::MarkDestroying(_) => "mark_destroying",
                Action::Wait(..) => "hold_back",
                Action::ForgetHandle(_) => "forget_handle",
                Action::Purge(_) => "purge",
            },
            subject: self.subject().to_string(),
            slot: Some(handle.node_id.slot()),
            node_id: Some(handle.node_id),
            alloc_id: handle.alloc_id,
            job_id: handle.alloc_id.map(|a| a.job_id),
            handle: Some(handle.handle.clone()),
            reason: self.reason.clone(),
            ..PlanRow::default()
        }
    }
}

/// Decides. `now` is the time of the decision.
pub fn plan(seen: &Observation, now: Time) -> Plan {
    let mut plan = Plan::default();
    for handle in seen.handles.iter().filter(|h| h.due_at <= now) {
        let record = seen.nodes.iter().find(|n| n.slot == handle.node_id.slot());
        let on_node = |a: &&AllocSummary| a.node_id == handle.node_id;
        one(&mut plan, seen, now, handle, record, seen.allocs.iter().filter(on_node));
    }
    plan
}

fn one<'a>(
    plan: &mut Plan,
    seen: &Observation,
    now: Time,
    handle: &Handle,
    record: Option<&NodeRecord>,
    mut allocs: impl Iterator<Item = &'a AllocSummary>,
) {
    let later = |after: Handle| Action::Wait(handle.clone(), Box::new(after));
    let tomorrow = Handle { due_at: now + Span::from_s(MAX_DUE_S), ..handle.clone() };
    let life = record.and_then(NodeRecord::life).filter(|l| l.node_id == handle.node_id);
    let Some(life) = life else {
        // Another life has the slot, or none: this one's machine is gone. A record that is missing
        // or older is a restored table: the row is left for a day, and goes by itself if the record
        // does not come back.
        let over = record.is_some_and(|r| match (&r.state, r.life()) {
            (_, Some(l)) => l.node_id.life() > handle.node_id.life(),
            (shared::model::NodeState::Cleaned { last_node_id }, _) => {
                last_node_id.is_some_and(|l| l.life() >= handle.node_id.life())
            }
            _ => false,
        });
        if over {
            plan.add(Action::Purge(handle.clone()), format!("node {} is no more", handle.node_id));
        } else {
            let expires_at = handle.expires_at.or_else(|| Some((now + Span::from_s(MAX_DUE_S)).as_epoch_s()));
            let after = Handle { expires_at, due_at: now + Span::from_s(MAX_DUE_S / 2), ..handle.clone() };
            plan.add(later(after), "the record of its node is missing or older");
        }
        return;
    };
    if handle.state != HandleState::Gone && handle.expires_at.is_some() {
        plan.add(later(Handle { expires_at: None, due_at: now, ..handle.clone() }), "its node is known again");
        return;
    }
    if handle.keep {
        plan.add(later(tomorrow), "an operator keeps it");
        return;
    }
    match handle.state {
        HandleState::Gone => plan.add(Action::ForgetHandle(handle.clone()), "destroyed a while ago"),
        HandleState::Destroying => plan.add(later(tomorrow), "waits for its node's report"),
        HandleState::Unknown => plan.add(later(tomorrow), "nobody ordered it: waits for a later report"),
        HandleState::Creating | HandleState::Live => match handle.alloc_id {
            // The record says which allocs are live, for certain.
            Some(alloc) if life.allocs.contains(&alloc) => plan.add(later(tomorrow), "its alloc is live"),
            Some(alloc) => plan.add(Action::MarkDestroying(handle.clone()), format!("{alloc} has ended")),
            None if handle.kind == HandleKind::Volume => {
                let unused = Span::from_s(seen.policy.sweep.cache_unused_s);
                let look = unused.min(Span::from_s(MAX_DUE_S));
                // Which caches an alloc uses is not in the index: any live alloc counts.
                let in_use = allocs.next().is_some() || !life.allocs.is_empty();
                match handle.deadline_at {
                    _ if in_use => {
                        let after = Handle { due_at: now + look, deadline_at: None, ..handle.clone() };
                        plan.add(later(after), "its node has work");
                    }
                    Some(by) if handle.state == HandleState::Live && now >= by => {
                        plan.add(Action::MarkDestroying(handle.clone()), format!("a cache unused for {unused}"));
                    }
                    Some(by) if handle.state == HandleState::Creating && now >= by => {
                        plan.add(Action::MarkDestroying(handle.clone()), "it never appeared");
                    }
                    Some(by) => {
                        let after = Handle { due_at: by.min(now + look), ..handle.clone() };
                        plan.add(later(after), "not unused for long enough");
                    }
                    None => {
                        let after = Handle { due_at: now + look, deadline_at: Some(now + unused), ..handle.clone() };
                        plan.add(later(after), "unused from now on");
                    }
                }
            }
            None => plan.add(Action::MarkDestroying(handle.clone()), "it belongs to no alloc"),
        },
    }
}
