//! A signal while a plugin creates its client ends the process.

use crate::compile::train;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tensorpack::runtime::SessionOptions;

const DIR: &str = "TENSORPACK_TEST_OPENING";

/// A plugin that never returns from creating a client, and says when it begins.
const PLUGIN: &str = r#"
#[repr(C)]
pub struct Table { size: usize, more: usize, version: [usize; 2], major: i32, minor: i32, functions: [usize; 300] }
extern "C" fn nothing() -> usize { 0 }
extern "C" fn create_client() -> usize {
    eprintln!("creating a client");
    loop { std::thread::sleep(std::time::Duration::from_secs(1)) }
}
#[unsafe(no_mangle)]
pub extern "C" fn GetPjrtApi() -> *const Table {
    let mut functions = [nothing as *const () as usize; 300];
    functions[10] = create_client as *const () as usize;
    Box::into_raw(Box::new(Table {
        size: 40 + 8 * 300, more: 0, version: [24, 0], major: 0, minor: 99, functions,
    }))
}"#;

/// Runs in a child process: trains on the plugin of the environment.
#[test]
fn child_that_opens() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let device = "xla:cpu:0".parse().unwrap();
    let options = SessionOptions { device, deadline: Duration::from_secs(30), ..SessionOptions::default() };
    train(Path::new(&dir), options, 1).unwrap();
}

#[test]
fn a_signal_while_a_client_is_created_ends_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let Some(plugin) = crate::fake_plugin(dir.path(), "opening", PLUGIN) else { return };
    let mut command = crate::child("opening::child_that_opens");
    command.env(DIR, dir.path().join("run")).env("TENSORPACK_PJRT_PLUGIN", plugin);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = Vec::new();
    for line in BufReader::new(running.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.contains("creating a client") {
            // SAFETY: this is our child, and it has not been awaited yet, so the id is still its
            // own.
            unsafe { libc::kill(running.id() as i32, libc::SIGTERM) };
        }
        log.push(line);
    }
    let (status, log) = (running.wait().unwrap(), log.join("\n"));
    assert_eq!(status.signal(), Some(libc::SIGTERM), "{log}");
    // It did not wait for the deadline, nor for the first message about a long wait.
    assert!(log.contains("signal 15") && !log.contains("waited") && !log.contains("so far"), "{log}");
}
