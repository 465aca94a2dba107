//! Starts a program as several ranks, with the `mpiexec` of the MPI library that is found.

use std::env;
use std::ffi::OsString;
use std::process::{Command, ExitCode};
use tensorpack::Result;
use tensorpack_mpi::{Mpiexec, find_library};
use tensorpack_rendezvous::Token;

/// What to start, and where.
#[derive(clap::Args)]
pub(crate) struct LaunchArgs {
    /// The number of ranks.
    #[arg(short = 'n', long = "ranks", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    ranks: u16,
    /// The hosts to start them on, separated by commas (default: this one).
    #[arg(long, value_delimiter = ',', value_name = "HOST")]
    hosts: Vec<String>,
    /// Print the command, and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The program and its arguments.
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

impl LaunchArgs {
    /// The command of the launcher. All ranks get the same token, that of the environment or a new
    /// one.
    pub(crate) fn command(&self) -> Result<Command> {
        let mpiexec = Mpiexec::find(&find_library()?)?;
        let (program, arguments) = self.program.split_first().expect("clap requires a program");
        let mut command = mpiexec.command(self.ranks.into(), &self.hosts, &[Token::VARIABLE], program)?;
        command.args(arguments);
        if env::var_os(Token::VARIABLE).is_none() {
            command.env(Token::VARIABLE, Token::random().as_str());
        }
        Ok(command)
    }

    /// Becomes the launcher, so that signals for this process reach it: a supervisor that stops this
    /// process stops the ranks. Returns only if that fails.
    #[cfg(unix)]
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let mut command = self.command()?;
        let e = std::os::unix::process::CommandExt::exec(&mut command);
        Err(tensorpack::Error::from(e).within(command.get_program().to_string_lossy()))
    }

    /// Runs the launcher to its end. Returns its exit status.
    #[cfg(not(unix))]
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let mut command = self.command()?;
        let status = command
            .status()
            .map_err(|e| tensorpack::Error::from(e).within(command.get_program().to_string_lossy()))?;
        Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
    }
}

/// The words of a command, for the user to read.
pub(crate) fn words(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let quoted = words.map(|word| {
        let word = word.to_string_lossy();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+".contains(c);
        match !word.is_empty() && word.chars().all(is_plain) {
            true => word.into_owned(),
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}
