//! The instances, and how their states change over time.
//!
//! Guarantees: the same seed, times and requests give the same world; every change happens at
//! its due time and in order, even if the clock is read late; an id is never used twice.
//! Does not: call a hook itself (it queues the call), or refuse a request.
//!
//! ```text
//! pending ─▶ running ─▶ shutting-down ─▶ terminated ─▶ (no longer listed)
//!    │          └─▶ stopping ─▶ stopped        (only EC2 or another user stops)
//!    └───────────────────┴───────▶ shutting-down
//! ```

use model::enums::ReservationKind;
use model::{Span, Time};
use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::faults::Faults;
use crate::instance::{Ec2Instance, InstanceState, StateReason, is_ending};
use crate::machines::{HookCall, MachineStart, Machines};
use crate::settings::{Ec2Settings, TokenBucket};
use crate::wire::Params;

/// A client token "is valid for at least 24 hours after the termination of the instance"
/// ("Ensuring idempotency", EC2 Developer Guide).
const TOKEN_KEPT: Span = Span::from_s(24 * 3600);

/// A client token that was used, and the request that used it.
pub(crate) struct UsedToken {
    pub(crate) params: Params,
    pub(crate) reservation_id: String,
    pub(crate) instances: Vec<String>,
}

/// Zone and token: idempotency of RunInstances is per zone.
pub(crate) type TokenKey = (String, String);

/// How an instance leaves `running`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shutdown {
    Terminate,
    Stop,
}

/// A change that the clock makes.
#[derive(Clone, Copy)]
enum DueChange {
    Run,
    /// EC2 takes the instance away.
    End(StateReason),
    Stop,
    Terminate,
    Forget,
}

/// The level of a token bucket, in thousandths of a token, because a refill adds fractions of a token.
#[derive(Default)]
pub(crate) struct BucketLevel {
    milli: i64,
    filled_at: Option<Time>,
}

impl BucketLevel {
    /// Takes `n` tokens, or none if fewer are left.
    pub(crate) fn take(&mut self, n: u32, bucket: TokenBucket, now: Time) -> bool {
        let full = i64::from(bucket.size) * 1000;
        let back = self.filled_at.map_or(full, |at| now.since(at).as_ms().saturating_mul(bucket.refill_per_s.into()));
        self.milli = self.milli.saturating_add(back.max(0)).min(full);
        self.filled_at = Some(now);
        let wanted = i64::from(n) * 1000;
        let enough = wanted <= self.milli;
        self.milli -= if enough { wanted } else { 0 };
        enough
    }
}

/// Everything that changes over time.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) faults: Faults,
    pub(crate) tokens: HashMap<TokenKey, UsedToken>,
    /// The fleets that were made with a client token, by token: the request, and its answer.
    pub(crate) fleets: HashMap<String, (Params, String)>,
    pub(crate) run_requests: BucketLevel,
    pub(crate) run_instances: BucketLevel,
    instances: BTreeMap<u64, Ec2Instance>,
    by_id: HashMap<String, u64>,
    due: BTreeMap<(Time, u64), (u64, DueChange)>,
    old_tokens: VecDeque<(Time, TokenKey)>,
    serial: u64,
    addresses: u32,
    /// Hook calls still to be made, in order.
    pub(crate) hooks: VecDeque<HookCall>,
    /// Whether a caller is making hook calls now.
    pub(crate) calling_hooks: bool,
}

