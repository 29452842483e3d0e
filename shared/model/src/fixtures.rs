//! Records in ordinary states, for tests here and in the functions.
//!
//! Guarantees: the same number gives the same ids and times in every test.
//! Does not: exist in a release: only tests and the feature `fixtures` compile it.
#![allow(clippy::unwrap_used, reason = "only tests use it")]

use crate::catalogue::{Catalogue, Offered, Offers, Subnet, TypeFacts};
use crate::cloud::{Instance, NODE_TAG, NewInstance};
use crate::control::{BrakeEntry, BrakePart, BrakeState};
use crate::wire::Heartbeat;
use crate::{AllocId, CapacityReservation, CloudError, ControlKey, InstanceState, JobId, NodeId, Slot, Span, Time, *};
use async_trait::async_trait;
use std::collections::{BTreeMap, BTreeSet};
use ulid::Ulid;

/// `s` seconds after the moment at which the tests begin.
pub fn at(s: i64) -> Time {
    Time::from_ms(1_800_000_000_000) + Span::from_s(s)
}

pub fn slot(n: u32) -> Slot {
    Slot::new(n).unwrap()
}

pub fn node_id(n: u32) -> NodeId {
    NodeId::new(slot(n), Ulid::from_parts(1_800_000_000_000, u128::from(n) + 1))
}

pub fn job_id(n: u32) -> JobId {
    JobId::new(Ulid::from_parts(1_800_000_000_000 + u64::from(n), u128::from(n) + 1))
}

pub fn alloc_id(n: u32) -> AllocId {
    AllocId { job_id: job_id(n), member: 0, copy: 0 }
}

pub fn offering() -> Offering {
    Offering {
        size: "small".into(),
        instance_type: "m7a.large".into(),
        market: Market::OnDemand,
        reservation: None,
        subnet_id: None,
        zone: None,
        template: "nodekeeper".into(),
        template_version: None,
        price_per_hour: Usd::from_micros(100_000),
        capacity: Capacity { vcpus: 2, memory_mib: 8192, scratch_gib: 0, gpus: 0 },
        kind: MachineKind::default(),
    }
}

pub fn new_life(n: u32) -> NewLife {
    NewLife {
        node_id: node_id(n),
        offering: offering(),
        others: Vec::new(),
        request_digest: "d1".into(),
        batch: None,
        is_whole: false,
    }
}

/// A heartbeat from the agent on this instance.
pub fn heartbeat(instance_id: &str) -> Heartbeat {
    Heartbeat {
        instance_id: instance_id.to_owned(),
        boot_id: "boot-1".into(),
        incarnation: None,
        as_of: 0,
        address: Some("10.0.0.1".into()),
        interrupt_at: None,
        health: crate::wire::NodeHealth::default(),
        uptime_ms: None,
        handles: None,
        asks: false,
    }
}

/// Slot `n`, claimed at 0 s; the launch call has no answer yet.
pub fn assigned(n: u32) -> NodeRecord {
    let mut record = NodeRecord::assign(slot(n), None, new_life(n), at(0), "a job needs it").unwrap();
    record.version = Version(1);
    record
}

/// An instance of which a launch call says only the id.
pub fn new_instance(instance_id: &str) -> NewInstance {
    NewInstance { instance_id: instance_id.to_owned(), instance_type: None, subnet_id: None, zone: None }
}

/// Slot `n`, bound to `i-n` at 1 s.
pub fn bound(n: u32) -> NodeRecord {
    assigned(n).bind(&new_instance(&format!("i-{n}")), at(1)).unwrap()
}

/// Slot `n`, ready since 60 s, with a lease until 150 s.
pub fn ready(n: u32) -> NodeRecord {
    let instance = format!("i-{n}");
    bound(n).register(&heartbeat(&instance), "inc-1", at(150), at(60)).unwrap().open_gate(at(60)).unwrap()
}

/// The running instance of this record's node.
pub fn running(instance_id: &str, record: &NodeRecord) -> Instance {
    let tag = (NODE_TAG.to_owned(), record.node_id().unwrap().to_string());
    Instance {
        instance_id: instance_id.to_owned(),
        state: InstanceState::Running,
        launched_at: at(1),
        zone: None,
        instance_type: None,
        subnet_id: None,
        tags: [tag].into(),
    }
}

