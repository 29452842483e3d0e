//! What can go wrong, by what the caller must do.
//!
//! Guarantees: an error has at most 300 characters of what S3 answered.
//! Does not: try again; its caller knows for how long.

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum S3Error {
    /// There is no such object. Only a caller who may list the bucket gets this; the others get [`S3Error::Denied`].
    #[error("there is no such object")]
    Absent,
    /// The credentials do not allow the call.
    #[error("denied: {0}")]
    Denied(String),
    /// S3 refused the call for another reason.
    #[error("refused: {0}")]
    Refused(String),
    /// There is no usable answer: S3 is away, or has an error of its own.
    #[error("no usable answer: {0}")]
    Failed(String),
    /// There are no credentials that count.
    #[error("no credentials: {0}")]
    NoKeys(String),
    #[error("the file cannot be read or written: {0}")]
    File(String),
    /// The object has more bytes than the caller takes.
    #[error("the object has more than {most} bytes: {bytes}")]
    TooLarge { bytes: u64, most: u64 },
    /// The file to store has another digest than the caller said, or the object changed while it was read.
    #[error("it changes meanwhile")]
    Changed,
}

impl From<std::io::Error> for S3Error {
    fn from(error: std::io::Error) -> Self {
        Self::File(error.to_string())
    }
}

/// S3 cannot tell who calls: the keys are none any more, or the clock of the caller is wrong.
const OF_KEYS: [&str; 6] = [
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "InvalidAccessKeyId",
    "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
];

impl S3Error {
    /// The error for an answer with this status. `code` and `message` are what its body says.
    pub(crate) fn of(status: u16, code: &str, message: &str) -> Self {
        // The body may be anything, and the text is for a log line.
        let text: String = format!("{status} {code} {message}").trim().chars().take(300).collect();
        match (status, code) {
            (404, "NoSuchKey" | "") => Self::Absent,
            (400 | 401 | 403, code) if OF_KEYS.contains(&code) => Self::NoKeys(text),
            (401 | 403, _) => Self::Denied(text),
            (416, _) => Self::Changed,
            (429 | 500.., _) | (400, "RequestTimeout") => Self::Failed(text),
            _ => Self::Refused(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_the_caller_must_do() {
        let text = |status: u16, code: &str| format!("{status} {code} m");
        assert_eq!(S3Error::of(404, "NoSuchKey", "m"), S3Error::Absent);
        assert_eq!(S3Error::of(404, "NoSuchBucket", "m"), S3Error::Refused(text(404, "NoSuchBucket")));
        assert_eq!(S3Error::of(403, "AccessDenied", "m"), S3Error::Denied(text(403, "AccessDenied")));
        assert_eq!(S3Error::of(400, "ExpiredToken", "m"), S3Error::NoKeys(text(400, "ExpiredToken")));
        assert_eq!(S3Error::of(403, "RequestTimeTooSkewed", "m"), S3Error::NoKeys(text(403, "RequestTimeTooSkewed")));
        assert_eq!(S3Error::of(400, "MalformedXML", "m"), S3Error::Refused(text(400, "MalformedXML")));
        assert_eq!(S3Error::of(416, "InvalidRange", "m"), S3Error::Changed);
        assert_eq!(S3Error::of(503, "SlowDown", "m"), S3Error::Failed(text(503, "SlowDown")));
        assert_eq!(S3Error::of(400, "x", &"y".repeat(1000)).to_string().chars().count(), "refused: ".len() + 300);
    }
}
