//! The reference of every knob, and a small policy to start with.
//!
//! Guarantees: the reference is valid TOML. It is a valid policy when the knobs without a default are filled in.
//! Does not: describe a knob; the table of knobs does.

use super::{KNOBS, Knob, SIZE_KNOBS};
use serde_json::{Value, json};

/// The reference of every knob, as a TOML document from which a policy can be written.
pub fn reference() -> String {
    let mut out = String::from("# Every knob with its default. A knob without a default is commented out.\n");
    let mut section = "";
    for knob in KNOBS {
        let (table, name) = knob.path.split_once('.').unwrap_or(("", knob.path));
        if table != section {
            section = table;
            out.push_str(&format!("\n[{table}]\n"));
        }
        line(&mut out, knob, name);
    }
    out.push_str("\n# One for each kind of machine; at least one.\n[[size]]\n");
    for knob in SIZE_KNOBS {
        line(&mut out, knob, knob.path);
    }
    out
}

fn line(out: &mut String, knob: &Knob, name: &str) {
    out.push_str(&format!("# {}\n", knob.doc));
    match knob.default {
        Some("null") | None => out.push_str(&format!("# {name} =\n")),
        Some(default) => out.push_str(&format!("{name} = {default}\n")),
    }
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
