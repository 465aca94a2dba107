//! That the page of promises names tests and examples that exist.

use std::fs;
use std::path::Path;

/// What is named in backticks in the last column of a table.
fn named(row: &str) -> Vec<&str> {
    let shown = row.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap_or("");
    shown.split('`').skip(1).step_by(2).collect()
}

/// What is wrong with a name, if anything is.
fn missing(name: &str) -> Option<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    if let Some((file, test)) = name.split_once("::") {
        let path = root.join("tests").join(format!("{file}.rs"));
        let Ok(text) = fs::read_to_string(&path) else {
            return Some(format!("there is no {}", path.display()));
        };
        let found = text.contains(&format!("fn {test}()"));
        return (!found).then(|| format!("{} has no test {test}", path.display()));
    }
    let path = match name.strip_prefix("examples/") {
        Some(example) => root.join("examples").join(format!("{example}.rs")),
        None if name.starts_with("bench -- ") => return None,
        None => root.join(name),
    };
    (!path.exists()).then(|| format!("there is no {}", path.display()))
}

#[test]
fn every_promise_is_shown_or_says_with_what_it_comes() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/checklist.md")).unwrap();
    let numbered =
        |line: &&str| line.strip_prefix("| ").is_some_and(|l| l.starts_with(|c: char| c.is_ascii_digit()));
    let lists = page.split("\n## ").skip(1).map(|list| list.lines().filter(numbered).collect());
    let lists: Vec<Vec<&str>> = lists.collect();
    assert_eq!(lists.iter().map(Vec::len).collect::<Vec<_>>(), [14, 13, 16, 17, 11]);
    for (list, rows) in lists.iter().enumerate() {
        for (i, row) in rows.iter().enumerate() {
            assert!(row.starts_with(&format!("| {} |", i + 1)), "list {}: {row}", list + 1);
            let names = named(row);
            assert!(!names.is_empty() || row.contains("comes with"), "nothing shows this: {row}");
            let wrong: Vec<String> = names.into_iter().filter_map(missing).collect();
            assert!(wrong.is_empty(), "{row}: {wrong:?}");
        }
    }
}
