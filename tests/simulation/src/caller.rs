//! The callers: one run of a function, one request of a node, or an operator.
//!
//! Guarantees: a caller can be killed at any of its await points. A caller remembers what it has read, so that the
//! checks can compare its writes with its reads.

use crate::core::{START, lock};
use model::policy::Size;
use model::{LaunchError, NodeId, Offering, Reach, Slot, Time};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Run(&'static str),
    Node {
        node: NodeId,
        /// The last word of the request's path.
        what: &'static str,
        body: Arc<str>,
    },
    Operator,
}

#[derive(Debug)]
pub struct Caller {
    pub kind: Kind,
    /// The caller's number in the story.
    pub number: u64,
    points: AtomicU32,
    /// The number of the await point at which the caller is killed. 0: never.
    kill_at: u32,
    killed: Notify,
    /// The life that each slot had when this caller first saw it or made it.
    pub lives: Mutex<HashMap<Slot, Option<NodeId>>>,
    /// When the caller began, in milliseconds. For a run: when it began to observe.
    began_ms: AtomicI64,
    /// The time at which the caller's last slow call returned.
    held_up_until: Mutex<Option<Time>>,
    /// For each brake: how many things the caller has taken away. Also other counts, such as launches.
    taken: Mutex<HashMap<String, usize>>,
    /// Whether the caller has read a node whose lease had not expired.
    heard: AtomicBool,
    /// The slots of the records that the caller wrote.
    wrote: Mutex<HashSet<Slot>>,
    /// The nodes whose launches EC2 refused for good. Their slots must be free at the end of the run.
    refused: Mutex<HashSet<NodeId>>,
    without: Mutex<BTreeSet<NodeId>>,
    /// The control key of each refusal that starts a limit and that EC2 gave to the caller, and its time.
    refusals: Mutex<HashMap<String, Time>>,
    /// The instances that a list showed to the caller in a state in which they do not work.
    leaving: Mutex<HashSet<String>>,
    /// The instances whose records were shutting down when the caller read or wrote them.
    shut_down: Mutex<HashSet<String>>,
    /// What the caller changed that needs an event, and the events that it wrote.
    told: Mutex<Told>,
    /// Whether a write of the caller was a conflict.
    lost: AtomicBool,
    /// Whether the caller does not know whether one of its calls was carried out.
    unsure: AtomicBool,
}

/// A change that needs an event.
#[derive(Clone, Debug)]
pub struct Change {
    /// The event is about one of these subjects.
    pub subjects: Vec<String>,
    /// The event has one of these actions.
    pub actions: &'static [&'static str],
    /// The words of the event's reason; `None` if any words will do.
    pub reason: Option<String>,
    /// The change in words, for people.
    pub what: String,
}

#[derive(Debug, Default)]
pub struct Told {
    pub changes: Vec<Change>,
    /// The subject, the action and the reason of each event.
    pub events: Vec<(String, String, String)>,
}

tokio::task_local! {
    static CALLER: Arc<Caller>;
}

impl Caller {
    /// A caller that is killed at its `kill_at`-th await point.
    pub fn new(kind: Kind, number: u64, kill_at: u32, began: Time) -> Arc<Self> {
        Arc::new(Self {
            kind,
            number,
            points: AtomicU32::new(0),
            kill_at,
            killed: Notify::new(),
            lives: Mutex::default(),
            began_ms: AtomicI64::new(began.as_ms()),
            held_up_until: Mutex::default(),
            taken: Mutex::default(),
            heard: AtomicBool::new(false),
            wrote: Mutex::default(),
            refused: Mutex::default(),
            without: Mutex::default(),
            refusals: Mutex::default(),
            leaving: Mutex::default(),
            shut_down: Mutex::default(),
            told: Mutex::default(),
            lost: AtomicBool::new(false),
            unsure: AtomicBool::new(false),
        })
    }

    /// When the caller began. A run that waits for its turn begins when it observes.
    pub fn began(&self) -> Time {
        Time::from_ms(self.began_ms.load(Ordering::Relaxed))
    }

    /// Notes that the caller begins to observe now.
    pub fn observes_from(&self, now: Time) {
        self.began_ms.store(now.as_ms(), Ordering::Relaxed);
    }

    /// Who is calling now: an operator, if no caller is set.
    pub fn current() -> Arc<Self> {
        CALLER.try_with(Arc::clone).unwrap_or_else(|_| Self::new(Kind::Operator, 0, 0, START))
    }

