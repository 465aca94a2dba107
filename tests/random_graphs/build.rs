//! Builds programs with the public API.

use crate::program::{Class, Port, Program, Source};
use crate::rows::{Kind, Made};
use tensorpack::graph::UPDATE_OPS;
use tensorpack::prelude::*;

/// Modifications of a program while its graph is built.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    /// Whether all sizes are known while the graph is built.
    pub(crate) known: bool,
    /// Multiplies every rounded result by `1 + r`, with `r` between plus and minus the amplitude,
    /// from this stream, and adds as much to gradients.
    pub(crate) noise: Option<(f64, u64)>,
    /// Makes the results of the row of this name wrong, to test the comparison.
    pub(crate) fault: Option<&'static str>,
}

/// A graph that grows with the program that is drawn.
pub(crate) struct Scratch {
    known: bool,
    t: TowerContext,
    tensors: Vec<Vec<Tensor>>,
}

impl Scratch {
    pub(crate) fn new(known: bool) -> Scratch {
        Scratch { known, t: TowerContext::training(&Graph::new()), tensors: Vec::new() }
    }

    /// Adds the nodes that are new in `program` and returns the result of the last one, if the
    /// graph accepts it.
    pub(crate) fn extend(&mut self, program: &Program) -> Option<Made> {
        let change = Change { known: self.known, ..Change::default() };
        let mut last = None;
        for at in self.tensors.len()..program.nodes.len() {
            let made = node(program, at, &self.t, DType::F64, &change, &self.tensors);
            self.t.graph().first_error().ok()?;
            self.tensors.push(made.tensors.clone());
            last = Some(made);
        }
        last
    }

    pub(crate) fn rebuild(&mut self, program: &Program) {
        *self = Scratch::new(self.known);
        self.extend(program);
    }
}

/// Builds one node.
fn node(
    program: &Program,
    at: usize,
    t: &TowerContext,
    float: DType,
    change: &Change,
    made: &[Vec<Tensor>],
) -> Made {
    let node = &program.nodes[at];
    match &node.source {
        Source::Input { class, sizes, known, .. } => {
            let sizes: Vec<Option<usize>> =
                sizes.iter().zip(known).map(|(&n, &k)| (k || change.known).then_some(n)).collect();
            t.graph().placeholder(&TensorSpec::new(&node.name, class.dtype(float), sizes)).into()
        }
        Source::Variable { sizes } => {
            let spec = VariableSpec::new(&node.name, sizes.clone()).dtype(float).init(Init::zeros());
            t.variable(spec).value().clone().into()
        }
        Source::Row { row, inputs, values, tied } => {
            let inputs: Vec<Tensor> = inputs.iter().map(|p| made[p.node][p.output].clone()).collect();
            let mut made = match tied {
                true => t.reuse(|t| (row.build)(t, float, &node.name, &inputs, values)),
                false => (row.build)(t, float, &node.name, &inputs, values),
            };
            if change.fault == Some(row.name) {
                made.tensors.iter_mut().filter(|y| y.dtype().is_float()).for_each(|y| *y = &*y * 1.01);
            }
            if let Some((amplitude, stream)) = change.noise.filter(|_| row.kind != Kind::Exact) {
                let seed = stream.wrapping_mul(0x1000_0001) + at as u64;
                for y in made.tensors.iter_mut().filter(|y| y.dtype().is_float()) {
                    *y = t.name_scope("noise", |_| noisy(y, amplitude, seed));
                }
            }
            made
        }
    }
}

/// Returns `y` with each element multiplied by a number close to 1.
fn noisy(y: &Tensor, amplitude: f64, seed: u64) -> Tensor {
    let sizes = y.shape().known().expect("noise is added where all sizes are known");
    let len = sizes.iter().product();
    let factors: Vec<f64> = crate::values(seed, len).iter().map(|v| 1.0 + v / 1.5 * amplitude).collect();
    y * y.graph().constant(HostTensor::from_f64(y.dtype(), sizes, &factors).expect("one value per element"))
}

/// The terms of a gradient may cancel, also inside a layer, so that only rounding errors remain:
/// this fraction of an ulp of the magnitude of all gradients, which is at least the second number.
const CANCELLED: [f64; 2] = [0.25, 0.25];

/// Adds to each gradient of one cost the rounding errors of terms that cancel.
fn add_noise<'a>(gradients: impl Iterator<Item = &'a mut Tensor>, (amplitude, stream): (f64, u64)) {
    let mut gradients: Vec<&mut Tensor> = gradients.collect();
    let Some(norm) = gradients.iter().map(|g| g.square().sum()).reduce(|a, b| a + b).map(|sum| sum.sqrt())
    else {
        return;
    };
    for (i, g) in gradients.iter_mut().enumerate() {
        let sizes = g.shape().known().expect("noise is added where all sizes are known");
        let noise = crate::values(stream.wrapping_mul(0x2000_0003) + i as u64, sizes.iter().product());
        let noise: Vec<f64> = noise.iter().map(|v| v / 1.5 * amplitude * CANCELLED[0]).collect();
        let noise = g
            .graph()
            .constant(HostTensor::from_f64(g.dtype(), sizes, &noise).expect("one value per element"));
        **g = &**g + noise * (&norm + CANCELLED[1]);
    }
}

