//! Finds what a person names: a job by its id, by the end or the beginning of its id, or by its name; a node by its slot, its
//! id, its instance or its address.
//!
//! A name may stand for an array. A command that can be about several jobs gets all of its jobs, and one that is about one job refuses
//! it: no command takes one of them in silence.
//!
//! Guarantees: a whole id needs no read. A whole id and a short id (which lists show) come before a name. A text that fits
//! several things is refused, and the error lists them. Live jobs come before ended ones. The amount that is read does not grow
//! with the number of jobs.
//! Does not: change anything. Check that a whole id exists: the reader of its row does. Find a job by the middle of its id: no
//! index can.

use crate::console::Cluster;
use crate::console::show::{one_line, several};
use anyhow::bail;
use model::array::MAX_ARRAY;
use model::{AllocId, Array, Job, JobId, JobSummary, NodeId, NodeRecord, Ranges, Slot};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use store::{DbError, Store};

/// The fewest characters of a part of an id. A shorter part would fit many ids by chance.
const SHORTEST: usize = 4;
/// The most arrays with one name that are searched for elements that ran again.
const MOST_ARRAYS: usize = 20;
/// How many candidates an error lists.
const LISTED: usize = 8;
/// The most jobs with one name that are read, the newest ones. An older one is found by its id.
const NAMED: usize = 200;
/// How many jobs whose names begin with a word are found.
const SOUGHT: usize = 50;
/// The indexes are a moment behind the table. If nothing is found, the search is repeated once after this time.
const MOMENT: Duration = Duration::from_millis(200);
/// How many characters at the beginning of an id are the same for all jobs of an array, and nearly no other job.
const ARRAY_CHARS: usize = 20;
/// The length of a short id: the last characters of an id, which are random.
const SHOWN: usize = 8;

/// The short id of a job. It can be given in place of the id.
pub(crate) fn short(job: JobId) -> String {
    let id = job.to_string();
    id.get(id.len().saturating_sub(SHOWN)..).unwrap_or(&id).to_owned()
}

pub(crate) fn short_alloc(alloc: AllocId) -> String {
    format!("{}.{}.{}", short(alloc.job_id), alloc.member, alloc.copy)
}

/// Nothing has the given name or id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NoSuch(String);

/// The jobs that a text means.
pub(crate) struct Meant {
    pub(crate) ids: Vec<JobId>,
    /// Whether a name was given, which may be that of an array.
    is_by_name: bool,
    /// Of these packs, only these elements are meant.
    packs: BTreeMap<JobId, Ranges>,
}

impl Meant {
    const fn these(ids: Vec<JobId>, is_by_name: bool) -> Self {
        Self { ids, is_by_name, packs: BTreeMap::new() }
    }

