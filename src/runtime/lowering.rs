//! From a frozen graph to kernel IR: picks the nodes a run needs, makes their shapes concrete, merges equal ones, and
//! lowers each.

use super::faults::{Diagnosis, NextValue};
use super::finiteness;
use super::snapshot::{self, Reading};
use crate::graph::{Fetch, Frozen, Node, NodeId, NodeKind, Role, Spec, TensorId, VariableId};
use crate::kir::{self, BufferKind, LowerCx, Origin, Program, Update, View};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tensorpack_tensor::{DType, Error, ErrorKind, Result, element_count};

/// What is to be run, on inputs of which sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What is fetched and run.
    pub fetches: Vec<Fetch>,
    /// Name, type and sizes of what is fed.
    pub feeds: Vec<(String, DType, Vec<usize>)>,
}

/// Programs in kernel IR, one for each tower the request needs, with what surrounds them. They meet only where they
/// sum over towers.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// A program for each tower.
    pub programs: Vec<Program>,
    /// For each fetched value, which program has it and as which of its fetches.
    pub fetches: Vec<(usize, usize)>,
    /// What is known of nodes whose results may turn out not to be finite.
    pub diagnosis: Diagnosis,
}

/// Concrete type and sizes of each output of a node.
type Concrete = Vec<(DType, Vec<usize>)>;

