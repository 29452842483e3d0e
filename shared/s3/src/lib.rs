//! S3, as far as outputs need it: storing an object, and reading one.
//!
//! Guarantees: an object is stored whole or not at all; S3 checks every byte that it is sent against a digest; the memory
//! that an output takes is that of one object, and that of a file a few parts; no credential is in a URL, so none is in an
//! error text.
//! Does not: list or delete objects, read a clock, or know where credentials come from ([`Keys`] does).
//!
//! Why not the SDK's client of S3: it has 300,000 lines and brings a dozen crates, and a few calls are needed here. The hard part
//! of these calls is the signature. The crate `aws-sigv4` makes it, also for what the agent asks of other services.

mod call;
mod error;
mod file;
mod read;
mod sign;
mod store;
mod xml;

pub use call::S3;
pub use error::S3Error;
pub use read::{Head, again};
pub use sign::{Signed, signature};

use async_trait::async_trait;
use aws_credential_types::Credentials;
use std::time::SystemTime;

/// Who calls, and when.
#[derive(Clone, Debug)]
pub struct Access {
    pub credentials: Credentials,
    /// The time of the call. S3 refuses a call if this is wrong by 15 minutes.
    pub at: SystemTime,
}

/// Where the credentials come from.
#[async_trait]
pub trait Keys: Send + Sync {
    /// Credentials that count now. The error says why there are none.
    async fn access(&self) -> Result<Access, String>;

    /// S3 refused this access. `date` is the time by S3's clock, as its answer gives it.
    async fn refused(&self, access: &Access, date: Option<&str>);

    /// A call of this URL got an answer, or did not: then `why` says what happened, or that the service itself failed. A call that
    /// waits long for an answer says so, too.
    fn answered(&self, _url: &str, _why: Option<&str>) {}
}