    /// The elements of these jobs. Of elements that are in several of them, those of the first one are meant.
    fn elements_of<'j>(jobs: impl IntoIterator<Item = &'j Job>) -> Self {
        let (mut ids, mut packs, mut taken) = (BTreeMap::new(), BTreeMap::new(), Ranges::default());
        for job in jobs {
            let (id, new) = (job.summary.job_id, elements(job).without(&taken));
            taken.extend(&new);
            ids.extend(new.iter().next().map(|first| (first, id)));
            if job.work.pack.is_some() && !new.is_empty() {
                packs.insert(id, new);
            }
        }
        Self { ids: ids.into_values().collect(), is_by_name: true, packs }
    }

    /// The jobs and elements of these that have one of the numbers.
    fn only(mut self, numbers: &Ranges) -> Self {
        self.packs.values_mut().for_each(|elements| *elements = elements.within(numbers));
        let has_it = |id: &JobId| match self.packs.get(id) {
            Some(elements) => !elements.is_empty(),
            None => numbers.contains(Array::number(*id)),
        };
        self.ids.retain(has_it);
        self.packs.retain(|_, elements| !elements.is_empty());
        self.is_by_name = false;
        self
    }

    /// Which elements of its array this job stands for: several only if it is a pack.
    pub(crate) fn elements(&self, job: &Job) -> Ranges {
        self.packs.get(&job.summary.job_id).cloned().unwrap_or_else(|| elements(job))
    }

    /// Whether only some elements of this job are meant.
    pub(crate) fn is_part_of(&self, job: &Job) -> bool {
        self.elements(job) != elements(job)
    }

    /// The elements of this job that are meant, if numbers were given and these are only some of its elements.
    pub(crate) fn given_part(&self, job: &Job) -> Option<Ranges> {
        (!self.is_by_name && self.is_part_of(job)).then(|| self.elements(job))
    }

    /// How many jobs the array has, or the part of it that is meant; `None`: one job is meant. Rows of ended jobs are deleted after a
    /// while, so fewer may be stored.
    pub(crate) fn array<'j>(&self, stored: impl IntoIterator<Item = &'j Job, IntoIter: Clone>) -> Option<usize> {
        let stored = stored.into_iter();
        let is_pack = stored.clone().any(|job| job.work.pack.is_some());
        let count = stored.filter(|_| self.is_by_name && !is_pack).filter_map(|job| job.summary.array_count).max();
        let (count, many) = (count.and_then(|count| usize::try_from(count).ok()), self.ids.len());
        count.map_or((many > 1).then_some(many), |count| Some(count.max(many)))
    }
}

/// The numbers of a job in its array: those of its pack, or its own.
fn elements(job: &Job) -> Ranges {
    let own = Array::number(job.summary.job_id);
    job.work.pack.as_ref().map_or_else(|| Ranges::of(own, own), |pack| pack.elements.clone())
}

enum Match {
    /// A job, by its id or a part of it.
    Id(JobId),
    /// The jobs with this name.
    Named(Vec<JobSummary>),
}

/// Finds jobs and nodes. Reads the list of nodes at most once.
pub(crate) struct Finder<'a> {
    cluster: &'a Cluster,
    /// Names are those of jobs below this id.
    below: Option<JobId>,
    nodes: Option<Vec<NodeRecord>>,
}

