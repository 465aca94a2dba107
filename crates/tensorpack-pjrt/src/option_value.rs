//! Values of options.

use crate::c_api::*;
use crate::c_struct::CStruct;

/// The value of an option, of a client or of a compilation.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "PJRT_NamedValue")]
#[non_exhaustive]
pub enum OptionValue {
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A list of integers, such as the devices a client may use.
    Ints(Vec<i64>),
    /// A floating-point number.
    Float(f64),
    /// A string.
    #[doc(alias = "String")]
    Text(String),
}

impl OptionValue {
    /// Converts to the C API's struct, which points to `name` and to this value.
    pub(crate) fn named(&self, name: &str) -> PJRT_NamedValue {
        type Value = PJRT_NamedValue_Union;
        let (r#type, union, value_size) = match self {
            OptionValue::Text(text) => {
                (PJRT_NamedValue_kString, Value { string_value: text.as_ptr().cast() }, text.len())
            }
            OptionValue::Int(int) => (PJRT_NamedValue_kInt64, Value { int64_value: *int }, 1),
            OptionValue::Ints(ints) => {
                (PJRT_NamedValue_kInt64List, Value { int64_array_value: ints.as_ptr() }, ints.len())
            }
            OptionValue::Float(float) => (PJRT_NamedValue_kFloat, Value { float_value: *float as f32 }, 1),
            OptionValue::Bool(bool) => (PJRT_NamedValue_kBool, Value { bool_value: *bool }, 1),
        };
        let (name, name_size) = (name.as_ptr().cast(), name.len());
        PJRT_NamedValue { name, name_size, r#type, union, value_size, ..CStruct::new() }
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
