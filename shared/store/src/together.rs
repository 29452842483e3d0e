//! Writes that are cheaper together, and that must not block each other.
//!
//! Guarantees: a row that somebody has changed fails its own write only.
//! Does not: write; its caller does, and reports the result.

use crate::db::WriteError;

/// The attempts to write several things: first all together. If somebody has changed one of the rows meanwhile, each
/// alone.
#[derive(Debug)]
pub struct Attempts<'t, T> {
    all: &'t [T],
    left: std::slice::Chunks<'t, T>,
}

impl<'t, T> Attempts<'t, T> {
    pub fn new(all: &'t [T]) -> Self {
        Self { all, left: all.chunks(all.len().max(1)) }
    }

    /// What to write next; `None` if nothing is left.
    pub fn take_next(&mut self) -> Option<&'t [T]> {
        self.left.next()
    }

    /// Takes the result of writing all. Returns whether each is tried alone now.
    pub fn split_after<R>(&mut self, result: &Result<R, WriteError>) -> bool {
        let all = std::mem::take(&mut self.all);
        let part = all.len() > 1 && result.as_ref().is_err_and(WriteError::is_conflict);
        if part {
            self.left = all.chunks(1);
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lost_race_for_several_is_tried_again_for_each() {
        let attempts = |all: &[u32], result: Result<(), WriteError>| {
            let mut attempts = Attempts::new(all);
            let mut made = Vec::new();
            while let Some(some) = attempts.take_next() {
                made.push(some.to_vec());
                attempts.split_after(&result);
            }
            made
        };
        assert_eq!(attempts(&[1, 2], Err(WriteError::CONFLICT)), [vec![1, 2], vec![1], vec![2]]);
        assert_eq!(attempts(&[1, 2], Err(WriteError::Contended)), [vec![1, 2], vec![1], vec![2]]);
        assert_eq!(attempts(&[1, 2], Ok(())), [vec![1, 2]]);
        assert_eq!(attempts(&[1], Err(WriteError::CONFLICT)), [vec![1]]);
        assert!(attempts(&[], Ok(())).is_empty());
    }
}
