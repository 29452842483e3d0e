//! The ids of the live allocs of a node or a job.
//!
//! Guarantees: sorted, each id once, and no more memory than the ids take. Most of these sets have one id, and a large fleet
//! has two sets for each node: as `BTreeSet`s they took an eighth of a run's memory.
//! Does not: insert fast into thousands of ids. A node rarely has that many.

use crate::AllocId;
use derive_more::Deref;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Deref)]
#[serde(from = "Vec<AllocId>")]
#[deref(forward)]
pub struct AllocIds(Vec<AllocId>);

impl AllocIds {
    pub fn contains(&self, id: &AllocId) -> bool {
        self.0.binary_search(id).is_ok()
    }

    pub fn insert(&mut self, id: AllocId) {
        self.extend([id]);
    }

    pub fn remove(&mut self, id: &AllocId) {
        if let Ok(at) = self.0.binary_search(id) {
            self.0.remove(at);
        }
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl From<Vec<AllocId>> for AllocIds {
    fn from(mut ids: Vec<AllocId>) -> Self {
        ids.sort_unstable();
        ids.dedup();
        ids.shrink_to_fit();
        Self(ids)
    }
}

impl Extend<AllocId> for AllocIds {
    fn extend<I: IntoIterator<Item = AllocId>>(&mut self, ids: I) {
        let mut all = std::mem::take(&mut self.0);
        all.extend(ids);
        *self = all.into();
    }
}

impl FromIterator<AllocId> for AllocIds {
    fn from_iter<I: IntoIterator<Item = AllocId>>(ids: I) -> Self {
        ids.into_iter().collect::<Vec<_>>().into()
    }
}

impl<const N: usize> From<[AllocId; N]> for AllocIds {
    fn from(ids: [AllocId; N]) -> Self {
        ids.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a AllocIds {
    type Item = &'a AllocId;
    type IntoIter = std::slice::Iter<'a, AllocId>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::alloc_id;
    use serde_json::json;

    #[test]
    fn ids_are_sorted_and_there_once() {
        let [one, two, three] = [1, 2, 3].map(alloc_id);
        let mut ids: AllocIds = serde_json::from_value(json!([three, one, three])).unwrap();
        assert_eq!(*ids, [one, three]);
        ids.insert(two);
        ids.insert(three);
        assert_eq!(ids, [three, two, one].into());
        ids.remove(&one);
        ids.remove(&one);
        assert_eq!(json!(ids), json!([two, three]));
        assert!(ids.contains(&two) && !ids.contains(&one));
    }
}
