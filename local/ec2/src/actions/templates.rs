//! Launch templates: finds the version that a launch names.
//!
//! Does not: merge the version with the parameters of the launch; `run` does.

use crate::api_error::{ApiError, clip};
use crate::settings::{Ec2Settings, LaunchTemplate, TemplateVersion};
use crate::wire::Params;

impl LaunchTemplate {
    /// "The launch template version number, $Latest, or $Default. Default: the default version"
    /// ("LaunchTemplateSpecification", EC2 API Reference).
    fn version(&self, asked: &str) -> Result<&TemplateVersion, ApiError> {
        let number = match asked {
            "" | "$Default" => Some(self.default_version),
            "$Latest" => self.versions.iter().map(|version| version.version).max(),
            number => number.parse().ok(),
        };
        self.versions.iter().find(|version| Some(version.version) == number).ok_or_else(|| {
            let (version, template) = (clip(asked), &self.id);
            let what = format!("the specified version {version} for the launch template with ID {template}");
            ApiError::new("InvalidLaunchTemplateId.VersionNotFound", format!("Could not find {what}."))
        })
    }
}

/// The template that `LaunchTemplateId` or `LaunchTemplateName` names: "you must specify either
/// the launch template ID or the launch template name, but not both".
fn named<'a>(params: &Params, settings: &'a Ec2Settings) -> Result<&'a LaunchTemplate, ApiError> {
    let mut templates = settings.launch_templates.iter();
    let absent = |code: &str, what: &str, text: &str| {
        let which = format!("with template {what} {}", clip(text));
        ApiError::new(code, format!("The specified launch template, {which}, does not exist."))
    };
    match (params.filled("LaunchTemplateId"), params.filled("LaunchTemplateName")) {
        (Some(id), None) => templates
            .find(|template| template.id == id)
            .ok_or_else(|| absent("InvalidLaunchTemplateId.NotFound", "ID", id)),
        (None, Some(name)) => templates
            .find(|template| template.name == name)
            .ok_or_else(|| absent("InvalidLaunchTemplateName.NotFoundException", "name", name)),
        (None, None) => Err(ApiError::missing("LaunchTemplateId")),
        (Some(_), Some(_)) => {
            Err(ApiError::combination("A launch template is named either by its ID or by its name, not by both"))
        }
    }
}

/// The template version that a launch names, if any.
pub(crate) fn of<'a>(params: &Params, settings: &'a Ec2Settings) -> Result<Option<&'a TemplateVersion>, ApiError> {
    let Some(named_by) = params.structure("LaunchTemplate") else { return Ok(None) };
    named(&named_by, settings)?.version(named_by.get("Version").unwrap_or_default()).map(Some)
}
