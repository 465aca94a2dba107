//! Aligned tables of text, and numbers in text and JSON.

use std::borrow::Cow;
use tensorpack::serde_json::{Value, json};

/// Formats rows as a table: the first column to the left, all others to the right. Escapes control
/// characters: names in the files of a run may have any.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &[String], i: usize| row.get(i).map_or_else(String::new, |text| printable(text).into());
    let width = |i: usize| rows.iter().map(|row| cell(row, i).chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = widths.iter().enumerate().map(|(i, &width)| match i {
            0 => format!("{:width$}", cell(row, 0)),
            _ => format!("{:>width$}", cell(row, i)),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Returns a name as it can be shown on a terminal: names in files may contain control characters.
pub(crate) fn printable(name: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.escape_debug().len() == 1 || "\"'\\".contains(c);
    match name.chars().all(is_plain) {
        true => name.into(),
        false => name.escape_debug().to_string().into(),
    }
}

/// Formats a value with six significant digits.
pub(crate) fn number(x: f64) -> String {
    match x {
        x if x == 0.0 || !x.is_finite() => x.to_string(),
        x if x.fract() == 0.0 && x.abs() < 1e15 => x.to_string(),
        x if (1e-4..1e6).contains(&x.abs()) => {
            let digits = (5 - x.abs().log10().floor() as i32).max(0) as usize;
            format!("{x:.digits$}")
        }
        x => format!("{x:.5e}"),
    }
}

/// Returns a number as the files of a run have it: JSON has no NaN and no infinities, so they are the
/// strings `"NaN"`, `"inf"` and `"-inf"`.
pub(crate) fn json_number(x: f64) -> Value {
    if x.is_finite() { json!(x) } else { json!(x.to_string()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_numbers_that_are_not_finite_as_strings() {
        let all = [1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(json_number);
        assert_eq!(all, [json!(1.5), json!("NaN"), json!("inf"), json!("-inf")]);
    }

    #[test]
    fn columns_are_aligned() {
        let row = |cells: [&str; 2]| cells.map(String::from).to_vec();
        assert_eq!(
            table(&[row(["run", "cost"]), row(["a long name", "1"])]),
            "run          cost\na long name     1\n"
        );
        assert_eq!(table(&[row(["a\u{1b}[2J\nb", "1"])]), "a\\u{1b}[2J\\nb  1\n");
    }

    #[test]
    fn six_significant_digits() {
        for (x, text) in
            [(0.0, "0"), (3.0, "3"), (0.123_456_7, "0.123457"), (1.5, "1.50000"), (1e-7, "1.00000e-7")]
        {
            assert_eq!(number(x), text);
        }
    }
}
