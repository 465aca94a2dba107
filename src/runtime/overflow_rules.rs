//! What a run that fails its check does to the variables that have a rule for it.

use crate::kir::{OnOverflow, Program};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// Returns the variables that these programs update and that have a rule.
pub(super) fn rules<'a>(programs: impl IntoIterator<Item = &'a Program>) -> Vec<(usize, OnOverflow)> {
    let updates = programs.into_iter().flat_map(|program| &program.updates);
    let mut rules: Vec<(usize, OnOverflow)> =
        updates.filter_map(|u| Some((u.variable, u.on_overflow?))).collect();
    rules.sort_by_key(|(variable, _)| *variable);
    rules.dedup_by_key(|(variable, _)| *variable);
    rules
}

/// Returns the next values after a run that failed its check; `None` if it is an error: there are no
/// rules, or a value would be less than its rule allows.
pub(super) fn next_values(
    rules: &[(usize, OnOverflow)],
    read: impl Fn(usize) -> Result<HostTensor>,
) -> Result<Option<Vec<(usize, HostTensor)>>> {
    let mut next = Vec::new();
    for (variable, OnOverflow { factor, summand, least }) in rules {
        let value = read(*variable)?;
        let values: Vec<f64> = value.to_f64_vec().iter().map(|v| factor * v + summand).collect();
        if values.iter().any(|v| v < least) {
            return Ok(None);
        }
        next.push((*variable, HostTensor::from_f64(value.dtype(), value.sizes(), &values)?));
    }
    Ok((!next.is_empty()).then_some(next))
}

/// Returns the error of a run that was skipped.
pub(super) fn skipped() -> Error {
    Error::new(ErrorKind::Overflow, "a value is not finite: f16 overflowed, and the run was skipped")
        .note("it lowered the loss scale and changed nothing else; run the next step")
}
