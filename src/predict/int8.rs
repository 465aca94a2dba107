//! Models whose large layers multiply 8-bit integers.

use super::graph_file::TensorRef;
use super::quantize::quantize;
use super::rewriting::{NewVariable, Rewriting};
use super::{ExportedModel, OfflinePredictor};
use crate::ops::{INT8_GROUP, INT8_MAX_TERMS};
use std::panic::Location;
use tensorpack_tensor::{DType, Result};

/// Sums of fewer terms stay in f32: to quantize the input would take as long as to multiply it.
const MIN_TERMS: usize = 32;
/// Layers with fewer output channels stay in f32.
const MIN_CHANNELS: usize = 16;

impl OfflinePredictor {
    /// Returns the model with large convolutions and linear layers that multiply 8-bit integers,
    /// which CPUs with AVX-512 VNNI do several times as fast as f32. Call it on a
    /// [folded](OfflinePredictor::folded) model: `predictor.folded()?.int8()?`.
    ///
    /// Weights become integers from -127 to 127 with one scale per output channel; activations do
    /// at run time, with one scale per row of a matrix or per image. With `n` terms in a sum, the
    /// largest weight `w` of the channel and the largest activation `x` of the row or image, an
    /// output changes by at most `n * w * x / 126`, and usually by far less, since rounding errors
    /// cancel out. Sums of integers are exact, so the outputs are the same bits on every CPU and for
    /// any number of threads.
    ///
    /// Layers stay as they are if they have fewer than 32 terms, fewer than 16 output channels or
    /// 1024 weights, a number of input channels that is not a multiple of 4, weights that are no
    /// constants, or another type than f32; so do depthwise convolutions, whose sums are short.
    #[doc(alias = "quantize_dynamic")]
    #[track_caller]
    pub fn int8(&self) -> Result<ExportedModel> {
        let caller = Location::caller();
        let (file, tensors, indices) = self.graph_file(true)?;
        let mut model = Rewriting::new(self.session.graph(), file, &indices);
        let layers: Vec<usize> = (model.before()..model.nodes.len()).filter(|&i| fits(&model, i)).collect();
        let weight = |layer: usize| model.file.operations[layer - model.before()].inputs[1];
        let values = model.values(&self.session, layers.iter().map(|&layer| weight(layer)).collect())?;
        let mut new = Vec::new();
        for layer in layers {
            let (before, all) = (model.before(), model.nodes.len());
            let old: TensorRef = model.file.operations[layer - before].inputs[1];
            let Some((integers, scale)) = quantize(&values[&old])? else { continue };
            let variable = old.0.checked_sub(model.file.inputs.len());
            let variable = variable.and_then(|i| model.file.variables.get(i)).cloned();
            let operation = &mut model.file.operations[layer - before];
            let name = variable.unwrap_or_else(|| format!("{}/W", operation.name));
            operation.op.insert_str(0, "Int8");
            operation.inputs.truncate(1);
            for (name, value) in [(name.clone(), integers), (format!("{name}_scale"), scale)] {
                operation.inputs.push((all + new.len(), 0));
                new.push(NewVariable { name, trainable: false, value });
            }
        }
        let (file, tensors) = model.without_unused(new, tensors);
        let mut loaded = file.rebuild(tensors, caller)?;
        loaded.metadata = self.metadata.clone();
        ExportedModel::from_graph(loaded, self.session.options().clone())
    }
}

/// Returns whether the operation with this index is a layer that is faster with integers.
fn fits(model: &Rewriting<'_>, index: usize) -> bool {
    let Some(operation) = model.operation(index) else { return false };
    let &[x, weight] = &operation.inputs[..] else { return false };
    let rank = match operation.op.as_str() {
        "Conv2d" => 4,
        "MatMul" => 2,
        _ => return false,
    };
    let Some(sizes) = model.spec(weight).shape.known().filter(|sizes| sizes.len() == rank) else {
        return false;
    };
    let terms: usize = sizes[..rank - 1].iter().product();
    model.spec((index, 0)).dtype == DType::F32
        && model.constant[weight.0]
        && !model.constant[x.0]
        && (MIN_TERMS..=INT8_MAX_TERMS).contains(&terms)
        && sizes[rank - 2].is_multiple_of(INT8_GROUP)
        && sizes[rank - 1] >= MIN_CHANNELS
}
