//! Finding what a person names: a job by its id, a part of its id or its name; a node by its slot, its id or its instance.
//!
//! Guarantees: a whole id needs no read; an id, or the short one that lists show, comes before a name; a text that fits several
//! things is refused, and the refusal lists them; jobs that have not ended come before those that have.
//! Does not: change anything, or check that a whole id exists: whoever reads the row says so.
//!
//! Why live jobs come first: they are read from the index of the queue, and a part is mostly copied from a list of them.
//! Only if none of them fits, every stored job is read.

use crate::console::Cluster;
use crate::console::show::{one_line, several};
use model::array::Array;
use model::ids::{AllocId, JobId, NodeId, Slot};
use model::{JobState, JobSummary, NodeRecord, NodeState};
use std::collections::{BTreeMap, BTreeSet};
use store::DbError;

/// The fewest characters of a part of an id. Fewer would fit something by chance.
const SHORTEST: usize = 4;
/// How many candidates an error lists.
const LISTED: usize = 8;
/// How many characters of an id lists show: its end, which is random.
const SHOWN: usize = 8;

/// The end of a job's id, which is enough to tell it from others. It can be given in place of the id.
pub(crate) fn short(job: JobId) -> String {
    let id = job.to_string();
    id.get(id.len().saturating_sub(SHOWN)..).unwrap_or(&id).to_owned()
}

/// The short form of an alloc's id.
pub(crate) fn short_alloc(alloc: AllocId) -> String {
    format!("{}.{}.{}", short(alloc.job_id), alloc.member, alloc.copy)
}

/// Nothing has the given name or id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotFound(String);

/// What is known of a job by which it can be found.
struct Known {
    id: JobId,
    text: String,
    name: Option<String>,
    state: JobState,
}

impl Known {
    fn of(job: &JobSummary) -> Self {
        Self { id: job.job_id, text: job.job_id.to_string(), name: job.name.clone(), state: job.state }
    }
}

/// What a text names.
enum Found {
    /// A job, by its id or a part of it.
    Id(JobId),
    /// The jobs with this name.
    Named(Vec<JobId>),
}

/// Finds jobs and nodes. Each list is read at most once.
pub(crate) struct Finder<'a> {
    cluster: &'a Cluster,
    live: Option<Vec<Known>>,
    stored: Option<Vec<Known>>,
    nodes: Option<Vec<NodeRecord>>,
}

/// A job or one of its allocs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Job(JobId),
    Alloc(AllocId),
}

