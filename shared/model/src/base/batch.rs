//! A batch: nodes that one launch call asks for.
//!
//! Their node ids share a ULID. Nothing differs between the instances of the call, neither user data nor tags, so an
//! instance may be any node of its batch. It is the one whose record names it (`docs/rules.md#batches`).
//!
//! Guarantees: the slots are in ascending order and different; the text form fits in a tag, and there is only one for a
//! batch.
//! Does not: know which of its instances exist.

use crate::ids::{Ulid, only_spelling};
use crate::text_form::text_form;
use crate::{BadText, NodeId, Ranges, Slot};
use std::fmt;
use std::str::FromStr;

/// The most nodes of a batch. All of them are claimed in one transaction, which has at most 100 writes.
pub const MAX_BATCH: usize = 99;

/// The longest text form, in bytes: the longest value of a tag ("Tag your Amazon EC2 resources", EC2 User Guide).
const MAX_TEXT_BYTES: usize = 256;

/// Nodes that one launch call asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    ulid: Ulid,
    slots: Vec<Slot>,
}

impl Batch {
    /// A batch of the lowest of these slots, as many as one call may ask for. `None` without slots.
    pub fn of_lowest(ulid: Ulid, mut slots: Vec<Slot>) -> Option<Self> {
        slots.sort_unstable();
        slots.dedup();
        slots.truncate(MAX_BATCH);
        let mut batch = Self { ulid, slots };
        while batch.to_string().len() > MAX_TEXT_BYTES {
            batch.slots.pop();
        }
        (!batch.slots.is_empty()).then_some(batch)
    }

    /// The part that all its node ids share.
    pub const fn ulid(&self) -> Ulid {
        self.ulid
    }

    /// The slots, in ascending order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The nodes, in the order of their slots.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.slots.iter().map(|slot| NodeId::new(*slot, self.ulid))
    }

    /// The ULID in the text form of a batch. The rest of the text is not read.
    pub fn ulid_in(text: &str) -> Option<Ulid> {
        only_spelling(text.split_once(':')?.0)
    }

    /// The first half, if there are two nodes or more.
    pub fn half(&self) -> Option<Self> {
        let slots = self.slots.get(..self.slots.len() / 2)?.to_vec();
        (!slots.is_empty()).then_some(Self { ulid: self.ulid, slots })
    }
}

impl fmt::Display for Batch {
    /// `{ULID}:{slots}`, where the slots are numbers and ranges, as in `0-98+105`. These characters are allowed in the
    /// tags of every service.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots: Ranges = self.slots.iter().map(|slot| slot.number()).collect();
        write!(f, "{}:{}", self.ulid, slots.to_string().replace(',', "+"))
    }
}

impl FromStr for Batch {
    type Err = BadText;
    fn from_str(s: &str) -> Result<Self, BadText> {
        let bad = || BadText::no("batch", s, "{ULID}:{slots}, with slots as in 0-98+105");
        let (ulid, slots) = s.split_once(':').filter(|_| s.len() <= MAX_TEXT_BYTES).ok_or_else(bad)?;
        let slots: Ranges = slots.replace('+', ",").parse().map_err(|_| bad())?;
        if slots.count() > MAX_BATCH as u64 {
            return Err(bad());
        }
        let slots = slots.iter().map(Slot::new).collect::<Result<_, _>>().map_err(|_| bad())?;
        let batch = Self { ulid: only_spelling(ulid).ok_or_else(bad)?, slots };
        // There is one spelling: ascending, without repetition, and with the longest ranges.
        if batch.to_string() == s { Ok(batch) } else { Err(bad()) }
    }
}

text_form!(Batch);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::slot;

    const ULID: &str = "01JD0000000000000000000000";

    fn of(slots: impl IntoIterator<Item = u32>) -> Batch {
        Batch::of_lowest(ULID.parse().unwrap(), slots.into_iter().map(slot).collect()).unwrap()
    }

    #[test]
    fn a_batch_has_one_spelling() {
        for (slots, text) in [
            (vec![0], "0"),
            (vec![0, 1, 2, 7], "0-2+7"),
            (vec![3, 5, 6, 100, 102, 103], "3+5-6+100+102-103"),
            ((0..99).collect(), "0-98"),
        ] {
            let batch = of(slots.clone());
            assert_eq!(batch.to_string(), format!("{ULID}:{text}"));
            assert_eq!(batch.to_string().parse::<Batch>().unwrap(), batch);
            assert_eq!(batch.slots().iter().map(|s| s.number()).collect::<Vec<_>>(), slots);
        }
        for bad in [
            "",
            ":0",
            "1-0",
            "0+1",
            "1+0",
            "0-1+1",
            "0-0",
            "00",
            "0-99",
            "0-4294967295",
            "0-",
            "-3",
            "0++2",
            "x",
            "99999999999",
        ] {
            assert!(format!("{ULID}:{bad}").parse::<Batch>().is_err(), "{bad}");
        }
        assert!(format!("{}:0", ULID.to_lowercase()).parse::<Batch>().is_err());
    }

    #[test]
    fn a_batch_takes_as_many_of_the_lowest_slots_as_a_call_and_a_tag_can_have() {
        assert_eq!(of((0..500).rev()).to_string(), format!("{ULID}:0-98"));
        let scattered = of((0..99).map(|n| 5000 + 2 * n));
        assert!(scattered.slots().len() < 99 && scattered.to_string().len() <= 256, "{scattered}");
        assert!(scattered.to_string().len() > 256 - 6, "one more would fit: {scattered}");
        assert_eq!(scattered.slots()[0], slot(5000));
        assert_eq!(Batch::of_lowest(ULID.parse().unwrap(), Vec::new()), None);
    }

    #[test]
    fn a_batch_is_named_by_its_ulid_also_in_its_half() {
        let batch = of([4, 5, 9]);
        assert_eq!(Batch::ulid_in(&batch.to_string()), Some(batch.ulid()));
        for bad in ["", "0-3", ":0-3", "x:0-3", &ULID.to_lowercase()] {
            assert_eq!(Batch::ulid_in(bad), None, "{bad}");
        }
        let half = batch.half().unwrap();
        assert_eq!((half.ulid(), half.slots()), (batch.ulid(), &[slot(4)][..]));
        assert_eq!(half.half(), None);
    }
}
