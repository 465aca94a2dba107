//! Command lines, parsed by [`clap`] into a value or an [`Error`], and output that may be piped;
//! feature `cli`.
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
//!     (1..=args.to).for_each(|n| tensorpack::say!("{n}"));
//!     Ok(())
//! }
//! ```
//!
//! The options of a training program are `TrainArgs` in the module `train`.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Parser};
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
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
    parse_without(&[])
}

/// Like [`parse`], for a program to which some `options` do not apply, such as `--full` of a
/// flattened `TrainArgs`. The help does not list them, and giving one is an error.
pub fn parse_without<P: Parser>(options: &[&str]) -> Result<P> {
    let matches = matches_without(P::command(), options, std::env::args_os())?;
    P::from_arg_matches(&matches).map_err(|error| usage_error(&error))
}

/// Parses `words` with a command to which some options do not apply.
pub(crate) fn matches_without(
    command: Command,
    options: &[&str],
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<ArgMatches> {
    let (command, hidden) = hide(command, options)?;
    let matches = command.try_get_matches_from(words).map_err(|error| {
        if !error.use_stderr() {
            // The reader may have closed the pipe.
            let _ = error.print();
            std::process::exit(0);
        }
        usage_error(&error)
    })?;
    let given = |id: &String| matches.value_source(id) == Some(ValueSource::CommandLine);
    match hidden.iter().zip(options).find(|(id, _)| given(id)) {
        Some((_, option)) => Err(Error::argument(format!("{option} does not apply to this program"))),
        None => Ok(matches),
    }
}

/// Hides options from the help of a command. Returns their ids, too, in the same order.
fn hide(mut command: Command, options: &[&str]) -> Result<(Command, Vec<String>)> {
    let mut hidden = Vec::new();
    for option in options {
        let is_this = |a: &&Arg| a.get_long().is_some_and(|long| option.strip_prefix("--") == Some(long));
        let id = command.get_arguments().find(is_this).map(|a| a.get_id().to_string());
        let id = id.ok_or_else(|| Error::argument(format!("this program has no option {option}")))?;
        command = command.mut_arg(&id, |argument| argument.hide(true));
        hidden.push(id);
    }
    Ok((command, hidden))
}

/// Prints a line to standard output, with the arguments of [`println!`]. Unlike that, it does not
/// panic if nobody reads the output, as after `program | head -1`; the line is then lost.
///
/// ```
/// tensorpack::say!("test error {:.2} %", 0.8612);
/// ```
#[macro_export]
macro_rules! say {
    ($($arguments:tt)*) => {
        $crate::command_line::print_line(::std::format_args!($($arguments)*))
    };
}

/// Prints a line for [`say!`].
#[doc(hidden)]
pub fn print_line(line: fmt::Arguments<'_>) {
    // The reader may have closed the pipe.
    let _ = writeln!(std::io::stdout(), "{line}");
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
    use clap::CommandFactory;
    use tensorpack_tensor::ErrorKind;

    #[derive(Debug, Parser)]
    struct Args {
        #[arg(long)]
        color: Option<String>,
    }

    #[test]
    fn the_help_lists_only_options_that_apply() {
        let command = || Args::command().about("Paints");
        let help = |options: &[&str]| hide(command(), options).unwrap().0.render_help().to_string();
        assert!(help(&[]).contains("--color") && help(&[]).starts_with("Paints"));
        assert!(!help(&["--color"]).contains("--color") && help(&["--color"]).starts_with("Paints"));
        assert!(hide(command(), &["--colour"]).is_err());
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
