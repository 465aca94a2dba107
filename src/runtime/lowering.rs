//! From a frozen graph to kernel IR: picks the nodes a run needs, makes their shapes concrete, merges equal ones, and
//! lowers each.

use crate::graph::{Fetch, Frozen, Node, NodeId, NodeKind, Role, Spec, TensorId, VariableId};
use crate::kir::{self, BufferKind, LowerCx, Origin, Program, Update, View};
use std::collections::{BTreeSet, HashMap};
use tensorpack_tensor::{DType, Error, ErrorKind, Result, element_count};

/// What is to be run, on inputs of which sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// What is fetched and run.
    pub fetches: Vec<Fetch>,
    /// Name, type and sizes of what is fed.
    pub feeds: Vec<(String, DType, Vec<usize>)>,
}

/// A program in kernel IR, with what surrounds it.
#[derive(Clone, Debug)]
pub struct Lowered {
    /// The kernels.
    pub program: Program,
    /// For each kernel, by name of its node: what a NaN there most likely means.
    pub hints: HashMap<String, String>,
}

/// Concrete type and sizes of each output of a node.
type Concrete = Vec<(DType, Vec<usize>)>;

/// Lowers what `request` asks for.
pub(super) fn lower(graph: &Frozen, request: &Request) -> Result<Lowered> {
    let assigns = assigns_in_run(graph, request)?;
    let fetched: Vec<TensorId> = request
        .fetches
        .iter()
        .filter_map(|f| f.output.map(|output| TensorId { node: f.node, output }))
        .collect();
    let mut cx = Lowering {
        graph,
        assigns: &assigns,
        concrete: HashMap::new(),
        views: HashMap::new(),
        merged: HashMap::new(),
        feeds: HashMap::new(),
        program: Program::default(),
        hints: HashMap::new(),
    };
    let roots = fetched.iter().map(|t| t.node).chain(assigns.iter().copied());
    let (values, shapes) = cx.needed(roots);
    cx.bind_feeds(request, &values, &shapes)?;
    for &id in &shapes {
        cx.bind(id)?;
    }
    for &id in &values {
        cx.lower_node(id)?;
    }
    cx.program.fetches = fetched.iter().map(|t| cx.views[t].clone()).collect();
    cx.program.updates = cx.updates();
    if !cx.program.updates.is_empty() {
        let with = |role: Role| {
            let nodes = values.iter().filter(move |id| graph.node(**id).role == role);
            nodes.map(|&node| cx.views[&TensorId { node, output: 0 }].clone()).collect()
        };
        (cx.program.costs, cx.program.kept) = (with(Role::Cost), with(Role::Gradient));
    }
    Ok(Lowered { program: cx.program, hints: cx.hints })
}

