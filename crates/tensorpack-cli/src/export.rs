//! `tensorpack export`: converts exported models and ONNX files.

use clap::Args;
use std::path::PathBuf;
use tensorpack::predict::{ExportedModel, OnnxOptions};
use tensorpack::{Error, Result};

/// The arguments of `tensorpack export`.
#[derive(Args)]
pub(crate) struct ExportArgs {
    /// The model: a file that `OfflinePredictor::export` wrote, or an ONNX file.
    model: PathBuf,
    /// The ONNX file to write.
    #[arg(long, value_name = "FILE", required_unless_present = "safetensors")]
    onnx: Option<PathBuf>,
    /// The safetensors file to write, as `OfflinePredictor::export` does.
    #[arg(long, value_name = "FILE")]
    safetensors: Option<PathBuf>,
    /// Store the weights of convolutions and linear layers in the safetensors file as 8-bit integers.
    #[arg(long, requires = "safetensors")]
    int8: bool,
    /// Fold batch normalization into the weights before it.
    #[arg(long)]
    fold: bool,
    /// Store the weights beside the model, in FILE.data. Weights of more than 1.5 GiB always are.
    #[arg(long)]
    external_data: bool,
    /// Add an entry to the metadata of the ONNX model. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    metadata: Vec<String>,
}

impl ExportArgs {
    /// Writes the model, and returns a description of its inputs and outputs.
    pub(crate) fn run(&self) -> Result<String> {
        let mut options = OnnxOptions::default();
        if self.external_data {
            options = options.external_data(true);
        }
        for entry in &self.metadata {
            let (key, value) = entry
                .split_once('=')
                .ok_or_else(|| Error::argument(format!("--metadata {entry:?} is not KEY=VALUE")))?;
            options = options.metadata(key, value);
        }
        let mut model = ExportedModel::load(&self.model)?;
        if self.fold {
            model = model.folded()?;
        }
        let size = |n: &Option<usize>| n.map_or("?".to_string(), |n| n.to_string());
        let mut text = String::new();
        if let Some(path) = &self.onnx {
            model.export_onnx(path, &options)?;
            text += &format!("wrote {}\n", path.display());
        }
        if let Some(path) = &self.safetensors {
            if self.int8 {
                model.export_int8(path)?
            } else {
                model.export(path)?
            }
            text += &format!("wrote {}\n", path.display());
        }
        for input in model.inputs() {
            let sizes = input.sizes.iter().map(size).collect::<Vec<_>>().join(", ");
            text += &format!("  input {}: {}[{sizes}]\n", input.name, input.dtype);
        }
        for output in model.outputs() {
            text += &format!("  output {output}\n");
        }
        Ok(text)
    }
}