impl Ending {
    /// The command ended with this exit code.
    pub fn exited(code: i32) -> Self {
        Self::new(EndCause::Exited { code })
    }
}

/// Job `n`: one vCPU, queued at `n` ms.
pub fn job(n: u32) -> Job {
    let needs = JobSpec { needs: Needs { vcpus: 1, ..Needs::default() }, ..JobSpec::running(["true"]) };
    let mut job = Job::submit(job_id(n), needs, at(0)).unwrap();
    job.summary.version = Version(1);
    job
}

/// The entry of a brake that holds these ids of one source since a time, and for ten minutes.
pub fn brake(kind: BrakeKind, source: &str, ids: Vec<String>, since_at: Time) -> BrakeEntry {
    let until_at = since_at + Span::from_s(600);
    let part = BrakePart { count: ids.len() as u64, ids, permit: 0, since_at, until_at };
    let state = BrakeState::default().with_part(source, Some(part), Some("many".into()), since_at);
    BrakeEntry::new(&ControlKey::Brake(kind)).with(state)
}

/// A provider that offers exactly this, or cannot be asked.
#[derive(Clone, Debug, Default)]
pub struct FixedOffers {
    /// Its offers, whatever is asked.
    pub of: Catalogue,
    /// Whether nothing answers.
    pub is_away: bool,
}

impl FixedOffers {
    fn say<T>(&self, what: impl Fn(&str, &Offered) -> T) -> Result<BTreeMap<String, T>, CloudError> {
        if self.is_away {
            let detail = "x".repeat(1000);
            return Err(CloudError::Unreachable { operation: "DescribeInstanceTypes", detail });
        }
        Ok(self.of.types.iter().map(|(name, offered)| (name.clone(), what(name, offered))).collect())
    }
}

#[async_trait]
impl Offers for FixedOffers {
    async fn types(&self, _: &BTreeSet<String>) -> Result<BTreeMap<String, TypeFacts>, CloudError> {
        self.say(|_, offered| offered.facts.clone())
    }
    async fn zones(&self, _: &BTreeSet<String>) -> Result<BTreeMap<String, BTreeSet<String>>, CloudError> {
        self.say(|_, offered| offered.zones.clone())
    }
    async fn prices(&self, _: &BTreeSet<String>) -> Result<BTreeMap<String, Usd>, CloudError> {
        let known = self.say(|_, offered| offered.on_demand)?;
        Ok(known.into_iter().filter_map(|(name, price)| Some((name, price?))).collect())
    }
    async fn spot_prices(&self, _: &BTreeSet<String>) -> Result<BTreeMap<String, BTreeMap<String, Usd>>, CloudError> {
        self.say(|_, offered| offered.spot.clone())
    }
    async fn subnets(&self, ids: &BTreeSet<String>) -> Result<BTreeMap<String, Subnet>, CloudError> {
        self.say(|_, _| ())?;
        let known = |id: &String| Some((id.clone(), self.of.subnets.get(id)?.clone()));
        Ok(ids.iter().filter_map(known).collect())
    }
    async fn reservations(&self, ids: &BTreeSet<String>) -> Result<BTreeMap<String, CapacityReservation>, CloudError> {
        self.say(|_, _| ())?;
        let known = |id: &String| Some((id.clone(), self.of.reservations.get(id)?.clone()));
        Ok(ids.iter().filter_map(known).collect())
    }
    async fn quotas(&self) -> Result<BTreeMap<String, u64>, CloudError> {
        self.say(|_, _| ())?;
        Ok(self.of.quotas.clone())
    }
}

/// A current type with x86_64 processors, so many vCPUs and GiB, in the zones of these spot prices (in micro-dollars). On demand it
/// costs three times the cheapest of them.
pub fn offered(vcpus: u32, gib: u64, spot: &[(&str, u64)]) -> Offered {
    let arch = [Arch::X86_64].into();
    let cheapest = spot.iter().map(|(_, micros)| *micros).min();
    Offered {
        facts: TypeFacts { vcpus, memory_mib: gib * 1024, arch, is_current: true, ..TypeFacts::default() },
        zones: spot.iter().map(|(zone, _)| (*zone).to_owned()).collect(),
        on_demand: cheapest.map(|micros| Usd::from_micros(3 * micros)),
        spot: spot.iter().map(|(zone, micros)| ((*zone).to_owned(), Usd::from_micros(*micros))).collect(),
    }
}
