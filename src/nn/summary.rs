//! A table of a model's layers and what they cost.

use crate::graph::{
    Frozen, GRADIENTS, Node, NodeId, NodeKind, Role, Spec, TRAINABLE_VARIABLES, TensorId, split_tower,
};
use crate::kir::{BufferKind, LowerCx, Origin, Program, View};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// Summarizes the model of a graph: its layers with output shape, parameters, multiply-adds and
/// activation bytes. `feeds` are the sizes of the inputs of the first training tower, or of an
/// inference graph, by name.
///
/// ```
/// # use tensorpack::prelude::*;
/// # fn main() -> Result<()> {
/// let graph = Graph::new();
/// let t = TowerContext::training(&graph);
/// let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(100)]));
/// let y = Linear::new(10).apply(&t, "fc", &x);
/// minimize(&y.square().mean(), &Sgd::new(0.1))?;
/// let summary = tensorpack::nn::summary(&graph.freeze()?, &[("x", &[32, 100])])?;
/// assert_eq!(summary.layers[0].name, "fc");
/// assert_eq!(summary.layers[0].forward, 32 * 100 * 10);
/// assert_eq!(summary.parameters(), 1010);
/// println!("{summary}");
/// # Ok(())
/// # }
/// ```
///
/// Only contractions (matrix products, convolutions, attention) count as multiply-adds. They are
/// those of one tower and one step; operations that the compiler merges are counted once each. What
/// lies outside of layers is in a row of its own.
pub fn summary(graph: &Frozen, feeds: &[(&str, &[usize])]) -> Result<ModelSummary> {
    let first = |t: &TensorId| graph.node(t.node).tower == 0;
    let gradients: Vec<TensorId> = graph.collection(GRADIENTS).tensors.into_iter().filter(first).collect();
    let nodes = (0..).map(NodeId).zip(graph.nodes());
    let costs = nodes.filter(|(_, node)| node.role == Role::Cost && node.tower == 0).map(|(id, _)| id);
    let trained: Vec<NodeId> = costs.chain(gradients.iter().map(|t| t.node)).collect();
    let outputs = graph.layers().iter().map(|(_, output)| output.node);
    let (values, shapes) = match trained.is_empty() {
        true => needed(graph, outputs),
        false => needed(graph, trained.into_iter()),
    };
    // The layers of inference towers are no part of the step.
    let built = graph.layers().iter().filter(|(_, output)| values.contains(&output.node));
    let concrete = concrete(graph, feeds, &shapes)?;

    let mut layers: Vec<LayerSummary> = Vec::new();
    for (name, output) in built {
        let (dtype, sizes) = concrete[&output.node][output.output as usize].clone();
        let bytes = sizes.iter().product::<usize>() * dtype.size();
        let layer = LayerSummary { name: name.clone(), output: sizes, bytes, ..LayerSummary::default() };
        layers.push(layer);
    }
    let mut outside = LayerSummary { name: OUTSIDE.into(), ..LayerSummary::default() };
    for &id in &values {
        let node = graph.node(id);
        let count = multiply_adds(graph, id, &concrete)?;
        let (is_backward, name) = forward_name(&node.name);
        let layer = layer_of(&mut layers, name).unwrap_or(&mut outside);
        *(if is_backward { &mut layer.backward } else { &mut layer.forward }) += count;
    }
    for id in graph.collection(TRAINABLE_VARIABLES).variables {
        let variable = &graph.variables()[id.0 as usize];
        let layer = layer_of(&mut layers, &variable.name).unwrap_or(&mut outside);
        layer.parameters += variable.sizes.iter().product::<usize>();
    }
    if outside.forward + outside.backward > 0 || outside.parameters > 0 {
        layers.push(outside);
    }
    Ok(ModelSummary {
        layers,
        variable_bytes: variable_bytes(graph),
        planned_bytes: None,
        checkpoint_bytes: 0,
        multiply_adds_per_second: None,
    })
}

/// Returns the size of all variables in bytes.
pub(crate) fn variable_bytes(graph: &Frozen) -> usize {
    graph.variables().iter().map(|v| v.sizes.iter().product::<usize>() * v.dtype.size()).sum()
}

/// Returns the number of elements of all trainable variables.
pub(crate) fn parameter_count(graph: &Frozen) -> usize {
    let variables = graph.collection(TRAINABLE_VARIABLES).variables;
    variables.iter().map(|id| graph.variables()[id.0 as usize].sizes.iter().product::<usize>()).sum()
}

/// Describes the memory of variables, of their copy for checkpoints and, if it is planned, of a step.
pub(crate) fn memory_text(variables: usize, copy: usize, planned: Option<usize>) -> String {
    let mut text = format!("variables {}", bytes(variables));
    if copy > 0 {
        text += &format!(", their copy for checkpoints {}", bytes(copy));
    }
    if let Some(planned) = planned {
        let peak = planned + variables + copy;
        text += &format!(", values of a step {}, planned peak {}", bytes(planned), bytes(peak));
    }
    text
}

