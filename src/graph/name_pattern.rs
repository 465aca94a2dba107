//! Patterns that pick variables by name.

use regex_lite::Regex;
use std::panic::Location;
use tensorpack_tensor::{Error, ErrorKind, Result, Site};

/// A regular expression over names of variables. It must match the whole name: `fc.*/W` picks `fc0/W` and `fc1/W`, but
/// not `fc0/W/momentum`.
#[derive(Clone, Debug)]
pub struct NamePattern {
    text: String,
    regex: Result<Regex>,
    site: Site,
}

impl NamePattern {
    /// The pattern written `text`. Whether it is one is said by [`NamePattern::check`]; one that is not picks nothing.
    #[track_caller]
    pub fn new(text: &str) -> NamePattern {
        let site = Site::from(Location::caller());
        let regex = Regex::new(&format!("^(?:{text})$")).map_err(|e| {
            Error::new(ErrorKind::Name, format!("{text:?} is no pattern of names: {e}")).at(site)
        });
        NamePattern { text: text.into(), regex, site }
    }

    /// Whether it matches the whole of `name`.
    pub fn matches(&self, name: &str) -> bool {
        self.regex.as_ref().is_ok_and(|r| r.is_match(name))
    }

    /// That it is a pattern, and matches at least one of `names`: one that picks nothing is misspelt.
    pub fn check<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        self.regex.as_ref().map_err(Error::clone)?;
        let names: Vec<&str> = names.into_iter().collect();
        if names.iter().any(|n| self.matches(n)) {
            return Ok(());
        }
        let message = format!("the pattern {:?} matches no variable", self.text);
        Err(Error::new(ErrorKind::Name, message)
            .at(self.site)
            .note(format!("a pattern must match a whole name; there are: {}", names.join(", "))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_whole_names() {
        let weights = NamePattern::new("fc.*/W|conv0/W");
        assert!(weights.matches("fc12/W") && weights.matches("conv0/W"));
        assert!(!weights.matches("fc0/W/momentum") && !weights.matches("my/conv0/W"));
    }

    #[test]
    fn what_cannot_match_is_an_error_at_its_line() {
        let unclosed = NamePattern::new("fc(").check(["fc0/W"]).unwrap_err();
        assert!(unclosed.message().starts_with("\"fc(\" is no pattern of names"), "{unclosed}");
        let pattern = NamePattern::new("fc/w");
        let line = line!() - 1;
        let misspelt = pattern.check(["fc/W", "fc/b"]).unwrap_err();
        assert_eq!(misspelt.message(), "the pattern \"fc/w\" matches no variable");
        assert_eq!(misspelt.site().map(|s| s.line), Some(line));
        assert!(misspelt.to_string().ends_with("there are: fc/W, fc/b"), "{misspelt}");
        assert!(NamePattern::new("fc/[Wb]").check(["fc/W", "fc/b"]).is_ok());
    }
}
