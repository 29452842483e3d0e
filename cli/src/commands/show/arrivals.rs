//! `jobs --arrivals`: the jobs of the past as a file for `simulate`, which compares policies on them.
//!
//! Guarantees: a line is a job, or several alike, with the field names of `submit --file`. Its times keep the days of the week and the
//! hours: `simulate` begins on a Friday at 8:00 UTC.
//! Does not: have commands or environments, jobs without a machine, or what a simulated machine does not have: GPUs, labels and licences.
//! Have priorities: no alloc keeps them.

use crate::commands::filter::JobFilter;
use crate::console::Context;
use crate::console::show::several;
use model::{EndedAlloc, JobId, Needs, Span, Time};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The most allocs that are read.
const MOST: usize = 1_000_000;
/// How far back the list goes, unless the filter names a time.
const MONTH: Span = Span::from_s(30 * 86_400);
/// The first Friday at 8:00 UTC of the epoch, and a week, in seconds.
const FRIDAY_S: i64 = 32 * 3600;
const WEEK_S: i64 = 7 * 86_400;

pub(super) async fn print(context: &mut Context<'_>, filter: &JobFilter) -> anyhow::Result<()> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let filter = filter.of(&cluster).await?;
    let since = filter.since(now).max(now - MONTH);
    let past = cluster.store.ended_allocs(since, MOST).await?;
    if past.more {
        writeln!(context.err, "nodekeeper: only the newest {MOST} allocs are in the file")?;
    }
    let taken = past.rows.into_iter().filter(|alloc| filter.takes_ended(alloc));
    let (lines, left_out) = lines(taken);
    for line in lines {
        writeln!(context.out, "{line}")?;
    }
    if left_out > 0 {
        let left_out = several(left_out, "job");
        writeln!(context.err, "nodekeeper: {left_out} with GPUs left out: a simulated machine has none")?;
    }
    Ok(())
}

/// The lines of these allocs, in the order of time, and how many jobs are left out.
fn lines(allocs: impl Iterator<Item = EndedAlloc>) -> (Vec<Value>, usize) {
    // The last try of a job says how long it takes.
    let mut last: BTreeMap<JobId, EndedAlloc> = BTreeMap::new();
    for alloc in allocs {
        let rank = |alloc: &EndedAlloc| (alloc.alloc_id.copy, alloc.finished_at.since(alloc.placed_at).as_ms());
        let known = last.entry(alloc.alloc_id.job_id).or_insert_with(|| alloc.clone());
        if rank(known) < rank(&alloc) {
            *known = alloc;
        }
    }
    let all = last.len();
    last.retain(|_, alloc| alloc.needs.gpus == 0);
    let left_out = all - last.len();
    let Some(first) = last.keys().map(|id| id.made_at()).min() else { return (Vec::new(), left_out) };
    let begin_s = first.as_ms().div_euclid(1000);
    let begin = Time::from_ms((begin_s - (begin_s - FRIDAY_S).rem_euclid(WEEK_S)) * 1000);
    let mut alike: Vec<(Value, usize)> = Vec::new();
    for (id, alloc) in &last {
        let line = line(id.made_at().since(begin), alloc);
        match alike.last_mut().filter(|(known, _)| *known == line) {
            Some((_, count)) => *count += 1,
            None => alike.push((line, 1)),
        }
    }
    let with_count = |(mut line, count): (Value, usize)| {
        if let (Value::Object(fields), true) = (&mut line, count > 1) {
            fields.insert("count".to_owned(), count.into());
        }
        line
    };
    (alike.into_iter().map(with_count).collect(), left_out)
}

fn line(at: Span, alloc: &EndedAlloc) -> Value {
    let Needs { vcpus, memory_mib, scratch_gib, machine, exclusive, nodes, .. } = &alloc.needs;
    let seconds = (alloc.finished_at.since(alloc.placed_at).as_ms() / 1000).max(1);
    let line = json!({
        "at_s": at.as_ms() / 1000, "seconds": seconds, "vcpus": vcpus, "memory_mib": memory_mib,
        "scratch_gib": Some(scratch_gib).filter(|gib| **gib > 0), "nodes": Some(nodes).filter(|nodes| **nodes > 1),
        "exclusive": exclusive.then_some(true), "arch": machine.arch, "market": machine.market,
        "instance_type": machine.instance_type, "name": alloc.name, "by": alloc.by,
    });
    model::left_out::without_nulls(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures::{self, at};
    use model::{AllocId, JobId};

    #[test]
    fn the_past_becomes_arrivals_by_the_clock_of_the_week() {
        let alloc = |job_id: JobId, copy, (from, to): (i64, i64), gpus| EndedAlloc {
            price_per_hour: model::Usd::ZERO,
            share: None,
            alloc_id: AllocId { job_id, member: 0, copy },
            node_id: fixtures::node_id(0),
            placed_at: at(from),
            finished_at: at(to),
            needs: Needs { vcpus: 2, memory_mib: 512, gpus, ..Needs::default() },
            name: None,
            by: None,
            labels: BTreeMap::new(),
        };
        let id = |s: i64, n: u32| model::Array::new(at(s), 7).job(n);
        let allocs = [
            alloc(id(60, 0), 0, (70, 75), 0),
            alloc(id(60, 0), 1, (80, 180), 0),
            alloc(id(60, 1), 0, (200, 300), 0),
            EndedAlloc { by: Some("ann".to_owned()), ..alloc(id(3600, 0), 0, (3700, 3705), 0) },
            alloc(id(90, 0), 0, (95, 96), 1),
            alloc(id(3660, 0), 0, (3700, 3705), 0),
        ];
        let (lines, left_out) = lines(allocs.into_iter());
        // The fixtures begin on Friday, 2027-01-15 at 8:00 UTC.
        let line = |at_s, seconds| json!({"at_s": at_s, "seconds": seconds, "vcpus": 2, "memory_mib": 512});
        let mut twice = line(60, 100);
        twice["count"] = 2.into();
        let mut of_ann = line(3600, 5);
        of_ann["by"] = "ann".into();
        assert_eq!((lines, left_out), (vec![twice, of_ann, line(3660, 5)], 1));
    }
}
