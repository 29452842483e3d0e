//! The limits in docs/cost.md have the values of the code.

use super::bill::Template;
use super::page::rows;
use crate::second_opinions::root;
use model::policy::KNOBS;

/// The value of a constant in a source: a product of numbers, or a `Span` or `Duration` of seconds.
fn constant(name: &str, path: &str) -> f64 {
    let source = std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
    let marker = format!("const {name}: ");
    let (_, rest) = source.split_once(&marker).unwrap_or_else(|| panic!("{path} has no constant {name}"));
    let value = rest.split_once(" = ").unwrap().1.split_once(';').unwrap().0;
    let value = value.rsplit_once('(').map_or(value, |(_, inner)| inner.trim_end_matches(')'));
    value
        .split('*')
        .map(|n| n.trim().replace('_', "").parse::<f64>().unwrap_or_else(|e| panic!("{name}: {e}")))
        .product()
}

/// A value as the page writes it: `16 KiB`, `10,000`, `20 s`.
fn written(cell: &str) -> f64 {
    let mut words = cell.split_whitespace();
    let number: f64 = words.next().unwrap().replace(',', "").parse().unwrap_or_else(|e| panic!("{cell}: {e}"));
    number
        * match words.next() {
            Some("KiB") => 1024.0,
            Some("MiB") => 1024.0 * 1024.0,
            _ => 1.0,
        }
}

/// The current value of a source that the page names: `` `NAME` in `path` ``, `` `Property` of `Resource` in
/// `infra/template.yaml` ``, or `` the default of `knob` ``. `None` if the limit is not one of nodekeeper.
fn current(source: &str) -> Option<f64> {
    let words: Vec<&str> = source.split('`').collect();
    match words.as_slice() {
        ["", name, " in ", path, ""] => Some(constant(name, path)),
        ["", property, " of ", resource, " in ", "infra/template.yaml", ""] => {
            Some(Template::read().number(resource, property))
        }
        ["the default of ", knob, ""] => {
            let knob = KNOBS.iter().find(|k| k.path == *knob).unwrap_or_else(|| panic!("there is no knob {knob}"));
            Some(knob.default.unwrap().parse().unwrap())
        }
        _ => {
            assert!(source.starts_with("AWS"), "a source must be a constant, the template or AWS: {source}");
            None
        }
    }
}

#[test]
fn the_limits_in_the_documents_are_those_of_the_code() {
    let limits = rows("docs/cost.md", "limits");
    let mut checked = 0;
    for row in &limits {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let ["", what, value, source, ""] = cells.as_slice() else { panic!("three columns are expected: {row}") };
        if let Some(current) = current(source) {
            assert_eq!(written(value), current, "docs/cost.md: {what}: the value of {source} is {current}");
            checked += 1;
        }
    }
    assert!(checked >= 20, "only {checked} limits have a source in the code");
}
