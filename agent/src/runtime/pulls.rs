//! Whose fault it is that an image could not be pulled, by what docker and podman say.
//!
//! Guarantees: an unknown message counts as the registry's fault, so that the node is not blamed for it.
//! Does not: pull.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullFault {
    /// The registry has no such image, or does not give it to this caller.
    Refused,
    /// The machine has no disk space or memory, or its runtime does not work.
    Machine,
    /// The registry cannot be reached, or does not answer as it should.
    Registry,
}

/// Messages of registries and clients if there is no such image, or if the caller may not have it.
const IMAGE_REFUSED: &[&str] = &[
    "manifest unknown",
    "manifest for",
    "no matching manifest",
    "not found: manifest",
    // A docker with containerd's images: `failed to resolve reference "…": docker.io/library/a:b: not found`.
    ": not found",
    "repository does not exist",
    "pull access denied",
    "access to the resource is denied",
    "unauthorized",
    "short-name",
    "invalid reference format",
    "invalid image name",
    "name unknown",
];

/// Messages of clients if the machine is to blame.
const MACHINE_FAILED: &[&str] = &[
    "cannot connect to the docker daemon",
    "no space left on device",
    "read-only file system",
    "input/output error",
    "no such file or directory",
    "permission denied",
    "cannot allocate memory",
];

pub(crate) fn fault(words: &str) -> PullFault {
    let lower = words.to_ascii_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    match () {
        () if has(IMAGE_REFUSED) => PullFault::Refused,
        () if has(MACHINE_FAILED) => PullFault::Machine,
        () => PullFault::Registry,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_that_refuses_or_is_away_is_told_from_a_machine_that_cannot_pull() {
        for (words, whose) in [
            ("Error response from daemon: manifest for a:b not found: manifest unknown.", PullFault::Refused),
            ("Error response from daemon: pull access denied for x, repository does not exist", PullFault::Refused),
            (
                "Error: short-name \"x\" did not resolve to an alias and no unqualified-search registries",
                PullFault::Refused,
            ),
            ("unable to retrieve auth token: invalid username/password: unauthorized", PullFault::Refused),
            (
                "Error response from daemon: failed to resolve reference \"docker.io/library/a:b\": docker.io/library/a:b: not found",
                PullFault::Refused,
            ),
            ("the registry answers 429: too many requests", PullFault::Registry),
            ("dial tcp: lookup registry-1.docker.io: i/o timeout", PullFault::Registry),
            ("pinging container registry: connect: connection refused", PullFault::Registry),
            ("", PullFault::Registry),
            ("write /var/lib/docker/tmp/x: no space left on device", PullFault::Machine),
            ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", PullFault::Machine),
            ("No such file or directory (os error 2)", PullFault::Machine),
        ] {
            assert_eq!(fault(words), whose, "{words}");
        }
    }
}
