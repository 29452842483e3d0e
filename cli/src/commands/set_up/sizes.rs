//! `sizes`: which machines the sizes of a policy mean today, at which prices, and how much of the account's quotas is used.
//!
//! Guarantees: a price or a quota is one that AWS told. An unknown value is shown as unknown, or left out.
//! Does not: store anything, or say which machine the next launch takes. The plan does, and it knows what EC2 refuses.

use super::policy::{self, ask, remark};
use crate::console::show::{self, Rows};
use crate::console::{Context, Exit};
use clap::Args;
use model::machine::memory;
use model::policy::{Fallback, Size};
use model::quotas::{self, QuotaUse, quota_of};
use model::{Catalogue, CataloguePart, Market, Policy, Usd};
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

#[derive(Args, Clone, Debug)]
pub struct SizesArgs {
    /// Show the sizes of this policy, and not those of the stored one
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An instance type that a size may be.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct SizeRow {
    size: String,
    instance_type: String,
    arch: String,
    vcpus: u32,
    memory_mib: u64,
    gpus: u32,
    gpu_type: Option<String>,
    market: Market,
    /// The capacity reservation, if the market is `reserved`.
    reservation: Option<String>,
    /// The price for launches, in dollars an hour. `None` if it is not known: then none is launched.
    price_per_hour: Option<Usd>,
    /// The on-demand price of the price list.
    on_demand: Option<Usd>,
    /// The spot prices by zone.
    spot: BTreeMap<String, Usd>,
    zones: BTreeSet<String>,
    /// Differences from EC2, and other remarks.
    notes: Vec<String>,
}

pub(crate) async fn run(context: &mut Context<'_>, args: &SizesArgs) -> anyhow::Result<Exit> {
    let cluster = context.cluster().await?;
    let control = cluster.store.control().await?;
    let policy = match &args.file {
        Some(file) => policy::read(file)?,
        None => control.checked_policy()?.0,
    };
    let now = context.now();
    let catalogue = ask(&cluster, &policy, now).await?;
    let mut rows = rows_of(&policy, &catalogue);
    let is_complete = compare_typed(&mut rows, &policy, &catalogue);
    rows.sort_by(|a, b| order(a).cmp(&order(b)));
    let mut quotas = quotas::used(&catalogue.quotas, &cluster.store.nodes().await?);
    // The quotas of both markets are shown, whichever market a row has.
    let markets = [Market::OnDemand, Market::Spot];
    let counted: BTreeSet<_> =
        rows.iter().flat_map(|row| markets.map(|market| quota_of(market, &row.instance_type))).collect();
    quotas.retain(|quota| counted.contains(quota.quota.as_str()));
    if args.json {
        show::json(context.out, &json!({ "sizes": rows, "quotas": quotas }))?;
    } else {
        print(context, &rows, &quotas)?;
    }
    let is_right = remark(context, &policy.with_catalogue(catalogue))?;
    Ok(Exit::done_if(is_right && is_complete))
}

/// A price per hour, with as many digits as AWS gives.
fn price(usd: Usd) -> String {
    format!("${:.4}", f64::from(usd))
}

/// The order of the lines: by size, the cheapest first, and rows without a known price last.
fn order(row: &SizeRow) -> impl Ord + use<'_> {
    (row.size.as_str(), row.price_per_hour.is_none(), row.price_per_hour, row.instance_type.as_str())
}

/// The rows of each size by this catalogue.
fn rows_of(policy: &Policy, catalogue: &Catalogue) -> Vec<SizeRow> {
    let known = policy.clone().with_catalogue(catalogue.clone());
    let mut rows: Vec<SizeRow> = known.size.iter().map(|size| row(size, catalogue)).collect();
    for several in &policy.several {
        let is_known = |name: &str| rows.iter().any(|row| row.size == several.name && row.instance_type == name);
        let others = catalogue.types.iter().filter(|(name, _)| !is_known(name));
        let unpriced =
            others.filter_map(|(name, offered)| several.at_price(name, offered, Usd::ZERO)).map(|size| SizeRow {
                price_per_hour: None,
                notes: vec![format!("its {} price is not known here: it is not bought", several.market)],
                ..row(&size, catalogue)
            });
        let unpriced: Vec<SizeRow> = unpriced.collect();
        rows.extend(unpriced);
    }
    rows
}