/// A program as a graph, before it is frozen.
pub(crate) struct Whole {
    pub(crate) graph: Graph,
    pub(crate) cost: Tensor,
    pub(crate) forward: Vec<(String, Tensor)>,
    pub(crate) gradients: Vec<(String, Tensor)>,
    pub(crate) second: Vec<(String, Tensor)>,
    pub(crate) train: Option<Op>,
}

/// Builds the whole program.
pub(crate) fn build(program: &Program, float: DType, change: &Change) -> Result<Whole> {
    let graph = Graph::new();
    let t = &TowerContext::training(&graph);
    let mut made: Vec<Vec<Tensor>> = Vec::new();
    for at in 0..program.nodes.len() {
        let next = node(program, at, t, float, change, &made).tensors;
        graph.first_error()?;
        made.push(next);
    }
    let at = |p: &Port| made[p.node][p.output].clone();
    let forward =
        program.fetches.iter().map(|p| (format!("the value of {}", port_name(program, p)), at(p))).collect();
    let zero = || graph.constant(HostTensor::from_f64(float, [], &[0.0]).expect("a scalar"));
    let mut cost = program.cost.iter().map(at).reduce(|a, b| a + b).unwrap_or_else(zero);
    if program.regularized {
        cost = cost + regularize_cost(t, ".*", l2_regularizer(0.05));
    }
    graph.first_error()?;

    let inputs: Vec<(String, Tensor)> = program
        .nodes
        .iter()
        .zip(&made)
        .filter(|(n, _)| matches!(n.source, Source::Input { class: Class::Float, .. }))
        .map(|(n, made)| (n.name.clone(), made[0].clone()))
        .collect();
    let trainable = graph.collection(tensorpack::graph::TRAINABLE_VARIABLES).variables;
    let variables: Vec<Variable> = trainable.iter().map(|&id| graph.variable_handle(id)).collect();
    let mut wanted: Vec<(String, Tensor)> = inputs;
    wanted.extend(variables.iter().map(|v| (v.name().to_string(), v.value().clone())));
    let found = |cost: &Tensor, what: &str| -> Result<Vec<(String, Tensor)>> {
        let xs: Vec<&Tensor> = wanted.iter().map(|(_, x)| x).collect();
        let found = gradients(cost, &xs)?;
        let named =
            wanted.iter().zip(found).filter_map(|((name, _), g)| Some((format!("{what} {name}"), g?)));
        Ok(named.collect())
    };
    let mut first = Vec::new();
    let mut second = Vec::new();
    if program.gradients || program.second {
        first = found(&cost, "the gradient of the cost by")?;
    }
    if program.second {
        let penalty = first.iter().map(|(_, g)| g.square().sum()).reduce(|a, b| a + b);
        if let Some(penalty) = penalty {
            second = found(&penalty, "the gradient of the squared gradients by")?;
        }
    }
    let mut train = None;
    if program.steps > 0 {
        let optimizer = program.training.build(t);
        let mut computed = compute_gradients(&cost)?;
        if let Some(noise) = change.noise {
            let mut values: Vec<Tensor> = computed.iter().map(|g| g.value.clone()).collect();
            add_noise(values.iter_mut(), noise);
            computed = computed.into_iter().zip(values).map(|(g, value)| g.with_value(value)).collect();
        }
        let minimized = apply_gradients(&*optimizer, &graph, &computed)?;
        let updates = graph.collection_ops(UPDATE_OPS);
        let count = graph.count_step();
        let ops: Vec<&Op> = [&minimized, &count].into_iter().chain(&updates).collect();
        train = Some(graph.group(&ops));
    }
    graph.first_error()?;
    if !program.gradients {
        first.clear();
    }
    if let Some(noise) = change.noise {
        add_noise(first.iter_mut().map(|(_, g)| g), noise);
        add_noise(second.iter_mut().map(|(_, g)| g), noise);
    }
    Ok(Whole { graph, cost, forward, gradients: first, second, train })
}

/// Returns the name of a node's result in a printed program.
pub(crate) fn node_name(program: &Program, at: usize) -> String {
    let node = &program.nodes[at];
    match node.source {
        Source::Row { tied: true, .. } => format!("{}_again_{at}", node.name),
        _ => node.name.clone(),
    }
}

/// Returns the name of a port in a printed program.
pub(crate) fn port_name(program: &Program, port: &Port) -> String {
    let name = node_name(program, port.node);
    if program.nodes[port.node].outputs.is_some() { format!("{name}[{}]", port.output) } else { name }
}

/// Returns the dtype and sizes of the only output of a node.
pub(crate) fn spec_of(program: &Program, at: usize) -> Option<(DType, Vec<usize>)> {
    let mut scratch = Scratch::new(true);
    let mut part = program.clone();
    part.nodes.truncate(at + 1);
    let made = scratch.extend(&part)?;
    let tensor = made.tensors.first()?;
    Some((tensor.dtype(), tensor.shape().known()?))
}
