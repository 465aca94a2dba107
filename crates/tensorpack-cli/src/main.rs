//! The command `tensorpack`: installs plugins for the XLA engine and MPI, reports which devices a
//! machine has, starts programs as several ranks, shows and converts files of weights, and exports
//! models to ONNX.

mod doctor;
mod export;
mod install;
mod launch;
mod nvidia;
mod packages;
mod weights;
mod wheel;

use clap::{CommandFactory, Parser, Subcommand};
use export::ExportArgs;
use launch::LaunchArgs;
use packages::Package;
use std::io::{self, ErrorKind, Write, stdout};
use std::process::ExitCode;
use tensorpack::Result;
use weights::WeightsCommand;

/// Installs plugins for the XLA engine and MPI, reports which devices a machine has, starts
/// programs as several ranks, shows and converts files of weights, and exports models to ONNX.
#[derive(Parser)]
#[command(name = "tensorpack", version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// Manage plugins for the XLA engine, and MPI.
    #[command(subcommand)]
    Plugin(PluginCommand),
    /// Report which engines and devices are available, and how to get what is missing.
    Doctor,
    /// Start a program as several ranks, with mpiexec: tensorpack launch -n 4 -- PROGRAM.
    Launch(LaunchArgs),
    /// Show, compare and convert files of weights: safetensors, npz, PyTorch.
    #[command(subcommand)]
    Weights(WeightsCommand),
    /// Convert an exported model: tensorpack export MODEL.safetensors --onnx MODEL.onnx.
    Export(ExportArgs),
}

#[derive(Subcommand)]
enum PluginCommand {
    /// Install a plugin with pip.
    Install {
        /// The plugin to install.
        #[arg(value_parser = packages::parser())]
        name: &'static Package,
        /// Print what would be downloaded and where it would be installed, and do nothing.
        #[arg(long)]
        dry_run: bool,
    },
}

fn main() -> Result<ExitCode> {
    let cli: Cli = tensorpack::command_line::parse()?;
    match cli.command {
        Some(Command::Plugin(PluginCommand::Install { name, dry_run: true })) => {
            printed(stdout().write_all(install::plan(name)?.as_bytes()))
        }
        Some(Command::Plugin(PluginCommand::Install { name, dry_run: false })) => {
            install::install(name, &mut stdout())
        }
        Some(Command::Doctor) => printed(doctor::report(&mut stdout())),
        Some(Command::Launch(args)) if args.dry_run => {
            printed(writeln!(stdout(), "{}", launch::words(&args.command()?)))
        }
        Some(Command::Launch(args)) => return args.run(),
        Some(Command::Weights(command)) => return weights(&command),
        Some(Command::Export(args)) => printed(stdout().write_all(args.run()?.as_bytes())),
        None => printed(write!(stdout(), "{}", Cli::command().render_help())),
    }
    .map(|()| ExitCode::SUCCESS)
}

fn weights(command: &WeightsCommand) -> Result<ExitCode> {
    // Written at the end, so that a closed pipe is not taken for a broken file.
    let mut text = Vec::new();
    let result = command.run(&mut text);
    printed(stdout().write_all(&text))?;
    Ok(if result? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Forgives a reader that has seen enough and closed the pipe, such as `head -1`.
fn printed(result: io::Result<()>) -> Result<()> {
    match result {
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}