impl<'a> Finder<'a> {
    pub(crate) const fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, live: None, stored: None, nodes: None }
    }

    /// The job with this id, part of an id or name.
    pub(crate) async fn job(&mut self, given: &str) -> anyhow::Result<JobId> {
        match self.found(given).await? {
            Found::Id(id) => Ok(id),
            Found::Named(jobs) => match jobs.as_slice() {
                [job] => Ok(*job),
                several => Err(self.ambiguous(given, several)),
            },
        }
    }

    /// The job with this id, part of an id or name; or all stored jobs of the array that has this name.
    pub(crate) async fn jobs(&mut self, given: &str) -> anyhow::Result<Vec<JobId>> {
        let one = match self.found(given).await? {
            Found::Id(id) => return Ok(vec![id]),
            Found::Named(jobs) => match jobs.first() {
                Some(id) if jobs.iter().all(|job| Array::of(*job) == Array::of(*id)) => *id,
                _ => return Err(self.ambiguous(given, &jobs)),
            },
        };
        self.read_stored().await?;
        let text = text_of(given);
        let named = self.stored.iter().flatten().filter(|job| job.name.as_deref() == Some(text)).map(|job| job.id);
        let of_array: BTreeSet<JobId> = named.filter(|id| Array::of(*id) == Array::of(one)).chain([one]).collect();
        Ok(of_array.into_iter().collect())
    }

    /// What a person names, by these rules. A whole id, and the short one that lists show, come before names: otherwise
    /// somebody could give a job the short id of another one as its name, and get what was meant for that. Any other part of
    /// an id fits names by chance, so that one text that is both is refused. Live jobs come before ended ones, and of ended
    /// jobs with one name, the newest is meant.
    async fn found(&mut self, given: &str) -> anyhow::Result<Found> {
        let text = text_of(given);
        let upper = text.to_ascii_uppercase();
        if let Ok(id) = upper.parse() {
            return Ok(Found::Id(id));
        }
        self.read_live().await?;
        let live = fitting(self.live.as_deref().unwrap_or_default(), text, &upper);
        // The short id of an ended job may be the name of a live one.
        let is_settled = !live.is_empty() && (live.is_short || live.named.is_empty() || !is_short_form(&upper));
        let fits = if is_settled {
            live
        } else {
            self.read_stored().await?;
            let mut stored = fitting(self.stored.as_deref().unwrap_or_default(), text, &upper);
            stored.named = stored.named.into_iter().max().into_iter().collect();
            if live.is_empty() || stored.is_short { stored } else { live }
        };
        let Fitting { parts, named, is_short } = fits;
        match (parts.as_slice(), named.as_slice()) {
            ([], []) => Err(unknown_job(text)),
            ([], _) => Ok(Found::Named(named)),
            ([id], []) => Ok(Found::Id(*id)),
            ([id], _) if is_short => Ok(Found::Id(*id)),
            // A job that has its own id as its name.
            ([id], [same]) if id == same => Ok(Found::Id(*id)),
            _ => {
                let all: BTreeSet<JobId> = parts.iter().chain(named.iter()).copied().collect();
                Err(self.ambiguous(given, &all.into_iter().collect::<Vec<_>>()))
            }
        }
    }

    fn ambiguous(&self, given: &str, ids: &[JobId]) -> anyhow::Error {
        let known = self.live.iter().flatten().chain(self.stored.iter().flatten());
        let known: BTreeMap<JobId, &Known> = known.map(|job| (job.id, job)).collect();
        let jobs: Vec<&Known> = ids.iter().filter_map(|id| known.get(id).copied()).collect();
        ambiguous(text_of(given), &jobs)
    }

    async fn read_live(&mut self) -> Result<(), DbError> {
        if self.live.is_none() {
            let live = self.cluster.store.queue_listed(usize::MAX).await?.jobs;
            self.live = Some(live.iter().map(Known::of).collect());
        }
        Ok(())
    }

    async fn read_stored(&mut self) -> Result<(), DbError> {
        if self.stored.is_none() {
            let stored = self.cluster.store.jobs_listed().await?.rows;
            self.stored = Some(stored.iter().map(|job| Known::of(&job.summary)).collect());
        }
        Ok(())
    }

    /// The job or the alloc with this id, part of an id or name. An alloc has its member and its copy at the end: `.0.0`.
    pub(crate) async fn work(&mut self, given: &str) -> anyhow::Result<Work> {
        let text = given.strip_prefix("alloc#").unwrap_or(given);
        let mut parts = text.rsplitn(3, '.');
        let (copy, member, job) = (number(parts.next()), number(parts.next()), parts.next());
        if let (Some(copy), Some(member), Some(job)) = (copy, member, job)
            && let Ok(job_id) = self.job(job).await
        {
            return Ok(Work::Alloc(AllocId { job_id, member, copy }));
        }
        self.job(text).await.map(Work::Job)
    }

    /// The slot of the node with this slot, node id, instance id or address, or a part of an id.
    pub(crate) async fn slot(&mut self, given: &str) -> anyhow::Result<Slot> {
        let text = given.strip_prefix("slot#").unwrap_or(given);
        let upper = text.to_ascii_uppercase();
        if let Ok(slot) = text.parse() {
            return Ok(slot);
        }
        if let Ok(node) = upper.parse::<NodeId>() {
            return Ok(node.slot());
        }
        if self.nodes.is_none() {
            self.nodes = Some(self.cluster.store.nodes_listed(1).await?.rows);
        }
        let lower = text.to_ascii_lowercase();
        let fits = |record: &&NodeRecord| {
            let life = record.life();
            let is_long = text.len() >= SHORTEST;
            let node = node_of(record).is_some_and(|node| is_long && node.to_string().contains(&upper));
            let instance = life.and_then(|l| l.instance_id.as_deref()).is_some_and(|i| is_long && i.contains(&lower));
            node || instance || life.and_then(|l| l.address.as_deref()) == Some(text)
        };
        // A node says its address itself: it must not be taken for another one.
        let is_instance =
            |record: &&NodeRecord| record.life().is_some_and(|l| l.instance_id.as_deref() == Some(lower.as_str()));
        let mut found: Vec<&NodeRecord> = self.nodes.iter().flatten().filter(is_instance).collect();
        if found.is_empty() {
            found = self.nodes.iter().flatten().filter(fits).collect();
        }
        match found.as_slice() {
            [] => Err(NotFound(format!(
                "no node has the slot, the id or the instance {}: `nodekeeper nodes` lists them",
                quoted(text)
            ))
            .into()),
            [record] => Ok(record.slot),
            several => {
                let slots: Vec<String> = several.iter().take(LISTED).map(|record| record.slot.to_string()).collect();
                let n = several.len();
                anyhow::bail!("{n} nodes fit {}: slots {}: give one of these numbers", quoted(text), slots.join(", "))
            }
        }
    }
}

