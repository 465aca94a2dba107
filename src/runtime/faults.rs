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

/// A kernel's result is the first that is not finite; `hints` say what that most likely means, by its node's name.
pub(super) fn not_finite(origin: &Origin, hints: &HashMap<String, String>) -> Error {
    let name = &origin.name;
    let what = format!("{name} is not finite: it holds a NaN or an infinity");
    let e = Error::new(ErrorKind::NotFinite, what).at(origin.site);
    hints.get(name).into_iter().fold(e, |e, hint| e.note(hint))
}
