//! What a job may do in AWS: the role that it takes, and the secrets that are read with this role.
//!
//! Guarantees: a role is known by the last part of its ARN, which the policy lists; the place of a secret has one of the documented
//! forms, and only this module reads them.
//! Does not: call AWS, or hold a credential or the value of a secret.

use crate::BadText;
use crate::auth::NodeRole;
use std::collections::BTreeMap;
use std::str::FromStr;

/// The longest text of the place of a secret, in bytes.
const MAX_REFERENCE_BYTES: usize = 512;

/// Where secrets are, by the variables that get them.
pub type Secrets = BTreeMap<String, String>;

/// The name of a role: the last part of its ARN. `None` if this is no ARN of a role.
pub fn role_name(arn: &str) -> Option<&str> {
    arn.parse::<NodeRole>().ok()?;
    arn.rsplit('/').next()
}

/// The ARN among these whose role has this name.
pub fn role_arn<'a>(arns: &'a [String], name: &str) -> Option<&'a str> {
    arns.iter().map(String::as_str).find(|arn| role_name(arn) == Some(name))
}

/// Whether this can be the name of a role ("IAM and AWS STS quotas", IAM User Guide).
pub fn is_role_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"+=,.@_-".contains(&b);
    (1..=64).contains(&name.len()) && name.bytes().all(fits)
}

/// The services that keep secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretService {
    SecretsManager,
    ParameterStore,
}

/// Where a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretPlace {
    pub service: SecretService,
    /// The name in its service: an ARN, or the name of a parameter.
    pub id: String,
    /// The region of its ARN; `None`: that of the node.
    pub region: Option<String>,
    /// The field of the secret that is meant, if the secret is a JSON object; `None`: all of it.
    pub field: Option<String>,
}

impl FromStr for SecretPlace {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let bad = || {
            BadText(
                "must be the ARN of a secret of Secrets Manager or of a parameter, or the name of a parameter that begins with '/'; \
                 #FIELD at the end takes one field of a secret in JSON"
                    .to_owned(),
            )
        };
        let (id, field) = text.split_once('#').map_or((text, None), |(id, field)| (id, Some(field)));
        let is_plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic());
        if text.len() > MAX_REFERENCE_BYTES || !is_plain(id) || field.is_some_and(|field| !is_plain(field)) {
            return Err(bad());
        }
        let found = |service, region: Option<&str>| Self {
            service,
            id: id.to_owned(),
            region: region.map(str::to_owned),
            field: field.map(str::to_owned),
        };
        if id.starts_with('/') {
            return if id.len() > 1 { Ok(found(SecretService::ParameterStore, None)) } else { Err(bad()) };
        }
        let parts: Vec<&str> = id.splitn(6, ':').collect();
        let &["arn", _, service, region, _, resource] = parts.as_slice() else { return Err(bad()) };
        let is_region = !region.is_empty() && region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        match (service, is_region) {
            ("secretsmanager", true) if resource.len() > "secret:".len() && resource.starts_with("secret:") => {
                Ok(found(SecretService::SecretsManager, Some(region)))
            }
            ("ssm", true) if resource.len() > "parameter/".len() && resource.starts_with("parameter/") => {
                Ok(found(SecretService::ParameterStore, Some(region)))
            }
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_counts_by_the_last_part_of_its_arn() {
        let arns =
            ["arn:aws:iam::123456789012:role/jobs/reader".to_owned(), "arn:aws:iam::123456789012:role/w".to_owned()];
        assert_eq!(role_arn(&arns, "reader"), Some(arns[0].as_str()));
        assert_eq!(role_arn(&arns, "jobs"), None);
        assert_eq!(role_name("arn:aws:iam::123456789012:user/w"), None);
        for bad in ["", "a b", "a/b", "ä", &"x".repeat(65)] {
            assert!(!is_role_name(bad), "{bad:?}");
        }
    }

    #[test]
    fn each_form_of_a_place_is_told_apart() {
        use SecretService::{ParameterStore, SecretsManager};
        let secret = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:db-AbCdEf";
        let parameter = "arn:aws:ssm:eu-west-1:123456789012:parameter/a/b";
        for (text, service, region, field) in [
            ("/a/b", ParameterStore, None, None),
            (secret, SecretsManager, Some("eu-west-1"), None),
            (&format!("{secret}#password"), SecretsManager, Some("eu-west-1"), Some("password")),
            (parameter, ParameterStore, Some("eu-west-1"), None),
        ] {
            let place: SecretPlace = text.parse().unwrap();
            assert_eq!(
                (place.service, place.region.as_deref(), place.field.as_deref()),
                (service, region, field),
                "{text}"
            );
            assert!(text.starts_with(&place.id));
        }
        for bad in [
            "",
            "/",
            "db",
            "a/b",
            "/a b",
            "/a#",
            "arn:aws:s3:::b",
            "arn:aws:ssm::1:parameter/a",
            "arn:aws:ssm:r:1:parameter/",
        ] {
            assert!(bad.parse::<SecretPlace>().is_err(), "{bad:?}");
        }
        assert!(format!("/{}", "x".repeat(600)).parse::<SecretPlace>().is_err());
    }
}