impl<'a> Finder<'a> {
    pub(crate) const fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, below: None, nodes: None }
    }

    /// Finds what names meant before this job was submitted.
    pub(crate) const fn before(cluster: &'a Cluster, job: JobId) -> Self {
        Self { cluster, below: Some(job), nodes: None }
    }

    /// The one job that the text means. An array of several jobs is refused: the command is about one.
    pub(crate) async fn job(&self, given: &str) -> anyhow::Result<JobId> {
        match self.meant(given).await?.ids.as_slice() {
            [id] => Ok(*id),
            ids => Err(is_array(text_of(given), ids)),
        }
    }

    /// The jobs that the text means: one, by its id, a part of its id or its name; all stored jobs of the array that has this name;
    /// or these numbers of an array, as in `NAME[3]`, `ID[0-9]` or `ID[*]`.
    pub(crate) async fn meant(&self, given: &str) -> anyhow::Result<Meant> {
        let text = text_of(given);
        let Some((array, numbers)) = numbered(text) else { return self.with_name(text).await };
        let by_number = self.of_numbers(array, &numbers).await;
        // `NAME[3]` may also be the whole name of a job.
        match (self.with_name(text).await, by_number) {
            (Err(e), by_number) if e.is::<NoSuch>() => by_number,
            (Ok(_), Ok(_)) => Err(anyhow::anyhow!(
                "{} is the name of a job, and a part of the array {}: give an id",
                quoted(text),
                quoted(array)
            )),
            (named, _) => named,
        }
    }

    /// The ids of [`Finder::meant`].
    pub(crate) async fn jobs(&self, given: &str) -> anyhow::Result<Vec<JobId>> {
        self.meant(given).await.map(|meant| meant.ids)
    }

    /// As [`Finder::jobs`], for a command that changes whole jobs: an element of a pack is an error.
    pub(crate) async fn whole_jobs(&self, given: &str) -> anyhow::Result<Vec<JobId>> {
        let meant = self.meant(given).await?;
        let packs = self.cluster.store.jobs_of(meant.packs.keys().copied()).await?.rows;
        if let Some((job, part)) = packs.iter().find_map(|job| Some((job, meant.given_part(job)?))) {
            let (id, all) = (short(job.summary.job_id), elements(job));
            bail!(
                "{part} of {} is a part of the pack {id}, whose elements {all} are one job: give {id}",
                quoted(given)
            );
        }
        Ok(meant.ids)
    }

    /// The jobs with these numbers, of the array with this name or of the array of this job. A number may be that of an element of
    /// a pack.
    async fn of_numbers(&self, array: &str, numbers: &Ranges) -> anyhow::Result<Meant> {
        let all = match self.matching(array).await? {
            Match::Named(jobs) if has_elements(&jobs) => self.of_elements(array, &jobs).await?,
            Match::Named(jobs) => Meant::these(self.of_array(array, &jobs).await?, false),
            Match::Id(id) => {
                let begin: String = id.to_string().chars().take(ARRAY_CHARS).collect();
                let found = self.cluster.store.with_beginning(&begin, MAX_ARRAY as usize).await?;
                let of_array: BTreeSet<JobId> =
                    found.ids.into_iter().filter(|n| Array::of(*n) == Array::of(id)).collect();
                let is_pack = self.cluster.store.job(id).await?.is_some_and(|job| job.work.pack.is_some());
                match is_pack {
                    true => Meant::elements_of(&self.cluster.store.jobs_of(of_array).await?.rows),
                    false => Meant::these(of_array.into_iter().collect(), false),
                }
            }
        };
        let meant = all.only(numbers);
        if meant.ids.is_empty() {
            return Err(NoSuch(format!("{} has no stored job with the number {numbers}", quoted(array))).into());
        }
        Ok(meant)
    }

    async fn with_name(&self, text: &str) -> anyhow::Result<Meant> {
        match self.matching(text).await? {
            Match::Id(id) => Ok(Meant::these(vec![id], false)),
            Match::Named(jobs) if has_elements(&jobs) => self.of_elements(text, &jobs).await,
            Match::Named(jobs) => Ok(Meant::these(self.of_array(text, &jobs).await?, true)),
        }
    }

    /// All elements with this name of the array of these jobs. Elements that ran again are an array of their own, with the same name and
    /// count: of each number, the newest is meant.
    async fn of_elements(&self, name: &str, jobs: &[JobSummary]) -> anyhow::Result<Meant> {
        let mut live: BTreeSet<Array> = jobs.iter().map(|job| Array::of(job.job_id)).collect();
        let count = jobs.iter().filter_map(|job| job.array_count).max();
        let is_whole = |jobs: &Vec<Job>| {
            let elements = jobs.iter().map(|job| elements(job).count()).sum::<u64>();
            count.is_none_or(|count| elements >= u64::from(count))
        };
        let newest = live.last().copied();
        let (mut arrays, mut below) = (BTreeMap::<Array, Vec<Job>>::new(), self.below);
        loop {
            let found = self.cluster.store.named(name, below, 1000).await?;
            below = found.ids.last().copied();
            for job in self.cluster.store.jobs_of(found.ids).await?.rows {
                if job.summary.array_count == count {
                    arrays.entry(Array::of(job.summary.job_id)).or_default().push(job);
                }
            }
            let has_whole = arrays.iter().any(|(array, jobs)| Some(*array) <= newest && is_whole(jobs));
            if has_whole || !found.more || arrays.len() > MOST_ARRAYS {
                break;
            }
        }
        // What ended and was no rerun of this array is of another one.
        arrays.retain(|array, jobs| live.contains(array) || Some(*array) < newest || !is_whole(jobs));
        let last = arrays.iter().rev().find(|(_, jobs)| is_whole(jobs)).map(|(array, _)| *array);
        arrays.retain(|array, _| Some(*array) >= last);
        live.retain(|array| !arrays.contains_key(array));
        match live.is_empty() {
            true => Ok(Meant::elements_of(arrays.values().rev().flatten())),
            false => Err(ambiguous(name, jobs)),
        }
    }

    /// All stored jobs with this name of the array of these jobs, in the order of their numbers.
    async fn of_array(&self, name: &str, jobs: &[JobSummary]) -> anyhow::Result<Vec<JobId>> {
        let array = match jobs.first().map(|job| Array::of(job.job_id)) {
            Some(array) if jobs.iter().all(|job| Array::of(job.job_id) == array) => array,
            _ => return Err(ambiguous(name, jobs)),
        };
        let last = array.job(MAX_ARRAY - 1);
        let (mut ids, mut below) = (BTreeSet::from_iter(jobs.iter().map(|job| job.job_id)), None);
        loop {
            let found = self.cluster.store.named(name, Some(below.unwrap_or(last)), 1000).await?;
            ids.extend(found.ids.iter().filter(|id| Array::of(**id) == array));
            below = found.ids.last().copied();
            if !found.more || below.is_none_or(|id| Array::of(id) != array) {
                return Ok(ids.into_iter().collect());
            }
        }
    }

    /// Finds what a text names, by these rules. A whole id and a short id come before names. Otherwise a person could name a job
    /// with the short id of another job, and get what was meant for that one. Any other part of an id can be a name by chance, so a
    /// text that is both is refused. Live jobs come before ended ones. Of the ended jobs with one name, the newest is meant.
    async fn matching(&self, text: &str) -> anyhow::Result<Match> {
        let upper = text.to_ascii_uppercase();
        if let Ok(id) = upper.parse() {
            return Ok(Match::Id(id));
        }
        let looked_up = || looked_up(&self.cluster.store, self.below, text, &upper);
        let mut jobs = looked_up().await?;
        if jobs.is_empty() {
            tokio::time::sleep(MOMENT).await;
            jobs = looked_up().await?;
        }
        let (live, ended): (Vec<JobSummary>, Vec<JobSummary>) = jobs.into_iter().partition(|job| !job.state.is_ended());
        // Even the short id of an ended job comes before the name of a live one.
        for jobs in [&live, &ended] {
            let is_short = |job: &&JobSummary| is_short_form(&upper) && job.job_id.to_string().ends_with(&upper);
            match jobs.iter().filter(is_short).collect::<Vec<_>>().as_slice() {
                [] => {}
                [job] => return Ok(Match::Id(job.job_id)),
                several => return Err(ambiguous(text, several.iter().copied())),
            }
        }
        let (jobs, have_ended) = if live.is_empty() { (ended, true) } else { (live, false) };
        let mut named: Vec<&JobSummary> = jobs.iter().filter(|job| job.name.as_deref() == Some(text)).collect();
        if have_ended {
            named = named.into_iter().max_by_key(|job| job.job_id).into_iter().collect();
        }
        let is_part = |job: &&JobSummary| {
            let id = job.job_id.to_string();
            can_be_part(&upper) && (id.ends_with(&upper) || id.starts_with(&upper))
        };
        let parts: Vec<&JobSummary> = jobs.iter().filter(is_part).collect();
        match (parts.as_slice(), named.as_slice()) {
            ([], []) => Err(unknown_job(text)),
            ([], _) => Ok(Match::Named(named.into_iter().cloned().collect())),
            ([id], []) => Ok(Match::Id(id.job_id)),
            // The name of the job is a part of its own id.
            ([id], [same]) if id.job_id == same.job_id => Ok(Match::Id(id.job_id)),
            _ => Err(ambiguous(text, parts.into_iter().chain(named))),
        }
    }

    /// The jobs that the text means; or an alloc and its job. The id of an alloc ends with its member and its copy, such as `.0.0`.
    pub(crate) async fn work(&self, given: &str) -> anyhow::Result<(Meant, Option<AllocId>)> {
        let text = given.strip_prefix("alloc#").unwrap_or(given);
        let mut parts = text.rsplitn(3, '.');
        let (copy, member, job) = (number(parts.next()), number(parts.next()), parts.next());
        if let (Some(copy), Some(member), Some(job)) = (copy, member, job)
            && let Ok(job_id) = self.job(job).await
        {
            return Ok((Meant::these(vec![job_id], false), Some(AllocId { job_id, member, copy })));
        }
        Ok((self.meant(text).await?, None))
    }

    /// As [`Finder::work`]. Several jobs are an error.
    pub(crate) async fn work_of_one(&self, given: &str) -> anyhow::Result<(JobId, Option<AllocId>)> {
        let (meant, only) = self.work(given).await?;
        match meant.ids.as_slice() {
            [id] => Ok((*id, only)),
            ids => Err(is_array(text_of(given), ids)),
        }
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
            let node = record.latest_node_id().is_some_and(|node| is_long && node.to_string().contains(&upper));
            let instance = life.and_then(|l| l.instance_id.as_deref()).is_some_and(|i| is_long && i.contains(&lower));
            node || instance || life.and_then(|l| l.address.as_deref()) == Some(text)
        };
        // A node reports its address itself, so the address must not hide the instance of another node.
        let is_instance =
            |record: &&NodeRecord| record.life().is_some_and(|l| l.instance_id.as_deref() == Some(lower.as_str()));
        let mut found: Vec<&NodeRecord> = self.nodes.iter().flatten().filter(is_instance).collect();
        if found.is_empty() {
            found = self.nodes.iter().flatten().filter(fits).collect();
        }
        match found.as_slice() {
            [] => Err(NoSuch(format!(
                "no node has the slot, the id or the instance {}: `nodekeeper nodes` lists them",
                quoted(text)
            ))
            .into()),
            [record] => Ok(record.slot),
            several => {
                let slots: Vec<String> = several.iter().take(LISTED).map(|record| record.slot.to_string()).collect();
                let n = several.len();
                bail!("{n} nodes fit {}: slots {}: give one of these numbers", quoted(text), slots.join(", "))
            }
        }
    }
}

