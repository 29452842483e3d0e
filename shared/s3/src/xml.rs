//! Reads the text of one element from an answer of S3.
//!
//! Does not: check the rest of the answer, or tell broken XML from an answer without the element.

use quick_xml::Reader;
use quick_xml::escape::unescape;
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
}
