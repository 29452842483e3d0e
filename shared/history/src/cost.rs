//! What nodes cost, divided among the jobs, names, people, labels or sizes that used them.
//!
//! A node's price at a moment is divided among the allocs on it by their vCPUs. The time of a node without an alloc
//! (booting, idle, silent, going) belongs to nobody, and is a line of its own.
//!
//! Guarantees: the lines of all jobs, by whatever but sizes and reasons, and the line of nobody add up to the
//! total. The lines of sizes, and those of reasons, do so alone.
//! Does not: know a bill. It takes the prices of the policy at the launch, from the launch to the end in the table.

use super::reason::{self, NodeReason, part_of};
use super::series::total;
use super::{Charge, History, NodeLifetime, Use};
use model::{JobId, Span, Time, Usd};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// How a report is divided into lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum By {
    /// Each job.
    Job,
    /// All jobs with the same name together.
    #[default]
    Name,
    /// Each size of nodes, with its price.
    Size,
    /// Each reason for which nodes were there.
    Reason,
    /// All jobs that the same person submitted together.
    Person,
    /// All jobs of the same share together.
    Share,
    /// All jobs with the same value of this label together.
    Label(String),
}

impl TryFrom<String> for By {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        match text.split_once(':').unwrap_or((&text, "")) {
            ("job", "") => Ok(Self::Job),
            ("name", "") => Ok(Self::Name),
            ("size", "") => Ok(Self::Size),
            ("reason", "") => Ok(Self::Reason),
            ("person", "") => Ok(Self::Person),
            ("share", "") => Ok(Self::Share),
            ("label", key) if !key.is_empty() => Ok(Self::Label(key.to_owned())),
            _ => Err("it must be name, job, size, reason, person, share, or label with a key".to_owned()),
        }
    }
}

impl From<By> for String {
    fn from(by: By) -> Self {
        match by {
            By::Job => "job".to_owned(),
            By::Name => "name".to_owned(),
            By::Size => "size".to_owned(),
            By::Reason => "reason".to_owned(),
            By::Person => "person".to_owned(),
            By::Share => "share".to_owned(),
            By::Label(key) => format!("label:{key}"),
        }
    }
}

/// What a job is counted by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountedBy {
    pub name: Option<String>,
    pub by: Option<String>,
    pub share: Option<String>,
    pub labels: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CostLine {
    /// The id of a job, the name, the person or the label of jobs, or the size of nodes.
    pub what: String,
    pub name: Option<String>,
    pub market: Option<String>,
    pub price_per_hour: Option<Usd>,
    /// How many jobs, or nodes.
    pub count: usize,
    /// When the first of these jobs or nodes began, within the time of the report.
    pub from: Time,
    /// When the last of them ended, or now.
    pub to: Time,
    /// The node time that counts for this line, in seconds.
    pub node_s: i64,
    pub usd: Usd,
}

/// What the nodes of a time cost, and for whom.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub since: Time,
    pub until: Time,
    pub by: By,
    /// The most expensive first.
    pub lines: Vec<CostLine>,
    /// What nodes cost while no alloc was on them. Part of the total.
    pub without_work_usd: Usd,
    pub without_work_node_s: i64,
    pub nodes: usize,
    pub node_s: i64,
    pub total_usd: Usd,
    /// What the wanted jobs cost, if not all are.
    pub these_usd: Option<Usd>,
    /// Nodes whose price is not known. They count nothing.
    pub unpriced_nodes: usize,
    /// Whether something did not fit into memory. Then the true sums are higher.
    pub is_cut: bool,
    pub estimate: &'static str,
}

/// What every report says of itself.
const ESTIMATE: &str = "an estimate from the list prices in the policy, not a bill";

#[derive(Clone, Debug, Default)]
struct Sum {
    members: BTreeSet<String>,
    span: Option<(Time, Time)>,
    node_ms: i64,
    charge: Charge,
}

impl Sum {
    fn add(&mut self, member: String, from: Time, to: Time, node_ms: i64, charge: Charge) {
        self.members.insert(member);
        let (begin, end) = self.span.unwrap_or((from, to));
        self.span = Some((begin.min(from), end.max(to)));
        self.node_ms = self.node_ms.saturating_add(node_ms);
        self.charge += charge;
    }
}

