//! `tensorpack runs`, `plot` and `checkpoint`, on runs trained here.

use crate::{error, out, tensorpack};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tensorpack::dataflow::FromList;
use tensorpack::io::{Keep, read_tensors};
use tensorpack::prelude::*;
use tensorpack::serde_json::{self, Value};

/// Learns `y = x . w` of two numbers.
struct Line(f64);

impl ModelDesc for Line {
    fn inputs(&self) -> Vec<TensorSpec> {
        vec![TensorSpec::f32("x", [None, Some(2)])]
    }

    fn build_graph(&self, t: &TowerContext, inputs: &[Tensor]) -> Tensor {
        let cost = (Linear::new(1).apply(t, "fc", &inputs[0]) - 1.0).square().mean().named("cost");
        t.moving_summary(&[&cost]);
        cost
    }

    fn optimizer(&self, t: &TowerContext) -> Box<dyn Optimizer> {
        Sgd::new(t.hyper_param("learning_rate", self.0)).boxed()
    }
}

/// Trains the runs `a` and `b`, which differ in their seed and learning rate; `b` was restarted.
fn runs() -> (TempDir, PathBuf, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let train = |name: &str, seed: u64, rate: f64, epochs: u64| {
        let batch = |i: usize| vec![HostTensor::new([2, 2], vec![i as f32, 1.0, 0.5, -1.0]).unwrap()];
        let data = FromList::new((0..3).map(batch).collect());
        let config = TrainConfig::new(Line(rate), data).callback(ModelSaver::new()).keep(Keep::last(9));
        let config = config.logdir(root.path().join(name)).seed(seed).max_epoch(epochs).quiet();
        launch_train_with_config(config, SimpleTrainer::new()).unwrap();
    };
    train("a", 1, 0.01, 2);
    train("deep/b", 2, 0.02, 1);
    train("deep/b", 2, 0.02, 3);
    let (a, b) = (root.path().join("a"), root.path().join("deep/b"));
    (root, a, b)
}

fn run(words: &[&str], cache: &Path) -> std::process::Output {
    tensorpack(words, cache, None)
}

fn json(words: &[&str], cache: &Path) -> Value {
    let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
    serde_json::from_str(&out(&run(&words, cache))).unwrap()
}

fn last_cost(run: &Path) -> f64 {
    let stats = fs::read_to_string(run.join("stats.jsonl")).unwrap();
    serde_json::from_str::<Value>(stats.lines().last().unwrap()).unwrap()["cost"].as_f64().unwrap()
}

#[test]
fn runs_are_listed_shown_and_compared() {
    let (root, a, b) = runs();
    let cache = tempfile::tempdir().unwrap();
    let [dir, a_text, b_text] = [root.path(), &a, &b].map(|path| path.to_str().unwrap());
    let list = out(&run(&["runs", "ls", dir, "-s", "cost"], cache.path()));
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["run", "started", "restarts", "epoch", "step", "cost"]);
    assert_eq!((rows[1][0], &rows[1][2..5]), (a_text, &["0", "2", "6"][..]));
    assert_eq!((rows[2][0], &rows[2][2..5]), (b_text, &["1", "3", "9"][..]));
    let listed: f64 = rows[2][5].parse().unwrap();
    assert!((listed / last_cost(&b) - 1.0).abs() < 1e-5, "{list}");
    let listed = json(&["runs", "ls", dir], cache.path());
    assert_eq!(listed[1]["statistics"]["cost"]["last"]["value"].as_f64(), Some(last_cost(&b)));

    let shown = out(&run(&["runs", "show", b_text], cache.path()));
    for part in
        ["settings.seed: 2", "resumed_at: 3", "versions.rustc: rustc", "restarts: 1", "epoch 3, step 9"]
    {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert_eq!(json(&["runs", "show", b_text], cache.path())["starts"].as_array().map(Vec::len), Some(2));

    let compared = json(&["runs", "compare", a_text, b_text], cache.path());
    assert_eq!(compared["differences"]["settings.seed"], serde_json::json!(["1", "2"]));
    assert!(compared["differences"].get("versions.rustc").is_none(), "{compared}");
    assert_eq!(compared["statistics"]["cost"][0].as_f64(), Some(last_cost(&a)));
    let rates = &compared["statistics"]["learning_rate"];
    assert!(
        (rates[0].as_f64().unwrap() - 0.01).abs() < 1e-6 && (rates[1].as_f64().unwrap() - 0.02).abs() < 1e-6
    );
    let text = out(&run(&["runs", "compare", a_text, b_text], cache.path()));
    assert!(text.contains("settings.seed") && text.contains("learning_rate"), "{text}");

    let e = error(&run(&["runs", "show", dir], cache.path()));
    assert!(e.contains("manifest.json"), "{e}");
    let empty = cache.path().to_str().unwrap();
    assert!(error(&run(&["runs", "ls", empty], cache.path())).contains(empty));
}

