//! The names of things: slots, nodes, jobs, allocs.
//!
//! Guarantees: a value of one of these types is well formed; a node id contains its slot, and an alloc id contains
//! its job, member and copy, so that no index is needed to find a record.
//! Does not: know whether the thing exists.

use crate::names::is_plain_name;
use crate::text_form::text_form;
use crate::{BadText, Time};
use derive_more::{Display, Into};
use serde::{Deserialize, Serialize};
use std::str::FromStr;
pub use ulid::Ulid;

/// The highest number of slots a cluster can have: `nodes.max` may not exceed it.
pub const SLOT_CEILING: u32 = 100_000;

/// A place for one node: one row of the nodes table. Slot 0 is a slot like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Display, Into)]
#[serde(try_from = "u32", into = "u32")]
pub struct Slot(u32);

impl Slot {
    /// The slot with this number, if it is below [`SLOT_CEILING`]. Otherwise an error.
    pub fn new(n: u32) -> Result<Self, BadText> {
        if n < SLOT_CEILING { Ok(Self(n)) } else { Err(BadText::no("slot", &n.to_string(), "a number below 100000")) }
    }

    pub const fn number(self) -> u32 {
        self.0
    }

    /// All slots below `max` (and below the ceiling), lowest first.
    pub fn below(max: u32) -> impl Iterator<Item = Slot> {
        (0..max.min(SLOT_CEILING)).map(Slot)
    }
}

impl TryFrom<u32> for Slot {
    type Error = BadText;
    fn try_from(n: u32) -> Result<Self, BadText> {
        Self::new(n)
    }
}

impl FromStr for Slot {
    type Err = BadText;
    fn from_str(s: &str) -> Result<Self, BadText> {
        s.parse::<u32>().map_err(|_| BadText::no("slot", s, "a number below 100000")).and_then(Self::new)
    }
}

/// One life of a slot: `{slot}-{ULID}`, made when the slot is assigned and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
#[display("{slot}-{ulid}")]
pub struct NodeId {
    slot: Slot,
    ulid: Ulid,
}

impl NodeId {
    /// A new life of `slot`. The ULID begins with the time, so a later life of a slot compares greater.
    pub const fn new(slot: Slot, ulid: Ulid) -> Self {
        Self { slot, ulid }
    }

    pub const fn slot(self) -> Slot {
        self.slot
    }

    /// The part that differs between lives of the same slot.
    pub const fn ulid(self) -> Ulid {
        self.ulid
    }
}

/// The ULID with this text. There is only one spelling: otherwise lower case, for instance, would be a second name of the same
/// thing.
pub(crate) fn only_spelling(s: &str) -> Option<Ulid> {
    // 26 characters of 5 bits are 130 bits, so the first one is at most 7.
    let is_digit =
        |b: u8| matches!(b, b'0'..=b'9' | b'A'..=b'H' | b'J' | b'K' | b'M' | b'N' | b'P'..=b'T' | b'V'..=b'Z');
    let fits = s.as_bytes().first().is_some_and(|first| (b'0'..=b'7').contains(first));
    if fits && s.bytes().all(is_digit) { s.parse().ok() } else { None }
}

/// The number with this text. There is only one spelling: no sign and no leading zero.
fn number(s: &str) -> Option<u32> {
    let plain = s == "0" || s.starts_with(|c| matches!(c, '1'..='9'));
    s.parse().ok().filter(|_| plain)
}

impl FromStr for NodeId {
    type Err = BadText;
    fn from_str(s: &str) -> Result<Self, BadText> {
        let bad = || BadText::no("node id", s, "{slot}-{ULID}");
        let (slot, ulid) = s.split_once('-').ok_or_else(bad)?;
        let slot = number(slot).and_then(|n| Slot::new(n).ok());
        Ok(Self { slot: slot.ok_or_else(bad)?, ulid: only_spelling(ulid).ok_or_else(bad)? })
    }
}