/// The name of the row of what is in no layer.
const OUTSIDE: &str = "(outside layers)";

/// A layer of a model: see [`summary`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerSummary {
    /// Its full name.
    pub name: String,
    /// The sizes of its output.
    pub output: Vec<usize>,
    /// The number of elements of its trainable variables.
    pub parameters: usize,
    /// The multiply-adds of the forward pass.
    pub forward: u64,
    /// The multiply-adds of the backward pass.
    pub backward: u64,
    /// The size of its output in bytes.
    pub bytes: usize,
}

/// A summary of a model. It displays as a table.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSummary {
    /// The layers in the order they were built.
    pub layers: Vec<LayerSummary>,
    /// The size of all variables in bytes, including those of optimizers.
    pub variable_bytes: usize,
    /// The memory planned for the values of a step, without the variables. [`summary`] does not
    /// know it; a run that trains does.
    pub planned_bytes: Option<usize>,
    /// The size of the copy of the variables from which a checkpoint is written while training goes
    /// on; 0 if no checkpoints are written. [`summary`] does not know it.
    pub checkpoint_bytes: usize,
    /// The rate of a large matrix product on this machine. [`summary`] does not measure it; a run on the
    /// CPU engine does.
    pub multiply_adds_per_second: Option<f64>,
}

impl ModelSummary {
    /// Returns the number of elements of all trainable variables.
    pub fn parameters(&self) -> usize {
        self.layers.iter().map(|layer| layer.parameters).sum()
    }

    /// Returns the multiply-adds of the forward and of the backward pass.
    pub fn multiply_adds(&self) -> (u64, u64) {
        let sum = |part: fn(&LayerSummary) -> u64| self.layers.iter().map(part).sum();
        (sum(|layer| layer.forward), sum(|layer| layer.backward))
    }

    /// Returns the time that the multiply-adds of a step take at the rate of a large matrix product, in
    /// seconds, if that was measured. Layers that wait for memory take longer; Winograd convolutions
    /// multiply less often than they are counted.
    pub fn seconds_at_peak(&self) -> Option<f64> {
        let (forward, backward) = self.multiply_adds();
        Some((forward + backward) as f64 / self.multiply_adds_per_second?)
    }

    /// Returns the size of the outputs of all layers in bytes.
    pub fn activation_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.bytes).sum()
    }
}

impl fmt::Display for ModelSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["layer", "output", "parameters", "forward MAC", "backward MAC", "activation"];
        let mut rows = vec![header.map(String::from)];
        for layer in &self.layers {
            let output = if layer.name == OUTSIDE { String::new() } else { format!("{:?}", layer.output) };
            rows.push([
                layer.name.clone(),
                output,
                layer.parameters.to_string(),
                layer.forward.to_string(),
                layer.backward.to_string(),
                bytes(layer.bytes),
            ]);
        }
        let (forward, backward) = self.multiply_adds();
        let totals = [self.parameters().to_string(), forward.to_string(), backward.to_string()];
        let [parameters, forward, backward] = totals;
        let activation = bytes(self.activation_bytes());
        rows.push(["total".into(), String::new(), parameters, forward, backward, activation]);
        let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
        let [a, b, c, d, e, g] = [0, 1, 2, 3, 4, 5].map(width);
        for [name, output, parameters, forward, backward, activation] in &rows {
            writeln!(
                f,
                "{name:a$}  {output:b$}  {parameters:>c$}  {forward:>d$}  {backward:>e$}  {activation:>g$}"
            )?;
        }
        f.write_str(&memory_text(self.variable_bytes, self.checkpoint_bytes, self.planned_bytes))?;
        if let (Some(seconds), Some(rate)) = (self.seconds_at_peak(), self.multiply_adds_per_second) {
            let (time, rate) = (1e3 * seconds, rate / 1e9);
            write!(
                f,
                "\na step takes {time:.3} ms at {rate:.1} G multiply-adds/s, the rate of a large matrix product here"
            )?;
        }
        Ok(())
    }
}

/// Formats a number of bytes.
fn bytes(n: usize) -> String {
    match n as f64 {
        b if b >= 1e9 => format!("{:.2} GB", b / 1e9),
        b if b >= 1e6 => format!("{:.2} MB", b / 1e6),
        b if b >= 1e3 => format!("{:.2} kB", b / 1e3),
        b => format!("{b} B"),
    }
}

/// Returns whether a node belongs to the backward pass, and its name, or that of the forward node
/// it is the gradient of, without that of the tower.
fn forward_name(name: &str) -> (bool, &str) {
    let mut name = split_tower(name).1;
    let mut is_backward = false;
    while let Some(forward) = name.strip_prefix("gradients/") {
        (is_backward, name) = (true, forward);
    }
    (is_backward, name)
}

