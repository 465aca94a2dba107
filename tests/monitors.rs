//! The files of monitors: JSON lines that are identical after a resume, and event files that
//! TensorBoard reads.

use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;
use tensorpack::monitor::{EventWriter, Histogram, JsonWriter, Moment, Monitors, ScalarPrinter};
use tensorpack::prelude::*;
use tensorpack_testing::{Requirement, skip};

fn at(epoch_num: u64, global_step: u64) -> Moment {
    Moment { epoch_num, global_step }
}

fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name)).unwrap()
}

fn json_monitors(dir: &Path, resumed: Option<&Value>, at: Moment) -> Monitors {
    let mut monitors = Monitors::new();
    monitors.add(JsonWriter::new());
    monitors.add(ScalarPrinter::new());
    monitors.start(Some(dir), resumed, at);
    monitors
}

const STEPS_PER_EPOCH: u64 = 5;

/// Runs the steps `from..to` of a run that puts values in some of them.
fn run(monitors: &mut Monitors, from: u64, to: u64) {
    for step in from + 1..=to {
        monitors.set_moment(at(1 + (step - 1) / STEPS_PER_EPOCH, step));
        if step % 2 == 0 {
            monitors.put_scalar("loss", 1.0 / step as f64);
        }
        if step % STEPS_PER_EPOCH == 0 {
            monitors.put_scalar("accuracy", 0.1 * step as f64);
            monitors.put_scalar("a \"quoted\" name", if step == 10 { f64::NAN } else { f64::INFINITY });
            monitors.put_timing("throughput", 1e3 * step as f64);
            monitors.end_epoch();
        } else {
            monitors.end_step();
        }
    }
}

#[test]
fn one_object_for_each_step_or_epoch_that_had_scalars() {
    let dir = tempfile::tempdir().unwrap();
    run(&mut json_monitors(dir.path(), None, at(0, 0)), 0, 10);
    let expected = concat!(
        r#"{"epoch_num":1,"global_step":2,"loss":0.5}"#,
        "\n",
        r#"{"epoch_num":1,"global_step":4,"loss":0.25}"#,
        "\n",
        r#"{"epoch_num":1,"global_step":5,"a \"quoted\" name":"inf","accuracy":0.5}"#,
        "\n",
        r#"{"epoch_num":2,"global_step":6,"loss":0.16666666666666666}"#,
        "\n",
        r#"{"epoch_num":2,"global_step":8,"loss":0.125}"#,
        "\n",
        r#"{"epoch_num":2,"global_step":10,"a \"quoted\" name":"NaN","accuracy":1.0,"loss":0.1}"#,
        "\n",
    );
    assert_eq!(read(dir.path(), "stats.jsonl"), expected);
    let timing = "{\"epoch_num\":1,\"global_step\":5,\"throughput\":5000.0}\n\
                  {\"epoch_num\":2,\"global_step\":10,\"throughput\":10000.0}\n";
    assert_eq!(read(dir.path(), "timing.jsonl"), timing);
}

#[test]
fn an_interrupted_run_writes_the_same_bytes() {
    let whole = tempfile::tempdir().unwrap();
    run(&mut json_monitors(whole.path(), None, at(0, 0)), 0, 23);
    for saved_at in 0..=23 {
        let dir = tempfile::tempdir().unwrap();
        let mut monitors = json_monitors(dir.path(), None, at(0, 0));
        run(&mut monitors, 0, saved_at);
        monitors.sync();
        let state: Value = serde_json::from_str(&monitors.state().to_string()).unwrap();
        // Records after the checkpoint are written again.
        monitors.put_scalar("stray", 1.0);
        run(&mut monitors, saved_at, (saved_at + 7).min(23));
        drop(monitors);
        let mut monitors = json_monitors(dir.path(), Some(&state), at(0, saved_at));
        run(&mut monitors, saved_at, 23);
        for name in ["stats.jsonl", "timing.jsonl"] {
            assert_eq!(read(dir.path(), name), read(whole.path(), name), "{name}, saved at {saved_at}");
        }
        // The third one is `steps.jsonl`, which has no lines here.
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}

#[test]
fn values_put_before_a_checkpoint_are_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut monitors = json_monitors(dir.path(), None, at(0, 0));
    monitors.set_moment(at(1, 5));
    monitors.put_scalar("early", f64::NAN);
    monitors.put_timing("speed", 1.0);
    let state = monitors.state();
    let mut monitors = json_monitors(dir.path(), Some(&state), at(1, 5));
    monitors.put_scalar("late", 2.0);
    monitors.end_epoch();
    assert_eq!(
        read(dir.path(), "stats.jsonl"),
        "{\"epoch_num\":1,\"global_step\":5,\"early\":\"NaN\",\"late\":2.0}\n"
    );
    assert_eq!(read(dir.path(), "timing.jsonl"), "");
}

