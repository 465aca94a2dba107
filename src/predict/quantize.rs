//! Weights stored as 8-bit integers in exported files.

use super::OfflinePredictor;
use super::graph_file::GraphFile;
use crate::io::safetensors::Named;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

/// Weights with fewer elements are stored as they are: there is nothing to gain.
const MIN_ELEMENTS: usize = 1024;
/// What stands for 0 in the file, which has no signed bytes.
const ZERO: i16 = 128;
/// The largest magnitude of an integer.
const LARGEST: f64 = 127.0;

impl OfflinePredictor {
    /// Like [`OfflinePredictor::export`], with the weights of convolutions and linear layers as 8-bit
    /// integers and one scale per output channel, which makes the file nearly four times smaller.
    /// They are f32 again when the file is loaded, so neither speed nor memory changes.
    ///
    /// No weight changes by more than 1/254 of the largest weight of its output channel. Weights with
    /// fewer than 1024 elements, and all other variables, are stored exactly.
    pub fn export_int8(&self, path: impl AsRef<Path>) -> Result<()> {
        let (mut graph, tensors, _) = self.graph_file(false)?;
        let weights = weights(&graph);
        let mut stored = Named::new();
        for (name, value) in tensors {
            match weights.contains(name.as_str()).then(|| quantize(&value)).transpose()?.flatten() {
                Some((integers, scale)) => {
                    stored.push((scale_name(&name), scale));
                    graph.quantized.push(name.clone());
                    stored.push((name, integers));
                }
                None => stored.push((name, value)),
            }
        }
        self.write(path.as_ref(), &graph, &stored)
    }
}

/// Returns the variables that a convolution or linear layer multiplies by.
fn weights(graph: &GraphFile) -> BTreeSet<String> {
    let before = graph.inputs.len() + graph.variables.len();
    let operation = |index: usize| graph.operations.get(index.checked_sub(before)?);
    // Grouped convolutions read slices, and ONNX models may have other layouts.
    let is_view = |op: &str| ["Slice", "Cut", "Reshape", "Transpose"].contains(&op);
    let variable = |mut index: usize| {
        while let Some(view) = operation(index).filter(|o| is_view(&o.op)) {
            index = view.inputs.first()?.0;
        }
        graph.variables.get(index.checked_sub(graph.inputs.len())?)
    };
    let layers =
        graph.operations.iter().filter(|o| ["Conv2d", "Depthwise", "MatMul"].contains(&o.op.as_str()));
    layers.filter_map(|o| variable(o.inputs.get(1)?.0)).cloned().collect()
}

fn scale_name(variable: &str) -> String {
    // Variable names contain no colon, and those of constants end with a number.
    format!("{variable}:scale")
}

/// Returns integers and the scale of each output channel, the last dimension. Returns `None` for a
/// tensor that is stored as it is.
pub(super) fn quantize(weight: &HostTensor) -> Result<Option<(HostTensor, HostTensor)>> {
    let channels = weight.sizes().last().copied().unwrap_or(0);
    let is_float = matches!(weight.dtype(), DType::F32 | DType::F64);
    if !is_float || weight.sizes().len() < 2 || weight.len() < MIN_ELEMENTS {
        return Ok(None);
    }
    let values = weight.to_f64_vec();
    let mut scales = vec![0.0f64; channels];
    for (i, value) in values.iter().enumerate() {
        scales[i % channels] = scales[i % channels].max(value.abs() / LARGEST);
    }
    if !values.iter().all(|v| v.is_finite()) {
        return Ok(None);
    }
    // Integers are chosen for the scale that is stored.
    let scale = HostTensor::from_f64(weight.dtype(), [channels], &scales)?;
    let scales = scale.to_f64_vec();
    let integer = |(i, value): (usize, &f64)| match scales[i % channels] {
        0.0 => ZERO as u8,
        scale => ((value / scale).round().clamp(-LARGEST, LARGEST) as i16 + ZERO) as u8,
    };
    let integers = values.iter().enumerate().map(integer).collect::<Vec<u8>>();
    Ok(Some((HostTensor::new(weight.sizes(), integers)?, scale)))
}

/// Replaces the integers of a file by the weights they stand for.
pub(super) fn dequantize(graph: &GraphFile, tensors: Named) -> Result<Named> {
    if graph.quantized.is_empty() {
        return Ok(tensors);
    }
    let quantized: HashSet<&str> = graph.quantized.iter().map(String::as_str).collect();
    let mut tensors: HashMap<String, HostTensor> = tensors.into_iter().collect();
    let mut restored = Named::new();
    for name in quantized {
        let damaged = |why: &str| Error::new(ErrorKind::Io, format!("the quantized weight {name:?} {why}"));
        let integers = tensors.remove(name).ok_or_else(|| damaged("is missing"))?;
        let scale = tensors.remove(&scale_name(name)).ok_or_else(|| damaged("has no scale"))?;
        let channels = integers.sizes().last().copied().unwrap_or(0);
        if !matches!(scale.dtype(), DType::F32 | DType::F64) || scale.sizes() != [channels] {
            return Err(damaged("does not match its scale"));
        }
        let integers_u8 = integers.as_slice::<u8>().map_err(|_| damaged("does not consist of bytes"))?;
        let scales = scale.to_f64_vec();
        let value = |(i, &q): (usize, &u8)| f64::from(i16::from(q) - ZERO) * scales[i % channels];
        let values: Vec<f64> = integers_u8.iter().enumerate().map(value).collect();
        restored.push((name.to_string(), HostTensor::from_f64(scale.dtype(), integers.sizes(), &values)?));
    }
    restored.extend(tensors);
    Ok(restored)
}
