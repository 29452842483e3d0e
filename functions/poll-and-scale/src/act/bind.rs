//! Binding the nodes of a launch to their instances.
//!
//! Only the record says which node of a batch an instance is. Two runs that bind at the same time must not give one
//! instance to two records. So every write that binds includes the lowest slot of the launch that has no instance yet: of two
//! such writes, only one succeeds.
//!
//! Guarantees: an instance is bound to at most one record, and a record to at most one instance.
//! Does not: launch, or check whether an instance works.

use super::acting::Acting;
use super::launch::{Change, LaunchResults, every};
use crate::plan::{Action, PlannedAction};
use model::ids::Ulid;
use model::{ActionName, Batch, LaunchError, NewInstance, NodeRecord, NotPossible, Reason, Slot, Subject};
use runtime::answer::{ActError, ActionResult};
use std::collections::BTreeSet;

/// The most attempts at a write that loses races. The next run binds what is left.
const RACES: usize = 3;

/// The changes of one write, and the result that it gives each slot.
type Changes = (Vec<Change>, LaunchResults);

impl Acting<'_> {
    /// Binds instances that EC2 lists to the nodes of their launch. All actions of a call belong to one launch.
    pub(super) async fn bind_listed(&self, call: &[&PlannedAction]) -> Vec<ActionResult> {
        let bound = |planned: &PlannedAction| match &planned.action {
            Action::BindInstance { node_id, instance } => Some((*node_id, NewInstance::clone(instance))),
            _ => None,
        };
        let (nodes, instances): (Vec<_>, Vec<_>) = call.iter().filter_map(|planned| bound(planned)).unzip();
        let Some(first) = nodes.first() else { return vec![ActionResult::CONFLICT; call.len()] };
        let slots: Vec<Slot> = nodes.iter().map(|node| node.slot()).collect();
        let mut results = self.bind(first.ulid(), &slots, &instances, None).await;
        nodes.iter().map(|node| results.remove(&node.slot()).unwrap_or(ActionResult::CONFLICT)).collect()
    }

    /// Binds these instances to the nodes of this launch that have none. If `few` says why there are too few instances, the same
    /// write frees those of `slots` that got none. After an error, the result of each of `slots` is that error.
    pub(super) async fn bind(
        &self,
        launch: Ulid,
        slots: &[Slot],
        instances: &[NewInstance],
        few: Option<&LaunchError>,
    ) -> LaunchResults {
        let freed: BTreeSet<Slot> = slots.iter().copied().filter(|_| few.is_some()).collect();
        // The list of records is read page by page, so it may lack records of a launch, also the lowest without an instance.
        let before = self.run.locks.before(launch, slots_of(&self.run.locks.of_launch(launch)).into_iter());
        if !before.is_empty()
            && let Err(error) = self.read_again(before.into_iter()).await
        {
            return every(slots.iter().copied(), &error.into());
        }
        let mut failed = ActionResult::CONFLICT;
        for _ in 0..RACES {
            let of_launch = self.run.locks.of_launch(launch);
            // A record that cannot be read may be the lowest without an instance.
            if slots_of(&of_launch).iter().any(|slot| self.run.observed.quarantined.slots.contains(slot)) {
                break;
            }
            let (changes, results) = match self.changes(&of_launch, instances, &freed, few) {
                Ok(changes) => changes,
                Err(error) => return every(of_launch.iter().map(|r| r.slot), &error.into()),
            };
            match self.write_nodes(&changes, &[]).await {
                Ok(_) => {
                    self.note_others(slots, &changes).await;
                    return results;
                }
                Err(error) if error.is_conflict() => {}
                Err(error) => return every(results.into_keys(), &error.into()),
            }
            if let Err(error) = self.read_again(of_launch.iter().map(|record| record.slot)).await {
                failed = error.into();
                break;
            }
        }
        every(slots.iter().copied(), &failed)
    }

    /// Writes an event for each bound node that no action of this call is about: the list of the run does not show it yet.
    async fn note_others(&self, slots: &[Slot], changes: &[Change]) {
        let others = changes.iter().map(|(_, after)| after).filter(|after| !slots.contains(&after.slot));
        for (slot, life) in others.filter_map(|after| Some((after.slot, after.life()?))) {
            let Some(instance_id) = life.instance_id.clone() else { continue };
            let reason = Reason::CarriesNodeId { instance_id };
            self.run.record_event(&Subject::Slot(slot), ActionName::BindInstance, &reason).await;
        }
    }

    /// The changes that bind these instances, the lowest slots first.
    fn changes(
        &self,
        of_launch: &[NodeRecord],
        instances: &[NewInstance],
        freed: &BTreeSet<Slot>,
        few: Option<&LaunchError>,
    ) -> Result<Changes, NotPossible> {
        let (now, mut changes, mut results) = (self.run.now(), Vec::new(), LaunchResults::new());
        let named = |record: &NodeRecord| record.life().and_then(|life| life.instance_id.clone());
        let taken: BTreeSet<String> = of_launch.iter().filter_map(named).collect();
        let mut free = instances.iter().filter(|instance| !taken.contains(&instance.instance_id));
        for record in of_launch {
            let own = named(record);
            let is_settled = own.is_some() && record.life().is_none_or(|life| life.others.is_empty());
            let instance = match &own {
                Some(id) => instances.iter().find(|instance| instance.instance_id == *id),
                None => free.next(),
            };
            let after = match (instance, few) {
                (Some(instance), _) => {
                    results.insert(record.slot, ActionResult::DONE);
                    if is_settled {
                        continue;
                    }
                    record.bind(instance, now)?
                }
                (None, Some(few)) if own.is_none() && freed.contains(&record.slot) => {
                    results.insert(record.slot, ActionResult::from(ActError::from(few.clone())));
                    record.clean(now, &few.to_string())?
                }
                (None, _) => continue,
            };
            changes.push((Some(record.clone()), after));
        }
        Ok((changes, results))
    }

    /// Reads the records of these slots again, because somebody has changed one of them.
    async fn read_again(&self, slots: impl Iterator<Item = Slot>) -> Result<(), ActError> {
        for record in self.run.store.nodes_of(slots).await?.rows {
            self.run.locks.wrote(record);
        }
        Ok(())
    }
}

/// The slots of the batches of these records.
fn slots_of(of_launch: &[NodeRecord]) -> BTreeSet<Slot> {
    let batches = of_launch.iter().filter_map(|record| record.life()?.batch.as_ref());
    batches.flat_map(Batch::slots).copied().collect()
}
