//! The command `tensorpack`, with a pip that does what the test says.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs the command. `pip` is what a program of that name does; nothing else is on the path.
fn tensorpack_with(variables: &[(&str, &str)], words: &[&str], cache: &Path, pip: Option<&str>) -> Output {
    let programs = cache.join("programs");
    fs::create_dir_all(&programs).unwrap();
    if let Some(text) = pip {
        let file = programs.join("pip");
        fs::write(&file, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_tensorpack"));
    command.args(words).env("TENSORPACK_CACHE", cache).env("PATH", &programs);
    for name in ["VIRTUAL_ENV", "TENSORPACK_PJRT_PLUGIN", "PJRT_NAMES_AND_LIBRARY_PATHS"] {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied()).output().unwrap()
}

fn tensorpack(words: &[&str], cache: &Path, pip: Option<&str>) -> Output {
    tensorpack_with(&[], words, cache, pip)
}

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Whether anything but the lock was left behind.
fn left_behind(cache: &Path) -> bool {
    fs::read_dir(cache.join("plugins")).unwrap().any(|entry| entry.unwrap().file_name() != ".lock")
}

#[test]
fn a_plan_says_what_would_be_fetched_and_fetches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    if !cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))) {
        let text = error(&tensorpack(&["plugin", "install", "cpu"], dir.path(), None));
        assert!(text.contains("is made for Linux on x86_64 and aarch64"), "{text}");
        return;
    }
    let text = out(&tensorpack(&["plugin", "install", "cuda13", "--dry-run"], dir.path(), Some("exit 1")));
    let home = dir.path().join("plugins/cuda13");
    assert!(text.starts_with(&format!("pip would fetch, to be put into {}:\n", home.display())), "{text}");
    for part in ["jax-cuda13-pjrt==0.11.2 ", "nvidia-cudnn-cu13>=", "nvidia-nccl-cu13>=", "in all, about"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!home.exists());
}

#[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
#[test]
fn what_pip_cannot_do_is_an_error_that_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let install = |pip| error(&tensorpack(&["plugin", "install", "cpu"], dir.path(), pip));

    let text = install(None);
    assert!(text.contains("pip is not"), "{text}");
    assert!(text.contains("install Python 3 with pip"), "{text}");
    assert!(!left_behind(dir.path()));

    let text = install(Some("echo 'ERROR: No matching distribution found' >&2; exit 1"));
    assert!(text.contains("xla-cpu-pjrt==0.0.1 could not be fetched: pip failed"), "{text}");
    assert!(text.contains("ERROR: No matching distribution found"), "{text}");
    assert!(text.contains("without a network"), "{text}");
    assert!(!left_behind(dir.path()));

    let text = install(Some("echo forged > xla_cpu_pjrt-0.0.1-py3-none-any.whl"));
    assert!(text.contains("is not the file that was meant: its checksum is "), "{text}");
    assert!(!left_behind(dir.path()));

    let text = install(Some("exit 0"));
    assert!(text.contains("pip left no file of xla-cpu-pjrt==0.0.1"), "{text}");
    assert!(!left_behind(dir.path()));
}

#[test]
fn the_doctor_says_what_is_missing_and_what_is_broken() {
    let dir = tempfile::tempdir().unwrap();
    let text = out(&tensorpack(&["doctor"], dir.path(), None));
    assert!(text.contains("cpu engine: "), "{text}");
    assert!(text.contains("no plugin for cpu; to get one: tensorpack plugin install cpu\n"), "{text}");
    assert!(text.contains("no plugin for cuda; to get one: tensorpack plugin install cuda1"), "{text}");
    let file = dir.path().join("plugins/cpu/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "words").unwrap();
    let text = out(&tensorpack(&["doctor"], dir.path(), None));
    assert!(text.contains("xla_cpu_pjrt.so (installed by tensorpack)\n    it cannot be used:\n"), "{text}");
    assert!(!text.contains("no plugin for cpu"), "{text}");
}

#[test]
fn plugins_that_the_environment_names_come_first() {
    let dir = tempfile::tempdir().unwrap();
    let one = [("TENSORPACK_PJRT_PLUGIN", "/no/such.so")];
    let text = out(&tensorpack_with(&one, &["doctor"], dir.path(), None));
    assert!(
        text.contains("  /no/such.so (named by TENSORPACK_PJRT_PLUGIN)\n    it cannot be used:\n"),
        "{text}"
    );
    assert!(!text.contains("no plugin for"), "{text}");
    let many = [("PJRT_NAMES_AND_LIBRARY_PATHS", "cuda:/no/cuda.so")];
    let text = out(&tensorpack_with(&many, &["doctor"], dir.path(), None));
    assert!(text.contains("  /no/cuda.so (named by PJRT_NAMES_AND_LIBRARY_PATHS)\n"), "{text}");
    assert!(text.contains("no plugin for cpu") && !text.contains("no plugin for cuda"), "{text}");
    let environment = dir.path().join("environment");
    let file = environment.join("lib/python3.12/site-packages/jax_plugins/xla_cuda12/xla_cuda_plugin.so");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "words").unwrap();
    let active = [("VIRTUAL_ENV", environment.to_str().unwrap())];
    let text = out(&tensorpack_with(&active, &["doctor"], dir.path(), None));
    assert!(text.contains(&format!("  {} (in the virtual environment)\n", file.display())), "{text}");
}

#[test]
fn what_is_no_command_is_an_error_with_those_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let text = error(&tensorpack(&["plugin", "remove", "cpu"], dir.path(), None));
    assert!(text.starts_with("Error: tensorpack plugin remove cpu is no command\n"), "{text}");
    assert!(text.contains("tensorpack plugin install cpu|cuda12|cuda13"), "{text}");
    let text = error(&tensorpack(&["plugin", "install", "metal"], dir.path(), None));
    assert!(text.contains("there is no plugin metal, but cpu, cuda13, cuda12"), "{text}");
    assert!(out(&tensorpack(&[], dir.path(), None)).starts_with("tensorpack plugin install "));
}
