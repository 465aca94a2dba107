//! Folding of batch normalization, and of any other scale and shift of channels, into the weights of
//! the layer before it.

use super::graph_file::{GraphFile, OperationEntry, TensorRef};
use super::rewriting::{NewVariable, Rewriting};
use super::{ExportedModel, OfflinePredictor};
use crate::io::safetensors::Named;
use crate::runtime::Session;
use serde_json::Value;
use std::collections::HashMap;
use std::panic::Location;
use tensorpack_tensor::{DType, HostTensor, Result};

impl OfflinePredictor {
    /// Returns the model with the arithmetic after each convolution and linear layer folded into its
    /// weights, as far as it only scales and shifts channels: batch normalization becomes a bias.
    /// The outputs are the same except for rounding.
    ///
    /// Weights keep their names; the shift becomes the bias `NAME/b`. Nothing is folded over a tensor
    /// that has another reader or is an output, nor in bf16 and f16.
    #[doc(alias = "freeze")]
    #[track_caller]
    pub fn folded(&self) -> Result<ExportedModel> {
        let caller = Location::caller();
        let (file, tensors, indices) = self.graph_file(true)?;
        let (file, tensors) = Folding { model: Rewriting::new(self.session.graph(), file, &indices) }
            .apply(&self.session, tensors)?;
        let mut loaded = file.rebuild(tensors, caller)?;
        loaded.metadata = self.metadata.clone();
        ExportedModel::from_graph(loaded, self.session.options().clone())
    }
}

/// A layer, and the arithmetic after it.
struct Chain {
    /// The index of the operation that multiplies by weights.
    layer: usize,
    /// The number of its output channels.
    channels: usize,
    steps: Vec<Step>,
}

/// A scale or shift of channels.
struct Step {
    operation: usize,
    kind: Kind,
    by: TensorRef,
}

/// What a step does to `x`, with the constant `k`.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// `x + k`
    Add,
    /// `x - k`
    Sub,
    /// `k - x`
    SubFrom,
    /// `x * k`
    Mul,
    /// `x / k`
    Div,
}

/// The folding of a model.
struct Folding<'a> {
    model: Rewriting<'a>,
}