#[test]
fn a_run_that_is_being_written_can_be_read() {
    let (_root, a, _) = runs();
    let cache = tempfile::tempdir().unwrap();
    let stats = a.join("stats.jsonl");
    let text = fs::read_to_string(&stats).unwrap();
    fs::write(&stats, format!("{text}{{\"epoch_num\":3,\"glo")).unwrap();
    assert_eq!(json(&["runs", "show", a.to_str().unwrap()], cache.path())["summary"]["epoch"], 2);
    // A line in the middle is named.
    fs::write(&stats, format!("{{\n{text}")).unwrap();
    let e = error(&run(&["runs", "show", a.to_str().unwrap()], cache.path()));
    assert!(e.contains("stats.jsonl:1"), "{e}");
}

#[test]
fn statistics_are_drawn() {
    let (root, a, _) = runs();
    let cache = tempfile::tempdir().unwrap();
    let file = cache.path().join("cost.svg");
    let [dir, a, svg] = [root.path(), &a, &file].map(|path| path.to_str().unwrap());
    let written = out(&run(&["plot", dir, "-s", "cost", "-o", svg], cache.path()));
    assert!(written.contains("2 curves of 5 points"), "{written}");
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("<svg") && text.contains(a) && text.matches("<polyline").count() >= 2, "{text}");
    let written = out(&run(&["plot", a, "-s", "cost", "-o", svg, "--steps", "--log"], cache.path()));
    assert!(written.contains("1 curve of 6 points"), "{written}");
    let e = error(&run(&["plot", a, "-s", "coast", "-o", svg], cache.path()));
    assert!(e.contains("\"coast\"") && e.contains("learning_rate"), "{e}");
    let e = error(&run(&["plot", a, "-s", "cost", "-o", "out.jpg"], cache.path()));
    assert!(e.contains(".svg") && e.contains(".png"), "{e}");
}

/// A folder of runs is shown without those that cannot be read; what cannot be drawn is said.
#[test]
fn odd_runs_are_named_and_do_not_hide_others() {
    let root = tempfile::tempdir().unwrap();
    let write = |name: &str, values: &[&str]| {
        let line = |(i, v): (usize, &&str)| format!("{{\"epoch_num\":{i},\"global_step\":{i},\"y\":{v}}}\n");
        fs::create_dir(root.path().join(name)).unwrap();
        let text: String = values.iter().enumerate().map(line).collect();
        fs::write(root.path().join(name).join("stats.jsonl"), text).unwrap();
    };
    write("broken", &["NaN", "1"]);
    write("empty", &[]);
    write("huge", &["1e308", "-1e308"]);
    write("nan", &["\"NaN\"", "\"inf\"", "-1"]);
    let text = |name: &str| root.path().join(name).to_str().unwrap().to_string();
    let all = run(&["runs", "ls", root.path().to_str().unwrap()], root.path());
    assert!(String::from_utf8_lossy(&all.stderr).contains("stats.jsonl:1"), "{all:?}");
    assert_eq!(out(&all).lines().count(), 4, "{all:?}");
    let draw = |name: &str, more: &[&str]| {
        let (dir, file) = (text(name), text("y.png"));
        run(&[&["plot", &dir, "-s", "y", "-o", &file], more].concat(), root.path())
    };
    assert!(error(&draw("broken", &[])).contains("stats.jsonl:1"));
    assert!(error(&draw("empty", &[])).contains("no statistics yet"));
    assert!(error(&draw("nan", &["--log"])).contains("none of its 3 values is positive and finite"));
    assert!(out(&draw("nan", &[])).contains("1 curve of 1 point to"));
    assert!(out(&draw("huge", &[])).contains("1 curve of 2 points to"));
    // Values that are not finite are shown and printed, not left out.
    assert!(out(&draw("nan", &[])).contains("2 values cannot be drawn"));
    let nan = text("nan");
    let plotted = json(&["plot", &nan, "-s", "y"], root.path());
    let values: Vec<_> =
        plotted["curves"][0]["points"].as_array().unwrap().iter().map(|p| p[1].clone()).collect();
    assert!(values.contains(&"NaN".into()) && values.len() == 3, "{plotted}");
    fs::write(root.path().join("nan/stats.jsonl"), "{\"epoch_num\":1,\"global_step\":1,\"y\":\"NaN\"}\n")
        .unwrap();
    let shown = out(&run(&["runs", "show", &nan], root.path()));
    assert!(shown.lines().any(|line| line.split_whitespace().eq(["y", "NaN"])), "{shown}");
    let shown = json(&["runs", "show", &nan], root.path());
    assert_eq!(shown["summary"]["statistics"]["y"]["last"]["value"], "NaN", "{shown}");
    let compared = json(&["runs", "compare", &nan, &text("huge")], root.path());
    assert_eq!(compared["statistics"]["y"][0], "NaN", "{compared}");
}

