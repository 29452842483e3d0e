//! Arrays: jobs that were submitted together and have consecutive ids.
//!
//! The id of a job of an array has three parts: the time of its submission, a random part that all jobs of the array share,
//! and the job's number in the array, which are the last 24 bits. So the array of a job, or of an alloc, is known from its
//! id alone, and no table lists an array.
//!
//! Guarantees: jobs of one array are in the order of their numbers; ids of other jobs are never in an array, because 56 bits
//! of theirs are random too.
//! Does not: limit anything. The plan of poll-and-scale keeps to `array_limit`.

use crate::JobId;
use crate::ids::Ulid;

/// The bits of an id that number the jobs of an array.
const NUMBER_BITS: u32 = 24;

/// The most jobs of an array.
pub const MAX_ARRAY: u32 = 1 << NUMBER_BITS;

/// The variable of each job of an array that says how many elements the array has.
pub const COUNT_VARIABLE: &str = "NODEKEEPER_ARRAY_COUNT";
/// The variable of each job of an array, unless it is a pack, that has its number.
pub const INDEX_VARIABLE: &str = "NODEKEEPER_ARRAY_INDEX";

/// The part that the ids of all jobs of an array have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Array(u128);

impl Array {
    /// The array that begins at this time. Of the token, 56 bits count.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn new(at: crate::time::Time, token: u64) -> Self {
        let ms = u64::try_from(at.as_ms()).unwrap_or(0);
        Self::of(JobId::new(Ulid::from_parts(ms, u128::from(token >> 8) << NUMBER_BITS)))
    }

    /// The array of this job.
    pub fn of(job: JobId) -> Self {
        Self(u128::from_be_bytes(job.ulid().to_bytes()) >> NUMBER_BITS)
    }

    /// The number of this job in its array. Of a job that is of no array, it is random.
    pub fn number(job: JobId) -> u32 {
        let [.., a, b, c] = job.ulid().to_bytes();
        u32::from_be_bytes([0, a, b, c])
    }

    /// The array whose ids come this many arrays later.
    pub const fn behind(self, arrays: u32) -> Self {
        Self(self.0.saturating_add(arrays as u128))
    }

    /// The id of job number `n`, which is below [`MAX_ARRAY`]; a higher number counts from 0 again.
    pub fn job(self, n: u32) -> JobId {
        let id = (self.0 << NUMBER_BITS) | u128::from(n % MAX_ARRAY);
        JobId::new(Ulid::from_bytes(id.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Time;
    use std::collections::BTreeSet;

    #[test]
    fn the_ids_of_an_array_are_in_its_order() {
        let of = |ms, token| Array::new(Time::from_ms(ms), token);
        let array = of(1_800_000_000_000, 0x0123_4567_89ab_cdef);
        let numbers = [0, 1, 2, 255, 256, 99_999, MAX_ARRAY - 1];
        let some = numbers.map(|n| array.job(n));
        assert!(some.is_sorted_by(|a, b| a < b), "{some:?}");
        assert!(some.iter().all(|job| Array::of(*job) == array));
        assert_eq!(some.map(Array::number), numbers);
        assert_eq!(of(1_800_000_000_000, 0x0123_4567_89ab_cd00), array, "56 bits of the token count");
        assert_ne!(of(1_800_000_000_000, 0x0123_4567_89ac_0000), array);
        assert_ne!(of(1_800_000_000_001, 0x0123_4567_89ab_cdef), array);
        assert_eq!(array.job(MAX_ARRAY), array.job(0));
        let spread: BTreeSet<u8> = (0..8).map(|n| array.job(n).random_byte() % 8).collect();
        assert_eq!(spread.len(), 8, "they are spread over the parts of the queue");
    }
}
