//! `advise`: what jobs of one name asked for, what they used, and what would have been enough.
//!
//! Guarantees: only measurements of nodes count, of complete jobs. A price that the policy does not have is shown as not known.
//! Jobs that did not fit into memory are counted.
//! Does not: change a job, or know a bill: a share of a node costs its share of the list price.

use crate::commands::amounts::{self, Moment, moment};
use crate::console::show::{self, Rows, dollars, several};
use crate::console::{Context, Outcome};
use clap::Args;
use model::machine::memory;
use model::names::matches;
use model::policy::{Policy, Size};
use model::{Capacity, Job, JobState, MachineNeed, Usage, Usd};
use serde::Serialize;
use std::collections::BTreeMap;

/// The most measurements that are kept in memory.
const MOST: usize = 500_000;

/// The suggested memory in percent of the memory that was used.
const MARGIN: u64 = 120;
/// The suggested memory is a multiple of this, in MiB.
const STEP_MIB: u64 = 64;
/// A vCPU that is busy for less than this share is not needed.
const IDLE_VCPU: f64 = 0.1;

#[derive(Args, Clone, Debug)]
pub struct AdviseArgs {
    /// Only jobs with this name; `*` stands for any characters
    name: Option<String>,
    /// Only jobs that ended since then: 12h, 7d, a date or a time
    #[arg(long, value_name = "WHEN", default_value = "7d", value_parser = moment)]
    since: Moment,
    /// Show at most this many lines: those that could save most come first
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = amounts::limit)]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// CPUs and memory of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Amount {
    vcpus: u32,
    /// 0 if nothing is asked for.
    memory_mib: u64,
}

/// The name of jobs, what they asked for, and their GPUs and other machine needs.
type Group = (String, Amount, (u32, MachineNeed));

#[derive(Debug, PartialEq, Serialize)]
struct Advice {
    name: String,
    jobs: usize,
    asked: Amount,
    /// At least 99 of 100 jobs kept at most this many vCPUs busy, on average over their time.
    used_vcpus: f64,
    /// At least 99 of 100 jobs used at most this much memory; absent if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    used_memory_mib: Option<u64>,
    suggested: Amount,
    /// The cost of what was not needed; absent if the policy has no price for a size that fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    spare_usd: Option<Usd>,
}

/// The measurements of jobs, by group.
#[derive(Default)]
struct Measured {
    by_group: BTreeMap<Group, Vec<(Usage, u32)>>,
    kept: usize,
    left_out: usize,
}

impl Measured {
    fn add(&mut self, job: Job) {
        let Some(usage) = job.summary.tries.usage.and_then(Usage::possible) else { return };
        if self.kept >= MOST {
            self.left_out += 1;
            return;
        }
        let needs = &job.summary.needs;
        let asked = Amount { vcpus: needs.vcpus, memory_mib: needs.memory_mib };
        let group = (job.summary.name.unwrap_or_default(), asked, (needs.gpus, needs.machine.clone()));
        self.by_group.entry(group).or_default().push((usage, needs.nodes));
        self.kept += 1;
    }
}

pub(crate) async fn run(context: &mut Context<'_>, args: &AdviseArgs) -> anyhow::Result<Outcome> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let since = args.since.before(now);
    let control = cluster.store.ingest_control().await?;
    let policy = control.checked_policy().ok().map(|(policy, _)| policy);
    let mut measured = Measured::default();
    let take = |job: Job| {
        let is_named =
            args.name.as_ref().is_none_or(|name| matches(name, job.summary.name.as_deref().unwrap_or_default()));
        // What a failed job used says little of what it needs.
        let is_complete = job.summary.state == JobState::Complete && job.finished_at.is_some_and(|at| at >= since);
        if is_named && is_complete {
            measured.add(job);
        }
    };
    cluster.store.each_job(take).await?;
    let left_out = measured.left_out;
    let mut all: Vec<Advice> =
        measured.by_group.into_iter().filter_map(|(group, uses)| advice(group, uses, policy.as_ref())).collect();
    all.sort_by(|a, b| {
        b.spare_usd.cmp(&a.spare_usd).then_with(|| b.jobs.cmp(&a.jobs)).then_with(|| a.name.cmp(&b.name))
    });
    let more = all.len().saturating_sub(args.limit);
    all.truncate(args.limit);
    if args.json {
        show::json(context.out, &all)?;
    } else if all.is_empty() {
        writeln!(context.out, "no node has measured a complete job like that")?;
    } else {
        print(&all).print(context.out)?;
        writeln!(context.out, "what is spare is reckoned from the list prices in the policy: it is no bill")?;
    }
    show::cut(context.err, more)?;
    if left_out > 0 {
        writeln!(
            context.err,
            "{} did not fit into memory and were not looked at: name fewer jobs",
            several(left_out, "job")
        )?;
    }
    Ok(Outcome::Done)
}

