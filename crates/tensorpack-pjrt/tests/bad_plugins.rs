//! Files that are not plugins, and plugins that are not supported.

mod fake_plugin;

use std::fs;
use std::path::{Path, PathBuf};
use tensorpack_pjrt::{Client, CompileOptions, Plugin};
use tensorpack_tensor::ErrorKind;

/// The position of `PJRT_Executable_NumOutputs` among the functions of the table.
const NUM_OUTPUTS: usize = 44;

/// Builds a plugin of the given version, with a table of `functions` functions that all do nothing,
/// except that its executables have seven outputs.
fn fake(folder: &Path, name: &str, (major, minor): (i32, i32), functions: usize) -> PathBuf {
    let text = format!(
        "#[repr(C)]
        pub struct Table {{ size: usize, more: usize, version: [usize; 2], major: i32, minor: i32, functions: [usize; 300] }}
        unsafe extern \"C\" fn nothing() -> usize {{ 0 }}
        // PJRT_Executable_NumOutputs: size, extensions, executable, number of outputs.
        unsafe extern \"C\" fn outputs(args: *mut [usize; 4]) -> usize {{
            unsafe {{ (*args)[3] = 7 }};
            0
        }}
        #[unsafe(no_mangle)]
        pub extern \"C\" fn GetPjrtApi() -> *const Table {{
            let mut functions = [nothing as *const () as usize; 300];
            functions[{NUM_OUTPUTS}] = outputs as *const () as usize;
            Box::into_raw(Box::new(Table {{
                size: 40 + 8 * {functions}, more: 0, version: [24, 0], major: {major}, minor: {minor}, functions,
            }}))
        }}"
    );
    fake_plugin::build(folder, name, &text)
}

#[test]
fn a_missing_file_is_an_error() {
    let e = Plugin::open(Path::new("/no/such/plugin.so")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Io);
    assert!(e.message().starts_with("/no/such/plugin.so: "), "{e}");
}

#[test]
fn a_file_that_is_not_a_library_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plugin.so");
    fs::write(&file, "words").unwrap();
    let e = Plugin::open(&file).unwrap_err();
    assert!(e.message().contains("cannot be loaded as a plugin: "), "{e}");
}

/// The loader would map it, and the process would end by SIGBUS.
#[cfg(target_os = "linux")]
#[test]
fn a_library_whose_end_is_missing_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read(fake_plugin::build(dir.path(), "whole", "")).unwrap();
    for length in [50_000, 4096, 100, 63] {
        let file = dir.path().join(format!("{length}.so"));
        fs::write(&file, &whole[..length]).unwrap();
        let e = Plugin::open(&file).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io, "{e}");
        assert!(e.message().contains("cannot be loaded as a plugin: "), "{e}");
    }
}

#[test]
fn a_library_that_is_not_a_plugin_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let e = Plugin::open(&fake_plugin::build(dir.path(), "other", "")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Argument);
    assert!(e.message().contains("GetPjrtApi"), "{e}");
}

#[test]
fn unsupported_versions_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let e = Plugin::open(&fake(dir.path(), "major", (1, 3), 300)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.message().contains("too new") && e.message().contains("1.3"), "{e}");
    let e = Plugin::open(&fake(dir.path(), "minor", (0, 30), 300)).unwrap_err();
    assert!(e.message().contains("too old") && e.message().contains("0.30"), "{e}");
}

#[test]
fn a_missing_function_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = Plugin::open(&fake(dir.path(), "short", (0, 99), 10)).unwrap();
    assert_eq!(plugin.api_version(), (0, 99));
    let e = Client::new(&plugin, &[]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported);
    assert!(e.message().contains("libshort (API 0.99)") && e.message().contains("PJRT_Client_Create"), "{e}");
}

/// Nothing may write more outputs than there is room for, so the numbers must agree.
#[test]
fn a_plugin_that_describes_fewer_outputs_than_it_has_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = Plugin::open(&fake(dir.path(), "outputs", (0, 99), 300)).unwrap();
    let client = Client::new(&plugin, &[]).unwrap();
    let e = client.compile("", &CompileOptions::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Engine);
    assert!(e.message().contains("7 outputs"), "{e}");
}

#[cfg(unix)]
#[test]
fn a_pipe_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("plugin.so");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(Plugin::open(&pipe).map(|_| ())));
    let opened = receive.recv_timeout(std::time::Duration::from_secs(10)).expect("it returns soon");
    let e = opened.unwrap_err();
    assert!(e.message().contains("plugin.so") && e.message().contains("not a regular file"), "{e}");
}
