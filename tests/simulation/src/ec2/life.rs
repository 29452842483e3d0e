//! What happens to an instance as time passes: its boot, its mishaps and its end.
//!
//! Guarantees: an instance that goes down is terminated in the end, and nothing runs on it then.
//! Does not: answer calls (`calls` does).

use super::{Ec2, Real, WARNING_S};
use crate::core::{Fault, START, lock};
use model::{InstanceState, Market, Span};
use std::sync::Arc;
use std::time::Duration;

/// How long a terminated instance is listed at most, in milliseconds (EC2: about an hour).
const LISTED_MS: i64 = 3_600_000;

/// How often the mishaps of an instance are drawn, in seconds.
const STEP_S: i64 = 120;

impl Ec2 {
    /// Boots the machine, or lets the boot fail.
    pub(super) fn grow(self: &Arc<Self>, instance_id: String, instance_type: String, market: Market) {
        let ec2 = Arc::clone(self);
        tokio::spawn(async move {
            let core = &ec2.core;
            let up_s = if let Some(pools) = core.scenario.pools() {
                pools.boot_s(&instance_id)
            } else if core.happens(Fault::BootsSlowly) {
                core.of(Fault::BootsSlowly, 120, 2400)
            } else {
                core.between(15, core.scenario.boot_s)
            };
            sleep_s(up_s / 2).await;
            ec2.change(&instance_id, |r| {
                if r.instance.state == InstanceState::Pending {
                    r.instance.state = InstanceState::Running;
                }
            });
            if core.happens(Fault::DiesBooting) {
                ec2.end(&instance_id, 0, "died while it booted");
                return;
            }
            sleep_s(up_s / 2).await;
            let broken = core.scenario.broken_type.as_ref().is_some_and(|(broken, hours)| {
                *broken == instance_type && core.now().since(START).as_s() < hours * 3600.0
            });
            if broken || core.happens(Fault::NeverBoots) {
                core.tell(|| "ec2".into(), || format!("{instance_id} will never call"));
            } else if let (Some(boot), Some(real)) = (ec2.boot.get(), ec2.one(&instance_id))
                && real.is_up()
            {
                let machine = boot(&real);
                ec2.change(&instance_id, |r| r.machine = Some(machine));
            }
            ec2.live_on(&instance_id, market).await;
        });
    }

    /// The mishaps of a running machine.
    async fn live_on(self: &Arc<Self>, instance_id: &str, market: Market) {
        let core = &self.core;
        while self.is_up(instance_id) && !core.is_healed() {
            sleep_s(STEP_S).await;
            if !self.is_up(instance_id) {
                break;
            }
            let is_over = self.leaves_at(instance_id).is_some_and(|at| at <= core.now());
            if is_over && market == Market::Reserved {
                core.count("a capacity block ended under an instance");
                if let Some(until) = self.leaves_at(instance_id) {
                    self.check.invariant_a_block_is_left_in_time(&self.check.tables(), instance_id, until);
                }
                self.end(instance_id, core.between(0, 60), "its capacity block ends");
            } else if core.happens(Fault::InstanceDies) || core.happens(Fault::TerminatedByOthers) {
                self.end(instance_id, core.between(0, 60), "ended by itself or by others");
            } else if core.happens(Fault::Stopped) {
                core.tell(|| "ec2".into(), || format!("{instance_id} is stopped by somebody"));
                self.change(instance_id, |r| r.instance.state = InstanceState::Stopped);
                self.switch_off(instance_id);
            } else if core.happens(Fault::ListLoses) {
                let until = core.now() + Span::from_s(core.of(Fault::ListLoses, 30, 1800));
                core.tell(|| "ec2".into(), || format!("{instance_id} is not listed until {until}"));
                self.change(instance_id, |r| r.hidden_until = Some(until));
            } else if market == Market::Spot && core.happens(Fault::SpotTakenAtOnce) {
                self.end(instance_id, 0, "spot capacity taken back at once");
            } else if market == Market::Spot && (core.happens(Fault::SpotTaken) || self.may_take(instance_id)) {
                self.take_back(instance_id).await;
            }
        }
    }