/// No job has this id.
pub(crate) fn no_job(id: JobId) -> anyhow::Error {
    anyhow::anyhow!("there is no job {id}: `nodekeeper jobs --all` lists the jobs that are stored")
}

/// No node was ever in this slot.
pub(crate) fn no_node(slot: Slot) -> anyhow::Error {
    anyhow::anyhow!("slot {slot} has never had a node: `nodekeeper nodes --all` lists the slots that have had one")
}

/// The current node of a slot, or else its last one.
pub(crate) fn node_of(record: &NodeRecord) -> Option<NodeId> {
    match &record.state {
        NodeState::Cleaned { last_node_id } => *last_node_id,
        _ => record.node_id(),
    }
}

/// What a person gave, without the word that events put before an id.
fn text_of(given: &str) -> &str {
    given.strip_prefix("job#").unwrap_or(given)
}

/// Whether this can be the short id of a job: so many characters of those that ids have.
fn is_short_form(upper: &str) -> bool {
    upper.len() == SHOWN && upper.bytes().all(|b| b.is_ascii_alphanumeric() && !matches!(b, b'I' | b'L' | b'O' | b'U'))
}

/// The jobs that a text fits.
struct Fitting {
    /// Those whose id has this part. If it is the short id of some, only these.
    parts: Vec<JobId>,
    /// Those that have this name.
    named: Vec<JobId>,
    /// Whether the text is the short id of a job.
    is_short: bool,
}

impl Fitting {
    const fn is_empty(&self) -> bool {
        self.parts.is_empty() && self.named.is_empty()
    }
}

fn fitting(jobs: &[Known], text: &str, upper: &str) -> Fitting {
    let is_part = upper.len() >= SHORTEST && upper.bytes().all(|b| b.is_ascii_alphanumeric());
    let with =
        |fits: &dyn Fn(&Known) -> bool| jobs.iter().filter(|job| fits(job)).map(|job| job.id).collect::<Vec<_>>();
    let named = with(&|job| job.name.as_deref() == Some(text));
    let short = if is_short_form(upper) { with(&|job| job.text.ends_with(upper)) } else { Vec::new() };
    let is_short = !short.is_empty();
    let parts = if is_short { short } else { with(&|job| is_part && job.text.contains(upper)) };
    Fitting { parts, named, is_short }
}

fn number(text: Option<&str>) -> Option<u32> {
    text.filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

/// What a person typed, short and on one line.
fn quoted(text: &str) -> String {
    let shown: String = one_line(text).chars().take(80).collect();
    format!("`{shown}`")
}

fn unknown_job(text: &str) -> anyhow::Error {
    let short = if text.len() < SHORTEST {
        format!(" (a part of an id has at least {SHORTEST} characters)")
    } else {
        String::new()
    };
    let text = quoted(text);
    NotFound(format!(
        "no stored job has the id or the name {text}{short}: `nodekeeper jobs --all` lists the jobs that are stored"
    ))
    .into()
}

fn ambiguous(text: &str, jobs: &[&Known]) -> anyhow::Error {
    let mut newest: Vec<&&Known> = jobs.iter().collect();
    newest.sort_by_key(|job| std::cmp::Reverse(job.id));
    let shown = newest.iter().take(LISTED).map(|job| {
        let name = job.name.as_deref().map(|name| format!(" {}", one_line(name))).unwrap_or_default();
        format!("{}{name} ({})", job.text, job.state)
    });
    let shown: Vec<String> = shown.collect();
    let more = jobs.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    anyhow::anyhow!(
        "{} fit {}: {}{more}: give more of the id",
        several(jobs.len(), "job"),
        quoted(text),
        shown.join(", ")
    )
}
