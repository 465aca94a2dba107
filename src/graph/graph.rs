//! Building a graph.

use super::call_site::CallSites;
use super::collection::Collections;
use super::frozen::LateError;
use super::gate::Gate;
use super::tensor::dims_of;
use super::{
    Collection, Frozen, Node, NodeId, NodeKind, Op, OpDef, Role, Sharing, Spec, Tensor, TensorId, TensorSpec,
    Variable, VariableId, VariableInfo, VariableSpec, name,
};
use std::cell::{Ref, RefCell, RefMut};
use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensorpack_tensor::{DType, Dim, Error, ErrorKind, Result, Site, Symbol, element_count};

/// A graph being built. Clones are the same graph.
#[derive(Clone)]
pub struct Graph(Rc<Shared>);

struct Shared {
    uid: u64,
    /// Beside the state, since what is tried after freezing has a line too.
    sites: RefCell<CallSites>,
    state: RefCell<State>,
}

enum State {
    Building(Box<Building>),
    /// Nothing can be added any more; what is tried is reported here.
    Frozen(Arc<LateError>),
}

pub(super) struct Building {
    pub(super) nodes: Vec<Node>,
    pub(super) variables: Vec<VariableInfo>,
    pub(super) collections: Collections,
    /// Tensors by the names users gave them and nodes' own.
    pub(super) names: HashMap<String, TensorId>,
    taken: HashMap<String, u32>,
    variable_names: HashMap<String, VariableId>,
    name_scope: Vec<String>,
    variable_scope: Vec<String>,
    /// What updates pass through on their way to their variables, outermost first.
    pub(super) gates: Vec<Gate>,
    tower: usize,
    error: Option<Error>,
    symbols: u32,
    /// What was logged, so that it is once.
    said: HashSet<String>,
}

impl Default for Graph {
    fn default() -> Graph {
        Graph::new()
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let building = Building {
            nodes: Vec::new(),
            variables: Vec::new(),
            collections: Collections::new(),
            names: HashMap::new(),
            taken: HashMap::new(),
            variable_names: HashMap::new(),
            name_scope: Vec::new(),
            variable_scope: Vec::new(),
            gates: Vec::new(),
            tower: 0,
            error: None,
            symbols: 0,
            said: HashSet::new(),
        };
        let state = RefCell::new(State::Building(Box::new(building)));
        let sites = RefCell::default();
        Graph(Rc::new(Shared { uid: NEXT.fetch_add(1, Ordering::Relaxed), sites, state }))
    }

    /// A number that no other graph of this process has.
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

