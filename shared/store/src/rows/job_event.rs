//! The attribute `end` of an ended job's row: what the outside hears of it. The template's pipe passes it on as an
//! event. A cancelled job has it when its allocs have stopped, so that it says what they cost.
//!
//! Guarantees: each ended job has each field of [`JOB_EVENT`] as text, and no character of it needs an escape in JSON.
//! The reason is that a pipe puts values into its template as they are, and leaves out what is absent.
//! Does not: hold anything that nodekeeper itself reads, or the job's command, environment or output, except the line
//! that its reason quotes.

use aws_sdk_dynamodb::types::AttributeValue;
use model::{EndCause, Job};

/// The write that ends the job sets this attribute, and it stays.
pub(crate) const END: &str = "end";

/// The fields of the attribute, which are those of the event, besides the cluster and the id of the job.
pub const JOB_EVENT: [&str; 14] = [
    "name",
    "by",
    "share",
    "labels",
    "state",
    "cause",
    "exit_code",
    "reason",
    "submitted_at",
    "started_at",
    "finished_at",
    "cpu_s",
    "memory_mib",
    "usd",
];

/// The value of the attribute; `None` for a job that is not over.
pub(crate) fn end(job: &Job) -> Option<AttributeValue> {
    let finished_at = job.finished_at.filter(|_| job.is_over())?;
    let kind = |cause: &EndCause| Some(serde_json::to_value(cause).ok()?.get("kind")?.as_str()?.to_owned());
    let labels = job.summary.labels.iter().map(|(key, value)| format!("{key}={value}"));
    let usage = job.summary.tries.usage;
    let values = [
        job.summary.name.clone().unwrap_or_default(),
        job.summary.by.clone().unwrap_or_default(),
        job.summary.share.clone().unwrap_or_default(),
        labels.collect::<Vec<_>>().join(","),
        job.summary.state.to_string(),
        job.cause().and_then(kind).unwrap_or_default(),
        job.cause().and_then(EndCause::exit_code).map(|code| code.to_string()).unwrap_or_default(),
        job.reason.clone().unwrap_or_default(),
        job.summary.submitted_at.to_string(),
        job.started_at.map(|at| at.to_string()).unwrap_or_default(),
        finished_at.to_string(),
        usage.map(|usage| format!("{:.3}", usage.cpu_ms as f64 / 1e3)).unwrap_or_default(),
        usage.and_then(|usage| usage.memory_mib).map(|mib| mib.to_string()).unwrap_or_default(),
        format!("{:.6}", f64::from(job.usd)),
    ];
    let fields =
        JOB_EVENT.iter().zip(values).map(|(name, value)| ((*name).to_owned(), AttributeValue::S(plain(&value))));
    Some(AttributeValue::M(fields.collect()))
}

/// The text with another character for each one that JSON would escape.
fn plain(text: &str) -> String {
    let replaced = |c: char| match c {
        '"' => '\'',
        '\\' => '/',
        c if c.is_control() => ' ',
        c => c,
    };
    text.chars().map(replaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::{change, row};
    use crate::write::Effect;
    use model::fixtures::{self, at};
    use model::time::Span;
    use model::{Ending, JobSet, RunReport};
    use std::collections::BTreeMap;

    const KEEP: Span = Span::from_s(60);

    /// The texts of the attribute, in the order of [`JOB_EVENT`].
    fn texts(value: &AttributeValue) -> Vec<String> {
        let fields: BTreeMap<_, _> = value.as_m().unwrap().iter().collect();
        assert_eq!(fields.len(), JOB_EVENT.len());
        JOB_EVENT.iter().map(|name| fields[&(*name).to_owned()].as_s().unwrap().clone()).collect()
    }

    #[test]
    fn the_write_that_ends_a_job_sets_each_field_as_plain_text_and_no_other_write_does() {
        let mut job = fixtures::job(1);
        job.summary.name = Some("my \"C:\\job\"".into());
        job.summary.by = Some("science/ann".into());
        job.summary.share = Some("lab".into());
        job.summary.labels = [("team".into(), "a".into()), ("run".into(), "7".into())].into();
        let placed = job.with_placed(&[fixtures::alloc_id(1)]).unwrap();
        let alloc = model::Alloc::place(fixtures::alloc_id(1), &job, &fixtures::ready(1), at(1)).unwrap().summary;
        let alloc = model::AllocSummary { started_at: Some(at(2)), ..alloc };
        let usage = Some(model::Usage { cpu_ms: 1500, memory_mib: Some(300), ..model::Usage::default() });
        let failed = |cause, set| {
            let ending = Ending {
                run: RunReport { log_tail: Some("a\u{1b}\"b\\".into()), usage, ..RunReport::default() },
                ..Ending::new(cause)
            };
            placed.after_end(&alloc, &ending, &[], set, KEEP.into(), at(5))
        };
        let failed_early = failed(EndCause::Signalled { signal: 9 }, JobSet::Stays);
        let ended = [
            (placed.clone(), failed(EndCause::Exited { code: 0 }, JobSet::Leaves), ["complete", "exited", "0"]),
            (placed.clone(), failed_early.clone(), ["failed", "signalled", "137"]),
            (job.clone(), job.reject("too \"large\"", KEEP, at(5)).unwrap(), ["rejected", "rejected", ""]),
            (job.clone(), job.cancel("ann", KEEP, at(5)).unwrap(), ["cancelled", "cancelled", ""]),
        ];
        for (before, after, [state, cause, code]) in ended {
            let Effect::Update { set, .. } = change(Some(&before), &after).0.effect else { panic!("no update") };
            assert_eq!(set.get(END), row(&after).get(END), "{state}");
            let told = texts(&set[END]);
            assert_eq!(told[..7], ["my 'C:/job'", "science/ann", "lab", "run=7,team=a", state, cause, code]);
            assert!(!told[7].contains(['"', '\\', '\u{1b}']), "{}", told[7]);
            let (submitted_at, ended_at) = (job.summary.submitted_at.to_string(), at(5).to_string());
            let ran = before == placed;
            let of_run = |value: &str| if ran { value.to_owned() } else { String::new() };
            let [started_at, cpu_s, memory_mib] = [&*at(2).to_string(), "1.500", "300"].map(of_run);
            let usd = if ran { "0.000055" } else { "0.000000" };
            assert_eq!(told[8..], [&*submitted_at, &*started_at, &*ended_at, &*cpu_s, &*memory_mib, usd]);
        }
        // The last alloc leaves the job later.
        let left = failed_early.after_end(&alloc, &Ending::exited(0), &[], JobSet::Leaves, KEEP.into(), at(9));
        let Effect::Update { set, remove } = change(Some(&failed_early), &left).0.effect else { panic!("no update") };
        assert!(set.contains_key("expires_at") && !set.contains_key(END) && !remove.contains(&END.to_owned()));
        // The allocs of a cancelled job stop later: then all is known.
        let cancelled = placed.cancel("ann", KEEP, at(5)).unwrap();
        let over = cancelled.after_end(&alloc, &Ending::exited(1), &[], JobSet::Leaves, KEEP.into(), at(9));
        assert_eq!(texts(&row(&over)[END])[4..6], ["cancelled", "cancelled"]);
        for open in [&job, &placed, &cancelled] {
            assert!(!row(open).contains_key(END), "{:?}", open.summary.state);
        }
    }
}
