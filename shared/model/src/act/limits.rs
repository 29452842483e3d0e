//! The limits on launches: how each limit begins, grows and ends, and how it is explained to a person.
//!
//! A refusal of EC2 has a scope (`refusal`) and a class. Together they are one limit: it stops the launches within its scope,
//! and no other ones. The class says for how long:
//!
//! | class | first wait | longest wait | ends before |
//! | --- | --- | --- | --- |
//! | short | `shortage.ttl_s` | 1 h | – (then one attempt in a run, doubled with each success) |
//! | quota | `quota.retry_s` | 15 min | when an instance within the scope has terminated |
//! | throttled | 5 s | 1 h | – |
//! | refused | 30 s | 1 h | with the next version of the policy |
//! | wrong | 1 h | 1 h | with the next version of the policy |
//! | unanswered | 1 min | 15 min | – |
//!
//! Each further refusal doubles the wait, up to the longest. Failed starts pause every launch too: from a minute on, doubled
//! in each later run with a failure, until a node starts well.
//!
//! Guarantees: every limit ends by itself; the plan, the acting run and the commands `status` and `job` use the same
//! functions, so they cannot disagree. An operator ends all of them at once with `nodekeeper release launches`.
//! Does not: count nodes. The plan keeps to `nodes.max`, the price cap and the maximum of a size.
//! Source: Arvados #2881 (what a node manager does when the cloud refuses).

use crate::control::{EntryRow, LaunchWait, LimitChange};
use crate::enums::Class;
use crate::{
    Control, ControlKey, Explanation, LaunchCall, LaunchError, Offering, Policy, Reach, Reason, Scope, Span, Time,
    Waiting,
};
use std::fmt;

/// Doubling never makes a wait longer than this, in seconds.
const LONGEST_WAIT_S: i64 = 3600;
/// The longest wait after a quota answer, in seconds. It is shorter, because other clusters of the account end instances too.
const LONGEST_QUOTA_S: i64 = 900;
/// A refusal within this time after the end of a limit doubles the old wait. The time is this long because
/// the next attempt may first have to wait until idle nodes have ended and made room.
const CONTINUES_S: i64 = 900;
/// The first wait after a throttled call, in seconds.
const THROTTLED_S: i64 = 5;
/// Throttling within this time after the end of its limit doubles the wait. The time is two periods of
/// poll-and-scale.
const THROTTLED_CONTINUES_S: i64 = 120;
/// The first wait after EC2 did not accept something, in seconds. Something new may not be known everywhere in EC2 yet.
const REFUSED_S: i64 = 30;
/// The first and the longest wait after a launch call without an answer, in seconds. The call is repeated with its token after the
/// first wait, because its claim lasts as long.
const UNANSWERED_S: i64 = 60;
const LONGEST_UNANSWERED_S: i64 = 900;
/// The first pause after failed starts, in seconds.
const FAILED_STARTS_PAUSE_S: i64 = 60;

/// A limit that keeps launches from being made: EC2 refused one, or too many starts failed in a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The key of its entry in the control table.
    pub key: ControlKey,
    pub row: EntryRow<LaunchWait>,
}

impl Limit {
    /// What EC2 refused; `None` if starts failed.
    const fn refusal(&self) -> Option<(Class, &Scope)> {
        if let ControlKey::Limit(class, scope) = &self.key { Some((*class, scope)) } else { None }
    }

    /// Whether the limit stops every launch.
    pub fn stops_all(&self) -> bool {
        self.refusal().is_none_or(|(_, scope)| *scope == Scope::ACCOUNT)
    }

    /// Whether the limit stops launches of this offering.
    pub fn covers(&self, offering: &Offering) -> bool {
        self.refusal().is_none_or(|(_, scope)| scope.covers(offering))
    }

    /// Whether the limit seldom ends without a person.
    pub fn needs_a_person(&self) -> bool {
        let ends = |class| matches!(class, Class::Short | Class::Throttled | Class::Unanswered);
        self.refusal().is_none_or(|(class, scope)| !ends(class) && *scope != Scope::FLEET)
    }

