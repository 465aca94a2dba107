//! Variables: named state outside the graph, which the graph reads and updates.

use super::graph::Building;
use super::{
    GLOBAL_VARIABLES, Graph, Init, LOCAL_VARIABLES, MODEL_VARIABLES, NamePattern, NodeKind, Op,
    TRAINABLE_VARIABLES, Tensor, VariableId, name,
};
use crate::kir::OnOverflow;
use std::ops::Deref;
use std::panic::Location;
use tensorpack_tensor::{DType, Error, ErrorKind, Result, Site, element_count};

/// The name of the variable that holds the number of completed steps; see
/// [`Graph::global_step`](super::Graph::global_step).
pub const GLOBAL_STEP: &str = "global_step";

/// Describes a variable.
#[derive(Clone, Debug)]
pub struct VariableInfo {
    /// The full name, such as `conv0/W`.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The sizes.
    pub sizes: Vec<usize>,
    /// The initializer of its first value.
    pub init: Init,
    /// Whether it is trained by gradient descent.
    pub trainable: bool,
    /// Whether a trainable variable may have no path to the cost.
    pub frozen: bool,
    /// The memory slab. Variables of one slab are contiguous in memory, in the order they were
    /// created, so that an optimizer processes them in one pass.
    pub slab: String,
    /// The tower that a local variable belongs to.
    pub tower: Option<usize>,
    /// Whether it is optimizer state of another variable, with the same sizes.
    pub is_slot: bool,
    /// How the processes or devices of a run divide its updates.
    pub sharding: Sharding,
    /// What a run that would update it does to it instead if the check of the run fails.
    pub on_overflow: Option<OnOverflow>,
    /// The user's line that created it.
    pub site: Site,
}

/// How the processes or devices that train together divide the updates of a variable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sharding {
    /// Each has the whole variable and computes all of its next value.
    #[default]
    None,
    /// Each has the whole variable, and computes its shard of the next value.
    Update,
    /// Each has only its shard of the variable.
    #[doc(alias = "ZeRO")]
    State,
}

/// Variables with fewer elements are not divided: that would cost more than it saves.
const MIN_SHARDED: usize = 256;

/// The specification of a variable: name, shape, and options. The defaults are f32, trainable,
/// global, initialized by [`Init::he`].
#[derive(Clone, Debug)]
pub struct VariableSpec {
    pub(crate) name: String,
    pub(crate) sizes: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) init: Init,
    pub(crate) trainable: bool,
    pub(crate) collections: Vec<&'static str>,
    pub(crate) slab: String,
    /// The tower that a local variable belongs to; set by the tower that creates it.
    pub(crate) tower: Option<usize>,
    /// Whether it is optimizer state of another variable.
    pub(crate) is_slot: bool,
    pub(crate) on_overflow: Option<OnOverflow>,
}

impl VariableSpec {
    /// Specifies a trainable variable.
    pub fn new(name: impl Into<String>, sizes: impl Into<Vec<usize>>) -> VariableSpec {
        VariableSpec {
            name: name.into(),
            sizes: sizes.into(),
            dtype: DType::F32,
            init: Init::he(),
            trainable: true,
            collections: vec![TRAINABLE_VARIABLES, MODEL_VARIABLES, GLOBAL_VARIABLES],
            slab: "trainable".into(),
            tower: None,
            is_slot: false,
            on_overflow: None,
        }
    }

