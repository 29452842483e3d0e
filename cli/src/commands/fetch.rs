//! `fetch`: gets the outputs of a job.
//!
//! The rows of a job have its kept outputs. Partial outputs are below the place of the try's output, and only `--partial` gets
//! them.
//!
//! Guarantees: a written file has the digest that the node reported. An existing file is replaced only by the same content, or
//! with `--force`. An archive writes nothing outside its folder.
//! Does not: get a folder that a job stored at an `s3://` place of its own: the AWS CLI does.

use super::follow::of_members;
use super::job_files::place_of;
use crate::console::{Cluster, Context, Outcome, show};
use crate::view::find::Finder;
use crate::view::usage::bytes_text;
use anyhow::{Context as _, bail, ensure};
use clap::Args;
use files::{Digest, digest_of, unpack};
use model::files::Form;
use model::ids::AllocId;
use model::{Alloc, Job, StoredOutput};
use s3::S3Error;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Seek;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// The path that means every output.
const ALL: &str = ".";
/// The most bytes of a list of partial outputs: each entry is a name and a digest.
const MOST_PARTIAL: u64 = 64 << 10;

#[derive(Args, Clone, Debug)]
pub struct FetchArgs {
    /// The job: its id, a part of it, or its name
    job: String,
    /// Only this output, as --out named it; `.` is all of them
    #[arg(default_value = ".")]
    path: String,
    /// The folder to put them into
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// The member of a job of several [default: all, each in a folder member-N]
    #[arg(long, value_name = "N")]
    member: Option<u32>,
    /// Replace files that are here
    #[arg(long)]
    force: bool,
    /// Get the partial outputs of the last try whose node was lost, and not the outputs that the job keeps
    #[arg(long)]
    partial: bool,
}

/// Outputs of a member, and the alloc that stored them.
type Kept = (AllocId, Vec<StoredOutput>);

pub(crate) async fn run(context: &mut Context<'_>, args: &FetchArgs) -> anyhow::Result<Outcome> {
    let cluster = context.cluster().await?;
    let job_id = Finder::new(&cluster).job(&args.job).await?;
    let job = cluster.store.job(job_id).await?.with_context(|| format!("job {job_id} is not stored"))?;
    let given = show::one_line(&args.job);
    ensure!(!job.work.outputs.is_empty(), "job {given} keeps nothing: submit it with --out PATH");
    let members = job.summary.needs.nodes;
    if let Some(member) = args.member.filter(|member| *member >= members) {
        let last = members.saturating_sub(1);
        bail!("job {given} has no member {member}: its members are 0 to {last}");
    }
    let allocs = cluster.store.allocs_of(&job).await?.rows;
    let kept = if args.partial { partial(&cluster, &job, allocs).await? } else { of_rows(&job, allocs) };
    let mut is_found = false;
    for (alloc, outputs) in kept {
        let member = alloc.member;
        if args.member.is_some_and(|wanted| wanted != member) {
            continue;
        }
        let is_apart = job.summary.needs.nodes > 1 && args.member.is_none();
        let dir = if is_apart { args.dir.join(format!("member-{member}")) } else { args.dir.clone() };
        for output in outputs.iter().filter(|output| args.path == ALL || args.path == output.path) {
            is_found = true;
            let to = dir.join(&output.path);
            fetch(&cluster, output, &to, args).await.with_context(|| format!("{} cannot be fetched", output.path))?;
            let of = if args.partial { format!(", as try {alloc} had made it so far") } else { String::new() };
            writeln!(context.out, "{} ({}{of})", to.display(), bytes_text(output.content.bytes))?;
        }
    }
    if !is_found {
        let (state, what) = (job.summary.state, if args.path == ALL { "outputs" } else { args.path.as_str() });
        if args.partial {
            bail!("job {given} is {state}, and no try of it that was lost with its node has stored {what}");
        }
        bail!(
            "job {given} is {state} and has stored no {what}: `nodekeeper job {given}` shows what it keeps; `--partial` gets \
             what a try had made that was lost with its node"
        );
    }
    Ok(Outcome::Done)
}

