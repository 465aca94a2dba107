//! Tests `bench/compare --old`, which compares two builds of `bench`. Here the builds are scripts that
//! print given times.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Writes a script that behaves like `bench step --json`. Its n-th run reports the n-th of these
/// times and appends its name to the file `order`.
fn fake_bench(dir: &Path, name: &str, ms: &[f64]) -> PathBuf {
    let times: Vec<String> = ms.iter().map(f64::to_string).collect();
    let (path, dir) = (dir.join(name), dir.display());
    let script = format!(
        "#!/bin/sh\n\
         echo {name} >> {dir}/order\n\
         set -- {}\n\
         shift $(($(grep -cx {name} {dir}/order) - 1))\n\
         echo \"{{\\\"ms_per_step\\\":$1,\\\"first_step_s\\\":0.1,\\\"peak_rss_mb\\\":10}}\"\n",
        times.join(" ")
    );
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// Runs the comparison; `None` on a machine without Python 3, which the script needs.
fn compare(new: &Path, old: &Path, options: &[&str]) -> Option<Output> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("compare");
    let mut command = Command::new("python3");
    command.arg(script).args(["--models", "mlp", "--threads", "1"]).args(options);
    match command.arg("--new").arg(new).arg("--old").arg(old).output() {
        Ok(output) => Some(output),
        Err(_) => {
            eprintln!("skipped: python3 is not installed");
            None
        }
    }
}

fn table(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The cells of the summary's only row.
fn cells(table: &str) -> Vec<&str> {
    let row = table.lines().find(|line| line.starts_with("| mlp | 128 |")).expect(table);
    row.trim_matches('|').split('|').map(str::trim).collect()
}

#[test]
fn a_slower_build_fails_and_an_equal_one_passes() {
    let dir = tempfile::tempdir().unwrap();
    let old = fake_bench(dir.path(), "old", &[10.0, 10.2, 9.8, 10.1, 9.9].repeat(2));
    let slower = fake_bench(dir.path(), "slower", &[12.0, 12.1, 12.3, 11.9, 11.7].repeat(2));
    let Some(output) = compare(&slower, &old, &["--rounds", "5"]) else { return };
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = table(&output);
    let [_, _, ours_ms, old_ms, ratio, interval, within] = cells(&text)[..] else { panic!("{text}") };
    assert_eq!((ours_ms, old_ms, ratio, within), ("12.00", "10.00", "1.200", "no"), "{text}");
    let (low, high) = interval.split_once('-').unwrap();
    let (low, high): (f64, f64) = (low.parse().unwrap(), high.parse().unwrap());
    assert!(low < 1.2 && 1.2 < high && low > 1.1 && high < 1.3, "{interval}");

    let output = compare(&slower, &old, &["--rounds", "5", "--limit", "1.25"]).unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(cells(&table(&output))[6], "yes");
}

#[test]
fn rounds_alternate_which_build_runs_first() {
    let dir = tempfile::tempdir().unwrap();
    let new = fake_bench(dir.path(), "new", &[1.0; 15]);
    let old = fake_bench(dir.path(), "old", &[1.0; 15]);
    let Some(output) = compare(&new, &old, &[]) else { return };
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let order = fs::read_to_string(dir.path().join("order")).unwrap();
    let order: Vec<&str> = order.lines().collect();
    assert_eq!(order.len(), 30, "15 rounds of two runs");
    assert_eq!(order[..6], ["new", "old", "old", "new", "new", "old"]);
}

#[test]
fn the_interval_resamples_rounds_not_runs() {
    // The machine is twice as slow in every other round, for both builds. The ratio is 1 in every
    // round, so an interval bootstrapped over paired rounds has no width.
    let dir = tempfile::tempdir().unwrap();
    let new = fake_bench(dir.path(), "new", &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    let old = fake_bench(dir.path(), "old", &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
    let Some(output) = compare(&new, &old, &["--rounds", "6"]) else { return };
    assert_eq!(cells(&table(&output))[5], "1.000-1.000", "{output:?}");
}

#[test]
fn a_build_that_does_not_run_fails_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let new = fake_bench(dir.path(), "new", &[1.0; 2]);
    let broken = dir.path().join("broken");
    fs::write(&broken, "#!/bin/sh\necho no such model >&2\nexit 3\n").unwrap();
    fs::set_permissions(&broken, fs::Permissions::from_mode(0o755)).unwrap();
    let Some(output) = compare(&new, &broken, &["--rounds", "2"]) else { return };
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = table(&output);
    assert!(text.contains("missing: old: exit status 3: no such model"), "{text}");
    let refused = compare(&new, &dir.path().join("absent"), &[]).unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

/// JAX's peer implements some models only, and says so before it imports JAX.
#[test]
fn a_peer_names_the_models_it_does_not_measure() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/jax_step.py");
    for (options, expected) in [
        (["--model", "ptb"].as_slice(), "JAX does not measure ptb"),
        (&["--model", "dqn"], "JAX does not measure dqn"),
        (&["--model", "dcgan"], "JAX does not measure dcgan"),
        (&["--model", "mnist", "--dtype", "bf16"], "JAX measures mnist in f32 only"),
    ] {
        let Ok(output) = Command::new("python3").arg(&script).args(options).output() else {
            eprintln!("skipped: python3 is not installed");
            return;
        };
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && message.trim() == expected, "{message}");
    }
}
