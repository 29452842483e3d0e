//! Launch templates: finds the one a launch names, and describes them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use model::Market;

use crate::api_error::ApiError;
use crate::call::Call;
use crate::settings::{Ec2Settings, LaunchTemplate, TemplateVersion};
use crate::wire::{Params, Xml};

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
        (Some(id), None) => by_id(id, settings),
        (None, Some(name)) => by_name(name, settings),
        (None, None) => Err(ApiError::MissingParameter("LaunchTemplateId")),
        (Some(_), Some(_)) => Err(ApiError::InvalidParameterCombination(
            "A launch template is named either by its ID or by its name, not by both".into(),
        )),
    }
}

fn by_id<'a>(id: &str, settings: &'a Ec2Settings) -> Result<&'a LaunchTemplate, ApiError> {
    let found = settings.launch_templates.iter().find(|template| template.id == id);
    found.ok_or_else(|| ApiError::TemplateIdNotFound(id.chars().take(100).collect()))
}

fn by_name<'a>(name: &str, settings: &'a Ec2Settings) -> Result<&'a LaunchTemplate, ApiError> {
    let found = settings.launch_templates.iter().find(|template| template.name == name);
    found.ok_or_else(|| ApiError::TemplateNameNotFound(name.chars().take(100).collect()))
}

/// The template version that a launch names, if any.
pub(crate) fn of_launch<'a>(
    params: &Params,
    settings: &'a Ec2Settings,
) -> Result<Option<&'a TemplateVersion>, ApiError> {
    let Some(named_by) = params.structure("LaunchTemplate") else { return Ok(None) };
    named(&named_by, settings)?.version(named_by.get("Version").unwrap_or_default()).map(Some)
}

impl Call<'_> {
    /// All templates, or the named ones, on one page: there are few.
    pub(crate) fn describe_launch_templates(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        self.no_filters()?;
        let ids = self.params.list("LaunchTemplateId").into_iter().map(|id| by_id(id, self.settings));
        let names = self.params.list("LaunchTemplateName").into_iter().map(|name| by_name(name, self.settings));
        let mut templates = ids.chain(names).collect::<Result<Vec<_>, _>>()?;
        if templates.is_empty() {
            templates = self.settings.launch_templates.iter().collect();
        }
        self.unless_dry_run()?;
        xml.items("launchTemplates", templates, |xml, template| {
            self.template_header(xml, template);
            xml.value("defaultVersionNumber", template.default_version);
            xml.value("latestVersionNumber", template.latest());
        });
        Ok(())
    }

    /// All versions of one template, or the named ones, on one page.
    pub(crate) fn describe_launch_template_versions(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        self.no_filters()?;
        let template = named(self.params, self.settings)?;
        let asked = self.params.list("LaunchTemplateVersion").into_iter().map(|version| template.version(version));
        let mut versions = asked.collect::<Result<Vec<_>, _>>()?;
        if versions.is_empty() {
            versions = template.versions.iter().collect();
        }
        self.unless_dry_run()?;
        xml.items("launchTemplateVersionSet", versions, |xml, version| {
            self.template_header(xml, template);
            xml.value("versionNumber", version.version);
            xml.value("defaultVersion", version.version == template.default_version);
            xml.element("launchTemplateData", |xml| {
                if let Some(image) = &version.image_id {
                    xml.text("imageId", image);
                }
                if let Some(instance_type) = &version.instance_type {
                    xml.text("instanceType", instance_type);
                }
                if let Some(user_data) = &version.user_data {
                    xml.text("userData", &STANDARD.encode(user_data));
                }
                if version.market == Some(Market::Spot) {
                    xml.element("instanceMarketOptions", |xml| xml.text("marketType", "spot"));
                }
            });
        });
        Ok(())
    }

    fn template_header(&self, xml: &mut Xml, template: &LaunchTemplate) {
        xml.text("launchTemplateId", &template.id);
        xml.text("launchTemplateName", &template.name);
        xml.value("createTime", self.started_at);
        xml.text("createdBy", "arn:aws:iam::000000000000:root");
    }

    fn no_filters(&self) -> Result<(), ApiError> {
        if self.params.structures("Filter").is_empty() {
            return Ok(());
        }
        Err(ApiError::InvalidParameterValue("This stand-in supports no filters for launch templates".into()))
    }
}
