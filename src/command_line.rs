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
//!
//! A program with the options `--config` and `--set`, as `TrainArgs` has them, takes any of its
//! options from a TOML file and from `--set key=value`, too: see [`parse`].

use crate::graph::nearest_names;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, Parser};
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::Path;
use tensorpack_tensor::{Error, ErrorKind, Result};
use toml::{Table, Value};

/// Parses the command line of this program.
///
/// `--help` prints the options and ends the program with status 0; a reader that closes the pipe
/// early, such as `head -1`, does no harm. A command line that does not fit is an error of
/// [`ErrorKind::Argument`], so that a `main` that returns it ends with status 1, as for any other
/// error.
///
/// If the program has an option `--config FILE`, the file is TOML with the long names of options as
/// keys; a flag is a boolean and a list an array. If it has an option `--set`, `--set key=value`
/// stands for `--key value`. The command line replaces what `--set` says, and that what the file
/// says. An unknown key is an error that lists the nearest names.
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
    let words = with_settings(&command, words)?;
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
    let words = with_settings(&P::command(), words)?;
    P::try_parse_from(words).map_err(|error| usage_error(&error))
}

/// Puts the settings of `--config` and `--set` in front of the words of a command line, as options.
/// Of an option that is repeated, the last one wins.
fn with_settings(
    command: &Command,
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Vec<OsString>> {
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    let given = |option: &str| {
        let has = command.get_arguments().any(|arg| arg.get_long() == Some(option));
        if has { values(&words, option) } else { Vec::new() }
    };
    let mut settings = Vec::new();
    if let Some(file) = given("config").last() {
        let path = Path::new(file);
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::from(e).within(format!("cannot read {}", path.display())))?;
        let table: Table = text.parse().map_err(|e: toml::de::Error| {
            Error::argument(e.message()).within(format!("cannot parse {}", path.display()))
        })?;
        for (key, value) in &table {
            settings.extend(setting(command, key, value).map_err(|e| e.within(path.display()))?);
        }
    }
    for set in given("set") {
        let set = set.to_string_lossy();
        let Some((key, value)) = set.split_once('=') else {
            return Err(Error::argument(format!("--set {set}: expected key=value")));
        };
        let value = match (is_flag(command, key), value) {
            (true, "true" | "false") => Value::Boolean(value == "true"),
            _ => Value::String(value.into()),
        };
        settings.extend(setting(command, key, &value).map_err(|e| e.within("--set"))?);
    }
    let mut words = words.into_iter();
    let program = words.next();
    Ok(program.into_iter().chain(settings).chain(words).collect())
}

/// Returns the values of an option among the words of a command line.
fn values(words: &[OsString], option: &str) -> Vec<OsString> {
    let mut found = Vec::new();
    let mut words = words.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        let Some(text) = word.to_str().and_then(|text| text.strip_prefix("--")) else { continue };
        match text.strip_prefix(option) {
            Some("") => found.extend(words.next().cloned()),
            Some(rest) => found.extend(rest.strip_prefix('=').map(OsString::from)),
            None => {}
        }
    }
    found
}

/// Returns whether a key is an option without a value.
fn is_flag(command: &Command, key: &str) -> bool {
    let key = key.replace('_', "-");
    let option = command.get_arguments().find(|arg| arg.get_long() == Some(&key));
    option.is_some_and(|arg| !arg.get_action().takes_values())
}

/// Returns the words of a setting: `--key=value`, `--key` for a flag that is on, and none for one
/// that is off.
fn setting(command: &Command, key: &str, value: &Value) -> Result<Option<OsString>> {
    let option = key.replace('_', "-");
    let known = command.get_arguments().filter_map(|arg| arg.get_long());
    let known: Vec<&str> = known.filter(|name| !["config", "set", "help"].contains(name)).collect();
    if !known.contains(&option.as_str()) {
        let note = nearest_names("settings", &option, known);
        return Err(Error::new(ErrorKind::Argument, format!("there is no setting {key:?}")).note(note));
    }
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        _ => None,
    };
    let wrong = || Error::argument(format!("the setting {key:?} cannot be {value:?}"));
    match value {
        Value::Boolean(is_on) if is_flag(command, key) => Ok(is_on.then(|| format!("--{option}").into())),
        _ if is_flag(command, key) => Err(wrong().note("it is true or false")),
        Value::Array(list) => {
            let list: Option<Vec<String>> = list.iter().map(text).collect();
            Ok(Some(format!("--{option}={}", list.ok_or_else(wrong)?.join(",")).into()))
        }
        _ => Ok(Some(format!("--{option}={}", text(value).ok_or_else(wrong)?).into())),
    }
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