    /// The function that makes the call; `None` for an operator.
    pub fn function(&self) -> Option<&'static str> {
        match &self.kind {
            Kind::Run(function) => Some(function),
            Kind::Node { what, .. } => {
                model::functions::FUNCTIONS.iter().find(|f| f.routes.contains(what)).map(|f| f.name)
            }
            Kind::Operator => None,
        }
    }

    pub fn name(&self) -> String {
        match &self.kind {
            Kind::Run(function) => format!("{function} {}", self.number),
            Kind::Node { node, what, .. } => format!("node {} {what} {}", node.slot(), self.number),
            Kind::Operator => "operator".into(),
        }
    }

    /// An await point. The caller may be killed here.
    pub async fn point(&self) {
        let n = self.points.fetch_add(1, Ordering::Relaxed) + 1;
        if n == self.kill_at {
            self.killed.notify_one();
            std::future::pending::<()>().await;
        }
    }

    /// Runs `work` as this caller. Returns `None` if the caller is killed.
    pub async fn run<T>(self: &Arc<Self>, work: impl Future<Output = T>) -> Option<T> {
        let caller = Arc::clone(self);
        tokio::select! {
            biased;
            () = caller.killed.notified() => None,
            result = CALLER.scope(Arc::clone(self), work) => Some(result),
        }
    }

    /// Remembers which life a slot had when the caller first read it, because the caller decides about this life. If a
    /// list failed and was read again, the last reading counts.
    pub fn saw(&self, slot: Slot, life: Option<NodeId>, listed: bool) {
        let mut lives = lock(&self.lives);
        if listed {
            lives.insert(slot, life);
        } else {
            lives.entry(slot).or_insert(life);
        }
    }

    /// Whether the caller has read or made this life.
    pub fn knows(&self, node: NodeId) -> bool {
        lock(&self.lives).get(&node.slot()) == Some(&Some(node))
    }

    /// Notes that a call of this caller was slow and returned at `until`.
    pub fn was_held_up(&self, until: Time) {
        *lock(&self.held_up_until) = Some(until);
    }

    pub fn held_up_until(&self) -> Option<Time> {
        *lock(&self.held_up_until)
    }

    /// Notes that the caller has read a node whose lease has not expired.
    pub fn hears_somebody(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    pub fn has_heard_somebody(&self) -> bool {
        self.heard.load(Ordering::Relaxed)
    }

    /// Notes that the caller wrote a record. Returns whether the caller had written this record before.
    pub fn wrote(&self, slot: Slot) -> bool {
        !lock(&self.wrote).insert(slot)
    }

    /// How many records the caller wrote.
    pub fn written(&self) -> usize {
        lock(&self.wrote).len()
    }

    pub fn was_refused(&self, node: NodeId) {
        lock(&self.refused).insert(node);
    }

    /// Notes that EC2 was asked for an instance of this node, and whether the answer says that there is none.
    pub fn was_answered(&self, node: NodeId, has_none: bool) {
        let mut without = lock(&self.without);
        if has_none {
            without.insert(node)
        } else {
            without.remove(&node)
        };
    }

    pub fn without_instance(&self) -> Vec<NodeId> {
        lock(&self.without).iter().copied().collect()
    }

    pub fn is_refused(&self, node: NodeId) -> bool {
        lock(&self.refused).contains(&node)
    }

    /// Notes that EC2 refused a launch of this offering.
    pub fn was_told(&self, offering: &Offering, error: &LaunchError, now: Time) {
        let key = match error {
            LaunchError::Refused(refusal) => format!("limit#{}#{}", refusal.class, part(refusal.reach, offering)),
            LaunchError::Throttled(_) => "limit#throttled#account".to_owned(),
            LaunchError::Lost(_) => return,
        };
        lock(&self.refusals).insert(key, now);
    }

    pub fn refusals(&self) -> Vec<(String, Time)> {
        lock(&self.refusals).iter().map(|(key, at)| (key.clone(), *at)).collect()
    }

    /// Notes that a list showed this instance in a state in which it does not work.
    pub fn lists_as_leaving(&self, instance_id: &str) {
        lock(&self.leaving).insert(instance_id.to_owned());
    }

    pub fn has_listed_as_leaving(&self, instance_id: &str) -> bool {
        lock(&self.leaving).contains(instance_id)
    }

    /// Notes that the caller read or wrote the record of this instance as shutting down.
    pub fn shuts_down(&self, instance_id: &str) {
        lock(&self.shut_down).insert(instance_id.to_owned());
    }

    pub fn has_shut_down(&self, instance_id: &str) -> bool {
        lock(&self.shut_down).contains(instance_id)
    }

    pub fn changed(&self, change: Change) {
        lock(&self.told).changes.push(change);
    }

    pub fn told_of(&self, subject: &str, action: &str, reason: &str) {
        lock(&self.told).events.push((subject.to_owned(), action.to_owned(), reason.to_owned()));
    }

    pub fn told(&self) -> MutexGuard<'_, Told> {
        lock(&self.told)
    }

    pub fn loses(&self) {
        self.lost.store(true, Ordering::Relaxed);
    }

    pub fn has_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    pub fn is_unanswered(&self) {
        self.unsure.store(true, Ordering::Relaxed);
    }

    /// Whether the caller does not know whether one of its calls was carried out. Then events of its changes may be
    /// missing.
    pub fn is_unsure(&self) -> bool {
        self.unsure.load(Ordering::Relaxed)
    }

    /// How many things the caller has taken away so far, counted for this brake.
    pub fn taken(&self, brake: &str) -> usize {
        lock(&self.taken).get(brake).copied().unwrap_or(0)
    }

    /// Counts one more of something. Returns the new count.
    pub fn takes(&self, what: &str) -> usize {
        let mut taken = lock(&self.taken);
        let n = taken.entry(what.to_owned()).or_default();
        *n += 1;
        *n
    }
}

