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
use clap::{Arg, ArgAction, ArgMatches, Command, Parser};
use serde_json::Map;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};
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
    let matches = process_matches(P::command(), options)?;
    P::from_arg_matches(&matches).map_err(|error| usage_error(&error))
}

/// Parses the command line of this process with a command to which some options do not apply, and
/// keeps the options for [`process_options`] and [`process_takes`].
pub(crate) fn process_matches(command: Command, options: &[&str]) -> Result<ArgMatches> {
    let matches = matches_without(command.clone(), options, std::env::args_os())?;
    *OPTIONS.lock().unwrap_or_else(PoisonError::into_inner) = given_options(&command, &matches);
    *WITHOUT.lock().unwrap_or_else(PoisonError::into_inner) = options.iter().map(|o| o.to_string()).collect();
    Ok(matches)
}

/// The options of this process, as it was started.
static OPTIONS: LazyLock<Mutex<Map<String, serde_json::Value>>> = LazyLock::new(Mutex::default);

/// The options that do not apply to this process.
static WITHOUT: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Returns whether an option applies to this process, so that an error may advise to give it.
pub(crate) fn process_takes(option: &str) -> bool {
    !WITHOUT.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|without| without == option)
}

/// Returns the options that were given to this process on its command line, by `--set` or in a
/// `--config` file, by their long names. Empty if it has parsed no command line.
pub(crate) fn process_options() -> Map<String, serde_json::Value> {
    OPTIONS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns the options that were given, with their values as text; a flag is `true`.
fn given_options(command: &Command, matches: &ArgMatches) -> Map<String, serde_json::Value> {
    let value = |arg: &Arg| {
        let id = arg.get_id().as_str();
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            return None;
        }
        if !arg.get_action().takes_values() {
            return Some(true.into());
        }
        let values = matches.get_raw(id).into_iter().flatten();
        let mut values: Vec<String> = values.map(|value| value.to_string_lossy().into_owned()).collect();
        Some(if values.len() == 1 { values.remove(0).into() } else { values.into() })
    };
    command.get_arguments().filter_map(|arg| Some((arg.get_long()?.to_string(), value(arg)?))).collect()
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
/// Leaves out those that the command line replaces.
fn with_settings(
    command: &Command,
    words: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Vec<OsString>> {
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    let given = |option: &str| {
        let has = command.get_arguments().any(|arg| arg.get_long() == Some(option));
        if has { values(&words, option) } else { Vec::new() }
    };
    let mut settings = Settings::default();
    if let Some(file) = given("config").last() {
        let path = Path::new(file);
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::from(e).within(format!("cannot read {}", path.display())))?;
        let table: Table = text.parse().map_err(|e: toml::de::Error| {
            Error::argument(e.message()).within(format!("cannot parse {}", path.display()))
        })?;
        for (key, value) in &table {
            let setting = setting(command, key, value).map_err(|e| e.within(path.display()))?;
            if settings.has(setting.option) {
                // With `-` and with `_`.
                let why = format!("the setting {key:?} is there twice");
                return Err(Error::argument(why).within(path.display()));
            }
            settings.add(setting);
        }
    }
    let mut over = Settings::default();
    for set in given("set") {
        let set = set.to_string_lossy();
        let Some((key, value)) = set.split_once('=') else {
            return Err(Error::argument(format!("--set {set}: expected key=value")));
        };
        let value = match (is_flag(command, key), value) {
            (true, "true" | "false") => Value::Boolean(value == "true"),
            _ => Value::String(value.into()),
        };
        over.add(setting(command, key, &value).map_err(|e| e.within("--set"))?);
    }
    settings.0.retain(|setting| !over.has(setting.option));
    settings.0.extend(over.0);
    settings.0.retain(|setting| !is_given(&words, setting.option));
    let settings = settings.0.into_iter().flat_map(|setting| setting.words);
    let mut words = words.into_iter();
    let program = words.next();
    Ok(program.into_iter().chain(settings).chain(words).collect())
}

/// An option with its words: `--key=value` for each value, `--key` for a flag that is on, and none for
/// a flag that is off.
struct Setting<'a> {
    option: &'a Arg,
    words: Vec<OsString>,
}

/// The settings of a file, or of `--set`.
#[derive(Default)]
struct Settings<'a>(Vec<Setting<'a>>);

impl<'a> Settings<'a> {
    fn has(&self, option: &Arg) -> bool {
        self.0.iter().any(|setting| setting.option.get_id() == option.get_id())
    }

    /// Adds a setting. It replaces an earlier one of the same option, unless that has a list of values.
    fn add(&mut self, mut setting: Setting<'a>) {
        let same = self.0.iter().position(|other| other.option.get_id() == setting.option.get_id());
        if let Some(mut before) = same.map(|i| self.0.remove(i))
            && matches!(setting.option.get_action(), ArgAction::Append)
        {
            before.words.append(&mut setting.words);
            setting.words = before.words;
        }
        self.0.push(setting);
    }
}

