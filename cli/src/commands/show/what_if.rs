//! `plan --job --if`: what would follow for a job if its alloc ended now, for a given cause.
//!
//! Guarantees: the code that counts a real end gives the answer, and the code that rejects jobs says whether a size can offer what
//! the next try needs. Nothing is written.
//! Does not: say on which node the next try runs.

use crate::changes::operate::retention;
use crate::console::show::{self, several};
use crate::console::{Context, Outcome};
use crate::view::find::{Finder, no_job};
use model::machine::memory;
use model::policy::Policy;
use model::reason::Reason;
use model::retry::{Follows, Retry, Verdict};
use model::time::Span;
use model::{EndCause, Job, JobTimes, Signal};
use serde_json::json;

/// Parses the cause of an end. It lacks the limits of the job, which [`of_job`] adds.
pub(in crate::commands) fn cause(text: &str) -> Result<EndCause, String> {
    let exit = |code: &str| code.parse().ok().filter(|code| (0..=255).contains(code));
    Ok(match (text, text.split_once(':')) {
        ("memory", _) => EndCause::OverMemory { allowed_mib: 0, used_mib: None },
        ("timeout", _) => EndCause::OverTime { limit_s: 0 },
        ("lost", _) => EndCause::Lost { why: "its node is gone".to_owned() },
        ("spot", _) => EndCause::Interrupted { why: "its node drains".to_owned() },
        ("node", _) => EndCause::NotStarted { why: "the node says why".to_owned() },
        (_, Some(("exit", code))) => {
            EndCause::Exited { code: exit(code).ok_or("an exit code is a number from 0 to 255")? }
        }
        (_, Some(("signal", signal))) => {
            EndCause::Signalled { signal: signal.parse::<Signal>().map_err(|e| e.to_string())?.number() }
        }
        _ => return Err("it must be exit:CODE, signal:NAME, memory, timeout, lost, spot or node".to_owned()),
    })
}

/// This cause with the limits of the job.
fn of_job(named: &EndCause, job: &Job) -> EndCause {
    match named {
        EndCause::OverMemory { used_mib, .. } => {
            EndCause::OverMemory { allowed_mib: job.summary.needs.memory_mib, used_mib: *used_mib }
        }
        EndCause::OverTime { .. } => EndCause::OverTime { limit_s: job.work.timeout_s },
        other => other.clone(),
    }
}

pub(in crate::commands) async fn run(
    context: &mut Context<'_>,
    given: &str,
    named: &EndCause,
    is_json: bool,
) -> anyhow::Result<Outcome> {
    let cluster = context.cluster().await?;
    let id = Finder::new(&cluster).job(given).await?;
    let job = cluster.store.job(id).await?.ok_or_else(|| no_job(id))?;
    let times = retention(&cluster).await?.of_jobs();
    let cause = of_job(named, &job);
    let verdict = job.judge(&cause);
    let policy = cluster.store.control().await?.checked_policy().ok().map(|(policy, _)| policy);
    let rejected = verdict.as_ref().and_then(|verdict| rejected(policy.as_ref()?, &job, verdict));
    let lines = lines(&job, &cause, times, rejected.as_ref());
    if is_json {
        let again = verdict.as_ref().is_some_and(|verdict| matches!(verdict.follows, Follows::Again(_)));
        let again = again && rejected.is_none();
        // After a success, no rule decides.
        let rule = verdict.map(|verdict| verdict.text);
        let answer = json!({ "job_id": id, "cause": cause, "rule": rule, "again": again, "lines": lines });
        show::json(context.out, &show::known(answer))?;
        return Ok(Outcome::Done);
    }
    for line in lines {
        writeln!(context.out, "{}", show::one_line(&line))?;
    }
    Ok(Outcome::Done)
}

/// Why the job is rejected at its next try; `None` if it is not, or if none follows.
fn rejected(policy: &Policy, job: &Job, verdict: &Verdict) -> Option<Reason> {
    let Follows::Again(retry) = &verdict.follows else { return None };
    let needs = retry.needs(&job.summary.needs);
    policy.never_offers(needs.capacity(), &needs.machine)
}

