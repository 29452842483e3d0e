//! Who calls: one run of a function, one request of a node, or an operator.
//!
//! A caller can be killed at any of its await points, and remembers what it was shown, so that
//! what it writes can be held against it.

use crate::core::{START, lock};
use model::Offering;
use model::ids::{NodeId, Slot};
use model::time::Time;
use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// What kind of caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A scheduled function.
    Run(&'static str),
    /// A node's request: whose, and what it says.
    Node {
        /// Whose.
        node: NodeId,
        /// The last word of its path.
        what: &'static str,
        /// The request's body.
        body: Arc<str>,
    },
    /// An operator.
    Operator,
}

/// See the module.
#[derive(Debug)]
pub struct Caller {
    /// What kind.
    pub kind: Kind,
    /// Its number, for the story.
    pub number: u64,
    points: AtomicU32,
    /// At which of its await points it dies; 0 for never.
    kill_at: u32,
    killed: Notify,
    /// Which life each slot had when this caller first saw it, or made it.
    pub lives: Mutex<HashMap<Slot, Option<NodeId>>>,
    /// When it began.
    pub began: Time,
    /// Until when a call of its own was last held up.
    held_up_until: Mutex<Option<Time>>,
    /// How much it took away, by brake, and what else is counted.
    taken: Mutex<HashMap<String, usize>>,
    /// Whether it was shown a node whose lease was not over.
    heard: AtomicBool,
    /// The records it wrote.
    wrote: Mutex<HashSet<Slot>>,
    /// The launches that EC2 refused it.
    refused: Mutex<HashSet<NodeId>>,
    /// What EC2 told it that it has none of, by the key it is remembered by, and when.
    short: Mutex<HashMap<String, Time>>,
    /// The instances whose records it saw, or made, shutting down.
    shut_down: Mutex<HashSet<String>>,
}

tokio::task_local! {
    static CALLER: Arc<Caller>;
}

impl Caller {
    /// A caller that dies at its `kill_at`-th await point.
    pub fn new(kind: Kind, number: u64, kill_at: u32, began: Time) -> Arc<Self> {
        Arc::new(Self {
            kind,
            number,
            points: AtomicU32::new(0),
            kill_at,
            killed: Notify::new(),
            lives: Mutex::default(),
            began,
            held_up_until: Mutex::default(),
            taken: Mutex::default(),
            heard: AtomicBool::new(false),
            wrote: Mutex::default(),
            refused: Mutex::default(),
            short: Mutex::default(),
            shut_down: Mutex::default(),
        })
    }

    /// Who is calling now; an operator where nobody said.
    pub fn current() -> Arc<Self> {
        CALLER.try_with(Arc::clone).unwrap_or_else(|_| Self::new(Kind::Operator, 0, 0, START))
    }

    /// In the story.
    pub fn name(&self) -> String {
        match &self.kind {
            Kind::Run(function) => format!("{function} {}", self.number),
            Kind::Node { node, what, .. } => format!("node {} {what} {}", node.slot(), self.number),
            Kind::Operator => "operator".into(),
        }
    }

    /// An await point: here it may die.
    pub async fn point(&self) {
        let n = self.points.fetch_add(1, Ordering::Relaxed) + 1;
        if n == self.kill_at {
            self.killed.notify_one();
            std::future::pending::<()>().await;
        }
    }

    /// Runs `work` as this caller: to its end, or `None` if it is killed.
    pub async fn run<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> Option<T> {
        let caller = Arc::clone(self);
        tokio::select! {
            biased;
            () = caller.killed.notified() => None,
            result = CALLER.scope(Arc::clone(self), work) => Some(result),
        }
    }

    /// Remembers whose life a slot had when it was first seen: what is decided is decided then. A
    /// list that failed and was read again counts as it was read last.
    pub fn saw(&self, slot: Slot, life: Option<NodeId>, listed: bool) {
        let mut lives = lock(&self.lives);
        if listed {
            lives.insert(slot, life);
        } else {
            lives.entry(slot).or_insert(life);
        }
    }

    /// Whether it saw this life on its slot, or made it.
    pub fn knows(&self, node: NodeId) -> bool {
        lock(&self.lives).get(&node.slot()) == Some(&Some(node))
    }

    /// A call of its own was held up.
    pub fn was_held_up(&self, until: Time) {
        *lock(&self.held_up_until) = Some(until);
    }

    /// Until when one was.
    pub fn held_up_until(&self) -> Option<Time> {
        *lock(&self.held_up_until)
    }

    /// It was shown a node whose lease is not over.
    pub fn hears_somebody(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// Whether it was.
    pub fn has_heard_somebody(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// It wrote a record; whether it had done so before.
    pub fn wrote(&self, slot: Slot) -> bool {
        !lock(&self.wrote).insert(slot)
    }

    /// EC2 refused it a launch for good.
    pub fn was_refused(&self, node: NodeId) {
        lock(&self.refused).insert(node);
    }

    /// Whether EC2 did.
    pub fn is_refused(&self, node: NodeId) -> bool {
        lock(&self.refused).contains(&node)
    }

    /// EC2 told it that it has none of this offering.
    pub fn was_short(&self, offering: &Offering, now: Time) {
        lock(&self.short).insert(shortage_key(offering), now);
    }

    /// What EC2 told it that it has none of, by the key it is remembered by, and when.
    pub fn shortages(&self) -> Vec<(String, Time)> {
        lock(&self.short).iter().map(|(key, at)| (key.clone(), *at)).collect()
    }

    /// It saw this instance's record shutting down, or made it so.
    pub fn shuts_down(&self, instance_id: &str) {
        lock(&self.shut_down).insert(instance_id.to_owned());
    }

    /// Whether it did.
    pub fn has_shut_down(&self, instance_id: &str) -> bool {
        lock(&self.shut_down).contains(instance_id)
    }

    /// How much it took away so far.
    pub fn taken(&self, brake: &str) -> usize {
        lock(&self.taken).get(brake).copied().unwrap_or(0)
    }

    /// Counts something it took away, or took; how much that makes.
    pub fn takes(&self, what: &str) -> usize {
        let mut taken = lock(&self.taken);
        let n = taken.entry(what.to_owned()).or_default();
        *n += 1;
        *n
    }
}

/// The key by which it is remembered that EC2 has none of an offering.
pub fn shortage_key(offering: &Offering) -> String {
    let place = offering.subnet_id.as_deref().unwrap_or("any");
    format!("shortage#{}#{}#{place}", offering.market, offering.instance_type)
}
