//! The reference of every knob, and a small policy to start with.
//!
//! Guarantees: the reference is a valid policy as it is: a knob without a default has the value of an example, and says so.
//! Does not: describe a knob; the table of knobs does.

use super::{KNOBS, Knob, KnobKind, SEVERAL_KNOBS, SHARE_KNOBS, SIZE_KNOBS};
use serde_json::{Value, json};

/// The head of the reference.
const HEAD: &str = "# Every knob of the policy, with its unit in brackets, its meaning and its default.
# `nodekeeper policy check` takes this file as it is. Change the lines that say EXAMPLE, and delete what stays as it is.
";

/// The reference of every knob: a TOML document that is a policy.
pub fn reference() -> String {
    let (mut out, example) = (HEAD.to_owned(), example_json());
    let mut section = "";
    for knob in KNOBS {
        let (table, name) = knob.path.split_once('.').unwrap_or(("", knob.path));
        if table != section {
            section = table;
            out.push_str(&format!("\n[{table}]\n"));
        }
        line(&mut out, knob, name, example.get(table).and_then(|table| table.get(name)));
    }
    out.push_str("\n# One for each kind of machine; at least one.\n[[size]]\n");
    let size = example.pointer("/size/0");
    for knob in SIZE_KNOBS {
        line(&mut out, knob, knob.path, size.and_then(|size| size.get(knob.path)));
    }
    out.push_str("\n# Or a size of several instance types. nodekeeper asks EC2 what they have and cost.\n# [[size]]\n");
    let (mut lines, several) = (String::new(), json!({"name": "any", "instance_types": ["m7*", "m6*"]}));
    for knob in SEVERAL_KNOBS {
        line(&mut lines, knob, knob.path, several.get(knob.path));
    }
    lines.push_str("\n# Whose turn it is, if several groups share the cluster.\n[[share]]\n");
    let share = json!({"name": "team-a"});
    for knob in SHARE_KNOBS {
        line(&mut lines, knob, knob.path, share.get(knob.path));
    }
    for line in lines.lines() {
        let comment = if line.is_empty() || line.starts_with('#') { "" } else { "# " };
        out.push_str(&format!("{comment}{line}\n"));
    }
    out
}

fn line(out: &mut String, knob: &Knob, name: &str, example: Option<&Value>) {
    out.push_str(&format!("# [{}] {}\n", unit(knob, name), knob.doc));
    match (knob.default, example) {
        (Some("null") | None, Some(example)) => {
            out.push_str(&format!("# EXAMPLE: it has no default\n{name} = {example}\n"));
        }
        (Some("null") | None, None) => out.push_str(&format!("# {name} =\n")),
        (Some(default), _) => out.push_str(&format!("{name} = {default}\n")),
    }
}

/// The unit of a knob, or what its value is.
fn unit(knob: &Knob, name: &str) -> String {
    let is = |end: &str| name.ends_with(end);
    let unit = match knob.kind {
        KnobKind::Whole(..) if is("_s") => "seconds",
        KnobKind::Whole(..) if is("_ms") => "milliseconds",
        KnobKind::Whole(..) if is("_mib") => "MiB",
        KnobKind::Whole(..) if is("_gib") => "GiB",
        KnobKind::Whole(..) if is("_days") => "days",
        KnobKind::Whole(..) if is("_per_second") => "a number in a second",
        KnobKind::Whole(..) => "a number",
        KnobKind::Number(..) if is("_per_hour") => "US dollars an hour",
        KnobKind::Number(..) if is("_per_second") => "a number in a second",
        KnobKind::Number(..) if is("_per_month") => "US dollars a month",
        KnobKind::Number(..) if is("_h") => "hours",
        KnobKind::Number(low, 1.0) => return format!("a share from {low} to 1"),
        KnobKind::Number(..) => "a factor",
        KnobKind::Text(_) => "text",
        KnobKind::Name | KnobKind::Label => "a name",
        KnobKind::Labels => "names",
        KnobKind::Flag => "true or false",
        KnobKind::OneOf(words) => return words.join(" or "),
        KnobKind::Template => "a launch template",
        KnobKind::Ids(_) => "a list of ids",
        KnobKind::InstanceTypes => "a list of names of instance types",
        KnobKind::Range(..) => "the least and the most",
        KnobKind::TextTable => "a table of texts",
        KnobKind::CountTable => "a table of counts",
        KnobKind::People => "a list of names",
        KnobKind::Roles => "a list of roles",
        KnobKind::S3Prefix => "a place in S3",
        KnobKind::AgentFile => "a place and a digest",
        KnobKind::Windows => "minutes",
    };
    unit.to_owned()
}

/// A small policy that works with the local stack. Tests use it too.
pub fn example_json() -> Value {
    json!({
        "launch": {"template": "nodekeeper"},
        "size": [
            {"name": "small", "instance_type": "m7a.large", "vcpus": 2, "memory_mib": 8192, "price_per_hour": 0.116},
            {"name": "large", "instance_type": "m7a.2xlarge", "vcpus": 8, "memory_mib": 32768, "price_per_hour": 0.464},
        ],
    })
}
