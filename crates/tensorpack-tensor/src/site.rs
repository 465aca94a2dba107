//! Where in the user's source something was asked for.

use std::fmt;
use std::panic::Location;

/// A place in source code: what an error points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    /// The file, as the compiler was given it.
    pub file: &'static str,
    /// The line, from 1.
    pub line: u32,
}

impl Site {
    /// The line that called the function this is called in, if that function is `#[track_caller]`.
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
