//! Lowers a frozen graph to kernel IR: takes the nodes that a run needs with their concrete shapes,
//! merges equal ones, and lowers each.

use super::binding::{
    Binding, Concrete, Request, assigned_before, assigns_in_run, close_over_collectives, last_assigns, needed,
};
use super::cse::{CommonSubexpressions, CseInput};
use super::finiteness;
use super::fit_memory::Candidate;
use super::recompute::{self, Place};
use super::segments::{self, Segments};
use super::shard_updates::shard_updates;
use super::snapshot::{self, Reading};
use super::tower_collectives;
use super::unread;
use super::value_errors::{Diagnosis, NextValue};
use crate::graph::{Frozen, NodeId, NodeKind, Role, TensorId, VariableId, VariableInfo};
use crate::kir::{self, BufferKind, KernelNode, LowerCx, Origin, Program, Shards, Signature, Update, View};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use tensorpack_tensor::{DType, Error, Result};

/// The input of an engine's compiler: a request on a frozen graph. Engines that execute kernel IR
/// lower it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    graph: &'a Arc<Frozen>,
    request: &'a Request,
    reading: Reading,
    recompute: Option<Segments>,
}

impl<'a> Source<'a> {
    pub(super) fn new(graph: &'a Arc<Frozen>, request: &'a Request, reading: Reading) -> Source<'a> {
        Source { graph, request, reading, recompute: None }
    }

    /// Returns the request with segments of the forward pass that are computed again.
    pub(super) fn recomputing(self, choice: Segments) -> Source<'a> {
        Source { recompute: Some(choice), ..self }
    }

    /// Returns ways to compute parts of the forward pass again.
    pub(super) fn recompute_candidates(&self) -> Result<Vec<Candidate>> {
        let mut first: Option<(Program, Vec<Place>)> = None;
        let mut observe = |program: &Program, places: &[Place]| {
            first.get_or_insert_with(|| (program.clone(), places.to_vec()));
        };
        lower(self.graph, self.request, self.reading, None, &mut observe)?;
        let Some((program, places)) = first else { return Ok(Vec::new()) };
        let most = segments::forward_len(&program, &places);
        let mut candidates = Vec::new();
        let mut total = 1;
        while total < most {
            let mut counts: Vec<usize> = (1..=4).map(|quarters| (total * quarters).div_ceil(4)).collect();
            counts.dedup();
            for chosen in counts {
                let choice = Segments { total, chosen };
                let (mut program, mut places) = (program.clone(), places.clone());
                let segments = segments::assign(&program, &mut places, choice);
                recompute::recompute(&mut program, &places);
                candidates.push(Candidate { choice, segments, peak: segments::peak_bytes(&program) });
            }
            total *= 2;
        }
        candidates.retain(|candidate| !candidate.segments.is_empty());
        Ok(candidates)
    }

    /// Returns the graph.
    pub fn graph(&self) -> &'a Arc<Frozen> {
        self.graph
    }

    /// Returns the request: the fetches, and the sizes of the feeds.
    pub fn request(&self) -> &'a Request {
        self.request
    }

    /// Returns the indices of the variables that a run updates.
    pub(super) fn updates(&self) -> Result<Vec<usize>> {
        let assigns = assigns_in_run(self.graph, self.request)?;
        let last = last_assigns(self.graph, &assigns)?;
        Ok(last.into_iter().map(|(variable, _)| variable.0 as usize).collect())
    }

    /// Lowers the request to kernel IR.
    pub fn lower(&self) -> Result<Lowered> {
        lower(self.graph, self.request, self.reading, self.recompute, &mut |_, _| {})
    }
}

/// Validated programs in kernel IR, one for each tower that the request needs. They communicate
/// only through all-reduces.
///
/// Engines need not check the programs again.
#[derive(Clone, Debug)]
pub struct Lowered {
    programs: Vec<Program>,
    fetches: Vec<(usize, usize)>,
    diagnosis: Diagnosis,
    feeds: Vec<ConcreteSpec>,
}

/// Type and sizes of a tensor.
pub(super) type ConcreteSpec = (DType, Vec<usize>);

impl Lowered {
    /// Validates the programs, with their feeds and variables.
    pub(super) fn new(
        programs: Vec<Program>,
        fetches: Vec<(usize, usize)>,
        diagnosis: Diagnosis,
        signature: &Signature<'_>,
    ) -> Result<Lowered> {
        for program in &programs {
            kir::validate(program)?;
            kir::validate_signature(program, signature)?;
        }
        let there = |&(program, at): &(usize, usize)| {
            programs.get(program).is_some_and(|p: &Program| at < p.fetches.len())
        };
        if !fetches.iter().all(there) {
            return Err(Error::argument(format!("not all of the fetches {fetches:?} exist")));
        }
        let kernels: Vec<&[KernelNode]> = programs.iter().map(|p| &p.kernels[..]).collect();
        tower_collectives::check_all_reduces(&kernels)?;
        let feeds = signature.feeds.iter().map(|(dtype, sizes)| (*dtype, sizes.to_vec())).collect();
        Ok(Lowered { programs, fetches, diagnosis, feeds })
    }

