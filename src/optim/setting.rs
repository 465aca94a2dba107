//! What settings may be.

use crate::graph::Graph;
use tensorpack_tensor::Error;

/// The numbers among which a setting makes sense.
#[derive(Clone, Copy)]
pub(super) enum Allowed {
    /// 0 or more, and below 1: what is kept of an average.
    Share,
    /// Above 0.
    Positive,
    /// 0 or more.
    NotNegative,
    /// All but NaN and the infinities.
    Finite,
}

/// Puts on record, as an error of `who`, a setting that makes no sense.
#[track_caller]
pub(super) fn check_setting(graph: &Graph, who: &str, setting: &str, value: f64, allowed: Allowed) {
    let (fits, words) = match allowed {
        Allowed::Share => ((0.0..1.0).contains(&value), "0 or more, and below 1"),
        Allowed::Positive => (value > 0.0 && value.is_finite(), "a number above 0"),
        Allowed::NotNegative => (value >= 0.0 && value.is_finite(), "a number not below 0"),
        Allowed::Finite => (value.is_finite(), "a number"),
    };
    if !fits {
        let why = format!("{setting} is {value}, but must be {words}");
        graph.record(who, &[], Error::argument(why));
    }
}