/// The assignments the request runs, in the order they were built.
fn assigns_in_run(graph: &Frozen, request: &Request) -> Result<BTreeSet<NodeId>> {
    let mut assigns = BTreeSet::new();
    let mut stack: Vec<NodeId> = request.fetches.iter().filter(|f| f.output.is_none()).map(|f| f.node).collect();
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
            return Err(Error::new(ErrorKind::Graph, format!("the variable {name} is assigned twice in one run"))
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
    /// Nodes by identity: hash of op and inputs to the nodes lowered under it.
    merged: HashMap<u64, Vec<NodeId>>,
    feeds: HashMap<NodeId, usize>,
    program: Program,
    hints: HashMap<String, String>,
}

impl<'a> Lowering<'a> {
    /// The assignment whose value a `Current` node stands for: the latest of the run before it.
    fn assigned_before(&self, id: NodeId, variable: VariableId) -> Option<NodeId> {
        let is_it = |n: &&NodeId| {
            matches!(self.graph.node(**n).kind, NodeKind::Assign { variable: v, .. } if v == variable)
        };
        self.assigns.range(..id).rev().find(is_it).copied()
    }

    /// Nodes whose values are needed, and nodes whose shapes are (those of the former included), in order.
    fn needed(&self, roots: impl Iterator<Item = NodeId>) -> (BTreeSet<NodeId>, BTreeSet<NodeId>) {
        let (mut values, mut shapes) = (BTreeSet::new(), BTreeSet::new());
        let mut stack: Vec<(NodeId, bool)> = roots.map(|n| (n, true)).collect();
        while let Some((id, value)) = stack.pop() {
            let new_value = value && values.insert(id);
            if !shapes.insert(id) && !new_value {
                continue;
            }
            let node = self.graph.node(id);
            match &node.kind {
                NodeKind::Op(op) => stack.extend(
                    node.inputs.iter().enumerate().map(|(i, t)| (t.node, value && !op.shape_only(i))),
                ),
                NodeKind::Current(v) => stack.extend(self.assigned_before(id, *v).map(|n| (n, value))),
                _ => stack.extend(node.inputs.iter().map(|t| (t.node, value))),
            }
        }
        (values, shapes)
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
                return Err(Error::dtype(format!("the input {name} is {}, but {dtype} was fed", spec.dtype)).at(node.site));
            }
            if !spec.shape.allows(sizes) {
                return Err(Error::shape(format!("the input {name} is {}, but {sizes:?} was fed", spec.shape))
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
                return Err(Error::new(ErrorKind::Name, format!("the input {} must be fed for this run", node.name))
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
                let fail = |e: Error| e.within(&node.name).at(node.site).note(format!("inputs: {}", shapes()));
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
            NodeKind::Read(v) => vec![self.variable(*v)],
            NodeKind::Current(v) => vec![match self.assigned_before(id, *v) {
                Some(assign) => self.views[&self.graph.node(assign).inputs[0]].clone(),
                None => self.variable(*v),
            }],
            NodeKind::Op(op) => {
                let inputs: Vec<Option<View>> = node
                    .inputs
                    .iter()
                    .enumerate()
                    .map(|(i, t)| if op.shape_only(i) { None } else { Some(self.views[t].clone()) })
                    .collect();
                if let Some(twin) = self.twin(id, node, op.as_ref(), &inputs) {
                    twin
                } else {
                    let input_sizes: Vec<Vec<usize>> =
                        node.inputs.iter().map(|t| self.concrete[&t.node][t.output as usize].1.clone()).collect();
                    let origin = Origin { name: node.name.clone(), site: node.site };
                    let mut cx = LowerCx {
                        program: &mut self.program,
                        inputs: &inputs,
                        input_sizes: &input_sizes,
                        outputs: &self.concrete[&id],
                        origin: &origin,
                    };
                    let views = op.lower(&mut cx).map_err(|e| e.within(&node.name).at(node.site))?;
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

    fn variable(&mut self, v: VariableId) -> View {
        let info = &self.graph.variables()[v.0 as usize];
        let index = v.0 as usize;
        let there = self
            .program
            .buffers
            .iter()
            .position(|b| matches!(b.kind, BufferKind::Variable(i) if i == index))
            .map(|i| kir::BufferId(i as u32));
        let buffer = there
            .unwrap_or_else(|| self.program.add_buffer(info.dtype, &info.sizes, BufferKind::Variable(index)));
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
        let alike = self.merged.entry(h.finish()).or_default();
        let twin = alike.iter().copied().find(|&other| {
            let other_node = self.graph.node(other);
            let same_op = matches!(&other_node.kind, NodeKind::Op(o) if o.same(op));
            same_op
                && other_node.inputs.len() == node.inputs.len()
                && inputs.iter().zip(node.inputs.iter().zip(&other_node.inputs)).all(|(view, (t, u))| match view {
                    Some(view) => Some(view) == self.views.get(u),
                    None => self.concrete[&t.node][t.output as usize] == self.concrete[&u.node][u.output as usize],
                })
        });
        if twin.is_none() {
            alike.push(id);
        }
        let outputs = node.outputs.len() as u32;
        twin.map(|node| (0..outputs).map(|output| self.views[&TensorId { node, output }].clone()).collect())
    }

    /// The next value of every variable that is assigned: the last in build order, which reads the others.
    fn updates(&self) -> Vec<Update> {
        let mut last: Vec<(usize, NodeId)> = Vec::new();
        for &id in self.assigns {
            if let NodeKind::Assign { variable, .. } = self.graph.node(id).kind {
                let variable = variable.0 as usize;
                match last.iter_mut().find(|(v, _)| *v == variable) {
                    Some(entry) => entry.1 = id,
                    None => last.push((variable, id)),
                }
            }
        }
        last.into_iter()
            .map(|(variable, id)| Update { variable, value: self.views[&self.graph.node(id).inputs[0]].clone() })
            .collect()
    }
}
