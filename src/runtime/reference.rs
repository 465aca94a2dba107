//! The reference engine: interprets the frozen graph node by node in f64. It merges, fuses and
//! reuses nothing, and shares no lowering with the other engines, so that their results can be
//! compared with its own.

use super::binding::{
    Binding, Concrete, assigned_before, assigns_in_run, close_over_collectives, collective, last_assigns,
    needed,
};
use super::engine::Engine;
use super::executor::{Executable, Executor, Feed, Outcome, RunInfo};
use super::lowering::Source;
use super::{Device, SessionOptions, Turns, memory_limit, overflow_rules, value_errors};
use crate::graph::{Frozen, NodeId, NodeKind, OpDef, Role, TensorId, VariableInfo, split_tower};
use crate::kir::OnOverflow;
use crate::reference::{Array, EvaluateCx, Scalar, StochasticRounding};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensorpack_tensor::{DType, Error, HostTensor, Result, element_count};

/// The values of the variables, which stay f64 between runs.
type Variables = Arc<Mutex<Vec<Arc<Array>>>>;

/// The value of every tensor of a run.
type Values = HashMap<TensorId, Arc<Array>>;

/// The reference engine.
pub(super) struct ReferenceEngine;

impl Engine for ReferenceEngine {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn device_names(&self) -> String {
        "reference".into()
    }

    fn description(&self) -> String {
        "f64, for debugging (device reference)".into()
    }

    fn parse_device(&self, parts: &[&str]) -> Option<Device> {
        parts.is_empty().then_some(Device::Reference)
    }

    fn rounds_stochastically(&self) -> bool {
        true
    }

    fn create(&self, _: &Frozen, options: &SessionOptions, _: &Turns) -> Result<Box<dyn Executor>> {
        Ok(Box::new(ReferenceExecutor {
            limit: options.memory_limit,
            rounding: options.stochastic_rounding,
            variables: Variables::default(),
        }))
    }
}

#[derive(Debug)]
struct ReferenceExecutor {
    /// The memory limit in bytes; defaults to the available memory.
    limit: Option<usize>,
    rounding: Option<StochasticRounding>,
    variables: Variables,
}

/// The nodes of a run in evaluation order.
struct ReferenceProgram {
    graph: Arc<Frozen>,
    variables: Variables,
    rounding: Option<StochasticRounding>,
    /// The nodes whose values are needed, in topological order.
    order: Vec<NodeId>,
    /// The feed of each placeholder.
    feeds: HashMap<NodeId, usize>,
    concrete: HashMap<NodeId, Concrete>,
    assigns: BTreeSet<NodeId>,
    /// For every collective node, the tensors that it sums: input 0 of its node in each tower, in
    /// order.
    collectives: HashMap<NodeId, Vec<TensorId>>,
    /// Elements of output 0 in earlier towers' copies of a node.
    elements_before: HashMap<NodeId, usize>,
    fetches: Vec<TensorId>,
    /// Variables by index, each with the tensor of its next value.
    updates: Vec<(usize, TensorId)>,
    /// The tensors that must be finite for variables to change: costs, gradients and next values.
    checked: Vec<TensorId>,
}

impl Executor for ReferenceExecutor {
    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()> {
        memory_limit::check(
            bytes(variables.iter().map(|v| v.sizes.as_slice()))?,
            "the variables",
            self.limit,
        )?;
        let first = |v: &VariableInfo| {
            let value = v.init.value(seed, &v.name, v.dtype, &v.sizes)?;
            Ok(Arc::new(Array::from_host(&value)))
        };
        *lock(&self.variables) = variables.iter().map(first).collect::<Result<_>>()?;
        Ok(())
    }

    fn read(&self, index: usize) -> Result<HostTensor> {
        lock(&self.variables)[index].to_host()
    }

    fn write(&mut self, index: usize, value: &HostTensor) -> Result<()> {
        lock(&self.variables)[index] = Arc::new(Array::from_host(value));
        Ok(())
    }

    fn compile(&mut self, source: &Source<'_>) -> Result<Box<dyn Executable>> {
        let program = ReferenceProgram::new(source, &self.variables, self.rounding)?;
        let outputs = program.order.iter().filter_map(|id| program.concrete.get(id)).flatten();
        memory_limit::check(bytes(outputs.map(|(_, sizes)| sizes.as_slice()))?, "this program", self.limit)?;
        Ok(Box::new(program))
    }

