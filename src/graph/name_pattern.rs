//! Patterns that select variables by name.

use regex_lite::Regex;
use std::panic::Location;
use tensorpack_tensor::{Error, ErrorKind, Result, Site};

/// A regular expression over variable names. It must match the whole name: `fc.*/W` matches `fc0/W`
/// and `fc1/W`, but not `fc0/W/momentum`.
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
        let regex = Regex::new(&format!("^(?:{text})$")).map_err(|e| {
            Error::new(ErrorKind::Name, format!("{text:?} is not a valid name pattern: {e}")).at(site)
        });
        NamePattern { text: text.into(), regex, site }
    }

    /// Returns whether the pattern matches the whole of `name`.
    pub fn matches(&self, name: &str) -> bool {
        self.regex.as_ref().is_ok_and(|r| r.is_match(name))
    }

    /// Checks that the pattern is valid and matches at least one of `names`: a pattern that matches
    /// nothing is probably misspelt.
    pub fn check<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        self.regex.as_ref().map_err(Error::clone)?;
        let names: Vec<&str> = names.into_iter().collect();
        if names.iter().any(|n| self.matches(n)) {
            return Ok(());
        }
        let message = format!("the pattern {:?} matches no variable", self.text);
        Err(Error::new(ErrorKind::Name, message)
            .at(self.site)
            .note(format!("a pattern must match a whole name; the variables are: {}", names.join(", "))))
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
        let pattern = NamePattern::new("fc/w");
        let line = line!() - 1;
        let misspelt = pattern.check(["fc/W", "fc/b"]).unwrap_err();
        assert!(misspelt.message().contains("\"fc/w\" matches no variable"), "{misspelt}");
        assert_eq!(misspelt.site().map(|s| s.line), Some(line));
        assert!(misspelt.to_string().ends_with(": fc/W, fc/b"), "{misspelt}");
        assert!(NamePattern::new("fc/[Wb]").check(["fc/W", "fc/b"]).is_ok());
    }
}