/// Returns the layer whose scope contains a name; of several, the innermost.
fn layer_of<'a>(layers: &'a mut [LayerSummary], name: &str) -> Option<&'a mut LayerSummary> {
    let contains = |layer: &&mut LayerSummary| {
        name.strip_prefix(&layer.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    layers.iter_mut().filter(contains).max_by_key(|layer| layer.name.len())
}

/// Returns the nodes whose values are needed, and those whose shapes are, in order.
fn needed(graph: &Frozen, roots: impl Iterator<Item = NodeId>) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
    let (mut values, mut shapes) = (BTreeSet::new(), BTreeSet::new());
    let mut stack: Vec<(NodeId, bool)> = roots.map(|id| (id, true)).collect();
    while let Some((id, is_value)) = stack.pop() {
        let is_new_value = is_value && values.insert(id);
        if shapes.insert(id) || is_new_value {
            let node = graph.node(id);
            let shape_only = |i: usize| matches!(&node.kind, NodeKind::Op(op) if op.shape_only(i));
            let inputs = node.inputs.iter().enumerate();
            stack.extend(inputs.map(|(i, t)| (t.node, is_value && !shape_only(i))));
        }
    }
    (values, shapes)
}

/// The dtype and sizes of the outputs of nodes.
type Concrete = HashMap<NodeId, Vec<(DType, Vec<usize>)>>;

/// Infers the sizes of all outputs from those of the inputs.
fn concrete(graph: &Frozen, feeds: &[(&str, &[usize])], shapes: &BTreeSet<NodeId>) -> Result<Concrete> {
    let fed: BTreeMap<&str, &[usize]> = feeds.iter().copied().collect();
    let mut concrete = Concrete::new();
    for &id in shapes {
        let node = graph.node(id);
        let outputs = match &node.kind {
            NodeKind::Placeholder => vec![(node.outputs[0].dtype, input_sizes(node, &fed)?)],
            NodeKind::Read(v) | NodeKind::Current(v) => {
                let variable = &graph.variables()[v.0 as usize];
                vec![(variable.dtype, variable.sizes.clone())]
            }
            NodeKind::Assign { .. } | NodeKind::Group => Vec::new(),
            NodeKind::Op(op) => {
                let spec = |t: &TensorId| {
                    let (dtype, sizes) = &concrete[&t.node][t.output as usize];
                    Spec::new(*dtype, sizes)
                };
                let inputs: Vec<Spec> = node.inputs.iter().map(spec).collect();
                let fail = |e: Error| e.within(&node.name).at(node.site);
                let known = |s: Spec| match s.shape.known() {
                    Some(sizes) => Ok((s.dtype, sizes)),
                    None => Err(fail(Error::shape(format!("the shape {} is not determined", s.shape)))),
                };
                op.infer(&inputs).map_err(fail)?.into_iter().map(known).collect::<Result<_>>()?
            }
        };
        concrete.insert(id, outputs);
    }
    Ok(concrete)
}

/// Returns the sizes of an input: those that are fed, or those of its declaration.
fn input_sizes(node: &Node, fed: &BTreeMap<&str, &[usize]>) -> Result<Vec<usize>> {
    let shape = &node.outputs[0].shape;
    match fed.get(node.name.as_str()) {
        Some(sizes) if shape.allows(sizes) => Ok(sizes.to_vec()),
        Some(sizes) => {
            Err(Error::shape(format!("the input {} is {shape}, not {sizes:?}", node.name)).at(node.site))
        }
        None => shape.known().ok_or_else(|| {
            let why = format!("a summary needs the sizes of the input {}, which is {shape}", node.name);
            Error::new(ErrorKind::Name, why).at(node.site)
        }),
    }
}

/// Lowers a node alone, and counts the multiply-adds of its kernels.
fn multiply_adds(graph: &Frozen, id: NodeId, concrete: &Concrete) -> Result<u64> {
    let node = graph.node(id);
    let NodeKind::Op(op) = &node.kind else { return Ok(0) };
    let mut program = Program::default();
    let (mut inputs, mut input_sizes) = (Vec::new(), Vec::new());
    for (i, t) in node.inputs.iter().enumerate() {
        let (dtype, sizes) = &concrete[&t.node][t.output as usize];
        let buffer = program.add_buffer(*dtype, sizes, BufferKind::Temp);
        inputs.push((!op.shape_only(i)).then(|| View::dense(buffer, *dtype, sizes)));
        input_sizes.push(sizes.clone());
    }
    let origin = Origin { name: node.name.clone(), site: node.site };
    let mut cx = LowerCx {
        program: &mut program,
        inputs: &inputs,
        input_sizes: &input_sizes,
        outputs: &concrete[&id],
        origin: &origin,
    };
    op.lower(&mut cx).map_err(|e| e.within(&node.name).at(node.site))?;
    Ok(program.kernels.iter().map(|kernel| kernel.kernel.multiply_adds()).sum())
}
