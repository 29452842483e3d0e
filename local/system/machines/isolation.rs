//! Whether the jobs of the local machines are isolated from this computer.
//!
//! Guarantees: the user learns whether jobs are isolated and, if not, why. Two machines never give jobs the same ids at the same
//! time, as long as one system has at most 256 machines, and the process ids of two systems differ modulo 4,096.
//! Does not: isolate (the agent does).

use crate::local::args::LocalArgs;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The first id. Linux distributions do not use the ids from here on (<https://systemd.io/UIDS-GIDS/>).
const FIRST: u32 = 1_879_048_192;
/// The number of ids of one local system. There is room for 4,096 systems.
const PER_SYSTEM: u32 = 65_536;
/// The number of user ids of one machine. The agent keeps two of them for itself, so two fewer jobs run there at once.
const USERS: u32 = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::local) enum JobIsolation {
    /// Each job runs as a user id of its own.
    OwnIds,
    /// Jobs run as the user of this program, for this reason.
    None(String),
}

impl JobIsolation {
    /// The isolation that is possible here. `dir` is the working directory, absolute.
    pub(in crate::local) fn of(args: &LocalArgs, dir: &Path) -> Self {
        if args.unisolated {
            return Self::None("--unisolated is given".to_owned());
        }
        if !nix::unistd::geteuid().is_root() {
            return Self::None("only root can isolate them".to_owned());
        }
        // Jobs could not reach their files below a directory that others may not enter.
        let is_closed = |dir: &&Path| !dir.metadata().is_ok_and(|m| m.mode() & 0o001 != 0);
        dir.ancestors().find(is_closed).map_or(Self::OwnIds, |closed| {
            Self::None(format!("other users may not enter {} (chmod o+x)", closed.display()))
        })
    }

    /// The options of the agent. `number` differs for all machines that are up.
    pub(in crate::local) fn agent_options(&self, number: u32) -> Vec<String> {
        if let Self::None(_) = self {
            return vec!["--unisolated".to_owned()];
        }
        let machines = PER_SYSTEM / USERS;
        let system = std::process::id() % (i32::MAX as u32 - FIRST).div_ceil(PER_SYSTEM);
        let first = FIRST + system * PER_SYSTEM + (number % machines) * USERS;
        let range = |first: u32, count: u32| format!("{first}-{}", first + count - 1);
        // The metadata service has no credentials for jobs: it answers only programs of the owner.
        ["--job-uids", &range(first, USERS), "--allow-metadata"].map(str::to_owned).into()
    }
}

impl fmt::Display for JobIsolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnIds => f.write_str("isolated: each runs as a user id of its own"),
            Self::None(why) => write!(f, "NOT isolated, they can do what you can do here: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_machines_have_no_id_in_common() {
        let options = [0, 1, 255].map(|n| JobIsolation::OwnIds.agent_options(n));
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap();
            (first.parse::<u32>().unwrap(), last.parse::<u32>().unwrap())
        };
        let mut ranges: Vec<_> = options.iter().map(|o| range(&o[1])).collect();
        assert_eq!(options[0].iter().step_by(2).collect::<Vec<_>>(), ["--job-uids", "--allow-metadata"]);
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:?}");
        assert!(ranges.iter().all(|(first, last)| *first >= FIRST && *last <= i32::MAX as u32 && last - first >= 31));
    }
}
