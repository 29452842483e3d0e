//! TerminateInstances. It takes all instances of a call or none; to terminate one twice is no error.

use crate::api_error::ApiError;
use crate::call::Ec2Call;
use crate::instance::{InstanceState, StateReason, is_ending};
use crate::instance_xml;
use crate::wire::Xml;
use crate::world::Shutdown;

impl Ec2Call<'_> {
    /// Terminates all instances or none. An instance that is ending already is not an error:
    /// "This operation is idempotent".
    pub(crate) fn terminate_instances(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        let ids = self.instance_ids()?;
        if ids.is_empty() {
            return Err(ApiError::combination("No instances specified"));
        }
        self.all_listed(&ids)?;
        let mut changes: Vec<(String, InstanceState, InstanceState)> = Vec::new();
        for id in ids {
            let Some(before) = self.world.find(&id).map(|instance| instance.state) else { continue };
            self.world.shut_down(&id, Shutdown::Terminate, StateReason::TerminatedByUser, self.now, self.settings);
            let after = if is_ending(before) { before } else { InstanceState::ShuttingDown };
            changes.push((id, before, after));
        }
        xml.items("instancesSet", changes, |xml, (id, before, after)| {
            xml.text("instanceId", &id);
            instance_xml::state(xml, "currentState", after);
            instance_xml::state(xml, "previousState", before);
        });
        Ok(())
    }
}
