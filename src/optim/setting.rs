//! Validation of optimizer settings.

use crate::graph::Graph;
use tensorpack_tensor::Error;

/// The valid range of a setting.
#[derive(Clone, Copy)]
pub(super) enum Allowed {
    /// At least 0 and below 1, such as a decay rate.
    Fraction,
    /// Finite and above 0.
    Positive,
    /// Finite and at least 0.
    NonNegative,
    /// Neither NaN nor infinite.
    Finite,
}

/// Records an error of `op` if a setting is outside its valid range.
#[track_caller]
pub(super) fn check_setting(graph: &Graph, op: &str, setting: &str, value: f64, allowed: Allowed) {
    let (valid, range) = match allowed {
        Allowed::Fraction => ((0.0..1.0).contains(&value), "at least 0 and below 1"),
        Allowed::Positive => (value > 0.0 && value.is_finite(), "finite and above 0"),
        Allowed::NonNegative => (value >= 0.0 && value.is_finite(), "finite and at least 0"),
        Allowed::Finite => (value.is_finite(), "finite"),
    };
    if !valid {
        let why = format!("{setting} is {value}, but must be {range}");
        graph.record(op, &[], Error::argument(why));
    }
}
