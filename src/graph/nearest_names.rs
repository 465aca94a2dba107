//! Suggestions for a name that was not found.

/// The number of names that a message lists.
const LISTED: usize = 8;

/// Returns a note for the error about a `name` that was not found among the known ones: all of them
/// if they are few, otherwise those nearest to it. `what` is their plural, such as "variables".
pub(crate) fn nearest_names<'a>(what: &str, name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let mut known: Vec<&str> = known.into_iter().collect();
    known.sort_unstable();
    known.dedup();
    match known.len() {
        0 => format!("there are no {what}"),
        n if n <= LISTED => format!("the {what} are: {}", known.join(", ")),
        n => {
            known.sort_by_cached_key(|other| distance(name, other));
            format!("the nearest of {n} {what} are: {}", known[..LISTED].join(", "))
        }
    }
}

/// Returns the distance between two names. Names in different scopes are near if their last parts
/// are.
fn distance(a: &str, b: &str) -> usize {
    let last = |name: &str| name.rsplit('/').next().unwrap_or_default().to_lowercase();
    let whole = edits(&a.to_lowercase(), &b.to_lowercase());
    whole.min(edits(&last(a), &last(b)) + 1)
}

/// Returns the Levenshtein distance: the number of characters to insert, remove or replace.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        for (a, b, n) in [("", "", 0), ("", "abc", 3), ("kitten", "sitting", 3), ("cost", "cots", 2)] {
            assert_eq!((edits(a, b), edits(b, a)), (n, n), "{a} {b}");
        }
    }

    #[test]
    fn few_names_are_all_listed() {
        assert_eq!(nearest_names("variables", "x", []), "there are no variables");
        assert_eq!(nearest_names("variables", "fc/w", ["fc/b", "fc/W"]), "the variables are: fc/W, fc/b");
    }

    #[test]
    fn the_nearest_of_many_names_are_listed() {
        let known: Vec<String> = (0..100).map(|i| format!("res{i}/conv/W")).collect();
        let known = known.iter().map(String::as_str).chain(["tower0/accuracy"]);
        let note = nearest_names("tensors", "acuracy", known.clone());
        assert!(note.starts_with("the nearest of 101 tensors are: tower0/accuracy, "), "{note}");
        assert_eq!(note.split(", ").count(), 8, "{note}");
        let note = nearest_names("tensors", "Res42/conv/w", known);
        assert!(note.contains(": res42/conv/W, "), "{note}");
    }
}
