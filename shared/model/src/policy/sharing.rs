//! Whose share a job has, which jobs are under a limit, and whether the budget of the month is spent.
//!
//! Guarantees: a job belongs to a share of which its submitter is a member, or to the default one.
//! Does not: know what a share may have; [`super::Share`] does.

use super::Size;
use super::share::{NO_SHARE, Share, WorkAmount, WorkLimits};
use super::types::{Policy, SharesPolicy};
use crate::names::matches;
use crate::{JobSummary, Needs, NodeRecord, Reason, Span, Time, Usd};

impl SharesPolicy {
    /// After this time, what an alloc used counts half.
    pub fn half_life(&self) -> Span {
        Span::from_ms((self.half_life_h * 3_600_000.0) as i64)
    }

    /// How much this many members with these needs take, in vCPUs: by the largest of their vCPUs, memory and GPUs.
    pub fn vcpus(&self, needs: &Needs, members: u32) -> f64 {
        let memory = needs.memory_mib as f64 / 1024.0 / self.gib_per_vcpu;
        f64::from(needs.vcpus).max(memory).max(f64::from(needs.gpus) * self.vcpus_per_gpu) * f64::from(members)
    }
}

impl Share {
    fn has_member(&self, by: Option<&str>) -> bool {
        by.is_some_and(|by| self.members.iter().any(|pattern| matches(pattern, by)))
    }
}

impl Policy {
    /// The share with this name. What has none, or one that is gone, belongs to the first one of its submitter, or else to the default
    /// one: so a share that gets another name keeps its jobs.
    pub fn share(&self, name: Option<&str>, by: Option<&str>) -> Option<&Share> {
        let named = self.share.iter().find(|share| Some(share.name.as_str()) == name);
        let of_member = || self.share.iter().find(|share| share.has_member(by));
        named.or_else(of_member).or_else(|| self.share.iter().find(|share| share.default))
    }

    /// The name of the share for which what has this one counts.
    pub fn share_name(&self, name: Option<&str>, by: Option<&str>) -> &str {
        self.share(name, by).map_or(NO_SHARE, |share| share.name.as_str())
    }

    /// Whether some jobs are under a limit, so that only one run at a time may place them.
    pub fn has_limits(&self) -> bool {
        !self.person.is_empty() || !self.limits.licences.is_empty() || self.share.iter().any(|s| !s.limits.is_empty())
    }

    /// Whether this job is under a limit.
    pub fn limits_job(&self, job: &JobSummary) -> bool {
        let of_share =
            self.share(job.share.as_deref(), job.by.as_deref()).is_some_and(|share| !share.limits.is_empty());
        of_share || !self.person.is_empty() || !job.needs.licences.is_empty()
    }

