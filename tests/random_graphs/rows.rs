//! Rows of the table: each is one way of using a public operation, layer or wrapper.
//!
//! The expression of a row is both compiled and kept as text, so a printed program is exactly the
//! one that the test ran.

use crate::draw::Draw;
use crate::program::{Port, Value};
use std::fmt;
use tensorpack::prelude::*;

/// The effect of rounding on the result of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Rounds its results.
    Op,
    /// Moves or compares elements, without rounding.
    Exact,
    /// Makes variables under the node's name, so it can be applied again with the same ones.
    Layer,
}

/// The drawn arguments of a row.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    pub(crate) inputs: Vec<Port>,
    pub(crate) values: Vec<Value>,
    /// An estimate of the magnitude of the result, if it is not that of the inputs.
    pub(crate) scale: Option<f64>,
}

/// The result of a row.
pub(crate) struct Made {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) many: bool,
}

type Build = fn(&TowerContext, DType, &str, &[Tensor], &[Value]) -> Made;

/// One row of the table.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The expression, with these names for inputs and arguments.
    pub(crate) text: &'static str,
    pub(crate) inputs: &'static [&'static str],
    pub(crate) arguments: &'static [&'static str],
    pub(crate) build: Build,
    /// Draws inputs and arguments; `None` where nothing fits.
    pub(crate) draw: fn(&mut Draw) -> Option<Draft>,
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl From<Tensor> for Made {
    fn from(tensor: Tensor) -> Made {
        Made { tensors: vec![tensor], many: false }
    }
}

impl From<Vec<Tensor>> for Made {
    fn from(tensors: Vec<Tensor>) -> Made {
        Made { tensors, many: true }
    }
}

/// Makes rows. The names in parentheses stand for the tower, the float type and the node's name in
/// all expressions.
macro_rules! rows {
    (($t:ident, $float:ident, $name:ident) $($kind:ident $label:literal ($($x:ident),*) [$($a:ident: $ty:ty),*]
        => $body:expr; $draw:expr;)*) => {
        vec![$($crate::rows::Row {
            name: $label,
            kind: $crate::rows::Kind::$kind,
            text: stringify!($body),
            inputs: &[$(stringify!($x)),*],
            arguments: &[$(stringify!($a)),*],
            build: |$t, $float, $name, inputs, values| {
                let _ = ($t, $float, $name);
                let mut _inputs = inputs.iter();
                let mut _values = values.iter();
                $(let $x: &tensorpack::prelude::Tensor = _inputs.next().expect("an input");)*
                $(let $a: $ty = _values.next().expect("an argument").into();)*
                $crate::rows::Made::from($body)
            },
            draw: $draw,
        }),*]
    };
}
pub(crate) use rows;

/// Returns `text` with every whole identifier that `names` gives a replacement for replaced.
pub(crate) fn substitute(text: &str, names: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut word = String::new();
    // A name behind a dot is a method's, and one before a colon that of a field.
    let mut before = ' ';
    let flush = |word: &mut String, before: char, next: char, out: &mut String| {
        let plain = before != '.' && next != ':';
        match names(word).filter(|_| plain) {
            Some(new) => out.push_str(&new),
            None => out.push_str(word),
        }
        word.clear();
    };
    let mut quoted = false;
    for c in text.chars() {
        if !quoted && (c.is_alphanumeric() || c == '_') {
            word.push(c);
            continue;
        }
        if !word.is_empty() {
            flush(&mut word, before, c, &mut out);
        }
        quoted ^= c == '"';
        out.push(c);
        before = c;
    }
    if !word.is_empty() {
        flush(&mut word, before, ' ', &mut out);
    }
    out
}
