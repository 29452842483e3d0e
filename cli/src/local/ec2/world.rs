//! The instances and how their states follow one another in time.
//!
//! Guarantees: with the same seed, the same times and the same requests it is the same world;
//! every change happens at its due time, in order, however late the clock is looked at; ids
//! never come back. Does not: call a hook itself (it queues them), or refuse anything.
//!
//! ```text
//! pending ─▶ running ─▶ shutting-down ─▶ terminated ─▶ (listed no more)
//!    │          └─▶ stopping ─▶ stopped        (by someone else only)
//!    └───────────────────┴───────▶ shutting-down
//! ```

use serde::{Deserialize, Serialize};
use shared::model::Market;
use shared::time::{Span, Time};
use std::collections::{BTreeMap, HashMap, VecDeque};

use super::config::{Bucket, Config};
use super::faults::Faults;
use super::machines::{HookCall, MachineStart};
use super::wire::Params;

/// A client token "is valid for at least 24 hours after the termination of the instance"
/// ("Ensuring idempotency", EC2 Developer Guide).
const TOKEN_OUTLIVES: Span = Span::from_s(24 * 3600);

/// The state of an instance, by EC2's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Being prepared.
    Pending,
    /// Its machine runs.
    Running,
    /// On its way to `terminated`.
    ShuttingDown,
    /// Gone for good, but still listed.
    Terminated,
    /// On its way to `stopped`.
    Stopping,
    /// Off, and could be started again.
    Stopped,
}

impl State {
    /// EC2's name and code ("InstanceState", EC2 API Reference).
    pub(super) const fn name_and_code(self) -> (&'static str, u8) {
        match self {
            Self::Pending => ("pending", 0),
            Self::Running => ("running", 16),
            Self::ShuttingDown => ("shutting-down", 32),
            Self::Terminated => ("terminated", 48),
            Self::Stopping => ("stopping", 64),
            Self::Stopped => ("stopped", 80),
        }
    }

    /// Whether it is over, or will be: nothing brings it back.
    pub const fn is_ending(self) -> bool {
        matches!(self, Self::ShuttingDown | Self::Terminated)
    }
}

/// One instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Instance {
    /// Its id, `i-` and 17 hexadecimal digits.
    pub instance_id: String,
    /// The RunInstances call that made it.
    pub reservation_id: String,
    /// Its state.
    pub state: State,
    /// When it was launched.
    pub launched_at: Time,
    /// Its type.
    pub instance_type: String,
    /// Its vCPUs, as they count against a quota.
    pub vcpus: u32,
    /// Its market.
    pub market: Market,
    /// Its subnet.
    pub subnet_id: String,
    /// Its availability zone.
    pub zone: String,
    /// Its private address.
    pub private_ip: String,
    /// Its image, if the launch named one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    /// The token of the call that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_token: Option<String>,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// Its place among those launched together.
    pub launch_index: u32,
    /// Why it left `running`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state_reason: Option<StateReason>,
    /// Whether anything boots on it: see [`Faults::boot_failures`](super::Faults).
    pub boots: bool,
    /// Whether its own power-off ends it for good (`InstanceInitiatedShutdownBehavior`).
    pub ends_when_off: bool,
    #[serde(skip)]
    pub(super) user_data: String,
}

/// Why an instance is in its state ("StateReason", EC2 API Reference).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StateReason {
    /// Somebody called TerminateInstances.
    TerminatedByUser,
    /// EC2 took a spot instance back.
    SpotTermination,
    /// The hardware failed, or was retired.
    TerminatedByCloud,
    /// The hardware failed, and it was stopped.
    StoppedByCloud,
    /// Its own operating system powered it off.
    PoweredOff,
}