    /// For reading what was built so far.
    pub(super) fn built(&self) -> Option<Ref<'_, Building>> {
        Ref::filter_map(self.0.state.borrow(), |s| match s {
            State::Building(b) => Some(&**b),
            State::Frozen(_) => None,
        })
        .ok()
    }

    /// For changing what was built; after freezing, the attempt becomes the session's next error.
    #[track_caller]
    fn building_or_late(&self, what: &str) -> Option<RefMut<'_, Building>> {
        let building = self.building();
        if building.is_none() {
            let site = self.site(Location::caller());
            if let State::Frozen(late) = &*self.0.state.borrow() {
                late.set(frozen(what, site));
            }
        }
        building
    }

    /// The user's line behind a call from `caller`.
    fn site(&self, caller: &'static Location<'static>) -> Site {
        self.0.sites.borrow().resolve(caller)
    }

    /// That something can still be added.
    #[track_caller]
    pub(crate) fn still_open(&self, what: &str) -> Result<()> {
        let site = self.site(Location::caller());
        self.built().map(|_| ()).ok_or_else(|| frozen(what, site))
    }

    /// The first error so far.
    pub fn first_error(&self) -> Result<()> {
        self.built().and_then(|b| b.error.clone()).map_or(Ok(()), Err)
    }

    /// Keeps an error if it is the first.
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
        // How many outputs a failed op would have had, nobody knows: callers take as many as they need.
        let poison = || vec![Tensor::poison(self); 4];
        if inputs.iter().any(|t| t.is_poison()) {
            return poison();
        }
        let specs: Vec<Spec> = inputs.iter().map(|t| t.spec.clone()).collect();
        match op.infer(&specs) {
            Ok(outputs) => self.add_node(NodeKind::Op(op), inputs, Some(outputs)),
            Err(e) => {
                self.record(op.name(), inputs, e);
                poison()
            }
        }
    }

    /// Adds a node and returns its outputs. A current value has its variable's type.
    #[track_caller]
    pub(super) fn add_node(
        &self,
        kind: NodeKind,
        inputs: &[&Tensor],
        outputs: Option<Vec<Spec>>,
    ) -> Vec<Tensor> {
        let caller = Location::caller();
        let Some(mut b) = self.building_or_late(kind.name()) else { return vec![Tensor::poison(self); 4] };
        if let Some(foreign) = inputs.iter().find(|t| t.graph.uid() != self.uid()) {
            let error = Error::new(ErrorKind::Graph, format!("{foreign:?} belongs to another graph"));
            let site = self.site(caller);
            b.error.get_or_insert(error.within(kind.name()).at(site));
            return vec![Tensor::poison(self); 4];
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
        let tower = b.tower;
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
            tower,
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
                    "{}{} cannot become the value of {var_name}, which is {}{}",
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

    /// One operation that runs all of `ops`.
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

    /// An input, fed under the spec's name. Every unknown dim is a symbol of its own.
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
            Dim::Unknown(Symbol::numbered(b.symbols))
        });
        drop(b);
        let outputs = Some(vec![Spec { dtype: spec.dtype, shape }]);
        let tensor = self.add_node(NodeKind::Placeholder, &[], outputs).swap_remove(0);
        // Inputs keep the plain name they are fed under, whatever the scope.
        if let (Some(mut b), Some(id)) = (self.building(), tensor.id) {
            b.rename(id, spec.name.clone());
        }
        tensor
    }

    /// Makes the variable `scope/name`, or returns the one there is, as `sharing` says.
    #[track_caller]
    pub(crate) fn variable(&self, spec: VariableSpec, sharing: Sharing) -> Variable {
        let caller = Location::caller();
        let made = self.make_variable(&spec, sharing, caller);
        let (id, full) = match made {
            Ok(made) => made,
            Err(e) => {
                self.record("Variable", &[], e);
                return Variable { value: Tensor::poison(self), id: None, name: spec.name };
            }
        };
        Variable { value: self.read_variable(id), id: Some(id), name: full }
    }

    /// The one node that reads a variable, under the variable's own name.
    #[track_caller]
    fn read_variable(&self, id: VariableId) -> Tensor {
        let there = self.built().and_then(|b| {
            let name = &b.variables.get(id.0 as usize)?.name;
            b.names.get(name).copied()
        });
        if let Some(there) = there {
            return self.tensor_at(there);
        }
        let value = self.add_node(NodeKind::Read(id), &[], None).swap_remove(0);
        if let (Some(mut b), Some(at)) = (self.building(), value.id) {
            let name = b.variables[id.0 as usize].name.clone();
            b.rename(at, name);
        }
        value
    }

    fn make_variable(
        &self,
        spec: &VariableSpec,
        sharing: Sharing,
        caller: &'static Location<'static>,
    ) -> Result<(VariableId, String)> {
        name::check(&spec.name)?;
        name::check_not_reserved(&spec.name)?;
        element_count(&spec.sizes)?;
        let Some(mut b) = self.building() else {
            return Err(Error::new(
                ErrorKind::Graph,
                format!("the graph is frozen: {} cannot be made", spec.name),
            ));
        };
        let mut full = name::join(&b.variable_scope.join("/"), &spec.name);
        if sharing == Sharing::Numbered {
            full = b.free_variable_name(full);
        }
        if let Some(&id) = b.variable_names.get(&full) {
            let there = &b.variables[id.0 as usize];
            if (there.dtype, &there.sizes) != (spec.dtype, &spec.sizes) {
                return Err(Error::shape(format!(
                    "the variable {full} is {}{:?}, but {}{:?} was asked for",
                    there.dtype, there.sizes, spec.dtype, spec.sizes
                ))
                .note(format!("it was made at {}", there.site)));
            }
            if sharing == Sharing::Make {
                return Err(Error::new(ErrorKind::Name, format!("the variable {full} exists already"))
                    .note(format!("it was made at {}", there.site))
                    .note("each variable has a name of its own (rule 3 of tower functions)")
                    .note("to share it, open the scope with reuse"));
            }
            return Ok((id, full));
        }
        if sharing == Sharing::Share && spec.trainable {
            return Err(Error::new(
                ErrorKind::Name,
                format!(
                    "the variable {full} does not exist, and this tower shares variables instead of making them (rule 4 of tower functions)"
                ),
            )
            .note("a tower function makes the same variables whenever it is called: their names depend on no state (rule 1), name scope or tensor (rule 3)"));
        }
        spec.init.check(&full, spec.dtype, &spec.sizes)?;
        // Variables are read under their own name: another tensor of that name would be taken for the variable.
        if b.names.contains_key(&full) {
            return Err(Error::new(ErrorKind::Name, format!("the name {full:?} is taken")));
        }
        let id = VariableId(b.variables.len() as u32);
        let site = self.site(caller);
        b.variables.push(VariableInfo {
            name: full.clone(),
            dtype: spec.dtype,
            sizes: spec.sizes.clone(),
            init: spec.init.clone(),
            trainable: spec.trainable,
            frozen: false,
            slab: spec.slab.clone(),
            site,
        });
        b.variable_names.insert(full.clone(), id);
        for key in &spec.collections {
            b.collections.entry(key.to_string()).or_default().variables.push(id);
        }
        Ok((id, full))
    }

    /// A handle to an existing variable.
    #[track_caller]
    pub fn variable_handle(&self, id: VariableId) -> Variable {
        let name = self.built().map_or_else(String::new, |b| b.variables[id.0 as usize].name.clone());
        let value = self.read_variable(id);
        Variable { id: value.id.map(|_| id), value, name }
    }

    /// A handle to the variable of this full name, if there is one.
    #[track_caller]
    pub fn variable_named(&self, name: &str) -> Option<Variable> {
        let id = self.built().and_then(|b| b.variable_names.get(name).copied())?;
        Some(self.variable_handle(id))
    }

    /// What is known of a variable.
    pub fn variable_info(&self, id: VariableId) -> Option<VariableInfo> {
        self.built().and_then(|b| b.variables.get(id.0 as usize).cloned())
    }

    /// Trainable variables that may be without a path to the cost: all whose name `pattern` accepts.
    pub fn freeze_variables(&self, pattern: impl Fn(&str) -> bool) {
        if let Some(mut b) = self.building() {
            b.variables.iter_mut().filter(|v| pattern(&v.name)).for_each(|v| v.frozen = true);
        }
    }

    /// Runs `build` with a scope opened for names, and one for variables too if `variables` says so.
    #[track_caller]
    pub(crate) fn scope<R>(
        &self,
        part: &str,
        variables: bool,
        reserved: bool,
        build: impl FnOnce() -> R,
    ) -> R {
        let checked =
            name::check(part).and_then(|()| if reserved { Ok(()) } else { name::check_not_reserved(part) });
        if let Err(e) = checked {
            self.record("scope", &[], e);
        }
        if let Some(mut b) = self.building() {
            b.name_scope.push(part.to_string());
            if variables {
                b.variable_scope.push(part.to_string());
            }
        }
        let _guard = OnDrop(|| {
            if let Some(mut b) = self.building() {
                b.name_scope.pop();
                if variables {
                    b.variable_scope.pop();
                }
            }
        });
        build()
    }

    /// Runs `build` outside of all scopes: what is made there has the name it is given.
    pub(crate) fn at_root<R>(&self, build: impl FnOnce() -> R) -> R {
        let outer = self
            .building()
            .map(|mut b| (std::mem::take(&mut b.name_scope), std::mem::take(&mut b.variable_scope)));
        let _guard = OnDrop(|| {
            if let (Some(mut b), Some((names, variables))) = (self.building(), outer.clone()) {
                (b.name_scope, b.variable_scope) = (names, variables);
            }
        });
        build()
    }

    /// Runs `build` as the inside of a layer that was called from `caller`: errors point there.
    pub(crate) fn called_from<R>(&self, caller: &'static Location<'static>, build: impl FnOnce() -> R) -> R {
        self.0.sites.borrow_mut().push(caller);
        let _guard = OnDrop(|| self.0.sites.borrow_mut().pop());
        build()
    }

    /// Runs `build` with every new node on this line.
    pub(crate) fn on_line<R>(&self, site: Site, build: impl FnOnce() -> R) -> R {
        let outer = self.0.sites.borrow_mut().inherited.replace(site);
        let _guard = OnDrop(|| self.0.sites.borrow_mut().inherited = outer);
        build()
    }

    /// Runs `build` with every new node on the line and under the name of `node`: gradients belong to what they are
    /// the gradient of.
    pub(crate) fn on_behalf_of<R>(&self, node: NodeId, build: impl FnOnce() -> R) -> R {
        let Some((site, scope, tower)) = self.built().map(|b| {
            let n = &b.nodes[node.0 as usize];
            let (prefix, own) = name::split_tower(&n.name);
            (n.site, format!("{prefix}gradients/{own}"), n.tower)
        }) else {
            return build();
        };
        let outer = self.building().map(|mut b| {
            let scope = std::mem::replace(&mut b.name_scope, vec![scope]);
            let tower = std::mem::replace(&mut b.tower, tower);
            (self.0.sites.borrow_mut().inherited.replace(site), scope, tower)
        });
        let _guard = OnDrop(|| {
            if let (Some(mut b), Some((site, scope, tower))) = (self.building(), outer.clone()) {
                self.0.sites.borrow_mut().inherited = site;
                b.name_scope = scope;
                b.tower = tower;
            }
        });
        build()
    }

    /// Runs `build` with every new node belonging to tower `index`, and named after it if there are several.
    pub(crate) fn in_tower<R>(&self, index: usize, several: bool, build: impl FnOnce() -> R) -> R {
        let outer = self.building().map(|mut b| std::mem::replace(&mut b.tower, index));
        let _guard = OnDrop(|| {
            if let (Some(mut b), Some(tower)) = (self.building(), outer) {
                b.tower = tower;
            }
        });
        if several { self.scope(&format!("tower{index}"), false, true, build) } else { build() }
    }

    /// Whether this is the first time that `what` is asked of this graph: what is logged once, not for every tower.
    pub(crate) fn first_time(&self, what: &str) -> bool {
        self.building().is_some_and(|mut b| b.said.insert(what.to_string()))
    }

    /// What `part` is called in the current scope of every tower: its full name without the tower's.
    pub(crate) fn name_in_towers(&self, part: &str) -> String {
        let scope = self.built().map_or_else(String::new, |b| b.name_scope.join("/"));
        name::split_tower(&name::join(&scope, part)).1.to_string()
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

    /// Gives a node the full name that it had in another graph, in place of the one it was made under.
    pub(crate) fn restore_name(&self, tensor: &Tensor, full: &str) -> Result<()> {
        name::check(full)?;
        if let (Some(mut b), Some(id)) = (self.building(), tensor.id) {
            let made_under = b.nodes[id.node.0 as usize].name.clone();
            b.names.remove(&made_under);
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

    pub(super) fn node_name(&self, node: NodeId) -> String {
        self.built().map_or_else(|| format!("node {}", node.0), |b| b.nodes[node.0 as usize].name.clone())
    }

    /// The tensor of a name.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let found = self.built().and_then(|b| {
            let id = *b.names.get(name)?;
            let spec = b.nodes[id.node.0 as usize].outputs.get(id.output as usize)?.clone();
            Some(Tensor { graph: self.clone(), id: Some(id), spec })
        });
        found.ok_or_else(|| Error::new(ErrorKind::Name, format!("the graph has no tensor named {name:?}")))
    }

    pub(crate) fn tensor_at(&self, id: TensorId) -> Tensor {
        let spec = self.built().map(|b| b.nodes[id.node.0 as usize].outputs[id.output as usize].clone());
        Tensor { graph: self.clone(), id: Some(id), spec: spec.unwrap_or_else(|| Spec::new(DType::F32, [])) }
    }

    /// A copy of a node, for passes over the graph.
    pub(crate) fn node(&self, id: NodeId) -> Option<Node> {
        self.built().and_then(|b| b.nodes.get(id.0 as usize).cloned())
    }

    /// Adds a tensor to a collection.
    pub fn add_to_collection(&self, key: &str, tensor: &Tensor) {
        if let (Some(mut b), Some(id)) = (self.building(), tensor.id) {
            b.collections.entry(key.to_string()).or_default().tensors.push(id);
        }
    }

    /// Adds an operation to a collection.
    pub fn add_op_to_collection(&self, key: &str, op: &Op) {
        if let (Some(mut b), Some(node)) = (self.building(), op.node) {
            b.collections.entry(key.to_string()).or_default().ops.push(node);
        }
    }

    /// A collection; empty if nothing was added to it.
    pub fn collection(&self, key: &str) -> Collection {
        self.built().and_then(|b| b.collections.get(key).cloned()).unwrap_or_default()
    }

    /// Makes a collection what it was: `collection`, as it was read before.
    pub(crate) fn restore_collection(&self, key: &str, collection: Collection) {
        if let Some(mut b) = self.building() {
            b.collections.insert(key.to_string(), collection);
        }
    }

    /// The operations of a collection.
    pub fn collection_ops(&self, key: &str) -> Vec<Op> {
        self.collection(key).ops.iter().map(|&n| Op { graph: self.clone(), node: Some(n) }).collect()
    }

    /// Ends building: from here on nothing can be added. Returns the first error there was.
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
                Err(Error::new(ErrorKind::Graph, "the graph is frozen already"))
            }
        }
    }
}

fn frozen(what: &str, site: Site) -> Error {
    Error::new(ErrorKind::Graph, format!("{what}: the graph is frozen, nothing can be added to it"))
        .at(site)
        .note("build everything before the session is made")
}

impl Building {
    /// `base`, or `base_1`, `base_2`... if it is taken.
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

    /// `name`, or `name_1`, `name_2`... if there is such a variable.
    fn free_variable_name(&self, name: String) -> String {
        let numbered = (1..).map(|n| format!("{name}_{n}"));
        let free =
            std::iter::once(name.clone()).chain(numbered).find(|n| !self.variable_names.contains_key(n));
        free.unwrap_or(name)
    }

    fn rename(&mut self, id: TensorId, full: String) {
        if id.output == 0 {
            self.nodes[id.node.0 as usize].name = full.clone();
        }
        self.names.insert(full, id);
    }
}

/// Runs a closure when it goes out of scope, so that scopes close on every way out.
pub(super) struct OnDrop<F: FnMut()>(pub(super) F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
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
