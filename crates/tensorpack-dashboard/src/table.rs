//! The statistics of a file of JSON lines, as columns.
//!
//! A line is a flat object with `epoch_num`, `global_step` and any number of scalars. The parser
//! handles exactly what `JsonWriter` writes: no white space, no escapes, numbers or one of the
//! strings `"NaN"`, `"inf"` and `"-inf"`. Any other line goes to serde_json, which decides.

use serde_json::{Map, Value};
use std::collections::HashMap;

/// The most rows of a table. Later lines are ignored, so that a huge file cannot exhaust memory.
const MAX_ROWS: usize = 20_000_000;
/// The most columns of a table.
const MAX_COLUMNS: usize = 4096;

/// The statistics of one file.
#[derive(Debug, Default)]
pub(crate) struct Table {
    epochs: Vec<u32>,
    steps: Vec<u64>,
    columns: Vec<Column>,
    by_name: HashMap<String, usize>,
    /// The scalars of the current line: column and value.
    cells: Vec<(usize, f64)>,
    damaged: u64,
}

/// The values of one statistic.
#[derive(Debug)]
pub(crate) struct Column {
    name: String,
    /// Whether JSON writes the name as it is.
    is_plain: bool,
    /// The row of each value.
    rows: Vec<u32>,
    values: Vec<f64>,
    extremes: Option<Extremes>,
}

/// The rows with the smallest and largest finite value, the first of them if there are several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Extremes {
    /// The row and value of the minimum.
    pub(crate) min: (u32, f64),
    /// The row and value of the maximum.
    pub(crate) max: (u32, f64),
}

impl Table {
    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.steps.len()
    }

    /// Returns whether there are no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the global step of each row.
    pub(crate) fn steps(&self) -> &[u64] {
        &self.steps
    }

    /// Returns the epoch of each row.
    pub(crate) fn epochs(&self) -> &[u32] {
        &self.epochs
    }

    /// Returns the columns that have values.
    pub(crate) fn columns(&self) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(|c| !c.values.is_empty())
    }

    /// Returns the column of a statistic.
    pub(crate) fn column(&self, name: &str) -> Option<&Column> {
        self.by_name.get(name).map(|&at| &self.columns[at]).filter(|c| !c.values.is_empty())
    }

    /// Returns the number of lines that are not statistics.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Appends a line, without its newline. A line that is not an object with `epoch_num` and
    /// `global_step` is counted as damaged.
    pub(crate) fn push_line(&mut self, line: &[u8]) {
        if line.is_empty() || self.steps.len() >= MAX_ROWS {
            return;
        }
        self.cells.clear();
        let at = match self.parse_fast(line) {
            Some(at) => Some(at),
            None => {
                self.cells.clear();
                self.parse_any(line)
            }
        };
        match at {
            Some((epoch, step)) => self.push_row(epoch, step),
            None => self.damaged += 1,
        }
    }

    /// Appends a row with one value per name.
    pub(crate) fn push_values(&mut self, epoch: u32, step: u64, values: &[(&str, f64)]) {
        self.cells.clear();
        for &(name, value) in values {
            if let Some(column) = self.column_index(name) {
                self.cells.push((column, value));
            }
        }
        self.push_row(epoch, step);
    }

    fn push_row(&mut self, epoch: u32, step: u64) {
        let row = self.steps.len() as u32;
        self.epochs.push(epoch);
        self.steps.push(step);
        if !self.cells.is_sorted_by(|a, b| a.0 < b.0) {
            // Of a key that occurs twice, the last value counts, as in any JSON parser. The sort is
            // stable, and of equal columns `dedup_by` keeps the first.
            self.cells.reverse();
            self.cells.sort_by_key(|cell| cell.0);
            self.cells.dedup_by_key(|cell| cell.0);
        }
        for &(column, value) in &self.cells {
            self.columns[column].push(row, value);
        }
    }

    /// Parses a line as `JsonWriter` writes it. Returns `None` for any other line, valid or not.
    fn parse_fast(&mut self, line: &[u8]) -> Option<(u32, u64)> {
        let mut rest = line.strip_prefix(b"{")?;
        let (mut epoch, mut step) = (None, None);
        // Lines of one file mostly have the same columns in the same order.
        let mut expected = 0;
        loop {
            rest = rest.strip_prefix(b"\"")?;
            let key = if let Some(after) = rest.strip_prefix(b"epoch_num\":") {
                rest = after;
                Key::Epoch
            } else if let Some(after) = rest.strip_prefix(b"global_step\":") {
                rest = after;
                Key::Step
            } else if let Some(after) = self.columns.get(expected).and_then(|c| c.after_key(rest)) {
                rest = after;
                Key::Column(expected)
            } else {
                let end = rest.iter().position(|&b| b == b'"' || b == b'\\' || b < 0x20)?;
                let name = std::str::from_utf8(&rest[..end]).ok()?;
                rest = rest[end..].strip_prefix(b"\":")?;
                Key::Column(self.column_index(name)?)
            };
            match key {
                Key::Epoch => epoch = Some(u32::try_from(unsigned(&mut rest)?).ok()?),
                Key::Step => step = Some(unsigned(&mut rest)?),
                Key::Column(column) => {
                    self.cells.push((column, scalar(&mut rest)?));
                    expected = column + 1;
                }
            }
            match rest {
                b"}" => return Some((epoch?, step?)),
                [b',', after @ ..] => rest = after,
                _ => return None,
            }
        }
    }

    /// Parses any JSON object. Values that are not scalars are left out.
    fn parse_any(&mut self, line: &[u8]) -> Option<(u32, u64)> {
        let object: Map<String, Value> = serde_json::from_slice(line).ok()?;
        let epoch = u32::try_from(object.get("epoch_num")?.as_u64()?).ok()?;
        let step = object.get("global_step")?.as_u64()?;
        for (name, value) in &object {
            let value = match value.as_str() {
                Some(text) => non_finite(text.as_bytes()),
                None => value.as_f64(),
            };
            if let Some(value) = value
                && name != "epoch_num"
                && name != "global_step"
                && let Some(column) = self.column_index(name)
            {
                self.cells.push((column, value));
            }
        }
        Some((epoch, step))
    }

    /// Returns the index of a column, and creates it if there is room.
    fn column_index(&mut self, name: &str) -> Option<usize> {
        if let Some(&at) = self.by_name.get(name) {
            return Some(at);
        }
        if self.columns.len() >= MAX_COLUMNS {
            return None;
        }
        let at = self.columns.len();
        self.by_name.insert(name.to_string(), at);
        let is_plain = !name.contains(['\\', '"']);
        let name = name.to_string();
        self.columns.push(Column { name, is_plain, rows: Vec::new(), values: Vec::new(), extremes: None });
        Some(at)
    }
}