    /// Whether at least two launch calls in a row got no answer.
    pub fn is_unanswered_again(&self) -> bool {
        let is_unanswered = matches!(self.refusal(), Some((Class::Unanswered, _)));
        is_unanswered && self.row.wait_s.is_some_and(|wait| wait > UNANSWERED_S)
    }

    pub const fn is_quota(&self) -> bool {
        matches!(self.refusal(), Some((Class::Quota, _)))
    }

    /// The limit as a reason, with the time that is left of it.
    pub fn reason(&self, now: Time) -> Reason {
        let (limit, left) = (self.to_string(), self.row.until_at.map_or(Span::ZERO, |until| until.since(now)));
        if self.stops_all() { Reason::LaunchPaused { limit, left } } else { Reason::LaunchLimited { limit, left } }
    }

    /// The jobs that wait for the end of the limit, by the reasons of a plan.
    pub fn waiting<'e>(&self, explained: &'e Explanation) -> impl Iterator<Item = &'e Waiting> {
        let own = self.to_string();
        let names_it = move |why: &Reason| matches!(why, Reason::LaunchPaused { limit, .. } | Reason::LaunchLimited { limit, .. } if *limit == own);
        explained.waiting.iter().filter(move |waiting| waiting.why.iter().any(&names_it))
    }

    /// Which jobs wait for the end of the limit, in words; empty if none does.
    pub fn waiting_words(&self, explained: &Explanation) -> String {
        let waiting: Vec<&Waiting> = self.waiting(explained).collect();
        let jobs: usize = waiting.iter().map(|w| w.jobs.len()).sum();
        match (waiting.first(), jobs) {
            (None, _) => String::new(),
            (Some(first), 1) => format!("job {} waits for it", first.first),
            (Some(first), n) => format!("{n} jobs wait for it, {} first", first.first),
        }
    }

    /// What a person can do about it; empty if the limit ends by itself without anybody.
    pub fn to_do(&self) -> String {
        let correct = match self.refusal() {
            None => "see their console output in `nodekeeper history cluster`, and correct image or user data",
            Some((Class::Quota, _)) => "raise it in Service Quotas, or lower nodes.max",
            Some((Class::Refused | Class::Wrong, scope)) => match scope.reach() {
                Reach::Fleet => return String::new(),
                Reach::Account => {
                    "the message says what to correct: the account, or the role, the credentials or the clock of poll-and-scale"
                }
                Reach::Template => {
                    "the message says what to correct: the launch template, or what poll-and-scale may use"
                }
                Reach::Subnet => "the message says what to correct: launch.subnets, or what poll-and-scale may use",
                _ => "the message says what to correct: the size in the policy, or what it uses",
            },
            Some((Class::Short, scope)) if matches!(scope.reach(), Reach::Subnet | Reach::Template) => {
                return "name more subnets in launch.subnets, or free addresses".to_owned();
            }
            Some((Class::Short | Class::Throttled | Class::Unanswered, _)) => return String::new(),
        };
        format!("{correct}; then `nodekeeper release launches` tries at once")
    }

    /// The change of the control table that ends the limit now. The next refusal or failure begins anew.
    pub fn ended(&self, now: Time) -> LimitChange {
        let before = self.row.clone();
        let count = self.refusal().is_none().then_some(0);
        let after = before.with(LaunchWait { until_at: Some(now), wait_s: None, count, ..before.entry.clone() });
        LimitChange { key: self.key.clone(), before, after }
    }
}

impl fmt::Display for Limit {
    /// The limit in words, without its end and its message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((class, scope)) = self.refusal() else {
            return write!(f, "{} starts failed in a row", self.row.count.unwrap_or(0));
        };
        match (class, scope.reach()) {
            (Class::Short, Reach::Subnet) => write!(f, "EC2 is short of addresses in {scope:#}"),
            (Class::Short, Reach::Template) => write!(f, "EC2 is short of addresses in the subnet of {scope:#}"),
            (Class::Short, _) => write!(f, "EC2 is short of {scope:#}"),
            (Class::Quota, _) => write!(f, "{} is reached", scope.quota()),
            (Class::Throttled, _) => f.write_str("EC2 throttles launches"),
            (Class::Unanswered, _) => write!(f, "EC2 does not answer launches of {scope:#}"),
            (Class::Refused | Class::Wrong, Reach::Account) => f.write_str("EC2 refuses every launch"),
            (Class::Refused | Class::Wrong, Reach::Fleet) => {
                f.write_str("EC2 does not take a launch call of several ways, so each way is a call of its own")
            }
            (Class::Refused | Class::Wrong, _) => write!(f, "EC2 refuses launches with {scope:#}"),
        }
    }
}