#[test]
fn files_of_an_older_run_are_moved_aside() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        run(&mut json_monitors(dir.path(), None, at(0, 0)), 0, 2);
    }
    for name in ["stats.jsonl", "stats.jsonl.1", "stats.jsonl.2"] {
        assert_eq!(read(dir.path(), name).lines().count(), 1, "{name}");
    }
}

#[test]
fn a_truncated_file_continues_after_its_last_whole_line() {
    let dir = tempfile::tempdir().unwrap();
    let mut monitors = json_monitors(dir.path(), None, at(0, 0));
    run(&mut monitors, 0, 5);
    let state = monitors.state();
    let text = read(dir.path(), "stats.jsonl");
    fs::write(dir.path().join("stats.jsonl"), &text[..text.len() - 3]).unwrap();
    let mut monitors = json_monitors(dir.path(), Some(&state), at(1, 5));
    run(&mut monitors, 5, 6);
    let lines: Vec<Value> =
        read(dir.path(), "stats.jsonl").lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.iter().map(|l| l["global_step"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 4, 6]);
}

#[test]
fn training_continues_without_a_directory() {
    let mut monitors = Monitors::new();
    monitors.add(JsonWriter::new());
    monitors.add(EventWriter::new());
    monitors.start(None, None, at(0, 0));
    run(&mut monitors, 0, 10);
    assert_eq!(monitors.latest("accuracy"), Some(1.0));
}

fn events(dir: &Path, resumed: Option<&Value>, at: Moment) -> Monitors {
    let mut monitors = Monitors::new();
    monitors.add(EventWriter::new());
    monitors.start(Some(dir), resumed, at);
    monitors
}

fn event_files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_start_creates_an_event_file_that_sorts_last() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        drop(events(dir.path(), None, at(0, 0)));
        let new: Vec<String> = event_files(dir.path()).into_iter().filter(|f| !seen.contains(f)).collect();
        assert_eq!(new.len(), 1);
        assert!(seen.iter().all(|old| old < &new[0]), "{new:?} after {seen:?}");
        seen.extend(new);
    }
    assert!(seen[0].starts_with("events.out.tfevents."));
}