    /// Sets the element type.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> VariableSpec {
        self.dtype = dtype;
        self
    }

    /// Sets the initializer.
    #[must_use]
    pub fn init(mut self, init: Init) -> VariableSpec {
        self.init = init;
        self
    }

    /// Makes it a model variable: not trained, but saved, and needed for inference.
    #[must_use]
    pub fn model(mut self) -> VariableSpec {
        (self.trainable, self.slab) = (false, "model".into());
        self.collections = vec![MODEL_VARIABLES, GLOBAL_VARIABLES];
        self
    }

    /// Makes it a training-only variable: not trained, but saved, such as counters and optimizer
    /// slots.
    #[must_use]
    pub fn non_trainable(mut self) -> VariableSpec {
        (self.trainable, self.slab) = (false, "other".into());
        self.collections = vec![GLOBAL_VARIABLES];
        self
    }

    /// Makes it local: every training tower has its own, even one that shares all other variables.
    /// It is neither trained nor part of the model, but checkpoints contain it.
    ///
    /// The first tower's variable has the usual name. If another tower creates a local variable of
    /// that name, its name starts with the name of the tower, such as `tower1/seen`. Inference uses
    /// the variable of the first tower.
    #[must_use]
    pub fn local(mut self) -> VariableSpec {
        (self.trainable, self.slab) = (false, "local".into());
        self.collections = vec![LOCAL_VARIABLES];
        self
    }

    /// Adds it to another collection.
    #[must_use]
    pub fn also_in(mut self, collection: &'static str) -> VariableSpec {
        self.collections.push(collection);
        self
    }

    /// Sets what a run that fails its check does to it. Only scalars have such a rule.
    #[must_use]
    pub(crate) fn on_overflow(mut self, rule: OnOverflow) -> VariableSpec {
        self.on_overflow = Some(rule);
        self
    }

    /// Puts it in this memory slab, next to the slab's other variables.
    #[must_use]
    pub fn slab(mut self, slab: impl Into<String>) -> VariableSpec {
        self.slab = slab.into();
        self
    }
}

/// Whether creating a variable may return an existing one or make a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Every variable is new.
    Make,
    /// Every trainable variable must already exist.
    Share,
    /// Existing variables are shared; missing ones are created.
    Either,
    /// Every variable is new; if the name is taken, a numeric suffix is added.
    Numbered,
}

/// A variable in a graph. It dereferences to the tensor of its value at the start of the run.
#[derive(Clone, Debug)]
pub struct Variable {
    pub(crate) value: Tensor,
    /// `None` for a variable that could not be created.
    pub(crate) id: Option<VariableId>,
    pub(crate) name: String,
}

impl Deref for Variable {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        &self.value
    }
}

impl Variable {
    /// Returns the full name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the value at the start of the run.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// Returns the value after the updates in the same run that were built before this call. A
    /// moving average of a weight reads this to follow the optimizer's update.
    #[track_caller]
    pub fn current(&self) -> Tensor {
        let graph = self.value.graph();
        match self.id {
            Some(id) => graph.current_value(id),
            None => Tensor::poison(graph),
        }
    }

    /// Replaces the value at the end of a run that includes the returned operation. Two assignments
    /// to one variable in one run are an error, because their order is undefined.
    #[track_caller]
    pub fn assign(&self, value: &Tensor) -> Op {
        self.next_value(true, |_| value.clone())
    }

    /// Changes the value at the end of a run that includes the returned operation: `next` computes
    /// the next value from the current one. Several updates of one variable in one run compose in
    /// the order they were built.
    #[track_caller]
    pub fn update(&self, next: impl FnOnce(&Tensor) -> Tensor) -> Op {
        self.next_value(false, next)
    }

    #[track_caller]
    fn next_value(&self, plain: bool, next: impl FnOnce(&Tensor) -> Tensor) -> Op {
        let graph = self.value.graph();
        let Some(variable) = self.id else { return Op::poison(graph) };
        let current = if plain { self.value.clone() } else { self.current() };
        let value = next(&current);
        graph.add_assign(variable, plain, &value)
    }
}

impl Graph {
    /// Creates the variable `scope/name`, or returns an existing one, as `sharing` allows.
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

