//! `tensorpack export`: converts exported models to ONNX.

use clap::Args;
use std::path::PathBuf;
use tensorpack::predict::{ExportedModel, OnnxOptions};
use tensorpack::{Error, Result};

/// The arguments of `tensorpack export`.
#[derive(Args)]
pub(crate) struct ExportArgs {
    /// The model: a file that `OfflinePredictor::export` wrote.
    model: PathBuf,
    /// The ONNX file to write.
    #[arg(long, value_name = "FILE")]
    onnx: PathBuf,
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
        let model = ExportedModel::load(&self.model)?;
        model.export_onnx(&self.onnx, &options)?;
        let size = |n: &Option<usize>| n.map_or("?".to_string(), |n| n.to_string());
        let mut text = format!("wrote {}\n", self.onnx.display());
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
