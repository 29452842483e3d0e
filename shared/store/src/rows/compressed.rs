//! Compresses the one long attribute of a row: `log_tail`, the end of what the command of an alloc printed.
//!
//! A write unit is 1 KiB, and the end of an alloc is written in a transaction, which costs double. Compression leaves a
//! third or less of what commands print.
//! Guarantees: a text reads back as it was; invalid bytes read as no text, and cost no memory.
//! Does not: compress a short text, which would save no unit.

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use miniz_oxide::deflate::{CompressionLevel, compress_to_vec_zlib};
use miniz_oxide::inflate::decompress_to_vec_zlib_with_limit;

const ATTRIBUTE: &str = "log_tail";
/// The shortest text that is compressed, in bytes.
const SHORTEST: usize = 512;
/// The longest text that is read back, in bytes. Nobody writes a longer one.
const LONGEST: usize = 64 << 10;

/// The compressed attribute; `None` for another attribute and for a short text, which stay as they are.
pub(crate) fn of(name: &str, value: &AttributeValue) -> Option<AttributeValue> {
    let text = value.as_s().ok().filter(|text| name == ATTRIBUTE && text.len() >= SHORTEST)?;
    let bytes = compress_to_vec_zlib(text.as_bytes(), CompressionLevel::DefaultLevel as u8);
    Some(AttributeValue::B(Blob::new(bytes)))
}

/// The text of a compressed attribute; `None` if the value is not one.
pub(crate) fn text(value: &AttributeValue) -> Option<String> {
    let bytes = value.as_b().ok()?;
    String::from_utf8(decompress_to_vec_zlib_with_limit(bytes.as_ref(), LONGEST).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::DbError;
    use crate::rows::json::to_json;
    use crate::rows::{from_item, row};
    use crate::tables::Table;
    use model::Alloc;
    use model::fixtures::{self, at};

    #[test]
    fn what_a_job_printed_is_compressed_and_reads_back() {
        let job = fixtures::job(1).with_placed(&[fixtures::alloc_id(1)]).unwrap();
        let mut alloc = Alloc::place(fixtures::alloc_id(1), &job, &fixtures::ready(1), at(1)).unwrap();
        let lines = |n: u32| {
            (0..n).map(|k| format!("step {k}: loss 0.{}, é\n", k.wrapping_mul(7919) % 10_007)).collect::<String>()
        };
        for (text, is_text) in [(lines(3), true), (lines(300), false)] {
            alloc.run.log_tail = Some(text.clone());
            let item = row(&alloc);
            assert_eq!(item["log_tail"].is_s(), is_text);
            if let AttributeValue::B(bytes) = &item["log_tail"] {
                assert!(bytes.as_ref().len() * 5 < text.len() * 2, "{} of {}", bytes.as_ref().len(), text.len());
            }
            assert_eq!(from_item::<Alloc>(Table::Allocs, &item).unwrap(), alloc);
            assert_eq!(to_json(&item)["log_tail"], text);
        }
        let mut broken = row(&alloc);
        broken.insert("log_tail".into(), AttributeValue::B(Blob::new(*b"not compressed")));
        assert!(matches!(from_item::<Alloc>(Table::Allocs, &broken), Err(DbError::Corrupt { .. })));
    }
}
