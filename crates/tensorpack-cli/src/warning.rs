//! Lines on standard error beside the output of a command.

use std::fmt::Display;
use std::io::{Write, stderr};

/// Prints a line. Unlike `eprintln`, it does not panic if that fails: the output matters more.
pub(crate) fn warn(line: impl Display) {
    let _ = writeln!(stderr(), "{line}");
}
