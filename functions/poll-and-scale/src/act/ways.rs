//! Which ways share a launch call.
//!
//! EC2 refuses a whole fleet that names two subnets of one zone ("duplicate instance pools"). So a call names one subnet of
//! each zone, the first in the order of the ways, which is the one with the most free addresses. The others are named by later
//! calls. A subnet whose zone is not known could be in any zone, so it shares a call with no other subnet.
//!
//! Guarantees: every way is in one call; the ways of a call have one size, market, capacity reservation and template; the order
//! of the ways stays, in each call and from call to call.
//! Does not: know what EC2 refused.
//! Source: EC2 User Guide, "Quotas for EC2 Fleet and Spot Fleet"; github-aws-runners/terraform-aws-github-runner, issue 5297.

use model::{LaunchCall, Offering};
use runtime::answer::ActError;
use std::collections::VecDeque;

/// The ways that one call names, the best first.
pub(super) type CallWays = Vec<Offering>;

/// The ways of each call, in the order of the calls. With `launch.zone_share`, the ways of a call are in one zone, because EC2
/// does not count nodes by zone.
pub(super) fn calls_of(offerings: &[Offering], zone_share: f64, call: LaunchCall) -> VecDeque<CallWays> {
    let is_alike = |a: &Offering, b: &Offering| {
        (&a.size, a.market, &a.reservation) == (&b.size, b.market, &b.reservation)
            && (&a.template, a.template_version) == (&b.template, b.template_version)
    };
    let may_share = |a: &Offering, b: &Offering| {
        let is_split = call == LaunchCall::One || (zone_share < 1.0 && a.zone != b.zone);
        !is_split && are_different_pools(a, b)
    };
    let mut calls = VecDeque::new();
    for alike in offerings.chunk_by(is_alike) {
        let mut of_these: Vec<CallWays> = Vec::new();
        for way in alike {
            match of_these.iter_mut().find(|ways| ways.iter().all(|other| may_share(other, way))) {
                Some(ways) => ways.push(way.clone()),
                None => of_these.push(vec![way.clone()]),
            }
        }
        calls.extend(of_these);
    }
    calls
}

/// Whether EC2 takes both ways in one fleet.
fn are_different_pools(a: &Offering, b: &Offering) -> bool {
    if a.subnet_id == b.subnet_id {
        return a.instance_type != b.instance_type;
    }
    a.zone.is_some() && b.zone.is_some() && a.zone != b.zone
}

/// The best of these ways, and the others.
pub(super) fn first_of(ways: &CallWays) -> Result<(Offering, Vec<Offering>), ActError> {
    let (first, others) = ways.split_first().ok_or(ActError::CONFLICT)?;
    Ok((first.clone(), others.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Market;
    use model::fixtures::offering;

    /// A way by its words: `t1 a1` is type t1 in subnet a1, which is in zone a. A subnet in capitals has no known zone.
    fn way(words: &str) -> Offering {
        let (kind, subnet) = words.split_once(' ').unwrap();
        let zone = subnet.chars().next().filter(char::is_ascii_lowercase).map(|zone| zone.to_string());
        Offering { instance_type: kind.into(), subnet_id: Some(subnet.into()), zone, ..offering() }
    }

    fn words(calls: &VecDeque<CallWays>) -> Vec<String> {
        let word = |way: &Offering| format!("{} {}", way.instance_type, way.subnet_id.as_deref().unwrap_or("-"));
        calls.iter().map(|ways| ways.iter().map(word).collect::<Vec<_>>().join(", ")).collect()
    }

    #[test]
    fn a_call_names_one_subnet_of_each_zone() {
        for (ways, zone_share, expected) in [
            (vec!["t a1", "t b1"], 1.0, vec!["t a1, t b1"]),
            (vec!["t a2", "t a1", "t b1", "t b2"], 1.0, vec!["t a2, t b1", "t a1, t b2"]),
            (vec!["t a1", "t a2", "t b1", "u a1", "u a2", "u b1"], 1.0, vec!["t a1, t b1, u a1, u b1", "t a2, u a2"]),
            // A zone may have the subnet of another type only.
            (vec!["t a1", "u a2"], 1.0, vec!["t a1", "u a2"]),
            (vec!["t A", "t B", "u A", "u B"], 1.0, vec!["t A, u A", "t B, u B"]),
            (vec!["t a1", "t B"], 1.0, vec!["t a1", "t B"]),
            (vec!["t a1", "t b1", "t a2", "u a1"], 0.5, vec!["t a1, u a1", "t b1", "t a2"]),
            // The same way twice is one pool, too.
            (vec!["t a1", "t a1"], 1.0, vec!["t a1", "t a1"]),
        ] {
            let ways: CallWays = ways.into_iter().map(way).collect();
            assert_eq!(words(&calls_of(&ways, zone_share, LaunchCall::Fleet)), expected);
            assert_eq!(calls_of(&ways, zone_share, LaunchCall::One).len(), ways.len());
        }
    }

    #[test]
    fn what_differs_in_more_than_type_and_place_is_another_call() {
        let with = |change: fn(&mut Offering)| {
            let mut other = way("t b1");
            change(&mut other);
            vec![way("t a1"), other]
        };
        for ways in [
            with(|o| o.size = "other".into()),
            with(|o| o.market = Market::Spot),
            with(|o| o.template = "other".into()),
            with(|o| o.template_version = Some(9)),
        ] {
            assert_eq!(calls_of(&ways, 1.0, LaunchCall::Fleet).len(), 2, "{ways:?}");
        }
        let of_template = |kind: &str| Offering { instance_type: kind.into(), ..offering() };
        assert_eq!(calls_of(&[of_template("t"), of_template("u")], 1.0, LaunchCall::Fleet).len(), 1);
    }
}