impl Folding<'_> {
    fn is_output(&self, tensor: TensorRef) -> bool {
        self.model.file.outputs.iter().any(|output| output.tensor == tensor)
    }

    /// Returns the layers with something to fold.
    fn chains(&self) -> Vec<Chain> {
        (self.model.before()..self.model.nodes.len()).filter_map(|layer| self.chain(layer)).collect()
    }

    fn chain(&self, layer: usize) -> Option<Chain> {
        let operation = self.model.operation(layer)?;
        let &[x, weight] = &operation.inputs[..] else { return None };
        let weight_sizes = self.model.spec(weight).shape.known()?;
        let is_layer = match operation.op.as_str() {
            "Conv2d" => true,
            "Depthwise" => operation.attributes["part"] == "Output",
            "MatMul" => weight_sizes.len() == 2,
            _ => false,
        };
        let dtype = self.model.spec((layer, 0)).dtype;
        if !is_layer
            || !self.model.constant[weight.0]
            || self.model.constant[x.0]
            || !matches!(dtype, DType::F32 | DType::F64)
        {
            return None;
        }
        let mut chain = Chain { layer, channels: *weight_sizes.last()?, steps: Vec::new() };
        let mut at = (layer, 0);
        while !self.is_output(at)
            && let Some(&[reader]) = self.model.readers.get(&at).map(Vec::as_slice)
            && let Some(step) = self.step(reader, at, chain.channels)
        {
            chain.steps.push(step);
            at = (reader, 0);
        }
        // A single shift is a bias already.
        let is_bias = chain.steps.iter().all(|step| matches!(step.kind, Kind::Add | Kind::Sub));
        let nothing = chain.steps.len() < if is_bias { 2 } else { 1 };
        (!nothing).then_some(chain)
    }

    /// Returns what an operation does to `x`, if it scales or shifts channels by a constant.
    fn step(&self, operation: usize, x: TensorRef, channels: usize) -> Option<Step> {
        let entry = self.model.operation(operation)?;
        let &[a, b] = &entry.inputs[..] else { return None };
        if entry.op != "Binary" {
            return None;
        }
        let (kind, by) = match (entry.attributes.as_str()?, a == x) {
            ("Add", true) => (Kind::Add, b),
            ("Add", false) => (Kind::Add, a),
            ("Sub", true) => (Kind::Sub, b),
            ("Sub", false) => (Kind::SubFrom, a),
            ("Mul", true) => (Kind::Mul, b),
            ("Mul", false) => (Kind::Mul, a),
            ("Div", true) => (Kind::Div, b),
            _ => return None,
        };
        // One value, or one for each channel: then the shape of `x` stays what it is.
        let sizes = self.model.spec(by).shape.known()?;
        let (last, others) = sizes.split_last().map_or((1, &[][..]), |(last, others)| (*last, others));
        let per_channel = (last == 1 || last == channels) && others.iter().all(|&n| n == 1);
        let fits = per_channel && sizes.len() <= self.model.spec(x).shape.rank();
        (fits && self.model.constant[by.0]).then_some(Step { operation, kind, by })
    }

    /// Returns the model with everything folded, and its tensors.
    fn apply(mut self, session: &Session, tensors: Named) -> Result<(GraphFile, Named)> {
        let chains = self.chains();
        let values = self.values(session, &chains)?;
        // New variables have indices after all others, until the end.
        let mut new = Vec::new();
        let mut replaced: HashMap<TensorRef, TensorRef> = HashMap::new();
        for chain in &chains {
            let Some((weight, shift)) = folded_values(
                chain,
                &self.model.file.operations[chain.layer - self.model.before()],
                &values,
            )?
            else {
                continue;
            };
            let [weight, shift] = self.new_variables(chain, weight, shift);
            let (before, first_new) = (self.model.before(), self.model.nodes.len() + new.len());
            new.push(weight);
            self.model.file.operations[chain.layer - before].inputs[1] = (first_new, 0);
            let last = chain.steps[chain.steps.len() - 1].operation;
            if shift.value.to_f64_vec().iter().all(|v| *v == 0.0) {
                replaced.insert((last, 0), (chain.layer, 0));
                continue;
            }
            new.push(shift);
            let last = &mut self.model.file.operations[last - before];
            last.attributes = Value::from("Add");
            last.inputs = vec![(chain.layer, 0), (first_new + 1, 0)];
        }
        let redirect = |tensor: &mut TensorRef| {
            if let Some(by) = replaced.get(tensor) {
                *tensor = *by;
            }
        };
        self.model.file.operations.iter_mut().flat_map(|o| &mut o.inputs).for_each(redirect);
        self.model.file.outputs.iter_mut().map(|o| &mut o.tensor).for_each(redirect);
        Ok(self.model.without_unused(new, tensors))
    }

    /// Returns the values of all constants of the chains.
    fn values(&self, session: &Session, chains: &[Chain]) -> Result<HashMap<TensorRef, HostTensor>> {
        let weight = |chain: &Chain| self.model.operation(chain.layer).map(|o| o.inputs[1]);
        let steps = |chain: &Chain| chain.steps.iter().map(|step| step.by).collect::<Vec<_>>();
        self.model
            .values(session, chains.iter().flat_map(|c| steps(c).into_iter().chain(weight(c))).collect())
    }

    /// Returns the variables of the weights and the shift of a layer.
    fn new_variables(&self, chain: &Chain, weight: HostTensor, shift: HostTensor) -> [NewVariable; 2] {
        let layer = &self.model.file.operations[chain.layer - self.model.before()];
        let (index, _) = layer.inputs[1];
        let variable =
            index.checked_sub(self.model.file.inputs.len()).and_then(|i| self.model.file.variables.get(i));
        let trainable = variable.is_some_and(|name| self.model.file.trainable.contains(name));
        let name = variable.cloned().unwrap_or_else(|| format!("{}/W", layer.name));
        let scope = name.rsplit_once('/').map_or(layer.name.as_str(), |(scope, _)| scope);
        let bias = format!("{scope}/b");
        [(name, weight), (bias, shift)].map(|(name, value)| NewVariable { name, trainable, value })
    }
}

/// Returns the weights of a layer with the scale, and its bias. Returns `None` if a value is not
/// finite.
fn folded_values(
    chain: &Chain,
    layer: &OperationEntry,
    values: &HashMap<TensorRef, HostTensor>,
) -> Result<Option<(HostTensor, HostTensor)>> {
    let channels = chain.channels;
    let (mut scale, mut shift) = (vec![1.0; channels], vec![0.0; channels]);
    for step in &chain.steps {
        let by = values[&step.by].to_f64_vec();
        for (i, (scale, shift)) in scale.iter_mut().zip(&mut shift).enumerate() {
            let k = by[i % by.len()];
            (*scale, *shift) = match step.kind {
                Kind::Add => (*scale, *shift + k),
                Kind::Sub => (*scale, *shift - k),
                Kind::SubFrom => (-*scale, k - *shift),
                Kind::Mul => (*scale * k, *shift * k),
                Kind::Div => (*scale / k, *shift / k),
            };
        }
    }
    let weight = &values[&layer.inputs[1]];
    // Output channels are the last dimension of all kinds of weights.
    let scaled =
        weight.to_f64_vec().iter().enumerate().map(|(i, w)| w * scale[i % channels]).collect::<Vec<_>>();
    let weight = HostTensor::from_f64(weight.dtype(), weight.sizes(), &scaled)?;
    let shift = HostTensor::from_f64(weight.dtype(), [channels], &shift)?;
    let is_finite = |t: &HostTensor| t.to_f64_vec().iter().all(|v| v.is_finite());
    Ok((is_finite(&weight) && is_finite(&shift)).then_some((weight, shift)))
}
