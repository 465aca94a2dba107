//! What engines find wrong with numbers while they run, in words that are the same on all of them.

use crate::kir::Origin;
use std::collections::HashMap;
use tensorpack_tensor::{Error, ErrorKind, Site};

/// Element `place` of the numbers of rows is `index`, but there are only `rows`.
pub(super) fn no_such_row(index: i64, place: usize, rows: usize) -> Error {
    let what = match rows {
        0 => "and there are no rows at all".to_string(),
        _ => format!("which is outside 0..{rows}"),
    };
    Error::new(ErrorKind::Argument, format!("element {place} of the indices is {index}, {what}"))
        .note("an index counts from 0 and must be below the size of the axis it chooses from")
}

/// A kernel's result is the first that is not finite; `hints` say what that most likely means, by its node's name.
pub(super) fn not_finite(origin: &Origin, hints: &HashMap<String, String>) -> Error {
    not_finite_at(&origin.name, origin.site, hints.get(&origin.name).cloned())
}

/// The result of the node of this name and line is the first that is not finite; `hint` says what that most likely
/// means.
pub(super) fn not_finite_at(name: &str, site: Site, hint: Option<String>) -> Error {
    let what = format!("{name} is not finite: it holds a NaN or an infinity");
    let e = Error::new(ErrorKind::NotFinite, what).at(site);
    hint.into_iter().fold(e, |e, hint| e.note(hint))
}
