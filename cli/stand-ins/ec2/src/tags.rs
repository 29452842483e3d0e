//! CreateTags, and the rules for tags.

use std::collections::BTreeMap;

use crate::api_error::ApiError;
use crate::call::Call;
use crate::ids;
use crate::wire::{Params, Xml};

/// Limits of tags ("Tag your Amazon EC2 resources", EC2 User Guide, Tag restrictions).
const MAX_TAGS: usize = 50;
const MAX_KEY_CHARS: usize = 127;
const MAX_VALUE_CHARS: usize = 255;
/// "Up to 1000 resource IDs" ("CreateTags", EC2 API Reference).
const MAX_RESOURCES: usize = 1_000;

pub(crate) type Tags = BTreeMap<String, String>;

impl Call<'_> {
    /// Adds or overwrites tags, on all resources or on none.
    pub(crate) fn create_tags(&mut self, xml: &mut Xml) -> Result<(), ApiError> {
        let resources: Vec<String> = self.params.list("ResourceId").into_iter().map(str::to_owned).collect();
        if resources.is_empty() {
            return Err(ApiError::MissingParameter("ResourceIdSet"));
        }
        if resources.len() > MAX_RESOURCES {
            return Err(ApiError::InvalidParameterValue(format!("At most {MAX_RESOURCES} resources in one call")));
        }
        let tags = read(self.params)?;
        if tags.is_empty() {
            return Err(ApiError::MissingParameter("TagSet"));
        }
        for id in &resources {
            if !id.starts_with("i-") {
                return Err(ApiError::InvalidId(id.chars().take(100).collect()));
            }
            ids::check(id)?;
        }
        self.all_known(&resources)?;
        for id in &resources {
            let known = self.world.find(id).map(|instance| &instance.tags);
            let added = tags.keys().filter(|key| known.is_some_and(|known| !known.contains_key(*key))).count();
            if known.map_or(0, Tags::len) + added > MAX_TAGS {
                return Err(ApiError::TagLimitExceeded);
            }
        }
        self.unless_dry_run()?;
        for id in &resources {
            if let Some(instance) = self.world.find_mut(id) {
                instance.tags.extend(tags.clone());
            }
        }
        xml.value("return", true);
        Ok(())
    }
}

/// The tags of `Tag.N` in a request or a tag specification; an error if one breaks a rule.
pub(crate) fn read(params: &Params) -> Result<Tags, ApiError> {
    let mut tags = Tags::new();
    for tag in params.structures("Tag") {
        let key = tag.filled("Key").ok_or(ApiError::MissingParameter("Tag.Key"))?;
        let value = tag.get("Value").unwrap_or_default();
        if key.chars().count() > MAX_KEY_CHARS {
            return Err(ApiError::value(key, "Tag.Key", "a key has at most 127 characters"));
        }
        if value.chars().count() > MAX_VALUE_CHARS {
            return Err(ApiError::value(value, "Tag.Value", "a value has at most 255 characters"));
        }
        if key.to_ascii_lowercase().starts_with("aws:") {
            return Err(ApiError::value(key, "Tag.Key", "keys that start with aws: are reserved for internal use"));
        }
        if tags.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(ApiError::value(key, "Tag.Key", "the same key is given twice"));
        }
    }
    if tags.len() > MAX_TAGS { Err(ApiError::TagLimitExceeded) } else { Ok(tags) }
}
