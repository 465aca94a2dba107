//! Folding of batch normalization, and of any other scale and shift of channels, into the weights of
//! the layer before it.

use super::graph_file::{GraphFile, OperationEntry, TensorRef};
use super::{ExportedModel, OfflinePredictor};
use crate::graph::{Fetch, Frozen, NodeId, Spec};
use crate::io::safetensors::Named;
use crate::runtime::{IntoFetch, Session};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
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
        let (file, tensors) =
            Folding::new(self.session.graph(), file, &indices).apply(&self.session, tensors)?;
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

/// A variable of the folded model that replaces others.
struct NewVariable {
    /// The name it gets unless another variable has it.
    name: String,
    trainable: bool,
    value: HostTensor,
}

/// The rewriting of a model.
struct Folding<'a> {
    frozen: &'a Frozen,
    file: GraphFile,
    /// The node of every index of the file.
    nodes: Vec<NodeId>,
    /// The operations that read each tensor, once for every time they do.
    readers: HashMap<TensorRef, Vec<usize>>,
    /// Whether each index depends on variables and constants alone.
    constant: Vec<bool>,
}

impl<'a> Folding<'a> {
    fn new(frozen: &'a Frozen, file: GraphFile, indices: &HashMap<NodeId, usize>) -> Folding<'a> {
        let before = file.inputs.len() + file.variables.len();
        let mut nodes = vec![NodeId(0); before + file.operations.len()];
        indices.iter().for_each(|(&id, &index)| nodes[index] = id);
        let mut constant: Vec<bool> = (0..before).map(|i| i >= file.inputs.len()).collect();
        let mut readers: HashMap<TensorRef, Vec<usize>> = HashMap::new();
        for (i, operation) in file.operations.iter().enumerate() {
            operation.inputs.iter().for_each(|&input| readers.entry(input).or_default().push(before + i));
            // Operations of other crates may have effects, or give something else each time.
            let is_pure =
                !operation.op.contains("::") && !["RandomUniform", "Print"].contains(&operation.op.as_str());
            constant.push(is_pure && operation.inputs.iter().all(|&(node, _)| constant[node]));
        }
        Folding { frozen, file, nodes, readers, constant }
    }

    fn before(&self) -> usize {
        self.file.inputs.len() + self.file.variables.len()
    }

    fn operation(&self, index: usize) -> Option<&OperationEntry> {
        self.file.operations.get(index.checked_sub(self.before())?)
    }

    fn spec(&self, (node, output): TensorRef) -> &Spec {
        &self.frozen.node(self.nodes[node]).outputs[output]
    }

    fn is_output(&self, tensor: TensorRef) -> bool {
        self.file.outputs.iter().any(|output| output.tensor == tensor)
    }

    /// Returns the layers with something to fold.
    fn chains(&self) -> Vec<Chain> {
        (self.before()..self.nodes.len()).filter_map(|layer| self.chain(layer)).collect()
    }

    fn chain(&self, layer: usize) -> Option<Chain> {
        let operation = self.operation(layer)?;
        let &[x, weight] = &operation.inputs[..] else { return None };
        let weight_sizes = self.spec(weight).shape.known()?;
        let is_layer = match operation.op.as_str() {
            "Conv2d" => true,
            "Depthwise" => operation.attributes["part"] == "Output",
            "MatMul" => weight_sizes.len() == 2,
            _ => false,
        };
        let dtype = self.spec((layer, 0)).dtype;
        if !is_layer
            || !self.constant[weight.0]
            || self.constant[x.0]
            || !matches!(dtype, DType::F32 | DType::F64)
        {
            return None;
        }
        let mut chain = Chain { layer, channels: *weight_sizes.last()?, steps: Vec::new() };
        let mut at = (layer, 0);
        while !self.is_output(at)
            && let Some(&[reader]) = self.readers.get(&at).map(Vec::as_slice)
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
        let entry = self.operation(operation)?;
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
        let sizes = self.spec(by).shape.known()?;
        let (last, others) = sizes.split_last().map_or((1, &[][..]), |(last, others)| (*last, others));
        let per_channel = (last == 1 || last == channels) && others.iter().all(|&n| n == 1);
        let fits = per_channel && sizes.len() <= self.spec(x).shape.rank();
        (fits && self.constant[by.0]).then_some(Step { operation, kind, by })
    }

    /// Returns the model with everything folded, and its tensors.
    fn apply(mut self, session: &Session, tensors: Named) -> Result<(GraphFile, Named)> {
        let chains = self.chains();
        let values = self.values(session, &chains)?;
        // New variables have indices after all others, until the end.
        let mut new = Vec::new();
        let mut replaced: HashMap<TensorRef, TensorRef> = HashMap::new();
        for chain in &chains {
            let Some((weight, shift)) =
                folded_values(chain, &self.file.operations[chain.layer - self.before()], &values)?
            else {
                continue;
            };
            let [weight, shift] = self.new_variables(chain, weight, shift);
            let (before, first_new) = (self.before(), self.nodes.len() + new.len());
            new.push(weight);
            self.file.operations[chain.layer - before].inputs[1] = (first_new, 0);
            let last = chain.steps[chain.steps.len() - 1].operation;
            if shift.value.to_f64_vec().iter().all(|v| *v == 0.0) {
                replaced.insert((last, 0), (chain.layer, 0));
                continue;
            }
            new.push(shift);
            let last = &mut self.file.operations[last - before];
            last.attributes = Value::from("Add");
            last.inputs = vec![(chain.layer, 0), (first_new + 1, 0)];
        }
        let redirect = |tensor: &mut TensorRef| {
            if let Some(by) = replaced.get(tensor) {
                *tensor = *by;
            }
        };
        self.file.operations.iter_mut().flat_map(|o| &mut o.inputs).for_each(redirect);
        self.file.outputs.iter_mut().map(|o| &mut o.tensor).for_each(redirect);
        Ok(self.without_unused(new, tensors))
    }

    /// Returns the values of all constants of the chains, computed in one run.
    fn values(&self, session: &Session, chains: &[Chain]) -> Result<HashMap<TensorRef, HostTensor>> {
        let weight = |chain: &Chain| self.operation(chain.layer).map(|o| o.inputs[1]);
        let steps = |chain: &Chain| chain.steps.iter().map(|step| step.by).collect::<Vec<_>>();
        let wanted: BTreeSet<TensorRef> =
            chains.iter().flat_map(|c| steps(c).into_iter().chain(weight(c))).collect();
        if wanted.is_empty() {
            return Ok(HashMap::new());
        }
        let fetch = |&(node, output): &TensorRef| Fetch {
            graph: self.frozen.uid(),
            node: self.nodes[node],
            output: Some(output as u32),
            name: self.frozen.node(self.nodes[node]).name.clone(),
        };
        let fetches: Vec<Fetch> = wanted.iter().map(fetch).collect();
        let values = session.run(&fetches.iter().map(|f| f as &dyn IntoFetch).collect::<Vec<_>>(), &[])?;
        Ok(wanted.into_iter().zip(values).collect())
    }

    /// Returns the variables of the weights and the shift of a layer.
    fn new_variables(&self, chain: &Chain, weight: HostTensor, shift: HostTensor) -> [NewVariable; 2] {
        let layer = &self.file.operations[chain.layer - self.before()];
        let (index, _) = layer.inputs[1];
        let variable = index.checked_sub(self.file.inputs.len()).and_then(|i| self.file.variables.get(i));
        let trainable = variable.is_some_and(|name| self.file.trainable.contains(name));
        let name = variable.cloned().unwrap_or_else(|| format!("{}/W", layer.name));
        let scope = name.rsplit_once('/').map_or(layer.name.as_str(), |(scope, _)| scope);
        let bias = format!("{scope}/b");
        [(name, weight), (bias, shift)].map(|(name, value)| NewVariable { name, trainable, value })
    }

    /// Removes what the outputs no longer depend on, and gives everything else its final index.
    fn without_unused(self, new: Vec<NewVariable>, tensors: Named) -> (GraphFile, Named) {
        let (inputs, before, all) = (self.file.inputs.len(), self.before(), self.nodes.len());
        let mut used: BTreeSet<usize> = self.file.outputs.iter().map(|output| output.tensor.0).collect();
        for (i, operation) in self.file.operations.iter().enumerate().rev() {
            if used.contains(&(before + i)) {
                used.extend(operation.inputs.iter().map(|input| input.0));
            }
        }
        let GraphFile {
            format,
            inputs: input_entries,
            mut outputs,
            variables,
            trainable,
            quantized,
            operations,
        } = self.file;
        let mut tensors: BTreeMap<String, HostTensor> = tensors.into_iter().collect();
        let mut index: HashMap<usize, usize> = (0..inputs).map(|i| (i, i)).collect();
        let (mut names, mut kept) = (Vec::new(), Vec::new());
        for (i, name) in variables.into_iter().enumerate().filter(|(i, _)| used.contains(&(inputs + i))) {
            index.insert(inputs + i, inputs + names.len());
            kept.extend(tensors.remove(&name).map(|value| (name.clone(), value)));
            names.push(name);
        }
        let mut taken: HashSet<String> = names.iter().cloned().collect();
        let mut trainable: Vec<String> = trainable.into_iter().filter(|name| taken.contains(name)).collect();
        for (i, variable) in new.into_iter().enumerate() {
            let mut name = variable.name;
            while !taken.insert(name.clone()) {
                name += "_folded";
            }
            index.insert(all + i, inputs + names.len());
            if variable.trainable {
                trainable.push(name.clone());
            }
            kept.push((name.clone(), variable.value));
            names.push(name);
        }
        let first = inputs + names.len();
        let mut kept_operations = Vec::new();
        for (i, mut operation) in
            operations.into_iter().enumerate().filter(|(i, _)| used.contains(&(before + i)))
        {
            index.insert(before + i, first + kept_operations.len());
            operation.inputs.iter_mut().for_each(|input| input.0 = index[&input.0]);
            kept.extend(operation.tensors.iter().filter_map(|name| tensors.remove_entry(name)));
            kept_operations.push(operation);
        }
        outputs.iter_mut().for_each(|output| output.tensor.0 = index[&output.tensor.0]);
        let file = GraphFile {
            format,
            inputs: input_entries,
            outputs,
            variables: names,
            trainable,
            quantized,
            operations: kept_operations,
        };
        (file, kept)
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
