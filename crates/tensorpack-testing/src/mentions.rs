//! Assertions on error messages.

use std::fmt::Display;

/// Checks that a message contains each of these terms: names, shapes and key words rather than
/// sentences, so that a better wording breaks no test.
///
/// # Panics
/// If a term is missing.
#[track_caller]
pub fn assert_mentions(message: impl Display, terms: &[&str]) {
    let text = message.to_string();
    let missing: Vec<&&str> = terms.iter().filter(|term| !text.contains(**term)).collect();
    assert!(missing.is_empty(), "{missing:?} missing in: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_term_is_required() {
        assert_mentions("shapes [2] and [3] differ", &["[2]", "[3]"]);
        let missing =
            std::panic::catch_unwind(|| assert_mentions("shapes [2] and [3] differ", &["[2]", "[4]"]));
        assert!(missing.unwrap_err().downcast_ref::<String>().unwrap().contains("[4]"));
    }
}
