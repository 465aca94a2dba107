//! Measures how long a file of weights takes to load, compared with reading its bytes.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;
use tensorpack::{Result, io};

/// The options of `bench -- load`.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// A file of weights: PyTorch, safetensors, npz or ONNX.
    file: PathBuf,
    /// Times that the file is read and loaded, in turns.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: usize,
}

pub(crate) fn measure(args: &LoadArgs) -> Result<()> {
    let (mut read, mut load) = (Vec::new(), Vec::new());
    let (mut bytes, mut tensors) = (0, 0);
    for _ in 0..args.rounds.max(1) {
        let began = Instant::now();
        bytes = black_box(std::fs::read(&args.file)?).len();
        read.push(began.elapsed().as_secs_f64() * 1e3);
        let began = Instant::now();
        tensors = black_box(io::read_tensors(&args.file, None)?).len();
        load.push(began.elapsed().as_secs_f64() * 1e3);
    }
    let best = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let (read, load) = (best(&read), best(&load));
    println!(
        "{:.1} MB, {tensors} tensors: read in {read:.1} ms, loaded in {load:.1} ms (best of {}): ratio {:.2}",
        bytes as f64 / 1e6,
        args.rounds.max(1),
        load / read
    );
    Ok(())
}