/// Returns whether an option is among the words of a command line.
fn is_given(words: &[OsString], option: &Arg) -> bool {
    let long = option.get_long().map(|name| format!("--{name}"));
    let short = option.get_short().map(|letter| format!("-{letter}"));
    let is_it = |word: &str| {
        let rest = long.as_deref().and_then(|name| word.strip_prefix(name));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
            || short.as_deref().is_some_and(|name| word.starts_with(name))
    };
    words.iter().skip(1).take_while(|word| *word != "--").any(|word| word.to_str().is_some_and(is_it))
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

/// Returns a setting with the words of its option.
fn setting<'a>(command: &'a Command, key: &str, value: &Value) -> Result<Setting<'a>> {
    let name = key.replace('_', "-");
    let known = || {
        let named = command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
        named.filter(|(name, _)| !["config", "set", "help"].contains(name))
    };
    let Some((_, option)) = known().find(|(known, _)| *known == name) else {
        let shown = known().filter(|(_, arg)| !arg.is_hide_set());
        let note = nearest_names("settings", &name, shown.map(|(name, _)| name));
        return Err(Error::new(ErrorKind::Argument, format!("there is no setting {key:?}")).note(note));
    };
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        _ => None,
    };
    let wrong = || Error::argument(format!("the setting {key:?} cannot be of type {}", value.type_str()));
    let word = |value: &str| OsString::from(format!("--{name}={value}"));
    let words = match value {
        Value::Boolean(is_on) if is_flag(command, key) => match is_on {
            true => vec![format!("--{name}").into()],
            false => Vec::new(),
        },
        _ if is_flag(command, key) => return Err(wrong().note("it is true or false")),
        Value::Array(list) => {
            let list: Option<Vec<String>> = list.iter().map(text).collect();
            let list = list.ok_or_else(wrong)?;
            match (option.get_value_delimiter(), option.get_action()) {
                _ if list.is_empty() => Vec::new(),
                (Some(delimiter), _) => vec![word(&list.join(&delimiter.to_string()))],
                (None, ArgAction::Append) => list.iter().map(|value| word(value)).collect(),
                _ => return Err(wrong().note("it has one value")),
            }
        }
        _ => vec![word(&text(value).ok_or_else(wrong)?)],
    };
    Ok(Setting { option, words })
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

    /// A setting that does not apply would be an error, too.
    #[test]
    fn the_nearest_settings_are_those_that_apply() {
        let e = |options: &[&str]| {
            let e = matches_without(Own::command(), options, ["own", "--set", "fres=true"]).unwrap_err();
            e.to_string()
        };
        assert!(e(&[]).contains("fresh"), "{}", e(&[]));
        assert!(!e(&["--fresh"]).contains("fresh"), "{}", e(&["--fresh"]));
    }

    /// A program with options of its own.
    #[derive(Debug, Parser)]
    struct Own {
        #[arg(long)]
        config: Option<std::path::PathBuf>,
        #[arg(long)]
        set: Vec<String>,
        #[arg(long)]
        fresh: bool,
        #[arg(long)]
        name: Option<String>,
        #[arg(long, short)]
        data: Vec<String>,
        #[arg(long, value_delimiter = ',')]
        devices: Vec<String>,
    }

    fn own(file: &str, words: &[&str]) -> Result<Own> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.toml");
        std::fs::write(&path, file).unwrap();
        let words = ["own", "--config", path.to_str().unwrap()].into_iter().chain(words.iter().copied());
        parse_from(words.collect::<Vec<_>>())
    }

    #[test]
    fn a_flag_of_the_file_can_be_turned_off() {
        assert!(own("fresh = true", &[]).unwrap().fresh);
        assert!(!own("fresh = true", &["--set", "fresh=false"]).unwrap().fresh);
        assert!(own("fresh = false", &["--set", "fresh=true"]).unwrap().fresh);
        assert!(own("fresh = true", &["--set", "fresh=false", "--fresh"]).unwrap().fresh);
        assert!(own("", &["--set", "fresh=false", "--set", "fresh=true"]).unwrap().fresh);
    }

    #[test]
    fn a_list_is_replaced_as_a_whole() {
        let file = "data = [\"a, b\", \"c\"]\ndevices = [\"x\", \"y\"]";
        let read = |words: &[&str]| own(file, words).unwrap();
        assert_eq!(
            (read(&[]).data, read(&[]).devices),
            (vec!["a, b".into(), "c".into()], vec!["x".into(), "y".into()])
        );
        assert_eq!(read(&["--data", "d"]).data, ["d"]);
        assert_eq!(read(&["-d", "d"]).data, ["d"]);
        assert_eq!(read(&["--set", "data=d", "--set", "data=e"]).data, ["d", "e"]);
        assert_eq!(read(&["--set", "devices=z"]).devices, ["z"]);
        assert!(own("data = []", &[]).unwrap().data.is_empty());
        for (file, named) in [
            ("name = [\"a\", \"b\"]", "array"),
            ("[name]\nx = 1", "table"),
            ("name = 1979-05-27", "datetime"),
            ("set = [\"a=b\"]", "set"),
            ("name = \"a\"\nconfig = \"b\"", "config"),
        ] {
            let e = own(file, &[]).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Argument, "{e}");
            assert!(e.message().contains(named) && e.message().contains("run.toml"), "{e}");
        }
    }

    #[test]
    fn given_options_have_those_of_the_program() {
        let words = ["own", "--data", "a", "--data", "b", "--fresh", "--set", "name=x y"];
        let words = with_settings(&Own::command(), words).unwrap();
        let matches = Own::command().try_get_matches_from(words).unwrap();
        let expected =
            serde_json::json!({"data": ["a", "b"], "fresh": true, "name": "x y", "set": "name=x y"});
        assert_eq!(serde_json::Value::from(given_options(&Own::command(), &matches)), expected);
    }

    #[test]
    fn the_process_knows_which_options_do_not_apply() {
        // It takes the command line of the tests.
        let words = Arg::new("words").num_args(0..).trailing_var_arg(true).allow_hyphen_values(true);
        process_matches(Args::command().arg(words), &["--color"]).unwrap();
        assert!(!process_takes("--color") && process_takes("--trainer"));
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
