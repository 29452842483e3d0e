//! Launch templates: finds the version that a launch names.

use crate::api_error::ApiError;
use crate::settings::{Ec2Settings, LaunchTemplate, TemplateVersion};
use crate::wire::Params;

impl LaunchTemplate {
    /// The version meant by `$Latest`.
    fn latest(&self) -> u64 {
        self.versions.iter().map(|version| version.version).max().unwrap_or(0)
    }

    /// "The launch template version number, $Latest, or $Default. Default: the default version"
    /// ("LaunchTemplateSpecification", EC2 API Reference).
    fn version(&self, asked: &str) -> Result<&TemplateVersion, ApiError> {
        let number = match asked {
            "" | "$Default" => Some(self.default_version),
            "$Latest" => Some(self.latest()),
            number => number.parse().ok(),
        };
        self.versions.iter().find(|version| Some(version.version) == number).ok_or_else(|| {
            let version = asked.chars().take(100).collect();
            ApiError::TemplateVersionNotFound { template: self.id.clone(), version }
        })
    }
}

/// The template that `LaunchTemplateId` or `LaunchTemplateName` names: "you must specify either
/// the launch template ID or the launch template name, but not both".
fn named<'a>(params: &Params, settings: &'a Ec2Settings) -> Result<&'a LaunchTemplate, ApiError> {
    match (params.filled("LaunchTemplateId"), params.filled("LaunchTemplateName")) {
        (Some(id), None) => {
            let found = settings.launch_templates.iter().find(|template| template.id == id);
            found.ok_or_else(|| ApiError::TemplateIdNotFound(id.chars().take(100).collect()))
        }
        (None, Some(name)) => {
            let found = settings.launch_templates.iter().find(|template| template.name == name);
            found.ok_or_else(|| ApiError::TemplateNameNotFound(name.chars().take(100).collect()))
        }
        (None, None) => Err(ApiError::MissingParameter("LaunchTemplateId")),
        (Some(_), Some(_)) => Err(ApiError::InvalidParameterCombination(
            "A launch template is named either by its ID or by its name, not by both".into(),
        )),
    }
}

/// The template version that a launch names, if any.
pub(crate) fn of_launch<'a>(
    params: &Params,
    settings: &'a Ec2Settings,
) -> Result<Option<&'a TemplateVersion>, ApiError> {
    let Some(named_by) = params.structure("LaunchTemplate") else { return Ok(None) };
    named(&named_by, settings)?.version(named_by.get("Version").unwrap_or_default()).map(Some)
}