/// For each member, the alloc whose outputs count: the one that succeeded, or else the last one that stored outputs.
fn of_rows(job: &Job, allocs: Vec<Alloc>) -> Vec<Kept> {
    let counts = |alloc: &Alloc| !alloc.kept.is_empty() && (job.work.keep_failed || !alloc.was_stopped());
    let kept = allocs.into_iter().filter(counts);
    let of_each = of_members(kept, |alloc| (alloc.has_succeeded(), alloc.id().copy));
    of_each.map(|alloc| (alloc.id(), alloc.kept)).collect()
}

/// For each member, the outputs of the last try that did not succeed and had stored some.
async fn partial(cluster: &Cluster, job: &Job, mut allocs: Vec<Alloc>) -> anyhow::Result<Vec<Kept>> {
    allocs.sort_by_key(|alloc| Reverse(alloc.id().copy));
    let mut found: BTreeMap<u32, Kept> = BTreeMap::new();
    for alloc in allocs.into_iter().filter(|alloc| !alloc.has_succeeded()) {
        let (id, Some(place)) = (alloc.id(), &alloc.output_s3) else { continue };
        if found.contains_key(&id.member) {
            continue;
        }
        if alloc.was_stopped() && !alloc.kept.is_empty() {
            found.insert(id.member, (id, alloc.kept));
            continue;
        }
        match cluster.outputs.get(&place.partial(), MOST_PARTIAL).await {
            Ok((_, list)) => {
                let list: Vec<StoredOutput> =
                    serde_json::from_slice(&list).with_context(|| format!("{} is no list", place.partial()))?;
                // Any node may write there, so only paths of the job's outputs are used here.
                let is_wanted = |stored: &StoredOutput| {
                    stored.to.is_none() && job.work.outputs.iter().any(|output| output.path == stored.path)
                };
                let outputs = list.into_iter().filter(is_wanted).collect();
                found.insert(id.member, (id, outputs));
            }
            // Without the permission to list the bucket, S3 denies an absent object.
            Err(S3Error::Absent | S3Error::Denied(_)) => {}
            Err(error) => return Err(error).with_context(|| place.partial().to_string()),
        }
    }
    Ok(found.into_values().collect())
}

async fn fetch(cluster: &Cluster, output: &StoredOutput, to: &Path, args: &FetchArgs) -> anyhow::Result<()> {
    let content = &output.content;
    let place = match &output.to {
        Some(place) if content.form == Form::Tree => {
            bail!("it is a folder at {place}: `aws s3 cp --recursive {place} {}` gets it", to.display())
        }
        Some(place) => place.clone(),
        None => {
            let (policy, _) = cluster.store.ingest_control().await?.checked_policy()?;
            place_of(&policy, cluster, content)?
        }
    };
    let parent = to.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).with_context(|| format!("{} cannot be made", parent.display()))?;
    if content.form != Form::Tree && !args.force && is_other(to, content.sha256())? {
        bail!("{} is here and is another file: --force replaces it, or name another folder", to.display());
    }
    let mut new = NamedTempFile::new_in(parent)?;
    cluster.outputs.get_file(&place, new.path()).await.with_context(|| place.to_string())?;
    new.as_file_mut().rewind()?;
    let Digest { sha256, .. } = digest_of(new.as_file_mut())?;
    ensure!(
        sha256 == content.sha256(),
        "{place} does not have the content that the job stored: its digest is {sha256}"
    );
    if content.form == Form::Tree {
        let is_empty = fs::read_dir(to).is_ok_and(|mut there| there.next().is_none());
        ensure!(args.force || is_empty || !to.exists(), "{} is here: --force unpacks over it", to.display());
        fs::create_dir_all(to)?;
        new.as_file_mut().rewind()?;
        return Ok(unpack(new.as_file_mut(), to)?);
    }
    let mode = if content.form == Form::Program { 0o755 } else { 0o644 };
    fs::set_permissions(new.path(), fs::Permissions::from_mode(mode))?;
    new.persist(to)?;
    Ok(())
}

/// Whether the path has anything else than this content.
fn is_other(path: &Path, sha256: &str) -> anyhow::Result<bool> {
    match fs::symlink_metadata(path) {
        Err(_) => Ok(false),
        Ok(there) if there.is_file() => Ok(digest_of(&mut File::open(path)?)?.sha256 != sha256),
        Ok(_) => Ok(true),
    }
}