fn row(size: &Size, catalogue: &Catalogue) -> SizeRow {
    let offered = size.offered.as_deref().or_else(|| catalogue.types.get(&size.instance_type));
    let mut notes = Vec::new();
    if size.fallback == Fallback::OnDemand && size.offered.as_ref().is_some_and(|offered| offered.on_demand.is_none()) {
        notes.push("no fallback: its price on demand is not known".to_owned());
    }
    let known =
        size.reservation.as_ref().and_then(|reserved| Some((reserved, catalogue.reservations.get(&reserved.id)?)));
    if let Some((reserved, known)) = known {
        let until = known.until().map_or_else(String::new, |until| format!(", until {until}"));
        notes.push(format!("{} of {} are free in {}{until}", known.free, known.total, reserved.id));
    }
    SizeRow {
        size: size.name.clone(),
        instance_type: size.instance_type.clone(),
        arch: size.kind.arch.to_string(),
        vcpus: size.capacity.vcpus,
        memory_mib: size.capacity.memory_mib,
        gpus: size.capacity.gpus,
        gpu_type: size.kind.gpu_type.clone(),
        market: size.market,
        reservation: size.reservation.as_ref().map(|reserved| reserved.id.clone()),
        price_per_hour: Some(size.price_per_hour),
        on_demand: offered.and_then(|offered| offered.on_demand),
        spot: offered.map(|offered| offered.spot.clone()).unwrap_or_default(),
        zones: match known {
            Some((_, known)) => [known.zone.clone()].into(),
            None => offered.map(|offered| offered.zones.clone()).unwrap_or_default(),
        },
        notes,
    }
}

/// Adds a note to each size of one type that differs from EC2. Returns whether EC2 answered and has all these types.
fn compare_typed(rows: &mut [SizeRow], policy: &Policy, catalogue: &Catalogue) -> bool {
    if catalogue.part(CataloguePart::Types).error.is_some() {
        return false;
    }
    let mut has_all = true;
    for size in policy.size.iter().filter(|size| !size.is_derived()) {
        let Some(row) = rows.iter_mut().find(|row| row.size == size.name) else { continue };
        let Some(offered) = catalogue.types.get(&size.instance_type) else {
            row.notes.push("EC2 does not have this type here: it cannot be bought".into());
            has_all = false;
            continue;
        };
        let (facts, has) = (&offered.facts, size.capacity);
        if (facts.vcpus, facts.memory_mib, facts.gpus) != (has.vcpus, has.memory_mib, u64::from(has.gpus)) {
            let gpus = if facts.gpus > 0 { format!(", {} GPUs", facts.gpus) } else { String::new() };
            row.notes.push(format!("EC2 says {} vCPU, {}{gpus}", facts.vcpus, memory(facts.memory_mib)));
        }
        if let Some(says) = offered.price(size.market).filter(|says| *says != size.price_per_hour) {
            row.notes.push(format!("AWS says {}", price(says)));
        }
    }
    has_all
}

fn print(context: &mut Context<'_>, sizes: &[SizeRow], quotas: &[QuotaUse]) -> anyhow::Result<()> {
    let heads = ["SIZE", "TYPE", "ARCH", "VCPUS", "MEMORY", "GPUS", "MARKET", "PRICE/H", "ON DEMAND", "ZONES", "NOTES"];
    let cells = |row: &SizeRow| {
        let gpus = match (&row.gpu_type, row.gpus) {
            (_, 0) => String::new(),
            (Some(model), gpus) => format!("{gpus} {model}"),
            (None, gpus) => gpus.to_string(),
        };
        let price = |known: Option<Usd>| known.map_or("?".to_owned(), price);
        [
            row.size.clone(),
            row.instance_type.clone(),
            row.arch.clone(),
            row.vcpus.to_string(),
            memory(row.memory_mib),
            gpus,
            row.market.to_string(),
            price(row.price_per_hour),
            price(row.on_demand),
            row.zones.iter().map(String::as_str).collect::<Vec<_>>().join(" "),
            row.notes.join("; "),
        ]
    };
    Rows::of(&heads, sizes.iter().map(cells)).print(context.out)?;
    if !quotas.is_empty() {
        writeln!(context.out)?;
        let cells = |of: &QuotaUse| [of.quota.clone(), of.used_vcpus.to_string(), of.vcpus.to_string()];
        Rows::of(&["QUOTA", "VCPUS USED", "OF"], quotas.iter().map(cells)).print(context.out)?;
    }
    Ok(())
}