    fn find_non_finite(
        &mut self,
        source: &Source<'_>,
        run: &RunInfo,
        feeds: &[Feed<'_>],
    ) -> Result<Option<Error>> {
        let program = ReferenceProgram::new(source, &self.variables, self.rounding)?;
        let values = program.evaluate(run, feeds)?;
        let finite = |t: &TensorId| values.get(t).is_none_or(|v| v.is_finite());
        let graph = source.graph();
        let mut non_finite = program.order.iter().filter_map(|&id| match &graph.node(id).kind {
            NodeKind::Op(op) if !graph.node(id).inputs.is_empty() => {
                let bad = (0..program.concrete[&id].len() as u32)
                    .any(|output| !finite(&TensorId { node: id, output }));
                bad.then_some((graph.node(id), op))
            }
            _ => None,
        });
        // Prefer the first node with finite inputs: infinite constants of the model are no errors.
        let first =
            non_finite.clone().find(|(node, _)| node.inputs.iter().all(finite)).or_else(|| non_finite.next());
        Ok(first.map(|(node, op)| {
            op.nan_hint().into_iter().fold(value_errors::not_finite(&node.name).at(node.site), Error::note)
        }))
    }
}

/// Computes the fetches of a request from these values of all variables. Tensors of floats are f64.
pub(super) fn evaluate_in_f64(
    source: &Source<'_>,
    variables: &[HostTensor],
    run: &RunInfo,
    feeds: &[Feed<'_>],
) -> Result<Vec<HostTensor>> {
    let variables = variables.iter().map(|value| Arc::new(Array::from_host(value))).collect();
    let program = ReferenceProgram::new(source, &Arc::new(Mutex::new(variables)), None)?;
    let values = program.evaluate(run, feeds)?;
    let to_host = |t: &TensorId| {
        let value = &values[t];
        match value.dtype().is_float() {
            true => {
                let elements: Vec<f64> = value.values().map(Scalar::as_f64).collect();
                HostTensor::from_f64(DType::F64, value.sizes(), &elements)
            }
            false => value.to_host(),
        }
    };
    program.fetches.iter().map(to_host).collect()
}

impl ReferenceProgram {
    fn new(
        source: &Source<'_>,
        variables: &Variables,
        rounding: Option<StochasticRounding>,
    ) -> Result<ReferenceProgram> {
        let (graph, request) = (source.graph(), source.request());
        let assigns = assigns_in_run(graph, request)?;
        let fetches = request.fetched();
        let roots = close_over_collectives(graph, &fetches, &assigns)?;
        let (values, shapes) = needed(graph, &assigns, roots.into_values().flatten());
        let mut binding = Binding::new(graph);
        binding.bind_feeds(request, &values, &shapes)?;
        shapes.iter().try_for_each(|&id| binding.bind(id))?;
        let Binding { feeds, concrete, .. } = binding;
        let next = |(v, id): (_, NodeId)| (v, graph.node(id).inputs[0]);
        let updates: Vec<(usize, TensorId)> =
            last_assigns(graph, &assigns)?.into_iter().map(next).map(|(v, t)| (v.0 as usize, t)).collect();
        let is_cost_or_gradient = |id: &&NodeId| matches!(graph.node(**id).role, Role::Cost | Role::Gradient);
        let checked = values.iter().filter(is_cost_or_gradient).map(|&node| TensorId { node, output: 0 });
        let starts_finite = |v: usize| {
            let info = &graph.variables()[v];
            info.init.is_finite(info.dtype)
        };
        let next_values = updates.iter().filter(|(v, _)| starts_finite(*v)).map(|(_, t)| *t);
        let checked = checked.chain(next_values).collect();
        let collectives = collectives(graph, &values);
        Ok(ReferenceProgram {
            order: topological_order(graph, &assigns, &values, &collectives),
            elements_before: elements_before(graph, &values, &concrete),
            graph: graph.clone(),
            variables: variables.clone(),
            rounding,
            feeds,
            concrete,
            assigns,
            collectives,
            fetches,
            updates,
            checked,
        })
    }

    /// Computes the value of every node.
    fn evaluate(&self, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Values> {
        let variables = lock(&self.variables);
        let mut values = Values::new();
        for &id in &self.order {
            let node = self.graph.node(id);
            let made = match &node.kind {
                NodeKind::Assign { .. } | NodeKind::Group => continue,
                NodeKind::Placeholder => vec![Arc::new(Array::from_host(feeds[self.feeds[&id]]))],
                NodeKind::Read(v) => vec![variables[v.0 as usize].clone()],
                NodeKind::Current(v) => vec![match assigned_before(&self.graph, &self.assigns, id, *v) {
                    Some(assign) => values[&self.graph.node(assign).inputs[0]].clone(),
                    None => variables[v.0 as usize].clone(),
                }],
                NodeKind::Op(op) => {
                    let made = self.evaluate_op(id, op.as_ref(), &values, run);
                    let made = made.map_err(|e| e.within(&node.name).at(node.site))?;
                    made.into_iter().map(Arc::new).collect()
                }
            };
            for (output, value) in made.into_iter().enumerate() {
                let value = self.rounding.map_or(value.clone(), |r| Arc::new(rounded(&value, r)));
                values.insert(TensorId { node: id, output: output as u32 }, value);
            }
        }
        Ok(values)
    }

    fn evaluate_op(&self, id: NodeId, op: &dyn OpDef, values: &Values, run: &RunInfo) -> Result<Vec<Array>> {
        let node = self.graph.node(id);
        let inputs: Vec<Option<&Array>> = node
            .inputs
            .iter()
            .enumerate()
            .map(|(i, t)| (!op.shape_only(i)).then(|| values[t].as_ref()))
            .collect();
        let sizes = |t: &TensorId| self.concrete[&t.node][t.output as usize].1.as_slice();
        let input_sizes: Vec<&[usize]> = node.inputs.iter().map(sizes).collect();
        let summed = self.collectives.get(&id).into_iter().flatten();
        let tower_inputs: Vec<&Array> = summed.map(|t| values[t].as_ref()).collect();
        let outputs = &self.concrete[&id];
        let made = op.evaluate(&EvaluateCx {
            inputs: &inputs,
            input_sizes: &input_sizes,
            outputs,
            name: &node.name,
            tower_inputs: &tower_inputs,
            elements_before: self.elements_before.get(&id).copied().unwrap_or(0),
            seed: run.seed,
            draw: run.draw,
            rounding: self.rounding,
        })?;
        let evaluated: Concrete = made.iter().map(|a| (a.dtype(), a.sizes().to_vec())).collect();
        match evaluated == *outputs {
            true => Ok(made),
            false => {
                let why = format!("{} evaluates to {evaluated:?}, but declares {outputs:?}", op.name());
                Err(Error::shape(why))
            }
        }
    }
}

impl ReferenceProgram {
    /// Ends a run in which a value is not finite.
    fn fail_check(&self) -> Result<Outcome> {
        let rule = |(v, _): &(usize, TensorId)| Some((*v, self.graph.variables()[*v].on_overflow?));
        let rules: Vec<(usize, OnOverflow)> = self.updates.iter().filter_map(rule).collect();
        let mut variables = lock(&self.variables);
        let Some(next) = overflow_rules::next_values(&rules, |v| variables[v].to_host())? else {
            return Ok(Outcome::NotFinite);
        };
        for (variable, value) in next {
            variables[variable] = Arc::new(Array::from_host(&value));
        }
        Ok(Outcome::Skipped)
    }
}

impl Executable for ReferenceProgram {
    fn run(&mut self, run: &RunInfo, feeds: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        let values = self.evaluate(run, feeds)?;
        if !self.assigns.is_empty() && !self.checked.iter().all(|t| values[t].is_finite()) {
            return self.fail_check();
        }
        *outputs = self.fetches.iter().map(|t| values[t].to_host()).collect::<Result<_>>()?;
        let mut variables = lock(&self.variables);
        for (variable, t) in &self.updates {
            variables[*variable] = values[t].clone();
        }
        Ok(Outcome::Committed { staleness: 0 })
    }

    fn plan_text(&self) -> String {
        let mut text = String::new();
        for id in &self.order {
            let node = self.graph.node(*id);
            let inputs: Vec<&str> =
                node.inputs.iter().map(|t| self.graph.node(t.node).name.as_str()).collect();
            let outputs = self.concrete.get(id).into_iter().flatten();
            let outputs: Vec<String> = outputs.map(|(dtype, sizes)| format!("{dtype}{sizes:?}")).collect();
            let (name, kind) = (&node.name, node.kind.name());
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name} = {kind}({}): {}", inputs.join(", "), outputs.join(", "));
        }
        text
    }
}

fn rounded(value: &Array, rounding: StochasticRounding) -> Array {
    value.map(value.dtype(), |v| match v {
        Scalar::Float(v) => Scalar::Float(rounding.round_result(v, value.dtype())),
        int => int,
    })
}

fn lock(variables: &Variables) -> MutexGuard<'_, Vec<Arc<Array>>> {
    // A run that panicked changed nothing: variables are written after all values are computed.
    variables.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the total size of arrays of these sizes in bytes, saturating.
fn bytes<'a>(sizes: impl Iterator<Item = &'a [usize]>) -> Result<usize> {
    let mut total = 0usize;
    for sizes in sizes {
        total = total.saturating_add(element_count(sizes)?.saturating_mul(size_of::<f64>()));
    }
    Ok(total)
}

/// For every collective node, returns input 0 of its node in each tower. A layer that is used twice
/// has the same keys twice; uses are matched in order.
fn collectives(graph: &Frozen, values: &BTreeSet<NodeId>) -> HashMap<NodeId, Vec<TensorId>> {
    let mut uses: HashMap<(usize, &str), usize> = HashMap::new();
    let mut groups: BTreeMap<(&str, usize), Vec<(usize, NodeId)>> = BTreeMap::new();
    for &id in values {
        let node = graph.node(id);
        if let Some(key) = collective(node) {
            let uses = uses.entry((node.tower, key)).or_default();
            groups.entry((key, *uses)).or_default().push((node.tower, id));
            *uses += 1;
        }
    }
    let mut summed = HashMap::new();
    for mut towers in groups.into_values() {
        towers.sort_unstable();
        let inputs: Vec<TensorId> = towers.iter().map(|(_, id)| graph.node(*id).inputs[0]).collect();
        summed.extend(towers.iter().map(|(_, id)| (*id, inputs.clone())));
    }
    summed
}

/// Returns the nodes of a run in topological order. A collective depends on its inputs in all
/// towers.
fn topological_order(
    graph: &Frozen,
    assigns: &BTreeSet<NodeId>,
    values: &BTreeSet<NodeId>,
    collectives: &HashMap<NodeId, Vec<TensorId>>,
) -> Vec<NodeId> {
    let reads = |id: NodeId| -> Vec<NodeId> {
        let node = graph.node(id);
        let shape_only = |i: usize| matches!(&node.kind, NodeKind::Op(op) if op.shape_only(i));
        let own = node.inputs.iter().enumerate().filter(|(i, _)| !shape_only(*i)).map(|(_, t)| t.node);
        let others = collectives.get(&id).into_iter().flatten();
        let before = match node.kind {
            NodeKind::Current(v) => assigned_before(graph, assigns, id, v),
            _ => None,
        };
        own.chain(others.map(|t| t.node)).chain(before).collect()
    };
    let (mut order, mut done) = (Vec::new(), HashSet::new());
    for &root in values {
        // A node stays on the stack until its dependencies are done.
        let mut stack = vec![(root, false)];
        while let Some((id, ready)) = stack.pop() {
            if ready {
                if done.insert(id) {
                    order.push(id);
                }
            } else if !done.contains(&id) {
                stack.push((id, true));
                stack.extend(reads(id).into_iter().filter(|n| !done.contains(n)).map(|n| (n, false)));
            }
        }
    }
    order
}

/// For every node, returns the number of elements of output 0 of its copies in earlier towers.
fn elements_before(
    graph: &Frozen,
    values: &BTreeSet<NodeId>,
    concrete: &HashMap<NodeId, Concrete>,
) -> HashMap<NodeId, usize> {
    let mut copies: HashMap<&str, Vec<(usize, NodeId, usize)>> = HashMap::new();
    for &id in values {
        let node = graph.node(id);
        if let Some((_, sizes)) = concrete.get(&id).and_then(|outputs| outputs.first()) {
            let copy = (node.tower, id, sizes.iter().product());
            copies.entry(split_tower(&node.name).1).or_default().push(copy);
        }
    }
    let mut before = HashMap::new();
    for mut towers in copies.into_values() {
        towers.sort_unstable();
        let mut elements = 0;
        for (_, id, len) in towers {
            before.insert(id, elements);
            elements += len;
        }
    }
    before
}