/// The part of an offering that a refusal with this reach is about, as in a control key.
fn part(reach: Reach, offering: &Offering) -> String {
    let Offering { market, instance_type, size, template, zone, .. } = offering;
    let subnet = offering.subnet_id.as_deref().unwrap_or("any");
    match (reach, &offering.subnet_id) {
        (Reach::Account, _) => "account".to_owned(),
        (Reach::Fleet, _) => "fleet".to_owned(),
        (Reach::Market, _) => format!("market#{market}"),
        // Each family of the simulated types has a quota of its own. The family is the letters: `w` of `w1.type`.
        (Reach::Family, _) => format!("family#{market}#{}", family(instance_type)),
        (Reach::Type, _) => format!("type#{market}#{instance_type}"),
        (Reach::Subnet, Some(subnet)) => format!("subnet#{subnet}"),
        (Reach::Subnet, None) | (Reach::Template, _) => match offering.template_version {
            Some(version) => format!("template#{template}:{version}"),
            None => format!("template#{template}"),
        },
        (Reach::Offering, _) => format!("offering#{market}#{instance_type}#{}", zone.as_deref().unwrap_or(subnet)),
        (Reach::Request, _) => format!("request#{market}#{size}#{subnet}"),
    }
}

fn family(instance_type: &str) -> &str {
    instance_type.split(|c: char| !c.is_ascii_alphabetic()).next().unwrap_or_default()
}

/// Whether the limit with this control key is about this offering.
pub fn covers(key: &str, offering: &Offering) -> bool {
    let scope = key.strip_prefix("limit#").and_then(|rest| rest.split_once('#')).map(|(_, scope)| scope);
    // What EC2 says of the call of several ways is about no way.
    let reaches = Reach::ALL.iter().filter(|reach| **reach != Reach::Fleet);
    scope.is_some_and(|scope| reaches.into_iter().any(|reach| part(*reach, offering) == scope))
}

/// The control key of a shortage of an offering.
pub fn shortage_key(offering: &Offering) -> String {
    format!("limit#short#{}", part(Reach::Offering, offering))
}

/// Whether the limit with this control key may be about some offering of this size.
pub fn may_be_about(key: &str, size: &Size) -> bool {
    let Some(scope) = key.strip_prefix("limit#").and_then(|rest| rest.split_once('#')).map(|(_, scope)| scope) else {
        return false;
    };
    let names =
        |part: &str| [size.instance_type.as_str(), family(&size.instance_type), size.name.as_str()].contains(&part);
    // Every size shares the subnets, the template and the markets.
    let is_shared = ["account", "market#", "subnet#", "template#"].iter().any(|reach| scope.starts_with(reach));
    is_shared || scope.split('#').any(names)
}
