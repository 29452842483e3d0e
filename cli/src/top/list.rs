//! A list with a selected row, a filter and a window on the screen.
//!
//! Guarantees: the selected row stays selected while rows come and go around it. The selected row is on the screen.
//! Does not: keep the rows. It keeps their numbers and keys.

/// A list. `K` is the key of a row.
#[derive(Debug)]
pub(super) struct List<K> {
    /// The words that a row must contain.
    pub(super) filter: String,
    /// The numbers and keys of the rows that the filter takes.
    shown: Vec<(usize, K)>,
    at: usize,
    offset: usize,
    height: usize,
}

impl<K> Default for List<K> {
    fn default() -> Self {
        Self { filter: String::new(), shown: Vec::new(), at: 0, offset: 0, height: 1 }
    }
}

impl<K: Copy + PartialEq> List<K> {
    /// Replaces the rows by those that the filter takes now, in their order.
    pub(super) fn update(&mut self, shown: impl Iterator<Item = (usize, K)>) {
        let selected = self.selected();
        self.shown = shown.collect();
        let place = selected.and_then(|key| self.shown.iter().position(|(_, k)| *k == key));
        self.select(place.unwrap_or(self.at));
    }

    /// The key of the selected row.
    pub(super) fn selected(&self) -> Option<K> {
        self.shown.get(self.at).map(|(_, key)| *key)
    }

    pub(super) fn len(&self) -> usize {
        self.shown.len()
    }

    /// The selected row, the last row, and the number of rows of a page.
    pub(super) fn place(&self) -> (usize, usize, usize) {
        (self.at, self.shown.len().saturating_sub(1), self.height)
    }

    /// The numbers of the rows on a screen of this height, and which of them is selected.
    pub(super) fn on_screen(&mut self, height: usize) -> (Vec<usize>, Option<usize>) {
        self.height = height.max(1);
        self.select(self.at);
        let rows: Vec<usize> = self.shown.iter().skip(self.offset).take(self.height).map(|(n, _)| *n).collect();
        let selected = (!rows.is_empty()).then(|| self.at.saturating_sub(self.offset));
        (rows, selected)
    }

    /// Selects this row, or the last one if there are fewer.
    pub(super) fn select(&mut self, at: usize) {
        self.at = at.min(self.shown.len().saturating_sub(1));
        let first = (self.at + 1).saturating_sub(self.height);
        self.offset = self.offset.clamp(first, self.at.max(first));
        // There are no empty lines below the last row while rows are above the screen.
        self.offset = self.offset.min(self.shown.len().saturating_sub(self.height).max(first));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(keys: &[u32]) -> List<u32> {
        let mut list = List::default();
        list.update(keys.iter().copied().enumerate());
        list
    }

    #[test]
    fn the_selected_row_is_on_the_screen() {
        let mut list = list(&(0..100).collect::<Vec<_>>());
        assert_eq!(list.on_screen(10), ((0..10).collect(), Some(0)));
        list.select(list.at + 10);
        assert_eq!(list.on_screen(10), ((1..11).collect(), Some(9)));
        list.select(usize::MAX);
        assert_eq!(list.on_screen(10), ((90..100).collect(), Some(9)));
        list.select(list.at + 5);
        list.select(list.at - list.height);
        assert_eq!(list.on_screen(10), ((89..99).collect(), Some(0)));
        assert_eq!(list.on_screen(4), ((89..93).collect(), Some(0)), "a smaller screen");
        list.select(usize::MAX);
        assert_eq!(list.on_screen(50).0, (50..100).collect::<Vec<_>>(), "a larger screen is full");
        list.select(0);
        assert_eq!(list.selected(), Some(0));
    }

    #[test]
    fn the_selected_row_stays_selected_while_others_come_and_go() {
        let mut list = list(&[10, 20, 30]);
        list.select(list.at + 1);
        list.update([5, 10, 20].into_iter().enumerate());
        assert_eq!(list.selected(), Some(20));
        list.update([1, 2, 3].into_iter().enumerate());
        assert_eq!(list.selected(), Some(3), "the row is gone: its place is kept");
        list.update(std::iter::empty());
        assert_eq!((list.selected(), list.on_screen(3)), (None, (Vec::new(), None)));
        list.select(list.at + 1);
        list.update([7].into_iter().enumerate());
        assert_eq!((list.selected(), list.on_screen(0).0), (Some(7), vec![0]));
    }
}