/// How the wait of a class begins and grows, in seconds: the first one, the longest one, and how long after a wait another
/// refusal continues it.
const fn terms(class: Class, policy: &Policy) -> (i64, i64, i64) {
    match class {
        Class::Short => (policy.shortage.ttl_s, LONGEST_WAIT_S, CONTINUES_S),
        Class::Quota => (policy.quota.retry_s, LONGEST_QUOTA_S, CONTINUES_S),
        Class::Throttled => (THROTTLED_S, LONGEST_WAIT_S, THROTTLED_CONTINUES_S),
        Class::Refused => (REFUSED_S, LONGEST_WAIT_S, CONTINUES_S),
        Class::Wrong => (LONGEST_WAIT_S, LONGEST_WAIT_S, CONTINUES_S),
        Class::Unanswered => (UNANSWERED_S, LONGEST_UNANSWERED_S, CONTINUES_S),
    }
}

/// The entry after another refusal. The wait is the first one, or twice the last wait if that wait ended recently.
/// Recently means within the length of the last wait or `continues_s`, whichever is longer.
fn refused_again((first_s, longest_s, continues_s): (i64, i64, i64), before: &LaunchWait, now: Time) -> LaunchWait {
    let last_s = before.wait_s.unwrap_or(0);
    let continues = Span::from_s(last_s.max(continues_s));
    let recent = before.until_at.is_some_and(|until| now.since(until) <= continues);
    let (wait_s, since_at) = match before.wait_s {
        Some(wait) if recent => (wait.saturating_mul(2).min(longest_s).max(first_s), before.since_at.or(Some(now))),
        _ => (first_s, Some(now)),
    };
    let until_at = Some(now + Span::from_s(wait_s));
    LaunchWait { wait_s: Some(wait_s), until_at, since_at, count: None, ..before.clone() }
}

impl Control {
    /// Every limit that applies now, those that stop all launches first.
    pub fn limits(&self, now: Time) -> Vec<Limit> {
        let version = self.policy.as_ref().map(|p| p.version.number());
        let of_this_policy = |row: &LaunchWait| row.policy_version.is_none_or(|of| Some(of) == version);
        let applying = self.waits.iter().filter(|(_, row)| row.applies(now) && of_this_policy(row));
        let limits = applying.map(|(key, row)| Limit { key: key.clone(), row: row.clone() });
        let mut limits: Vec<Limit> = limits.collect();
        limits.sort_by_key(|l| !l.stops_all());
        limits
    }

    /// Which call launches now.
    pub fn launch_call(&self, now: Time) -> LaunchCall {
        let is_fleet = |limit: &Limit| matches!(limit.refusal(), Some((_, scope)) if *scope == Scope::FLEET);
        if self.limits(now).iter().any(is_fleet) { LaunchCall::One } else { LaunchCall::Fleet }
    }

    /// The limit that stops every launch now, if one does.
    #[cfg(test)]
    pub(crate) fn launch_pause(&self, now: Time) -> Option<Limit> {
        self.limits(now).into_iter().next().filter(Limit::stops_all)
    }

    /// The change of the control table after a launch of this offering failed with `error`.
    pub fn after_refusal(
        &self,
        offering: &Offering,
        error: &LaunchError,
        policy: &Policy,
        policy_version: u64,
        now: Time,
    ) -> LimitChange {
        let (class, reach) = match error {
            LaunchError::Refused(refusal) => (refusal.class, refusal.reach),
            LaunchError::Throttled(_) => (Class::Throttled, Reach::Account),
            LaunchError::Lost(_) => (Class::Unanswered, Reach::Offering),
        };
        let scope = Scope::of(reach, offering);
        // Another policy may ask for something else. The account and the region stay the same.
        let is_of_policy =
            matches!(class, Class::Refused | Class::Wrong) && ![Scope::ACCOUNT, Scope::FLEET].contains(&scope);
        let key = ControlKey::Limit(class, scope);
        let before = self.waits.get(&key).cloned().unwrap_or_else(|| EntryRow::new(&key));
        let policy_version = is_of_policy.then_some(policy_version);
        let is_same_policy = before.policy_version == policy_version;
        let continues = if is_same_policy { before.entry.clone() } else { LaunchWait::default() };
        let after = refused_again(terms(class, policy), &continues, now);
        let after = before.with(LaunchWait { policy_version, message: Some(error.to_string()), ..after });
        LimitChange { key, before, after }
    }