/// The value that at least 99 of 100 values do not exceed.
fn percentile_99<T: Copy>(sorted: &[T]) -> Option<T> {
    let place = sorted.len().saturating_mul(99).div_ceil(100);
    sorted.get(place.checked_sub(1)?).copied()
}

fn advice((name, asked, machine): Group, uses: Vec<(Usage, u32)>, policy: Option<&Policy>) -> Option<Advice> {
    let mut busy: Vec<f64> = uses.iter().filter_map(|(usage, _)| usage.busy_vcpus()).collect();
    busy.sort_by(f64::total_cmp);
    let mut memory: Vec<u64> = uses.iter().filter_map(|(usage, _)| usage.memory_mib).collect();
    memory.sort_unstable();
    let (used_vcpus, used_memory_mib) = (percentile_99(&busy)?, percentile_99(&memory));
    let enough = |mib: u64| mib.saturating_mul(MARGIN).div_ceil(100).max(1).div_ceil(STEP_MIB).saturating_mul(STEP_MIB);
    let suggested = Amount {
        vcpus: ((used_vcpus - IDLE_VCPU).ceil().max(1.0) as u32).max(1),
        memory_mib: used_memory_mib.map_or(asked.memory_mib, enough),
    };
    let spare_usd = policy.and_then(|policy| spare(policy, (asked, &machine), suggested, &uses));
    Some(Advice { name, jobs: uses.len(), asked, used_vcpus, used_memory_mib, suggested, spare_usd })
}

/// The cost of what the jobs did not need, for as long as they ran: the difference of their shares of the cheapest size that
/// fits and whose price is known. `None` if there is no such size.
fn spare(
    policy: &Policy,
    (asked, (gpus, need)): (Amount, &(u32, MachineNeed)),
    suggested: Amount,
    uses: &[(Usage, u32)],
) -> Option<Usd> {
    let (arch, usable) = (policy.default_arch(), |size: &Size| policy.usable(size.capacity));
    let takes = Capacity { vcpus: asked.vcpus, memory_mib: asked.memory_mib, scratch_gib: 0, gpus: *gpus };
    let fits = |size: &&Size| (*gpus > 0 || size.capacity.gpus == 0) && size.offers(takes, need, (usable(size), arch));
    let priced = policy.size.iter().filter(fits).map(|size| (size.price_for(need.market), size));
    let (price, size) = priced.filter(|(price, _)| !price.is_zero()).min_by_key(|(price, _)| *price)?;
    let share = |amount: Amount| {
        let vcpus = f64::from(amount.vcpus) / f64::from(size.capacity.vcpus.max(1));
        vcpus.max(amount.memory_mib as f64 / usable(size).memory_mib.max(1) as f64).min(1.0)
    };
    let hours: f64 = uses.iter().map(|(usage, nodes)| usage.ran_ms as f64 / 3_600_000.0 * f64::from(*nodes)).sum();
    let dollars = (share(asked) - share(suggested)).max(0.0) * hours * f64::from(price);
    Usd::try_from(dollars).ok()
}

