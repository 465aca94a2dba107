//! Reports tests that are skipped.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Write, stderr};
use std::panic::Location;
use std::thread;

/// What a test needs from the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// A PJRT plugin.
    Plugin,
    /// Several devices of one platform.
    Devices,
    /// An MPI library with its launcher.
    Mpi,
    /// The right to create network namespaces and to mount file systems, which root has.
    Namespaces,
    /// A program: a C compiler, a Python with TensorBoard.
    Tool,
    /// Chromium.
    Browser,
}

impl Requirement {
    /// The environment variable that makes tests fail if this requirement is not met.
    pub fn variable(self) -> &'static str {
        match self {
            Requirement::Plugin => "TENSORPACK_REQUIRE_PLUGIN",
            Requirement::Devices => "TENSORPACK_REQUIRE_DEVICES",
            Requirement::Mpi => "TENSORPACK_REQUIRE_MPI",
            Requirement::Namespaces => "TENSORPACK_REQUIRE_NAMESPACES",
            Requirement::Tool => "TENSORPACK_REQUIRE_TOOLS",
            Requirement::Browser => "TENSORPACK_REQUIRE_BROWSER",
        }
    }
}

/// Reports that the current test is skipped. The test returns after this call.
///
/// # Panics
/// If the requirement's [variable](Requirement::variable) is set.
#[track_caller]
pub fn skip(missing: Requirement, reason: &str) {
    let variable = missing.variable();
    assert!(env::var_os(variable).is_none(), "{variable} is set, but {reason}");
    report(reason, env::var_os("TENSORPACK_SKIPPED_TESTS").as_deref());
}

/// Returns whether the environment variable that turns on a long test is set. If it is not, reports
/// the test as skipped, even in CI.
#[track_caller]
pub fn opted_in(variable: &str) -> bool {
    let set = env::var_os(variable).is_some();
    if !set {
        report(&format!("set {variable}=1 to run it"), env::var_os("TENSORPACK_SKIPPED_TESTS").as_deref());
    }
    set
}

/// Writes one line to standard error, and appends it to the file if there is one.
#[track_caller]
fn report(reason: &str, file: Option<&OsStr>) {
    let (thread, caller) = (thread::current(), Location::caller());
    let test = thread.name().unwrap_or("a test");
    let line =
        format!("skipped: {test} ({}:{}): {}\n", caller.file(), caller.line(), reason.replace('\n', " "));
    // Not `eprint`, whose output libtest hides for tests that pass.
    let _ = stderr().write_all(line.as_bytes());
    if let Some(path) = file {
        // Tests of several processes append to it: each line is one write.
        let opened = File::options().create(true).append(true).open(path);
        opened.and_then(|mut f| f.write_all(line.as_bytes())).expect("TENSORPACK_SKIPPED_TESTS is a file");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};

    const CHILD: &str = "TENSORPACK_TEST_CHILD";

    /// In a child process, skips. Elsewhere does nothing.
    #[test]
    fn child() {
        if env::var_os(CHILD).is_some() {
            skip(Requirement::Tool, "there is no\ncompiler");
        }
    }

    /// Runs [`child`] in its own process with these variables.
    fn run(variables: &[(&str, &OsStr)]) -> Output {
        let mut command = Command::new(env::current_exe().unwrap());
        for variable in ["TENSORPACK_REQUIRE_PLUGIN", "TENSORPACK_REQUIRE_TOOLS", "TENSORPACK_SKIPPED_TESTS"]
        {
            command.env_remove(variable);
        }
        command.args(["--exact", "skip::tests::child"]).env(CHILD, "1").envs(variables.iter().copied());
        command.output().unwrap()
    }

    #[test]
    fn a_skipped_test_passes_and_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let list = dir.path().join("skipped.txt");
        for lines in 1..=2 {
            let output = run(&[("TENSORPACK_SKIPPED_TESTS", list.as_os_str())]);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{errors}");
            assert!(errors.contains("skipped: ") && errors.contains("there is no compiler"), "{errors}");
            let listed = std::fs::read_to_string(&list).unwrap();
            assert_eq!(listed.lines().count(), lines, "{listed}");
            assert!(listed.lines().all(|line| line.contains("skip.rs:")), "{listed}");
        }
    }

    #[test]
    fn a_test_without_what_is_required_fails() {
        let set = OsStr::new("1");
        assert!(!run(&[("TENSORPACK_REQUIRE_TOOLS", set)]).status.success());
        assert!(run(&[("TENSORPACK_REQUIRE_PLUGIN", set)]).status.success());
    }
}