/// Reads a directory with TensorBoard's own reader. Skips the test and returns `None` unless
/// `TENSORPACK_TENSORBOARD` names a Python that has TensorBoard.
fn read_by_tensorboard(dir: &TempDir) -> Option<Value> {
    let Some(python) = std::env::var_os("TENSORPACK_TENSORBOARD") else {
        skip(Requirement::Tool, "TENSORPACK_TENSORBOARD names no Python with TensorBoard");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tensorboard/read_events.py");
    let output = std::process::Command::new(python).arg(script).arg(dir.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

fn small_graph() -> tensorpack::graph::Frozen {
    let graph = Graph::new();
    let t = TowerContext::training(&graph);
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
    let cost = Linear::new(2).apply(&t, "fc0", &x).square().mean().named("cost");
    minimize(&cost, &Sgd::new(0.1)).unwrap();
    graph.freeze().unwrap()
}

#[test]
fn tensorboard_reads_the_values_that_were_put() {
    let dir = tempfile::tempdir().unwrap();
    let graph = small_graph();
    let mut monitors = events(dir.path(), None, at(0, 0));
    monitors.put_graph(&graph);
    let weights = HostTensor::new([6], vec![-2.0f32, -0.5, 0.0, 0.5, 0.5, 3.0]).unwrap();
    let pictures = HostTensor::new([2, 1, 2, 3], (0..12).map(|i| 20 * i as u8).collect()).unwrap();
    for step in 1..=30 {
        monitors.set_moment(at(1, step));
        monitors.put_scalar("cost", 0.5 * step as f64);
        if step == 20 {
            monitors.put_timing("queue/size", 50.0);
            monitors.put_histogram("fc0/W", &weights);
            monitors.put_image("sample", &pictures).unwrap();
        }
    }
    monitors.end_epoch();
    monitors.sync();
    // The run stops at step 30, resumes from a checkpoint at 20, and discards the later records.
    let state = monitors.state();
    drop(monitors);
    let mut monitors = events(dir.path(), Some(&state), at(1, 20));
    for step in 21..=25 {
        monitors.set_moment(at(2, step));
        monitors.put_scalar("cost", 2.0 * step as f64);
    }
    monitors.finish();

    let Some(seen) = read_by_tensorboard(&dir) else { return };
    let cost: Vec<Value> =
        (1..=25).map(|s| json!([s, if s <= 20 { 0.5 } else { 2.0 } * f64::from(s)])).collect();
    assert_eq!(seen["scalars"], json!({"cost": cost, "queue/size": [[20, 50.0]]}));
    let picture = |pixels: [u8; 6]| json!([[20, {"width": 2, "height": 1, "channels": 3, "pixels": pixels}]]);
    let both = json!({
        "sample/0": picture([0, 20, 40, 60, 80, 100]),
        "sample/1": picture([120, 140, 160, 180, 200, 220]),
    });
    assert_eq!(seen["images"], both);
    let h = Histogram::new(&weights);
    let expected = json!({"min": -2.0, "max": 3.0, "num": 6.0, "sum": 1.5, "buckets": h.buckets});
    assert_eq!(seen["histograms"], json!({"fc0/W": [[20, expected]]}));
    let nodes = seen["graph"].as_array().unwrap();
    assert_eq!(nodes.len(), graph.nodes().len());
    for (seen, node) in nodes.iter().zip(graph.nodes()) {
        assert_eq!((&seen[0], &seen[1]), (&json!(node.name), &json!(node.kind.name())));
        assert_eq!(seen[2].as_array().unwrap().len(), node.inputs.len() + node.runs.len());
    }
    assert_eq!(seen["files"], 2);
}

/// Runs the steps `from..to` of a run with two steps per epoch that puts a scalar after each epoch.
fn run_events(monitors: &mut Monitors, from: u64, to: u64) {
    for step in from + 1..=to {
        monitors.set_moment(at(step.div_ceil(2), step));
        monitors.put_scalar("step", step as f64);
        if step % 2 == 0 {
            monitors.put_scalar("epoch", step as f64);
            monitors.end_epoch();
        } else {
            monitors.end_step();
        }
    }
}

#[test]
fn records_after_a_checkpoint_are_discarded_on_resume() {
    let dir = tempfile::tempdir().unwrap();
    let mut monitors = events(dir.path(), None, at(0, 0));
    run_events(&mut monitors, 0, 3);
    monitors.set_moment(at(2, 4));
    monitors.put_scalar("step", 4.0);
    // A checkpoint with the end of the epoch still to come.
    monitors.sync();
    let state = monitors.state();
    let length = fs::metadata(dir.path().join(&event_files(dir.path())[0])).unwrap().len();
    monitors.put_scalar("epoch", 4.0);
    run_events(&mut monitors, 4, 9);
    drop(monitors);
    for _ in 0..2 {
        // Twice: the first time it stops before there is another checkpoint.
        let mut monitors = events(dir.path(), Some(&state), at(2, 4));
        monitors.set_moment(at(2, 4));
        monitors.put_scalar("epoch", 4.0);
        monitors.end_epoch();
        run_events(&mut monitors, 4, 6);
        let files = event_files(dir.path());
        assert_eq!(files.len(), 2);
        assert_eq!(fs::metadata(dir.path().join(&files[0])).unwrap().len(), length);
    }
    let Some(seen) = read_by_tensorboard(&dir) else { return };
    let all = |steps: &[u64]| steps.iter().map(|&s| json!([s, s as f64])).collect::<Vec<_>>();
    assert_eq!(seen["scalars"], json!({"step": all(&[1, 2, 3, 4, 5, 6]), "epoch": all(&[2, 4, 6])}));
}

#[test]
fn tensorboard_discards_an_older_run() {
    let dir = tempfile::tempdir().unwrap();
    for value in [1.0, 2.0] {
        let mut monitors = events(dir.path(), None, at(0, 0));
        monitors.set_moment(at(1, 3));
        monitors.put_scalar("x", value);
        monitors.finish();
    }
    let Some(seen) = read_by_tensorboard(&dir) else { return };
    assert_eq!(seen["scalars"], json!({"x": [[3, 2.0]]}));
}
