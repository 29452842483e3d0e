//! The region that the stand-in for EC2 offers: every template and subnet that the policy names.
//!
//! Does not: give them different contents. All templates have one image, and the subnets take zones in turn.

use super::directory::REGION;
use ec2_stand_in::{Ec2Settings, Ec2Subnet, LaunchTemplate, TemplateVersion};
use model::{Policy, Rng};
use std::collections::BTreeSet;

pub(super) fn region(policy: &Policy) -> Ec2Settings {
    let mut settings = Ec2Settings { seed: Rng::real().bits() as u64, ..Ec2Settings::default() };
    let named: BTreeSet<_> =
        policy.size.iter().filter_map(|s| s.template.as_ref()).chain(&policy.launch.template).collect();
    settings.launch_templates = named.into_iter().enumerate().map(|(n, name)| template(n, name)).collect();
    if !policy.launch.subnets.is_empty() {
        let subnet = |(subnet_id, zone): (&String, char)| Ec2Subnet {
            subnet_id: subnet_id.clone(),
            zone: format!("{REGION}{zone}"),
            addresses: None,
        };
        settings.subnets = policy.launch.subnets.iter().zip(('a'..='z').cycle()).map(subnet).collect();
    }
    settings
}

fn template(n: usize, name: &str) -> LaunchTemplate {
    let id = if name.starts_with("lt-") { name.to_owned() } else { format!("lt-{n:017x}") };
    let version = TemplateVersion { version: 1, image_id: Some("ami-local".into()), ..Default::default() };
    LaunchTemplate { id, name: name.to_owned(), default_version: 1, versions: vec![version] }
}

#[cfg(test)]
mod tests {
    use super::super::database::POLICY_TOML;
    use super::*;

    #[test]
    fn the_built_in_policy_is_valid_and_the_region_has_what_it_names() {
        let policy = Policy::from_toml(POLICY_TOML).unwrap();
        let region = region(&policy);
        assert_eq!(region.launch_templates.len(), 1);
        assert_eq!(region.launch_templates[0].name, "nodekeeper");
        assert_eq!(region.subnets.len(), 1);
    }
}
