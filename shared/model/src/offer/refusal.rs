//! Refusals of EC2, and the scope of each: which launches it is about.
//!
//! Guarantees: the scope of a refusal is a part of the launch that was refused; a launch outside of the scope is not
//! limited by it.
//! Does not: read EC2's answers (the crate `cloud` does), or say how long a refusal lasts (`limits` does).

use crate::enums::{Class, Market};
use crate::quotas::{group_of, quota_name};
use crate::{BadText, Offering, Reach};
use std::fmt;
use std::str::FromStr;

/// Why a call to EC2 failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloudError {
    /// EC2 did not answer, or the answer cannot be understood.
    #[error("EC2 did not answer ({operation}): check AWS_ENDPOINT_URL_EC2, the region and the credentials: {detail}")]
    Unreachable { operation: &'static str, detail: String },
    /// EC2 answered with an error.
    #[error("EC2 refused {operation}: {code}: {message}")]
    Refused { operation: &'static str, code: String, message: String },
}

/// EC2 refused a launch: nothing was launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", .class.in_words())]
pub struct Refusal {
    pub reach: Reach,
    pub class: Class,
    /// EC2's answer: its code and its message.
    pub message: String,
}

impl Refusal {
    /// EC2 is short of this offering.
    pub fn short(message: impl Into<String>) -> Self {
        Self { reach: Reach::Offering, class: Class::Short, message: message.into() }
    }
}

impl Class {
    const fn in_words(self) -> &'static str {
        match self {
            Self::Short => "no capacity",
            Self::Quota => "quota",
            Self::Throttled => "throttled",
            Self::Refused => "refused",
            Self::Wrong => "wrong request",
            Self::Unanswered => "no answer",
        }
    }
}

/// The scope of a refusal: a part of an offering, for example one subnet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    reach: Reach,
    /// The part of the offering, as in the key.
    of: String,
}

impl Scope {
    /// Every launch.
    pub const ACCOUNT: Self = Self { reach: Reach::Account, of: String::new() };
    /// No launch, but the call of several ways: see [`crate::launch::LaunchCall`].
    pub const FLEET: Self = Self { reach: Reach::Fleet, of: String::new() };

    /// The part of this offering that a refusal with this reach is about.
    pub fn of(reach: Reach, offering: &Offering) -> Self {
        let Offering { size, instance_type, market, subnet_id, zone, template, template_version, .. } = offering;
        let subnet = subnet_id.as_deref();
        let of = match reach {
            Reach::Account | Reach::Fleet => String::new(),
            Reach::Market => market.to_string(),
            Reach::Family => format!("{market}#{}", group_of(*market, instance_type)),
            Reach::Type => format!("{market}#{instance_type}"),
            Reach::Subnet => match subnet_id {
                Some(subnet_id) => subnet_id.clone(),
                // The template names the subnet.
                None => return Self::of(Reach::Template, offering),
            },
            Reach::Template => match template_version {
                Some(version) => format!("{template}:{version}"),
                None => template.clone(),
            },
            // EC2 has capacity by zone: all subnets of a zone are short together.
            Reach::Offering => {
                let place = zone.as_deref().or(subnet).unwrap_or("any");
                format!("{market}#{instance_type}#{place}")
            }
            Reach::Request => format!("{market}#{size}#{}", subnet.unwrap_or("any")),
        };
        Self { reach, of }
    }

    /// Whether a launch of this offering is within the scope.
    pub fn covers(&self, offering: &Offering) -> bool {
        self.reach != Reach::Fleet && *self == Self::of(self.reach, offering)
    }

    pub const fn reach(&self) -> Reach {
        self.reach
    }

    /// The part of the offering in words, without its kind.
    pub fn part(&self) -> String {
        self.of.replace('#', " ")
    }

    /// The quota that a refusal with this scope is about.
    pub fn quota(&self) -> String {
        let family = self.of.split_once('#').and_then(|(market, group)| Some((market.parse::<Market>().ok()?, group)));
        match (self.reach, family) {
            (Reach::Family, Some((market, group))) => format!("the quota \"{}\"", quota_name(market, group)),
            (Reach::Account, _) => "a limit of the account".to_owned(),
            _ => format!("the account's limit for {self:#}"),
        }
    }
}