impl Column {
    /// Returns what follows `NAME":` if `rest` starts with it. A name with characters that JSON
    /// escapes never matches: one that ends in a backslash would match an escaped quote.
    fn after_key<'a>(&self, rest: &'a [u8]) -> Option<&'a [u8]> {
        let after = rest.strip_prefix(self.name.as_bytes())?.strip_prefix(b"\":")?;
        self.is_plain.then_some(after)
    }

    /// Returns the name of the statistic.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the row of each value.
    pub(crate) fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// Returns the values.
    pub(crate) fn values(&self) -> &[f64] {
        &self.values
    }

    /// Returns the extremes, if any value is finite.
    pub(crate) fn extremes(&self) -> Option<Extremes> {
        self.extremes
    }

    fn push(&mut self, row: u32, value: f64) {
        self.rows.push(row);
        self.values.push(value);
        self.extremes = extended(self.extremes, row, value);
    }
}

fn extended(extremes: Option<Extremes>, row: u32, value: f64) -> Option<Extremes> {
    if !value.is_finite() {
        return extremes;
    }
    let Some(mut e) = extremes else { return Some(Extremes { min: (row, value), max: (row, value) }) };
    if value < e.min.1 {
        e.min = (row, value);
    }
    if value > e.max.1 {
        e.max = (row, value);
    }
    Some(e)
}

enum Key {
    Epoch,
    Step,
    Column(usize),
}

/// Parses an integer without sign, and moves `rest` behind it.
fn unsigned(rest: &mut &[u8]) -> Option<u64> {
    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
    // 19 digits fit into 64 bits.
    if digits == 0 || digits > 19 || (digits > 1 && rest[0] == b'0') {
        return None;
    }
    let (number, after) = rest.split_at(digits);
    *rest = after;
    Some(number.iter().fold(0, |n, &b| n * 10 + u64::from(b - b'0')))
}

/// Parses a number, `"NaN"`, `"inf"` or `"-inf"`, and moves `rest` behind it.
fn scalar(rest: &mut &[u8]) -> Option<f64> {
    if let Some(text) = rest.strip_prefix(b"\"") {
        let end = text.iter().take(8).position(|&b| b == b'"')?;
        *rest = &text[end + 1..];
        return non_finite(&text[..end]);
    }
    let (number, after) = rest.split_at(number_len(rest)?);
    *rest = after;
    let value: f64 = std::str::from_utf8(number).ok()?.parse().ok()?;
    // serde_json rejects numbers that are out of range.
    value.is_finite().then_some(value)
}

