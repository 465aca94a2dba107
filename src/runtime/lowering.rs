//! From a frozen graph to kernel IR: takes the nodes a run needs with their concrete shapes, merges equal ones, and
//! lowers each.

use super::binding::{
    Binding, Concrete, Request, assigned_before, assigns_in_run, close_over_collectives, last_assigns, needed,
};
use super::snapshot::{self, Reading};
use crate::graph::{Frozen, Node, NodeId, NodeKind, Role, TensorId, VariableId};
use crate::kir::{self, BufferKind, LowerCx, Origin, Program, Update, View};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use tensorpack_tensor::{DType, Error, Result};

/// What an engine makes runnable: a request on a frozen graph. Engines that execute kernel IR lower it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    graph: &'a Arc<Frozen>,
    request: &'a Request,
    reading: Reading,
}

impl<'a> Source<'a> {
    pub(super) fn new(graph: &'a Arc<Frozen>, request: &'a Request, reading: Reading) -> Source<'a> {
        Source { graph, request, reading }
    }

    /// The graph.
    pub fn graph(&self) -> &'a Arc<Frozen> {
        self.graph
    }

    /// What is to be run, on inputs of which sizes.
    pub fn request(&self) -> &'a Request {
        self.request
    }

    /// Lowers what is requested to kernel IR.
    pub fn lower(&self) -> Result<Lowered> {
        lower(self.graph, self.request, self.reading)
    }
}

/// Programs in kernel IR, one for each tower the request needs, with what surrounds them. They meet only where they
/// sum over towers.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// A program for each tower.
    pub programs: Vec<Program>,
    /// For each fetched value, which program has it and as which of its fetches.
    pub fetches: Vec<(usize, usize)>,
    /// For each kernel, by name of its node: what a NaN there most likely means.
    pub hints: HashMap<String, String>,
}

/// Lowers what `request` asks for.
fn lower(graph: &Frozen, request: &Request, reading: Reading) -> Result<Lowered> {
    let assigns = assigns_in_run(graph, request)?;
    let fetched = request.fetched();
    let roots = close_over_collectives(graph, &fetched, &assigns)?;
    let mut lowered = Lowered { programs: Vec::new(), fetches: Vec::new(), hints: HashMap::new() };
    for (&tower, roots) in &roots {
        let mine: Vec<TensorId> =
            fetched.iter().copied().filter(|t| graph.node(t.node).tower == tower).collect();
        let mut cx = Lowering {
            graph,
            assigns: &assigns,
            binding: Binding::new(graph),
            views: HashMap::new(),
            reading,
            snapshots: HashMap::new(),
            live: BTreeSet::new(),
            merged: HashMap::new(),
            program: Program::default(),
            hints: &mut lowered.hints,
        };
        cx.lower_tower(request, tower, roots, &mine)?;
        lowered.programs.push(cx.program);
    }
    let mut taken = vec![0; roots.len()];
    for t in &fetched {
        let program = roots.keys().position(|&k| k == graph.node(t.node).tower).unwrap_or(0);
        lowered.fetches.push((program, taken[program]));
        taken[program] += 1;
    }
    if lowered.programs.is_empty() {
        lowered.programs.push(Program::default());
    }
    let updated: Vec<Vec<usize>> =
        lowered.programs.iter().map(|p| p.updates.iter().map(|u| u.variable).collect()).collect();
    for (i, program) in lowered.programs.iter_mut().enumerate() {
        let others = updated.iter().enumerate().filter(|(j, _)| *j != i);
        program.updated_elsewhere = others.flat_map(|(_, v)| v).copied().collect();
    }
    number_random_rows(&mut lowered.programs);
    check_sums(&lowered.programs)?;
    Ok(lowered)
}

/// That towers sum what has the same form in all of them.
fn check_sums(programs: &[Program]) -> Result<()> {
    let mut forms: HashMap<&str, (DType, &[usize])> = HashMap::new();
    for node in programs.iter().flat_map(|p| &p.kernels) {
        if let kir::Kernel::AllReduce { key, input } = &node.kernel {
            let mine = (input.dtype, input.sizes.as_slice());
            let first = *forms.entry(key).or_insert(mine);
            if first != mine {
                let why = format!("towers sum {key} of {}{:?} and {}{:?}", first.0, first.1, mine.0, mine.1);
                return Err(Error::shape(why).at(node.origin.site));
            }
        }
    }
    Ok(())
}

