//! What starts the function: changes of the jobs table, and alarms.
//!
//! Guarantees: each job of a batch is named once, with its last change: to try it again, that one is enough. What cannot
//! be understood is left out and logged, because another try would not help.
//! Does not: believe what an event says of a job. The job is read by its key.

use crate::document::Alarm;
use model::ids::{ClusterName, JobId};
use model::time::Time;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// What an event asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Jobs whose rows have changed, each with the number of its last change in the stream.
    Changes(BTreeMap<JobId, String>),
    /// Alarms of the cluster that went off or are over.
    Alarms(Vec<Alarm>),
}

/// The message that CloudWatch sends for an alarm.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Message {
    alarm_name: String,
    #[serde(default)]
    alarm_description: Option<String>,
    new_state_value: String,
    #[serde(default)]
    new_state_reason: String,
    state_change_time: String,
    #[serde(default)]
    old_state_value: String,
}

impl Input {
    /// Reads an event of Lambda. An event of another kind is a batch without changes.
    pub fn read(event: &Value, cluster: &ClusterName) -> Self {
        let records = event.get("Records").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        if records.is_empty() {
            tracing::warn!("an event without records: nothing is sent");
        }
        if records.iter().any(|record| record.get("Sns").is_some()) {
            return Self::Alarms(records.iter().filter_map(|record| alarm(record, cluster)).collect());
        }
        let changes = records.iter().filter_map(|record| {
            let change = change(record);
            if change.is_none() {
                tracing::warn!(id = ?record.get("eventID"), "a record without job and number: left out");
            }
            change
        });
        // Later records replace earlier ones of the same job.
        Self::Changes(changes.collect())
    }
}

/// The job of a record, and the record's number in the stream.
fn change(record: &Value) -> Option<(JobId, String)> {
    let text = |pointer: &str| record.pointer(pointer).and_then(Value::as_str);
    let job = text("/dynamodb/Keys/job_id/S")?.parse().ok()?;
    Some((job, text("/dynamodb/SequenceNumber").filter(|number| !number.is_empty())?.to_owned()))
}

/// The alarm of a record; `None` for whatever is no news about an alarm of the cluster.
fn alarm(record: &Value, cluster: &ClusterName) -> Option<Alarm> {
    let text = record.pointer("/Sns/Message").and_then(Value::as_str).unwrap_or_default();
    let message: Message = match serde_json::from_str(text) {
        Ok(message) => message,
        Err(error) => {
            tracing::warn!(%error, "a message that is no alarm of CloudWatch: left out");
            return None;
        }
    };
    let name = message.alarm_name.strip_prefix(cluster.as_str())?.strip_prefix('-')?;
    // The webhook does not tell its own alarms: each try would fail, count as failed, and keep the alarm on.
    if name.starts_with("webhook-") {
        return None;
    }
    let raised = match (message.old_state_value.as_str(), message.new_state_value.as_str()) {
        (_, "ALARM") => true,
        ("ALARM", "OK") => false,
        // A new alarm has no data yet, and then is not off: nothing is over.
        _ => return None,
    };
    let Ok(changed_at) = message.state_change_time.parse::<Time>() else {
        tracing::warn!(time = message.state_change_time, "an alarm whose time cannot be read: left out");
        return None;
    };
    Some(Alarm {
        name: name.to_owned(),
        raised,
        says: message.alarm_description.unwrap_or_default(),
        reason: message.new_state_reason,
        changed_at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::fixtures::job_id;
    use serde_json::json;

    fn read(event: &Value) -> Input {
        Input::read(event, &"prod".parse().unwrap())
    }

    #[test]
    fn a_job_of_a_batch_is_named_once_with_its_last_change() {
        let record = |n: u32, number: &str| json!({"eventName": "MODIFY", "dynamodb": {"Keys": {"job_id": {"S": job_id(n)}}, "SequenceNumber": number}});
        let broken = json!({"dynamodb": {"Keys": {"job_id": {"S": "no ulid"}}, "SequenceNumber": "4"}});
        let event = json!({"Records": [record(1, "1"), record(2, "2"), record(1, "3"), broken, record(3, ""), 7]});
        let should = BTreeMap::from([(job_id(1), "3".to_owned()), (job_id(2), "2".to_owned())]);
        assert_eq!(read(&event), Input::Changes(should));
        for other in [json!({}), json!(null), json!([1]), json!({"Records": 3})] {
            assert_eq!(read(&other), Input::Changes(BTreeMap::new()), "{other}");
        }
    }

    fn event(change: impl Fn(&mut Value)) -> Value {
        let mut message = json!({
            "AlarmName": "prod-brakes-held", "AlarmDescription": "look", "NewStateValue": "ALARM",
            "NewStateReason": "Threshold Crossed", "StateChangeTime": "2027-01-15T08:00:00.250+0000",
            "OldStateValue": "OK", "Trigger": {"MetricName": "HeldByBrakes"},
        });
        change(&mut message);
        json!({"Records": [{"EventSource": "aws:sns", "Sns": {"Message": message.to_string()}}]})
    }

    #[test]
    fn an_alarm_of_the_cluster_that_goes_off_or_is_over_is_news() {
        let news = |change: &dyn Fn(&mut Value)| match read(&event(change)) {
            Input::Alarms(alarms) => alarms,
            other => panic!("{other:?}"),
        };
        let should = Alarm {
            name: "brakes-held".into(),
            raised: true,
            says: "look".into(),
            reason: "Threshold Crossed".into(),
            changed_at: Time::from_ms(1_800_000_000_250),
        };
        assert_eq!(news(&|_| ()), std::slice::from_ref(&should));
        let states = |old: &'static str, new: &'static str| {
            let set = move |m: &mut Value| (m["OldStateValue"], m["NewStateValue"]) = (old.into(), new.into());
            news(&set).first().map(|alarm| alarm.raised)
        };
        assert_eq!((states("INSUFFICIENT_DATA", "ALARM"), states("ALARM", "OK")), (Some(true), Some(false)));
        assert_eq!((states("INSUFFICIENT_DATA", "OK"), states("ALARM", "INSUFFICIENT_DATA")), (None, None));
        for silent in ["other-brakes-held", "prod2-brakes-held", "prod-webhook-failed", "prod-webhook-errors", "prod"] {
            assert_eq!(news(&|m| m["AlarmName"] = silent.into()), [], "{silent}");
        }
        assert_eq!(news(&|m| m["StateChangeTime"] = "soon".into()), []);
        assert_eq!(news(&|m| *m = "no alarm".into()), []);
        assert_eq!(news(&|m| m["AlarmDescription"] = Value::Null), [Alarm { says: String::new(), ..should }]);
    }
}
