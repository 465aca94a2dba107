//! Graph construction.

use super::call_site::CallSites;
use super::collection::Collections;
use super::frozen::LateError;
use super::gate::Gate;
use super::tensor::dims_of;
use super::{
    Collection, Frozen, LossScale, Node, NodeId, NodeKind, Op, OpDef, Precision, Role, Spec, Tensor,
    TensorId, TensorSpec, VariableId, VariableInfo, name, nearest_names,
};
use std::cell::{Ref, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorpack_tensor::{DType, Dim, Error, ErrorKind, Result, Site, Symbol, element_count};

/// A graph under construction. Clones refer to the same graph.
#[derive(Clone)]
pub struct Graph(Rc<Shared>);

struct Shared {
    uid: u64,
    /// Kept outside `state`, because errors after freezing need a line too.
    sites: RefCell<CallSites>,
    state: RefCell<State>,
}

enum State {
    Building(Box<Building>),
    /// Nothing can be added any more; attempts are reported here.
    Frozen(Arc<LateError>),
}

pub(super) struct Building {
    pub(super) nodes: Vec<Node>,
    pub(super) variables: Vec<VariableInfo>,
    pub(super) collections: Collections,
    /// The outermost layers of the first tower that has them: names without the tower's, and
    /// outputs.
    pub(super) layers: Vec<(String, TensorId)>,
    /// The decays of moving averages of scalars, where they were set.
    summary_decays: BTreeMap<TensorId, f64>,
    /// Tensors by name: names given by users and names of nodes.
    pub(super) names: HashMap<String, TensorId>,
    /// The names among them that users gave, in order.
    pub(super) given_names: Vec<(String, TensorId)>,
    /// Names that users gave in the bodies of loops, where a tensor has a value in every step.
    pub(super) names_in_loops: BTreeSet<String>,
    taken: HashMap<String, u32>,
    pub(super) variable_names: HashMap<String, VariableId>,
    pub(super) name_scope: Vec<String>,
    pub(super) variable_scope: Vec<String>,
    /// Functions applied to updates before they reach their variables, outermost first.
    pub(super) gates: Vec<Gate>,
    pub(super) tower: usize,
    /// The recompute blocks that new nodes belong to, outermost first.
    pub(super) blocks: Vec<u32>,
    /// The number of recompute blocks so far.
    pub(super) block_count: u32,
    /// The order of the derivative that new nodes are part of.
    pub(super) order: u32,
    /// The precision of towers.
    pub(super) precision: Precision,
    pub(super) loss_scale: LossScale,
    /// The type to which contractions cast their inputs, inside towers.
    pub(super) contractions: Option<DType>,
    /// The index of the first tower of this graph among those of all processes.
    pub(super) first_tower: usize,
    error: Option<Error>,
    symbols: u32,
    /// Messages already logged, so that each is logged once.
    logged: HashSet<String>,
}

impl Default for Graph {
    fn default() -> Graph {
        Graph::new()
    }
}

impl Graph {
    /// Creates an empty graph.
    pub fn new() -> Graph {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let building = Building {
            nodes: Vec::new(),
            variables: Vec::new(),
            collections: Collections::new(),
            layers: Vec::new(),
            summary_decays: BTreeMap::new(),
            names: HashMap::new(),
            given_names: Vec::new(),
            names_in_loops: BTreeSet::new(),
            taken: HashMap::new(),
            variable_names: HashMap::new(),
            name_scope: Vec::new(),
            variable_scope: Vec::new(),
            gates: Vec::new(),
            tower: 0,
            blocks: Vec::new(),
            block_count: 0,
            order: 0,
            precision: Precision::default(),
            loss_scale: LossScale::default(),
            contractions: None,
            first_tower: 0,
            error: None,
            symbols: 0,
            logged: HashSet::new(),
        };
        let state = RefCell::new(State::Building(Box::new(building)));
        let sites = RefCell::default();
        Graph(Rc::new(Shared { uid: NEXT.fetch_add(1, Ordering::Relaxed), sites, state }))
    }

    /// Returns an identifier that is unique in this process.
    pub fn uid(&self) -> u64 {
        self.0.uid
    }

    pub(super) fn building(&self) -> Option<RefMut<'_, Building>> {
        RefMut::filter_map(self.0.state.borrow_mut(), |s| match s {
            State::Building(b) => Some(&mut **b),
            State::Frozen(_) => None,
        })
        .ok()
    }

    /// Borrows the graph for reading; `None` after freezing.
    pub(super) fn built(&self) -> Option<Ref<'_, Building>> {
        Ref::filter_map(self.0.state.borrow(), |s| match s {
            State::Building(b) => Some(&**b),
            State::Frozen(_) => None,
        })
        .ok()
    }

    /// Borrows the graph for a change. After freezing, the attempt becomes the session's next
    /// error.
    #[track_caller]
    pub(super) fn building_or_late(&self, what: &str) -> Option<RefMut<'_, Building>> {
        let building = self.building();
        if building.is_none() {
            let site = self.site(Location::caller());
            if let State::Frozen(late) = &*self.0.state.borrow() {
                late.set(frozen(what, site));
            }
        }
        building
    }

    pub(super) fn sites(&self) -> RefMut<'_, CallSites> {
        self.0.sites.borrow_mut()
    }

    /// Returns the user's line for a call from `caller`.
    pub(super) fn site(&self, caller: &'static Location<'static>) -> Site {
        self.sites().resolve(caller)
    }

    /// Checks that the graph is not frozen yet.
    #[track_caller]
    pub(crate) fn check_not_frozen(&self, what: &str) -> Result<()> {
        let site = self.site(Location::caller());
        self.built().map(|_| ()).ok_or_else(|| frozen(what, site))
    }

    /// Returns the first error recorded so far.
    pub fn first_error(&self) -> Result<()> {
        self.built().and_then(|b| b.error.clone()).map_or(Ok(()), Err)
    }

    /// Records an error, unless an earlier one is already recorded.
    #[track_caller]
    pub(crate) fn record(&self, op: &str, inputs: &[&Tensor], error: Error) {
        let caller = Location::caller();
        let Some(mut b) = self.building_or_late(op) else { return };
        if b.error.is_some() || inputs.iter().any(|t| t.is_poison()) {
            return;
        }
        let scope = b.name_scope.join("/");
        let mut error = error.within(name::join(&scope, op)).at(self.site(caller));
        if !inputs.is_empty() {
            let inputs: Vec<String> = inputs.iter().map(|t| format!("{}{}", t.dtype(), t.shape())).collect();
            error = error.note(format!("inputs: {}", inputs.join(", ")));
        }
        b.error = Some(error);
    }

    /// Adds an operation.
    #[track_caller]
    pub fn add_op(&self, op: Arc<dyn OpDef>, inputs: &[&Tensor]) -> Vec<Tensor> {
        let poison = || vec![Tensor::poison(self); op.output_count().min(MAX_POISON)];
        if let Some(poisoned) = inputs.iter().find(|t| t.is_poison()) {
            // This graph knows no reason for what another one could not build.
            if !self.owns(poisoned) {
                self.record(op.name(), &[], poisoned.belongs_elsewhere());
            }
            return poison();
        }
        let cast = self.autocast_inputs(&*op, inputs, Location::caller());
        let cast: Option<Vec<&Tensor>> = cast.as_ref().map(|cast| cast.iter().collect());
        let inputs = cast.as_deref().unwrap_or(inputs);
        let specs: Vec<Spec> = inputs.iter().map(|t| t.spec.clone()).collect();
        let inferred = op.infer(&specs).and_then(|outputs| match outputs.len() == op.output_count() {
            true => Ok(outputs),
            false => Err(Error::argument(format!(
                "`infer` returned {} outputs, but `output_count` is {}",
                outputs.len(),
                op.output_count()
            ))),
        });
        match inferred {
            Ok(outputs) => self.add_node(NodeKind::Op(op), inputs, Some(outputs)),
            Err(e) => {
                self.record(op.name(), inputs, e);
                poison()
            }
        }
    }

    /// Adds a node and returns its outputs. Without `outputs`, a node that reads a variable has the
    /// variable's type.
    #[track_caller]
    pub(super) fn add_node(
        &self,
        kind: NodeKind,
        inputs: &[&Tensor],
        outputs: Option<Vec<Spec>>,
    ) -> Vec<Tensor> {
        let caller = Location::caller();
        let poison = || vec![Tensor::poison(self); outputs.as_ref().map_or(1, Vec::len)];
        let Some(mut b) = self.building_or_late(kind.name()) else { return poison() };
        if let Some(foreign) = inputs.iter().find(|t| !self.owns(t)) {
            let site = self.site(caller);
            b.error.get_or_insert(foreign.belongs_elsewhere().within(kind.name()).at(site));
            return poison();
        }
        let outputs = outputs.unwrap_or_else(|| match kind {
            NodeKind::Current(v) | NodeKind::Read(v) => {
                let v = &b.variables[v.0 as usize];
                vec![Spec::new(v.dtype, &v.sizes)]
            }
            _ => Vec::new(),
        });
        let base = name::join(&b.name_scope.join("/"), kind.name());
        let full = b.unique(&base);
        let site = self.site(caller);
        let node = NodeId(b.nodes.len() as u32);
        let (tower, blocks, order) = (b.tower, b.blocks.clone(), b.order);
        let inputs = inputs.iter().filter_map(|t| t.id).collect();
        b.names.insert(full.clone(), TensorId { node, output: 0 });
        b.nodes.push(Node {
            kind,
            name: full,
            inputs,
            runs: Vec::new(),
            outputs: outputs.clone(),
            site,
            role: Role::Plain,
            costs: Vec::new(),
            tower,
            blocks,
            order,
            infinite: false,
        });
        let tensor =
            |(i, spec)| Tensor { graph: self.clone(), id: Some(TensorId { node, output: i as u32 }), spec };
        outputs.into_iter().enumerate().map(tensor).collect()
    }

    #[track_caller]
    pub(super) fn add_assign(&self, variable: VariableId, plain: bool, value: &Tensor) -> Op {
        let kind = NodeKind::Assign { variable, plain };
        let Some((want, var_name)) = self.built().map(|b| {
            let v = &b.variables[variable.0 as usize];
            (Spec::new(v.dtype, &v.sizes), v.name.clone())
        }) else {
            self.building_or_late("Assign");
            return Op::poison(self);
        };
        let fits = want.shape.known().is_some_and(|sizes| value.shape().allows(&sizes))
            && want.dtype == value.dtype();
        if !value.is_poison() && !fits {
            self.record(
                kind.name(),
                &[value],
                Error::shape(format!(
                    "{}{} cannot be assigned to {var_name}, which is {}{}",
                    value.dtype(),
                    value.shape(),
                    want.dtype,
                    want.shape
                )),
            );
        }
        if value.is_poison() || !fits {
            return Op::poison(self);
        }
        let value = self.through_gates(variable, value);
        self.add_node(kind, &[&value], Some(Vec::new()));
        Op { graph: self.clone(), node: self.last_node() }
    }

    /// Returns one operation that runs all of `ops`.
    #[track_caller]
    pub fn group(&self, ops: &[&Op]) -> Op {
        let Some(runs) = ops.iter().map(|op| op.node).collect::<Option<Vec<NodeId>>>() else {
            return Op::poison(self);
        };
        if ops.iter().any(|op| op.graph.uid() != self.uid()) {
            self.record("Group", &[], Error::new(ErrorKind::Graph, "an operation belongs to another graph"));
            return Op::poison(self);
        }
        self.add_node(NodeKind::Group, &[], Some(Vec::new()));
        let node = self.last_node();
        if let (Some(mut b), Some(node)) = (self.building(), node) {
            b.nodes[node.0 as usize].runs = runs;
        }
        Op { graph: self.clone(), node }
    }

    fn last_node(&self) -> Option<NodeId> {
        self.built().and_then(|b| b.nodes.len().checked_sub(1)).map(|i| NodeId(i as u32))
    }

    /// Adds an input, fed under the spec's name. Every unknown dim becomes a new symbol.
    #[track_caller]
    pub fn placeholder(&self, spec: &TensorSpec) -> Tensor {
        let checked = name::check(&spec.name).and_then(|()| {
            let known: Vec<usize> = spec.sizes.iter().map(|s| s.unwrap_or(1)).collect();
            element_count(&known)?;
            match self.built().is_some_and(|b| b.names.contains_key(&spec.name)) {
                true => Err(Error::new(ErrorKind::Name, format!("the name {:?} is taken", spec.name))),
                false => Ok(()),
            }
        });
        if let Err(e) = checked {
            self.record("Placeholder", &[], e);
            return Tensor::poison(self);
        }
        let Some(mut b) = self.building_or_late("Placeholder") else { return Tensor::poison(self) };
        let shape = dims_of(&spec.sizes, || {
            b.symbols += 1;
            Dim::Unknown(Symbol::new(b.symbols))
        });
        drop(b);
        let outputs = Some(vec![Spec { dtype: spec.dtype, shape }]);
        let tensor = self.add_node(NodeKind::Placeholder, &[], outputs).swap_remove(0);
        // Inputs keep the name they are fed under, regardless of the scope.
        if let (Some(mut b), Some(id)) = (self.building(), tensor.id) {
            b.rename(id, spec.name.clone());
            b.nodes[id.node.0 as usize].infinite = spec.infinite;
        }
        tensor
    }

    /// Adds an input of this type and shape, whose unknown dims may be those of another graph.
    #[track_caller]
    pub(crate) fn input_of(&self, spec: Spec) -> Tensor {
        self.add_node(NodeKind::Placeholder, &[], Some(vec![spec])).swap_remove(0)
    }

    /// Adds an input on behalf of this crate: errors point at the line of the spec.
    pub(crate) fn input(&self, spec: &TensorSpec) -> Tensor {
        self.on_line(spec.site, || self.placeholder(spec))
    }

    /// Returns the model's float type as built so far: f64 if every trainable variable (or, before
    /// the first one, every float input) is f64, else f32.
    pub(crate) fn float_type(&self) -> DType {
        let Some(b) = self.built() else { return DType::F32 };
        let trained = b.variables.iter().filter(|v| v.trainable).map(|v| v.dtype);
        let fed =
            b.nodes.iter().filter(|n| matches!(n.kind, NodeKind::Placeholder)).map(|n| n.outputs[0].dtype);
        let mut floats: Vec<DType> = trained.filter(|d| d.is_float()).collect();
        if floats.is_empty() {
            floats.extend(fed.filter(|d| d.is_float()));
        }
        match !floats.is_empty() && floats.iter().all(|&d| d == DType::F64) {
            true => DType::F64,
            false => DType::F32,
        }
    }

    /// Returns true the first time it is called with `what`, so that a message is logged once, not
    /// for every tower.
    pub(crate) fn first_time(&self, what: &str) -> bool {
        self.building().is_some_and(|mut b| b.logged.insert(what.to_string()))
    }

    /// Returns the tower that new nodes belong to; 0 outside towers.
    pub(crate) fn current_tower(&self) -> usize {
        self.building().map_or(0, |b| b.tower)
    }

    /// Records a layer and its output, for summaries of the model.
    pub(crate) fn add_layer(&self, name: String, output: TensorId) {
        if let Some(mut b) = self.building() {
            b.layers.push((name, output));
        }
    }

    #[track_caller]
    pub(super) fn name_tensor(&self, tensor: &Tensor, part: &str) {
        if let Err(e) = name::check(part) {
            return self.record("named", &[tensor], e);
        }
        let Some(id) = tensor.id else { return };
        let Some(mut b) = self.building_or_late("named") else { return };
        let full = name::join(&b.name_scope.join("/"), part);
        match b.names.get(&full) {
            Some(&other) if other != id => {
                drop(b);
                self.record(
                    "named",
                    &[tensor],
                    Error::new(ErrorKind::Name, format!("the name {full:?} is taken")),
                );
            }
            _ => b.rename(id, full),
        }
    }

    /// Records names in the body of a loop that is built in the current scope.
    pub(crate) fn add_names_in_loops<'a>(&self, names: impl Iterator<Item = &'a str>) {
        if let Some(mut b) = self.building() {
            let scope = b.name_scope.join("/");
            b.names_in_loops.extend(names.map(|part| name::join(&scope, part)));
        }
    }

    /// Renames a node to the full name it had in another graph.
    pub(crate) fn restore_name(&self, tensor: &Tensor, full: &str) -> Result<()> {
        name::check(full)?;
        if let (Some(mut b), Some(id)) = (self.building(), tensor.id) {
            let old = b.nodes[id.node.0 as usize].name.clone();
            b.names.remove(&old);
            if b.names.contains_key(full) {
                return Err(Error::new(ErrorKind::Name, format!("the name {full:?} is taken")));
            }
            b.rename(id, full.to_string());
        }
        Ok(())
    }

    pub(super) fn set_role(&self, tensor: &Tensor, role: Role) {
        if let (Some(mut b), Some(id)) = (self.building(), tensor.id) {
            b.nodes[id.node.0 as usize].role = role;
        }
    }

    /// Returns the role of a tensor.
    pub(super) fn role(&self, tensor: &Tensor) -> Option<Role> {
        let id = tensor.id?;
        self.built().map(|b| b.nodes[id.node.0 as usize].role)
    }

    /// Marks a tensor as a gradient of a cost.
    pub(super) fn set_gradient(&self, gradient: &Tensor, cost: &Tensor) {
        if let (Some(mut b), Some(gradient), Some(cost)) = (self.building(), gradient.id, cost.id) {
            let node = &mut b.nodes[gradient.node.0 as usize];
            // A cost may be its own gradient: d/dx exp(x) = exp(x).
            if node.role != Role::Cost {
                node.role = Role::Gradient;
            }
            if !node.costs.contains(&cost.node) {
                node.costs.push(cost.node);
            }
        }
    }

    pub(super) fn node_name(&self, node: NodeId) -> String {
        self.built().map_or_else(|| format!("node {}", node.0), |b| b.nodes[node.0 as usize].name.clone())
    }

    /// Returns the last name that a tensor was given, or that of its node.
    pub(super) fn tensor_name(&self, id: TensorId) -> String {
        let given = self.built().and_then(|b| {
            // The first output's name is the node's.
            let mut given = b.given_names.iter().rev().filter(|_| id.output > 0);
            given.find(|(_, tensor)| *tensor == id).map(|(name, _)| name.clone())
        });
        given.unwrap_or_else(|| self.node_name(id.node))
    }

    /// Returns the line that made a node.
    pub(super) fn node_site(&self, node: NodeId) -> Option<Site> {
        self.built().map(|b| b.nodes[node.0 as usize].site)
    }

    /// Returns the tensor with this name.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        self.find_tensor(name).ok_or_else(|| {
            Error::new(ErrorKind::Name, format!("the graph has no tensor named {name:?}"))
                .note(self.nearest_tensors(name, ""))
        })
    }

    /// Returns the tensor with this name, if there is one. Unlike [`Graph::tensor`] it does not
    /// look for similar names.
    pub(crate) fn find_tensor(&self, name: &str) -> Option<Tensor> {
        self.built().and_then(|b| {
            let id = *b.names.get(name)?;
            let spec = b.nodes[id.node.0 as usize].outputs.get(id.output as usize)?.clone();
            Some(Tensor { graph: self.clone(), id: Some(id), spec })
        })
    }

    /// Returns a note about a name that no tensor has: the names nearest to it, of those that begin
    /// with `prefix`.
    pub(crate) fn nearest_tensors(&self, name: &str, prefix: &str) -> String {
        let built = self.built();
        if built.as_ref().is_some_and(|b| b.names_in_loops.contains(name)) {
            return IN_LOOP.into();
        }
        let names = built.iter().flat_map(|b| b.names.keys()).map(String::as_str);
        nearest_names("tensors", name, names.filter(|n| n.starts_with(prefix)))
    }

    /// Returns whether anything was ever added to this collection.
    pub(crate) fn has_collection(&self, key: &str) -> bool {
        self.built().is_some_and(|b| b.collections.contains_key(key))
    }

    /// Returns a note with the names of collections nearest to `key`.
    pub(crate) fn nearest_collections(&self, key: &str) -> String {
        let built = self.built();
        let names = built.iter().flat_map(|b| b.collections.keys()).map(String::as_str);
        nearest_names("collections", key, names)
    }

    pub(crate) fn tensor_at(&self, id: TensorId) -> Tensor {
        let spec = self.built().map(|b| b.nodes[id.node.0 as usize].outputs[id.output as usize].clone());
        Tensor { graph: self.clone(), id: Some(id), spec: spec.unwrap_or_else(|| Spec::new(DType::F32, [])) }
    }

    /// Returns a copy of a node, for passes over the graph.
    pub(crate) fn node(&self, id: NodeId) -> Option<Node> {
        self.built().and_then(|b| b.nodes.get(id.0 as usize).cloned())
    }

    /// Returns whether a tensor is part of this graph.
    pub(crate) fn owns(&self, tensor: &Tensor) -> bool {
        tensor.graph.uid() == self.uid()
    }

    /// Adds a tensor to a collection.
    #[track_caller]
    pub fn add_to_collection(&self, key: &str, tensor: &Tensor) {
        if !self.owns(tensor) {
            self.record(key, &[], tensor.belongs_elsewhere());
        } else if let (Some(mut b), Some(id)) = (self.building_or_late("add_to_collection"), tensor.id) {
            b.collections.entry(key.to_string()).or_default().tensors.push(id);
        }
    }

    /// Adds an operation to a collection.
    #[track_caller]
    pub fn add_op_to_collection(&self, key: &str, op: &Op) {
        if let (Some(mut b), Some(node)) = (self.building_or_late("add_op_to_collection"), op.node) {
            b.collections.entry(key.to_string()).or_default().ops.push(node);
        }
    }

    /// Sets the decay of the moving average of a scalar in
    /// [`MOVING_SUMMARIES`](super::MOVING_SUMMARIES).
    pub(crate) fn set_summary_decay(&self, tensor: &Tensor, decay: f64) {
        if let (Some(mut b), Some(id)) = (self.building(), tensor.id) {
            b.summary_decays.insert(id, decay);
        }
    }

    /// Returns the decay of the moving average of a scalar, if it was set.
    pub(crate) fn summary_decay(&self, tensor: &Tensor) -> Option<f64> {
        self.built().zip(tensor.id).and_then(|(b, id)| b.summary_decays.get(&id).copied())
    }

    /// Returns a collection; empty if nothing was added to it.
    pub fn collection(&self, key: &str) -> Collection {
        self.built().and_then(|b| b.collections.get(key).cloned()).unwrap_or_default()
    }

    /// Restores a collection to an earlier state.
    pub(crate) fn restore_collection(&self, key: &str, collection: Collection) {
        if let Some(mut b) = self.building() {
            b.collections.insert(key.to_string(), collection);
        }
    }

    /// Returns the operations of a collection.
    pub fn collection_ops(&self, key: &str) -> Vec<Op> {
        self.collection(key).ops.iter().map(|&n| Op { graph: self.clone(), node: Some(n) }).collect()
    }

    /// Finishes construction: afterwards nothing can be added. Returns the first recorded error, if
    /// any.
    pub fn freeze(self) -> Result<Frozen> {
        let late = Arc::new(LateError::default());
        let mut state = self.0.state.borrow_mut();
        match std::mem::replace(&mut *state, State::Frozen(late.clone())) {
            State::Building(b) => match b.error.clone() {
                None => Ok(Frozen::new(self.0.uid, *b, late)),
                Some(e) => {
                    *state = State::Building(b);
                    Err(e)
                }
            },
            State::Frozen(earlier) => {
                *state = State::Frozen(earlier);
                Err(Error::new(ErrorKind::Graph, "the graph is already frozen"))
            }
        }
    }
}

