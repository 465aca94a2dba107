//! The nodes of a frozen graph that a run needs, with their concrete shapes. Engines that lower the
//! graph and the reference interpreter start from the same selection.

use crate::graph::{Fetch, Frozen, Node, NodeId, NodeKind, Spec, TensorId, VariableId};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tensorpack_tensor::{DType, Error, ErrorKind, Result, element_count};

/// A request to run fetches on feeds of given sizes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The tensors to fetch and the operations to run.
    pub fetches: Vec<Fetch>,
    /// Name, dtype and sizes of each feed.
    pub feeds: Vec<(String, DType, Vec<usize>)>,
}

impl Request {
    /// Returns the tensors whose values are fetched, in order; operations have none.
    pub(super) fn fetched(&self) -> Vec<TensorId> {
        let tensor = |f: &Fetch| f.output.map(|output| TensorId { node: f.node, output });
        self.fetches.iter().filter_map(tensor).collect()
    }
}

/// The dtype and concrete sizes of each output of a node.
pub(super) type Concrete = Vec<(DType, Vec<usize>)>;

/// Returns the root nodes of each tower: its fetches and assignments, the costs of the gradients in
/// use, and every collective in which another tower takes part, because that tower would wait
/// forever otherwise.
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
    loop {
        let mut more = Vec::new();
        for (&tower, roots) in &roots {
            let (values, _) = needed(graph, assigns, roots.iter().copied());
            if !assigns.is_empty() {
                more.extend(values.iter().flat_map(|&id| &graph.node(id).costs).copied());
            }
            let collectives: Vec<&Node> =
                values.iter().map(|&id| graph.node(id)).filter(|n| collective(n).is_some()).collect();
            if let Some(other) = collectives.iter().find(|n| n.tower != tower) {
                return Err(Error::new(
                    ErrorKind::Graph,
                    format!(
                        "tower {tower} reads {}, a collective result of tower {}",
                        other.name, other.tower
                    ),
                )
                .at(other.site)
                .note("every tower has its own copy of the result: read that one"));
            }
            let keys: Vec<&str> = collectives.iter().filter_map(|n| collective(n)).collect();
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
                "towers disagree on their sums: sum {} is {} in tower {first}, but {} in tower {other}",
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

/// Returns the assignment whose value a `Current` node reads: the last one before it in the run.
pub(super) fn assigned_before(
    graph: &Frozen,
    assigns: &BTreeSet<NodeId>,
    id: NodeId,
    variable: VariableId,
) -> Option<NodeId> {
    let assigns_it =
        |n: &&NodeId| matches!(graph.node(**n).kind, NodeKind::Assign { variable: v, .. } if v == variable);
    assigns.range(..id).rev().find(assigns_it).copied()
}

/// Returns the nodes whose values are needed, and the nodes whose shapes are needed (a superset),
/// in order.
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

/// Returns the assignments that a request runs, in build order.
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
            .note("use update(), which composes, or use two runs"));
        }
    }
    Ok(assigns)
}

/// Returns the last assignment to each variable in build order. It computes the next value from the
/// earlier ones.
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
                .note("sum the values over the towers, and update the variable in one of them"));
            }
            Some(entry) => entry.1 = id,
            None => last.push((variable, id)),
        }
    }
    Ok(last)
}

/// Returns the indices of the variables whose initial values a run reads.
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

/// The feeds and concrete shapes of the nodes of a run.
pub(super) struct Binding<'a> {
    graph: &'a Frozen,
    /// The feed of each placeholder.
    pub(super) feeds: HashMap<NodeId, usize>,
    pub(super) concrete: HashMap<NodeId, Concrete>,
}

impl<'a> Binding<'a> {
    /// Creates an empty binding.
    pub(super) fn new(graph: &'a Frozen) -> Binding<'a> {
        Binding { graph, feeds: HashMap::new(), concrete: HashMap::new() }
    }

    /// Binds placeholders to feeds. Checks that all needed inputs are fed, with their declared
    /// dtypes and shapes.
    pub(super) fn bind_feeds(
        &mut self,
        request: &Request,
        values: &BTreeSet<NodeId>,
        shapes: &BTreeSet<NodeId>,
    ) -> Result<()> {
        for (i, (name, dtype, sizes)) in request.feeds.iter().enumerate() {
            let node = self.graph.fetch(name).ok().map(|f| f.node);
            let node = node.filter(|&n| matches!(self.graph.node(n).kind, NodeKind::Placeholder));
            let Some(id) = node else {
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

    /// Runs the shape rule of a node with concrete sizes.
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
