//! Checks a document against the table of knobs, and the knobs against each other.
//!
//! Guarantees: all mistakes are reported at once. There is one exception: the knobs are compared with each other only
//! if every single knob is right.
//! Does not: know what a knob means; the table does.

use super::agent::{AGENT_FORM, AGENT_OPTIONS, AgentFile};
use super::{
    Fallback, KNOBS, Knob, KnobKind, MAX_SHARES, Policy, SEVERAL_KNOBS, SHARE_KNOBS, SIZE_KNOBS, SeveralTypes, Size,
};
use crate::Usd;
use crate::enums::{Arch, Market};
use crate::machine::MAX_LABELS;
use crate::names::{LABEL_FORM, is_label, is_plain_name};
use crate::rights::role_name;
use crate::stored::{PREFIX_FORM, S3Prefix};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::ops::RangeBounds;

/// The most tags of a policy. EC2 allows 50 for an instance, and nodekeeper sets some itself.
const MAX_TAGS: usize = 40;

/// The most names of instance types in a list.
const MAX_PATTERNS: usize = 100;

/// The most members of a share.
const MAX_PEOPLE: usize = 1000;

/// One thing that is wrong with a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The place in the document, like `size[2].vcpus`.
    pub path: String,
    /// What is wrong at this place, and what is allowed.
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the policy has {} mistake(s):\n{}", .0.len(), list(.0))]
pub struct BadPolicy(pub Vec<Mistake>);

fn list(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(|m| format!("  {}: {}", m.path, m.message)).collect::<Vec<_>>().join("\n")
}

impl Policy {
    /// Reads and checks a TOML document. The error has every mistake.
    pub fn from_toml(text: &str) -> Result<Self, BadPolicy> {
        let table: toml::Table = toml::from_str(text).map_err(|e| {
            let why = e.to_string();
            let hint = if why.contains("escape") && text.contains("\"\"\"") { BACKSLASHES } else { "" };
            let message = format!("{}{hint}", why.trim_end()).replace('\n', "\n    ");
            BadPolicy(vec![Mistake { path: "the file".into(), message: format!("is not TOML: {message}") }])
        })?;
        Self::from_json(&as_json(toml::Value::Table(table)))
    }

    /// Checks a document in its JSON form: the same names, sections as objects, `size` as a list. The error has every mistake.
    pub fn from_json(document: &Value) -> Result<Self, BadPolicy> {
        let mut checker = Checker { mistakes: Vec::new() };
        let complete = checker.document(document);
        if checker.mistakes.is_empty() {
            let policy = read(complete)
                .map_err(|e| BadPolicy(vec![Mistake { path: "the document".into(), message: e.to_string() }]))?;
            checker.whole(&policy);
            if checker.mistakes.is_empty() {
                return Ok(policy);
            }
        }
        Err(BadPolicy(checker.mistakes))
    }
}

/// Help for a script with backslashes that stands in a TOML text with escapes.
const BACKSLASHES: &str =
    "\nin \"\"\"…\"\"\" a backslash begins an escape: write a script in '''…''', which takes it as it is";

/// What begins the text that stands for a value that JSON does not have. No knob takes a text with this character.
const NOT_JSON: char = '\0';

/// A value in JSON. An infinite number or a time becomes a text that no knob takes.
fn as_json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Boolean(flag) => flag.into(),
        toml::Value::Float(number) if number.is_finite() => number.into(),
        toml::Value::Float(_) | toml::Value::Datetime(_) => format!("{NOT_JSON}{value}").into(),
        toml::Value::Array(list) => list.into_iter().map(as_json).collect(),
        toml::Value::Table(table) => {
            Value::Object(table.into_iter().map(|(name, value)| (name, as_json(value))).collect())
        }
    }
}

/// Reads a document with every default filled in.
fn read(mut complete: Value) -> Result<Policy, serde_json::Error> {
    let mut several: Vec<SeveralTypes> = Vec::new();
    if let Some(sizes) = complete.get_mut("size").and_then(Value::as_array_mut) {
        for size in sizes.extract_if(.., |size| is_of_several(size)) {
            several.push(serde_json::from_value(size)?);
        }
    }
    Ok(Policy { several, ..serde_json::from_value(complete)? })
}