/// The id of a job: a ULID, so that the order of ids is the order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
pub struct JobId(Ulid);

impl JobId {
    pub const fn new(id: Ulid) -> Self {
        Self(id)
    }

    pub const fn ulid(self) -> Ulid {
        self.0
    }

    /// When the id was made: its ULID holds the time.
    pub fn made_at(self) -> Time {
        Time::from_ms(i64::try_from(self.0.timestamp_ms()).unwrap_or(i64::MAX))
    }

    /// The last byte of the ULID. It is random, or a part of the job's number in an array, so it spreads jobs evenly.
    pub const fn random_byte(self) -> u8 {
        let [.., last] = self.0.to_bytes();
        last
    }
}

impl FromStr for JobId {
    type Err = BadText;
    fn from_str(s: &str) -> Result<Self, BadText> {
        only_spelling(s).map(Self).ok_or_else(|| BadText::no("job id", s, "a ULID"))
    }
}

/// The id of one copy of one member of a job: `{job_id}.{member}.{copy}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
#[display("{job_id}.{member}.{copy}")]
pub struct AllocId {
    pub job_id: JobId,
    /// The number of the member, from 0.
    pub member: u32,
    /// The number of the copy, from 0, counted over the whole job.
    pub copy: u32,
}

impl FromStr for AllocId {
    type Err = BadText;
    fn from_str(s: &str) -> Result<Self, BadText> {
        let bad = || BadText::no("alloc id", s, "{job_id}.{member}.{copy}");
        let mut parts = s.splitn(3, '.');
        let mut next = || parts.next().ok_or_else(bad);
        Ok(Self {
            job_id: next()?.parse().map_err(|_| bad())?,
            member: number(next()?).ok_or_else(bad)?,
            copy: number(next()?).ok_or_else(bad)?,
        })
    }
}

text_form!(NodeId, JobId, AllocId, ClusterName);

/// The name of a deployment: it names the tables and tags the instances.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
pub struct ClusterName(String);

impl ClusterName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterName {
    type Err = BadText;
    /// 1 to 64 characters, each allowed in a table name and in a tag value.
    fn from_str(s: &str) -> Result<Self, BadText> {
        let name = is_plain_name(s).then(|| Self(s.to_owned()));
        name.ok_or_else(|| BadText::no("cluster name", s, "1 to 64 letters, digits, '-', '_' or '.'"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_has_one_spelling() {
        let node = "0-01JD0000000000000000000000";
        assert_eq!(node.parse::<NodeId>().unwrap().to_string(), node);
        assert_eq!(node.parse::<NodeId>().unwrap().slot(), Slot::new(0).unwrap());
        for bad in [
            "",
            "-",
            "7",
            "00-01JD0000000000000000000000",
            "+0-01JD0000000000000000000000",
            "0-01jd0000000000000000000000",
            "100000-01JD0000000000000000000000",
            "0-01JD",
            "0-01JD000000000000000000000\u{130}",
            "0-81JD0000000000000000000000",
            "0-01JDI000000000000000000000",
            "0-01JDL000000000000000000000",
            "0-01JDO000000000000000000000",
            "0-01JDU000000000000000000000",
            "0-01JD00000000000000000000000",
        ] {
            assert!(bad.parse::<NodeId>().is_err(), "{bad}");
        }
        let alloc = "01JD0000000000000000000000.3.12";
        let id: AllocId = alloc.parse().unwrap();
        assert_eq!((id.member, id.copy, id.to_string().as_str()), (3, 12, alloc));
        for bad in [
            "01JD0000000000000000000000.3",
            "01JD0000000000000000000000.3.12.1",
            "x.1.2",
            "01JD0000000000000000000000.03.1",
        ] {
            assert!(bad.parse::<AllocId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_huge_name_makes_a_short_error() {
        let error = "x".repeat(1 << 20).parse::<NodeId>().unwrap_err().to_string();
        assert!(error.len() < 200, "{} bytes", error.len());
    }
}