pub(crate) fn no_job(id: JobId) -> anyhow::Error {
    anyhow::anyhow!("there is no job {id}: `nodekeeper jobs --all` lists the jobs that are stored")
}

pub(crate) fn no_node(slot: Slot) -> anyhow::Error {
    anyhow::anyhow!("slot {slot} has never had a node: `nodekeeper nodes --all` lists the slots that have had one")
}

/// The text without the prefix that events put before an id.
fn text_of(given: &str) -> &str {
    given.strip_prefix("job#").unwrap_or(given)
}

/// The name or the id in `NAME[3]`, `ID[0-9]` or `ID[*]`, and the numbers.
fn numbered(text: &str) -> Option<(&str, Ranges)> {
    let (array, numbers) = text.strip_suffix(']')?.rsplit_once('[')?;
    let numbers = if numbers == "*" { Ranges::of(0, MAX_ARRAY - 1) } else { numbers.parse().ok()? };
    Some((array, numbers)).filter(|(array, _)| !array.is_empty())
}

fn has_elements(jobs: &[JobSummary]) -> bool {
    jobs.iter().any(|job| job.array_count.is_some())
}

/// Whether this can be the short id of a job: it has the length, and only characters of ULIDs.
fn is_short_form(upper: &str) -> bool {
    upper.len() == SHOWN && upper.bytes().all(|b| b.is_ascii_alphanumeric() && !matches!(b, b'I' | b'L' | b'O' | b'U'))
}

