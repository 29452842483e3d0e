//! Whether an image runs on an instance type.
//!
//! Guarantees: an image or a type that the settings do not describe is not refused.
//! Does not: know all rules of boot modes ("Instance type requirements for UEFI boot mode", EC2 User Guide).
//! Source of the messages: hashicorp/packer-plugin-amazon 649 (architecture), rancher/os 2160 (ENA).

use crate::api_error::ApiError;
use crate::catalogue;
use crate::settings::Ec2Settings;

/// Refuses an image that does not run on this type, as far as both are known.
pub(crate) fn check(image_id: Option<&str>, instance_type: &str, settings: &Ec2Settings) -> Result<(), ApiError> {
    let types = catalogue::types(settings);
    let image = settings.images.iter().find(|image| image_id == Some(image.id.as_str()));
    let kind = types.iter().find(|kind| kind.name == instance_type);
    let (Some(image), Some(kind)) = (image, kind) else { return Ok(()) };
    let x86 = || vec!["x86_64".to_owned()];
    let has = if kind.architectures.is_empty() { x86() } else { kind.architectures.clone() };
    if !has.contains(&image.architecture) {
        let of_type = has.join(", ");
        return Err(ApiError::invalid(format!(
            "The architecture '{of_type}' of the specified instance type does not match the architecture '{}' of the \
             specified AMI. Specify an instance type and an AMI that have matching architectures, and try again.",
            image.architecture
        )));
    }
    if !image.is_hvm {
        return Err(ApiError::combination(&format!(
            "Virtualization type 'hvm' is required for instances of type '{instance_type}'. Ensure that you are using an AMI \
             with virtualization type 'hvm'."
        )));
    }
    if kind.needs_ena && !image.has_ena {
        return Err(ApiError::combination(&format!(
            "Enhanced networking with the Elastic Network Adapter (ENA) is required for the '{instance_type}' instance type. \
             Ensure that you are using an AMI that is enabled for ENA."
        )));
    }
    let lacks = |mode: &&String| !kind.boot_modes.is_empty() && !kind.boot_modes.contains(mode);
    match image.boot_mode.as_ref().filter(lacks) {
        Some(mode) => Err(ApiError::invalid(format!(
            "The boot mode '{mode}' of the specified AMI is not supported for the '{instance_type}' instance type."
        ))),
        None => Ok(()),
    }
}