    /// The changes of the control table after an instance of this offering has terminated: the limits end of the quotas that it
    /// counted for, because they have room again.
    pub fn after_termination(&self, offering: &Offering, now: Time) -> Vec<LimitChange> {
        let frees = |limit: &Limit| limit.is_quota() && limit.covers(offering);
        self.limits(now).iter().filter(|limit| frees(limit)).map(|limit| limit.ended(now)).collect()
    }
}

impl EntryRow<LaunchWait> {
    /// Whether another run has already written this refusal. After a refusal the entry has no `count`; after a successful
    /// launch it has one. The times of the two cannot be compared, because they come from the clocks of different runs.
    pub fn is_refused_already(&self, now: Time) -> bool {
        self.count.is_none() && self.applies(now)
    }

    /// How many attempts a run may make at an offering that was short: one after the wait, and twice as many after
    /// each success. `None`: there is no limit, because the offering was never short, or was short long ago. `at` is
    /// the start of the run and not the current time. Otherwise the limit could end during the run, and all remaining
    /// launches of the run would try the offering.
    pub fn attempts(&self, at: Time) -> Option<u64> {
        let continues_s = self.wait_s?.max(CONTINUES_S);
        let recent = at.since(self.until_at?) <= Span::from_s(continues_s);
        recent.then(|| self.count.unwrap_or(1).max(1))
    }

    /// The row after a success when `attempts` were allowed: the next run may make twice as many.
    #[must_use]
    pub fn succeeded(&self, attempts: u64, max_per_run: u32, now: Time) -> Self {
        let more = attempts.saturating_mul(2);
        let wait_s = self.wait_s.filter(|_| more < u64::from(max_per_run));
        self.with(LaunchWait { count: Some(more), wait_s, until_at: Some(now), ..self.entry.clone() })
    }

    /// The row of failed starts after a successful one: the count is 0 and the pause is over. `first_ping` is the newest first
    /// heartbeat of all nodes. `None` if no node has started since the last failure, or if the count is 0 already.
    pub fn after_success(&self, first_ping: Option<Time>) -> Option<Self> {
        let changes = self.count.unwrap_or(0) > 0 && first_ping > self.since_at;
        let over = || LaunchWait { count: Some(0), wait_s: None, until_at: None, ..self.entry.clone() };
        changes.then(|| self.with(over()))
    }

