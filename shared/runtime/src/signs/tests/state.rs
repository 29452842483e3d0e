//! The facts for the tests of signs.

use crate::signs::facts::example;
use crate::signs::{Facts, ForeseenPlan, SignLevel};
use crate::validation::InvalidRow;
use model::catalogue::Offered;
use model::control::{CatalogueRow, IngestNote, IngestSummary, ListReport, PolicyRow, RunNote, RunRow, Tally};
use model::fixtures::{self, at, job, ready};
use model::functions::{CLEAN_STALE_RECORDS, POLL_AND_SCALE};
use model::policy::example_json;
use model::quotas::quota_of;
use model::{
    ActionName, AllocSummary, Arch, Catalogue, CataloguePart, CloudError, Control, ControlKey, Event, Explanation,
    Function, Handle, JobState, JobSummary, Market, NodeRecord, NodeState, NodeStatus, Policy, Rng, Span, Subject,
    Subnet, TypeFacts, Usd, Version, functions,
};
use serde_json::json;
use store::{Ended, Table};

pub(super) const NOW: i64 = 100_000;

/// The facts as a value that tests change. At first, all is well.
pub(super) struct State {
    pub(super) control: Control,
    pub(super) nodes: Vec<NodeRecord>,
    pub(super) jobs: Vec<JobSummary>,
    pub(super) ended: Vec<Ended>,
    pub(super) allocs: Vec<AllocSummary>,
    pub(super) stuck: Vec<Handle>,
    pub(super) events: Vec<Event>,
    pub(super) explained: Explanation,
    pub(super) unready: u32,
    pub(super) away: Option<CloudError>,
    pub(super) rows: Vec<InvalidRow>,
}

impl State {
    pub(super) fn well() -> Self {
        let mut control = Control::default();
        let row = PolicyRow::of_policy(&example());
        control.policy = Some(PolicyRow { version: Version::UNWRITTEN.next(), ..row });
        for (function, _) in functions::scheduled() {
            let run = RunRow::after(function.name, None, at(NOW - 10), Span::from_s(1), Tally::default());
            control.runs.insert(function.name.into(), run);
        }
        let noted = IngestNote { since_at: Some(at(NOW - 10)), ..IngestNote::default() };
        control.put(IngestSummary::new(&ControlKey::Ingest).with(noted));
        Self {
            control,
            nodes: vec![heard(0, 10)],
            jobs: Vec::new(),
            ended: Vec::new(),
            allocs: Vec::new(),
            stuck: Vec::new(),
            events: Vec::new(),
            explained: Explanation::default(),
            unready: 0,
            away: None,
            rows: Vec::new(),
        }
    }

