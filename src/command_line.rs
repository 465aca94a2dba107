//! Command lines, parsed by [`clap`] into a value or an [`Error`]; feature `cli`.
//!
//! A program declares its options as a struct that derives [`clap::Parser`] and calls [`parse`]:
//!
//! ```no_run
//! use clap::Parser;
//!
//! /// Counts to a number.
//! #[derive(Parser)]
//! struct Args {
//!     /// The last number.
//!     #[arg(long, value_name = "N", default_value_t = 10)]
//!     to: u64,
//! }
//!
//! fn main() -> tensorpack::Result<()> {
//!     let args: Args = tensorpack::command_line::parse()?;
//!     (1..=args.to).for_each(|n| println!("{n}"));
//!     Ok(())
//! }
//! ```
//!
//! The options of a training program are `TrainArgs` in the module `train`.

use clap::Parser;
use std::ffi::OsString;
use tensorpack_tensor::{Error, Result};

/// Parses the command line of this program.
///
/// `--help` prints the options and ends the program with status 0; a reader that closes the pipe
/// early, such as `head -1`, does no harm. A command line that does not fit is an error of
/// [`ErrorKind::Argument`], so that a `main` that returns it ends with status 1, as for any other
/// error.
///
/// [`ErrorKind::Argument`]: tensorpack_tensor::ErrorKind::Argument
pub fn parse<P: Parser>() -> Result<P> {
    P::try_parse().map_err(|error| {
        if !error.use_stderr() {
            // The reader may have closed the pipe.
            let _ = error.print();
            std::process::exit(0);
        }
        usage_error(&error)
    })
}

/// Parses a command line whose first word is the program's name. The text of `--help` is an error,
/// too.
pub fn parse_from<P: Parser>(words: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<P> {
    P::try_parse_from(words).map_err(|error| usage_error(&error))
}

/// clap's first line is the message; the rest (a suggestion, the usage) become notes.
fn usage_error(error: &clap::Error) -> Error {
    let text = error.render().to_string();
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let message = lines.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    lines.fold(Error::argument(message), Error::note)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_tensor::ErrorKind;

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long)]
        color: Option<String>,
    }

    #[test]
    fn a_bad_option_is_an_argument_error_with_a_suggestion() {
        let error = parse_from::<Args>(["program", "--colour", "red"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.message().contains("--colour") && !error.message().contains("error:"), "{error}");
        assert!(error.to_string().contains("--color"), "{error}");
        assert_eq!(parse_from::<Args>(["program", "--color", "red"]).unwrap().color.unwrap(), "red");
    }
}
