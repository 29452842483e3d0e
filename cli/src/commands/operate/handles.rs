//! `handles`, `release`: containers and volumes on nodes, brakes, and limits on launches.
//!
//! Guarantees: a release names what the brake holds at this moment, releases nothing else, and expires by itself.
//! Does not: destroy anything, or release what a brake holds later.

use crate::changes::operate::{record_event, retried};
use crate::commands::show::nodes::NodeArgs;
use crate::console::show::{self, Rows, or_blank, when};
use crate::console::{Cluster, Context, Exit};
use crate::view::find::{Finder, no_node, short_alloc};
use anyhow::bail;
use clap::{Args, ValueEnum};
use model::control::{BrakeEntry, Release};
use model::{
    ActionName, AllocId, BrakeKind, ControlKey, Handle, HandleState, Life, MAX_DUE_S, NodeRecord, Span, Subject, Time,
};
use store::Listed;

/// How long a release is stored: long enough for the next run of every function.
const RELEASE: Span = Span::from_s(3600);

#[derive(Args, Clone, Debug)]
pub struct ReleaseArgs {
    /// What to release: a brake, or the limits on launches
    #[arg(value_enum)]
    kind: Releasable,
    /// List everything that is held, and release nothing
    #[arg(long)]
    show: bool,
}

/// What can be released: the brakes, by what they hold back, and the limits on launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Releasable {
    /// Expired leases, if an unusual share of the fleet expires at once
    Leases,
    /// Records of unlisted instances, if EC2 stops listing unusually many at once
    Missing,
    /// Orphans (instances that no record claims), if there are more than a few at once
    Orphans,
    /// Launches that EC2 refused, or that failed starts hold back: the next run tries them
    Launches,
}

impl Releasable {
    /// The brake; `None` for the limits on launches.
    fn brake(self) -> Option<BrakeKind> {
        self.to_possible_value()?.get_name().parse().ok()
    }
}

pub(crate) async fn list(context: &mut Context<'_>, args: &NodeArgs) -> anyhow::Result<()> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let slot = Finder::new(&cluster).slot(&args.slot).await?;
    let record = cluster.store.node(slot).await?.ok_or_else(|| no_node(slot))?;
    let listed = match record.latest_node_id() {
        Some(node) => cluster.store.handles_of(node).await?,
        None => Listed::default(),
    };
    let mut handles = show::readable(context.err, listed)?;
    let unlisted = of_allocs(&record, now).filter(|of| handles.iter().all(|row| row.handle != of.handle));
    let unlisted: Vec<Handle> = unlisted.collect();
    handles.extend(unlisted);
    handles.sort_by(|a, b| a.handle.cmp(&b.handle));
    if args.json {
        return show::json(context.out, &handles);
    }
    if handles.is_empty() {
        writeln!(context.out, "no handles on slot {slot}")?;
    }
    let cells = |handle: &Handle| {
        [
            handle.handle.clone(),
            handle.kind.to_string(),
            handle.state.to_string(),
            or_blank(handle.alloc_id.map(short_alloc)),
            when(handle.due_at, now),
        ]
    };
    let heads = ["HANDLE", "KIND", "STATE", "ALLOC", "NEXT LOOK"];
    Ok(Rows::of(&heads, handles.iter().map(cells)).colours(context.colours).print(context.out)?)
}

/// The handles of the live allocs of a node. They have no rows.
fn of_allocs(record: &NodeRecord, now: Time) -> impl Iterator<Item = Handle> {
    let of = move |life: &Life, id: &AllocId| {
        let row = Handle::of_alloc(life.node_id, *id, life.seq, now + Span::from_s(MAX_DUE_S));
        Handle { state: HandleState::Live, ..row }
    };
    record.life().into_iter().flat_map(move |life| life.allocs.iter().map(move |id| of(life, id)))
}

/// How many ids a release prints. `--show` prints all.
const PRINTED: usize = 20;

/// Whether the row of this entry exists and cannot be read.
async fn is_unreadable(cluster: &Cluster, entry: &Release) -> anyhow::Result<bool> {
    let control = cluster.store.control().await?;
    Ok(control.unreadable.iter().any(|found| found.key == entry.key))
}

