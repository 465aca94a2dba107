//! What a run needs of a frozen graph: which nodes, with which concrete shapes. Engines that lower the graph and the
//! reference interpreter start from the same selection.

use crate::graph::{Fetch, Frozen, Node, NodeId, NodeKind, Spec, TensorId, VariableId};
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

impl Request {
    /// Returns the tensors whose values are fetched, in order; operations have none.
    pub(super) fn fetched(&self) -> Vec<TensorId> {
        let tensor = |f: &Fetch| f.output.map(|output| TensorId { node: f.node, output });
        self.fetches.iter().filter_map(tensor).collect()
    }
}

/// Concrete type and sizes of each output of a node.
pub(super) type Concrete = Vec<(DType, Vec<usize>)>;

/// For each tower, the nodes that must be computed for their own sake: what is fetched and assigned there, and every
/// collective in which another tower takes part, for else that one would wait forever.
pub(super) fn close_over_collectives(
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
    while !groups.is_empty() {
        let mut more = Vec::new();
        for (&tower, roots) in &roots {
            let (values, _) = needed(graph, assigns, roots.iter().copied());
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

pub(super) fn collective(node: &Node) -> Option<&str> {
    match &node.kind {
        NodeKind::Op(op) => op.collective(),
        _ => None,
    }
}

/// The assignment whose value a `Current` node stands for: the latest of the run before it.
pub(super) fn assigned_before(
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
pub(super) fn needed(
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
pub(super) fn assigns_in_run(graph: &Frozen, request: &Request) -> Result<BTreeSet<NodeId>> {
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

/// The last assignment of the run to each variable, in build order: it makes the next value, and reads the others.
pub(super) fn last_assigns(graph: &Frozen, assigns: &BTreeSet<NodeId>) -> Result<Vec<(VariableId, NodeId)>> {
    let mut last: Vec<(VariableId, NodeId)> = Vec::new();
    for &id in assigns {
        let node = graph.node(id);
        let NodeKind::Assign { variable, .. } = node.kind else { continue };
        match last.iter_mut().find(|(v, _)| *v == variable) {
            Some(entry) if graph.node(entry.1).tower != node.tower => {
                let name = &graph.variables()[variable.0 as usize].name;
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
    Ok(last)
}

/// The variables whose values at the start of the run it reads, by number.
pub(super) fn variables_read(graph: &Frozen, request: &Request) -> Result<BTreeSet<usize>> {
    let assigns = assigns_in_run(graph, request)?;
    let roots = close_over_collectives(graph, &request.fetched(), &assigns)?;
    let (values, _) = needed(graph, &assigns, roots.into_values().flatten());
    let read = |id: NodeId| match graph.node(id).kind {
        NodeKind::Read(v) => Some(v.0 as usize),
        NodeKind::Current(v) if assigned_before(graph, &assigns, id, v).is_none() => Some(v.0 as usize),
        _ => None,
    };
    Ok(values.into_iter().filter_map(read).collect())
}

/// Feeds and concrete shapes of the nodes of a run.
pub(super) struct Binding<'a> {
    graph: &'a Frozen,
    /// Which feed each placeholder takes.
    pub(super) feeds: HashMap<NodeId, usize>,
    pub(super) concrete: HashMap<NodeId, Concrete>,
}

impl<'a> Binding<'a> {
    /// Returns a binding of nothing yet.
    pub(super) fn new(graph: &'a Frozen) -> Binding<'a> {
        Binding { graph, feeds: HashMap::new(), concrete: HashMap::new() }
    }

    /// Takes type and sizes of what is fed; checks that everything needed is fed, and fed as declared.
    pub(super) fn bind_feeds(
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
    pub(super) fn bind(&mut self, id: NodeId) -> Result<()> {
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
}
