//! What engines find wrong with numbers while they run, in words that are the same on all of them.

use crate::kir::Origin;
use std::collections::HashMap;
use tensorpack_tensor::{Error, ErrorKind};

/// Element `place` of the numbers of rows is `index`, but there are only `rows`.
pub(super) fn no_such_row(index: i64, place: usize, rows: usize) -> Error {
    let what = match rows {
        0 => "and there are no rows at all".to_string(),
        _ => format!("which is outside 0..{rows}"),
    };
    Error::new(ErrorKind::Argument, format!("element {place} of the indices is {index}, {what}"))
        .note("an index counts from 0 and must be below the size of the axis it chooses from")
}

/// Element `place` of a divisor of integers is zero.
pub(super) fn division_by_zero(place: usize) -> Error {
    Error::new(ErrorKind::Argument, format!("element {place} of the divisor is zero")).note(
        "integers have no infinity: replace the zeros first, say with `select`, or cast both to a float type",
    )
}

/// What is known of nodes whose results may turn out not to be finite, by their names.
#[derive(Clone, Debug, Default)]
pub(super) struct Diagnosis {
    /// What a NaN there most likely means.
    pub hints: HashMap<String, String>,
    /// Those that only the update of a variable needs.
    pub next_values: HashMap<String, NextValue>,
}

/// A result that the next value of a variable is made of.
#[derive(Clone, Debug)]
pub(super) struct NextValue {
    /// The variable's name.
    pub variable: String,
    /// Whether it is that value, or a step on the way to it, element by element.
    pub itself: bool,
    /// Whether it must be finite.
    pub finite: bool,
}

impl Diagnosis {
    /// The error of a kernel whose result is the first that is not finite; `None` if it may be so.
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

/// An update made something of a variable that is not finite.
pub(super) fn next_value_not_finite(variable: &str) -> Error {
    let what = format!("the next value of the variable {variable} is not finite: its update overflows");
    Error::new(ErrorKind::NotFinite, what)
        .note("lower the learning rate, clip the gradients, or raise the optimizer's epsilon")
}

/// The result of the node of this name is the first that is not finite.
pub(super) fn not_finite(name: &str) -> Error {
    Error::new(ErrorKind::NotFinite, format!("{name} is not finite: it holds a NaN or an infinity"))
}
