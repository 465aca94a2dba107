//! `bench -- step --model mlp|mnist|resnet32|resnet50|ptb|dcgan --devices cpu:0 --batch B [--threads-per-device N] [--steps N] [--json]`:
//! the time of a training step of a reference model on synthetic data; on several devices (`cpu:0,cpu:1`) of a tower on
//! each, with a batch of its own. With `--input dataflow`, of the trainer's own loop on images of whole numbers that come
//! from memory through a queue, against images that are on the device already.
//!
//! `bench -- dataflow --jpegs DIR [--workers N] [--batch B] [--steps N] [--json]`: how fast photographs become batches.
//!
//! `bench -- loop [--steps N] [--json]`: what the loop around a step costs. `bench -- input [--steps N] [--json]`: what
//! waiting for data costs behind each kind of input. `bench -- scale`: how the time of a step grows with batch, depth and
//! width.

mod classifier;
mod classifiers;
mod dataflow;
mod dcgan;
mod fed;
mod input;
mod loop_overhead;
mod memory;
mod models;
mod ptb;
#[path = "../../examples/resnet50/net.rs"]
mod resnet50;
mod roof;
mod scale;
mod step;
mod towers;

use lexopt::prelude::*;
use models::Model;
use std::process::ExitCode;
use std::time::Instant;
use tensorpack::DType;
use tensorpack::runtime::Device;
use tensorpack::runtime::cpu::Isa;

const USAGE: &str = "usage: bench -- step --model mlp|mnist|resnet32|resnet50|ptb|dcgan [--devices cpu:0,..] [--batch B]
              [--dtype f32|bf16] [--threads-per-device N] [--steps N] [--isa avx512|avx2|plain] [--json] [--profile] [--plan]
              [--input constant|dataflow]
  --json     one line with the result
  --profile  a table of kernels: share of the step, speed, and share of what the machine can do
  --plan     the plan of the step
  --input dataflow  the trainer's loop on images in memory, batched and queued, against constant images
       bench -- dataflow --jpegs DIR [--workers 2] [--batch 64] [--steps 20] [--json]
  decode, random-resized-crop 224, flip, brightness, contrast and saturation 0.4; batches of u8
  --crops DIR  instead, write one crop of every photograph for bench/peers/opencv_crops.py
       bench -- loop [--steps 1000000] [--json]
       bench -- input [--steps 200] [--json]
       bench -- scale";

/// What is measured.
#[derive(Debug)]
struct Options {
    model: Model,
    /// A tower on each.
    devices: Vec<Device>,
    /// Of activations and products.
    dtype: DType,
    /// Of each tower; `None`: the model's own.
    batch: Option<usize>,
    threads: Option<usize>,
    isa: Option<Isa>,
    steps: usize,
    json: bool,
    profile: bool,
    plan: bool,
    /// Whether to measure what a dataflow costs.
    dataflow: bool,
}

fn main() -> ExitCode {
    let started = Instant::now();
    let run = || -> Result<(), Box<dyn std::error::Error>> {
        let mut args = lexopt::Parser::from_env();
        match args.next()? {
            Some(Value(v)) if v == "step" => {
                let options = parse(args)?;
                Ok(if options.dataflow { fed::measure(&options) } else { step::measure(&options, started) }?)
            }
            Some(Value(v)) if v == "dataflow" => {
                Ok(dataflow::measure(&dataflow::Options::parse(args)?, started)?)
            }
            Some(Value(v)) if v == "loop" => loop_overhead::measure(args),
            Some(Value(v)) if v == "input" => input::measure(args),
            Some(Value(v)) if v == "scale" => scale::measure(args),
            _ => Err(USAGE.into()),
        }
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut args: lexopt::Parser) -> Result<Options, Box<dyn std::error::Error>> {
    let mut options = Options {
        model: Model::Mlp,
        devices: vec![Device::Cpu(0)],
        dtype: DType::F32,
        batch: None,
        threads: None,
        isa: None,
        steps: 50,
        json: false,
        profile: false,
        plan: false,
        dataflow: false,
    };
    while let Some(arg) = args.next()? {
        match arg {
            Long("model") => options.model = args.value()?.parse()?,
            Long("devices") => {
                let names = args.value()?.string()?;
                options.devices = names.split(',').map(str::parse).collect::<tensorpack::Result<_>>()?;
            }
            Long("batch") => options.batch = Some(args.value()?.parse()?),
            Long("threads-per-device") => options.threads = Some(args.value()?.parse()?),
            Long("steps") => options.steps = args.value()?.parse()?,
            Long("dtype") => {
                let name = args.value()?.string()?;
                let dtype = [DType::F32, DType::Bf16].into_iter().find(|d| d.to_string() == name);
                options.dtype = dtype.ok_or_else(|| format!("{name} is none of f32, bf16"))?;
            }
            Long("isa") => {
                let name = args.value()?.string()?;
                let isa = [Isa::Plain, Isa::Avx2, Isa::Avx512].into_iter().find(|i| i.to_string() == name);
                options.isa = Some(isa.ok_or_else(|| format!("{name} is none of plain, avx2, avx512"))?);
            }
            Long("json") => options.json = true,
            Long("profile") => options.profile = true,
            Long("plan") => options.plan = true,
            Long("input") => {
                let name = args.value()?.string()?;
                options.dataflow = match name.as_str() {
                    "constant" => false,
                    "dataflow" => true,
                    _ => return Err(format!("{name} is none of constant, dataflow").into()),
                }
            }
            Long("help") => return Err(USAGE.into()),
            other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
        }
    }
    Ok(options)
}