impl World {
    /// The next number, never used before.
    fn next(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// A new id, unique in this world and reproducible from the seed.
    pub(crate) fn fresh_id(&mut self, prefix: &str, seed: u64) -> String {
        format!("{prefix}{:017x}", scatter(self.next().wrapping_add(scatter(seed))))
    }

    /// The next private address of the subnet with this index. No subnet runs out of addresses:
    /// after 65,000 launches they repeat, as EC2 reuses free ones.
    pub(crate) fn fresh_address(&mut self, subnet: usize) -> String {
        let host = 4 + self.addresses % 65_000;
        self.addresses = self.addresses.wrapping_add(1);
        format!("10.{}.{}.{}", subnet % 256, host / 256, host % 256)
    }

    /// Instances in launch order, starting after number `after`.
    pub(crate) fn listed(&self, after: Option<u64>) -> impl Iterator<Item = (u64, &Ec2Instance)> {
        self.instances.range(after.map_or(0, |n| n.saturating_add(1))..).map(|(n, instance)| (*n, instance))
    }

    /// The instance with this id, even if API lists hide it.
    pub(crate) fn find(&self, id: &str) -> Option<&Ec2Instance> {
        self.instances.get(self.by_id.get(id)?)
    }

    /// Adds a new, pending instance.
    pub(crate) fn launch(&mut self, instance: Ec2Instance, settings: &Ec2Settings) {
        let number = self.next();
        self.schedule(instance.launched_at + Span::from_ms(settings.pending_ms), number, DueChange::Run);
        let reservation = instance.capacity_reservation.as_deref().and_then(|id| self.reservation(id).ok());
        let block = reservation.filter(|(known, _)| known.of.kind == ReservationKind::CapacityBlock);
        if let Some(until) = block.and_then(|(known, _)| known.of.until()) {
            self.schedule(until, number, DueChange::End(StateReason::TerminatedByCloud));
        }
        self.by_id.insert(instance.instance_id.clone(), number);
        self.instances.insert(number, instance);
    }

    /// Starts to terminate an instance, or to stop a running one. False if its state does not
    /// allow that.
    pub(crate) fn shut_down(
        &mut self,
        id: &str,
        to: Shutdown,
        why: StateReason,
        now: Time,
        settings: &Ec2Settings,
    ) -> bool {
        let Some(&number) = self.by_id.get(id) else { return false };
        let Some(instance) = self.instances.get_mut(&number) else { return false };
        let runs = instance.state == InstanceState::Running;
        let (state, then) = match to {
            Shutdown::Terminate => (InstanceState::ShuttingDown, DueChange::Terminate),
            Shutdown::Stop => (InstanceState::Stopping, DueChange::Stop),
        };
        if is_ending(instance.state) || (to == Shutdown::Stop && !runs) {
            return false;
        }
        instance.state = state;
        instance.state_reason = Some(why);
        if runs && instance.boots {
            let id = id.to_owned();
            self.hooks.push_back(Box::new(move |machines: &dyn Machines| machines.stop(&id)));
        }
        self.schedule(now + Span::from_ms(settings.shutting_down_ms), number, then);
        true
    }

    /// Warns the machine of a live instance, and terminates the instance at `at`. False if it is
    /// not live.
    pub(crate) fn interrupt(&mut self, id: &str, at: Time) -> bool {
        let is_live = |number: &u64| self.instances.get(number).is_some_and(|instance| !is_ending(instance.state));
        let Some(number) = self.by_id.get(id).copied().filter(is_live) else { return false };
        let id = id.to_owned();
        self.hooks.push_back(Box::new(move |machines: &dyn Machines| machines.warn(&id, at)));
        self.schedule(at, number, DueChange::End(StateReason::SpotTermination));
        true
    }

    /// Makes every change that is due by `now`, each at its own time.
    pub(crate) fn advance(&mut self, now: Time, settings: &Ec2Settings) {
        while let Some(entry) = self.due.first_entry()
            && entry.key().0 <= now
        {
            let ((at, _), (number, due)) = entry.remove_entry();
            self.make(at, now, number, due, settings);
        }
        while let Some((_, key)) = self.old_tokens.pop_front_if(|(at, _)| *at <= now) {
            self.tokens.remove(&key);
        }
    }

    fn make(&mut self, at: Time, now: Time, number: u64, due: DueChange, settings: &Ec2Settings) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        match (due, instance.state) {
            (DueChange::Run, InstanceState::Pending) => {
                instance.state = InstanceState::Running;
                if instance.boots {
                    let machine = MachineStart {
                        instance_id: instance.instance_id.clone(),
                        private_ip: instance.private_ip.clone(),
                        instance_type: instance.instance_type.clone(),
                        user_data: instance.user_data.clone(),
                        tags: instance.tags.clone(),
                    };
                    self.hooks.push_back(Box::new(move |machines: &dyn Machines| machines.start(machine)));
                }
            }
            (DueChange::End(why), _) => {
                let id = instance.instance_id.clone();
                self.shut_down(&id, Shutdown::Terminate, why, at, settings);
            }
            (DueChange::Terminate, InstanceState::ShuttingDown) | (DueChange::Stop, InstanceState::Stopping)
                if self.faults.is_stuck(instance) =>
            {
                // The change is tried again soon: the fault may have ended by then.
                self.schedule(now + Span::from_ms(settings.shutting_down_ms.clamp(1, 1_000)), number, due);
            }
            (DueChange::Terminate, InstanceState::ShuttingDown) => {
                instance.state = InstanceState::Terminated;
                self.schedule(at + Span::from_ms(settings.terminated_listed_ms), number, DueChange::Forget);
            }
            (DueChange::Stop, InstanceState::Stopping) => instance.state = InstanceState::Stopped,
            (DueChange::Forget, InstanceState::Terminated) => self.forget(number, at),
            // The instance's state changed in the meantime, so the change no longer applies.
            (DueChange::Run | DueChange::Stop | DueChange::Terminate | DueChange::Forget, _) => {}
        }
    }

    fn forget(&mut self, number: u64, at: Time) {
        let Some(instance) = self.instances.remove(&number) else { return };
        self.by_id.remove(&instance.instance_id);
        let Some(token) = instance.client_token else { return };
        let key = (instance.zone, token);
        if self.tokens.get(&key).is_some_and(|used| !used.instances.iter().any(|id| self.by_id.contains_key(id))) {
            self.old_tokens.push_back((at + TOKEN_KEPT, key));
        }
    }

    fn schedule(&mut self, at: Time, number: u64, due: DueChange) {
        let order = self.next();
        self.due.insert((at, order), (number, due));
    }
}

/// The finaliser of SplitMix64: a one-to-one mapping of all 64-bit numbers.
const fn scatter(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}
