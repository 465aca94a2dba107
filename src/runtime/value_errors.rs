//! Errors about values that engines find while they run. All engines report them in the same words.

use crate::kir::Origin;
use std::collections::HashMap;
use tensorpack_tensor::{Error, ErrorKind};

/// The error of element `position` of the indices, which is `index`, outside of `0..rows`.
pub(super) fn index_out_of_range(index: i64, position: usize, rows: usize) -> Error {
    let what = match rows {
        0 => "and there are no rows at all".to_string(),
        _ => format!("which is outside 0..{rows}"),
    };
    Error::new(ErrorKind::Argument, format!("element {position} of the indices is {index}, {what}"))
        .note("an index starts at 0 and must be less than the size of the axis it selects from")
}

/// The error of element `position` of an integer divisor, which is zero.
pub(super) fn division_by_zero(position: usize) -> Error {
    Error::new(ErrorKind::Argument, format!("element {position} of the divisor is zero")).note(
        "integers have no infinity: replace the zeros, for example with `select`, or cast both to a float dtype",
    )
}

/// Information about nodes by name, for errors about results that are not finite.
#[derive(Clone, Debug, Default)]
pub(super) struct Diagnosis {
    /// The most likely cause of a NaN.
    pub hints: HashMap<String, String>,
    /// The nodes that only the update of a variable needs.
    pub next_values: HashMap<String, NextValue>,
}

/// A result from which the next value of a variable is computed.
#[derive(Clone, Debug)]
pub(super) struct NextValue {
    /// The name of the variable.
    pub variable: String,
    /// Whether it is that value, or an elementwise intermediate result of it.
    pub itself: bool,
    /// Whether it must be finite.
    pub finite: bool,
}

impl Diagnosis {
    /// Returns the error of the kernel whose result is the first that is not finite, or `None` if
    /// it may be infinite.
    pub(super) fn not_finite(&self, origin: &Origin) -> Option<Error> {
        let name = &origin.name;
        let e = match self.next_values.get(name) {
            Some(next) if !next.finite => return None,
            Some(next) if next.itself => next_value_not_finite(&next.variable)
                .note(format!("{name} is the first result that holds a NaN or an infinity")),
            part => {
                let e = not_finite(name);
                let of =
                    |part: &NextValue| format!("it is part of the update of the variable {}", part.variable);
                part.map(of).into_iter().fold(e, |e, note| e.note(note))
            }
        };
        Some(self.hints.get(name).into_iter().fold(e.at(origin.site), |e, hint| e.note(hint)))
    }
}

/// The error of an update whose result is not finite.
pub(super) fn next_value_not_finite(variable: &str) -> Error {
    let what = format!("the next value of the variable {variable} is not finite: its update overflows");
    Error::new(ErrorKind::NotFinite, what)
        .note("lower the learning rate, clip the gradients, or raise the optimizer's epsilon")
}

/// The error of the node whose result is the first that is not finite.
pub(super) fn not_finite(name: &str) -> Error {
    Error::new(ErrorKind::NotFinite, format!("{name} is not finite: it holds a NaN or an infinity"))
}
