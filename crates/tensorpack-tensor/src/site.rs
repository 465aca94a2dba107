//! Call sites in the user's source code.

use std::fmt;
use std::panic::Location;

/// A source line that an error points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// The file name as passed to the compiler.
    pub file: &'static str,
    /// The line number, starting at 1.
    pub line: u32,
}

impl Site {
    /// Returns the caller of the enclosing `#[track_caller]` function.
    #[track_caller]
    pub fn caller() -> Site {
        Site::from(Location::caller())
    }
}

impl From<&'static Location<'static>> for Site {
    fn from(at: &'static Location<'static>) -> Site {
        Site { file: at.file(), line: at.line() }
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}
