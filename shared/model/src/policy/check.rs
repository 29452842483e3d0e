//! Checks a document against the table of knobs, and the knobs against each other.
//!
//! Guarantees: all mistakes are reported at once. There is one exception: the knobs are compared with each other only
//! if every single knob is right.
//! Does not: know what a knob means; the table does.

use super::{Fallback, KNOBS, Kind, Knob, Policy, SIZE_KNOBS};
use crate::stored::{PREFIX_FORM, S3Prefix};
use crate::words::Market;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The most tags of a policy. EC2 allows 50 for an instance, and nodekeeper sets some itself.
const MAX_TAGS: usize = 40;

/// One thing that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The place in the document, like `size[2].vcpus`.
    pub path: String,
    /// What is wrong at this place, and what is allowed.
    pub message: String,
}

/// Everything that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the policy has {} mistake(s):\n{}", .0.len(), list(.0))]
pub struct BadPolicy(pub Vec<Mistake>);

fn list(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(|m| format!("  {}: {}", m.path, m.message)).collect::<Vec<_>>().join("\n")
}

impl Policy {
    /// Reads and checks a TOML document.
    pub fn from_toml(text: &str) -> Result<Self, BadPolicy> {
        let table: toml::Table = toml::from_str(text).map_err(|e| {
            let message = e.to_string().trim_end().replace('\n', "\n    ");
            BadPolicy(vec![Mistake { path: "the file".into(), message: format!("is not TOML: {message}") }])
        })?;
        let value = serde_json::to_value(table).map_err(|e| unreadable(&e))?;
        Self::from_json(&value)
    }

    /// Checks a document in its JSON form: the same names, sections as objects, `size` as a list.
    pub fn from_json(document: &Value) -> Result<Self, BadPolicy> {
        let mut checker = Checker { mistakes: Vec::new() };
        let complete = checker.document(document);
        if checker.mistakes.is_empty() {
            let policy: Self = serde_json::from_value(complete).map_err(|e| unreadable(&e))?;
            checker.whole(&policy);
            if checker.mistakes.is_empty() {
                return Ok(policy);
            }
        }
        Err(BadPolicy(checker.mistakes))
    }
}

fn unreadable(e: &serde_json::Error) -> BadPolicy {
    BadPolicy(vec![Mistake { path: "the document".into(), message: e.to_string() }])
}

struct Checker {
    mistakes: Vec<Mistake>,
}

impl Checker {
    fn wrong(&mut self, path: &str, message: impl Into<String>) {
        self.mistakes.push(Mistake { path: path.into(), message: message.into() });
    }

    /// Fills in the defaults and collects the mistakes. The result is a policy only if there are none.
    fn document(&mut self, document: &Value) -> Value {
        let empty = Map::new();
        let given = document.as_object().unwrap_or_else(|| {
            self.wrong("the document", "must be a table of sections");
            &empty
        });
        let mut complete = Map::new();
        let sections: BTreeSet<&str> = KNOBS.iter().filter_map(|k| k.path.split_once('.')).map(|(s, _)| s).collect();
        for key in given.keys().filter(|k| *k != "size" && !sections.contains(k.as_str())) {
            self.wrong(key, format!("is not a section; the sections are size, {}", join(sections.iter())));
        }
        for section in sections {
            let knobs: Vec<Knob> = KNOBS
                .iter()
                .filter_map(|k| k.path.strip_prefix(section)?.strip_prefix('.').map(|path| Knob { path, ..*k }))
                .collect();
            let table = self.table(section, given.get(section), &knobs);
            complete.insert(section.to_owned(), table);
        }
        let sizes = match given.get("size") {
            Some(Value::Array(sizes)) if !sizes.is_empty() => {
                sizes.iter().enumerate().map(|(n, s)| self.table(&format!("size[{n}]"), Some(s), SIZE_KNOBS)).collect()
            }
            None | Some(Value::Array(_)) => {
                self.wrong("size", "there must be at least one [[size]]");
                Vec::new()
            }
            Some(_) => {
                self.wrong("size", "must be a list of tables: write [[size]]");
                Vec::new()
            }
        };
        complete.insert("size".into(), Value::Array(sizes));
        Value::Object(complete)
    }