    /// Warns that an instance is taken back, and ends it after two minutes.
    pub async fn take_back(self: &Arc<Self>, instance_id: &str) {
        let core = &self.core;
        let at = core.now() + Span::from_s(WARNING_S);
        core.tell(|| "ec2".into(), || format!("{instance_id} will be taken back at {at}"));
        self.change(instance_id, |r| r.taken_at = Some(at));
        self.check.interrupted();
        lock(&self.region).warnings.push(instance_id.to_owned());
        sleep_s(WARNING_S).await;
        self.end(instance_id, 0, "spot capacity taken back");
    }

    /// Whether the pool of a spot instance takes it back in this step.
    fn may_take(&self, instance_id: &str) -> bool {
        let (Some(pools), Some(real)) = (self.core.scenario.pools(), self.one(instance_id)) else { return false };
        let step = self.core.now().since(START).as_ms().unsigned_abs() / (1000 * STEP_S.unsigned_abs());
        let zone = real.instance.zone.as_deref().unwrap_or_default();
        pools.may_take((&real.instance_type, zone), instance_id, step, STEP_S as f64)
    }

    fn switch_off(&self, instance_id: &str) {
        self.change(instance_id, |r| {
            if let Some(machine) = r.machine.take() {
                machine.abort();
            }
        });
        self.check.machine_gone(instance_id);
    }

    /// Ends two thirds of the instances. Lists soon forget them.
    pub fn lose_most(self: &Arc<Self>) {
        for (_, real) in self.real().iter().filter(|r| r.is_up()).enumerate().filter(|(n, _)| n % 3 > 0) {
            self.end_listed(&real.instance.instance_id, 0, 1000, "its zone is lost");
        }
    }

    /// Ends every instance of a zone. Nothing is launched there for a while.
    pub fn lose_zone(self: &Arc<Self>) {
        let core = &self.core;
        let zone = if core.of(Fault::ZoneGone, 0, 1) == 0 { "zone-a" } else { "zone-b" };
        let until = core.now() + Span::from_s(core.of(Fault::ZoneGone, 300, 3600));
        lock(&self.region).lost_zone = Some((zone.to_owned(), until));
        let is_there = |real: &&Real| real.is_up() && real.instance.zone.as_deref() == Some(zone);
        for real in self.real().iter().filter(is_there) {
            self.end(&real.instance.instance_id, 0, "its zone is lost");
        }
    }

    /// Shuts an instance down, whoever asked for it. After `after_s` seconds EC2 lists it as terminated.
    pub fn end(self: &Arc<Self>, instance_id: &str, after_s: i64, why: &str) {
        let listed_ms = if self.core.maybe(0.2) { self.core.between(1, 120_000) } else { LISTED_MS };
        self.end_listed(instance_id, after_s, listed_ms, why);
    }

    fn end_listed(self: &Arc<Self>, instance_id: &str, after_s: i64, listed_ms: i64, why: &str) {
        let mut ends = false;
        self.change(instance_id, |r| {
            ends = !matches!(r.instance.state, InstanceState::ShuttingDown | InstanceState::Terminated);
            if ends {
                r.instance.state = InstanceState::ShuttingDown;
            }
        });
        if !ends {
            return;
        }
        self.core.tell(|| "ec2".into(), || format!("{instance_id} goes down: {why}"));
        // The processes on the machine may go on for a while.
        let off_s = self.core.between(0, after_s);
        let known_ms = if self.core.maybe(0.5) { listed_ms } else { LISTED_MS };
        let (ec2, instance_id) = (Arc::clone(self), instance_id.to_owned());
        tokio::spawn(async move {
            sleep_s(off_s).await;
            ec2.switch_off(&instance_id);
            sleep_s(after_s - off_s).await;
            let now = ec2.core.now();
            ec2.change(&instance_id, |r| {
                r.instance.state = InstanceState::Terminated;
                r.untagged_at = Some(now + Span::from_ms(listed_ms));
                r.forgotten_at = Some(now + Span::from_ms(known_ms));
            });
        });
    }
}

async fn sleep_s(s: i64) {
    tokio::time::sleep(Duration::from_secs(s.max(0).unsigned_abs())).await;
}
