//! Measures tensorpack; `bench -- --help` and `bench -- step --help` list the options.
//!
//! `bench -- step --model mlp|dqn|mnist|resnet32|resnet50|ptb|transformer|dcgan --devices cpu:0 --batch B
//! [--threads-per-device N] [--steps N] [--json]`: the time of a training step of a reference model
//! on synthetic data. With several devices (`cpu:0,cpu:1`) each has a tower with its own
//! batch. On XLA devices, which start a step before the one before has ended, it also measures the
//! trainer's own loop, with `--steps-per-launch`. `--input dataflow` measures that loop on u8 images
//! that are batched in memory and queued, compared with images that are already on the device.
//!
//! `bench -- dataflow --jpegs DIR [--workers N] [--batch B] [--steps N] [--json]`: the speed of
//! decoding and augmenting JPEG images into batches.
//!
//! `bench -- predict --net resnet50|mobilenet_v2|transformer --batch B [--threads N] [--steps N]
//! [--json]`: the time of one prediction with a folded model. `--onnx FILE` writes that model for
//! other runtimes.
//!
//! `bench -- serve --address HOST:PORT [--clients N] [--seconds S]`: the requests that an inference
//! server answers; `--export FILE` writes the net for it.
//!
//! `bench -- load FILE`: the time to load a file of weights, and to read its bytes.
//!
//! `bench -- loop [--steps N] [--json]`: the overhead of the training loop. `bench -- input
//! [--steps N] [--json]`: the time that a step waits for each kind of input. `bench -- scale`: the
//! scaling of the step time with batch size, depth and width; with `--threads 1,2,4`, with the
//! number of threads. `bench -- saves [--every N]`: the rate of training with and without
//! checkpoints.
//!
//! `bench -- scaling [--ranks 2,4,8] [--delay-ms MS] [--mbit MBIT] [--json]`: predicts the step time
//! on several ranks, starts them on hosts of this machine, and measures it. `bench -- network -n N
//! [--delay-ms MS] [--mbit MBIT] -- PROGRAM`: runs any program on such hosts.

mod classifier;
mod classifiers;
mod data_pipeline;
mod dataflow;
mod dcgan;
#[allow(dead_code, reason = "only some of the nets are measured")]
#[path = "../../examples/imagenet/nets/mod.rs"]
mod imagenet_nets;
mod input;
mod load_weights;
mod loop_overhead;
mod memory;
mod models;
mod network;
mod predict;
mod predicted_net;
mod ptb;
#[path = "../../examples/resnet50/net.rs"]
mod resnet50;
mod roofline;
mod saves;
mod scale;
mod scaling;
mod scaling_model;
mod serve_load;
mod shown_cost;
mod step;
mod threads;
mod timed_model;
mod timing;
mod towers;
mod transformer;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use models::Model;
use std::process::ExitCode;
use std::time::Instant;
use tensorpack::graph::Precision;
use tensorpack::runtime::Device;
use tensorpack::runtime::cpu::Isa;

/// Measures tensorpack: training steps of the reference models, predictions, data, and the training
/// loop.
#[derive(Debug, Parser)]
#[command(name = "bench")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The time of a training step of a reference model on synthetic data.
    #[command(args_override_self = true)]
    Step(StepArgs),
    /// The time of one prediction with a folded model.
    #[command(args_override_self = true)]
    Predict(predict::PredictArgs),
    /// The requests per second that an inference server answers, and how long they take.
    #[command(args_override_self = true)]
    Serve(serve_load::ServeArgs),
    /// The speed of decoding, cropping (224x224), flipping and color-jittering JPEG images into u8
    /// batches.
    #[command(args_override_self = true)]
    Dataflow(dataflow::DataflowArgs),
    /// The time to load a file of weights, and to read its bytes.
    #[command(args_override_self = true)]
    Load(load_weights::LoadArgs),
    /// The overhead of the training loop, on the null device with the default callbacks and
    /// monitors.
    #[command(args_override_self = true)]
    Loop {
        /// Steps to time.
        #[arg(long, value_name = "N", default_value_t = 1_000_000)]
        steps: u64,
        /// Print one JSON line.
        #[arg(long)]
        json: bool,
    },
    /// The time that a step waits for each kind of input.
    #[command(args_override_self = true)]
    Input {
        /// Steps to time.
        #[arg(long, value_name = "N", default_value_t = 200)]
        steps: u64,
        /// Print one JSON line.
        #[arg(long)]
        json: bool,
    },
    /// The scaling of the step time with batch size, depth and width; or with the number of threads.
    #[command(args_override_self = true)]
    Scale {
        /// Measure all reference models with each of these numbers of threads, instead of all sizes.
        #[arg(long, value_name = "LIST", value_delimiter = ',', action = ArgAction::Set)]
        threads: Vec<usize>,
    },
    /// The scaling of the step time with the number of ranks, predicted and measured.
    #[command(args_override_self = true)]
    Scaling(scaling::ScalingArgs),
    /// The rate of training with a checkpoint every few steps, against that without.
    #[command(args_override_self = true)]
    Saves(saves::SavesArgs),
    /// Runs a program as ranks on hosts of this machine that a slow network connects.
    Network(network::CommandArgs),
}

/// The values of `--precision`.
const PRECISIONS: [(&str, Precision); 4] =
    [("f32", Precision::F32), ("tf32", Precision::Tf32), ("bf16", Precision::Bf16), ("f16", Precision::F16)];