impl StateReason {
    pub(super) const fn code_and_message(self) -> (&'static str, &'static str) {
        match self {
            Self::TerminatedByUser => {
                ("Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
            }
            Self::SpotTermination => {
                ("Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot instance termination")
            }
            Self::TerminatedByCloud => ("Server.InternalError", "Server.InternalError: Internal error on termination"),
            Self::StoppedByCloud => {
                ("Server.ScheduledStop", "Server.ScheduledStop: Stopped due to a scheduled retirement")
            }
            Self::PoweredOff => {
                ("Client.InstanceInitiatedShutdown", "Client.InstanceInitiatedShutdown: Instance initiated shutdown")
            }
        }
    }
}

/// A client token that was used, and for what.
pub(super) struct SpentToken {
    pub(super) params: Params,
    pub(super) reservation_id: String,
    pub(super) instances: Vec<String>,
}

/// Where a token counts: "RunInstances idempotency" is per zone.
pub(super) type TokenKey = (String, String);

/// The two ways out of `running`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// To `terminated`.
    End,
    /// To `stopped`.
    Stop,
}

/// What happens to an instance by itself.
#[derive(Clone, Copy)]
enum Due {
    Run,
    Interrupt,
    Stop,
    Terminate,
    Forget,
}

/// The level of a token bucket, in thousandths, so that part of a token is not lost.
#[derive(Default)]
pub(super) struct Level {
    milli: i64,
    filled_at: Option<Time>,
}

