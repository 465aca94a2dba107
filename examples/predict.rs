//! Runs an exported model without its code.
//!
//! `cargo run --release --example predict -- model.safetensors` prints the model's outputs for zero
//! inputs. `OfflinePredictor::export` writes such files.

use clap::Parser;
use std::path::PathBuf;
use tensorpack::prelude::*;
use tensorpack::say;

/// Runs an exported model on zeros.
#[derive(Parser)]
struct Args {
    /// The exported model.
    file: PathBuf,
}

fn main() -> Result<()> {
    let Args { file } = tensorpack::command_line::parse()?;
    let model = ExportedModel::load(file)?;
    let zeros = |s: &TensorSpec| {
        HostTensor::zeros(s.dtype, s.sizes.iter().map(|n| n.unwrap_or(1)).collect::<Vec<_>>())
    };
    let inputs = model.inputs().iter().map(zeros).collect::<Result<Vec<_>>>()?;
    for (name, y) in model.outputs().zip(model.predict(&inputs.iter().collect::<Vec<_>>())?) {
        say!("{name}: {y:?}");
    }
    Ok(())
}