/// What follows for the job, line by line.
fn lines(job: &Job, cause: &EndCause, times: JobTimes, rejected: Option<&Reason>) -> Vec<String> {
    let state = job.summary.state;
    if state.is_ended() {
        return vec![format!("nothing follows: the job is {state}")];
    }
    let Some(verdict) = job.judge(cause) else {
        return vec!["the member is done; when all are, the job is complete".to_owned()];
    };
    let (tries, needs) = (&job.summary.tries, &job.summary.needs);
    let used = tries.rule_uses.get(verdict.rule).copied().unwrap_or(0);
    let from = if verdict.is_own { "" } else { " (no rule of the job names this cause)" };
    let mut lines = vec![
        format!("cause: {cause}"),
        format!("rule: {}, used {}{from}", verdict.text, several(used, "time")),
        format!("what follows: {verdict}"),
    ];
    let Follows::Again(Retry { pause_s, elsewhere, market, memory_mib, .. }) = verdict.follows else {
        lines.push("the job is failed then".to_owned());
        return lines;
    };
    let pause = tries.next_pause(pause_s, times);
    let by = if pause_s.is_some() { "the rule says it" } else { "the policy says it" };
    let pause = if pause > Span::ZERO { format!("{} s", pause.as_ms() / 1000) } else { "none".to_owned() };
    lines.push(format!("pause: {pause} ({by})"));
    if elsewhere {
        lines.push("node: another than those of its last tries, a new one if need be".to_owned());
    }
    if let Some(market) = market {
        let before = needs.machine.market.map_or_else(|| "any market".to_owned(), |market| market.to_string());
        lines.push(format!("market: {market}, and before it was {before}"));
    }
    if let Some(mib) = memory_mib {
        lines.push(format!("memory: {}, and before it was {}", memory(mib), memory(needs.memory_mib)));
    }
    lines.extend(rejected.map(|why| format!("the job is rejected then: {why}")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures::{self, at};
    use model::{FailurePolicy, JobSpec, Needs};

    #[test]
    fn a_cause_is_named_as_in_a_rule() {
        assert_eq!(cause("exit:137"), Ok(EndCause::Exited { code: 137 }));
        assert_eq!(cause("signal:KILL"), cause("signal:9"));
        assert_eq!(cause("memory"), Ok(EndCause::OverMemory { allowed_mib: 0, used_mib: None }));
        for bad in ["", "exit:", "exit:256", "exit:*", "oom", "signal:x"] {
            assert!(cause(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn it_says_which_rule_decides_and_what_changes() {
        let rules =
            ["exit:137,memory=again*2,memory*1.5,on-demand", "exit:1=again,pause=30s,elsewhere", "timeout=fail"];
        let spec = JobSpec {
            needs: Needs { memory_mib: 1024, ..Needs::default() },
            failure_policy: FailurePolicy {
                retry: rules.iter().map(|rule| rule.parse().unwrap()).collect(),
                ..FailurePolicy::DEFAULT
            },
            ..JobSpec::running(["true"])
        };
        let mut job = Job::submit(fixtures::job_id(0), spec, at(0)).unwrap();
        let times = JobTimes { keep: Span::ZERO, pause: Span::from_s(10), most: Span::from_s(60) };
        let said = |job: &Job, text: &str| lines(job, &of_job(&cause(text).unwrap(), job), times, None).join("\n");
        assert_eq!(
            said(&job, "exit:137"),
            "cause: exit code 137\n\
             rule: exit:137,memory=again*2,on-demand,memory*1.5, used 0 times\n\
             what follows: retry 1 of 2 by the rule exit:137,memory=again*2,on-demand,memory*1.5, 1 left; from now on with \
             1536 MiB of memory; from now on only on nodes of the market on_demand\n\
             pause: 10 s (the policy says it)\n\
             market: on_demand, and before it was any market\n\
             memory: 1536 MiB, and before it was 1 GiB"
        );
        job.summary.tries.rule_uses = vec![2];
        assert!(said(&job, "memory").ends_with(
            "2 retries by the rule exit:137,memory=again*2,on-demand,memory*1.5 is left\nthe job is failed then"
        ));
        assert!(said(&job, "exit:1").ends_with(
            "pause: 30 s (the rule says it)\nnode: another than those of its last tries, a new one if need be"
        ));
        assert!(said(&job, "timeout").contains("what follows: no retry by the rule timeout=fail\n"));
        let lost = said(&job, "lost");
        assert!(lost.contains("rule: lost=again*3, used 0 times (no rule of the job names this cause)\nwhat follows: retry 1 of 3, 2 left"), "{lost}");
        assert!(said(&job, "node").contains("what follows: retry 1 of 20, 19 left"));
        assert_eq!(said(&job, "exit:0"), "the member is done; when all are, the job is complete");
        let why = Reason::NoSuchSize { size: "small".into() };
        let rejected = lines(&job, &cause("lost").unwrap(), times, Some(&why));
        assert_eq!(rejected.last().unwrap(), "the job is rejected then: the policy has no size small");
        let ended = job.cancel(Span::ZERO, at(1)).unwrap();
        assert_eq!(said(&ended, "lost"), "nothing follows: the job is cancelled");
    }
}
