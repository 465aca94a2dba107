//! Builds programs with the public API.

use crate::program::{Floats, Port, Program, Source};
use crate::rows::Made;
use std::ops::Range;
use tensorpack::graph::{TRAINABLE_VARIABLES, UPDATE_OPS};
use tensorpack::prelude::*;
use tensorpack::tower::Mode;
use tensorpack::train::average_gradients;

/// Modifications of a program while its graph is built.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Change {
    /// Whether all sizes are known while the graph is built.
    pub(crate) known: bool,
    /// An error to make, to test the comparison.
    pub(crate) fault: Option<Fault>,
}

/// An error that the comparison must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The results of the row of this name are wrong.
    Row(&'static str),
    /// They are wrong in every tower but the first.
    RowInOtherTowers(&'static str),
    /// Variables that are declared bf16 or f16 are kept in f32.
    WideVariables,
}

impl Fault {
    fn spoils(self, row: &str, tower: usize) -> bool {
        match self {
            Fault::Row(name) => name == row,
            Fault::RowInOtherTowers(name) => name == row && tower > 0,
            Fault::WideVariables => false,
        }
    }
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
        program.set_precision(self.t.graph());
        let mut last = None;
        for at in self.tensors.len()..program.nodes.len() {
            let floats = program.reference_floats();
            let made = self.t.build(|t| node(program, at, t, floats, &change, &self.tensors));
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
    floats: Floats,
    change: &Change,
    made: &[Vec<Tensor>],
) -> Made {
    let node = &program.nodes[at];
    match &node.source {
        Source::Input { class, sizes, known, .. } => {
            let all = program.sizes_in(t.index(), sizes, known);
            let sizes: Vec<Option<usize>> =
                all.iter().zip(known).map(|(&n, &k)| (k || change.known).then_some(n)).collect();
            let name = if t.total() > 1 { format!("{}_{}", node.name, t.index()) } else { node.name.clone() };
            t.graph().placeholder(&TensorSpec::new(name, class.dtype(floats), sizes)).into()
        }
        Source::Variable { class, sizes } => {
            let dtype = class.dtype(floats);
            let spec = VariableSpec::new(&node.name, sizes.clone()).dtype(dtype).init(Init::zeros());
            match change.fault {
                Some(Fault::WideVariables) => t.variable(spec.dtype(floats.wide)).value().cast(dtype).into(),
                _ => t.variable(spec).value().clone().into(),
            }
        }
        Source::Row { row, class, inputs, values, tied } => {
            let float = class.dtype(floats);
            let inputs: Vec<Tensor> = inputs.iter().map(|p| made[p.node][p.output].clone()).collect();
            let mut made = match tied {
                true => t.reuse(|t| (row.build)(t, float, &node.name, &inputs, values)),
                false => (row.build)(t, float, &node.name, &inputs, values),
            };
            if change.fault.is_some_and(|f| f.spoils(row.name, t.index())) {
                made.tensors.iter_mut().filter(|y| y.dtype().is_float()).for_each(|y| *y = &*y * 1.01);
            }
            made
        }
    }
}

/// A placeholder of one tower.
pub(crate) struct Input {
    pub(crate) name: String,
    pub(crate) node: usize,
    pub(crate) tower: usize,
}

/// A program as a graph, before it is frozen. The tensors of all towers follow each other.
pub(crate) struct Whole {
    pub(crate) graph: Graph,
    pub(crate) inputs: Vec<Input>,
    pub(crate) costs: Vec<Tensor>,
    pub(crate) forward: Vec<(String, Tensor)>,
    pub(crate) gradients: Vec<(String, Tensor)>,
    pub(crate) second: Vec<(String, Tensor)>,
    pub(crate) train: Option<Op>,
}

/// Builds the whole program.
pub(crate) fn build(program: &Program, floats: Floats, change: &Change) -> Result<Whole> {
    let graph = Graph::new();
    program.set_precision(&graph);
    let mut whole = Whole {
        graph: graph.clone(),
        inputs: Vec::new(),
        costs: Vec::new(),
        forward: Vec::new(),
        gradients: Vec::new(),
        second: Vec::new(),
        train: None,
    };
    let count = program.towers.count;
    let mut towers = Vec::new();
    for index in 0..count {
        let t = TowerContext::new(&graph, Mode::Training, index, count);
        t.build(|t| tower(program, floats, change, t, &mut whole))?;
        towers.push(t);
    }
    if program.steps > 0 {
        let computed =
            towers.iter().zip(&whole.costs).map(|(t, cost)| Ok((t.clone(), compute_gradients(cost)?)));
        let averages = average_gradients(computed.collect::<Result<Vec<_>>>()?)?;
        let optimizer = program.training.build(&towers[0]);
        let applied = apply_gradients(&*optimizer, &graph, &averages)?;
        let updates = graph.collection_ops(UPDATE_OPS);
        let count = graph.count_step();
        let ops: Vec<&Op> = [&applied, &count].into_iter().chain(&updates).collect();
        whole.train = Some(graph.group(&ops));
    }
    graph.first_error()?;
    Ok(whole)
}

/// Builds a range of nodes with its blocks.
fn nodes(
    program: &Program,
    range: Range<usize>,
    t: &TowerContext,
    add: &mut dyn FnMut(&TowerContext, usize) -> Result<()>,
) -> Result<()> {
    let mut at = range.start;
    while at < range.end {
        let Some((name, block)) = program.block_at(at, &range) else {
            add(t, at)?;
            at += 1;
            continue;
        };
        at = block.end;
        match program.recompute {
            true => t.recompute(&name, |t| nodes(program, block, t, add)),
            false => t.scope(&name, |t| nodes(program, block, t, add)),
        }?;
    }
    Ok(())
}

/// Builds one tower: its nodes, its cost, and the gradients that are fetched.
fn tower(
    program: &Program,
    floats: Floats,
    change: &Change,
    t: &TowerContext,
    whole: &mut Whole,
) -> Result<()> {
    let graph = t.graph();
    let place = if t.total() > 1 { format!(" in tower {}", t.index()) } else { String::new() };
    let mut made: Vec<Vec<Tensor>> = Vec::new();
    let mut wanted: Vec<(String, Tensor)> = Vec::new();
    let mut add = |t: &TowerContext, at: usize| {
        let (n, next) = (&program.nodes[at], node(program, at, t, floats, change, &made).tensors);
        graph.first_error()?;
        if let Source::Input { class, .. } = n.source {
            let name = next[0].name();
            whole.inputs.push(Input { name, node: at, tower: t.index() });
            if class.is_float() {
                wanted.push((n.name.clone(), next[0].clone()));
            }
        }
        made.push(next);
        Ok(())
    };
    nodes(program, 0..program.nodes.len(), t, &mut add)?;
    let at = |p: &Port| made[p.node][p.output].clone();
    let fetched = |p: &Port| (format!("the value of {}{place}", port_name(program, p)), at(p));
    whole.forward.extend(program.fetches.iter().map(fetched));
    let zero = || graph.constant(HostTensor::from_f64(floats.wide, [], &[0.0]).expect("a scalar"));
    let terms = program.cost.iter().map(|p| at(p).cast(floats.wide));
    let mut cost = terms.reduce(|a, b| a + b).unwrap_or_else(zero);
    if program.regularized {
        cost = cost + regularize_cost(t, ".*", l2_regularizer(0.05)).cast(floats.wide);
    }
    graph.first_error()?;

    let trainable = graph.collection(TRAINABLE_VARIABLES).variables;
    let variables = trainable.iter().map(|&id| graph.variable_handle(id));
    wanted.extend(variables.map(|v| (v.name().to_string(), v.value().clone())));
    let found = |cost: &Tensor, what: &str| -> Result<Vec<(String, Tensor)>> {
        let xs: Vec<&Tensor> = wanted.iter().map(|(_, x)| x).collect();
        let found = gradients(cost, &xs)?;
        let named =
            wanted.iter().zip(found).filter_map(|((name, _), g)| Some((format!("{what} {name}{place}"), g?)));
        Ok(named.collect())
    };
    if program.gradients || program.second {
        let first = found(&cost, "the gradient of the cost by")?;
        let squares = first.iter().map(|(_, g)| g.square().sum().cast(floats.wide));
        let penalty = squares.reduce(|a, b| a + b).filter(|_| program.second);
        if let Some(penalty) = penalty {
            whole.second.extend(found(&penalty, "the gradient of the squared gradients by")?);
        }
        if program.gradients {
            whole.gradients.extend(first);
        }
    }
    whole.costs.push(cost);
    graph.first_error()
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