/// A warning on a full disk is lost; the output is not.
#[test]
#[cfg(target_os = "linux")]
fn warnings_do_not_end_a_command() {
    let root = tempfile::tempdir().unwrap();
    for (name, stats) in [("good", "{\"epoch_num\":1,\"global_step\":1,\"y\":1}\n"), ("bad", "{\n")] {
        fs::create_dir(root.path().join(name)).unwrap();
        fs::write(root.path().join(name).join("stats.jsonl"), stats).unwrap();
    }
    let command = std::process::Command::new(env!("CARGO_BIN_EXE_tensorpack"))
        .args(["runs", "ls", root.path().to_str().unwrap()])
        .stderr(File::options().write(true).open("/dev/full").unwrap())
        .output()
        .unwrap();
    assert!(command.status.success(), "{command:?}");
    assert!(String::from_utf8_lossy(&command.stdout).contains("good"), "{command:?}");
}

/// The pixels of a picture, and its width.
fn pixels(file: &Path) -> (Vec<[u8; 3]>, usize) {
    let mut reader = png::Decoder::new(BufReader::new(File::open(file).unwrap())).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    assert_eq!((info.width, info.height, info.color_type), (1800, 1080, png::ColorType::Rgb));
    (bytes.as_chunks::<3>().0.to_vec(), info.width as usize)
}

/// The shapes of a PNG are those of an SVG: axes, labels, and curves in their colors where they belong.
#[test]
fn statistics_are_drawn_as_pixels() {
    let root = tempfile::tempdir().unwrap();
    let (dir, picture) = (root.path().join("run"), root.path().join("out.png"));
    fs::create_dir(&dir).unwrap();
    let draw = |values: &[f64]| {
        let line = |(i, v): (usize, &f64)| format!("{{\"epoch_num\":{i},\"global_step\":{i},\"y\":{v:?}}}\n");
        fs::write(dir.join("stats.jsonl"), values.iter().enumerate().map(line).collect::<String>()).unwrap();
        let words = ["plot", dir.to_str().unwrap(), "-s", "y", "-o", picture.to_str().unwrap()];
        out(&run(&words, root.path()));
        pixels(&picture)
    };
    // The first color of plotters' palette.
    let curve = |(all, width): &(Vec<[u8; 3]>, usize)| -> Vec<(usize, usize)> {
        let of_curve = all.iter().enumerate().filter(|(_, pixel)| **pixel == [230, 25, 75]);
        of_curve.map(|(i, _)| (i % width, i / width)).collect()
    };
    let rising = draw(&[0.0, 1.0, 2.0, 3.0]);
    let points = curve(&rising);
    assert!(points.len() > 3000, "{}", points.len());
    let (left, right) = (points.iter().min().unwrap(), points.iter().max().unwrap());
    assert!(left.0 < 250 && left.1 > 900 && right.0 > 1650 && right.1 < 150, "{left:?} {right:?}");
    // Labels of both axes are left of and below the curve.
    let ink = |x: std::ops::Range<usize>, y: std::ops::Range<usize>| {
        let dark = |(i, pixel): (usize, &[u8; 3])| {
            x.contains(&(i % rising.1)) && y.contains(&(i / rising.1)) && pixel[0] < 100
        };
        rising.0.iter().enumerate().filter(|pixel| dark((pixel.0, pixel.1))).count()
    };
    assert!(ink(0..150, 100..1000) > 200 && ink(200..1700, 990..1080) > 200 && ink(600..1200, 0..70) > 50);
    // One value is a dot in the middle.
    let dot = curve(&draw(&[7.0]));
    assert!(
        dot.len() > 30 && dot.iter().all(|(x, y)| (900..1060).contains(x) && (450..600).contains(y)),
        "{dot:?}"
    );
}

