//! What the webhook says: one JSON document for each end of a job, and for each alarm that goes off or is over.
//!
//! Guarantees: the same thing has the same id whenever it is told, so a receiver can leave out what it has seen. A job ends
//! once, but its row may change after that: so the id of its end does not contain the row's version. An id has no dot,
//! because dots separate what is signed.
//! Does not: read or send anything. `docs/contract.md` defines the documents.

use model::ids::ClusterName;
use model::time::Time;
use model::{EndCause, Job, JobState, Version};
use serde::Serialize;

/// A document, ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The id of the delivery: the header `webhook-id`.
    pub id: String,
    /// When it happened.
    pub at: Time,
    /// The body.
    pub body: String,
}

/// What a document says of a job.
#[derive(Serialize)]
struct JobEnded<'a> {
    job_id: String,
    version: Version,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    state: JobState,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'a EndCause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_line: Option<&'a str>,
    nodes: u32,
    failed_count: u32,
    lost_count: u32,
    submitted_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    finished_at: Option<Time>,
}

/// What a document says of an alarm.
#[derive(Serialize)]
struct Attention<'a> {
    alarm: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    says: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
    changed_at: Time,
}

#[derive(Serialize)]
struct Envelope<'a, D> {
    #[serde(rename = "type")]
    kind: &'a str,
    timestamp: String,
    cluster: &'a ClusterName,
    data: D,
}

/// An alarm that went off or is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// Its name, without the cluster before it: `brakes-held`.
    pub name: String,
    /// Whether it went off; otherwise it is over.
    pub raised: bool,
    /// What it means, and what to do.
    pub says: String,
    /// Why its state changed.
    pub reason: String,
    /// When its state changed.
    pub changed_at: Time,
}

impl Document {
    /// The end of a job; `None` if it has not ended.
    pub fn job_ended(cluster: &ClusterName, job: &Job, now: Time) -> Option<Self> {
        let summary = &job.summary;
        let data = JobEnded {
            job_id: summary.job_id.to_string(),
            version: summary.version,
            name: summary.name.as_deref(),
            state: Some(summary.state).filter(|state| state.is_ended())?,
            reason: job.reason.as_deref(),
            cause: job.cause(),
            exit_code: job.cause().and_then(EndCause::exit_code),
            last_line: summary.tries.last_line.as_deref(),
            nodes: summary.needs.nodes,
            failed_count: job.failed_count,
            lost_count: job.lost_count,
            submitted_at: summary.submitted_at,
            finished_at: job.finished_at,
        };
        // Only a row that somebody else wrote can be without it.
        let at = job.finished_at.unwrap_or(now);
        Some(Self::new(format!("job_{}", summary.job_id), "job.ended", at, cluster, data))
    }

    /// An alarm that went off or is over.
    pub fn attention(cluster: &ClusterName, alarm: &Alarm) -> Self {
        let Alarm { name, raised, says, reason, changed_at } = alarm;
        let (kind, at) = (if *raised { "attention.raised" } else { "attention.over" }, *changed_at);
        let id = format!("attention_{cluster}_{}_{}", plain(name), at.as_ms());
        Self::new(id, kind, at, cluster, Attention { alarm: name, says, reason, changed_at: at })
    }

    fn new(id: String, kind: &str, at: Time, cluster: &ClusterName, data: impl Serialize) -> Self {
        let envelope = Envelope { kind, timestamp: at.to_string(), cluster, data };
        // This cannot fail: every field is text or a number.
        Self { id, at, body: serde_json::to_string(&envelope).unwrap_or_default() }
    }
}

/// The name with only letters, digits and dashes: it becomes part of a header and of what is signed.
fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures::{at, job_id, ready};
    use model::ids::AllocId;
    use model::time::Span;
    use model::{Alloc, Ending, JobSet, JobSpec};
    use serde_json::{Value, json};

    const KEEP: Span = Span::from_s(86_400);

    fn cluster() -> ClusterName {
        "prod".parse().unwrap()
    }

    fn placed() -> (Job, Alloc) {
        let spec = JobSpec { name: Some("nightly".into()), ..JobSpec::running(["x"]) };
        let job = Job::submit(job_id(0), spec, at(0)).unwrap();
        let id = AllocId { job_id: job.summary.job_id, member: 0, copy: 0 };
        let alloc = Alloc::place(id, &job, &ready(0), at(1)).unwrap();
        (job.with_placed(&[alloc.id()]).unwrap(), alloc)
    }

    #[test]
    fn an_end_is_told_with_all_that_the_job_says_and_a_job_that_goes_on_is_not() {
        let (job, alloc) = placed();
        assert_eq!(Document::job_ended(&cluster(), &job, at(9)), None);
        let ending = Ending { log_tail: Some("boom\n".into()), ..Ending::exited(3) };
        let failed = job.after_end(&alloc.summary, &ending, &[], JobSet::Leaves, KEEP.into(), at(5));
        let document = Document::job_ended(&cluster(), &failed, at(9)).unwrap();
        let id = failed.summary.job_id;
        assert_eq!((document.id, document.at), (format!("job_{id}"), at(5)));
        let should = json!({
            "type": "job.ended", "timestamp": "2027-01-15T08:00:05.000Z", "cluster": "prod",
            "data": {
                "job_id": id, "version": 0, "name": "nightly", "state": "failed", "exit_code": 3, "nodes": 1,
                "cause": {"kind": "exited", "code": 3}, "last_line": "boom",
                "reason": "exit code 3; no retry is allowed; the last line of its output: boom", "failed_count": 1, "lost_count": 0,
                "submitted_at": at(0), "finished_at": at(5),
            },
        });
        assert_eq!(serde_json::from_str::<Value>(&document.body).unwrap(), should);
    }

    #[test]
    fn one_end_has_one_id_although_its_row_changes_later() {
        let (job, alloc) = placed();
        let cancelled = job.cancel(KEEP, at(5)).unwrap();
        let emptied = cancelled.after_end(&alloc.summary, &Ending::exited(1), &[], JobSet::Leaves, KEEP.into(), at(7));
        assert_ne!(cancelled, emptied);
        let of = |job: &Job| Document::job_ended(&cluster(), job, at(9)).map(|d| (d.id, d.at)).unwrap();
        assert_eq!(of(&cancelled), of(&emptied));
    }

    #[test]
    fn an_alarm_is_told_when_it_goes_off_and_when_it_is_over() {
        let alarm = |raised, s| Alarm {
            name: "brakes.held".into(),
            raised,
            says: "look".into(),
            reason: String::new(),
            changed_at: at(s),
        };
        let [raised, over] =
            [(true, 0), (false, 60)].map(|(raised, s)| Document::attention(&cluster(), &alarm(raised, s)));
        assert_eq!(raised.id, format!("attention_prod_brakes-held_{}", at(0).as_ms()), "without a dot");
        assert_ne!(raised.id, over.id);
        let body: Value = serde_json::from_str(&raised.body).unwrap();
        assert_eq!(
            (&body["type"], &body["timestamp"]),
            (&json!("attention.raised"), &json!("2027-01-15T08:00:00.000Z"))
        );
        assert_eq!(body["data"], json!({"alarm": "brakes.held", "says": "look", "changed_at": at(0)}));
        assert!(over.body.contains("attention.over"));
    }
}
