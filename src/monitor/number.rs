//! Floats in JSON. NaN and infinities, which JSON lacks, are written as strings.

use serde_json::Value;

/// Converts a float to JSON. [`from_json`] restores it exactly.
pub(super) fn to_json(x: f64) -> Value {
    if x.is_nan() {
        return "NaN".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.into();
    }
    x.into()
}

/// Parses a float that [`to_json`] wrote.
pub(super) fn from_json(v: &Value) -> Option<f64> {
    match v.as_str() {
        Some("NaN") => Some(f64::NAN),
        Some("inf") => Some(f64::INFINITY),
        Some("-inf") => Some(f64::NEG_INFINITY),
        Some(_) => None,
        None => v.as_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_float_round_trips(bits: u64) {
            let x = f64::from_bits(bits);
            let text = to_json(x).to_string();
            let back = from_json(&serde_json::from_str(&text).unwrap()).unwrap();
            prop_assert!(back.to_bits() == bits || (x.is_nan() && back.is_nan()), "{} as {}", x, text);
        }
    }

    #[test]
    fn special_values_round_trip() {
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, f64::MIN_POSITIVE / 3.0] {
            let back = from_json(&serde_json::from_str(&to_json(x).to_string()).unwrap()).unwrap();
            assert!(back.to_bits() == x.to_bits() || (x.is_nan() && back.is_nan()), "{x}");
        }
        assert_eq!(from_json(&"three".into()), None);
    }
}
