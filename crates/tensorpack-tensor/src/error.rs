//! The error type of all tensorpack crates.
//!
//! A message says what went wrong, where (the user's `file:line`, a tensor or a file) and how to
//! fix it.

use crate::Site;
use std::fmt;

/// A `Result` whose error defaults to [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The category of an [`Error`], for code that handles errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Incompatible shapes.
    Shape,
    /// An element type the operation does not support.
    DType,
    /// An invalid, unknown or duplicate name.
    Name,
    /// An argument outside its valid range, such as a stride of zero.
    Argument,
    /// A NaN or infinity where a finite value is required.
    NotFinite,
    /// A step that overflowed in f16. It was skipped and lowered the loss scale; the next one can run.
    Overflow,
    /// Misuse of a graph's life cycle, such as adding to a frozen graph or mixing two graphs.
    Graph,
    /// A gradient that does not exist: an op without a derivative, or no path to the cost.
    Gradient,
    /// An allocation beyond what the machine (or its cgroup) allows.
    Memory,
    /// A feature this engine or device does not support.
    Unsupported,
    /// A failed read or write of a file or stream.
    Io,
    /// A sample that could not be produced, or data that contradicts its description.
    Data,
    /// A wait that exceeded its time limit.
    Deadline,
    /// A signal asked the process to stop.
    Interrupted,
    /// Another process of a distributed run failed, died or stopped responding.
    Peer,
    /// A failure of the engine itself: a panic in a kernel, or a poisoned session.
    Engine,
}

/// An error with a kind, a message, an optional source location and notes.
///
/// `{}` and `{:?}` print the same readable text, so `fn main() -> Result<()>` ends with a useful
/// message.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    site: Option<Site>,
    notes: Vec<String>,
}

impl Error {
    /// Creates an error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, message: message.into(), site: None, notes: Vec::new() }))
    }

    /// Creates an [`ErrorKind::Shape`] error.
    pub fn shape(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Shape, message)
    }

    /// Creates an [`ErrorKind::DType`] error.
    pub fn dtype(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::DType, message)
    }

    /// Creates an [`ErrorKind::Argument`] error.
    pub fn argument(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Argument, message)
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the user's source line, if one is known.
    pub fn site(&self) -> Option<Site> {
        self.0.site
    }

    /// Returns the message without location and notes.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the notes.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// Prefixes the message with `context`: `conv0/Conv2d: ...`.
    #[must_use]
    pub fn within(mut self, context: impl fmt::Display) -> Error {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// Attaches a source line, unless the error already has one.
    #[must_use]
    pub fn at(mut self, site: Site) -> Error {
        self.0.site.get_or_insert(site);
        self
    }

    /// Appends a note: a further location or a way to fix the problem.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Error {
        self.0.notes.push(note.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)?;
        if let Some(site) = self.0.site {
            write!(f, "\n  at {site}")?;
        }
        for note in &self.0.notes {
            write!(f, "\n  {note}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        Error::new(ErrorKind::Io, e.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_message_site_and_notes() {
        let here = Site { file: "model.rs", line: 7 };
        let e = Error::shape("inner sizes 3 and 4 differ")
            .within("fc0/MatMul")
            .at(here)
            .note("transpose one of them");
        assert_eq!(
            format!("{e:?}"),
            "fc0/MatMul: inner sizes 3 and 4 differ\n  at model.rs:7\n  transpose one of them"
        );
        assert_eq!(e.kind(), ErrorKind::Shape);
    }

    #[test]
    fn first_site_wins() {
        let first = Site { file: "a.rs", line: 1 };
        let e = Error::argument("bad").at(first).at(Site { file: "b.rs", line: 2 });
        assert_eq!(e.site(), Some(first));
    }
}
