//! A run of version 0.1 can be resumed. The checkpoint is written here, byte by byte, in the format
//! of that version.

use crate::models::{Line, line};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tensorpack::dataflow::{DataFlow, Seed, State};
use tensorpack::prelude::*;

const RATE: f64 = 0.05;
const WEIGHTS: [f32; 3] = [0.5, -0.25, 0.125];
const BIAS: f32 = 0.0625;
const STATS: &str = "{\"epoch_num\":1,\"global_step\":3,\"cost\":1.5}\n";

/// Writes a checkpoint after epoch 1, step 3 of [`Line`].
fn write_run(dir: &Path) {
    let header = json!({
        "fc/W": {"data_offsets": [0, 12], "dtype": "F32", "shape": [3, 1]},
        "fc/b": {"data_offsets": [12, 16], "dtype": "F32", "shape": [1]},
    });
    let header = header.to_string().into_bytes();
    let mut tensors = (header.len() as u64).to_le_bytes().to_vec();
    tensors.extend(header);
    WEIGHTS.iter().chain([&BIAS]).for_each(|v| tensors.extend(v.to_le_bytes()));
    let state = json!({
        "callbacks": {"MovingAverageSummary": {"cost": [1.5f64.to_bits(), 0.5f64.to_bits()]}},
        "input": [0, 3],
        "monitors": {
            "history": {"cost": [[3, 1.5]]},
            "monitors": {
                "EventWriter": {"file": "events.out.tfevents.1794834527.host", "length": 0},
                "JsonWriter": {"pending": {}, "stats": STATS.len(), "timing": 0},
                "ScalarPrinter": null,
            },
            "put": false,
        },
        "position": {"begun": true, "ended": true, "epoch_num": 1, "global_step": 3, "steps": 3},
        "run_index": 3,
        "settings": {"device": "cpu:0", "max_epoch": 1, "seed": 0, "steps_per_epoch": 3, "towers": 1},
        "skipped_in_a_row": 0,
        "skipped_steps": 0,
        "stop": null,
        "training_only_variables": [],
    });
    let state = format!("{state}\n").into_bytes();
    let digest = |bytes: &[u8]| json!({"bytes": bytes.len(), "crc32c": crc32c::crc32c(bytes)});
    let manifest = json!({
        "files": {"state.json": digest(&state), "tensors.safetensors": digest(&tensors)},
        "format": 1,
        "global_step": 3,
        "saved_at": 1794834529,
        "sequence": 0,
    });
    let crc32c = crc32c::crc32c(manifest.to_string().as_bytes());
    let manifest: Value = json!({"crc32c": crc32c, "manifest": manifest});
    let folder = dir.join("checkpoints/step-0000000003");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("tensors.safetensors"), tensors).unwrap();
    fs::write(folder.join("state.json"), state).unwrap();
    fs::write(folder.join("manifest.json"), format!("{manifest:#}\n")).unwrap();
    fs::write(dir.join("checkpoints/latest"), "step-0000000003").unwrap();
    fs::write(dir.join("stats.jsonl"), STATS).unwrap();
}

/// Returns weights and bias after gradient descent on batches `from..to` of the data.
fn descend(from: u64, to: u64) -> Vec<f64> {
    let mut w: Vec<f64> = WEIGHTS.iter().chain([&BIAS]).map(|v| f64::from(*v)).collect();
    let mut reader = line(10).open(Seed::new(0), &State::at(0, from)).unwrap();
    for _ in from..to {
        let batch: Vec<Vec<f64>> = reader.read().unwrap().unwrap().iter().map(|t| t.to_f64_vec()).collect();
        let mut gradient = [0.0; 4];
        for (x, y) in batch[0].chunks(3).zip(&batch[1]) {
            let x = [x[0], x[1], x[2], 1.0];
            let off = x.iter().zip(&w).map(|(x, w)| x * w).sum::<f64>() - y;
            x.iter().zip(&mut gradient).for_each(|(x, g)| *g += 2.0 * off * x / 4.0);
        }
        w.iter_mut().zip(gradient).for_each(|(w, g)| *w -= RATE * g);
    }
    w
}

#[test]
fn a_checkpoint_of_version_0_1_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    write_run(dir.path());
    let config = TrainConfig::new(Line, line(10)).steps_per_epoch(3).max_epoch(2).logdir(dir.path());
    let trained = launch_train_with_config(config.callback(ModelSaver::new()), SimpleTrainer::new()).unwrap();

    let read = |name: &str| trained.session.read(name).unwrap().to_f64_vec();
    assert!(dir.path().join("checkpoints/step-0000000006").is_dir());
    for (found, right) in [read("fc/W"), read("fc/b")].concat().iter().zip(descend(3, 6)) {
        assert!((found - right).abs() < 1e-5, "{found}, not {right}");
    }
    // Statistics continue.
    let history = trained.monitors.history("cost");
    assert!(history.len() == 2 && history[0] == (3, 1.5) && history[1].0 == 6, "{history:?}");
    let stats = fs::read_to_string(dir.path().join("stats.jsonl")).unwrap();
    assert!(stats.starts_with(STATS) && stats.lines().count() == 2, "{stats}");
}