    /// Returns the tensor that reads a variable. A variable has one such node, named like the
    /// variable.
    #[track_caller]
    fn read_variable(&self, id: VariableId) -> Tensor {
        let existing = self.built().and_then(|b| {
            let name = &b.variables.get(id.0 as usize)?.name;
            b.names.get(name).copied()
        });
        if let Some(existing) = existing {
            return self.tensor_at(existing);
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
                format!("the graph is frozen: the variable {} cannot be created", spec.name),
            ));
        };
        let mut full = name::join(&b.variable_scope.join("/"), &spec.name);
        if sharing == Sharing::Numbered {
            full = b.free_variable_name(full);
        }
        // In other processes, too, only the first tower's variable has the usual name.
        if let Some(tower) = spec.tower
            && (b.owner_of(&full).is_some_and(|owner| owner != tower) || (b.first_tower > 0 && tower > 0))
        {
            full = format!("tower{tower}/{full}");
        }
        if let Some(&id) = b.variable_names.get(&full) {
            let existing = &b.variables[id.0 as usize];
            if (existing.dtype, &existing.sizes) != (spec.dtype, &spec.sizes) {
                return Err(Error::shape(format!(
                    "the variable {full} is {}{:?}, but {}{:?} was requested",
                    existing.dtype, existing.sizes, spec.dtype, spec.sizes
                ))
                .note(format!("it was created at {}", existing.site)));
            }
            if sharing == Sharing::Make {
                return Err(Error::new(ErrorKind::Name, format!("the variable {full} already exists"))
                    .note(format!("it was created at {}", existing.site))
                    .note("variable names must be unique (rule 3 of tower functions)")
                    .note("to share it, open the scope with reuse"));
            }
            return Ok((id, full));
        }
        if sharing == Sharing::Share && spec.trainable {
            return Err(Error::new(
                ErrorKind::Name,
                format!(
                    "the variable {full} does not exist, and this tower shares variables instead of creating them (rule 4 of tower functions)"
                ),
            )
            .note("a tower function must create the same variables in every call: their names must not depend on state (rule 1), name scopes or tensors (rule 3)"));
        }
        spec.init.check(&full, spec.dtype, &spec.sizes)?;
        // A variable is read under its own name, so another tensor of that name would be mistaken
        // for it.
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
            tower: spec.tower,
            is_slot: spec.is_slot,
            sharding: Sharding::None,
            on_overflow: spec.on_overflow,
            site,
        });
        b.variable_names.insert(full.clone(), id);
        for key in &spec.collections {
            b.collections.entry(key.to_string()).or_default().variables.push(id);
        }
        Ok((id, full))
    }

    /// Returns a handle to an existing variable.
    #[track_caller]
    pub fn variable_handle(&self, id: VariableId) -> Variable {
        let name = self.built().map_or_else(String::new, |b| b.variables[id.0 as usize].name.clone());
        let value = self.read_variable(id);
        Variable { id: value.id.map(|_| id), value, name }
    }

    /// Returns a handle to the variable with this full name, if it exists.
    #[track_caller]
    pub fn variable_named(&self, name: &str) -> Option<Variable> {
        let id = self.built().and_then(|b| b.variable_names.get(name).copied())?;
        Some(self.variable_handle(id))
    }

    /// Returns the description of a variable.
    pub fn variable_info(&self, id: VariableId) -> Option<VariableInfo> {
        self.built().and_then(|b| b.variables.get(id.0 as usize).cloned())
    }

    /// Freezes the trainable variables whose whole name matches the regular expression `pattern`
    /// (see [`NamePattern`]): they are not trained, and may have no path to the cost.
    #[track_caller]
    pub fn freeze_variables(&self, pattern: &str) {
        let pattern = NamePattern::new(pattern);
        let checked = match self.building_or_late("freeze_variables") {
            Some(mut b) => {
                let checked = pattern.check(b.variables.iter().map(|v| v.name.as_str()));
                b.variables.iter_mut().filter(|v| pattern.matches(&v.name)).for_each(|v| v.frozen = true);
                checked
            }
            None => Ok(()),
        };
        if let Err(e) = checked {
            self.record("freeze_variables", &[], e);
        }
    }
}

impl Graph {
    /// Divides the updates of trainable variables, and the state of their optimizer, over the
    /// processes or devices that train together.
    pub(crate) fn shard_updates(&self) {
        let Some(mut b) = self.building_or_late("shard_updates") else { return };
        let large = |v: &&mut VariableInfo| v.sizes.iter().product::<usize>() >= MIN_SHARDED;
        for v in b.variables.iter_mut().filter(large) {
            v.sharding = match (v.is_slot, v.trainable) {
                (true, _) => Sharding::State,
                (false, true) => Sharding::Update,
                (false, false) => Sharding::None,
            };
        }
    }
}

impl Building {
    /// Returns the tower that the variable of this name is local to, if it is local.
    fn owner_of(&self, name: &str) -> Option<usize> {
        self.variable_names.get(name).and_then(|id| self.variables[id.0 as usize].tower)
    }

    /// Returns `name`, or `name_1`, `name_2`... if a variable of that name exists.
    fn free_variable_name(&self, name: String) -> String {
        let numbered = (1..).map(|n| format!("{name}_{n}"));
        let free =
            std::iter::once(name.clone()).chain(numbered).find(|n| !self.variable_names.contains_key(n));
        free.unwrap_or(name)
    }
}
