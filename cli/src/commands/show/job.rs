//! `job`: one job, its allocs and its story; or an array as one thing.
//!
//! Guarantees: the job and its allocs are read consistently.
//! Does not: change anything.

use super::history::table;
use super::jobs::needs;
use crate::console::show::{self, Rows, moment, or_blank, when, when_some};
use crate::console::{Cluster, Context};
use crate::view::array::{Alike, States, alike};
use crate::view::find::{Finder, Meant, no_job, short, short_alloc};
use crate::view::present::Snapshot;
use crate::view::story;
use crate::view::usage::{self, Used};
use crate::view::{JobWait, job_shape, retry_rules};
use anyhow::bail;
use clap::Args;
use model::{AfterEnd, Alloc, Content, FailurePolicy, Job, JobState, JobSummary, Signal, StoredOutput, Subject, Time};
use serde_json::json;

#[derive(Args, Clone, Debug)]
pub struct JobArgs {
    /// The job's id, a part of it, or its name. Of an array, what its elements have in common: NAME[3] is number 3
    job: String,
    /// Print JSON: the job's row, with the rows of its allocs as `all_allocs`
    #[arg(long)]
    json: bool,
}

pub(crate) async fn show(context: &mut Context<'_>, args: &JobArgs) -> anyhow::Result<()> {
    let (cluster, now) = (context.cluster().await?, context.now());
    let meant = Finder::new(&cluster).meant(&args.job).await?;
    let [id] = *meant.ids.as_slice() else { return show_array(context, &cluster, args, meant).await };
    let job = cluster.store.job(id).await?.ok_or_else(|| no_job(id))?;
    if !args.json && meant.given_part(&job).is_some() {
        return show_array(context, &cluster, args, meant).await;
    }
    let allocs = show::readable(context.err, cluster.store.allocs_of([&job]).await?)?;
    let waits = match job.summary.state.is_ended() {
        true => JobWait::default(),
        false => Snapshot::read(&cluster.store, cluster.cloud.as_ref(), 1, now).await?.wait_of(&job.summary),
    };
    if args.json {
        return show::json(context.out, &job_shape(&job, &allocs, &waits));
    }
    fields(&job, waits, now).colours(context.colours).print(context.out)?;
    let story = story::of(&cluster.store, &Subject::Job(id), None).await?;
    let tables = [alloc_rows(&allocs, now), usage_rows(&allocs), output_rows(&allocs), place_rows(&allocs)];
    for rows in tables.into_iter().chain([table(&story, now)]).filter(|rows| !rows.is_empty()) {
        writeln!(context.out)?;
        rows.colours(context.colours).print(context.out)?;
    }
    Ok(())
}

/// Shows an array, or a part of it: how many elements are in which state, and which are alike.
async fn show_array(context: &mut Context<'_>, cluster: &Cluster, args: &JobArgs, meant: Meant) -> anyhow::Result<()> {
    let jobs = show::readable(context.err, cluster.store.jobs_of(meant.ids.iter().copied()).await?)?;
    let Some(first) = jobs.first() else { bail!("{} is not stored", show::one_line(&args.job)) };
    let Job { summary, work, .. } = first;
    let all = summary.array_count.unwrap_or_default();
    let alike = alike(jobs.iter().map(|job| (job, meant.elements(job))));
    let states = States::of_groups(&alike);
    if args.json {
        let shape = json!({
            "name": summary.name, "by": summary.by, "labels": summary.labels, "key": first.key, "array_count": all, "states": states, "alike": alike,
            "job_ids": jobs.iter().map(|job| job.summary.job_id).collect::<Vec<_>>(),
        });
        return show::json(context.out, &show::without_nulls(shape));
    }
    let mut rows = Rows::new(&[]);
    rows.field("array", Some(format!("{}[*]", short(summary.job_id))));
    rows.field("name", summary.name.as_ref());
    rows.field("by", summary.by.as_ref());
    rows.field("labels", show::labels(&summary.labels));
    rows.field("key", first.key.as_ref());
    rows.field("elements", Some(states.text(all)));
    rows.field("command", Some(show::command(&work.command)));
    rows.field("needs", Some(needs(summary)));
    rows.field("submitted", Some(moment(summary.submitted_at, context.now())));
    rows.colours(context.colours).print(context.out)?;
    writeln!(context.out)?;
    let cells = |group: Alike| [group.elements.to_string(), group.state.to_string(), or_blank(Some(group.cause))];
    let groups = Rows::of(&["ELEMENTS", "STATE", "CAUSE"], alike.into_iter().map(cells));
    Ok(groups.colours(context.colours).print(context.out)?)
}

