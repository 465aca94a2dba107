//! Names of scopes, tensors and variables.

use tensorpack_tensor::{Error, ErrorKind, Result};

/// Checks one part of a name: what a user may call a scope, tensor, variable or input.
pub(super) fn check(part: &str) -> Result<()> {
    let bad = |why: &str| Err(Error::new(ErrorKind::Name, format!("the name {part:?} {why}")));
    if part.is_empty() {
        return bad("is empty");
    }
    if let Some(c) = part.chars().find(|c| !(c.is_ascii_alphanumeric() || "_-./".contains(*c))) {
        return bad(&format!("contains {c:?}; use letters, digits and _ - . (and / between scopes)"));
    }
    if part.split('/').any(str::is_empty) {
        return bad("has an empty part between slashes");
    }
    Ok(())
}

/// The word that is the framework's own: replicas are named by it, and what belongs to them is found by it.
pub(super) fn check_not_reserved(part: &str) -> Result<()> {
    if part.contains("tower") {
        return Err(Error::new(
            ErrorKind::Name,
            format!(
                "the name {part:?} contains the word \"tower\", which is reserved (rule 5 of tower functions)"
            ),
        )
        .note("choose another name for this scope or variable"));
    }
    Ok(())
}

/// `scope/part`, or `part` at the root.
pub(super) fn join(scope: &str, part: &str) -> String {
    if scope.is_empty() { part.to_string() } else { format!("{scope}/{part}") }
}

/// A name's tower, `tower3/` or nothing, and the rest, which is the same in all towers.
pub(crate) fn split_tower(name: &str) -> (&str, &str) {
    let numbered = |first: &str| first.strip_prefix("tower").is_some_and(|n| n.parse::<usize>().is_ok());
    match name.split_once('/') {
        Some((first, rest)) if numbered(first) => (&name[..first.len() + 1], rest),
        _ => ("", name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tower_is_split_off() {
        assert_eq!(split_tower("tower12/conv0/W"), ("tower12/", "conv0/W"));
        assert_eq!(split_tower("towers/conv0"), ("", "towers/conv0"));
        assert_eq!(split_tower("conv0"), ("", "conv0"));
    }
}