/// The trainer of several towers, as the `--trainer` of the examples names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Trainer {
    /// The devices of this process; each tower updates its own copy of the variables.
    SyncReplicated,
    /// The devices of this process; each tower updates its share of the variables.
    SyncPs,
    /// Together with the other processes that a launcher started.
    DistReplicated,
    /// Together with the other processes; each updates its share of the variables.
    DistPs,
}

impl Trainer {
    fn is_distributed(self) -> bool {
        matches!(self, Trainer::DistReplicated | Trainer::DistPs)
    }
}

/// The options of `bench -- step`.
#[derive(Debug, Args)]
struct StepArgs {
    /// The reference model.
    #[arg(long, value_name = "NAME", value_enum, default_value = "mlp")]
    model: Model,
    /// The devices, with a tower on each.
    #[arg(long, value_name = "LIST", default_value = "cpu:0", value_delimiter = ',', action = ArgAction::Set)]
    devices: Vec<Device>,
    /// The trainer; defaults to sync-replicated if there are several devices.
    #[arg(long, value_name = "NAME", value_enum)]
    trainer: Option<Trainer>,
    /// The batch size of each tower; the default depends on the model.
    #[arg(long, value_name = "B")]
    batch: Option<usize>,
    /// The precision of activations and matrix products; tf32 is f32 on all devices but NVIDIA GPUs.
    #[arg(long, default_value = "tf32", value_parser = one_of(&PRECISIONS))]
    precision: Precision,
    /// Threads of each device.
    #[arg(long = "threads-per-device", value_name = "N")]
    threads: Option<usize>,
    /// Steps to time.
    #[arg(long, value_name = "N", default_value_t = 50)]
    steps: usize,
    /// The instruction set; defaults to the best that the machine supports.
    #[arg(long, value_parser = one_of(&[("avx512", Isa::Avx512), ("avx2", Isa::Avx2), ("plain", Isa::Plain)]))]
    isa: Option<Isa>,
    /// Steps that one launch runs in the trainer's loop, on XLA devices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    steps_per_launch: usize,
    /// Print one JSON line.
    #[arg(long)]
    json: bool,
    /// Print a table of kernels: share of the step, speed, and share of the machine's peak. On XLA
    /// devices: the host's time by part, per step of the trainer's loop.
    #[arg(long)]
    profile: bool,
    /// Write a timeline of ten steps of the trainer's loop to this directory.
    #[arg(long, value_name = "DIR")]
    timeline: Option<std::path::PathBuf>,
    /// Print the plan of the step and run nothing.
    #[arg(long)]
    plan: bool,
    /// The input: constant tensors, or the trainer's loop on images in memory, batched and queued.
    #[arg(long, value_enum, default_value = "constant")]
    input: Input,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Input {
    Constant,
    Dataflow,
}

/// Parses one of these names into its value.
fn one_of<T: Copy + Send + Sync>(values: &'static [(&'static str, T)]) -> impl TypedValueParser<Value = T> {
    let names = PossibleValuesParser::new(values.iter().map(|(name, _)| *name));
    names.try_map(|text| {
        values.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or("unknown value")
    })
}

fn main() -> ExitCode {
    let started = Instant::now();
    let run = || match tensorpack::command_line::parse::<Cli>()?.command {
        Command::Step(args) if args.input == Input::Dataflow => data_pipeline::measure(&args),
        Command::Step(args) => step::measure(&args, started),
        Command::Predict(args) => predict::measure(&args, started),
        Command::Serve(args) => serve_load::measure(&args),
        Command::Load(args) => load_weights::measure(&args),
        Command::Dataflow(args) => dataflow::measure(&args, started),
        Command::Loop { steps, json } => loop_overhead::measure(steps, json),
        Command::Input { steps, json } => input::measure(steps, json),
        Command::Scale { threads } if threads.is_empty() => scale::measure(),
        Command::Scale { threads } => threads::measure(&threads),
        Command::Scaling(args) => scaling::measure(&args),
        Command::Saves(args) => saves::measure(&args),
        Command::Network(args) => network::run(&args),
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack::command_line::parse_from;

    #[test]
    fn step_options_keep_their_names_and_defaults() {
        let args = |line: &str| match parse_from::<Cli>(line.split(' ')).unwrap().command {
            Command::Step(args) => args,
            other => panic!("{other:?}"),
        };
        let plain = args("bench step");
        assert_eq!(
            (plain.model, plain.batch, plain.precision, plain.steps),
            (Model::Mlp, None, Precision::Tf32, 50)
        );
        assert_eq!((&plain.devices[..], plain.threads, plain.isa), (&[Device::Cpu(0)][..], None, None));
        assert_eq!((plain.trainer, plain.steps_per_launch), (None, 1));
        let given = args(
            "bench step --model resnet50 --devices cpu:0,cpu:1 --batch 8 --precision bf16 --threads-per-device 2 \
             --trainer sync-ps --steps 3 --isa avx2 --json --profile --plan --input dataflow",
        );
        assert_eq!((given.model, given.batch, given.precision), (Model::Resnet50, Some(8), Precision::Bf16));
        assert_eq!(
            (given.devices.len(), given.threads, given.steps, given.isa),
            (2, Some(2), 3, Some(Isa::Avx2))
        );
        assert_eq!(given.trainer, Some(Trainer::SyncPs));
        assert!(given.json && given.profile && given.plan && given.input == Input::Dataflow);
    }

    #[test]
    fn every_reference_model_has_the_name_used_in_results() {
        for model in Model::value_variants() {
            assert_eq!(model.to_possible_value().unwrap().get_name(), model.name());
        }
    }
}