    fn table(&mut self, path: &str, given: Option<&Value>, knobs: &[Knob]) -> Value {
        let empty = Map::new();
        let given = match given {
            None => &empty,
            Some(Value::Object(map)) => map,
            Some(_) => {
                self.wrong(path, "must be a table");
                &empty
            }
        };
        for key in given.keys().filter(|k| !knobs.iter().any(|n| n.path == k.as_str())) {
            self.wrong(
                &format!("{path}.{key}"),
                format!("is not a knob; the knobs are {}", join(knobs.iter().map(|k| k.path))),
            );
        }
        let mut complete = Map::new();
        for knob in knobs {
            let path = || format!("{path}.{}", knob.path);
            let value = match (given.get(knob.path), knob.default) {
                // An optional knob that is not set is stored as JSON null: it means the same as leaving it out.
                (Some(value), default) if !(value.is_null() && default == Some("null")) => {
                    if !fits(knob.kind, value) {
                        let message = format!("{} is not allowed: it must be {}", shown(value), allowed(knob.kind));
                        self.wrong(&path(), message);
                    }
                    value.clone()
                }
                (_, Some(default)) => serde_json::from_str(default).unwrap_or(Value::Null),
                (_, None) => {
                    self.wrong(&path(), format!("is missing: {}", knob.doc));
                    Value::Null
                }
            };
            complete.insert(knob.path.to_owned(), value);
        }
        Value::Object(complete)
    }

    /// Checks what depends on more than one knob.
    fn whole(&mut self, policy: &Policy) {
        if policy.nodes.min > policy.nodes.max {
            self.wrong("nodes.min", format!("{} is more than nodes.max = {}", policy.nodes.min, policy.nodes.max));
        }
        let mut names = BTreeSet::new();
        for (n, size) in policy.size.iter().enumerate() {
            if !names.insert(&size.name) {
                self.wrong(&format!("size[{n}].name"), format!("{:?} is used twice", size.name));
            }
            if size.template.is_none() && policy.launch.template.is_none() {
                self.wrong(
                    &format!("size[{n}].template"),
                    "is missing, and so is launch.template: one of them must say what to launch",
                );
            }
            if size.market == Market::OnDemand && size.fallback != Fallback::None {
                self.wrong(&format!("size[{n}].fallback"), "is for market = \"spot\" only");
            }
        }
        if policy.launch.tags.len() > MAX_TAGS {
            let message =
                format!("are too many: at most {MAX_TAGS}, because EC2 allows 50 and nodekeeper sets some itself");
            self.wrong("launch.tags", &message);
        }
        for key in
            policy.launch.tags.keys().filter(|k| k.starts_with("aws:") || k.starts_with("nodekeeper:") || *k == "Name")
        {
            self.wrong(&format!("launch.tags.{key}"), "is not allowed: aws:…, nodekeeper:… and Name are reserved");
        }
    }
}

fn join(words: impl Iterator<Item = impl AsRef<str>>) -> String {
    words.map(|w| w.as_ref().to_owned()).collect::<Vec<_>>().join(", ")
}

fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() > 60 { format!("{}…", text.chars().take(60).collect::<String>()) } else { text }
}

fn fits(kind: Kind, value: &Value) -> bool {
    match kind {
        Kind::Whole(min, max) => value.as_i64().is_some_and(|n| (min..=max).contains(&n)),
        Kind::Number(min, max) => value.as_f64().is_some_and(|n| (min..=max).contains(&n)),
        Kind::Text(max) => value.as_str().is_some_and(|t| t.len() <= max && !t.contains('\0')),
        Kind::Name => {
            let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            value.as_str().is_some_and(|t| (1..=64).contains(&t.len()) && t.chars().all(fits))
        }
        Kind::OneOf(words) => value.as_str().is_some_and(|t| words.contains(&t)),
        Kind::Texts => value.as_array().is_some_and(|a| a.iter().all(|t| t.as_str().is_some_and(|t| !t.is_empty()))),
        Kind::TextTable => value.as_object().is_some_and(|t| {
            t.iter().all(|(k, v)| !k.is_empty() && k.len() <= 128 && v.as_str().is_some_and(|v| v.len() <= 256))
        }),
        Kind::S3Prefix => value.as_str().is_some_and(|t| t.parse::<S3Prefix>().is_ok()),
        Kind::Windows => {
            let minutes: Option<Vec<u64>> =
                value.as_array().and_then(|a| a.iter().map(|m| m.as_u64().filter(|m| *m <= 100_000)).collect());
            minutes.is_some_and(|m| m.len() <= 100 && (m.is_empty() || m.iter().skip(1).step_by(2).sum::<u64>() > 0))
        }
    }
}

/// The allowed values in words.
fn allowed(kind: Kind) -> String {
    match kind {
        Kind::Whole(min, max) => format!("a whole number from {min} to {max}"),
        Kind::Number(min, max) => format!("a number from {min} to {max}"),
        Kind::Text(max) => format!("text of at most {max} bytes"),
        Kind::Name => "1 to 64 letters, digits, '-', '_' or '.'".into(),
        Kind::OneOf(words) => format!("one of {}", join(words.iter().map(|w| format!("{w:?}")))),
        Kind::Texts => "a list of texts".into(),
        Kind::TextTable => "a table of texts: keys of at most 128 bytes, values of at most 256".into(),
        Kind::S3Prefix => PREFIX_FORM.into(),
        Kind::Windows => {
            "a list of whole minutes, alternately closed and open, that opens at all: like [54, 5, 1]".into()
        }
    }
}
