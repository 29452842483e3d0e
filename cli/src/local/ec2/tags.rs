//! CreateTags, and what a tag may be.

use std::collections::BTreeMap;

use super::Call;
use super::ids;
use super::refusal::Refusal;
use super::wire::{Params, Xml};

/// Tags ("Tag your Amazon EC2 resources", EC2 User Guide, Tag restrictions).
const MOST_TAGS: usize = 50;
const MOST_KEY_CHARS: usize = 127;
const MOST_VALUE_CHARS: usize = 255;
/// "Up to 1000 resource IDs" ("CreateTags", EC2 API Reference).
const MOST_RESOURCES: usize = 1_000;

pub(super) type Tags = BTreeMap<String, String>;

impl Call<'_> {
    /// Adds or overwrites tags; all resources or none.
    pub(super) fn create_tags(&mut self, xml: &mut Xml) -> Result<(), Refusal> {
        let resources: Vec<String> = self.params.list("ResourceId").into_iter().map(str::to_owned).collect();
        if resources.is_empty() {
            return Err(Refusal::MissingParameter("ResourceIdSet"));
        }
        if resources.len() > MOST_RESOURCES {
            return Err(Refusal::InvalidParameterValue(format!("At most {MOST_RESOURCES} resources a call")));
        }
        let tags = read(self.params)?;
        if tags.is_empty() {
            return Err(Refusal::MissingParameter("TagSet"));
        }
        for id in &resources {
            if !id.starts_with("i-") {
                return Err(Refusal::InvalidId(id.chars().take(100).collect()));
            }
            ids::check(id)?;
        }
        self.all_known(&resources)?;
        for id in &resources {
            let known = self.world.find(id).map(|instance| &instance.tags);
            let added = tags.keys().filter(|key| known.is_some_and(|known| !known.contains_key(*key))).count();
            if known.map_or(0, Tags::len) + added > MOST_TAGS {
                return Err(Refusal::TagLimitExceeded);
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

/// The tags of `Tag.N` in a request or a tag specification, if each may be.
pub(super) fn read(params: &Params) -> Result<Tags, Refusal> {
    let mut tags = Tags::new();
    for tag in params.structures("Tag") {
        let key = tag.filled("Key").ok_or(Refusal::MissingParameter("Tag.Key"))?;
        let value = tag.get("Value").unwrap_or_default();
        if key.chars().count() > MOST_KEY_CHARS {
            return Err(Refusal::value(key, "Tag.Key", "a key has at most 127 characters"));
        }
        if value.chars().count() > MOST_VALUE_CHARS {
            return Err(Refusal::value(value, "Tag.Value", "a value has at most 255 characters"));
        }
        if key.to_ascii_lowercase().starts_with("aws:") {
            return Err(Refusal::value(key, "Tag.Key", "keys that start with aws: are reserved for internal use"));
        }
        if tags.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(Refusal::value(key, "Tag.Key", "the same key is given twice"));
        }
    }
    if tags.len() > MOST_TAGS { Err(Refusal::TagLimitExceeded) } else { Ok(tags) }
}
