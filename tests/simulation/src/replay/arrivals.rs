//! The file of arrivals: a job on each line, as a JSON object.
//!
//! `at_s` is when it arrives, in seconds since the world began, `seconds` how long it runs, and `count` how many such jobs
//! arrive. `by` is who submits them. Every other field is one of `submit --file`, in the unit that its name says.
//!
//! Guarantees: an error message has the number of its line.
//! Does not: take what a simulated machine does not have: commands, files, images and GPUs.

use model::{Job, JobSpec, Time};
use serde_json::{Map, Value};

/// The fields of a line that become the needs of the job.
const FIELDS: [&str; 12] = [
    "arch",
    "exclusive",
    "instance_type",
    "market",
    "memory_mib",
    "name",
    "nodes",
    "priority",
    "retry_failed",
    "retry_lost",
    "scratch_gib",
    "vcpus",
];
/// The longest time of a file, in seconds: a year.
const LONGEST_S: u64 = 366 * 86_400;
/// The most jobs of a line.
const MOST: u64 = 100_000;

/// Equal jobs that arrive at the same time.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub at_s: u64,
    pub count: usize,
    /// Who submits them.
    pub by: Option<String>,
    pub spec: JobSpec,
}

/// Reads a file of arrivals, and puts them into the order of their times.
pub fn read(file: &str) -> Result<Vec<Arrival>, String> {
    let lines = (1..).zip(file.lines()).filter(|(_, line)| !line.trim().is_empty());
    let read = lines.map(|(n, text)| line(text).map_err(|why| format!("line {n}: {why}")));
    let mut arrivals = read.collect::<Result<Vec<_>, _>>()?;
    if arrivals.is_empty() {
        return Err("it has no job: write {\"at_s\": 0, \"seconds\": 30}, for example".to_owned());
    }
    arrivals.sort_by_key(|arrival| arrival.at_s);
    Ok(arrivals)
}

fn line(text: &str) -> Result<Arrival, String> {
    let mut fields: Map<String, Value> =
        serde_json::from_str(text).map_err(|e| format!("it is not a JSON object: {e}"))?;
    let at_s = whole(&mut fields, "at_s", None, 0..=LONGEST_S)?;
    let seconds = whole(&mut fields, "seconds", None, 1..=LONGEST_S)?;
    let count = whole(&mut fields, "count", Some(1), 1..=MOST)?;
    let by = fields.remove("by").map(|by| by.as_str().map(str::to_owned).ok_or("by must be a name")).transpose()?;
    if let Some(name) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        return Err(format!("{name:?} is not a field of an arrival: at_s, seconds, count, by, {}", FIELDS.join(", ")));
    }
    fields.insert("command".to_owned(), vec!["work".to_owned(), seconds.to_string()].into());
    let spec: JobSpec = serde_json::from_value(Value::Object(fields)).map_err(|e| e.to_string())?;
    Job::submit(model::fixtures::job_id(1), spec.clone(), Time::from_ms(0)).map_err(|e| e.to_string())?;
    Ok(Arrival { at_s, count: usize::try_from(count).unwrap_or(usize::MAX), by, spec })
}

/// Takes a whole number out of the fields of a line.
fn whole(
    fields: &mut Map<String, Value>,
    name: &str,
    default: Option<u64>,
    allowed: std::ops::RangeInclusive<u64>,
) -> Result<u64, String> {
    let given = fields.remove(name);
    let number = given.as_ref().map_or(default, Value::as_u64).filter(|n| allowed.contains(n));
    number.ok_or_else(|| {
        let given = given.map_or_else(|| "it is missing".to_owned(), |given| format!("it is {given}"));
        format!("{name} must be a whole number from {} to {}, {given}", allowed.start(), allowed.end())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_job_with_the_fields_of_submit() {
        let file = "{\"at_s\": 60, \"seconds\": 30, \"vcpus\": 2, \"market\": \"spot\"}\n\n{\"at_s\": 0, \"seconds\": 5, \"count\": 3}";
        let arrivals = read(file).unwrap();
        let of: Vec<_> =
            arrivals.iter().map(|a| (a.at_s, a.count, a.spec.needs.vcpus, a.spec.work.command[1].as_str())).collect();
        assert_eq!(of, [(0, 3, 1, "5"), (60, 1, 2, "30")]);
        assert_eq!(arrivals[1].spec.needs.machine.market, Some(model::MarketNeed::Spot));
    }

    #[test]
    fn a_mistake_is_told_with_its_line() {
        let good = "{\"at_s\": 0, \"seconds\": 5}\n";
        for (bad, told) in [
            ("{", "line 2: it is not a JSON object"),
            ("[]", "line 2: it is not a JSON object"),
            ("{\"seconds\": 5}", "line 2: at_s must be a whole number from 0 to 31622400, it is missing"),
            ("{\"at_s\": 0, \"seconds\": 0}", "line 2: seconds must be a whole number from 1 to 31622400, it is 0"),
            ("{\"at_s\": 0, \"seconds\": 5, \"count\": -1}", "line 2: count must be"),
            ("{\"at_s\": 0, \"seconds\": 5, \"gpus\": 1}", "line 2: \"gpus\" is not a field of an arrival"),
            ("{\"at_s\": 0, \"seconds\": 5, \"vcpus\": \"two\"}", "line 2: invalid type"),
            (
                "{\"at_s\": 0, \"seconds\": 5, \"vcpus\": 0}",
                "line 2: the job was not submitted: --vcpus must be at least 1",
            ),
            ("{\"at_s\": 0, \"seconds\": 5, \"market\": \"Spot\"}", "line 2: "),
        ] {
            let error = read(&format!("{good}{bad}")).unwrap_err();
            assert!(error.starts_with(told), "{bad}: {error}");
        }
        assert!(read("\n").unwrap_err().starts_with("it has no job"));
    }
}
