//! TerminateInstances.

use super::Call;
use super::refusal::Refusal;
use super::shape;
use super::wire::Xml;
use super::world::{Leave, State, StateReason};

impl Call<'_> {
    /// All or none; an instance that is ending already is no mistake: "This operation is idempotent".
    pub(super) fn terminate_instances(&mut self, xml: &mut Xml) -> Result<(), Refusal> {
        let ids = self.instance_ids()?;
        if ids.is_empty() {
            return Err(Refusal::InvalidParameterCombination("No instances specified".into()));
        }
        self.all_known(&ids)?;
        self.unless_dry_run()?;
        let mut changes: Vec<(String, State, State)> = Vec::new();
        for id in ids {
            let Some(before) = self.world.find(&id).map(|instance| instance.state) else { continue };
            self.world.leave(&id, Leave::End, StateReason::TerminatedByUser, self.now, self.config);
            let after = if before.is_ending() { before } else { State::ShuttingDown };
            changes.push((id, before, after));
        }
        xml.items("instancesSet", changes, |xml, (id, before, after)| {
            xml.text("instanceId", &id);
            shape::state(xml, "currentState", after);
            shape::state(xml, "previousState", before);
        });
        Ok(())
    }
}
