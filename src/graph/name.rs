//! Names of scopes, tensors and variables.

use tensorpack_tensor::{Error, ErrorKind, Result};

/// Checks a name that a user gives to a scope, tensor, variable or input.
pub(super) fn check(name: &str) -> Result<()> {
    let bad = |why: &str| Err(Error::new(ErrorKind::Name, format!("the name {name:?} {why}")));
    if name.is_empty() {
        return bad("is empty");
    }
    if let Some(c) = name.chars().find(|c| !(c.is_ascii_alphanumeric() || "_-./".contains(*c))) {
        return bad(&format!("contains {c:?}; use letters, digits and _ - . (and / between scopes)"));
    }
    if name.split('/').any(str::is_empty) {
        return bad("has an empty part between slashes");
    }
    Ok(())
}

/// Checks that a name does not contain the reserved word "tower", which prefixes the names of
/// replicas and identifies their nodes.
pub(super) fn check_not_reserved(name: &str) -> Result<()> {
    if name.contains("tower") {
        return Err(Error::new(
            ErrorKind::Name,
            format!(
                "the name {name:?} contains the word \"tower\", which is reserved (rule 5 of tower functions)"
            ),
        )
        .note("choose another name for this scope or variable"));
    }
    Ok(())
}

/// Returns `scope/part`, or `part` at the root.
pub(super) fn join(scope: &str, part: &str) -> String {
    if scope.is_empty() { part.to_string() } else { format!("{scope}/{part}") }
}

/// Splits a name into its tower prefix (`tower3/`, or nothing) and the rest, which is the same in
/// all towers.
pub(crate) fn split_tower(name: &str) -> (&str, &str) {
    let is_tower = |first: &str| first.strip_prefix("tower").is_some_and(|n| n.parse::<usize>().is_ok());
    match name.split_once('/') {
        Some((first, rest)) if is_tower(first) => (&name[..first.len() + 1], rest),
        _ => ("", name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_tower_splits_off_the_prefix() {
        assert_eq!(split_tower("tower12/conv0/W"), ("tower12/", "conv0/W"));
        assert_eq!(split_tower("towers/conv0"), ("", "towers/conv0"));
        assert_eq!(split_tower("conv0"), ("", "conv0"));
    }
}
