//! Errors of the XLA engine.

use crate::{child, device};
use std::path::Path;
use tensorpack::ErrorKind;
use tensorpack::graph::Fetch;
use tensorpack::prelude::*;
use tensorpack::runtime::Platform;
use tensorpack_testing::assert_mentions;

const DEVICE: &str = "TENSORPACK_TEST_DEVICE";

/// Runs in a child process: opens a session on a device and prints the error.
#[test]
fn child_that_opens_a_session() {
    if let Ok(device) = std::env::var(DEVICE) {
        let options = SessionOptions { device: device.parse().unwrap(), ..SessionOptions::default() };
        let e = Session::with(Graph::new().freeze().unwrap(), options).expect_err("the plugin is missing");
        println!("{:?}: {e}", e.kind());
    }
}

/// Returns the error of opening `device` when `plugin` is the only plugin.
fn error_without_plugins(device: &str, plugin: Option<&Path>, empty: &Path) -> String {
    let mut command = child("errors::child_that_opens_a_session");
    for variable in ["TENSORPACK_PJRT_PLUGIN", "PJRT_NAMES_AND_LIBRARY_PATHS", "VIRTUAL_ENV", "PYTHONPATH"] {
        command.env_remove(variable);
    }
    for folder in ["TENSORPACK_CACHE", "XDG_DATA_HOME", "HOME", "PATH"] {
        command.env(folder, empty);
    }
    command.envs(plugin.map(|path| ("TENSORPACK_PJRT_PLUGIN", path)));
    let output = command.env(DEVICE, device).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_missing_plugin_error_tells_how_to_install_it() {
    let empty = tempfile::tempdir().unwrap();
    for (device, name) in [("xla:cpu:0", "cpu"), ("xla:cuda:0", "cuda")] {
        let text = error_without_plugins(device, None, empty.path());
        assert!(text.contains(&format!("tensorpack plugin install {name}")), "{text}");
    }
}

#[test]
fn a_plugin_for_another_platform_is_named() {
    // On a GPU the only plugin is the right one.
    let Some(Device::Xla { platform: Platform::Cpu, .. }) = device() else { return };
    let plugin = tensorpack_pjrt::find_plugin("cpu").unwrap();
    let empty = tempfile::tempdir().unwrap();
    let text = error_without_plugins("xla:cuda:0", Some(&plugin), empty.path());
    assert!(text.contains("Unsupported: ") && text.contains("is a plugin for cpu"), "{text}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_plugin_that_is_too_old_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let text = "#[repr(C)]
        pub struct Table { size: usize, more: usize, version: [usize; 2], major: i32, minor: i32 }
        static TABLE: Table = Table { size: 40, more: 0, version: [24, 0], major: 0, minor: 40 };
        #[unsafe(no_mangle)]
        pub extern \"C\" fn GetPjrtApi() -> *const Table { &TABLE }";
    let Some(library) = crate::fake_plugin(dir.path(), "old", text) else { return };
    let text = error_without_plugins("xla:cpu:0", Some(&library), dir.path());
    assert!(text.contains("too old") && text.contains("0.40"), "{text}");
    assert!(text.contains("0.57 or later"), "{text}");
}

#[test]
fn too_little_memory_is_an_error_with_the_planned_bytes() {
    let Some(device) = device() else { return };
    let open = |bytes: usize| {
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let w = t.variable(VariableSpec::new("w", [500, 1000]));
        let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(500)]));
        let y = Fetch::from(&x.matmul(w.value()));
        let options = SessionOptions { device, memory_limit: Some(bytes), ..SessionOptions::default() };
        Session::with(graph.freeze()?, options).map(|session| (session, y))
    };
    let e = open(1_000_000).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Memory);
    let right = format!("the variables on {device} would take 2.0 MB, but 1.0 MB are available");
    assert_eq!(e.message(), right);
    let (session, y) = open(3_000_000).unwrap();
    let run = |rows: usize| {
        let x = HostTensor::zeros(DType::F32, [rows, 500])?;
        session.run(&[&y], &[("x", &x)])
    };
    run(2).unwrap();
    let e = run(1000).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Memory, "{e}");
    // The result alone takes four million bytes.
    let (start, end) = (format!("this program on {device} would take "), "but 3.0 MB are available");
    let planned = e.message().strip_prefix(&start).and_then(|rest| rest.split(' ').next());
    assert!(planned.is_some_and(|mb| mb.parse::<f64>().unwrap() >= 4.0) && e.message().ends_with(end), "{e}");
    run(2).unwrap();
}

/// Only for accelerators, which have their own memory: exhausting the host's would affect other
/// processes.
#[test]
fn a_result_larger_than_device_memory_is_an_error_and_the_session_remains_usable() {
    let Some(device @ Device::Xla { platform, .. }) = device() else { return };
    if platform.name() == "cpu" {
        println!("not tested: {device} has no memory of its own");
        return;
    }
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(1)]));
    let y = Fetch::from(&x.matmul(&x.transpose(&[1, 0])));
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let run = |rows: usize| session.run(&[&y], &[("x", &HostTensor::zeros(DType::F32, [rows, 1]).unwrap())]);
    // Four terabytes.
    let e = run(1_000_000).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Memory, "{e}");
    assert!(e.message().contains("would take 4000."), "{e}");
    run(2).unwrap();
}

#[test]
fn an_unsupported_operation_is_named_with_its_line() {
    let Some(device) = device() else { return };
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [None]));
    let line = line!() + 1;
    let shown = (&x * 2.0).print();
    let total = shown.sum();
    let options = SessionOptions { device, ..SessionOptions::default() };
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let e = session.run(&[&total], &[("x", &HostTensor::new([1], vec![1.0f32]).unwrap())]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert_mentions(&e, &["XLA", "cpu:N"]);
    assert_eq!(e.site().map(|s| s.line), Some(line), "{e}");
}
