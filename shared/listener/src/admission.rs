//! Who may connect, and how often at the same time.
//!
//! Guarantees: whatever others do, the owner keeps a share of the connections, and the process keeps a share of its
//! descriptors. One other user cannot take the whole share of the others.
//! Does not: find out which user connects (`user` does).

use derive_more::Display;
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{Uid, geteuid};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The users whose programs are the owner's.
#[derive(Clone, Debug)]
pub(crate) struct Owner(pub(crate) BTreeSet<u32>);

impl Owner {
    /// The user of this program, and root, who can do everything anyway. `sudo_uid` is the user who became root by `sudo`: the
    /// value of `SUDO_UID`.
    pub(crate) fn of_this_program(sudo_uid: Option<&str>) -> Self {
        let sudo = sudo_uid.filter(|_| geteuid().is_root()).and_then(|uid| uid.parse().ok());
        Self([Uid::from_raw(0), geteuid()].map(Uid::as_raw).into_iter().chain(sudo).collect())
    }
}

/// Who gets an answer at a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Callers {
    Owner,
    Everyone,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most connections of the owner at the same time.
    pub(crate) owner: usize,
    /// Those of all other users together.
    pub(crate) others: usize,
    /// Those of one other user.
    pub(crate) one: usize,
    /// How long the process waits for the head of a request, for each part of its body, and for somebody to read the answer.
    pub(crate) patience: Duration,
}

/// The longest wait for a caller. A client connects to this machine only, and so it is quick unless it is stopped.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most connections of all other users. Each may have a body of 2 MiB in memory.
const MOST_OTHERS: usize = 512;

impl Limits {
    /// The limits of this process. The owner may use three eighths of the descriptors, and all others a quarter: the rest is for the
    /// work of the process itself.
    fn of_this_process() -> Self {
        // 1024 is the usual limit.
        let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        Self::of(usize::try_from(descriptors).unwrap_or(usize::MAX))
    }

    fn of(descriptors: usize) -> Self {
        let others = (descriptors / 4).clamp(1, MOST_OTHERS);
        Self { owner: (descriptors / 8 * 3).max(1), others, one: (others / 4).max(1), patience: PATIENCE }
    }
}

/// Admits connections. Clones share the counts.
#[derive(Clone)]
pub struct Admission(Arc<Shares>);

struct Shares {
    owner: Owner,
    limits: Limits,
    open: Mutex<Open>,
}

/// The connections that are open.
#[derive(Debug, Default)]
struct Open {
    of_owner: usize,
    of_others: usize,
    /// Of each other user. `None` is one whom the kernel does not name.
    of_one: BTreeMap<Option<u32>, usize>,
}

/// Why a connection is closed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Display)]
pub(crate) enum WhyClosed {
    #[display("only programs of the owner are answered here")]
    NotTheOwner,
    #[display("the owner has as many connections as the process can have")]
    OwnerHasAll,
    #[display("all other users together have as many connections as they may have")]
    OthersHaveAll,
    #[display("the user has as many connections as one user may have")]
    HasAll,
}

/// The place of one connection, until it is dropped.
pub(crate) struct Seat {
    of: Arc<Shares>,
    user: Option<u32>,
}

impl Admission {
    /// Within the limits of this process, for its own user. See `Owner` for `sudo_uid`.
    pub fn of_this_program(sudo_uid: Option<&str>) -> Self {
        Self::new(Owner::of_this_program(sudo_uid), Limits::of_this_process())
    }

    pub(crate) fn new(owner: Owner, limits: Limits) -> Self {
        Self(Arc::new(Shares { owner, limits, open: Mutex::default() }))
    }

    pub(crate) fn limits(&self) -> Limits {
        self.0.limits
    }

    /// A place for a connection of this user at a port for these callers.
    pub(crate) fn admit(&self, user: Option<u32>, callers: Callers) -> Result<Seat, WhyClosed> {
        let Shares { limits, .. } = self.0.as_ref();
        let mut open = self.0.open();
        if self.0.is_owner(user) {
            if open.of_owner >= limits.owner {
                return Err(WhyClosed::OwnerHasAll);
            }
            open.of_owner += 1;
        } else {
            if callers == Callers::Owner {
                return Err(WhyClosed::NotTheOwner);
            }
            if open.of_one.get(&user).is_some_and(|n| *n >= limits.one) {
                return Err(WhyClosed::HasAll);
            }
            if open.of_others >= limits.others {
                return Err(WhyClosed::OthersHaveAll);
            }
            open.of_others += 1;
            *open.of_one.entry(user).or_default() += 1;
        }
        Ok(Seat { of: Arc::clone(&self.0), user })
    }
}

impl Shares {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_owner(&self, user: Option<u32>) -> bool {
        user.is_some_and(|user| self.owner.0.contains(&user))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut open = self.of.open();
        if self.of.is_owner(self.user) {
            open.of_owner = open.of_owner.saturating_sub(1);
            return;
        }
        open.of_others = open.of_others.saturating_sub(1);
        if let Some(n) = open.of_one.get_mut(&self.user) {
            *n = n.saturating_sub(1);
        }
        open.of_one.retain(|_, n| *n > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_takes_what_is_kept_for_the_owner_or_for_other_users() {
        let limits = Limits { owner: 2, others: 3, one: 2, patience: PATIENCE };
        let admission = Admission::new(Owner(BTreeSet::from([0, 7])), limits);
        let mut seats = Vec::new();
        let mut admitted = |user, callers| match admission.admit(user, callers) {
            Ok(seat) => {
                seats.push(seat);
                None
            }
            Err(why) => Some(why),
        };
        use Callers::{Everyone, Owner as OnlyOwner};
        for (user, callers, wanted) in [
            (Some(9), OnlyOwner, Some(WhyClosed::NotTheOwner)),
            (None, OnlyOwner, Some(WhyClosed::NotTheOwner)),
            (Some(9), Everyone, None),
            (Some(9), Everyone, None),
            (Some(9), Everyone, Some(WhyClosed::HasAll)),
            (None, Everyone, None),
            (Some(10), Everyone, Some(WhyClosed::OthersHaveAll)),
            (Some(0), OnlyOwner, None),
            (Some(7), Everyone, None),
            (Some(0), OnlyOwner, Some(WhyClosed::OwnerHasAll)),
        ] {
            assert_eq!(admitted(user, callers), wanted, "{user:?} {callers:?}");
        }
        seats.clear();
        let open = admission.0.open();
        assert_eq!((open.of_owner, open.of_others, open.of_one.len()), (0, 0, 0), "nothing is left of what ended");
    }

    #[test]
    fn the_process_keeps_descriptors_for_its_own_work() {
        for descriptors in [0, 1, 64, 1024, 20_000, 1 << 20, usize::MAX] {
            let Limits { owner, others, one, .. } = Limits::of(descriptors);
            assert!(1 <= one && one <= others && others <= MOST_OTHERS, "{descriptors}: {one} {others}");
            assert!(descriptors < 16 || owner + others <= descriptors / 8 * 5 + 8, "{descriptors}: {owner} {others}");
            assert!(one < others || others < 4, "{descriptors}: one user alone cannot take it all");
        }
    }
}
