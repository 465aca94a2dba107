//! Tests that need a process of their own: for its signals, or for what it writes to standard
//! error.

use std::path::Path;
use std::process::{Command, Output};

/// The directory in which a child trains. Not set in an ordinary run of the tests.
const DIR: &str = "TENSORPACK_TEST_ALONE";

/// Returns the command that runs a test of this binary in a child process, with [`dir`] set.
pub(crate) fn command(test: &str, dir: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this test binary"));
    command
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(DIR, dir)
        .env("TENSORPACK_LOG", "info");
    command
}

/// Runs a test of this binary in a child process, with [`dir`] set.
pub(crate) fn alone(test: &str, dir: &Path) -> Output {
    command(test, dir).output().expect("the test can run itself")
}

/// Returns the directory to train in, in a child process.
pub(crate) fn dir() -> Option<std::path::PathBuf> {
    std::env::var_os(DIR).map(Into::into)
}

/// Returns what a child wrote to standard error.
pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
