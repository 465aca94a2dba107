//! Variables: state that lives outside the graph, in a store keyed by name, and is read and updated by it.

use super::{
    GLOBAL_VARIABLES, Init, LOCAL_VARIABLES, MODEL_VARIABLES, Op, TRAINABLE_VARIABLES, Tensor, VariableId,
};
use std::ops::Deref;
use tensorpack_tensor::{DType, Site};

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