/// Whether this `[[size]]` names several instance types.
fn is_of_several(size: &Value) -> bool {
    size.get("instance_types").is_some()
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
        let is_known = |key: &str| matches!(key, "size" | "share") || sections.contains(key);
        for key in given.keys().filter(|k| !is_known(k)) {
            self.wrong(key, format!("is not a section; the sections are size, share, {}", join(sections.iter())));
        }
        for section in sections {
            let knobs: Vec<Knob> = KNOBS
                .iter()
                .filter_map(|k| k.path.strip_prefix(section)?.strip_prefix('.').map(|path| Knob { path, ..*k }))
                .collect();
            let table = self.table(section, given.get(section), &knobs);
            complete.insert(section.to_owned(), table);
        }
        if given.get("size").is_none_or(|sizes| sizes.as_array().is_some_and(Vec::is_empty)) {
            self.wrong("size", "there must be at least one [[size]]");
        }
        let knobs = |size: &Value| if is_of_several(size) { SEVERAL_KNOBS } else { SIZE_KNOBS };
        complete.insert("size".into(), self.tables("size", given.get("size"), knobs));
        complete.insert("share".into(), self.tables("share", given.get("share"), |_| SHARE_KNOBS));
        Value::Object(complete)
    }

    /// The tables `[[name]]`.
    fn tables(&mut self, name: &str, given: Option<&Value>, knobs: impl Fn(&Value) -> &'static [Knob]) -> Value {
        let tables: &[Value] = match given {
            None => &[],
            Some(Value::Array(tables)) => tables,
            Some(_) => {
                self.wrong(name, format!("must be a list of tables: write [[{name}]]"));
                &[]
            }
        };
        tables.iter().enumerate().map(|(n, one)| self.table(&format!("{name}[{n}]"), Some(one), knobs(one))).collect()
    }

    fn table(&mut self, path: &str, given: Option<&Value>, knobs: &[Knob]) -> Value {
        let empty = Map::new();
        let given = match given {
            None => &empty,
            Some(Value::Object(map)) => map,
            Some(_) => {
                self.wrong(path, format!("must be a table: write [{path}]"));
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
                    for (at, part) in wrong_parts(knob.kind, value) {
                        let whole = if at.is_empty() { "it" } else { knob.path };
                        let message = format!("{} is not allowed: {whole} must be {}", shown(part), allowed(knob.kind));
                        self.wrong(&format!("{}{at}", path()), message);
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

    /// Checks the kind of machine of a size.
    fn kind(&mut self, path: &str, size: &Size) {
        if let Some(arch) = processors(&size.instance_type).filter(|arch| *arch != size.kind.arch) {
            let message = format!("{} has {arch} processors: write arch = \"{arch}\"", size.instance_type);
            self.wrong(&format!("{path}.arch"), message);
        }
        let about_gpus = [("gpu_type", size.kind.gpu_type.is_some()), ("gpu_memory_gib", size.kind.gpu_memory_gib > 0)];
        for (knob, _) in about_gpus.into_iter().filter(|(_, is_said)| *is_said && size.capacity.gpus == 0) {
            self.wrong(&format!("{path}.{knob}"), "says nothing without GPUs: set gpus too");
        }
    }

    /// Checks how machines of a size are bought.
    fn bought(&mut self, policy: &Policy, path: &str, bought: (Market, Fallback), has_template: bool) {
        if !has_template && policy.launch.template.is_none() {
            let message = "is missing, and so is launch.template: one of them must say what to launch";
            self.wrong(&format!("{path}.template"), message);
        }
        if bought.0 == Market::OnDemand && bought.1 != Fallback::None {
            self.wrong(&format!("{path}.fallback"), "is for market = \"spot\" only");
        }
    }

    fn once<'n>(&mut self, names: &mut BTreeSet<&'n str>, name: &'n str) {
        if !names.insert(name) {
            self.wrong("size", format!("the name {name:?} is used twice"));
        }
    }

    fn shares(&mut self, policy: &Policy) {
        let (mut names, mut default) = (BTreeSet::new(), None);
        for (n, share) in policy.share.iter().enumerate() {
            let path = format!("share[{n}]");
            if !names.insert(&share.name) {
                self.wrong(&format!("{path}.name"), format!("{} is used twice", share.name));
            }
            if share.members.is_empty() && !share.default {
                let message = "nobody could submit to it: name its members, or write default = true";
                self.wrong(&format!("{path}.members"), message);
            }
            if let Some(other) = default.filter(|_| share.default) {
                self.wrong(&format!("{path}.default"), format!("{other} is the default already"));
            }
            default = default.or(share.default.then_some(&share.name));
        }
        if policy.share.len() > MAX_SHARES {
            self.wrong("share", format!("{} are too many: at most {MAX_SHARES}", policy.share.len()));
        }
    }

    /// An agent with a wrong option ends at once, and its instance is paid until the boot time-out.
    fn agent_options(&mut self, options: &str) {
        if ['\'', '"'].iter().any(|quote| options.matches(*quote).count() % 2 == 1) {
            self.wrong("agent.options", "has a quote that does not end");
        }
        let mut named = options.split_ascii_whitespace().filter_map(|word| word.strip_prefix("--")?.split('=').next());
        if let Some(unknown) = named.find(|name| AGENT_OPTIONS.split(' ').all(|option| option != *name)) {
            let message =
                format!("--{unknown} is no option of the agent, which would not start: it has {AGENT_OPTIONS}");
            self.wrong("agent.options", message);
        }
    }

    /// Checks what depends on more than one knob.
    fn whole(&mut self, policy: &Policy) {
        if policy.nodes.min > policy.nodes.max {
            self.wrong("nodes.min", format!("{} is more than nodes.max = {}", policy.nodes.min, policy.nodes.max));
        }
        let (cap, cheapest) =
            (policy.nodes.max_price_per_hour, policy.size.iter().min_by_key(|size| size.price_per_hour));
        // What several types cost is not known here.
        let cheapest = cheapest.filter(|_| policy.several.is_empty());
        if let Some(size) = cheapest.filter(|size| cap > Usd::ZERO && size.price_per_hour > cap) {
            let (name, price) = (&size.name, size.price_per_hour);
            let message = format!("{cap} allows no node: the cheapest size, {name}, costs {price} an hour");
            self.wrong("nodes.max_price_per_hour", message);
        }
        self.agent_options(&policy.agent.options);
        let (pause_s, most_s) = (policy.retry.pause_s, policy.retry.most_s);
        if pause_s > most_s {
            self.wrong("retry.most_s", format!("{most_s} is less than retry.pause_s = {pause_s}, the first wait"));
        }
        self.shares(policy);
        let mut names = BTreeSet::new();
        for size in &policy.size {
            let path = format!("size {:?}", size.name);
            self.kind(&path, size);
            self.bought(policy, &path, (size.market, size.fallback), size.template.is_some());
            self.once(&mut names, &size.name);
        }
        for size in &policy.several {
            let path = format!("size {:?}", size.name);
            self.bought(policy, &path, (size.market, size.fallback), size.template.is_some());
            self.once(&mut names, &size.name);
            let needs = &size.requirements;
            if needs.instance_types.is_empty() {
                self.wrong(&format!("{path}.instance_types"), "must name a type: [\"*\"] is any");
            }
            if needs.gpus.1 == 0.0 && (needs.gpu_type.is_some() || needs.gpu_memory_gib > 0) {
                self.wrong(
                    &format!("{path}.gpus"),
                    "must be more than 0 if something is needed of the GPUs, like [1, 8]",
                );
            }
        }
        if policy.launch.zone_share < 1.0 && policy.launch.subnets.len() < 2 {
            self.wrong("launch.zone_share", "needs launch.subnets in several zones");
        }
        if policy.launch.tags.len() > MAX_TAGS {
            let message =
                format!("are too many: at most {MAX_TAGS}, because EC2 allows 50 and nodekeeper sets some itself");
            self.wrong("launch.tags", &message);
        }
        // EC2 reserves the prefix in either case ("Tag your Amazon EC2 resources").
        let is_reserved = |key: &&String| {
            let lower = key.to_ascii_lowercase();
            lower.starts_with("aws:") || lower.starts_with("nodekeeper:") || *key == "Name"
        };
        for key in policy.launch.tags.keys().filter(is_reserved) {
            self.wrong(&format!("launch.tags.{key}"), "is not allowed: aws:…, nodekeeper:… and Name are reserved");
        }
    }
}

fn join(words: impl Iterator<Item = impl AsRef<str>>) -> String {
    words.map(|w| w.as_ref().to_owned()).collect::<Vec<_>>().join(", ")
}

fn shown(value: &Value) -> String {
    let foreign = value.as_str().and_then(|text| text.strip_prefix(NOT_JSON));
    let text = foreign.map_or_else(|| value.to_string().replace("\\u0000", ""), str::to_owned);
    if text.chars().count() > 60 { format!("{}…", text.chars().take(60).collect::<String>()) } else { text }
}

/// Whether the value is a list of as many texts as `many` allows. `read` returns the part of a text that must be different from
/// those of all others; `None` if the text is not allowed.
fn is_list<'v>(value: &'v Value, many: impl RangeBounds<usize>, read: impl Fn(&'v str) -> Option<&'v str>) -> bool {
    value.as_array().is_some_and(|list| {
        let known: BTreeSet<&str> = list.iter().filter_map(Value::as_str).filter_map(read).collect();
        known.len() == list.len() && many.contains(&list.len())
    })
}

/// What of a value is not allowed, and where in it: the wrong elements of a list or a table, or else all of it.
fn wrong_parts(kind: KnobKind, value: &Value) -> Vec<(String, &Value)> {
    // Each element where it stands alone: it is right if it fits so, and is there once.
    let alone: Vec<(String, Value, &Value)> = match value {
        _ if fits(kind, value) => return Vec::new(),
        Value::Array(all) if !matches!(kind, KnobKind::Windows | KnobKind::Range(..)) => {
            all.iter().enumerate().map(|(n, one)| (format!("[{n}]"), json!([one]), one)).collect()
        }
        Value::Object(all) if matches!(kind, KnobKind::TextTable | KnobKind::CountTable) => {
            all.iter().map(|(key, one)| (format!(".{key}"), json!({ key: one }), one)).collect()
        }
        _ => Vec::new(),
    };
    let mut seen = BTreeSet::new();
    let wrong = alone.into_iter().filter(|(_, alone, _)| !fits(kind, alone) || !seen.insert(alone.to_string()));
    let wrong: Vec<_> = wrong.map(|(at, _, one)| (at, one)).collect();
    if wrong.is_empty() { vec![(String::new(), value)] } else { wrong }
}

fn is_line(text: &str, most: usize) -> bool {
    text.len() <= most && !text.chars().any(char::is_control)
}

fn fits(kind: KnobKind, value: &Value) -> bool {
    match kind {
        KnobKind::Whole(min, max) => value.as_i64().is_some_and(|n| (min..=max).contains(&n)),
        KnobKind::Number(min, max) => value.as_f64().is_some_and(|n| (min..=max).contains(&n)),
        KnobKind::Text(max) => value.as_str().is_some_and(|t| t.len() <= max && !t.contains('\0')),
        KnobKind::Name => value.as_str().is_some_and(is_plain_name),
        KnobKind::Label => value.as_str().is_some_and(is_label),
        KnobKind::Labels => is_list(value, ..=MAX_LABELS, |text| is_label(text).then_some(text)),
        KnobKind::Flag => value.is_boolean(),
        KnobKind::OneOf(words) => value.as_str().is_some_and(|t| words.contains(&t)),
        KnobKind::Template => value.as_str().is_some_and(is_template),
        KnobKind::Ids(of) => is_list(value, .., |text| is_id_of(of, text).then_some(text)),
        KnobKind::InstanceTypes => {
            is_list(value, ..=MAX_PATTERNS, |text| is_plain_name(&text.replace('*', "x")).then_some(text))
        }
        KnobKind::Range(min, max) => value.as_array().is_some_and(|ends| {
            let ends: Vec<f64> = ends.iter().filter_map(Value::as_f64).collect();
            matches!(ends.as_slice(), [least, most] if min <= *least && least <= most && *most <= max)
        }),
        KnobKind::Roles => is_list(value, .., role_name),
        KnobKind::TextTable => value.as_object().is_some_and(|t| {
            let is_key = |key: &str| is_line(key, 128) && !key.is_empty() && key.trim() == key;
            t.iter().all(|(key, value)| is_key(key) && value.as_str().is_some_and(|value| is_line(value, 256)))
        }),
        KnobKind::CountTable => value.as_object().is_some_and(|table| {
            let is_count = |value: &Value| value.as_u64().is_some_and(|n| n <= 1_000_000);
            table.iter().all(|(key, value)| is_plain_name(key) && is_count(value))
        }),
        KnobKind::People => {
            is_list(value, ..=MAX_PEOPLE, |name| (!name.is_empty() && is_line(name, 256)).then_some(name))
        }
        KnobKind::S3Prefix => value.as_str().is_some_and(|t| t.parse::<S3Prefix>().is_ok()),
        KnobKind::AgentFile => value.as_str().is_some_and(|t| t.parse::<AgentFile>().is_ok()),
        KnobKind::Windows => {
            let minutes: Option<Vec<u64>> =
                value.as_array().and_then(|a| a.iter().map(|m| m.as_u64().filter(|m| *m <= 100_000)).collect());
            minutes.is_some_and(|m| m.len() <= 100 && (m.is_empty() || m.iter().skip(1).step_by(2).sum::<u64>() > 0))
        }
    }
}

const TEMPLATE_FORM: &str = "a launch template's id (lt-…) or name, perhaps with a version: :7 pins version 7, and without one \
     EC2 takes the template's default version";

/// Whether this is the id or the name of a launch template (EC2, CreateLaunchTemplate), and perhaps a version.
fn is_template(text: &str) -> bool {
    let (name, version) = text.split_once(':').map_or((text, None), |(name, version)| (name, Some(version)));
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '(' | ')' | '.' | '-' | '/' | '_');
    let is_version =
        |v: &str| v.bytes().all(|b| b.is_ascii_digit()) && v.parse::<u64>().is_ok_and(|version| version > 0);
    (3..=128).contains(&name.len()) && name.chars().all(is_of_name) && version.is_none_or(is_version)
}

/// The processors of this instance type, by its name. Graviton has a `g` behind the number of the generation, as in m7g.large,
/// c6gn.xlarge and is4gen.medium, or is the family a1 (EC2 User Guide, "Amazon EC2 instance type naming conventions"). `None` for a
/// name of another form, and for a Mac.
fn processors(instance_type: &str) -> Option<Arch> {
    let (family, _) = instance_type.split_once('.')?;
    let name = family.trim_start_matches(|c: char| c.is_ascii_lowercase());
    let options = name.trim_start_matches(|c: char| c.is_ascii_digit());
    let has_generation = name.len() < family.len() && options.len() < name.len();
    let is_plain = options.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let is_arm = family == "a1" || options.contains('g');
    let is_named_so = has_generation && is_plain && !family.starts_with("mac");
    is_named_so.then_some(if is_arm { Arch::Arm64 } else { Arch::X86_64 })
}

/// Whether EC2 could have given this id to something of this kind.
fn is_id_of(kind: &str, text: &str) -> bool {
    let id = text.strip_prefix(kind).and_then(|id| id.strip_prefix('-')).unwrap_or_default();
    (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric())
}

fn allowed(kind: KnobKind) -> String {
    match kind {
        KnobKind::Whole(min, max) => format!("a whole number from {min} to {max}"),
        KnobKind::Number(min, max) => format!("a number from {min} to {max}"),
        KnobKind::Text(max) => format!("text of at most {max} bytes"),
        KnobKind::Name => "1 to 64 letters, digits, '-', '_' or '.'".into(),
        KnobKind::Label => LABEL_FORM.into(),
        KnobKind::Labels => format!("a list of at most {MAX_LABELS} labels, each once, of {LABEL_FORM}"),
        KnobKind::Flag => "true or false".into(),
        KnobKind::OneOf(words) => format!("one of {}", join(words.iter().map(|w| format!("{w:?}")))),
        KnobKind::Template => TEMPLATE_FORM.into(),
        KnobKind::Ids(of) => format!("a list of ids, each once, like [\"{of}-0123456789abcdef0\"]"),
        KnobKind::InstanceTypes => {
            format!("a list of at most {MAX_PATTERNS} names of instance types, each once, like [\"m7a.large\", \"c7*\"]")
        }
        KnobKind::Range(min, max) => format!("[least, most], two numbers from {min} to {max}"),
        KnobKind::Roles => {
            "a list of ARNs of roles, each with another name, like [\"arn:aws:iam::123456789012:role/reader\"]".into()
        }
        KnobKind::TextTable => {
            "a table of texts, each on one line: keys of at most 128 bytes without a space at either end, values of at most 256"
                .into()
        }
        KnobKind::CountTable => "a table of names and whole numbers from 0 to 1000000, like {matlab = 4}".into(),
        KnobKind::People => {
            format!("a list of at most {MAX_PEOPLE} names, each once, where * is any text, like [\"team-a/*\", \"ann\"]")
        }
        KnobKind::S3Prefix => PREFIX_FORM.into(),
        KnobKind::AgentFile => AGENT_FORM.into(),
        KnobKind::Windows => {
            "a list of whole minutes, alternately closed and open, that opens at all: like [54, 5, 1]".into()
        }
    }
}
