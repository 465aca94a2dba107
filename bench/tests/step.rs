//! Tests `bench step`: devices without plans, and options that have no effect.

use std::process::{Command, Output};

fn step(options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bench"));
    command.args(["step", "--model", "dqn", "--batch", "2", "--steps", "1"]).args(options);
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn devices_that_plan_no_memory_are_measured() {
    for device in ["null", "reference"] {
        let output = step(&["--devices", device]);
        let line = text(&output.stdout);
        assert!(output.status.success() && line.contains("peak") && !line.contains("planned"), "{output:?}");
        let json: serde_json::Value =
            serde_json::from_slice(&step(&["--devices", device, "--json"]).stdout).unwrap();
        assert!(json["planned_mb"].is_null() && json["peak_rss_mb"].is_number(), "{json}");
    }
    assert!(text(&step(&[]).stdout).contains("planned"));
}

/// A timeline is one of the trainer's loop, which is not measured on CPUs, nor for some models.
#[test]
fn a_timeline_that_would_not_be_written_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let timeline = dir.path().to_str().unwrap();
    for options in [&["--devices", "cpu:0"][..], &["--devices", "xla:cpu", "--model", "ptb"]] {
        let output = step(&[&["--timeline", timeline], options].concat());
        assert!(!output.status.success(), "{output:?}");
        assert!(text(&output.stderr).contains("--timeline"), "{output:?}");
    }
}