impl fmt::Display for Scope {
    /// The scope as in a key; with `{:#}` in words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reach, of } = self;
        if !f.alternate() {
            return if of.is_empty() { write!(f, "{reach}") } else { write!(f, "{reach}#{of}") };
        }
        let part = self.part();
        match reach {
            Reach::Account => f.write_str("every launch"),
            Reach::Fleet => f.write_str("the call of several ways"),
            Reach::Market => write!(f, "market {part}"),
            Reach::Family => f.write_str(&self.quota()),
            Reach::Type | Reach::Offering => write!(f, "{part}"),
            Reach::Subnet => write!(f, "subnet {part}"),
            Reach::Template => write!(f, "launch template {part}"),
            Reach::Request => match part.split(' ').collect::<Vec<_>>().as_slice() {
                [market, size, place] => write!(f, "size {size} {market} {place}"),
                _ => write!(f, "{part}"),
            },
        }
    }
}

impl FromStr for Scope {
    type Err = BadText;
    fn from_str(key: &str) -> Result<Self, BadText> {
        let (reach, of) = key.split_once('#').unwrap_or((key, ""));
        let reach = reach.parse().map_err(|_| BadText::no("scope", key, "a scope of a refusal"))?;
        Ok(Self { reach, of: of.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::offering;

    fn in_subnet(subnet: &str) -> Offering {
        Offering { subnet_id: Some(subnet.into()), ..offering() }
    }

    #[test]
    fn a_scope_covers_what_shares_its_part_and_nothing_else() {
        let here = in_subnet("subnet-a");
        let with = |change: fn(&mut Offering)| {
            let mut other = here.clone();
            change(&mut other);
            other
        };
        let others: [(&str, Offering); 6] = [
            ("market", with(|o| o.market = Market::Spot)),
            ("family", with(|o| o.instance_type = "g5.xlarge".into())),
            ("type", with(|o| o.instance_type = "m7a.xlarge".into())),
            ("subnet", with(|o| o.subnet_id = Some("subnet-b".into()))),
            ("template", with(|o| o.template = "other".into())),
            ("size", with(|o| o.size = "other".into())),
        ];
        // For each reach, the changes of the offering that leave the scope.
        for (reach, leave) in [
            (Reach::Account, vec![]),
            (Reach::Market, vec!["market"]),
            (Reach::Family, vec!["market", "family"]),
            (Reach::Type, vec!["market", "family", "type"]),
            (Reach::Subnet, vec!["subnet"]),
            (Reach::Template, vec!["template"]),
            (Reach::Offering, vec!["market", "family", "type", "subnet"]),
            (Reach::Request, vec!["market", "subnet", "size"]),
        ] {
            let scope = Scope::of(reach, &here);
            assert!(scope.covers(&here), "{scope}");
            let left: Vec<&str> = others.iter().filter(|(_, o)| !scope.covers(o)).map(|(what, _)| *what).collect();
            assert_eq!(left, leave, "{scope}");
            assert_eq!(scope.to_string().parse(), Ok(scope));
        }
        assert_eq!((Scope::FLEET.covers(&here), "fleet".parse()), (false, Ok(Scope::FLEET)));
        assert!("nonsense#x".parse::<Scope>().is_err());
    }

    #[test]
    fn the_subnets_of_a_zone_are_short_together() {
        let at = |subnet: &str, zone: &str| Offering { zone: Some(zone.into()), ..in_subnet(subnet) };
        let short = Scope::of(Reach::Offering, &at("subnet-a", "z1"));
        assert!(short.covers(&at("subnet-b", "z1")) && !short.covers(&at("subnet-c", "z2")), "{short}");
        let unknown = Scope::of(Reach::Offering, &in_subnet("subnet-a"));
        assert!(!unknown.covers(&in_subnet("subnet-b")), "their zones are not known");
    }

    #[test]
    fn a_subnet_that_the_template_names_is_a_part_of_the_template() {
        let scope = Scope::of(Reach::Subnet, &offering());
        assert_eq!(scope.reach(), Reach::Template);
        assert!(!scope.covers(&Offering { template_version: Some(9), ..offering() }));
    }

    #[test]
    fn a_scope_is_named_in_words() {
        let here = in_subnet("subnet-a");
        for (reach, said) in [
            (Reach::Account, "a limit of the account"),
            (Reach::Family, "the quota \"Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances\""),
            (Reach::Type, "the account's limit for on_demand m7a.large"),
            (Reach::Subnet, "the account's limit for subnet subnet-a"),
        ] {
            assert_eq!(Scope::of(reach, &here).quota(), said);
        }
        assert_eq!(format!("{:#}", Scope::of(Reach::Request, &here)), "size small on_demand subnet-a");
    }
}