/// Lowers what `request` asks for.
pub(super) fn lower(graph: &Frozen, request: &Request, reading: Reading) -> Result<Lowered> {
    let assigns = assigns_in_run(graph, request)?;
    let fetched: Vec<TensorId> = request
        .fetches
        .iter()
        .filter_map(|f| f.output.map(|output| TensorId { node: f.node, output }))
        .collect();
    let roots = close_over_collectives(graph, &fetched, &assigns)?;
    let mut lowered = Lowered { programs: Vec::new(), fetches: Vec::new(), diagnosis: Diagnosis::default() };
    for (&tower, roots) in &roots {
        let mine: Vec<TensorId> =
            fetched.iter().copied().filter(|t| graph.node(t.node).tower == tower).collect();
        let mut cx = Lowering {
            graph,
            assigns: &assigns,
            concrete: HashMap::new(),
            views: HashMap::new(),
            reading,
            snapshots: HashMap::new(),
            live: BTreeSet::new(),
            merged: HashMap::new(),
            feeds: HashMap::new(),
            program: Program::default(),
            diagnosis: &mut lowered.diagnosis,
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

/// For each tower, the nodes that must be computed for their own sake: what is fetched and assigned
/// there, the costs of the gradients that are used, and every collective in which another tower
/// takes part, for else that one would wait forever.
fn close_over_collectives(
    graph: &Frozen,
    fetched: &[TensorId],
    assigns: &BTreeSet<NodeId>,
) -> Result<BTreeMap<usize, BTreeSet<NodeId>>> {
    let mut groups: HashMap<&str, Vec<NodeId>> = HashMap::new();
    for (i, node) in graph.nodes().iter().enumerate() {
        if let Some(key) = collective(node) {
            groups.entry(key).or_default().push(NodeId(i as u32));
        }
    }
    let mut roots: BTreeMap<usize, BTreeSet<NodeId>> = BTreeMap::new();
    for id in fetched.iter().map(|t| t.node).chain(assigns.iter().copied()) {
        roots.entry(graph.node(id).tower).or_default().insert(id);
    }
    let mut sequences: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    loop {
        let mut more = Vec::new();
        for (&tower, roots) in &roots {
            let (values, _) = needed(graph, assigns, roots.iter().copied());
            if !assigns.is_empty() {
                more.extend(values.iter().flat_map(|&id| &graph.node(id).costs).copied());
            }
            let met: Vec<&Node> =
                values.iter().map(|&id| graph.node(id)).filter(|n| collective(n).is_some()).collect();
            if let Some(other) = met.iter().find(|n| n.tower != tower) {
                return Err(Error::new(
                    ErrorKind::Graph,
                    format!(
                        "tower {tower} reads {}, which tower {} computes with all others",
                        other.name, other.tower
                    ),
                )
                .at(other.site)
                .note("every tower has its own result of a sum over towers: read that one"));
            }
            let keys: Vec<&str> = met.iter().filter_map(|n| collective(n)).collect();
            more.extend(keys.iter().flat_map(|k| &groups[k]).copied());
            sequences.insert(tower, keys);
        }
        let grew =
            more.into_iter().filter(|&id| roots.entry(graph.node(id).tower).or_default().insert(id)).count();
        if grew == 0 {
            break;
        }
    }
    let mut all = sequences.iter();
    if let Some((first, want)) = all.next()
        && let Some((other, got)) = all.find(|(_, got)| *got != want)
    {
        let at = want.iter().zip(got.iter()).take_while(|(a, b)| a == b).count();
        let name = |keys: &[&str]| keys.get(at).map_or("nothing", |k| *k).to_string();
        return Err(Error::new(
            ErrorKind::Graph,
            format!(
                "towers disagree on what they sum: as number {} tower {first} has {}, tower {other} has {}",
                at + 1,
                name(want),
                name(got)
            ),
        )
        .note("a tower function must build the same sums over towers, in the same order, for every tower"));
    }
    Ok(roots)
}

fn collective(node: &Node) -> Option<&str> {
    match &node.kind {
        NodeKind::Op(op) => op.collective(),
        _ => None,
    }
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

/// The assignment whose value a `Current` node stands for: the latest of the run before it.
fn assigned_before(
    graph: &Frozen,
    assigns: &BTreeSet<NodeId>,
    id: NodeId,
    variable: VariableId,
) -> Option<NodeId> {
    let is_it =
        |n: &&NodeId| matches!(graph.node(**n).kind, NodeKind::Assign { variable: v, .. } if v == variable);
    assigns.range(..id).rev().find(is_it).copied()
}

/// Nodes whose values are needed, and nodes whose shapes are (those of the former included), in order.
fn needed(
    graph: &Frozen,
    assigns: &BTreeSet<NodeId>,
    roots: impl Iterator<Item = NodeId>,
) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
    let (mut values, mut shapes) = (BTreeSet::new(), BTreeSet::new());
    let mut stack: Vec<(NodeId, bool)> = roots.map(|n| (n, true)).collect();
    while let Some((id, value)) = stack.pop() {
        let new_value = value && values.insert(id);
        if !shapes.insert(id) && !new_value {
            continue;
        }
        let node = graph.node(id);
        match &node.kind {
            NodeKind::Op(op) => stack
                .extend(node.inputs.iter().enumerate().map(|(i, t)| (t.node, value && !op.shape_only(i)))),
            NodeKind::Current(v) => stack.extend(assigned_before(graph, assigns, id, *v).map(|n| (n, value))),
            _ => stack.extend(node.inputs.iter().map(|t| (t.node, value))),
        }
    }
    (values, shapes)
}

/// The assignments the request runs, in the order they were built.
fn assigns_in_run(graph: &Frozen, request: &Request) -> Result<BTreeSet<NodeId>> {
    let mut assigns = BTreeSet::new();
    let mut stack: Vec<NodeId> =
        request.fetches.iter().filter(|f| f.output.is_none()).map(|f| f.node).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = stack.pop() {
        if seen.insert(id) {
            let node = graph.node(id);
            stack.extend(&node.runs);
            if matches!(node.kind, NodeKind::Assign { .. }) {
                assigns.insert(id);
            }
        }
    }
    let mut plain: HashMap<VariableId, &Node> = HashMap::new();
    for &id in &assigns {
        let node = graph.node(id);
        if let NodeKind::Assign { variable, plain: true } = node.kind
            && let Some(other) = plain.insert(variable, node)
        {
            let name = &graph.variables()[variable.0 as usize].name;
            return Err(Error::new(
                ErrorKind::Graph,
                format!("the variable {name} is assigned twice in one run"),
            )
            .at(node.site)
            .note(format!("the other assignment is at {}", other.site))
            .note("use update(), which composes, or run them one after the other"));
        }
    }
    Ok(assigns)
}

struct Lowering<'a> {
    graph: &'a Frozen,
    assigns: &'a BTreeSet<NodeId>,
    concrete: HashMap<NodeId, Concrete>,
    views: HashMap<TensorId, View>,
    reading: Reading,
    /// Of variables that are read: what all nodes read but those of `live`, which read the variables themselves.
    snapshots: HashMap<TensorId, View>,
    live: BTreeSet<NodeId>,
    /// Nodes by identity: hash of op and inputs to the nodes lowered under it.
    merged: HashMap<u64, Vec<NodeId>>,
    feeds: HashMap<NodeId, usize>,
    program: Program,
    diagnosis: &'a mut Diagnosis,
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
        self.bind_feeds(request, &values, &shapes)?;
        for &id in &shapes {
            self.bind(id)?;
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

    fn bind_feeds(
        &mut self,
        request: &Request,
        values: &BTreeSet<NodeId>,
        shapes: &BTreeSet<NodeId>,
    ) -> Result<()> {
        for (i, (name, dtype, sizes)) in request.feeds.iter().enumerate() {
            let place = self.graph.fetch(name).ok().map(|f| f.node);
            let place = place.filter(|&n| matches!(self.graph.node(n).kind, NodeKind::Placeholder));
            let Some(id) = place else {
                return Err(Error::new(ErrorKind::Name, format!("the graph has no input named {name:?}"))
                    .note(format!("its inputs are: {}", self.input_names())));
            };
            let node = self.graph.node(id);
            let spec = &node.outputs[0];
            if spec.dtype != *dtype {
                return Err(Error::dtype(format!("the input {name} is {}, but {dtype} was fed", spec.dtype))
                    .at(node.site));
            }
            if !spec.shape.allows(sizes) {
                return Err(Error::shape(format!(
                    "the input {name} is {}, but {sizes:?} was fed",
                    spec.shape
                ))
                .at(node.site));
            }
            element_count(sizes)?;
            if self.feeds.insert(id, i).is_some() {
                return Err(Error::new(ErrorKind::Name, format!("the input {name} is fed twice")));
            }
            self.concrete.insert(id, vec![(*dtype, sizes.clone())]);
        }
        for &id in shapes.union(values) {
            let node = self.graph.node(id);
            if matches!(node.kind, NodeKind::Placeholder) && !self.feeds.contains_key(&id) {
                return Err(Error::new(
                    ErrorKind::Name,
                    format!("the input {} must be fed for this run", node.name),
                )
                .at(node.site));
            }
        }
        Ok(())
    }

    fn input_names(&self) -> String {
        let inputs = self.graph.nodes().iter().filter(|n| matches!(n.kind, NodeKind::Placeholder));
        inputs.map(|n| n.name.clone()).collect::<Vec<_>>().join(", ")
    }

    /// Runs the shape rule once more, now that all sizes are known.
    fn bind(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.node(id);
        let concrete = match &node.kind {
            NodeKind::Placeholder | NodeKind::Assign { .. } | NodeKind::Group => return Ok(()),
            NodeKind::Read(v) | NodeKind::Current(v) => {
                let v = &self.graph.variables()[v.0 as usize];
                vec![(v.dtype, v.sizes.clone())]
            }
            NodeKind::Op(op) => {
                let inputs: Vec<Spec> = node
                    .inputs
                    .iter()
                    .map(|t| {
                        let (dtype, sizes) = &self.concrete[&t.node][t.output as usize];
                        Spec::new(*dtype, sizes)
                    })
                    .collect();
                let shapes = || inputs.iter().map(|s| s.shape.to_string()).collect::<Vec<_>>().join(", ");
                let fail =
                    |e: Error| e.within(&node.name).at(node.site).note(format!("inputs: {}", shapes()));
                let outputs = op.infer(&inputs).map_err(fail)?;
                let concrete = outputs
                    .into_iter()
                    .map(|s| {
                        let sizes = s.shape.known().ok_or_else(|| {
                            Error::shape(format!("the shape {} is not determined by the inputs", s.shape))
                        })?;
                        element_count(&sizes)?;
                        Ok((s.dtype, sizes))
                    })
                    .collect::<Result<Concrete>>();
                concrete.map_err(fail)?
            }
        };
        self.concrete.insert(id, concrete);
        Ok(())
    }

    fn lower_node(&mut self, id: NodeId) -> Result<()> {
        let node = self.graph.node(id);
        let views = match &node.kind {
            NodeKind::Assign { .. } | NodeKind::Group => return Ok(()),
            NodeKind::Placeholder => {
                let (dtype, sizes) = self.concrete[&id][0].clone();
                let buffer = self.program.add_buffer(dtype, &sizes, BufferKind::Feed(self.feeds[&id]));
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
                        .map(|t| self.concrete[&t.node][t.output as usize].1.clone())
                        .collect();
                    let origin = Origin { name: node.name.clone(), site: node.site };
                    let mut cx = LowerCx {
                        program: &mut self.program,
                        inputs: &inputs,
                        input_sizes: &input_sizes,
                        outputs: &self.concrete[&id],
                        origin: &origin,
                    };
                    let views = op.lower(&mut cx).map_err(|e| e.within(&node.name).at(node.site))?;
                    let made: Concrete = views.iter().map(|v| (v.dtype, v.sizes.clone())).collect();
                    if made != self.concrete[&id] {
                        let (declared, name) = (&self.concrete[&id], op.name());
                        return Err(Error::shape(format!(
                            "{name} was lowered to {made:?}, but declared {declared:?}"
                        ))
                        .within(&node.name)
                        .at(node.site));
                    }
                    if let Some(hint) = op.nan_hint() {
                        self.diagnosis.hints.insert(node.name.clone(), hint);
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
            (view, &self.concrete[&t.node][t.output as usize]).hash(&mut h);
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
                            self.concrete[&t.node][t.output as usize]
                                == self.concrete[&u.node][u.output as usize]
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

    /// The next value of every variable that this tower assigns: the last in build order, which reads the others.
    fn updates(&self, tower: usize) -> Result<Vec<Update>> {
        let mut last: Vec<(VariableId, NodeId)> = Vec::new();
        for &id in self.assigns {
            let node = self.graph.node(id);
            let NodeKind::Assign { variable, .. } = node.kind else { continue };
            match last.iter_mut().find(|(v, _)| *v == variable) {
                Some(entry) if self.graph.node(entry.1).tower != node.tower => {
                    let name = &self.graph.variables()[variable.0 as usize].name;
                    return Err(Error::new(
                        ErrorKind::Graph,
                        format!("the variable {name} is updated by two towers"),
                    )
                    .at(node.site)
                    .note("sum what they have over the towers, and update it in one"));
                }
                Some(entry) => entry.1 = id,
                None => last.push((variable, id)),
            }
        }
        last.retain(|(_, id)| self.graph.node(*id).tower == tower);
        let update = |(v, id): (VariableId, NodeId)| {
            let info = &self.graph.variables()[v.0 as usize];
            Update {
                variable: v.0 as usize,
                value: self.views[&self.graph.node(id).inputs[0]].clone(),
                finite: info.init.is_finite(info.dtype),
            }
        };
        Ok(last.into_iter().map(update).collect())
    }
}
