//! Patterns that select variables, saved tensors and statistics by name.

use super::nearest_names;
use regex_lite::Regex;
use std::fmt;
use std::panic::Location;
use tensorpack_tensor::{Error, ErrorKind, Result, Site};

/// A regular expression over the names of variables, saved tensors or statistics.
///
/// Every pattern of this crate follows the same rules, whether it is a `NamePattern` or text that
/// becomes one:
///
/// - It must match the whole name: `fc.*/W` matches `fc0/W` and `fc1/W`, but not `fc0/W/momentum`.
///   Write `.*conv.*` for every name that contains `conv`.
/// - An invalid pattern is an error with the line that wrote it.
/// - So is a pattern that matches none of the names it selects from, which is probably misspelled.
///   Only patterns of statistics may match nothing, since their names become known during training.
#[derive(Clone, Debug)]
pub struct NamePattern {
    text: String,
    regex: Result<Regex>,
    site: Site,
}

impl NamePattern {
    /// Compiles the pattern `text`. An invalid pattern matches nothing; [`NamePattern::check`]
    /// reports it.
    #[track_caller]
    pub fn new(text: &str) -> NamePattern {
        let site = Site::from(Location::caller());
        // The text alone must be valid: `a)|(b` closes the group that is put around it.
        let regex = Regex::new(text).and_then(|_| Regex::new(&format!("^(?:{text})$"))).map_err(|e| {
            Error::new(ErrorKind::Name, format!("{text:?} is not a valid name pattern: {e}")).at(site)
        });
        NamePattern { text: text.into(), regex, site }
    }

    /// Compiles several patterns.
    #[track_caller]
    pub(crate) fn list<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<NamePattern> {
        // A closure would not pass on the caller's line.
        let mut patterns = Vec::new();
        for text in texts {
            patterns.push(NamePattern::new(text));
        }
        patterns
    }

    /// Returns whether the pattern matches the whole of `name`.
    pub fn matches(&self, name: &str) -> bool {
        self.regex.as_ref().is_ok_and(|r| r.is_match(name))
    }

    /// Checks that the pattern is a valid regular expression.
    pub fn check_syntax(&self) -> Result<()> {
        self.regex.as_ref().map(|_| ()).map_err(Error::clone)
    }

    /// Checks that the pattern is valid and matches at least one of `names`, which are those of
    /// variables.
    pub fn check<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        self.check_among("variable", names)
    }

    /// Like [`NamePattern::check`], for the names of other things. `what` is one of them.
    pub(crate) fn check_among<'a>(&self, what: &str, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        self.check_syntax()?;
        let names: Vec<&str> = names.into_iter().collect();
        if names.iter().any(|n| self.matches(n)) {
            return Ok(());
        }
        let message = format!("the pattern {:?} matches no {what}", self.text);
        Err(Error::new(ErrorKind::Name, message).at(self.site).note(format!(
            "a pattern must match a whole name; {}",
            nearest_names(&format!("{what}s"), &self.text, names)
        )))
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_whole_names() {
        let weights = NamePattern::new("fc.*/W|conv0/W");
        assert!(weights.matches("fc12/W") && weights.matches("conv0/W"));
        assert!(!weights.matches("fc0/W/momentum") && !weights.matches("my/conv0/W"));
    }

    #[test]
    fn check_reports_the_line_of_a_bad_pattern() {
        let unclosed = NamePattern::new("fc(").check(["fc0/W"]).unwrap_err();
        assert_eq!(unclosed.kind(), ErrorKind::Name);
        assert!(unclosed.message().contains("\"fc(\""), "{unclosed}");
        let unopened = NamePattern::new("fc)|(conv");
        assert!(!unopened.matches("fc0/W"), "a part of the name matches");
        assert_eq!(unopened.check(["fc0/W"]).unwrap_err().kind(), ErrorKind::Name);
        let pattern = NamePattern::new("fc/w");
        let line = line!() - 1;
        let misspelled = pattern.check(["fc/W", "fc/b"]).unwrap_err();
        assert!(misspelled.message().contains("\"fc/w\" matches no variable"), "{misspelled}");
        assert_eq!(misspelled.site().map(|s| s.line), Some(line));
        assert!(misspelled.to_string().ends_with(": fc/W, fc/b"), "{misspelled}");
        assert!(NamePattern::new("fc/[Wb]").check(["fc/W", "fc/b"]).is_ok());
    }
}