#[test]
fn checkpoints_are_listed_shown_extracted_and_compared() {
    let (_root, a, _) = runs();
    let cache = tempfile::tempdir().unwrap();
    let run_dir = a.to_str().unwrap();
    let listed = json(&["checkpoint", "ls", run_dir], cache.path());
    let steps: Vec<_> = listed.as_array().unwrap().iter().map(|c| c["step"].clone()).collect();
    assert_eq!(steps, [3, 6]);
    assert!(out(&run(&["checkpoint", "ls", run_dir], cache.path())).contains("step-0000000006"));
    let folders = ["step-0000000003", "step-0000000006"].map(|name| a.join("checkpoints").join(name));
    let [first, second] = [&folders[0], &folders[1]].map(|path| path.to_str().unwrap());
    let weights = |path: &Path| {
        let all = read_tensors(path, None).unwrap();
        all.into_iter().find(|(name, _)| name == "fc/W").unwrap().1.to_f64_vec()
    };
    let [w1, w2] = [&folders[0], &folders[1]].map(|folder| weights(&folder.join("tensors.safetensors")));
    // The newest checkpoint of a run, and a tag's file.
    let dotted = a.join("checkpoints/min-val.error");
    fs::copy(a.join("checkpoints/latest"), &dotted).unwrap();
    for path in [run_dir, a.join("checkpoints/latest").to_str().unwrap(), dotted.to_str().unwrap()] {
        let shown = json(&["checkpoint", "show", path], cache.path());
        let w = shown.as_array().unwrap().iter().find(|t| t["name"] == "fc/W").unwrap();
        assert_eq!(w["sizes"], serde_json::json!([2, 1]));
        assert!((w["mean"].as_f64().unwrap() - (w2[0] + w2[1]) / 2.0).abs() < 1e-9, "{w}");
    }
    assert!(out(&run(&["checkpoint", "show", first], cache.path())).contains("fc/W"));
    let file = cache.path().join("weights.npz");
    let text =
        out(&run(&["checkpoint", "dump", first, file.to_str().unwrap(), "--only", "fc/.*"], cache.path()));
    assert!(text.contains("wrote 2 tensors"), "{text}");
    assert_eq!(weights(&file), w1);
    assert!(
        error(&run(&["checkpoint", "dump", first, "x.npz", "--only", "conv.*"], cache.path()))
            .contains("conv")
    );
    let same = run(&["checkpoint", "diff", second, run_dir], cache.path());
    assert!(same.status.success(), "{same:?}");
    let different = run(&["checkpoint", "diff", first, second], cache.path());
    assert_eq!(different.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&different.stdout).contains("fc/W"));
    let mean = cache.path().join("mean.safetensors");
    out(&run(&["checkpoint", "average", first, second, "-o", mean.to_str().unwrap()], cache.path()));
    let expected: Vec<f64> = w1.iter().zip(&w2).map(|(a, b)| f64::from((0.5 * (a + b)) as f32)).collect();
    assert_eq!(weights(&mean), expected);
    let e =
        error(&run(&["checkpoint", "average", first, file.to_str().unwrap(), "-o", "x.npz"], cache.path()));
    assert!(e.contains("weights.npz"), "{e}");
}

#[test]
fn damaged_checkpoints_are_found() {
    let (_root, a, b) = runs();
    let cache = tempfile::tempdir().unwrap();
    let [a_text, b_text] = [&a, &b].map(|path| path.to_str().unwrap());
    let intact = out(&run(&["checkpoint", "verify", a_text, b_text], cache.path()));
    assert_eq!(intact.matches("intact").count(), 5, "{intact}");
    let e = error(&run(&["checkpoint", "ls", "no-such-run"], cache.path()));
    assert!(e.contains("no-such-run"), "{e}");
    let missing = a.join("checkpoints/step-0000000099");
    assert!(
        error(&run(&["checkpoint", "verify", missing.to_str().unwrap()], cache.path()))
            .contains("step-0000000099")
    );
    let tensors = a.join("checkpoints/step-0000000003/tensors.safetensors");
    let mut bytes = fs::read(&tensors).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&tensors, bytes).unwrap();
    fs::write(a.join("checkpoints/step-0000000006/manifest.json"), "{").unwrap();
    let found = run(&["checkpoint", "verify", a_text], cache.path());
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    let text = String::from_utf8_lossy(&found.stdout);
    assert_eq!(text.matches("damaged").count(), 2, "{text}");
    assert!(text.contains("tensors.safetensors") && text.contains("manifest.json"), "{text}");
}