    /// Returns the programs, one for each tower.
    pub fn programs(&self) -> &[Program] {
        &self.programs
    }

    /// Divides updates of variables over processes.
    pub(super) fn shard_updates(mut self, variables: &[VariableInfo], shards: Shards) -> Lowered {
        shard_updates(&mut self.programs, variables, shards, &HashSet::new());
        self
    }

    /// Returns the programs by value.
    pub(super) fn into_programs(self) -> Vec<Program> {
        self.programs
    }

    /// Returns, for each fetched value, the index of its program and its index among the fetches of
    /// that program.
    pub fn fetches(&self) -> &[(usize, usize)] {
        &self.fetches
    }

    /// Returns what errors say about nodes whose results are not finite.
    pub(super) fn diagnosis(&self) -> &Diagnosis {
        &self.diagnosis
    }

    /// Returns the type and sizes of each feed, in the order of the request.
    pub fn feeds(&self) -> &[(DType, Vec<usize>)] {
        &self.feeds
    }
}

/// Lowers a request. `observe` is called with the program of each tower and the places of its kernels,
/// before anything is computed again.
fn lower(
    graph: &Frozen,
    request: &Request,
    reading: Reading,
    choice: Option<Segments>,
    observe: &mut dyn FnMut(&Program, &[Place]),
) -> Result<Lowered> {
    let assigns = assigns_in_run(graph, request)?;
    let fetched = request.fetched();
    let roots = close_over_collectives(graph, &fetched, &assigns)?;
    let (mut programs, mut positions, mut diagnosis) = (Vec::new(), Vec::new(), Diagnosis::default());
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
            cse: CommonSubexpressions::default(),
            program: Program::default(),
            places: Vec::new(),
            diagnosis: &mut diagnosis,
        };
        cx.lower_tower(request, tower, roots, &mine, choice, observe)?;
        programs.push(cx.program);
    }
    let mut taken = vec![0; roots.len()];
    for t in &fetched {
        let program = roots.keys().position(|&k| k == graph.node(t.node).tower).unwrap_or(0);
        positions.push((program, taken[program]));
        taken[program] += 1;
    }
    if programs.is_empty() {
        programs.push(Program::default());
    }
    tower_collectives::set_updated_elsewhere(&mut programs);
    tower_collectives::number_random_elements(&mut programs, graph.first_tower());
    let signature = Signature {
        feeds: request.feeds.iter().map(|(_, dtype, sizes)| (*dtype, &sizes[..])).collect(),
        variables: graph.variables().iter().map(|v| (v.dtype, &v.sizes[..])).collect(),
    };
    Lowered::new(programs, positions, diagnosis, &signature)
}

struct Lowering<'a> {
    graph: &'a Frozen,
    assigns: &'a BTreeSet<NodeId>,
    binding: Binding<'a>,
    views: HashMap<TensorId, View>,
    reading: Reading,
    /// Snapshots of variables, which all nodes read except those in `live`: these read the
    /// variables themselves.
    snapshots: HashMap<TensorId, View>,
    live: BTreeSet<NodeId>,
    cse: CommonSubexpressions,
    program: Program,
    /// The place of each kernel of the program.
    places: Vec<Place>,
    diagnosis: &'a mut Diagnosis,
}

