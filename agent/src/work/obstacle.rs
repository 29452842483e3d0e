//! Why a command does not get what it needs before it starts, or what it made is not stored: whose fault it is.
//!
//! Guarantees: each fault says by its kind what helps: nothing, another node, or the service; no error of the machine is taken for
//! the job's fault, and no wrong name or value of the job for the machine's.
//! Does not: end the alloc; the kind of the fault decides how it ends.

use crate::machine::fitness::is_lack_of_room;
use model::EndCause;
use model::enums::Service;
use nix::errno::Errno;
use s3::S3Error;
use std::io;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The wait before a call of a service is made again.
const RETRY: Duration = Duration::from_secs(3);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The job asks for what no node can do.
    Job(String),
    /// This node cannot do it. Another node may.
    Node(String),
    /// A service does not answer, or refuses the node itself.
    Service(Service, String),
    /// The alloc was told to stop before its command began.
    Stopped(String),
}

/// Errors that say something about the machine, whatever name or value was given to it.
const OF_THE_MACHINE: [Errno; 9] = [
    Errno::EIO,
    Errno::EBUSY,
    Errno::ENODEV,
    Errno::ENXIO,
    Errno::ESTALE,
    Errno::EACCES,
    Errno::EPERM,
    Errno::EINTR,
    Errno::ENOSYS,
];

/// Whether this error says something about the machine, whatever name or value was given to it.
pub fn is_of_the_machine(error: &io::Error) -> bool {
    is_lack_of_room(error) || error.raw_os_error().is_some_and(|code| OF_THE_MACHINE.contains(&Errno::from_raw(code)))
}

impl Obstacle {
    /// An error of a step that takes a name or a value of the job.
    pub fn of_given(what: &str, error: &io::Error) -> Self {
        let why = format!("{what}: {error}");
        if is_of_the_machine(error) { Self::Node(why) } else { Self::Job(why) }
    }

    /// An error of a step that takes nothing of the job: the node's own files, processes and limits.
    pub fn of_node(what: &str, error: &io::Error) -> Self {
        Self::Node(format!("{what}: {error}"))
    }

    /// The obstacle with a text that begins with what could not be done.
    #[must_use]
    pub fn about(self, what: &str) -> Self {
        let about = |why: String| format!("{what}: {why}");
        match self {
            Self::Job(why) => Self::Job(about(why)),
            Self::Node(why) => Self::Node(about(why)),
            Self::Service(service, why) => Self::Service(service, about(why)),
            Self::Stopped(why) => Self::Stopped(why),
        }
    }
}

impl From<S3Error> for Obstacle {
    fn from(error: S3Error) -> Self {
        let why = error.to_string();
        match error {
            // Without the right to list the bucket, an absent object is denied.
            S3Error::Absent | S3Error::Denied(_) | S3Error::Refused(_) => Self::Job(why),
            S3Error::Failed(_) => Self::Service(Service::S3, why),
            S3Error::NoKeys(_) => Self::Service(Service::Credentials, why),
            S3Error::File(_) => Self::Node(why),
            S3Error::TooLarge { .. } | S3Error::Changed => Self::Job(why),
        }
    }
}

/// Repeats a call of a service while its failure may pass, for at most `patience`. `what` says in an error what cannot be done.
pub async fn patiently<T, E: Into<Obstacle>>(
    what: &str,
    patience: Duration,
    call: impl AsyncFn() -> Result<T, E>,
) -> Result<T, Obstacle> {
    let deadline = Instant::now() + patience;
    loop {
        match call().await.map_err(Into::into) {
            Err(Obstacle::Service(service, why)) if Instant::now() < deadline => {
                tracing::warn!(what, %service, why, "it is tried again");
                sleep(RETRY).await;
            }
            result => return result.map_err(|fault| fault.about(what)),
        }
    }
}

/// The end of an alloc whose command was not started.
impl From<Obstacle> for EndCause {
    fn from(fault: Obstacle) -> Self {
        match fault {
            Obstacle::Job(why) => Self::Rejected { why },
            Obstacle::Node(why) => Self::NotStarted { why },
            Obstacle::Service(service, why) => Self::NoService { service, why },
            Obstacle::Stopped(why) => Self::Stopped { why, code: None },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn each_kind_of_error_says_whether_another_node_helps() {
        let given = |errno: Errno| Obstacle::of_given("a", &io::Error::from(errno));
        for errno in OF_THE_MACHINE.into_iter().chain([Errno::ENOSPC, Errno::EMFILE, Errno::ENOMEM, Errno::EROFS]) {
            assert!(matches!(given(errno), Obstacle::Node(_)), "{errno}");
        }
        for errno in [Errno::ENAMETOOLONG, Errno::ENOTDIR, Errno::EISDIR, Errno::EEXIST, Errno::ELOOP, Errno::EINVAL] {
            assert!(matches!(given(errno), Obstacle::Job(_)), "{errno}");
            assert!(matches!(Obstacle::of_node("a", &io::Error::from(errno)), Obstacle::Node(_)), "{errno}");
        }
        let nul = CString::new("a\0b").map_err(io::Error::from).unwrap_err();
        assert!(matches!(Obstacle::of_given("a", &nul), Obstacle::Job(_)));
        let text = String::new;
        for (error, expected) in [
            (S3Error::Absent, "rejected"),
            (S3Error::Denied(text()), "rejected"),
            (S3Error::Refused(text()), "rejected"),
            (S3Error::Failed(text()), "no_service s3"),
            (S3Error::NoKeys(text()), "no_service credentials"),
            (S3Error::File(text()), "not_started"),
            (S3Error::TooLarge { bytes: 2, most: 1 }, "rejected"),
            (S3Error::Changed, "rejected"),
        ] {
            let text = format!("{error:?}");
            let cause = EndCause::from(Obstacle::from(error).about("the input a"));
            let form = serde_json::to_value(&cause).unwrap();
            let (kind, service) = (form["kind"].as_str().unwrap(), form["service"].as_str().unwrap_or_default());
            assert_eq!(format!("{kind} {service}").trim(), expected, "{text}");
            assert!(cause.to_string().contains("the input a: "), "{cause}");
        }
    }
}
