//! Checks that the page of promises names tests and examples that exist, and that rustdoc finds the
//! old names.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// Returns the names in backticks in the last column of a table row.
fn named(row: &str) -> Vec<&str> {
    let shown = row.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap_or("");
    shown.split('`').skip(1).step_by(2).collect()
}

/// Returns an error message if the test with this name does not exist.
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
fn every_guarantee_names_a_test() {
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

/// The names of Tensorpack's training interface that rustdoc's search finds, as items or as aliases.
const OLD_NAMES: &[&str] = &[
    // Trainers.
    "Trainer",
    "TowerTrainer",
    "SingleCostTrainer",
    "SimpleTrainer",
    "QueueInputTrainer",
    "NoOpTrainer",
    "SyncMultiGPUTrainer",
    "SyncMultiGPUTrainerParameterServer",
    "SyncMultiGPUTrainerReplicated",
    "AsyncMultiGPUTrainer",
    "scale_gradient",
    "setup_graph",
    "train",
    "train_with_defaults",
    "launch_train_with_config",
    "apply_default_prefetch",
    "register_callback",
    "tower_func",
    "towers",
    "input_signature",
    "get_predictor",
    "train_op",
    "run_step",
    "sess",
    "hooked_sess",
    // Configurations.
    "TrainConfig",
    "AutoResumeTrainConfig",
    "DEFAULT_CALLBACKS",
    "DEFAULT_MONITORS",
    "steps_per_epoch",
    "starting_epoch",
    "max_epoch",
    "session_init",
    "extra_callbacks",
    // Models and towers.
    "ModelDesc",
    "ModelDescBase",
    "InputDesc",
    "TensorSpec",
    "get_input_signature",
    "build_graph",
    "get_optimizer",
    "TowerContext",
    "BaseTowerContext",
    "TrainTowerContext",
    "PredictTowerContext",
    "get_current_tower_context",
    "ns_name",
    "vs_name",
    "is_training",
    "is_main_training_tower",
    "has_own_variables",
    "TowerFunc",
    "TowerFuncWrapper",
    "TowerTensorHandle",
    "TowerTensorHandles",
    "get_tensor",
    "allreduce_grads",
];

/// Returns the text of all Rust files under `dir`.
fn sources(dir: &Path, text: &mut String) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, text),
            false => text.push_str(&fs::read_to_string(path).unwrap()),
        }
    }
}

#[test]
fn rustdoc_finds_the_old_names() {
    let mut text = String::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut text);
    // Words of the source, with what comes before each: `pub struct Trainer` declares `Trainer`.
    let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let declared: HashSet<&str> = words
        .windows(2)
        .filter(|pair| ["fn", "struct", "trait", "type"].contains(&pair[0]))
        .map(|pair| pair[1])
        .collect();
    let found = |name: &str| declared.contains(name) || text.contains(&format!("doc(alias = \"{name}\")"));
    let missing: Vec<&str> = OLD_NAMES.iter().copied().filter(|name| !found(name)).collect();
    assert!(missing.is_empty(), "neither an item nor an alias: {missing:?}");
}
