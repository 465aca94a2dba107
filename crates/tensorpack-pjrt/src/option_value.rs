//! Values of options.

use crate::c_api::{Args, NamedValue, Text, Value};

/// The value of an option, of a client or of a compilation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum OptionValue {
    /// Yes or no.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// Whole numbers, such as the devices a client may use.
    Ints(Vec<i64>),
    /// A number.
    Float(f64),
    /// A text.
    Text(String),
}

impl OptionValue {
    /// As the C API takes it. What it returns points to `name` and to this value.
    pub(crate) fn named(&self, name: &str) -> Args<NamedValue> {
        let (kind, value, value_size) = match self {
            OptionValue::Text(text) => (0, Value { text: text.as_ptr().cast() }, text.len()),
            OptionValue::Int(int) => (1, Value { int: *int }, 1),
            OptionValue::Ints(ints) => (2, Value { ints: ints.as_ptr() }, ints.len()),
            OptionValue::Float(float) => (3, Value { float: *float as f32 }, 1),
            OptionValue::Bool(bool) => (4, Value { bool: *bool }, 1),
        };
        Args::new(NamedValue { name: Text::new(name), kind, value, value_size })
    }
}

impl From<bool> for OptionValue {
    fn from(value: bool) -> OptionValue {
        OptionValue::Bool(value)
    }
}

impl From<i64> for OptionValue {
    fn from(value: i64) -> OptionValue {
        OptionValue::Int(value)
    }
}

impl From<f64> for OptionValue {
    fn from(value: f64) -> OptionValue {
        OptionValue::Float(value)
    }
}

impl From<&str> for OptionValue {
    fn from(value: &str) -> OptionValue {
        OptionValue::Text(value.to_string())
    }
}