impl Level {
    /// Takes `n` tokens, or none if there are fewer.
    pub(super) fn take(&mut self, n: u32, bucket: Bucket, now: Time) -> bool {
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

/// Everything that changes.
#[derive(Default)]
pub(super) struct World {
    pub(super) faults: Faults,
    pub(super) tokens: HashMap<TokenKey, SpentToken>,
    pub(super) run_requests: Level,
    pub(super) run_instances: Level,
    instances: BTreeMap<u64, Instance>,
    by_id: HashMap<String, u64>,
    due: BTreeMap<(Time, u64), (u64, Due)>,
    old_tokens: VecDeque<(Time, TokenKey)>,
    serial: u64,
    addresses: u32,
    /// What the machines are still to be told, in order.
    pub(super) hooks: VecDeque<HookCall>,
    /// Somebody is telling them.
    pub(super) telling: bool,
}

impl World {
    /// The next number; never the same twice.
    fn next(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// A fresh id: unlike any other of this world, and the same whenever the seed is.
    pub(super) fn fresh_id(&mut self, prefix: &str, seed: u64) -> String {
        format!("{prefix}{:017x}", scatter(self.next().wrapping_add(scatter(seed))))
    }

    /// The next private address of the subnet with this index. No subnet runs out: after 65,000
    /// launches addresses begin anew, as they do in EC2 once they are free.
    pub(super) fn fresh_address(&mut self, subnet: usize) -> String {
        let host = 4 + self.addresses % 65_000;
        self.addresses = self.addresses.wrapping_add(1);
        format!("10.{}.{}.{}", subnet % 256, host / 256, host % 256)
    }

    /// Instances in launch order, those first that came after `after`.
    pub(super) fn listed(&self, after: Option<u64>) -> impl Iterator<Item = (u64, &Instance)> {
        self.instances.range(after.map_or(0, |n| n.saturating_add(1))..).map(|(n, instance)| (*n, instance))
    }

    /// The instance with this id, whether or not lists show it.
    pub(super) fn find(&self, id: &str) -> Option<&Instance> {
        self.instances.get(self.by_id.get(id)?)
    }

    /// The same, to be changed.
    pub(super) fn find_mut(&mut self, id: &str) -> Option<&mut Instance> {
        self.instances.get_mut(self.by_id.get(id)?)
    }

    /// Takes in a new instance, pending from now on.
    pub(super) fn launch(&mut self, instance: Instance, config: &Config) {
        let number = self.next();
        self.schedule(instance.launched_at + Span::from_ms(config.pending_ms), number, Due::Run);
        self.by_id.insert(instance.instance_id.clone(), number);
        self.instances.insert(number, instance);
    }

    /// Begins to end an instance that is not ending yet, or to stop a running one. Says whether it did.
    pub(super) fn leave(&mut self, id: &str, to: Leave, why: StateReason, now: Time, config: &Config) -> bool {
        let Some(&number) = self.by_id.get(id) else { return false };
        let Some(instance) = self.instances.get_mut(&number) else { return false };
        let runs = instance.state == State::Running;
        let (state, then) = match to {
            Leave::End => (State::ShuttingDown, Due::Terminate),
            Leave::Stop => (State::Stopping, Due::Stop),
        };
        if instance.state.is_ending() || (to == Leave::Stop && !runs) {
            return false;
        }
        instance.state = state;
        instance.state_reason = Some(why);
        if runs && instance.boots {
            self.hooks.push_back(HookCall::Stop { instance_id: id.to_owned() });
        }
        self.schedule(now + Span::from_ms(config.shutting_down_ms), number, then);
        true
    }

    /// Warns the machine of a live instance, and takes it away at `at`. Says whether it is live.
    pub(super) fn interrupt(&mut self, id: &str, at: Time) -> bool {
        let Some(instance) = self.find(id) else { return false };
        if instance.state.is_ending() {
            return false;
        }
        let Some(&number) = self.by_id.get(id) else { return false };
        self.hooks.push_back(HookCall::Warn { instance_id: id.to_owned(), at });
        self.schedule(at, number, Due::Interrupt);
        true
    }

    /// Lets everything happen that is due by `now`, each at its own time.
    pub(super) fn advance(&mut self, now: Time, config: &Config) {
        while let Some(entry) = self.due.first_entry()
            && entry.key().0 <= now
        {
            let ((at, _), (number, due)) = entry.remove_entry();
            self.happen(at, now, number, due, config);
        }
        while let Some((_, key)) = self.old_tokens.pop_front_if(|(at, _)| *at <= now) {
            self.tokens.remove(&key);
        }
    }

    fn happen(&mut self, at: Time, now: Time, number: u64, due: Due, config: &Config) {
        let Some(instance) = self.instances.get_mut(&number) else { return };
        match (due, instance.state) {
            (Due::Run, State::Pending) => {
                instance.state = State::Running;
                if instance.boots {
                    self.hooks.push_back(HookCall::Start(MachineStart {
                        instance_id: instance.instance_id.clone(),
                        private_ip: instance.private_ip.clone(),
                        instance_type: instance.instance_type.clone(),
                        user_data: instance.user_data.clone(),
                        tags: instance.tags.clone(),
                    }));
                }
            }
            (Due::Interrupt, _) => {
                let id = instance.instance_id.clone();
                self.leave(&id, Leave::End, StateReason::SpotTermination, at, config);
            }
            (Due::Terminate, State::ShuttingDown) | (Due::Stop, State::Stopping) if self.faults.is_stuck(instance) => {
                // Looked at again soon, for the fault may have been lifted.
                self.schedule(now + Span::from_ms(config.shutting_down_ms.clamp(1, 1_000)), number, due);
            }
            (Due::Terminate, State::ShuttingDown) => {
                instance.state = State::Terminated;
                self.schedule(at + Span::from_ms(config.terminated_listed_ms), number, Due::Forget);
            }
            (Due::Stop, State::Stopping) => instance.state = State::Stopped,
            (Due::Forget, State::Terminated) => self.forget(number, at),
            // It went another way in the meantime.
            (Due::Run | Due::Stop | Due::Terminate | Due::Forget, _) => {}
        }
    }

    fn forget(&mut self, number: u64, at: Time) {
        let Some(instance) = self.instances.remove(&number) else { return };
        self.by_id.remove(&instance.instance_id);
        let Some(token) = instance.client_token else { return };
        let key = (instance.zone, token);
        if self.tokens.get(&key).is_some_and(|spent| !spent.instances.iter().any(|id| self.by_id.contains_key(id))) {
            self.old_tokens.push_back((at + TOKEN_OUTLIVES, key));
        }
    }

    fn schedule(&mut self, at: Time, number: u64, due: Due) {
        let order = self.next();
        self.due.insert((at, order), (number, due));
    }
}

/// The finaliser of SplitMix64: a one-to-one scattering of all 64-bit numbers.
const fn scatter(n: u64) -> u64 {
    let n = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}
