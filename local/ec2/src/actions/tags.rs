//! Reads the tags of a request, and refuses those that break EC2's rules.

use std::collections::BTreeMap;

use crate::api_error::ApiError;
use crate::wire::Params;

/// Limits of tags ("Tag your Amazon EC2 resources", EC2 User Guide, Tag restrictions; "Tag", EC2 API Reference).
const MAX_TAGS: usize = 50;
const MAX_KEY_CHARS: usize = 127;
const MAX_VALUE_CHARS: usize = 256;

pub(crate) type Tags = BTreeMap<String, String>;

/// The tags of `Tag.N` in a request or a tag specification; an error if one breaks a rule.
pub(crate) fn read(params: &Params) -> Result<Tags, ApiError> {
    let mut tags = Tags::new();
    for tag in params.structures("Tag") {
        let key = tag.filled("Key").ok_or_else(|| ApiError::missing("Tag.Key"))?;
        let value = tag.get("Value").unwrap_or_default();
        if key.chars().count() > MAX_KEY_CHARS {
            return Err(ApiError::value(key, "Tag.Key", "a key has at most 127 characters"));
        }
        if value.chars().count() > MAX_VALUE_CHARS {
            return Err(ApiError::value(value, "Tag.Value", "a value has at most 256 characters"));
        }
        if key.to_ascii_lowercase().starts_with("aws:") {
            return Err(ApiError::value(key, "Tag.Key", "keys that start with aws: are reserved for internal use"));
        }
        if tags.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(ApiError::value(key, "Tag.Key", "the same key is given twice"));
        }
    }
    if tags.len() > MAX_TAGS {
        return Err(ApiError::new("TagLimitExceeded", "A resource can have at most 50 tags."));
    }
    Ok(tags)
}
