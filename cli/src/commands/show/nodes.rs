//! `nodes`, `node`, `hold`, `drain`, `resume`.
//!
//! Guarantees: an intent belongs to the current life of the slot and ends with it.
//! Does not: shut anything down. poll-and-scale reads the intent and shuts nodes down.

use crate::changes::change_intent;
use crate::console::show::{self, Rows, moment, or_blank, when, when_some};
use crate::console::{Cluster, Context, Exit, UsageError};
use crate::view::find::{Finder, no_node, short_alloc};
use crate::view::next;
use crate::view::present::{COUNTED, Snapshot};
use crate::view::{node_row, what_if, with};
use anyhow::bail;
use clap::Args;
use model::amounts::Moment;
use model::{Alloc, Intent, NodeRecord, Span, Time};
use serde_json::json;
use std::collections::BTreeMap;

#[derive(Args, Clone, Debug)]
pub struct NodesArgs {
    /// Also show free slots
    #[arg(long)]
    all: bool,
    /// Show the list again and again, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    pub(crate) watch: bool,
    /// Print JSON: every slot, also free ones
    #[arg(long)]
    json: bool,
}

/// `node`, `handles`
#[derive(Args, Clone, Debug)]
pub struct NodeArgs {
    /// The slot's number, or the id of its node or instance, or a part of it
    #[arg(value_name = "NODE")]
    pub(crate) slot: String,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `hold`, `resume`
#[derive(Args, Clone, Debug)]
pub struct IntentArgs {
    /// The slots' numbers, or the ids of their nodes or instances, or parts of them
    #[arg(value_name = "NODE", required = true)]
    pub(crate) slots: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub struct DrainArgs {
    #[command(flatten)]
    nodes: IntentArgs,
    /// Stop what still runs there in time, so that the node is empty by then: 30m, or a time. By default every job runs to its end
    #[arg(long, value_name = "WHEN")]
    by: Option<Moment>,
}

/// Lists the nodes.
pub(crate) async fn list(context: &mut Context<'_>, args: &NodesArgs) -> anyhow::Result<Exit> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let mut present = Snapshot::read(&cluster.store, cluster.cloud.as_ref(), COUNTED, now).await?;
    show::unreadable(context.err, &present.bad_nodes)?;
    let mut records = std::mem::take(&mut present.nodes);
    records.sort_by_key(|r| r.slot);
    if args.json {
        let (names, next) = (present.names(), present.next.as_ref().ok());
        let rows = records.iter().map(|record| node_row(record, next, &names));
        show::json(context.out, &rows.collect::<Vec<_>>())?;
    }
    let up = records.iter().any(|r| !r.is_cleaned());
    let next = if up { next::for_list(present.next, context.err)? } else { None };
    if args.json {
        return Ok(Exit::Done);
    }
    let free = records.iter().filter(|r| r.is_cleaned()).count();
    if !args.all {
        records.retain(|r| !r.is_cleaned());
    }
    let heads =
        ["SLOT", "STATE", "STATUS", "SIZE", "TYPE", "MARKET", "INSTANCE", "INTENT", "ALLOCS", "HEARD FROM"].into_iter();
    let cells = |record: &NodeRecord| {
        cells(record, now).into_iter().chain([or_blank(next.as_ref().and_then(|n| n.of_slot(record.slot)))])
    };
    let rows = Rows::of(&heads.chain(["REASON", "NEXT"]).collect::<Vec<_>>(), records.iter().map(cells));
    rows.colours(context.colours).print(context.out)?;
    if !args.all && free > 0 {
        writeln!(context.out, "{} not shown (--all)", show::several(free, "free slot"))?;
    } else if records.is_empty() {
        writeln!(context.out, "no nodes yet")?;
    }
    Ok(Exit::Done)
}

fn cells(record: &NodeRecord, now: Time) -> [String; 11] {
    let life = record.life();
    [
        record.slot.to_string(),
        record.state_name().to_string(),
        or_blank(record.status()),
        or_blank(life.map(|l| &l.offering.size)),
        or_blank(life.map(|l| &l.offering.instance_type)),
        or_blank(life.map(|l| l.offering.market)),
        or_blank(life.and_then(|l| l.instance_id.as_ref())),
        or_blank(life.map(|l| l.intent).filter(|i| *i != Intent::Run)),
        or_blank(life.map(|l| l.allocs.len())),
        // The node may send a heartbeat after this command has read its clock.
        when_some(record.contact().map(|c| c.last_ping_at.min(now)), now),
        record.why(),
    ]
}

pub(crate) async fn show(context: &mut Context<'_>, args: &NodeArgs) -> anyhow::Result<()> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let slot = Finder::new(&cluster).slot(&args.slot).await?;
    let record = cluster.store.node(slot).await?.ok_or_else(|| no_node(slot))?;
    let up = !record.is_cleaned();
    let next = if up { next::for_list(cluster.next(now).await, context.err)? } else { None };
    if args.json {
        let row = with(node_row(&record, next.as_ref(), &BTreeMap::new()), json!({ "record": record }));
        return show::json(context.out, &row);
    }
    let mut fields = fields(&record, now);
    fields.field("next", next.as_ref().and_then(|n| n.of_slot(slot)));
    let changes = next.as_ref().map(|next| what_if::for_node(&next.observed, slot, now)).unwrap_or_default();
    fields.fields("goes if", "or if", changes);
    fields.colours(context.colours).print(context.out)?;
    let ids = record.life().map(|l| l.allocs.clone()).unwrap_or_default();
    if !ids.is_empty() {
        let mut allocs = show::readable(context.err, cluster.store.allocs_listed(ids.iter().copied()).await?)?;
        allocs.sort_by_key(|a| a.id());
        let cells = |alloc: &Alloc| {
            let seen = &alloc.summary;
            [
                short_alloc(seen.alloc_id),
                seen.desired.to_string(),
                seen.client.to_string(),
                seen.needs.capacity().to_string(),
                when(seen.placed_at, now),
                show::command(&alloc.work.command),
            ]
        };
        let heads = ["ALLOC", "DESIRED", "CLIENT", "NEEDS", "PLACED", "COMMAND"];
        let rows = Rows::of(&heads, allocs.iter().map(cells));
        writeln!(context.out)?;
        rows.colours(context.colours).print(context.out)?;
    }
    Ok(())
}

fn fields(record: &NodeRecord, now: Time) -> Rows {
    let mut rows = Rows::new(&[]);
    rows.field("slot", Some(record.slot));
    rows.field("state", Some(record.state_name()));
    rows.field("status", record.status());
    rows.field("reason", Some(&record.reason).filter(|r| !r.is_empty()));
    rows.field("changed", Some(moment(record.modified_at, now)));
    if let Some(life) = record.life() {
        let o = &life.offering;
        rows.field("node", Some(life.node_id));
        rows.field("intent", Some(life.intent));
        rows.field("drains by", life.drain_by_at.map(|at| moment(at, now)));
        let kind = show::kind(o.capacity, &o.kind);
        rows.field("size", Some(format!("{}: {}, {kind}", o.size, o.instance_type)));
        rows.field("market", Some(format!("{}, {} an hour", o.market, o.price_per_hour)));
        rows.field("zone", o.zone.as_ref());
        rows.field("instance", life.instance_id.as_ref());
        rows.field("unlisted since", life.absent_since_at.map(|at| moment(at, now)));
        rows.field("address", life.address.as_ref());
        rows.field("assigned", Some(moment(life.assigned_at, now)));
    }
    if let Some(contact) = record.contact() {
        rows.field("first heard from", Some(moment(contact.first_ping_at, now)));
        rows.field("last heard from", Some(moment(contact.last_ping_at, now)));
        rows.field("lease ends", Some(moment(contact.lease_expires_at, now)));
        rows.field("busy", contact.health.busy.then_some("yes: its agent says so"));
        rows.field("takes no work", record.refuses());
        rows.field("GPUs", record.sick_gpus());
        rows.field("since", contact.refuses_since_at.map(|at| moment(at, now)));
        rows.field("idle since", contact.idle_since_at.map(|at| moment(at, now)));
    }
    rows
}

pub(crate) async fn drain(context: &mut Context<'_>, args: &DrainArgs) -> anyhow::Result<Exit> {
    let now = context.now();
    let by = args.by.map(|by| by.after(now));
    if let Some(over) = by.filter(|by| *by < now) {
        let over = moment(over, now);
        let message =
            format!("--by {over}: that time is over: leave --by out, or say --by 0s to stop what runs there now");
        bail!(UsageError(message));
    }
    intend(context, &args.nodes.slots, Intent::Drain, by).await
}

/// Until when a node is drained, and when what runs there is told to stop: poll-and-scale does it in its last run before the time
/// that the stop takes.
async fn stops(cluster: &Cluster, record: &NodeRecord, now: Time) -> anyhow::Result<String> {
    let Some((life, by)) = record.life().and_then(|life| Some((life, life.drain_by_at?))) else {
        return Ok(String::new());
    };
    let allocs = cluster.store.allocs_listed(life.allocs.iter().copied()).await?.rows;
    let first = allocs.iter().map(|alloc| by - alloc.summary.failure_policy.stop_time()).min();
    let what = match first {
        None => "nothing runs there".to_owned(),
        Some(at) if at <= now + Span::from_s(60) => {
            "what runs there is told to stop now, and its jobs run elsewhere".to_owned()
        }
        Some(at) => {
            format!("what still runs in the minute before {} is told to stop, and runs elsewhere", moment(at, now))
        }
    };
    Ok(format!(", by {}: {what}", moment(by, now)))
}

/// Sets the intent of these nodes. `by` is the deadline of a drain.
pub(crate) async fn intend(
    context: &mut Context<'_>,
    slots: &[String],
    intent: Intent,
    by: Option<Time>,
) -> anyhow::Result<Exit> {
    let cluster = context.cluster().await?;
    let (already, done) = match intent {
        Intent::Hold => ("is held already", "held: it stays up and takes no new work"),
        Intent::Drain => ("is being drained already", "drains: it takes no new work and is shut down when idle"),
        Intent::Run => ("is neither held nor drained", "takes work again"),
    };
    let (mut all, mut finder) = (true, Finder::new(&cluster));
    for given in slots {
        let now = context.now();
        let changed = async {
            let slot = finder.slot(given).await?;
            let record = change_intent(&cluster, slot, intent, by, now).await?;
            let stops = if let Some(record) = &record { stops(&cluster, record, now).await? } else { String::new() };
            anyhow::Ok((slot, record.map(|_| stops)))
        };
        match changed.await {
            Ok((slot, Some(stops))) => writeln!(context.out, "slot {slot} {done}{stops}")?,
            Ok((slot, None)) => writeln!(context.out, "nothing changed: slot {slot} {already}")?,
            // An error with one slot does not stop the others.
            Err(e) => {
                all = false;
                writeln!(context.err, "nodekeeper: {}", show::error(&e))?;
            }
        }
    }
    Ok(Exit::done_if(all))
}