/// Ends every limit on launches. The next run then tries again what EC2 refused.
async fn release_launches(
    context: &mut Context<'_>,
    cluster: &Cluster,
    args: &ReleaseArgs,
    by: &str,
) -> anyhow::Result<Exit> {
    let now = context.now();
    let limits = cluster.store.control().await?.limits(now);
    for limit in &limits {
        if !args.show {
            let change = limit.ended(now);
            match cluster.store.write_entry(&change.before, &change.after).await {
                Err(e) if e.is_conflict() => bail!(
                    "EC2 refused another launch meanwhile, or a launch succeeded: try again, `nodekeeper release launches`"
                ),
                written => _ = written?,
            }
        }
        let verb = if args.show { "limits launches" } else { "is tried again" };
        writeln!(context.out, "{verb}: {limit}")?;
    }
    if limits.is_empty() {
        writeln!(context.out, "nothing limits launches: there is nothing to release")?;
    } else if !args.show {
        let reason = format!("launches, {} limits, {by}", limits.len());
        record_event(cluster, &Subject::Cluster, ActionName::Release, &reason, now).await?;
    }
    Ok(Exit::Done)
}

/// Releases what the brake holds, but not with `--show`. Returns what it holds.
async fn release_brake(
    cluster: &Cluster,
    kind: BrakeKind,
    args: &ReleaseArgs,
    now: Time,
) -> anyhow::Result<BrakeEntry> {
    retried(async || {
        let held: BrakeEntry = cluster.store.entry(&ControlKey::Brake(kind)).await?;
        if !args.show && held.holds_back(now) && held.ids().next().is_some() {
            let before: Release = cluster.store.entry(&ControlKey::Release(kind)).await?;
            let after = before.given(&held, RELEASE, now);
            match cluster.store.write_entry(&before, &after).await {
                // A row that cannot be read counts as absent, so only this write can ever replace it.
                Err(e) if e.is_conflict() && is_unreadable(cluster, &after).await? => {
                    cluster.store.replace_unreadable(&after).await?;
                }
                written => _ = written?,
            }
        }
        Ok(held)
    })
    .await
}

pub(crate) async fn release(context: &mut Context<'_>, args: &ReleaseArgs) -> anyhow::Result<Exit> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let by = cluster.by().await?;
    let Some(kind) = args.kind.brake() else { return release_launches(context, &cluster, args, &by).await };
    let held = release_brake(&cluster, kind, args, now).await?;
    let count = held.count.filter(|_| held.holds_back(now)).unwrap_or(0);
    let ids: Vec<(&str, &str)> = held.ids().collect();
    if !held.holds_back(now) || (count == 0 && ids.is_empty()) {
        writeln!(context.out, "the brake {kind} holds nothing: there is nothing to release")?;
        return Ok(Exit::Done);
    }
    let why = held.message.as_deref().map(show::one_line).unwrap_or_default();
    if ids.is_empty() {
        let message = "no run has said yet what it holds: try again after the next run";
        writeln!(context.err, "nothing was released: the brake {kind} holds {count} ({why}), and {message}")?;
        return Ok(Exit::Failed);
    }
    let more = count.saturating_sub(ids.len() as u64);
    let first = if args.show {
        writeln!(context.out, "the brake {kind} holds {count} ({why}):")?;
        ids.len()
    } else {
        let reason = format!("{kind}, {} of {count}, {by}", ids.len());
        record_event(&cluster, &Subject::Cluster, ActionName::Release, &reason, now).await?;
        writeln!(
            context.out,
            "the next run carries out what the brake {kind} holds back ({why}): {} in all",
            ids.len()
        )?;
        PRINTED
    };
    for (_, id) in ids.iter().take(first) {
        writeln!(context.out, "  {}", show::one_line(id))?;
    }
    if ids.len() > first {
        writeln!(context.out, "  and {} more: `--show` lists all", ids.len() - first)?;
    }
    if more > 0 {
        writeln!(context.out, "{more} more are held than fit into one release: they wait for the next one")?;
    }
    Ok(Exit::Done)
}
