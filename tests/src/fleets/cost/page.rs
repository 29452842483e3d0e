//! Tables in the documents that a test computes.
//!
//! Guarantees: a number in the page differs from the computed number by at most one unit of its last digit; a text does
//! not differ. Otherwise the test prints the table to paste.

use crate::second_opinions::root;

/// The rows of the table below the line `<!-- table: name -->`, without its head.
pub fn rows(page: &str, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let marker = format!("<!-- table: {name} -->");
    let (_, rest) = text.split_once(&marker).unwrap_or_else(|| panic!("{page} has no line {marker}"));
    let table = rest.trim_start().lines().take_while(|l| l.starts_with('|'));
    table.skip(2).map(str::to_owned).collect()
}

/// The texts and the numbers of a row: they alternate.
fn parts(row: &str) -> (Vec<String>, Vec<String>) {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let (mut texts, mut numbers) = (vec![String::new()], Vec::new());
    let mut in_number = false;
    for c in row.chars() {
        if is_digit(c) && (in_number || c.is_ascii_digit()) {
            if !in_number {
                numbers.push(String::new());
                texts.push(String::new());
            }
            numbers.last_mut().unwrap().push(c);
            in_number = true;
        } else {
            texts.last_mut().unwrap().push(c);
            in_number = false;
        }
    }
    (texts, numbers)
}

fn same(written: &str, computed: &str) -> bool {
    let ((texts, numbers), (other_texts, others)) = (parts(written), parts(computed));
    let close = |(a, b): (&String, &String)| {
        let value = |n: &str| n.trim_end_matches(['.', ',']).replace(',', "").parse::<f64>().unwrap();
        let decimals = a.trim_end_matches(['.', ',']).split_once('.').map_or(0, |(_, d)| d.len());
        (value(a) - value(b)).abs() <= 10_f64.powi(-(decimals as i32)) * 1.000_001
    };
    texts == other_texts && numbers.len() == others.len() && numbers.iter().zip(&others).all(close)
}

/// Fails if the table in the page differs from the computed one.
pub fn check(page: &str, name: &str, computed: &[String]) {
    let written = rows(page, name);
    let agree = written.len() == computed.len() && written.iter().zip(computed).all(|(a, b)| same(a, b));
    assert!(agree, "{page}: the table \"{name}\" is not as computed. Its rows are now:\n\n{}\n", computed.join("\n"));
}

#[test]
fn a_table_may_differ_by_rounding_and_not_by_more() {
    assert!(same("| a 1,234 | $0.10 |", "| a 1,235 | $0.11 |"));
    assert!(!same("| a 1,234 |", "| a 1,236 |"));
    assert!(!same("| a $0.10 |", "| a $0.12 |"));
    assert!(!same("| a 1 |", "| b 1 |"));
    assert!(!same("| a 1 | 2 |", "| a 1 |"));
}
