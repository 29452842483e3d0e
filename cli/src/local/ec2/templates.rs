//! Launch templates: found for a launch, and described.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use shared::model::Market;

use super::Call;
use super::config::{Config, LaunchTemplate, TemplateVersion};
use super::refusal::Refusal;
use super::wire::{Params, Xml};

impl LaunchTemplate {
    /// `$Latest`.
    fn latest(&self) -> u64 {
        self.versions.iter().map(|version| version.version).max().unwrap_or(0)
    }

    /// "The launch template version number, $Latest, or $Default. Default: the default version"
    /// ("LaunchTemplateSpecification", EC2 API Reference).
    fn version(&self, asked: &str) -> Result<&TemplateVersion, Refusal> {
        let number = match asked {
            "" | "$Default" => Some(self.default_version),
            "$Latest" => Some(self.latest()),
            number => number.parse().ok(),
        };
        self.versions.iter().find(|version| Some(version.version) == number).ok_or_else(|| {
            let version = asked.chars().take(100).collect();
            Refusal::TemplateVersionNotFound { template: self.id.clone(), version }
        })
    }
}

/// The template that `LaunchTemplateId` or `LaunchTemplateName` names: "you must specify either
/// the launch template ID or the launch template name, but not both".
fn named<'a>(params: &Params, config: &'a Config) -> Result<&'a LaunchTemplate, Refusal> {
    match (params.filled("LaunchTemplateId"), params.filled("LaunchTemplateName")) {
        (Some(id), None) => by_id(id, config),
        (None, Some(name)) => by_name(name, config),
        (None, None) => Err(Refusal::MissingParameter("LaunchTemplateId")),
        (Some(_), Some(_)) => Err(Refusal::InvalidParameterCombination(
            "A launch template is named either by its ID or by its name, not by both".into(),
        )),
    }
}

fn by_id<'a>(id: &str, config: &'a Config) -> Result<&'a LaunchTemplate, Refusal> {
    let found = config.launch_templates.iter().find(|template| template.id == id);
    found.ok_or_else(|| Refusal::TemplateIdNotFound(id.chars().take(100).collect()))
}

fn by_name<'a>(name: &str, config: &'a Config) -> Result<&'a LaunchTemplate, Refusal> {
    let found = config.launch_templates.iter().find(|template| template.name == name);
    found.ok_or_else(|| Refusal::TemplateNameNotFound(name.chars().take(100).collect()))
}

/// The template version that a launch uses, if it names one.
pub(super) fn of_launch<'a>(params: &Params, config: &'a Config) -> Result<Option<&'a TemplateVersion>, Refusal> {
    let Some(named_by) = params.structure("LaunchTemplate") else { return Ok(None) };
    named(&named_by, config)?.version(named_by.get("Version").unwrap_or_default()).map(Some)
}

impl Call<'_> {
    /// All templates, or those named. There are few: one page.
    pub(super) fn describe_launch_templates(&mut self, xml: &mut Xml) -> Result<(), Refusal> {
        self.no_filters()?;
        let ids = self.params.list("LaunchTemplateId").into_iter().map(|id| by_id(id, self.config));
        let names = self.params.list("LaunchTemplateName").into_iter().map(|name| by_name(name, self.config));
        let mut templates = ids.chain(names).collect::<Result<Vec<_>, _>>()?;
        if templates.is_empty() {
            templates = self.config.launch_templates.iter().collect();
        }
        self.unless_dry_run()?;
        xml.items("launchTemplates", templates, |xml, template| {
            self.template_header(xml, template);
            xml.value("defaultVersionNumber", template.default_version);
            xml.value("latestVersionNumber", template.latest());
        });
        Ok(())
    }

    /// All versions of one template, or those named. One page.
    pub(super) fn describe_launch_template_versions(&mut self, xml: &mut Xml) -> Result<(), Refusal> {
        self.no_filters()?;
        let template = named(self.params, self.config)?;
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
        xml.value("createTime", self.created_at);
        xml.text("createdBy", "arn:aws:iam::000000000000:root");
    }

    fn no_filters(&self) -> Result<(), Refusal> {
        if self.params.structures("Filter").is_empty() {
            return Ok(());
        }
        Err(Refusal::InvalidParameterValue("This stand-in knows no filters of launch templates".into()))
    }
}
