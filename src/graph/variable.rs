//! Variables: state that lives outside the graph, in a store keyed by name, and is read and updated by it.

use super::graph::Building;
use super::{
    GLOBAL_VARIABLES, Graph, Init, LOCAL_VARIABLES, MODEL_VARIABLES, NodeKind, Op, TRAINABLE_VARIABLES,
    Tensor, VariableId, name,
};
use std::ops::Deref;
use std::panic::Location;
use tensorpack_tensor::{DType, Error, ErrorKind, Result, Site, element_count};

/// What is to be known of a variable.
#[derive(Clone, Debug)]
pub struct VariableInfo {
    /// Its full name, such as `conv0/W`.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The sizes.
    pub sizes: Vec<usize>,
    /// How its first value is drawn.
    pub init: Init,
    /// Whether it is trained by gradient descent.
    pub trainable: bool,
    /// Whether a trainable variable may be without a path to the cost.
    pub frozen: bool,
    /// Variables of one slab lie one behind the other in memory, in the order they were made, so that an optimizer
    /// runs over them in one pass.
    pub slab: String,
    /// The user's line that made it.
    pub site: Site,
}

/// A variable to be made: name, shape, and what differs from the defaults (f32, trainable, global, drawn from
/// [`Init::he`]).
#[derive(Clone, Debug)]
pub struct VariableSpec {
    pub(crate) name: String,
    pub(crate) sizes: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) init: Init,
    pub(crate) trainable: bool,
    pub(crate) collections: Vec<&'static str>,
    pub(crate) slab: String,
}

impl VariableSpec {
    /// A trainable variable.
    pub fn new(name: impl Into<String>, sizes: impl Into<Vec<usize>>) -> VariableSpec {
        VariableSpec {
            name: name.into(),
            sizes: sizes.into(),
            dtype: DType::F32,
            init: Init::he(),
            trainable: true,
            collections: vec![TRAINABLE_VARIABLES, MODEL_VARIABLES, GLOBAL_VARIABLES],
            slab: "trainable".into(),
        }
    }

    /// With another element type.
    #[must_use]
    pub fn dtype(mut self, dtype: DType) -> VariableSpec {
        self.dtype = dtype;
        self
    }

    /// With this initialiser.
    #[must_use]
    pub fn init(mut self, init: Init) -> VariableSpec {
        self.init = init;
        self
    }

    /// Not trained by gradient descent, but saved, and needed for inference.
    #[must_use]
    pub fn model(mut self) -> VariableSpec {
        (self.trainable, self.slab) = (false, "model".into());
        self.collections = vec![MODEL_VARIABLES, GLOBAL_VARIABLES];
        self
    }

    /// Not trained, saved, and needed for training alone: counters, optimizer slots.
    #[must_use]
    pub fn non_trainable(mut self) -> VariableSpec {
        (self.trainable, self.slab) = (false, "other".into());
        self.collections = vec![GLOBAL_VARIABLES];
        self
    }

    /// Not trained, and of this tower alone.
    #[must_use]
    pub fn local(mut self) -> VariableSpec {
        (self.trainable, self.slab) = (false, "local".into());
        self.collections = vec![LOCAL_VARIABLES];
        self
    }

    /// In this collection as well.
    #[must_use]
    pub fn also_in(mut self, collection: &'static str) -> VariableSpec {
        self.collections.push(collection);
        self
    }

    /// In the slab of this name, beside the other variables of that slab.
    #[must_use]
    pub fn slab(mut self, slab: impl Into<String>) -> VariableSpec {
        self.slab = slab.into();
        self
    }
}

/// Whether a variable that exists may be taken, and one that does not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Every variable is new.
    Make,
    /// Every trainable variable exists already.
    Share,
    /// Those that exist are shared, the others made.
    Either,
    /// Every variable is new; where the name is taken, it gets a number.
    Numbered,
}

/// A variable in a graph. It dereferences to the tensor of its value at the start of the run.
#[derive(Clone, Debug)]
pub struct Variable {
    pub(crate) value: Tensor,
    /// `None` for a variable that could not be made.
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
    /// The full name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value at the start of the run.
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The value after the updates that were built before this and are part of the same run: what an average of a
    /// weight reads to follow the weight as the optimizer leaves it.
    #[track_caller]
    pub fn current(&self) -> Tensor {
        let graph = self.value.graph();
        match self.id {
            Some(id) => graph.current_value(id),
            None => Tensor::poison(graph),
        }
    }

    /// Replaces the value at the end of a run that includes the result. Two of these for one variable in one run are
    /// an error, since neither could be said to win.
    #[track_caller]
    pub fn assign(&self, value: &Tensor) -> Op {
        self.next_value(true, |_| value.clone())
    }

    /// Changes the value at the end of a run that includes the result: `next` makes the next value of the current
    /// one. Several updates of one variable in one run compose in the order they were built.
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
}

impl Building {
    /// `name`, or `name_1`, `name_2`... if there is such a variable.
    fn free_variable_name(&self, name: String) -> String {
        let numbered = (1..).map(|n| format!("{name}_{n}"));
        let free =
            std::iter::once(name.clone()).chain(numbered).find(|n| !self.variable_names.contains_key(n));
        free.unwrap_or(name)
    }
}
