//! Templates that translate the names of another framework to ours and back.

use regex_lite::Regex;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A name with placeholders, such as `layer{g}.{b}.conv{c}`.
///
/// `{x}` stands for one part of a name, without dots and slashes; `{x*}` for several. Dots in a
/// part become slashes in our names, and slashes dots in theirs.
#[derive(Clone, Debug)]
pub(super) struct NameTemplate {
    text: String,
    pieces: Vec<Piece>,
    regex: Regex,
}

#[derive(Clone, Debug)]
enum Piece {
    Literal(String),
    Placeholder(String),
}

/// The parts of a name that placeholders stand for.
pub(super) type Parts = Vec<(String, String)>;

impl NameTemplate {
    pub(super) fn parse(text: &str) -> Result<NameTemplate> {
        let invalid =
            |why: &str| Error::new(ErrorKind::Name, format!("the template {text:?} is invalid: {why}"));
        let (mut pieces, mut pattern, mut rest) = (Vec::new(), String::from("^"), text);
        while let Some((literal, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or_else(|| invalid("a brace is not closed"))?;
            if name.trim_end_matches('*').is_empty() || name.contains(['{', '.', '/']) {
                return Err(invalid("a placeholder needs a name, as in {block}"));
            }
            if pieces.iter().any(|p| matches!(p, Piece::Placeholder(other) if other == name)) {
                return Err(invalid("a placeholder occurs twice"));
            }
            pattern += &regex_lite::escape(literal);
            pattern += if name.ends_with('*') { "(.+)" } else { "([^./]+)" };
            pieces.extend([Piece::Literal(literal.into()), Piece::Placeholder(name.into())]);
            rest = after;
        }
        if rest.contains('}') {
            return Err(invalid("a brace is not opened"));
        }
        pattern += &regex_lite::escape(rest);
        pattern.push('$');
        pieces.push(Piece::Literal(rest.into()));
        let regex = Regex::new(&pattern).map_err(|e| invalid(&e.to_string()))?;
        Ok(NameTemplate { text: text.into(), pieces, regex })
    }

    /// Checks that both templates have the same placeholders.
    pub(super) fn check_pair(&self, other: &NameTemplate) -> Result<()> {
        let names = |template: &NameTemplate| {
            let mut names: Vec<String> = template.placeholders().map(str::to_string).collect();
            names.sort();
            names
        };
        match names(self) == names(other) {
            true => Ok(()),
            false => {
                let why = format!("{:?} and {:?} have different placeholders", self.text, other.text);
                Err(Error::new(ErrorKind::Name, why))
            }
        }
    }

    fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Placeholder(name) => Some(&name[..]),
            Piece::Literal(_) => None,
        })
    }

    /// Returns what the placeholders stand for in `name`, or `None` if the template does not match.
    pub(super) fn parts(&self, name: &str) -> Option<Parts> {
        let captures = self.regex.captures(name)?;
        let values = captures.iter().skip(1).flatten().map(|m| m.as_str().to_string());
        Some(self.placeholders().map(str::to_string).zip(values).collect())
    }

    /// Returns the name with these parts, whose components `separator` joins.
    pub(super) fn name(&self, parts: &Parts, separator: &str) -> String {
        let value = |piece: &Piece| match piece {
            Piece::Literal(text) => text.clone(),
            Piece::Placeholder(name) => {
                let part = parts.iter().find(|(n, _)| n == name).map_or("", |(_, part)| part);
                part.replace(['.', '/'], separator)
            }
        };
        self.pieces.iter().map(value).collect()
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_translated_both_ways() {
        for (theirs, ours, name, translated) in [
            ("conv1", "conv0", "conv1", "conv0"),
            ("layer{g}.{b}.conv{c}", "group{g}/block{b}/conv{c}", "layer2.0.conv1", "group2/block0/conv1"),
            ("{p*}", "net/{p*}", "a.b.c", "net/a/b/c"),
            ("h.{i}.{p*}.x", "{p*}/{i}", "h.3.a.b.x", "a/b/3"),
        ] {
            let [theirs, ours] = [theirs, ours].map(|text| NameTemplate::parse(text).unwrap());
            theirs.check_pair(&ours).unwrap();
            let there = ours.name(&theirs.parts(name).unwrap(), "/");
            assert_eq!(there, translated);
            assert_eq!(theirs.name(&ours.parts(&there).unwrap(), "."), name);
        }
    }

    #[test]
    fn parts_do_not_cross_dots_and_dots_are_literal() {
        let template = NameTemplate::parse("layer{g}.conv").unwrap();
        assert!(template.parts("layer1.conv").is_some());
        for other in ["layer1.0.conv", "layer1xconv", "layer.conv", "my.layer1.conv"] {
            assert!(template.parts(other).is_none(), "{other}");
        }
    }

    #[test]
    fn invalid_templates_are_errors() {
        for text in ["a{", "a}", "{}", "{*}", "{a}{a}", "{a.b}"] {
            assert_eq!(NameTemplate::parse(text).unwrap_err().kind(), ErrorKind::Name, "{text}");
        }
        let pair = NameTemplate::parse("{a}").unwrap().check_pair(&NameTemplate::parse("{b}").unwrap());
        assert_eq!(pair.unwrap_err().kind(), ErrorKind::Name);
    }
}
