//! Writes that are cheaper together, and that must not block each other.
//!
//! Guarantees: a row that somebody has changed fails its own write only.
//! Does not: write; its caller does.

use crate::db::WriteError;

/// Things that are written together, and the result.
pub type PartWritten<'t, T, R> = (&'t [T], Result<R, WriteError>);

/// Writes several things: all together. If somebody has changed one of the rows meanwhile, each alone.
pub async fn together<'t, T, R, F: Future<Output = Result<R, WriteError>>>(
    things: &'t [T],
    mut write: impl FnMut(&'t [T]) -> F,
) -> Vec<PartWritten<'t, T, R>> {
    if things.is_empty() {
        return Vec::new();
    }
    let all = write(things).await;
    if things.len() == 1 || !all.as_ref().is_err_and(WriteError::is_conflict) {
        return vec![(things, all)];
    }
    let mut each = Vec::with_capacity(things.len());
    for one in things.chunks(1) {
        each.push((one, write(one).await));
    }
    each
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::ready;

    #[tokio::test]
    async fn only_a_lost_race_for_several_is_tried_again_for_each() {
        let attempts = async |all: &[u32], result: fn() -> Result<(), WriteError>| {
            let mut made = Vec::new();
            let parts = together(all, |some| {
                made.push(some.to_vec());
                ready(result())
            });
            let parts = parts.await;
            assert_eq!(parts.iter().flat_map(|(some, _)| *some).collect::<Vec<_>>(), all.iter().collect::<Vec<_>>());
            made
        };
        assert_eq!(attempts(&[1, 2], || Err(WriteError::CONFLICT)).await, [vec![1, 2], vec![1], vec![2]]);
        assert_eq!(attempts(&[1, 2], || Err(WriteError::Contended)).await, [vec![1, 2], vec![1], vec![2]]);
        assert_eq!(attempts(&[1, 2], || Ok(())).await, [vec![1, 2]]);
        assert_eq!(attempts(&[1], || Err(WriteError::CONFLICT)).await, [vec![1]]);
        assert!(attempts(&[], || Ok(())).await.is_empty());
    }
}