    pub(super) fn facts(&self) -> Facts<'_> {
        let known = ForeseenPlan::Planned(&self.explained, self.unready);
        Facts {
            nodes: &self.nodes,
            jobs: &self.jobs,
            ended: &self.ended,
            allocs: &self.allocs,
            stuck: &self.stuck,
            next: self.away.as_ref().map_or(known, ForeseenPlan::Unknown),
            events: &self.events,
            rows: self.rows.clone(),
            ..Facts::new(&self.control, at(NOW))
        }
    }

    pub(super) fn four_nodes_and_a_quota(&mut self, vcpus: u64) {
        self.nodes = (0..4).map(|n| heard(n, 10)).collect();
        self.quota(vcpus);
    }

    /// A budget of $100, and what the nodes of this month have cost.
    pub(super) fn month(&mut self, usd: u64) {
        let mut document = example_json();
        document["budget"] = json!({"dollars_per_month": 100});
        let row = PolicyRow::of_policy(&Policy::from_json(&document).unwrap());
        self.control.policy = Some(PolicyRow { version: Version::UNWRITTEN.next(), ..row });
        let (spent_month_at, spent_usd) = (Some(at(NOW).month()), Usd::from_micros(usd * 1_000_000));
        self.nodes = vec![NodeRecord { spent_month_at, spent_usd, ..fixtures::assigned(9).clean(at(1), "").unwrap() }];
    }

    /// A policy with a size of several types, and its catalogue with this change.
    pub(super) fn offers(&mut self, change: fn(&mut Catalogue)) {
        let mut document = example_json();
        document["launch"]["subnets"] = json!(["subnet-1"]);
        document["size"] = json!([{"name": "any", "instance_types": ["*"], "market": "spot", "fallback": "on_demand"}]);
        let policy = Policy::from_json(&document).unwrap();
        let facts = TypeFacts { vcpus: 2, arch: [Arch::X86_64].into(), is_current: true, ..TypeFacts::default() };
        let (zones, spot) = (["a".to_owned()].into(), [("a".to_owned(), Usd::from_micros(3))].into());
        let mut catalogue = Catalogue { wanted: policy.catalogue_wanted(), ..Catalogue::default() };
        catalogue.types.insert("m7a.large".into(), Offered { facts, zones, spot, ..Offered::default() });
        catalogue.subnets.insert("subnet-1".into(), Subnet { zone: "a".into(), free: 9 });
        for part in CataloguePart::ALL {
            catalogue.parts.entry(part).or_default().read_at = Some(at(NOW));
        }
        change(&mut catalogue);
        let row = PolicyRow::of_policy(&policy);
        self.control.policy = Some(PolicyRow { version: Version::UNWRITTEN.next(), ..row });
        self.control.catalogue = Some(CatalogueRow::of_catalogue(&catalogue));
    }

    /// A quota of this many vCPUs for the sizes of the policy.
    pub(super) fn quota(&mut self, vcpus: u64) {
        let quotas = [(quota_of(Market::OnDemand, "m7a.large"), vcpus)].into();
        self.control.catalogue = Some(CatalogueRow::of_catalogue(&Catalogue { quotas, ..Catalogue::default() }));
    }

    pub(super) fn run(&mut self, function: Function) -> &mut RunNote {
        &mut self.control.runs.get_mut(function.name).unwrap().entry
    }

    /// A row of the control table that began a minute ago, with these fields.
    pub(super) fn entry(&mut self, key: &str, s: i64, more: &[(&str, serde_json::Value)]) {
        let mut row = serde_json::json!({"key": key, "since_at": at(NOW - 60), "until_at": at(NOW + s)});
        more.iter().for_each(|(name, value)| row[*name] = value.clone());
        self.control.put(row);
    }

    /// Jobs that ended in this state, all of them `ago` seconds ago.
    pub(super) fn ended(&mut self, state: JobState, count: u32, ago: i64) {
        let ended = |n| Ended { job: JobSummary { state, ..job(n).summary }, at: at(NOW - ago) };
        self.ended.extend((0..count).map(ended));
    }

    pub(super) fn polled(&mut self, named: u64, unlisted: u64, for_s: i64) {
        let unlisted_since_at = (unlisted > 0).then(|| at(NOW - for_s));
        self.run(POLL_AND_SCALE).list =
            Some(ListReport { named, unlisted, unlisted_since_at, ..ListReport::default() });
    }

    pub(super) fn cleaned(&mut self, strangers: u32, orphans: u64, orphans_runs: u64) {
        let strangers = (0..strangers).map(|n| format!("i-stranger{n}")).collect();
        let orphans_since_at = (orphans > 0).then(|| at(NOW - 300));
        let found = ListReport { strangers, orphans, orphans_since_at, orphans_runs, ..ListReport::default() };
        self.run(CLEAN_STALE_RECORDS).list = Some(found);
    }

    /// What clean-stale-records found missing in a fleet of which poll-and-scale does not read the whole list.
    pub(super) fn lacks(&mut self, named: u64, unlisted: u64, for_s: i64) {
        let unlisted_since_at = (unlisted > 0).then(|| at(NOW - for_s));
        self.run(CLEAN_STALE_RECORDS).list =
            Some(ListReport { named, unlisted, unlisted_since_at, ..ListReport::default() });
    }

    /// A node that has been booting for this many seconds.
    pub(super) fn boots(&mut self, for_s: i64) {
        let mut node = fixtures::bound(1);
        if let NodeState::Assigned(life) = &mut node.state {
            life.assigned_at = at(NOW - for_s);
        }
        self.nodes.push(node);
    }

    pub(super) fn warned(&mut self, subject: &Subject, ago: i64) {
        let (rng, keep) = (Rng::seeded(1), Span::from_s(99));
        self.events.push(Event::new(subject, ActionName::Warn, "i-9 has no node", at(NOW - ago), keep, &rng));
    }
}