fn print(all: &[Advice]) -> Rows {
    let size = |mib: u64| if mib == 0 { "no memory".to_owned() } else { memory(mib) };
    let cells = |Advice { name, jobs, asked, used_vcpus, used_memory_mib, suggested, spare_usd }: &Advice| {
        let memory_used = used_memory_mib.map_or_else(|| "memory not known".to_owned(), memory);
        let memory_enough =
            if suggested.memory_mib == 0 { String::new() } else { format!(" --memory {}M", suggested.memory_mib) };
        [
            if name.is_empty() { "(no name)".to_owned() } else { name.clone() },
            jobs.to_string(),
            format!("{} vCPU, {}", asked.vcpus, size(asked.memory_mib)),
            format!("{used_vcpus:.2} vCPU, {memory_used}"),
            format!("--vcpus {}{memory_enough}", suggested.vcpus),
            spare_usd.map_or_else(|| "price not known".to_owned(), dollars),
        ]
    };
    Rows::of(&["NAME", "JOBS", "ASKED", "USED (99 %)", "ENOUGH", "SPARE"], all.iter().map(cells))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::policy::example_json;

    const NO_GPU: (u32, MachineNeed) = (0, MachineNeed::ANY);

    /// 100 jobs of 1 h that kept n hundredths of a vCPU busy, and used n MiB.
    fn uses() -> Vec<(Usage, u32)> {
        let one = |n: u64| Usage { ran_ms: 3_600_000, cpu_ms: n * 36_000, memory_mib: Some(n), ..Usage::default() };
        (1..=100).map(|n| (one(n), 1)).collect()
    }

    fn policy(price: f64) -> Policy {
        let mut document = example_json();
        document["nodes"]["memory_usable"] = 1.0.into();
        document["size"] = serde_json::json!([
            {"name": "s", "instance_type": "m7a.large", "vcpus": 8, "memory_mib": 8192, "price_per_hour": price}
        ]);
        Policy::from_json(&document).unwrap()
    }

    #[test]
    fn it_suggests_what_99_of_100_jobs_needed_and_a_margin() {
        let asked = Amount { vcpus: 4, memory_mib: 2048 };
        let advised = advice(("train".into(), asked, NO_GPU), uses(), Some(&policy(0.8))).unwrap();
        assert_eq!((advised.jobs, advised.used_vcpus, advised.used_memory_mib), (100, 0.99, Some(99)));
        assert_eq!(advised.suggested, Amount { vcpus: 1, memory_mib: 128 });
        // Half a node was asked for, and an eighth is enough: three eighths of 100 node hours.
        assert_eq!(advised.spare_usd, Usd::try_from(30.0).ok());
        let table = print(&[advised]);
        let mut out = Vec::new();
        table.print(&mut out).unwrap();
        let line = String::from_utf8(out).unwrap().lines().nth(1).unwrap_or_default().to_owned();
        for part in ["4 vCPU, 2 GiB", "0.99 vCPU, 99 MiB", "--vcpus 1 --memory 128M", "$30.00"] {
            assert!(line.contains(part), "{line}");
        }
    }

    #[test]
    fn a_price_that_is_not_known_is_not_invented_and_too_little_costs_nothing() {
        let asked = Amount { vcpus: 1, memory_mib: 64 };
        let of = |policy: Option<&Policy>| advice((String::new(), asked, NO_GPU), uses(), policy).unwrap();
        assert_eq!((of(None).spare_usd, of(Some(&policy(0.0))).spare_usd), (None, None));
        let short = of(Some(&policy(0.8)));
        assert_eq!((short.suggested.memory_mib, short.spare_usd), (128, Some(Usd::ZERO)));
        let elsewhere = MachineNeed { instance_type: Some("g5.xlarge".into()), ..MachineNeed::ANY };
        let of_type = advice((String::new(), asked, (0, elsewhere)), uses(), Some(&policy(0.8))).unwrap();
        assert_eq!(of_type.spare_usd, None, "no size is of the type");
        let huge = Amount { vcpus: 99, memory_mib: 0 };
        assert_eq!(
            advice((String::new(), huge, NO_GPU), uses(), Some(&policy(0.8))).unwrap().spare_usd,
            None,
            "no size fits"
        );
    }

    #[test]
    fn what_was_not_measured_is_not_advised_on() {
        let nothing = Usage::default();
        let asked = Amount { vcpus: 2, memory_mib: 512 };
        assert_eq!(advice((String::new(), asked, NO_GPU), vec![(nothing, 1)], None), None);
        let cpu_only = Usage { ran_ms: 1000, cpu_ms: 1500, ..nothing };
        let advised = advice((String::new(), asked, NO_GPU), vec![(cpu_only, 1)], None).unwrap();
        assert_eq!((advised.used_memory_mib, advised.suggested), (None, Amount { vcpus: 2, memory_mib: 512 }));
        assert_eq!((percentile_99(&[7]), percentile_99::<u64>(&[])), (Some(7), None));
    }
}