fn non_finite(text: &[u8]) -> Option<f64> {
    match text {
        b"NaN" => Some(f64::NAN),
        b"inf" => Some(f64::INFINITY),
        b"-inf" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Returns the length of the number that `text` starts with. The grammar of JSON is stricter than
/// that of `f64::from_str`.
fn number_len(text: &[u8]) -> Option<usize> {
    let digits = |from: usize| text[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut at = usize::from(text.first() == Some(&b'-'));
    let whole = digits(at);
    if whole == 0 || (whole > 1 && text[at] == b'0') {
        return None;
    }
    at += whole;
    if text.get(at) == Some(&b'.') {
        let fraction = digits(at + 1);
        if fraction == 0 {
            return None;
        }
        at += 1 + fraction;
    }
    if let Some(b'e' | b'E') = text.get(at) {
        at += 1 + usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        let exponent = digits(at);
        if exponent == 0 {
            return None;
        }
        at += exponent;
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What serde_json makes of a line: epoch, step, scalars by name.
    type Row = (u64, u64, Vec<(String, u64)>);

    fn expected(line: &str) -> Option<Row> {
        let object: Map<String, Value> = serde_json::from_str(line).ok()?;
        let epoch = object.get("epoch_num")?.as_u64().filter(|&e| e <= u64::from(u32::MAX))?;
        let step = object.get("global_step")?.as_u64()?;
        let scalar = |value: &Value| match value {
            Value::Number(n) => n.as_f64(),
            Value::String(text) if text == "NaN" => Some(f64::NAN),
            Value::String(text) if text == "inf" => Some(1.0 / 0.0),
            Value::String(text) if text == "-inf" => Some(-1.0 / 0.0),
            _ => None,
        };
        let named = object.iter().filter(|(name, _)| *name != "epoch_num" && *name != "global_step");
        // The object is sorted by name.
        Some((epoch, step, named.filter_map(|(n, v)| Some((n.clone(), scalar(v)?.to_bits()))).collect()))
    }

    fn parsed(line: &str) -> Option<Row> {
        let mut table = Table::default();
        // The second line takes the path of known columns.
        table.push_line(line.as_bytes());
        table.push_line(line.as_bytes());
        assert!(table.len() == 2 || table.damaged() == 2);
        let row = table.len().checked_sub(1)? as u32;
        let mut cells = Vec::new();
        for c in table.columns() {
            assert_eq!(c.rows(), [0, 1], "{line}");
            let same = c.values()[0].to_bits() == c.values()[1].to_bits();
            assert!(same || c.values()[0].is_nan(), "{line}");
            cells.push((c.name().to_string(), c.values()[1].to_bits()));
        }
        cells.sort();
        Some((u64::from(table.epochs()[row as usize]), table.steps()[row as usize], cells))
    }

    fn value() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<u64>().prop_map(|bits| match f64::from_bits(bits) {
                x if x.is_finite() => serde_json::json!(x).to_string(),
                _ => "\"NaN\"".into(),
            }),
            any::<f32>().prop_map(|x| format!("{:?}", if x.is_finite() { x } else { 0.5 })),
            prop::sample::select(vec![
                "\"inf\"",
                "\"-inf\"",
                "\"NaN\"",
                "\"nan\"",
                "\"\"",
                "\"a\\\"b\"",
                "null",
                "true",
                "[1,2]",
                "{\"a\":1}",
                "-0",
                "-0.0",
                "0",
                "1e5",
                "1E+5",
                "1e-320",
                "1e400",
                "-1e400",
                "01",
                "1.",
                ".5",
                "+1",
                "--1",
                "1e",
                "1e+",
                "",
                "5e-324",
                "123456789012345678901234567890",
                "inf",
                "NaN",
                "0.1 ",
                " 1",
            ])
            .prop_map(String::from),
        ]
    }

    fn key() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z/_ ()%]{0,6}",
            prop::sample::select(vec![
                "cost",
                "Größe",
                "a\\nb",
                "a\\\\",
                "a\\\"",
                "\\u00e9",
                "epoch_num",
                "bad\u{1}"
            ])
            .prop_map(String::from),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(tensorpack_testing::test_cases(2000)))]
        #[test]
        fn lines_are_what_serde_json_reads(
            epoch in prop_oneof![any::<u32>().prop_map(|n| n.to_string()), value()],
            step in prop_oneof![any::<u64>().prop_map(|n| n.to_string()), value()],
            cells in prop::collection::vec((key(), value()), 0..5),
            cut in prop::option::of(0usize..200),
        ) {
            let mut line = format!(r#"{{"epoch_num":{epoch},"global_step":{step}"#);
            for (key, value) in cells {
                line += &format!(r#","{key}":{value}"#);
            }
            line.push('}');
            if let Some(cut) = cut.filter(|&c| line.is_char_boundary(c.min(line.len()))) {
                line.truncate(cut.min(line.len()));
            }
            prop_assume!(!line.is_empty());
            prop_assert_eq!(parsed(&line), expected(&line), "{}", line);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            Table::default().push_line(&bytes);
        }
    }

    #[test]
    fn what_the_writer_writes_takes_the_fast_path() {
        let mut table = Table::default();
        let line =
            br#"{"epoch_num":1,"global_step":93,"accuracy":0.9424093719497567,"cost":"NaN","lr":1e-5}"#;
        assert_eq!(table.parse_fast(line), Some((1, 93)));
        assert_eq!(table.cells.len(), 3);
    }

    #[test]
    fn the_last_of_two_equal_keys_counts() {
        let mut table = Table::default();
        table.push_line(br#"{"epoch_num":1,"global_step":1,"a":9,"a":2}"#);
        let column = table.column("a").unwrap();
        assert_eq!((column.rows(), column.values()), (&[0][..], &[2.0][..]));
        assert_eq!(column.extremes(), Some(Extremes { min: (0, 2.0), max: (0, 2.0) }));
    }
}
