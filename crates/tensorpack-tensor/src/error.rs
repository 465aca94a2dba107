//! The one error type. It reads as a sentence in the user's terms: what went wrong, where (their own
//! `file:line`, tensor or file name) and what to do about it.

use crate::Site;
use std::fmt;

/// Shorthand for a result with tensorpack's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong, for code that reacts to errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Shapes that do not fit each other or the operation.
    Shape,
    /// An element type the operation does not take.
    DType,
    /// A name that is illegal, unknown or taken.
    Name,
    /// A value outside what is allowed, such as a stride of zero.
    Argument,
    /// A NaN or an infinity where a number was needed.
    NotFinite,
    /// A graph used against its life cycle: after freezing, or from another graph's session.
    Graph,
    /// Something that cannot be differentiated, or has no path to the cost.
    Gradient,
    /// More memory than the machine (or its cgroup) allows.
    Memory,
    /// Something this engine or device does not do.
    Unsupported,
    /// A file or stream that could not be read or written.
    Io,
    /// A sample that could not be made, or data that are not what was said of them.
    Data,
    /// A wait that took longer than it may.
    Deadline,
    /// A signal asked the process to end.
    Interrupted,
    /// The engine itself failed: a panic in a kernel, a poisoned session.
    Engine,
}

/// An error with its kind, message, place and further notes. Prints as a sentence, with `{}` as with `{:?}`, so
/// that `fn main() -> Result<()>` ends in words.
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
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, message: message.into(), site: None, notes: Vec::new() }))
    }

    /// A [`ErrorKind::Shape`] error.
    pub fn shape(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Shape, message)
    }

    /// A [`ErrorKind::DType`] error.
    pub fn dtype(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::DType, message)
    }

    /// A [`ErrorKind::Argument`] error.
    pub fn argument(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Argument, message)
    }

    /// The kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The user's line the error points at, where one is known.
    pub fn site(&self) -> Option<Site> {
        self.0.site
    }

    /// The message alone, without place and notes.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Puts `context` before the message: `conv0/Conv2d: ...`.
    #[must_use]
    pub fn within(mut self, context: impl fmt::Display) -> Error {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// Points the error at `site`, unless it points somewhere already.
    #[must_use]
    pub fn at(mut self, site: Site) -> Error {
        self.0.site.get_or_insert(site);
        self
    }

    /// Adds a line that helps: where else to look, what to do.
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