/// The note about a name that a tensor in the body of a loop has.
pub(super) const IN_LOOP: &str =
    "a tensor in the body of a loop has this name: it has a value in every step; return it from the body";

/// Maximum number of poison tensors of a failed operation, whose attributes may say anything.
const MAX_POISON: usize = 1 << 16;

fn frozen(what: &str, site: Site) -> Error {
    Error::new(ErrorKind::Graph, format!("{what}: the graph is frozen; nothing can be added to it"))
        .at(site)
        .note("build everything before creating the session")
}

impl Building {
    /// Returns `base`, or `base_1`, `base_2`... if it is taken.
    fn unique(&mut self, base: &str) -> String {
        loop {
            let n = self.taken.entry(base.to_string()).or_insert(0);
            let full = if *n == 0 { base.to_string() } else { format!("{base}_{n}") };
            *n += 1;
            if !self.names.contains_key(&full) {
                return full;
            }
        }
    }

    pub(super) fn rename(&mut self, id: TensorId, full: String) {
        if id.output == 0 {
            self.nodes[id.node.0 as usize].name = full.clone();
        }
        self.given_names.push((full.clone(), id));
        self.names.insert(full, id);
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.built() {
            Some(b) => write!(f, "Graph({} nodes, {} variables)", b.nodes.len(), b.variables.len()),
            None => f.write_str("Graph(frozen)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kir::{LowerCx, View};

    /// Six copies of a matrix; any other rank is an error.
    #[derive(Debug, PartialEq, Eq, Hash)]
    struct Six;

    impl OpDef for Six {
        fn name(&self) -> &str {
            "Six"
        }

        fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
            match inputs[0].shape.rank() {
                2 => Ok(vec![inputs[0].clone(); 6]),
                _ => Err(Error::shape("expected a matrix")),
            }
        }

        fn output_count(&self) -> usize {
            6
        }

        fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
            Ok(vec![cx.input(0); 6])
        }
    }

    /// Declares one output too many.
    #[derive(Debug, PartialEq, Eq, Hash)]
    struct Miscounted;

    impl OpDef for Miscounted {
        fn name(&self) -> &str {
            "Miscounted"
        }

        fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
            Ok(vec![inputs[0].clone()])
        }

        fn output_count(&self) -> usize {
            2
        }

        fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
            Ok(vec![cx.input(0)])
        }
    }

    fn poisoned(made: &[Tensor]) -> usize {
        assert!(made.iter().all(Tensor::is_poison), "{made:?}");
        made.len()
    }

    #[test]
    fn a_failed_op_has_as_many_outputs_as_it_declares() {
        let graph = Graph::new();
        let vector = graph.placeholder(&TensorSpec::f32("vector", [Some(3)]));
        let matrix = graph.placeholder(&TensorSpec::f32("matrix", [Some(3), Some(2)]));
        assert_eq!(Tensor::apply(Six, &[&matrix]).len(), 6);
        let failed = Tensor::apply(Six, &[&vector]);
        assert_eq!(poisoned(&failed), 6, "an error of `infer`");
        assert_eq!(poisoned(&Tensor::apply(Six, &[&failed[5]])), 6, "a poison input");
        assert_eq!(poisoned(&Tensor::apply(Miscounted, &[&failed[0]])), 2);
        let other = Graph::new().placeholder(&TensorSpec::f32("other", [Some(3), Some(2)]));
        assert_eq!(poisoned(&graph.add_op(Arc::new(Six), &[&other])), 6, "an input of another graph");
        let fine = Graph::new();
        let matrix = fine.placeholder(&TensorSpec::f32("matrix", [Some(3), Some(2)]));
        fine.clone().freeze().unwrap();
        assert_eq!(poisoned(&Tensor::apply(Six, &[&matrix])), 6, "a frozen graph");
    }

    #[test]
    fn a_wrong_number_of_outputs_is_an_error() {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(3)]));
        let line = line!() + 1;
        assert_eq!(poisoned(&Tensor::apply(Miscounted, &[&x])), 2);
        let e = graph.freeze().unwrap_err();
        assert_eq!((e.kind(), e.site().map(|s| s.line)), (ErrorKind::Argument, Some(line)), "{e}");
        assert!(e.message().contains("Miscounted") && e.message().contains("output_count"), "{e}");
    }
}
