//! A job may wait although there is room: its array, its share or its submitter has a limit, or licences are lacking
//! (`docs/rules.md#limits`).
//!
//! A live alloc counts until it has ended, wherever its job is. The observation has every alloc on the record of a node.
//!
//! Guarantees: with what this plan places or launches for, no share and no person has more than a limit allows; a job that waits for
//! its limit reserves nothing.
//! Does not: lock. A placement of a job under a limit requires the turn of this run ([`crate::act`]).

use super::super::view::View;
use super::arrays::Arrays;
use super::want::Want;
use model::policy::WorkAmount;
use model::{JobId, JobSummary, Needs, Policy, Reason, Usd};
use std::collections::{BTreeMap, BTreeSet};

/// What is in use of everything that has a limit, with what this plan places.
pub(super) struct WorkInUse<'a> {
    policy: &'a Policy,
    /// Whether some jobs are under a limit.
    has_limits: bool,
    /// Whether this run may place them.
    has_turn: bool,
    arrays: Arrays,
    shares: BTreeMap<&'a str, WorkAmount>,
    /// By the names of the submitters; without one, all jobs are one person's.
    people: BTreeMap<&'a str, WorkAmount>,
    licences: BTreeMap<&'a str, u32>,
    /// The jobs of several members that count.
    jobs: BTreeSet<JobId>,
}

impl<'a> WorkInUse<'a> {
    pub(super) fn new(view: &View<'a>) -> Self {
        let observed = view.observed;
        let mut limits = Self {
            policy: &observed.policy,
            has_limits: observed.policy.has_limits(),
            has_turn: observed.limit_turn.is_some(),
            arrays: Arrays::new(view),
            shares: BTreeMap::new(),
            people: BTreeMap::new(),
            licences: BTreeMap::new(),
            jobs: BTreeSet::new(),
        };
        for alloc in observed.allocs.iter().filter(|_| observed.policy.has_limits()) {
            let owner = (alloc.share.as_deref(), alloc.by.as_deref().unwrap_or_default());
            limits.add(alloc.alloc_id.job_id, owner, &alloc.needs, (1, alloc.price_per_hour));
        }
        limits
    }

    fn add(&mut self, job: JobId, of: (Option<&str>, &'a str), needs: &'a Needs, (members, price): (u32, Usd)) {
        let amount = self.amount(job, needs, (members, price));
        let is_new = self.counts_anew(job, needs);
        *self.shares.entry(self.policy.share_name(of.0, Some(of.1))).or_default() += amount;
        *self.people.entry(of.1).or_default() += amount;
        if is_new {
            self.jobs.insert(job);
            for (name, many) in &needs.licences {
                let used = self.licences.entry(name).or_default();
                *used = used.saturating_add(*many);
            }
        }
    }

    /// Whether one more alloc counts as one more job. Each alloc of a job of one member does, also a copy: so wherever one ends, another
    /// may start.
    fn counts_anew(&self, job: JobId, needs: &Needs) -> bool {
        needs.nodes == 1 || !self.jobs.contains(&job)
    }

    /// Whether this job is under a limit. One that needs licences is, also when the policy has no limit any more: it has no licence then.
    fn is_limited(&self, job: &JobSummary) -> bool {
        !job.needs.licences.is_empty() || self.has_limits && self.policy.limits_job(job)
    }

    /// What this many more members of a job add.
    fn amount(&self, job: JobId, needs: &Needs, (members, dollars_per_hour): (u32, Usd)) -> WorkAmount {
        let running = self.counts_anew(job, needs).into();
        WorkAmount { running, dollars_per_hour, ..WorkAmount::of(needs, members) }
    }

    /// Whether a demand may be served, as far as that does not depend on its nodes. Otherwise, why it waits.
    pub(super) fn admit(&mut self, want: &Want<'_>) -> Result<(), Reason> {
        let job = want.job();
        if self.is_limited(job) {
            let owner = (job.share.as_deref(), job.by.as_deref());
            if let Some(why) = self.policy.never_allows(owner, &job.needs) {
                return Err(Reason::NeverAllowed { why });
            }
            self.check(job, (want.members(), Usd::from_micros(1)))?;
            if !self.has_turn {
                return Err(Reason::LimitTurnTaken {});
            }
        }
        match want {
            Want::Job(job) => self.arrays.admit(job),
            Want::Copy { .. } => Ok(()),
        }
    }

    /// Counts a demand that is served on nodes at this price, if no limit is against that.
    pub(super) fn take(&mut self, want: &Want<'a>, price: Usd) -> Result<(), Reason> {
        let job = want.job();
        if self.is_limited(job) {
            self.check(job, (want.members(), price))?;
            let owner = (job.share.as_deref(), job.by.as_deref().unwrap_or_default());
            self.add(job.job_id, owner, &job.needs, (want.members(), price));
        }
        Ok(())
    }

    fn check(&self, job: &JobSummary, more: (u32, Usd)) -> Result<(), Reason> {
        let amount = self.amount(job.job_id, &job.needs, more);
        let with = |used: Option<&WorkAmount>| {
            let mut all = used.copied().unwrap_or_default();
            all += amount;
            all
        };
        let share = self.policy.share(job.share.as_deref(), job.by.as_deref());
        let of_share = share.and_then(|share| {
            let (what, most) = share.limits.exceeded(&with(self.shares.get(share.name.as_str())))?;
            Some(Reason::WorkLimit { whose: format!("share {}", share.name), what, most })
        });
        let by = job.by.as_deref().unwrap_or_default();
        let of_person = || {
            let (what, most) = self.policy.person.exceeded(&with(self.people.get(by)))?;
            Some(Reason::WorkLimit {
                whose: if by.is_empty() { "whoever submitted it" } else { by }.to_owned(),
                what,
                most,
            })
        };
        let lacks = |(name, needs): (&String, &u32)| {
            let all = self.policy.limits.licences.get(name).copied().unwrap_or(0);
            let used = self.licences.get(name.as_str()).copied().unwrap_or(0);
            let is_lacking = used.saturating_add(*needs) > all && self.counts_anew(job.job_id, &job.needs);
            is_lacking.then(|| Reason::LicencesUsed {
                name: name.clone(),
                needs: *needs,
                free: all.saturating_sub(used),
                all,
            })
        };
        let reason = of_share.or_else(of_person).or_else(|| job.needs.licences.iter().find_map(lacks));
        reason.map_or(Ok(()), Err)
    }
}