fn fields(job: &Job, waits: JobWait, now: Time) -> Rows {
    let Job { summary, work, failure_policy, .. } = job;
    let mut rows = Rows::new(&[]);
    rows.field("job", Some(summary.job_id));
    rows.field("name", summary.name.as_ref());
    rows.field("by", summary.by.as_ref());
    rows.field("labels", show::labels(&summary.labels));
    rows.field("key", job.key.as_ref());
    rows.field("element", summary.array_index().map(|n| format!("{n} of {}", summary.array_count.unwrap_or_default())));
    rows.field("state", Some(summary.state));
    rows.field("reason", job.reason.as_ref());
    // A placed job does not wait. The text then says what its node does before the command runs, what the next run does with it, or
    // that it waits for a copy.
    rows.field(if summary.state == JobState::Placed { "now" } else { "waits because" }, waits.because);
    rows.field("starts", waits.starts);
    rows.fields("starts if", "or if", waits.would_start_if.into_iter().flatten());
    rows.field("command", Some(show::command(&work.command)));
    let env: Vec<String> = job.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    rows.field("env", (!env.is_empty()).then(|| show::command(&env)));
    let image = work.image.as_ref().map(|image| match &work.image_digest {
        Some(digest) => format!("{image} ({digest})"),
        None => image.clone(),
    });
    rows.field("image", image);
    rows.field("caches", (!work.caches.is_empty()).then(|| work.caches.join(", ")));
    rows.fields("inputs", "", work.inputs.iter().map(|(name, source)| format!("{name} from {source}")));
    let checkpoint = work.keep.as_ref().map(|keep| format!("{keep} (checkpoint)"));
    let keeps: Vec<String> = work.outputs.iter().map(ToString::to_string).chain(checkpoint).collect();
    rows.field("keeps", (!keeps.is_empty()).then(|| keeps.join(", ")));
    if let (Some(pack), Some(counts)) = (&work.pack, summary.tries.elements) {
        let at_once = if pack.at_once > 1 { format!("; {} at once", pack.at_once) } else { String::new() };
        rows.field("elements", Some(format!("{} ({counts}{at_once})", pack.elements)));
        rows.field("failed elements", (counts.failed > 0).then(|| job.elements.results.failures()));
    }
    rows.field("needs", Some(needs(summary)));
    let limit = summary.array_limit.map(|limit| format!("{limit} of its array placed at the same time"));
    rows.field("at most", limit);
    let after = summary.after.iter().map(|(id, end)| match end {
        AfterEnd::Success => format!("{id} (must be complete)"),
        AfterEnd::Any => format!("{id} (must have ended)"),
    });
    let after: Vec<String> = after.collect();
    rows.field("runs after", (!after.is_empty()).then(|| after.join(", ")));
    rows.field("priority", Some(summary.priority));
    rows.field("submitted", Some(moment(summary.submitted_at, now)));
    ran(&mut rows, job, now);
    rows.field("failed", Some(show::several(job.failed_count, "time")));
    rows.field("lost", Some(show::several(job.lost_count, "time")));
    rows.field("moved", Some(summary.tries.moves).filter(|n| *n > 0).map(|n| show::several(n, "time")));
    rows.fields("retries", "", retry_rules(job).iter().map(|rule| rule.line()));
    times(&mut rows, summary, now);
    rows.field("time-out", (work.timeout_s > 0).then(|| format!("{} s", work.timeout_s)));
    rows.field("stop", Some(stop(failure_policy)));
    let with_copy = format!(", with a copy meanwhile ({})", failure_policy.reconcile);
    let replace = if failure_policy.replace { with_copy.as_str() } else { "" };
    rows.field("silent node", Some(format!("waited for {} s{replace}", failure_policy.lost_after_s)));
    rows
}

