//! Rustdoc's search finds the names of the original training interface, as items or as aliases. The
//! aliases exist in source text only, so this test reads it.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

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
    "add_moving_summary",
    "add_activation_summary",
    "argscope",
    "LinearWrap",
    "regularize_cost_from_collection",
    "get_num_gpu",
    // Helpers.
    "StatCounter",
    "Timer",
    "timed_operation",
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
