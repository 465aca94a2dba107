//! The command `tensorpack`: installs plugins for the XLA engine and MPI, reports which devices a
//! machine has, starts programs as several ranks, shows, compares and repeats runs, shows checkpoints
//! and files of weights, exports models to ONNX, serves models over HTTP, and shows runs on a web page.

mod checkpoint;
mod child_process;
#[cfg(feature = "dashboard")]
mod dashboard;
mod doctor;
mod export;
mod install;
mod launch;
mod nvidia;
mod packages;
#[cfg(feature = "plot")]
mod plot;
#[cfg(feature = "plot")]
mod png_picture;
mod rerun;
mod run_dir;
mod runs;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "plot")]
mod stroke_font;
mod table;
mod warning;
mod weights;
mod wheel;

use checkpoint::CheckpointCommand;
use clap::{CommandFactory, Parser, Subcommand};
#[cfg(feature = "dashboard")]
use dashboard::DashboardArgs;
use export::ExportArgs;
use launch::LaunchArgs;
use packages::Package;
#[cfg(feature = "plot")]
use plot::PlotArgs;
use rerun::{ReplayArgs, VerifyArgs};
use runs::RunsCommand;
use std::io::{self, ErrorKind, Write, stdout};
use std::process::ExitCode;
use tensorpack::Result;
use weights::WeightsCommand;

/// Installs plugins for the XLA engine and MPI, reports which devices a machine has, starts
/// programs as several ranks, shows, compares and repeats runs, shows checkpoints and files of
/// weights, exports models to ONNX, serves models over HTTP, and shows runs on a web page.
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
    /// List, show and compare runs.
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Draw statistics of runs: tensorpack plot DIR.. -s validation_error -o out.svg.
    #[cfg(feature = "plot")]
    Plot(PlotArgs),
    /// List, show, extract, compare, average and verify checkpoints.
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Train a part of a run again and compare the bits with its checkpoints. The exit status is 1 if
    /// they differ.
    Verify(VerifyArgs),
    /// Run one step of a run again and write all its tensors to a file.
    Replay(ReplayArgs),
    /// Show, compare and convert files of weights: safetensors, npz, PyTorch.
    #[command(subcommand)]
    Weights(WeightsCommand),
    /// Convert an exported model: tensorpack export MODEL.safetensors --onnx MODEL.onnx.
    Export(ExportArgs),
    /// Serve a model over HTTP: tensorpack serve MODEL.safetensors --port 8000.
    #[cfg(feature = "serve")]
    Serve(serve::ServeArgs),
    /// Show runs on a web page while they train: tensorpack dashboard train_log.
    #[cfg(feature = "dashboard")]
    Dashboard(DashboardArgs),
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
        Some(Command::Runs(command)) => printed(stdout().write_all(command.run()?.as_bytes())),
        #[cfg(feature = "plot")]
        Some(Command::Plot(args)) => printed(stdout().write_all(args.run()?.as_bytes())),
        Some(Command::Checkpoint(command)) => return report(|out| command.run(out)),
        Some(Command::Verify(args)) => return report(|out| args.run(out)),
        Some(Command::Replay(args)) => return report(|out| args.run(out).map(|()| true)),
        Some(Command::Weights(command)) => return report(|out| command.run(out)),
        Some(Command::Export(args)) => printed(stdout().write_all(args.run()?.as_bytes())),
        #[cfg(feature = "serve")]
        Some(Command::Serve(args)) => return args.run(),
        #[cfg(feature = "dashboard")]
        Some(Command::Dashboard(args)) => args.run(&mut stdout()),
        None => printed(write!(stdout(), "{}", Cli::command().render_help())),
    }
    .map(|()| ExitCode::SUCCESS)
}

/// Prints what a command writes. Its result is the exit status.
fn report(command: impl FnOnce(&mut Vec<u8>) -> Result<bool>) -> Result<ExitCode> {
    // Written at the end, so that a closed pipe is not taken for a broken file.
    let mut text = Vec::new();
    let result = command(&mut text);
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