fn ran(rows: &mut Rows, job: &Job, now: Time) {
    rows.field("began", job.started_at.map(|at| moment(at, now)));
    rows.field("ended", job.finished_at.map(|at| moment(at, now)));
    rows.field("cost", (!job.usd.is_zero()).then(|| format!("{} (its part of its nodes)", show::dollars(job.usd))));
}

/// When a job that waits begins, and when it, or its array, gives up.
fn times(rows: &mut Rows, job: &JobSummary, now: Time) {
    let begins = job.begins_at(now).map(|at| format!("not before {}", moment(at, now)));
    rows.field(if job.tries.cause.is_some() { "next try" } else { "begins" }, begins);
    rows.field("gives up", job.gives_up_at().map(|at| moment(at, now)));
    rows.field("stops after", job.max_failures.map(|max| show::several(max.get(), "failed element")));
}

fn stop(policy: &FailurePolicy) -> String {
    let signal = policy.stop_signal.unwrap_or(Signal::TERM);
    let kill = format!("KILL after {} s", policy.kill_timeout_s);
    match policy.stop_notice_s {
        0 => format!("{signal}, {kill}"),
        notice_s => format!("{signal}, TERM after {notice_s} s, {kill} more"),
    }
}

fn alloc_rows(allocs: &[Alloc], now: Time) -> Rows {
    let cells = |alloc: &Alloc| {
        let seen = &alloc.summary;
        [
            short_alloc(seen.alloc_id),
            seen.slot.to_string(),
            seen.desired.to_string(),
            seen.phase.clone().unwrap_or_else(|| seen.client.to_string()),
            when(seen.placed_at, now),
            when_some(alloc.finished_at, now),
            or_blank(alloc.exit_code),
            or_blank(alloc.cause.as_ref()),
        ]
    };
    let heads = ["ALLOC", "SLOT", "DESIRED", "CLIENT", "PLACED", "ENDED", "EXIT", "CAUSE"];
    Rows::of(&heads, allocs.iter().map(cells))
}

fn usage_rows(allocs: &[Alloc]) -> Rows {
    let cells = |alloc: &Alloc| {
        let used = Used { usage: alloc.run.usage?, needs: alloc.summary.needs.capacity() };
        Some([short_alloc(alloc.id())].into_iter().chain(used.cells()))
    };
    Rows::of(&["ALLOC"].into_iter().chain(usage::HEADS).collect::<Vec<_>>(), allocs.iter().filter_map(cells))
}

/// The outputs of its work directory that each alloc has stored, and its checkpoint.
fn output_rows(allocs: &[Alloc]) -> Rows {
    let cells = |alloc: &Alloc, path: String, content: &Content| {
        [short_alloc(alloc.id()), path, usage::bytes_text(content.bytes), content.sha256().to_owned()]
    };
    let rows = allocs.iter().flat_map(|alloc| {
        let kept = alloc.run.kept.iter().map(move |StoredOutput { path, content, to }| {
            cells(alloc, to.as_ref().map_or_else(|| path.clone(), |place| format!("{path} ({place})")), content)
        });
        let checkpoint = alloc.work.keep.clone().zip(alloc.run.checkpoint.as_ref());
        kept.chain(checkpoint.map(|(keep, known)| cells(alloc, keep, &known.content)))
    });
    Rows::of(&["ALLOC", "KEPT", "SIZE", "SHA-256"], rows)
}

/// The place in S3 of each alloc's whole output. The output is there after the end of the alloc.
fn place_rows(allocs: &[Alloc]) -> Rows {
    let cells = |alloc: &Alloc| Some([short_alloc(alloc.id()), alloc.output_s3.as_ref()?.to_string()]);
    Rows::of(&["ALLOC", "WHOLE OUTPUT, AFTER THE END"], allocs.iter().filter_map(cells))
}
