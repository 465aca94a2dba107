//! The sources of the examples.

use std::path::{Path, PathBuf};

/// Returns all source files under a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

/// Returns the lines of all examples that contain `text`, as `file: line`.
fn lines_with(text: &str) -> Vec<String> {
    let files = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("examples"));
    assert!(files.len() > 10, "{files:?}");
    let lines = files.iter().flat_map(|file| {
        let source = std::fs::read_to_string(file).unwrap();
        let found: Vec<String> =
            source.lines().filter(|line| line.contains(text)).map(String::from).collect();
        found.into_iter().map(move |line| format!("{}: {}", file.display(), line.trim()))
    });
    lines.collect()
}

/// These macros panic if standard output or standard error is closed, as by `head -1`.
#[test]
fn examples_print_nothing_that_may_panic() {
    for printing in ["println!", "print!", "eprint!", "dbg!"] {
        assert_eq!(lines_with(printing), Vec::<String>::new());
    }
    assert!(!lines_with("say!").is_empty());
}

/// A learning rate can be searched for only if it is a hyper-parameter of a trainer with one cost.
#[test]
fn examples_offer_no_search_for_a_learning_rate_that_they_cannot_do() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut searching = Vec::new();
    for file in sources(&folder) {
        let source = std::fs::read_to_string(&file).unwrap();
        let parses = ["command_line::parse", "TrainArgs::parse_program("].iter().any(|p| source.contains(p));
        let offers = !source.contains("\"--find-lr\"") && !source.contains("gan::NEED_ONE_COST");
        if parses && source.contains("TrainArgs") && offers {
            searching.push(file.strip_prefix(&folder).unwrap().display().to_string());
        }
    }
    // Its optimizer takes its rate from `t.hyper_param("learning_rate", ..)`.
    assert_eq!(searching, ["ptb_lstm.rs"]);
}

/// Without a description, `--help` says nothing about the program.
#[test]
fn examples_have_a_description() {
    assert_eq!(lines_with("TrainArgs::parse()"), Vec::<String>::new());
    assert!(!lines_with("TrainArgs::parse_program(").is_empty());
}
