//! XML, as far as answers of S3 and one request need it.

use quick_xml::Reader;
use quick_xml::escape::{escape, unescape};
use quick_xml::events::Event;

/// The text of the first element of this name; `None` if there is none, or if this is no XML.
pub(crate) fn text_of(xml: &str, name: &str) -> Option<String> {
    let mut reader = Reader::from_str(xml);
    loop {
        match reader.read_event().ok()? {
            Event::Start(start) if start.local_name().as_ref() == name => {
                let text = reader.read_text(start.name()).ok()?;
                return Some(unescape(text.as_ref()).ok()?.into_owned());
            }
            Event::Eof => return None,
            _ => {}
        }
    }
}

/// The body that completes an upload of these parts, in their order from 1 on.
pub(crate) fn complete_upload(etags: &[String]) -> String {
    let part = |(etag, no): (&String, u32)| {
        format!("<Part><PartNumber>{no}</PartNumber><ETag>{}</ETag></Part>", escape(etag.as_str()))
    };
    let parts: String = etags.iter().zip(1..).map(part).collect();
    format!(
        "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{parts}</CompleteMultipartUpload>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_element() {
        let xml = "<?xml version=\"1.0\"?><R xmlns=\"x\"><A>1</A><UploadId>a&amp;b/==</UploadId></R>";
        assert_eq!(text_of(xml, "UploadId").as_deref(), Some("a&b/=="));
        for other in ["", "no xml", "<R><UploadId>", "<R/>", "{}"] {
            assert_eq!(text_of(other, "UploadId"), None, "{other}");
        }
    }

    #[test]
    fn an_etag_keeps_its_quotes() {
        let body = complete_upload(&["\"a\"".into(), "\"b\"".into()]);
        assert!(body.contains("<PartNumber>2</PartNumber><ETag>&quot;b&quot;</ETag>"), "{body}");
        assert_eq!(text_of(&body, "ETag").as_deref(), Some("\"a\""));
    }
}