    /// The row of failed starts after one more. `read` is the row as the run read it, so that the pause doubles
    /// at most once in a run.
    #[must_use]
    pub fn failed(&self, read: &Self, failures_before_pause: u32, now: Time) -> Self {
        let count = self.count.unwrap_or(0).saturating_add(1);
        let pauses = count >= u64::from(failures_before_pause);
        let longer = |wait: i64| wait.saturating_mul(2);
        let wait_s = pauses.then(|| read.wait_s.map_or(FAILED_STARTS_PAUSE_S, longer).min(LONGEST_WAIT_S));
        let until_at = wait_s.map(|w| now + Span::from_s(w));
        self.with(LaunchWait { since_at: Some(now), count: Some(count), wait_s, until_at, ..self.entry.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::Refusal;
    use crate::control::PolicyRow;
    use crate::fixtures::{at, offering};
    use crate::node::Version;
    use crate::policy::example_json;

    fn policy() -> Policy {
        Policy::from_json(&example_json()).unwrap()
    }

    fn refused(reach: Reach, class: Class) -> LaunchError {
        Refusal { reach, class, message: "Code: text".into() }.into()
    }

    /// The control table of version 1 of a policy, after these refusals at these times.
    fn after(refusals: &[(&LaunchError, i64)]) -> Control {
        let row = PolicyRow { version: Version::UNWRITTEN.next(), ..PolicyRow::of_policy(&policy()) };
        let mut control = Control::default();
        control.policy = Some(row);
        for (error, s) in refusals {
            let change = control.after_refusal(&offering(), error, &policy(), 1, at(*s));
            control.put(change.after);
        }
        control
    }

    fn waits(error: &LaunchError, times: &[i64]) -> Vec<Option<i64>> {
        let row = |n: usize| {
            let refusals: Vec<_> = times.iter().take(n + 1).map(|s| (error, *s)).collect();
            after(&refusals).waits.values().next().and_then(|row| row.wait_s)
        };
        (0..times.len()).map(row).collect()
    }

    #[test]
    fn a_refusal_doubles_the_wait_also_if_idle_nodes_had_to_make_room_first() {
        // The second and third refusal come 330 s after the wait ended, the last one after a day.
        let short = refused(Reach::Offering, Class::Short);
        let times = [0, 180 + 330, 180 + 330 + 360 + 330, 90_000];
        assert_eq!(waits(&short, &times), [Some(180), Some(360), Some(720), Some(180)]);
        // EC2 throttles three runs in a row, and then one run every ten minutes.
        let throttled = LaunchError::Throttled("slow".into());
        let times = [0, 60, 120, 720, 1320];
        assert_eq!(waits(&throttled, &times), [Some(5), Some(10), Some(20), Some(5), Some(5)]);
    }

    #[test]
    fn the_wait_of_each_class_begins_short_grows_and_has_a_longest() {
        for (class, first, longest) in
            [(Class::Short, 180, 3600), (Class::Quota, 60, 900), (Class::Refused, 30, 3600), (Class::Wrong, 3600, 3600)]
        {
            // Each refusal comes as soon as the wait is over.
            let mut times = vec![0];
            for _ in 0..12 {
                let waited = waits(&refused(Reach::Offering, class), &times);
                times.push(times.last().unwrap() + waited.last().unwrap().unwrap());
            }
            let waited = waits(&refused(Reach::Offering, class), &times);
            assert_eq!((waited[0], *waited.last().unwrap()), (Some(first), Some(longest)), "{class}");
            assert!(waited.windows(2).all(|w| w[0] == Some(longest) || w[0] < w[1]), "{class}: {waited:?}");
        }
    }

    #[test]
    fn an_answer_that_never_came_limits_its_offering_and_from_the_second_on_it_is_one_that_fails() {
        let lost = LaunchError::Lost("InternalError: an internal error".into());
        assert_eq!(waits(&lost, &[0, 60, 180, 420, 1000, 2000]), [60, 120, 240, 480, 900, 900].map(Some));
        let limit = |refusals: &[(&LaunchError, i64)], s: i64| after(refusals).limits(at(s)).pop().unwrap();
        let (once, twice) = (limit(&[(&lost, 0)], 1), limit(&[(&lost, 0), (&lost, 60)], 61));
        assert_eq!((once.is_unanswered_again(), twice.is_unanswered_again()), (false, true));
        assert!(
            twice.covers(&offering()) && !twice.covers(&Offering { instance_type: "m7a.xlarge".into(), ..offering() })
        );
        assert_eq!(twice.to_string(), "EC2 does not answer launches of on_demand m7a.large any");
        assert_eq!(
            twice.row.message.as_deref(),
            Some("EC2 did not say whether it launched: InternalError: an internal error")
        );
    }

    #[test]
    fn a_limit_stops_its_scope_and_no_other_launch() {
        let control =
            after(&[(&refused(Reach::Subnet, Class::Refused), 0), (&refused(Reach::Family, Class::Quota), 0)]);
        assert_eq!(control.launch_pause(at(1)), None);
        let stopped = |o: &Offering| control.limits(at(1)).iter().filter(|l| l.covers(o)).count();
        let gpu = Offering { instance_type: "g5.xlarge".into(), ..offering() };
        let elsewhere = Offering { template: "other".into(), ..gpu.clone() };
        assert_eq!([&offering(), &gpu, &elsewhere].map(stopped), [2, 1, 0]);
    }

    #[test]
    fn a_limit_on_all_launches_is_listed_first_and_ends() {
        let control =
            after(&[(&refused(Reach::Offering, Class::Short), 0), (&refused(Reach::Account, Class::Quota), 0)]);
        let said: Vec<String> = control.limits(at(1)).iter().map(Limit::to_string).collect();
        assert_eq!(said, ["a limit of the account is reached", "EC2 is short of on_demand m7a.large any"]);
        assert!(control.launch_pause(at(59)).is_some());
        assert_eq!(control.launch_pause(at(60)), None);
        assert!(control.limits(at(180)).is_empty());
    }

    #[test]
    fn a_new_policy_ends_what_a_person_had_to_mend_and_nothing_else() {
        let all = [Class::Short, Class::Quota, Class::Refused, Class::Wrong].map(|c| refused(Reach::Request, c));
        let mut control = after(&[(&all[0], 0), (&all[1], 0), (&all[2], 0), (&all[3], 0)]);
        assert_eq!(control.limits(at(1)).len(), 4);
        control.policy = control.policy.map(|row| PolicyRow { version: row.version.next(), ..row });
        let left: Vec<ControlKey> = control.limits(at(1)).into_iter().map(|limit| limit.key).collect();
        let of = |class| ControlKey::Limit(class, Scope::of(Reach::Request, &offering()));
        assert_eq!(left, [of(Class::Short), of(Class::Quota)]);
        // The same refusal under the new policy begins with the first wait.
        let again = control.after_refusal(&offering(), &all[2], &policy(), 2, at(31));
        assert_eq!((again.after.wait_s, again.after.since_at), (Some(30), Some(at(31))));
    }

    #[test]
    fn an_instance_that_terminates_ends_the_quota_that_it_counted_for() {
        let control = after(&[(&refused(Reach::Family, Class::Quota), 0), (&refused(Reach::Type, Class::Short), 0)]);
        let gpu = Offering { instance_type: "g5.xlarge".into(), ..offering() };
        assert_eq!(control.after_termination(&gpu, at(1)), []);
        let mut ended = control.clone();
        control.after_termination(&offering(), at(1)).into_iter().for_each(|change| ended.put(change.after));
        let left: Vec<String> = ended.limits(at(1)).iter().map(Limit::to_string).collect();
        assert_eq!(left, ["EC2 is short of on_demand m7a.large"]);
        assert_eq!(ended.after_termination(&offering(), at(1)), [], "there is no limit to end");
    }

    #[test]
    fn a_limit_says_since_when_and_which_jobs_wait_for_it() {
        let quota = refused(Reach::Family, Class::Quota);
        let control = after(&[(&quota, 0), (&quota, 70)]);
        let limit = control.limits(at(71)).remove(0);
        assert_eq!((limit.row.since_at, limit.row.until_at), (Some(at(0)), Some(at(190))));
        let mut explained = Explanation::default();
        let (mut waits, mut other) = (crate::fixtures::job(1).summary, crate::fixtures::job(2).summary);
        (waits.name, other.name) = (Some("waits".into()), Some("other".into()));
        explained.waits(&waits, &[limit.reason(at(71))]);
        explained.waits(&other, &[Reason::ClusterPaused {}]);
        let name = crate::explain::name_of(&waits);
        assert_eq!(limit.waiting_words(&explained), format!("job {name} waits for it"));
        explained.waits(&other, &[limit.reason(at(71)), Reason::ClusterPaused {}]);
        assert_eq!(limit.waiting_words(&explained), format!("2 jobs wait for it, {name} first"));
        assert_eq!(limit.waiting_words(&Explanation::default()), "");
    }

    #[test]
    fn a_start_that_succeeds_ends_the_count_of_failed_ones() {
        let mut failed = Control::default().failed_starts();
        let read = failed.clone();
        for _ in 0..3 {
            failed = failed.failed(&read, 3, at(10));
        }
        assert_eq!((failed.count, failed.wait_s, failed.applies(at(69))), (Some(3), Some(60), true));
        assert_eq!(failed.after_success(Some(at(10))), None, "before the last failure");
        assert_eq!(failed.after_success(Some(at(11))).map(|e| (e.count, e.wait_s)), Some((Some(0), None)));
    }
}
