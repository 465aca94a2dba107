//! Tests `bench/reproduce`, which runs programs for hours. Here the programs are scripts.
#![cfg(unix)]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Two runs of different programs, in the order in which they start.
const RUNS: [&str; 2] = ["wgan_gp", "ptb_large"];

/// Writes programs that add to the file `beats` ten times a second, for at most 20 seconds.
fn write_programs(dir: &Path) {
    for name in ["gan_wgan_gp", "ptb_lstm"] {
        let beats = dir.join("beats");
        let script = format!(
            "#!/bin/sh\ni=0\nwhile [ $i -lt 200 ]; do echo >> {}; sleep 0.1; i=$((i + 1)); done\n",
            beats.display()
        );
        fs::write(dir.join(name), script).unwrap();
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Starts the runs with the programs in `dir`; `None` on a machine without Python 3.
fn reproduce(dir: &Path, out: &Path, stdout: Stdio) -> Option<Output> {
    let mut command = Command::new("python3");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("reproduce")).args(RUNS);
    command.args(["--device", "cpu:0", "--examples"]).arg(dir).arg("--out").arg(out).stdout(stdout);
    match command.stderr(Stdio::piped()).spawn() {
        Ok(child) => Some(child.wait_with_output().unwrap()),
        Err(_) => {
            eprintln!("skipped: python3 is not installed");
            None
        }
    }
}

/// Asserts that the command failed with one line about `cause`, and that no run goes on.
fn assert_stopped(dir: &Path, output: &Output, cause: &str) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.lines().count() == 1 && message.contains(cause), "{message}");
    let beats = || fs::metadata(dir.join("beats")).map_or(0, |file| file.len());
    let before = beats();
    sleep(Duration::from_millis(600));
    assert_eq!(beats(), before, "a run goes on");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_standard_output_stops_the_runs() {
    let dir = tempfile::tempdir().unwrap();
    write_programs(dir.path());
    let full = File::options().write(true).open("/dev/full").unwrap();
    let Some(output) = reproduce(dir.path(), &dir.path().join("out"), full.into()) else { return };
    assert_stopped(dir.path(), &output, "standard output");
}

#[test]
fn a_run_whose_output_cannot_be_written_stops_the_others() {
    let dir = tempfile::tempdir().unwrap();
    write_programs(dir.path());
    fs::create_dir_all(dir.path().join("out/ptb_large.out")).unwrap();
    let Some(output) = reproduce(dir.path(), &dir.path().join("out"), Stdio::null()) else { return };
    assert_stopped(dir.path(), &output, "ptb_large.out");
}

#[test]
fn a_directory_that_cannot_be_created_is_a_mistake_in_the_command() {
    let dir = tempfile::tempdir().unwrap();
    write_programs(dir.path());
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for out in [file.clone(), file.join("out")] {
        let Some(output) = reproduce(dir.path(), &out, Stdio::null()) else { return };
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("--out") && !message.contains("Traceback"), "{message}");
    }
}