/// Whether this can be a part of an id, and is long enough to search for.
fn can_be_part(upper: &str) -> bool {
    upper.len() >= SHORTEST && upper.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// The stored jobs with this name, and those whose id begins or ends with this text.
async fn looked_up(store: &Store, below: Option<JobId>, text: &str, upper: &str) -> Result<Vec<JobSummary>, DbError> {
    let mut ids = store.named(text, below, NAMED).await?.ids;
    ids.truncate(NAMED);
    ids.extend(with_part(store, upper).await?);
    let read = store.jobs_of(ids).await?;
    Ok(read.rows.into_iter().map(|job| job.summary).collect())
}

/// The jobs that one word of a search may mean: by a part of an id, or by the beginning of a name.
pub(crate) async fn sought(store: &Store, word: &str) -> Result<Vec<JobId>, DbError> {
    let mut ids = store.with_names_beginning(word, SOUGHT).await?.ids;
    ids.truncate(SOUGHT);
    ids.extend(with_part(store, &word.to_ascii_uppercase()).await?);
    Ok(ids)
}

/// The stored jobs whose id ends with this text. If it is not the short id of a job, also those whose id begins with it.
async fn with_part(store: &Store, upper: &str) -> Result<Vec<JobId>, DbError> {
    if !can_be_part(upper) {
        return Ok(Vec::new());
    }
    let mut ids = store.with_end(upper).await?;
    if !is_short_form(upper) || ids.is_empty() {
        ids.extend(store.with_beginning(upper, LISTED).await?.ids);
    }
    ids.truncate(NAMED);
    Ok(ids)
}

fn number(text: Option<&str>) -> Option<u32> {
    text.filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()
}

/// The given text for a message: short and on one line.
fn quoted(text: &str) -> String {
    let shown: String = one_line(text).chars().take(80).collect();
    format!("`{shown}`")
}

fn unknown_job(text: &str) -> anyhow::Error {
    let is_short = text.len() < SHORTEST;
    let short = format!(" (a part of an id has at least {SHORTEST} characters)");
    let (text, short) = (quoted(text), if is_short { short.as_str() } else { "" });
    let see = "`nodekeeper jobs --all` lists the jobs that are stored";
    NoSuch(format!("no stored job has the id or the name {text}{short}: {see}")).into()
}

/// A command that is about one job got an array.
pub(crate) fn is_array(text: &str, ids: &[JobId]) -> anyhow::Error {
    let numbers: Ranges = ids.iter().map(|id| Array::number(*id)).collect();
    let first = ids.first().map_or(0, |id| Array::number(*id));
    let name = one_line(text);
    let all = numbers.to_string();
    let shown = all.split(',').take(LISTED).collect::<Vec<_>>().join(",");
    let more = if shown.len() < all.len() { " and more" } else { "" };
    anyhow::anyhow!(
        "{} is an array of {} jobs: name one of them, such as `{name}[{first}]` (its numbers are `{shown}`{more})",
        quoted(text),
        ids.len(),
    )
}

fn ambiguous<'a>(text: &str, jobs: impl IntoIterator<Item = &'a JobSummary>) -> anyhow::Error {
    let mut newest: Vec<&JobSummary> = jobs.into_iter().collect();
    newest.sort_by_key(|job| std::cmp::Reverse(job.job_id));
    newest.dedup_by_key(|job| job.job_id);
    let shown = newest.iter().take(LISTED).map(|job| {
        let name = job.name.as_deref().map(|name| format!(" {}", one_line(name))).unwrap_or_default();
        format!("{}{name} ({})", job.job_id, job.state)
    });
    let shown: Vec<String> = shown.collect();
    let more = newest.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    anyhow::anyhow!(
        "{} fit {}: {}{more}: give more of the id",
        several(newest.len(), "job"),
        quoted(text),
        shown.join(", ")
    )
}