/// A ready node that was heard so many seconds ago. Its lease lasts 120 s.
pub(super) fn heard(n: u32, ago: i64) -> NodeRecord {
    let mut node = ready(n);
    if let NodeState::InUse(in_use) = &mut node.state {
        in_use.contact.last_ping_at = at(NOW - ago);
        in_use.contact.lease_expires_at = at(NOW - ago + 120);
        in_use.contact.idle_since_at = None;
    }
    node
}

/// Slot 0 has a size with 4 GPUs, of which `usable` can be used.
pub(super) fn gpus(state: &mut State, usable: u32, sick: Option<&str>) {
    state.nodes = vec![heard(0, 10)];
    if let NodeState::InUse(node) = &mut state.nodes[0].state {
        node.life.offering.capacity.gpus = 4;
        (node.contact.health.gpus_usable, node.contact.health.gpus_sick) = (usable, sick.map(str::to_owned));
    }
}

/// Slot 0 cannot end these allocs.
pub(super) fn cannot_end(state: &mut State, allocs: Option<&str>) {
    state.nodes = vec![heard(0, 10)];
    if let NodeState::InUse(node) = &mut state.nodes[0].state {
        node.contact.health.unended = allocs.map(str::to_owned);
    }
}

/// Slot 0 has called for `s` seconds, and lacks three of its four GPUs since.
pub(super) fn awaits_gpus(state: &mut State, s: i64) {
    gpus(state, 1, None);
    if let NodeState::InUse(node) = &mut state.nodes[0].state {
        let contact = &mut node.contact;
        (contact.status, contact.never_ready) = (NodeStatus::Syncing, true);
        contact.syncing_since_at = Some(at(NOW - s));
    }
}

/// Slot 0 cannot reach S3, and slot 1 has reached these services.
pub(super) fn reaches(state: &mut State, reaches: Option<&str>) {
    state.nodes = vec![heard(0, 10), heard(1, 10)];
    for (node, fails) in state.nodes.iter_mut().zip([Some("s3: no route"), None]) {
        if let NodeState::InUse(node) = &mut node.state {
            let reaches = reaches.filter(|_| fails.is_none());
            let health = &mut node.contact.health;
            (health.fails, health.reaches) = (fails.map(str::to_owned), reaches.map(str::to_owned));
        }
    }
}

pub(super) type Change = fn(&mut State);

pub(super) struct Row {
    pub(super) sign: &'static str,
    pub(super) level: SignLevel,
    /// The state that raises it.
    pub(super) raised: Change,
    /// What it says then, in parts.
    pub(super) words: &'static [&'static str],
    /// The state just before it.
    pub(super) before: Change,
    /// What is said just before it.
    pub(super) was: SignLevel,
    /// The state in which it has ended.
    pub(super) ended: Change,
}

pub(super) const fn row(
    (sign, level): (&'static str, SignLevel),
    raised: Change,
    words: &'static [&'static str],
    (before, was): (Change, SignLevel),
    ended: Change,
) -> Row {
    Row { sign, level, raised, words, before, was, ended }
}

/// A row of this table that nobody uses.
pub(super) fn invalid_row(table: Table, what: &str) -> InvalidRow {
    InvalidRow { table, subject: Subject::Cluster, what: what.to_owned() }
}
