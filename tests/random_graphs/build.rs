//! Builds programs with the public API.

use crate::program::{Class, Port, Program, Source};
use crate::rows::Made;
use tensorpack::graph::UPDATE_OPS;
use tensorpack::prelude::*;

/// Options for building a graph from a program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    /// Whether all sizes are known while the graph is built.
    pub(crate) known: bool,
    /// Makes the results of the row of this name wrong: a test of the test.
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

    /// Adds the nodes that are new in `program` and returns what the last one made, if the graph
    /// accepts it.
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
            made
        }
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
        first = found(&cost, "the gradient of the cost with respect to")?;
    }
    if program.second {
        let penalty = first.iter().map(|(_, g)| g.square().sum()).reduce(|a, b| a + b);
        if let Some(penalty) = penalty {
            second = found(&penalty, "the gradient of the squared gradients with respect to")?;
        }
    }
    let mut train = None;
    if program.steps > 0 {
        let optimizer = program.training.build(t);
        let minimized = minimize(&cost, &*optimizer)?;
        let updates = graph.collection_ops(UPDATE_OPS);
        let count = graph.count_step();
        let ops: Vec<&Op> = [&minimized, &count].into_iter().chain(&updates).collect();
        train = Some(graph.group(&ops));
    }
    graph.first_error()?;
    if !program.gradients {
        first.clear();
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

/// Returns element type and sizes of the only output of a node.
pub(crate) fn spec_of(program: &Program, at: usize) -> Option<(DType, Vec<usize>)> {
    let mut scratch = Scratch::new(true);
    let mut part = program.clone();
    part.nodes.truncate(at + 1);
    let made = scratch.extend(&part)?;
    let tensor = made.tensors.first()?;
    Some((tensor.dtype(), tensor.shape().known()?))
}
