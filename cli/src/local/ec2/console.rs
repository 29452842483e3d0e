//! GetConsoleOutput.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Call;
use super::ids;
use super::refusal::Refusal;
use super::wire::Xml;

/// "The most recent 64 KB of console output" ("GetConsoleOutput", EC2 API Reference).
const MOST_BYTES: usize = 64 * 1024;

impl Call<'_> {
    /// What the machine last wrote, in base64; no output element if there is none yet.
    pub(super) fn get_console_output(&mut self, xml: &mut Xml) -> Result<(), Refusal> {
        let id = self.params.filled("InstanceId").ok_or(Refusal::MissingParameter("InstanceId"))?;
        ids::check(id)?;
        self.all_known(&[id.to_owned()])?;
        self.unless_dry_run()?;
        xml.text("instanceId", id);
        xml.value("timestamp", self.now);
        if let Some(output) = &self.console {
            let bytes = output.as_bytes();
            let recent = bytes.get(bytes.len().saturating_sub(MOST_BYTES)..).unwrap_or(bytes);
            xml.text("output", &STANDARD.encode(recent));
        }
        Ok(())
    }
}
