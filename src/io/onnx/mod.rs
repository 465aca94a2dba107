//! ONNX models as parts of a graph.
//!
//! [`OnnxFile`] reads a model, and [`OnnxFile::build`] adds its nodes to a graph, with its weights as
//! variables. Arithmetic on shapes is done while the graph is built (`fold.rs`), so that the chains
//! of `Shape`, `Gather` and `Concat` of real exports disappear.
//!
//! Images are `[batch, channels, height, width]` in ONNX, and channels last here. They stay in our
//! layout between operations that know both (`Value::ChannelsLast`).

mod attributes;
mod convolution;
mod elementwise;
mod external_data;
mod fold;
mod linear;
mod node_cx;
mod normalization;
mod operators;
mod recurrent;
mod reduction;
mod rearrange;
mod resize;
mod translator;
mod value;

use crate::graph::{Tensor, TensorSpec};
use crate::onnx::{Dimension, Model, Node, OnnxGraph, parse};
use crate::tower::TowerContext;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};
use translator::Translator;

/// The newest version of the standard operator set whose operations are known.
const NEWEST_OPSET: i64 = 24;

/// A model that was read from a file and uses only known operations.
#[derive(Debug)]
pub(crate) struct OnnxFile {
    model: Model,
    inputs: Vec<TensorSpec>,
    /// The names of inputs in the file.
    names: Vec<String>,
    outputs: Vec<String>,
}

impl OnnxFile {
    /// Reads a model. Returns an error that lists all unknown operations, with their counts.
    #[track_caller]
    pub(crate) fn read(path: &Path) -> Result<OnnxFile> {
        let bytes = external_data::read_model(path)?;
        let model = parse(&bytes, &|file, offset, length| external_data::read(path, file, offset, length))?;
        OnnxFile::new(model)
    }

    #[track_caller]
    fn new(model: Model) -> Result<OnnxFile> {
        check_operations(&model)?;
        let graph = &model.graph;
        let weights: HashMap<&str, &HostTensor> =
            graph.initializers.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let (mut inputs, mut names) = (Vec::new(), Vec::new());
        let mut taken = Vec::new();
        // Files of old versions list weights among the inputs.
        for input in graph.inputs.iter().filter(|input| !weights.contains_key(input.name.as_str())) {
            let Some((dtype, dims)) = input.dtype.zip(input.dims.as_ref()) else {
                let why = format!("input {:?} is not a tensor of a known type and rank", input.name);
                return Err(Error::new(ErrorKind::Unsupported, why));
            };
            let size = |d: &Dimension| match d {
                Dimension::Size(n) => Some(*n),
                _ => None,
            };
            let name = valid_name(&input.name, &mut taken);
            inputs.push(TensorSpec::new(name, dtype, dims.iter().map(size).collect::<Vec<_>>()));
            names.push(input.name.clone());
        }
        if graph.outputs.is_empty() {
            return Err(Error::new(ErrorKind::Io, "the model has no outputs"));
        }
        let mut taken = Vec::new();
        let outputs = graph.outputs.iter().map(|output| valid_name(&output.name, &mut taken)).collect();
        Ok(OnnxFile { model, inputs, names, outputs })
    }

    /// Returns the inputs, in order.
    pub(crate) fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// Returns the metadata of the model.
    pub(crate) fn metadata(&self) -> &BTreeMap<String, String> {
        &self.model.metadata
    }

    /// Returns the names of the outputs, in order.
    pub(crate) fn outputs(&self) -> &[String] {
        &self.outputs
    }

    /// Adds the model to the graph of a tower. `variable` creates (or shares) a variable of this
    /// name, value and whether it is trainable. Returns the outputs.
    pub(crate) fn build(
        &self,
        t: &TowerContext,
        inputs: &[&Tensor],
        variable: &dyn Fn(&str, HostTensor, bool) -> Tensor,
    ) -> Result<Vec<Tensor>> {
        let opset = self.model.opsets.get("").copied().unwrap_or(1);
        let mut translator = Translator::new(t, opset, variable);
        for (name, &tensor) in self.names.iter().zip(inputs) {
            translator.define(name, value::Value::tensor(tensor));
        }
        translator.graph(&self.model.graph)?;
        self.model.graph.outputs.iter().map(|output| translator.output(&output.name)).collect()
    }
}

/// Returns an error if the model uses something unknown; it lists all of it.
fn check_operations(model: &Model) -> Result<()> {
    let mut unknown: BTreeMap<String, usize> = BTreeMap::new();
    count_unknown(&model.graph, &mut unknown);
    if !unknown.is_empty() {
        let list: Vec<String> = unknown.iter().map(|(name, count)| format!("{name} ({count})")).collect();
        let why = format!("the model uses unsupported ONNX operations: {}", list.join(", "));
        return Err(Error::new(ErrorKind::Unsupported, why));
    }
    match model.opsets.get("") {
        Some(&version) if version > NEWEST_OPSET => {
            let why = format!("the model needs opset {version}; the newest supported one is {NEWEST_OPSET}");
            Err(Error::new(ErrorKind::Unsupported, why))
        }
        _ => Ok(()),
    }
}

fn count_unknown(graph: &OnnxGraph, unknown: &mut BTreeMap<String, usize>) {
    for node in &graph.nodes {
        if operators::find(node).is_none() {
            let Node { domain, op_type, .. } = node;
            let name = if domain.is_empty() { op_type.clone() } else { format!("{domain}.{op_type}") };
            *unknown.entry(name).or_default() += 1;
        }
        for (_, attribute) in &node.attributes {
            if let crate::onnx::Attribute::Graph(body) = attribute {
                count_unknown(body, unknown);
            }
        }
    }
}

/// Returns a name that tensors and variables can have, and that differs from those in `taken`.
fn valid_name(name: &str, taken: &mut Vec<String>) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() || "_-./".contains(c) { c } else { '_' };
    let name: String = name.chars().map(valid).collect();
    let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty()).collect();
    // The word is reserved for replicas.
    let base = if parts.is_empty() { "unnamed".into() } else { parts.join("/").replace("tower", "tow_er") };
    let mut unique = base.clone();
    let mut n = 0;
    while taken.contains(&unique) {
        n += 1;
        unique = format!("{base}_{n}");
    }
    taken.push(unique.clone());
    unique
}

/// Returns whether a path names an ONNX file.
pub(crate) fn is_onnx(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("onnx"))
}

/// Returns the type in which a tensor of integers is used as indices.
fn is_index(dtype: DType) -> bool {
    matches!(dtype, DType::I32 | DType::I64)
}
