//! Limits of single resources of a job's processes, as `ulimit` and docker know them.
//!
//! Guarantees: what is written down can be carried out by `setrlimit`, and by docker and podman.
//! Does not: limit memory, CPU or tasks: the control group of an alloc does that.

use crate::mistakes::{Mistakes, shown};
use std::collections::BTreeMap;
use std::str::FromStr;

/// From the name of each resource to its limit, `SOFT` or `SOFT:HARD`.
pub type Ulimits = BTreeMap<String, String>;

/// The resources, by docker's names. `nproc` is not among them: each node limits tasks by itself.
pub const RESOURCES: [&str; 6] = ["core", "fsize", "memlock", "msgqueue", "nofile", "stack"];

/// A limit of a resource. `None` means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ulimit {
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

impl FromStr for Ulimit {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "must be SOFT or SOFT:HARD, each a whole number, or -1 for no limit";
        let number = |text: &str| match text {
            "-1" | "unlimited" => Ok(None),
            _ => text.parse().map(Some).map_err(|_| FORM),
        };
        let (soft, hard) = text.split_once(':').unwrap_or((text, text));
        let limit = Self { soft: number(soft)?, hard: number(hard)? };
        // A soft limit of "no limit" is above every number.
        let is_above = limit.hard.is_some_and(|hard| limit.soft.is_none_or(|soft| soft > hard));
        if is_above { Err("has a soft limit above the hard one") } else { Ok(limit) }
    }
}

/// Checks what a user submits, or what is stored.
pub(crate) fn check(ulimits: &Ulimits, mistakes: &mut Mistakes) {
    for (name, limit) in ulimits {
        mistakes.require(RESOURCES.contains(&name.as_str()), || {
            format!("--ulimit {} is not a resource: there are {}", shown(name), RESOURCES.join(", "))
        });
        if let Err(why) = limit.parse::<Ulimit>() {
            mistakes.require(false, || format!("--ulimit {name}={} {why}", shown(limit)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_two_numbers_or_none() {
        let read = |text: &str| text.parse::<Ulimit>().map(|limit| (limit.soft, limit.hard));
        assert_eq!(read("1024"), Ok((Some(1024), Some(1024))));
        assert_eq!(read("1024:4096"), Ok((Some(1024), Some(4096))));
        assert_eq!(read("1024:-1"), Ok((Some(1024), None)));
        assert_eq!(read("unlimited"), Ok((None, None)));
        for bad in ["", ":", "1:", "x", "1.5", "-2", "4096:1024", "-1:5", "1:2:3", "1k"] {
            assert!(read(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_what_docker_and_setrlimit_know_is_taken() {
        let said = |name: &str, limit: &str| {
            let mut mistakes = Mistakes::default();
            check(&[(name.to_owned(), limit.to_owned())].into(), &mut mistakes);
            mistakes.into_list().map(|all| all.join("; ")).unwrap_or_default()
        };
        assert_eq!(said("nofile", "65536"), "");
        assert!(said("nproc", "5").contains("there are core, fsize"), "the node limits tasks");
        assert!(
            said("memlock", "much").contains("--ulimit memlock=\"much\" must be SOFT"),
            "{}",
            said("memlock", "much")
        );
    }
}
