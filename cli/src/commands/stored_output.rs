//! Reading an output from S3, where its node stored it.
//!
//! Guarantees: the bytes come in order and once, also over several connections; at most the end that is wanted is in memory.
//! Does not: wait for an output that is not stored yet.

use super::output_stream::{Printer, last_lines, lines_bytes};
use super::{Cluster, Context};
use model::stored::S3Place;
use s3::{From, Object, S3Error};
use std::time::Duration;

/// How often a broken connection is replaced.
const AGAIN: u32 = 3;
/// The wait before that.
const WAIT: Duration = Duration::from_secs(1);

/// How the reading went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// All of it was printed.
    Printed,
    /// Nothing was printed, for this reason.
    Not(String),
    /// The rest after this byte was not printed, for this reason.
    Cut(u64, String),
}

/// Prints the output at this place from this byte on, or only its last lines.
pub(super) async fn print(
    cluster: &Cluster,
    context: &mut Context<'_>,
    printer: &mut Printer,
    place: &S3Place,
    from: u64,
    lines: Option<usize>,
) -> anyhow::Result<Stored> {
    let begin = lines.map_or(From::Byte(from), |lines| From::Last(lines_bytes(lines)));
    let mut again = AGAIN;
    let mut object = match open(cluster, place, begin, &mut again).await {
        Ok(object) => object,
        Err(error) => return Ok(Stored::Not(said(&error, place))),
    };
    if let Some(lines) = lines {
        let end = match whole(&mut object).await {
            Ok(end) => end,
            Err(error) => return Ok(Stored::Not(said(&error, place))),
        };
        return printer.print(context, last_lines(&end, lines)).map(|()| Stored::Printed);
    }
    let mut at = object.offset;
    loop {
        match object.chunk().await {
            Ok(None) => return Ok(Stored::Printed),
            Ok(Some(bytes)) => {
                at = at.saturating_add(bytes.len() as u64);
                printer.print(context, &bytes)?;
            }
            Err(error) if again == 0 => return Ok(Stored::Cut(at, said(&error, place))),
            Err(_) => {
                again -= 1;
                tokio::time::sleep(WAIT).await;
                match open(cluster, place, From::Byte(at), &mut again).await {
                    Ok(rest) => object = rest,
                    Err(error) => return Ok(Stored::Cut(at, said(&error, place))),
                }
            }
        }
    }
}

/// Opens an object. A call without an answer is made again, as often as `again` allows.
async fn open(cluster: &Cluster, place: &S3Place, from: From, again: &mut u32) -> Result<Object, S3Error> {
    loop {
        match cluster.outputs.open(place, from).await {
            Err(S3Error::Failed(_)) if *again > 0 => *again -= 1,
            opened => return opened,
        }
        tokio::time::sleep(WAIT).await;
    }
}

async fn whole(object: &mut Object) -> Result<Vec<u8>, S3Error> {
    let mut all = Vec::new();
    while let Some(bytes) = object.chunk().await? {
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

/// Why an object is not read, for people.
fn said(error: &S3Error, place: &S3Place) -> String {
    match error {
        S3Error::Absent => format!("{place} is not there: its node stores it after the end, and has not done so yet"),
        // S3 gives this answer for an object that is not there, if the caller may not list the bucket.
        S3Error::Denied(why) => format!(
            "{place} is not there yet, or your permissions do not allow it (s3:GetObject on it, and s3:ListBucket to tell \
             the two apart): {why}"
        ),
        other => format!("{place} cannot be read: {other}"),
    }
}
