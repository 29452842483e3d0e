//! `[[minimum]]`: how many nodes are kept up at some hours of the week.
//!
//! Guarantees: the hours are those of the wall clock in the given time zone, also on the days on which its clocks are
//! changed; of several minimums at one moment, the largest counts.
//! Does not: launch nodes before the hour begins. They are launched then, and are there when they have booted.
//! Source of the time zones: the IANA database, which is a part of the program.

use crate::Time;
use crate::text_form::text_form;
use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// The days of the week, as the policy calls them.
pub(super) const DAYS: &[&str] = &["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

/// The minutes of a day.
const DAY: u16 = 24 * 60;

/// A minute of the day, as `08:30`. `24:00` is the end of the day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minute(u16);

impl FromStr for Minute {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| if text.len() == 2 { text.parse::<u16>().ok() } else { None };
        let minute = text
            .split_once(':')
            .and_then(|(hours, minutes)| Some(number(hours)? * 60 + number(minutes).filter(|minutes| *minutes < 60)?));
        minute
            .filter(|minute| *minute <= DAY)
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not a time of day like 08:30"))
    }
}

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

text_form!(Minute);

pub(super) fn zone(name: &str) -> Option<TimeZone> {
    TimeZone::get(name).ok()
}

/// A number of nodes that is kept up at some hours.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Minimum {
    pub nodes: u32,
    /// The days on which the hours begin.
    pub days: BTreeSet<String>,
    pub from: Minute,
    /// The end of the hours: on the next day, if it is not after `from`.
    pub to: Minute,
    pub time_zone: String,
}

impl Minimum {
    pub fn applies(&self, now: Time) -> bool {
        let (Some(zone), Ok(now)) = (zone(&self.time_zone), Timestamp::from_millisecond(now.as_ms())) else {
            return false;
        };
        let there = now.to_zoned(zone);
        let at = Minute(u16::try_from(i32::from(there.hour()) * 60 + i32::from(there.minute())).unwrap_or(0));
        let has = |day: Weekday| {
            let name = DAYS.get(usize::try_from(day.to_monday_zero_offset()).unwrap_or(0));
            name.is_some_and(|name| self.days.contains(*name))
        };
        let (today, yesterday) = (there.weekday(), there.weekday().previous());
        if self.from < self.to {
            has(today) && (self.from..self.to).contains(&at)
        } else {
            (has(today) && self.from <= at) || (has(yesterday) && at < self.to)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use serde_json::{Value, json};

    fn policy(minimum: Value) -> Policy {
        let mut document = super::super::example_json();
        document["nodes"] = json!({"min": 1});
        document["minimum"] = minimum;
        Policy::from_json(&document).unwrap()
    }

    fn at(text: &str) -> Time {
        let at: Timestamp = text.parse().unwrap();
        Time::from_ms(at.as_millisecond())
    }

    #[test]
    fn the_hours_are_those_of_the_wall_clock() {
        let work =
            policy(json!([{"nodes": 5, "days": ["mon", "tue", "wed", "thu", "fri"], "from": "08:00", "to": "18:00",
                                  "time_zone": "Europe/Berlin"}]));
        let night = policy(json!([{"nodes": 7, "days": ["fri"], "from": "22:00", "to": "06:00"},
                                  {"nodes": 3, "from": "05:00", "to": "05:30"}]));
        for (policy, time, nodes) in [
            // Monday, in winter: Berlin is an hour ahead.
            (&work, "2026-11-23T06:59:00Z", 1),
            (&work, "2026-11-23T07:00:00Z", 5),
            (&work, "2026-11-23T16:59:59Z", 5),
            (&work, "2026-11-23T17:00:00Z", 1),
            // In summer, two.
            (&work, "2026-07-20T06:00:00Z", 5),
            (&work, "2026-07-20T16:00:00Z", 1),
            // Sunday.
            (&work, "2026-11-22T10:00:00Z", 1),
            // Friday night, into Saturday; not into Friday.
            (&night, "2026-11-27T22:00:00Z", 7),
            (&night, "2026-11-28T05:15:00Z", 7),
            (&night, "2026-11-28T06:00:00Z", 1),
            (&night, "2026-11-27T05:15:00Z", 3),
            (&night, "2026-11-27T04:00:00Z", 1),
        ] {
            assert_eq!(policy.minimum_at(at(time)), nodes, "{time}");
        }
    }

    /// The days on which Berlin's clocks go from 2 to 3, and back.
    #[test]
    fn an_hour_that_is_not_there_and_one_that_is_twice() {
        let early = policy(json!([{"nodes": 4, "from": "01:30", "to": "03:30", "time_zone": "Europe/Berlin"}]));
        let minutes = |from: &str| {
            let from = at(from);
            (0..24 * 60).filter(|m| early.minimum_at(from + crate::time::Span::from_s(m * 60)) == 4).count()
        };
        assert_eq!(minutes("2026-03-27T23:00:00Z"), 120, "a usual day");
        assert_eq!(minutes("2026-03-28T23:00:00Z"), 60, "the hour from 2 to 3 is not there");
        assert_eq!(minutes("2026-10-24T22:00:00Z"), 180, "the hour from 2 to 3 is twice");
    }

    #[test]
    fn what_is_wrong_is_told_with_what_is_allowed() {
        let wrong = |minimum: Value| {
            let mut document = super::super::example_json();
            document["minimum"] = json!([minimum]);
            Policy::from_json(&document).unwrap_err().to_string()
        };
        for (minimum, says) in [
            (json!({"nodes": 1, "from": "8:00"}), "minimum[0].from: \"8:00\" is not allowed: it must be a time of day"),
            (json!({"nodes": 1, "to": "24:01"}), "minimum[0].to"),
            (json!({"nodes": 1, "days": ["monday"]}), "minimum[0].days"),
            (json!({"nodes": 1, "days": []}), "minimum[0].days"),
            (json!({"nodes": 1, "time_zone": "Berlin"}), "the name of a time zone in the IANA database"),
            (json!({"nodes": 65}), "minimum[0].nodes: 65 is more than nodes.max = 64"),
            (json!({"from": "08:00"}), "minimum[0].nodes: is missing"),
            (json!({"nodes": 1, "hours": 3}), "minimum[0].hours: is not a knob"),
        ] {
            assert!(wrong(minimum.clone()).contains(says), "{minimum}: {}", wrong(minimum.clone()));
        }
        let document = policy(json!([{"nodes": 2}])).to_json();
        assert_eq!(document["minimum"][0]["to"], "24:00");
        assert_eq!(Policy::from_json(&document).unwrap().to_json(), document);
    }
}