impl Report {
    /// The report of the last `span` of a past, with lines of all jobs or of those that `takes` accepts.
    pub fn of(past: &History, span: Span, by: By, takes: Option<&dyn Fn(&CountedBy) -> bool>) -> Self {
        let (since, until) = (past.since(span), past.to);
        let mut jobs: BTreeMap<JobId, Sum> = BTreeMap::new();
        let mut sizes: BTreeMap<(String, String, Option<Usd>), Sum> = BTreeMap::new();
        let mut nobody = Sum::default();
        let (mut node_ms, mut nodes, mut unpriced_nodes) = (0i64, 0, 0);
        for life in &past.lives {
            let (from, to) = (life.from.max(since), life.to.unwrap_or(until).min(until));
            if to <= from {
                continue;
            }
            let time = to.since(from);
            (nodes, node_ms) = (nodes + 1, node_ms.saturating_add(time.as_ms()));
            unpriced_nodes += usize::from(life.price.is_none());
            let key = (
                life.size.clone().unwrap_or_else(|| "not known".to_owned()),
                life.market.clone().unwrap_or_default(),
                life.price,
            );
            let charge = Charge::of(life.price.unwrap_or_default(), time);
            sizes.entry(key).or_default().add(member(life), from, to, time.as_ms(), charge);
            share(life, past.uses_of(life), (from, to), &mut jobs, &mut nobody);
        }
        let of = |id: &JobId| past.jobs.get(id).cloned().unwrap_or_default();
        jobs.retain(|id, _| takes.is_none_or(|takes| takes(&of(id))));
        let these = takes.map(|_| jobs.values().map(|sum| sum.charge).sum::<Charge>().usd());
        let together = |jobs, what: &dyn Fn(CountedBy) -> Option<String>, none: &str| {
            together(jobs, |id| what(of(id)).unwrap_or_else(|| none.to_owned()))
        };
        let mut lines: Vec<CostLine> = match &by {
            By::Job => jobs.into_iter().map(|(id, sum)| sum.line(id.to_string(), of(&id).name)).collect(),
            By::Name => together(jobs, &|job| job.name, "(no name)"),
            By::Person => together(jobs, &|job| job.by, "(not known)"),
            By::Share => together(jobs, &|job| job.share, "(no share)"),
            By::Label(key) => together(jobs, &|mut job| job.labels.remove(key), "(no such label)"),
            By::Reason => by_reason(past, since, until),
            By::Size => sizes.into_iter().map(|(of, sum)| sum.line_of_size(of)).collect(),
        };
        lines.sort_by_key(|line| (Reverse(line.usd), Reverse(line.node_s)));
        Self {
            since,
            until,
            by,
            lines,
            without_work_usd: nobody.charge.usd(),
            without_work_node_s: nobody.node_ms / 1000,
            nodes,
            node_s: node_ms / 1000,
            total_usd: total(past, span).usd(),
            these_usd: these,
            unpriced_nodes,
            is_cut: past.is_cut,
            estimate: ESTIMATE,
        }
    }
}

impl Sum {
    fn line_of_size(self, (size, market, price_per_hour): (String, String, Option<Usd>)) -> CostLine {
        CostLine { market: Some(market).filter(|m| !m.is_empty()), price_per_hour, ..self.line(size, None) }
    }

    fn line(self, what: String, name: Option<String>) -> CostLine {
        let (from, to) = self.span.unwrap_or((Time::from_ms(0), Time::from_ms(0)));
        CostLine {
            what,
            name,
            market: None,
            price_per_hour: None,
            count: self.members.len(),
            from,
            to,
            node_s: self.node_ms / 1000,
            usd: self.charge.usd(),
        }
    }
}

fn by_reason(past: &History, since: Time, until: Time) -> Vec<CostLine> {
    let mut reasons: BTreeMap<NodeReason, Sum> = BTreeMap::new();
    for life in &past.lives {
        let (from, to) = (life.from.max(since), life.to.unwrap_or(until).min(until));
        for (reason, (ms, charge)) in reason::of(past, life, (from, to)) {
            reasons.entry(reason).or_default().add(member(life), from, to, ms, charge);
        }
    }
    reasons.into_iter().map(|(reason, sum)| sum.line(reason.text().to_owned(), None)).collect()
}

fn member(life: &NodeLifetime) -> String {
    life.node_id.map_or_else(|| format!("{}@{}", life.slot, life.from.as_ms()), |id| id.to_string())
}

/// The lines of jobs that are counted together.
fn together(jobs: BTreeMap<JobId, Sum>, what: impl Fn(&JobId) -> String) -> Vec<CostLine> {
    let mut lines: BTreeMap<String, Sum> = BTreeMap::new();
    for (id, sum) in jobs {
        if let Some((from, to)) = sum.span {
            lines.entry(what(&id)).or_default().add(id.to_string(), from, to, sum.node_ms, sum.charge);
        }
    }
    lines.into_iter().map(|(what, sum)| sum.line(what, None)).collect()
}

/// Divides the time and the price of a node between two moments among the jobs on it.
fn share(
    life: &NodeLifetime,
    uses: &[Use],
    (from, to): (Time, Time),
    jobs: &mut BTreeMap<JobId, Sum>,
    nobody: &mut Sum,
) {
    let price = life.price.unwrap_or_default();
    // Each moment at which an alloc comes or goes.
    let mut moments: Vec<(Time, bool, usize)> = Vec::new();
    for (n, used) in uses.iter().enumerate() {
        let (begin, end) = (used.from.max(from), used.to.min(to));
        if end > begin {
            moments.push((begin, true, n));
            moments.push((end, false, n));
        }
    }
    moments.sort_unstable();
    let mut there: BTreeSet<usize> = BTreeSet::new();
    let mut at = from;
    for (moment, comes, n) in moments.into_iter().chain([(to, false, usize::MAX)]) {
        let span = moment.since(at);
        if span.as_ms() > 0 {
            let charge = Charge::of(price, span);
            let weight = |n: &usize| uses.get(*n).map_or(0, |u| u64::from(u.vcpus.max(1)));
            let whole: u64 = there.iter().map(weight).sum();
            let (mut rest, mut rest_ms) = (charge, span.as_ms());
            for (k, n) in there.iter().enumerate() {
                let Some(used) = uses.get(*n) else { continue };
                // The last one gets what is left, so that nothing is lost by rounding.
                let is_last = k + 1 == there.len();
                let part = if is_last { rest } else { charge.share(weight(n), whole) };
                let ms = part_of(span.as_ms(), weight(n), whole);
                let ms = if is_last { rest_ms } else { ms };
                (rest, rest_ms) = (rest.minus(part), rest_ms - ms);
                let job = used.alloc_id.job_id;
                jobs.entry(job).or_default().add(job.to_string(), at, moment, ms, part);
            }
            if there.is_empty() {
                nobody.add(member(life), at, moment, span.as_ms(), charge);
            }
        }
        at = moment;
        if comes {
            there.insert(n);
        } else {
            there.remove(&n);
        }
    }
}