impl Lowering<'_> {
    /// Lowers the nodes of one tower.
    fn lower_tower(
        &mut self,
        request: &Request,
        tower: usize,
        roots: &BTreeSet<NodeId>,
        fetched: &[TensorId],
        choice: Option<Segments>,
        observe: &mut dyn FnMut(&Program, &[Place]),
    ) -> Result<()> {
        let graph = self.graph;
        let (values, shapes) = needed(graph, self.assigns, roots.iter().copied());
        self.binding.bind_feeds(request, &values, &shapes)?;
        for &id in &shapes {
            self.binding.bind(id)?;
        }
        if self.reading == Reading::Snapshot {
            self.live = snapshot::live_nodes(graph, self.assigns, &values);
        }
        for &id in &values {
            self.lower_node(id)?;
        }
        let seen = |t: &TensorId| self.snapshots.get(t).unwrap_or(&self.views[t]).clone();
        self.program.fetches = fetched.iter().map(seen).collect();
        self.program.fetch_origins = fetched.iter().map(|t| self.origin(t.node)).collect();
        self.program.updates = self.updates(tower)?;
        if !self.assigns.is_empty() {
            let with = |role: Role| {
                let nodes = values.iter().filter(move |id| graph.node(**id).role == role);
                nodes.map(|&node| self.views[&TensorId { node, output: 0 }].clone()).collect()
            };
            (self.program.costs, self.program.kept) = (with(Role::Cost), with(Role::Gradient));
        }
        unread::drop_unread(&mut self.program, &mut self.places)?;
        observe(&self.program, &self.places);
        if let Some(choice) = choice {
            segments::assign(&self.program, &mut self.places, choice);
        }
        recompute::recompute(&mut self.program, &self.places);
        let parts = finiteness::find(&mut self.program);
        for node in &self.program.kernels {
            let Some(part) = node.outputs.first().and_then(|b| parts.get(b)) else { continue };
            let info = &graph.variables()[part.variable];
            let finite = !part.late || info.init.is_finite(info.dtype);
            let next = NextValue { variable: info.name.clone(), itself: part.late, finite };
            self.diagnosis.next_values.insert(node.origin.name.clone(), next);
        }
        Ok(())
    }

    fn lower_node(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.node(id);
        let views = match &node.kind {
            NodeKind::Assign { .. } | NodeKind::Group => return Ok(()),
            NodeKind::Placeholder => {
                let (dtype, sizes) = self.binding.concrete[&id][0].clone();
                let feed = self.binding.feeds[&id];
                if node.infinite {
                    self.program.infinite.push(feed);
                }
                let buffer = self.program.add_buffer(dtype, &sizes, BufferKind::Feed(feed));
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
                let cse_inputs: Vec<CseInput> = inputs
                    .iter()
                    .zip(&node.inputs)
                    .map(|(view, t)| match view {
                        Some(view) => CseInput::Value(view.clone()),
                        None => {
                            let (dtype, sizes) = &self.binding.concrete[&t.node][t.output as usize];
                            CseInput::Shape(*dtype, sizes.clone())
                        }
                    })
                    .collect();
                if let Some(views) = self.cse.find(op.as_ref(), &cse_inputs) {
                    views.to_vec()
                } else {
                    let input_sizes: Vec<Vec<usize>> = node
                        .inputs
                        .iter()
                        .map(|t| self.binding.concrete[&t.node][t.output as usize].1.clone())
                        .collect();
                    let origin = self.origin(id);
                    let mut cx = LowerCx {
                        program: &mut self.program,
                        inputs: &inputs,
                        input_sizes: &input_sizes,
                        outputs: &self.binding.concrete[&id],
                        origin: &origin,
                    };
                    let fail = |e: Error| e.within(&node.name).at(node.site);
                    let views = op.lower(&mut cx).map_err(fail)?;
                    let place = Place { blocks: node.blocks.clone(), order: node.order };
                    self.places.resize(self.program.kernels.len(), place);
                    // Other operations rearrange these views, so they must be valid now.
                    for view in &views {
                        kir::validate_view(&self.program, view).map_err(|e| fail(e.within(op.name())))?;
                    }
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
                        self.diagnosis.hints.insert(node.name.clone(), hint);
                    }
                    self.cse.insert(op, cse_inputs, &views);
                    views
                }
            }
        };
        for (i, view) in views.into_iter().enumerate() {
            self.views.insert(TensorId { node: id, output: i as u32 }, view);
        }
        Ok(())
    }

    fn origin(&self, id: NodeId) -> Origin {
        let node = self.graph.node(id);
        Origin { name: node.name.clone(), site: node.site }
    }

    /// Returns the view of a tensor that node `reader` reads.
    fn read_by(&self, reader: NodeId, t: &TensorId) -> &View {
        let snapshot = self.snapshots.get(t).filter(|_| !self.live.contains(&reader));
        snapshot.unwrap_or_else(|| &self.views[t])
    }

    /// Returns a view of a variable or of its snapshot.
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

    /// Returns the updates of the variables that this tower assigns.
    fn updates(&self, tower: usize) -> Result<Vec<Update>> {
        let mut last = last_assigns(self.graph, self.assigns)?;
        last.retain(|(_, id)| self.graph.node(*id).tower == tower);
        let update = |(v, id): (VariableId, NodeId)| {
            let info = &self.graph.variables()[v.0 as usize];
            Update {
                variable: v.0 as usize,
                value: self.views[&self.graph.node(id).inputs[0]].clone(),
                finite: info.init.is_finite(info.dtype),
                on_overflow: info.on_overflow,
                origin: self.origin(id),
            }
        };
        Ok(last.into_iter().map(update).collect())
    }
}
