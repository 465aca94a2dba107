//! The record of a run: `manifest.json`, `stats.csv`.

use super::{Line, line, lines};
use std::path::Path;
use tensorpack::io::{SaverRestore, dump_model_variables};
use tensorpack::monitor::{CsvWriter, JsonWriter, Monitor};
use tensorpack::prelude::*;
use tensorpack::serde_json::{self, Value};

fn train(dir: &Path, epochs: u64, seed: u64, fresh: bool) {
    let config = TrainConfig::new(Line, line(3)).callback(ModelSaver::new()).max_epoch(epochs).seed(seed);
    let config = if fresh { config.fresh() } else { config };
    let monitors: Vec<Box<dyn Monitor>> = vec![Box::new(JsonWriter::new()), Box::new(CsvWriter::new())];
    launch_train_with_config(config.monitors(monitors).logdir(dir), SimpleTrainer::new()).unwrap();
}

fn starts(dir: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(dir.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(manifest["version"], 1);
    manifest["starts"].as_array().unwrap().clone()
}

#[test]
fn the_manifest_says_what_ran_and_every_restart() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), 1, 7, false);
    let first = starts(dir.path());
    assert_eq!(first.len(), 1);
    let start = &first[0];
    let program = std::env::args().next().unwrap();
    assert_eq!((start["program"].as_str(), &start["resumed_at"]), (Some(program.as_str()), &Value::Null));
    assert_eq!((&start["settings"]["seed"], &start["settings"]["device"]), (&7.into(), &"cpu:0".into()));
    assert!(start["versions"]["rustc"].as_str().unwrap().starts_with("rustc 1."), "{start}");
    assert_eq!(start["versions"]["tensorpack"], env!("CARGO_PKG_VERSION"));
    assert_eq!(start["host"]["process"], std::process::id());
    assert!(start["data"].is_object(), "{start}");
    assert!(start["time"].as_str().unwrap().ends_with('Z') && start["arguments"].is_array(), "{start}");
    if Path::new(env!("CARGO_MANIFEST_DIR")).join(".git").exists() && !start["git"].is_null() {
        assert_eq!(start["git"]["commit"].as_str().map(str::len), Some(40), "{start}");
        assert!(start["git"]["dirty"].is_boolean(), "{start}");
    }
    train(dir.path(), 2, 7, false);
    let both = starts(dir.path());
    assert_eq!((both.len(), &both[0], &both[1]["resumed_at"]), (2, &first[0], &3.into()));
    // A run that is complete starts nothing, and a new one has its own manifest.
    train(dir.path(), 2, 7, false);
    assert_eq!(starts(dir.path()).len(), 2);
    train(dir.path(), 1, 8, true);
    assert_eq!(starts(dir.path()).len(), 1);
    assert!(dir.path().join("manifest.json.1").exists());
}

#[test]
fn a_damaged_manifest_does_not_stop_the_run() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), 1, 0, false);
    std::fs::write(dir.path().join("manifest.json"), "{").unwrap();
    train(dir.path(), 2, 0, false);
    assert_eq!(starts(dir.path()).len(), 1);
}

#[test]
fn comma_separated_values_are_those_of_the_json_lines() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), 3, 0, false);
    let text = std::fs::read_to_string(dir.path().join("stats.csv")).unwrap();
    let mut rows = text.lines();
    assert_eq!(rows.next(), Some("epoch_num,global_step,name,value"));
    let mut expected = Vec::new();
    for line in lines(dir.path(), "stats.jsonl") {
        let line = line.as_object().unwrap();
        for (name, value) in
            line.iter().filter(|(name, _)| !["epoch_num", "global_step"].contains(&name.as_str()))
        {
            expected.push((
                line["epoch_num"].to_string(),
                line["global_step"].to_string(),
                name.clone(),
                value.as_f64(),
            ));
        }
    }
    let row = |row: &str| {
        let [epoch, step, name, value] = row.split(',').collect::<Vec<_>>()[..] else { panic!("{row}") };
        (epoch.to_string(), step.to_string(), name.to_string(), value.parse().ok())
    };
    assert_eq!(rows.map(row).collect::<Vec<_>>(), expected);
    assert_eq!(expected.len(), 6);
    // A resumed run writes the same bytes.
    let other = tempfile::tempdir().unwrap();
    train(other.path(), 1, 0, false);
    train(other.path(), 3, 0, false);
    assert_eq!(std::fs::read_to_string(other.path().join("stats.csv")).unwrap(), text);
}

#[test]
fn the_directory_of_a_run_is_not_taken_for_a_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    train(dir.path(), 1, 0, false);
    let config = TrainConfig::new(Line, line(3)).no_logdir().max_epoch(0).seed(5);
    let loaded = config.session_init(SaverRestore::new(dir.path()));
    let loaded = launch_train_with_config(loaded, SimpleTrainer::new()).unwrap();
    // A file beside the manifest is no part of a checkpoint either.
    let file = dir.path().join("weights.safetensors");
    dump_model_variables(&loaded.session, &file).unwrap();
    let config = TrainConfig::new(Line, line(3)).no_logdir().max_epoch(0).seed(6);
    let again = launch_train_with_config(config.session_init(SaverRestore::new(&file)), SimpleTrainer::new());
    assert_eq!(again.unwrap().session.read("fc/W").unwrap(), loaded.session.read("fc/W").unwrap());
}