/// The rows of a random tensor continue over the towers.
fn number_random_rows(programs: &mut [Program]) {
    let mut drawn: HashMap<String, usize> = HashMap::new();
    for program in programs {
        for i in 0..program.kernels.len() {
            let len = program.kernels[i].outputs.iter().map(|&b| program.buffer(b).len()).sum::<usize>();
            if let kir::Kernel::Random { stream, first, continued: true } = &mut program.kernels[i].kernel {
                let before = drawn.entry(stream.clone()).or_default();
                *first = *before;
                *before += len;
            }
        }
    }
}

struct Lowering<'a> {
    graph: &'a Frozen,
    assigns: &'a BTreeSet<NodeId>,
    binding: Binding<'a>,
    views: HashMap<TensorId, View>,
    reading: Reading,
    /// Of variables that are read: what all nodes read but those of `live`, which read the variables themselves.
    snapshots: HashMap<TensorId, View>,
    live: BTreeSet<NodeId>,
    /// Nodes by identity: hash of op and inputs to the nodes lowered under it.
    merged: HashMap<u64, Vec<NodeId>>,
    program: Program,
    hints: &'a mut HashMap<String, String>,
}

impl Lowering<'_> {
    /// Lowers what one tower computes.
    fn lower_tower(
        &mut self,
        request: &Request,
        tower: usize,
        roots: &BTreeSet<NodeId>,
        fetched: &[TensorId],
    ) -> Result<()> {
        let graph = self.graph;
        let (values, shapes) = needed(graph, self.assigns, roots.iter().copied());
        self.binding.bind_feeds(request, &values, &shapes)?;
        for &id in &shapes {
            self.binding.bind(id)?;
        }
        if self.reading == Reading::Snapshot {
            self.live = snapshot::of_updates_alone(graph, self.assigns, &values);
        }
        for &id in &values {
            self.lower_node(id)?;
        }
        let seen = |t: &TensorId| self.snapshots.get(t).unwrap_or(&self.views[t]).clone();
        self.program.fetches = fetched.iter().map(seen).collect();
        self.program.updates = self.updates(tower)?;
        if !self.assigns.is_empty() {
            let with = |role: Role| {
                let nodes = values.iter().filter(move |id| graph.node(**id).role == role);
                nodes.map(|&node| self.views[&TensorId { node, output: 0 }].clone()).collect()
            };
            (self.program.costs, self.program.kept) = (with(Role::Cost), with(Role::Gradient));
        }
        Ok(())
    }

    fn lower_node(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.node(id);
        let views = match &node.kind {
            NodeKind::Assign { .. } | NodeKind::Group => return Ok(()),
            NodeKind::Placeholder => {
                let (dtype, sizes) = self.binding.concrete[&id][0].clone();
                let buffer =
                    self.program.add_buffer(dtype, &sizes, BufferKind::Feed(self.binding.feeds[&id]));
                vec![View::dense(buffer, dtype, &sizes)]
            }
            NodeKind::Read(v) => {
                if self.reading == Reading::Snapshot {
                    let snapshot = self.variable(BufferKind::Snapshot(v.0 as usize), *v);
                    self.snapshots.insert(TensorId { node: id, output: 0 }, snapshot);
                }
                vec![self.variable(BufferKind::Variable(v.0 as usize), *v)]
            }
            NodeKind::Current(v) => vec![match assigned_before(self.graph, self.assigns, id, *v) {
                Some(assign) => self.views[&self.graph.node(assign).inputs[0]].clone(),
                None => self.variable(BufferKind::Variable(v.0 as usize), *v),
            }],
            NodeKind::Op(op) => {
                let inputs: Vec<Option<View>> = node
                    .inputs
                    .iter()
                    .enumerate()
                    .map(|(i, t)| if op.shape_only(i) { None } else { Some(self.read_by(id, t).clone()) })
                    .collect();
                if let Some(twin) = self.twin(id, node, op.as_ref(), &inputs) {
                    twin
                } else {
                    let input_sizes: Vec<Vec<usize>> = node
                        .inputs
                        .iter()
                        .map(|t| self.binding.concrete[&t.node][t.output as usize].1.clone())
                        .collect();
                    let origin = Origin { name: node.name.clone(), site: node.site };
                    let mut cx = LowerCx {
                        program: &mut self.program,
                        inputs: &inputs,
                        input_sizes: &input_sizes,
                        outputs: &self.binding.concrete[&id],
                        origin: &origin,
                    };
                    let views = op.lower(&mut cx).map_err(|e| e.within(&node.name).at(node.site))?;
                    let made: Concrete = views.iter().map(|v| (v.dtype, v.sizes.clone())).collect();
                    if made != self.binding.concrete[&id] {
                        let (declared, name) = (&self.binding.concrete[&id], op.name());
                        return Err(Error::shape(format!(
                            "{name} was lowered to {made:?}, but declared {declared:?}"
                        ))
                        .within(&node.name)
                        .at(node.site));
                    }
                    if let Some(hint) = op.nan_hint() {
                        self.hints.insert(node.name.clone(), hint);
                    }
                    views
                }
            }
        };
        for (i, view) in views.into_iter().enumerate() {
            self.views.insert(TensorId { node: id, output: i as u32 }, view);
        }
        Ok(())
    }

    /// What `reader` sees of a tensor.
    fn read_by(&self, reader: NodeId, t: &TensorId) -> &View {
        let snapshot = self.snapshots.get(t).filter(|_| !self.live.contains(&reader));
        snapshot.unwrap_or_else(|| &self.views[t])
    }

    /// A variable, or a snapshot of it.
    fn variable(&mut self, kind: BufferKind, v: VariableId) -> View {
        let info = &self.graph.variables()[v.0 as usize];
        let same = |b: &kir::Buffer| match (&b.kind, &kind) {
            (BufferKind::Variable(a), BufferKind::Variable(b)) => a == b,
            (BufferKind::Snapshot(a), BufferKind::Snapshot(b)) => a == b,
            _ => false,
        };
        let there = self.program.buffers.iter().position(same).map(|i| kir::BufferId(i as u32));
        let buffer = there.unwrap_or_else(|| self.program.add_buffer(info.dtype, &info.sizes, kind));
        View::dense(buffer, info.dtype, &info.sizes)
    }

    /// The results of an equal operation on equal inputs that was lowered before.
    ///
    /// Preconditions: the operation is pure, its attributes are equal, what it reads are the same
    /// elements in the same order (views equal in buffer, sizes, strides and offset, of a variable
    /// or of its snapshot alike), and inputs taken for their shape alone have equal types and
    /// sizes.
    fn twin(
        &mut self,
        id: NodeId,
        node: &Node,
        op: &dyn crate::graph::OpDef,
        inputs: &[Option<View>],
    ) -> Option<Vec<View>> {
        use std::hash::{DefaultHasher, Hash, Hasher};
        if !op.traits().mergeable {
            return None;
        }
        let mut h = DefaultHasher::new();
        op.identity_hash().hash(&mut h);
        for (view, t) in inputs.iter().zip(&node.inputs) {
            (view, &self.binding.concrete[&t.node][t.output as usize]).hash(&mut h);
        }
        let key = h.finish();
        let twin = self.merged.get(&key).into_iter().flatten().copied().find(|&other| {
            let other_node = self.graph.node(other);
            let same_op = matches!(&other_node.kind, NodeKind::Op(o) if o.same(op));
            same_op
                && other_node.inputs.len() == node.inputs.len()
                && inputs.iter().zip(node.inputs.iter().zip(&other_node.inputs)).all(|(view, (t, u))| {
                    match view {
                        Some(view) => view == self.read_by(other, u),
                        None => {
                            self.binding.concrete[&t.node][t.output as usize]
                                == self.binding.concrete[&u.node][u.output as usize]
                        }
                    }
                })
        });
        if twin.is_none() {
            self.merged.entry(key).or_default().push(id);
        }
        let outputs = node.outputs.len() as u32;
        twin.map(|node| (0..outputs).map(|output| self.views[&TensorId { node, output }].clone()).collect())
    }

    /// The next value of every variable that this tower assigns.
    fn updates(&self, tower: usize) -> Result<Vec<Update>> {
        let mut last = last_assigns(self.graph, self.assigns)?;
        last.retain(|(_, id)| self.graph.node(*id).tower == tower);
        let update = |(v, id): (VariableId, NodeId)| Update {
            variable: v.0 as usize,
            value: self.views[&self.graph.node(id).inputs[0]].clone(),
        };
        Ok(last.into_iter().map(update).collect())
    }
}