    /// Why nothing is launched, if the nodes of these slots have cost the budget of this month.
    pub fn budget_spent<'a>(&self, slots: impl IntoIterator<Item = &'a NodeRecord>, now: Time) -> Option<Reason> {
        let budget = self.budget.dollars_per_month;
        let spent: Usd = slots.into_iter().map(|slot| slot.cost_of_month(now)).sum();
        (!budget.is_zero() && spent >= budget).then_some(Reason::BudgetSpent { spent, budget })
    }

    /// The share of a job of this submitter, who may have named one. An error says what is possible.
    pub fn share_for(&self, by: Option<&str>, named: Option<&str>) -> Result<Option<String>, String> {
        let Some(first) = self.share.first() else {
            let none = |name: &str| format!("--share {name}: the policy has no shares, so leave it out");
            return named.map_or(Ok(None), |name| Err(none(name)));
        };
        let mut possible: Vec<&Share> = self.share.iter().filter(|s| s.default || s.has_member(by)).collect();
        // The default share is for those who have no other.
        possible.sort_by_key(|share| !share.has_member(by));
        let names: Vec<&str> = possible.iter().map(|share| share.name.as_str()).collect();
        let who = by.map_or("nobody whose name is known".to_owned(), str::to_owned);
        let chosen = match named {
            None => names.first().copied(),
            Some(name) => names.iter().copied().find(|known| *known == name),
        };
        let all = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let wrong = || match named {
            Some(name) if self.share.iter().all(|share| share.name != name) => {
                format!("--share {name}: the policy has no such share; {who} may submit to: {all}")
            }
            Some(name) => format!("--share {name}: {who} is no member of it, and may submit to: {all}"),
            None => format!(
                "{who} is a member of no share of the policy, such as {}, and none is the default: an operator adds the name to \
                 the members of one",
                first.name
            ),
        };
        chosen.map(|name| Some(name.to_owned())).ok_or_else(wrong)
    }

    /// Which limit never lets this job start, whatever else runs. A limit of no jobs at all is for a while.
    pub fn never_allows(&self, (share, by): (Option<&str>, Option<&str>), needs: &Needs) -> Option<String> {
        let too_small = |limits: &WorkLimits, whose: &str| {
            let least = limits.dollars_per_hour.map_or(Usd::ZERO, |_| self.least_price(needs));
            let own = WorkAmount { dollars_per_hour: least, ..WorkAmount::of(needs, needs.nodes) };
            let (what, most) = limits.exceeded(&own)?;
            Some(format!("it needs more than {most} {what}, the most that {whose} may have at the same time"))
        };
        let of_share = |share: &Share| too_small(&share.limits, &format!("share {}", share.name));
        let of_person = || too_small(&self.person, by.unwrap_or("a person"));
        self.share(share, by).and_then(of_share).or_else(of_person).or_else(|| self.lacks_licence(needs))
    }

    /// What a job costs an hour at least on new nodes; nothing while no size is known that has what it needs.
    fn least_price(&self, needs: &Needs) -> Usd {
        let (need, arch, waits) = (&needs.machine, self.default_arch(), self.waits_for_catalogue());
        let offers = |size: &&Size| size.offers(needs.capacity(), need, (self.usable(size.capacity), arch)) && !waits;
        let price = |size: &Size| needs.price_on(size.capacity, size.price_for(need.market));
        self.size.iter().filter(offers).map(price).min().unwrap_or_default().times(needs.nodes.into())
    }

    /// The licences that the job needs and the policy does not have, or has too few of.
    fn lacks_licence(&self, needs: &Needs) -> Option<String> {
        let known = &self.limits.licences;
        let lacking = needs.licences.iter().find(|(name, many)| known.get(*name).is_none_or(|all| *many > all));
        lacking.map(|(name, many)| match known.get(name) {
            Some(all) => format!("it needs {many} of {name}, and limits.licences has {all}"),
            None => {
                let names: Vec<&str> = known.keys().map(String::as_str).collect();
                let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                format!("it needs {name}, and limits.licences of the policy has: {names}")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::example_json;
    use serde_json::{Value, json};

    fn policy(shares: &Value) -> Policy {
        let mut document = example_json();
        document["share"] = shares.clone();
        Policy::from_json(&document).unwrap()
    }

    #[test]
    fn a_job_belongs_to_a_share_of_its_submitter_or_to_the_one_that_is_named() {
        let of = policy(&json!([
            {"name": "others", "default": true, "members": ["root"]},
            {"name": "a", "members": ["team-a/*", "eve"]},
            {"name": "b", "members": ["eve", "root"]},
        ]));
        for (by, named, share) in [
            (Some("team-a/ann"), None, "a"),
            (Some("eve"), None, "a"),
            (Some("eve"), Some("b"), "b"),
            (Some("eve"), Some("others"), "others"),
            (Some("root"), None, "others"),
            (Some("team-b/bob"), None, "others"),
            (None, None, "others"),
        ] {
            assert_eq!(of.share_for(by, named), Ok(Some(share.to_owned())), "{by:?} {named:?}");
            let gone = named.is_none().then_some("gone");
            assert_eq!(of.share_name(named.or(gone), by), share, "of a share that is gone: {by:?}");
        }
        let error = of.share_for(Some("team-a/ann"), Some("b")).unwrap_err();
        assert_eq!(error, "--share b: team-a/ann is no member of it, and may submit to: a, others");
        let error = of.share_for(Some("eve"), Some("c")).unwrap_err();
        assert_eq!(error, "--share c: the policy has no such share; eve may submit to: a, b, others");
    }

    #[test]
    fn who_is_in_no_share_is_told_so_and_without_shares_nobody_is_asked() {
        let of = policy(&json!([{"name": "a", "members": ["ann"]}]));
        let error = of.share_for(Some("bob"), None).unwrap_err();
        assert!(error.starts_with("bob is a member of no share of the policy, such as a, and none is the default"));
        assert_eq!(policy(&json!([])).share_for(Some("bob"), None), Ok(None));
        let error = policy(&json!([])).share_for(None, Some("a")).unwrap_err();
        assert_eq!(error, "--share a: the policy has no shares, so leave it out");
    }

    #[test]
    fn a_limit_that_is_below_one_job_is_named_and_one_of_no_jobs_is_for_a_while() {
        let of = policy(&json!([
            {"name": "a", "members": ["ann"], "nodes": 2, "running": 0},
            {"name": "b", "members": ["bob"]},
            {"name": "c", "members": ["cat"], "dollars_per_hour": 0.1},
        ]));
        let small = &of.size[0];
        assert_eq!((small.capacity.vcpus, small.price_per_hour), (2, Usd::from_micros(116_000)));
        let whole = Needs { vcpus: 2, ..Needs::default() };
        let why = of.never_allows((Some("c"), None), &whole).unwrap();
        assert_eq!(why, "it needs more than $0.10 an hour, the most that share c may have at the same time");
        let cheap = Needs { memory_mib: 1, ..Needs::default() };
        assert_eq!(of.never_allows((Some("c"), None), &cheap), None);
        assert!(of.never_allows((Some("c"), None), &Needs { nodes: 2, ..cheap }).is_some());
        let wide = Needs { nodes: 3, ..Needs::default() };
        let why = of.never_allows((None, Some("ann")), &wide).unwrap();
        assert_eq!(why, "it needs more than 2 nodes, the most that share a may have at the same time");
        assert_eq!(of.never_allows((Some("a"), None), &Needs { nodes: 2, ..wide.clone() }), None);
        assert_eq!(of.never_allows((Some("b"), Some("bob")), &wide), None);
    }

    #[test]
    fn what_is_wrong_with_a_share_names_its_field() {
        let wrong = |share: Value| {
            let mut document = example_json();
            document["share"] = json!([{"name": "x", "members": ["x"], "default": true}, share]);
            Policy::from_json(&document).unwrap_err().to_string()
        };
        for (share, says) in [
            (json!({"name": "x", "members": ["a"]}), "share[1].name: x is used twice"),
            (json!({"name": "a b", "members": ["a"]}), "share[1].name: \"a b\" is not allowed"),
            (json!({"name": "a", "default": true}), "share[1].default: x is the default already"),
            (json!({"name": "a"}), "share[1].members: nobody could submit to it"),
            (json!({"name": "a", "members": ["a", "a"]}), "share[1].members"),
            (json!({"name": "a", "members": ["a\n"]}), "share[1].members"),
            (json!({"name": "a", "members": ["a"], "weight": 0}), "share[1].weight: 0 is not allowed"),
            (json!({"name": "a", "members": ["a"], "running": -1}), "share[1].running"),
            (json!({"name": "a", "members": ["a"], "cpus": 1}), "share[1].cpus: is not a knob"),
        ] {
            assert!(wrong(share.clone()).contains(says), "{share}: {}", wrong(share.clone()));
        }
    }
}
