//! GetConsoleOutput: the end of what a machine wrote to its console.
//!
//! Does not: ask the machine. The text comes with the call, because no machine is asked under the lock of the region.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::api_error::ApiError;
use crate::call::Ec2Call;
use crate::ids;
use crate::wire::Xml;

/// "The most recent 64 KB of console output" ("GetConsoleOutput", EC2 API Reference).
const MAX_BYTES: usize = 64 * 1024;

impl Ec2Call<'_> {
    /// The end of the machine's output, in base64; no `output` element before the first output.
    pub(crate) fn get_console_output(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        let id = self.params.filled("InstanceId").ok_or_else(|| ApiError::missing("InstanceId"))?;
        ids::check(id)?;
        self.all_listed(&[id.to_owned()])?;
        xml.text("instanceId", id);
        xml.value("timestamp", self.now);
        if let Some(output) = &self.console {
            let bytes = output.as_bytes();
            let recent = bytes.get(bytes.len().saturating_sub(MAX_BYTES)..).unwrap_or(bytes);
            xml.text("output", &STANDARD.encode(recent));
        }
        Ok(())
    }
}
