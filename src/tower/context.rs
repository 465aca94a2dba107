//! What a tower function is told: which replica it builds, for training or inference, and where variables come from.

use crate::graph::{
    EMA_VARIABLES, Graph, HYPER_PARAMS, IMAGE_SUMMARIES, Init, MOVING_SUMMARIES, SUMMARIES, Sharing, Tensor,
    Variable, VariableSpec,
};
use crate::optim::Ema;
use std::cell::RefCell;
use std::panic::Location;
use std::rc::Rc;
use tensorpack_tensor::{Error, ErrorKind};

/// What a tower is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// To be trained.
    Training,
    /// To be used.
    Inference,
}

/// The context a tower function is called with. Only what makes variables, depends on the mode or writes collections
/// takes it: a function without one is pure.
#[derive(Clone, Debug)]
pub struct TowerContext {
    graph: Graph,
    mode: Mode,
    index: usize,
    total: usize,
    owns_variables: bool,
    sharing: Sharing,
    averaged: bool,
    frozen: bool,
    /// Layers around this.
    depth: usize,
    /// Lines of layers within the one that is built, which wait for its own.
    lines: Rc<RefCell<Vec<String>>>,
}

impl TowerContext {
    /// The only training tower, with variables of its own.
    #[doc(alias = "TrainTowerContext")]
    pub fn training(graph: &Graph) -> TowerContext {
        TowerContext::new(graph, Mode::Training, 0, 1)
    }

    /// An inference tower, which shares the variables there are and makes those there are not.
    #[doc(alias = "PredictTowerContext")]
    pub fn inference(graph: &Graph) -> TowerContext {
        TowerContext { sharing: Sharing::Either, ..TowerContext::new(graph, Mode::Inference, 0, 1) }
    }

    /// The same tower, reading the moving average of every variable that has one in place of the variable: those that
    /// an optimizer in [`Ema`] keeps. It must exist already.
    #[must_use]
    #[track_caller]
    pub fn averaged(self) -> TowerContext {
        if self.graph.collection(EMA_VARIABLES).variables.is_empty() {
            let error = Error::new(ErrorKind::Graph, "no variable has a moving average yet");
            let note = "train with Ema::new(optimizer, decay), and build this tower after minimize";
            self.graph.record("averaged", &[], error.note(note));
        }
        TowerContext { averaged: true, ..self }
    }

    /// Tower `index` of `total`. The first makes the variables, the others share them.
    pub fn new(graph: &Graph, mode: Mode, index: usize, total: usize) -> TowerContext {
        let sharing = if index == 0 { Sharing::Make } else { Sharing::Share };
        TowerContext {
            graph: graph.clone(),
            mode,
            index,
            total,
            owns_variables: index == 0,
            sharing,
            averaged: false,
            frozen: false,
            depth: 0,
            lines: Rc::default(),
        }
    }

    /// The graph that is built.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether this tower is to be trained.
    pub fn is_training(&self) -> bool {
        self.mode == Mode::Training
    }

    /// Which tower this is, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// How many towers there are.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Whether this is the training tower whose summaries and updates count.
    pub fn is_main_training_tower(&self) -> bool {
        self.is_training() && self.index == 0
    }

    /// Whether variables made here are this tower's own.
    pub fn owns_variables(&self) -> bool {
        self.owns_variables
    }

    /// Runs a tower function as this tower: what it builds belongs to the tower, and is named after it if there are
    /// several.
    #[track_caller]
    pub fn build<R>(&self, tower_function: impl FnOnce(&TowerContext) -> R) -> R {
        self.graph.in_tower(self.index, self.total > 1, || tower_function(self))
    }

    /// The sum of what all towers have here. Every tower must ask for it, under the same name, in the same order.
    #[track_caller]
    pub fn all_reduce_sum(&self, name: &str, x: &Tensor) -> Tensor {
        x.all_reduce(self.graph.name_in_towers(name), self.total)
    }

    /// The mean of what all towers have here. Every tower must ask for it, under the same name, in the same order.
    #[track_caller]
    pub fn all_reduce_mean(&self, name: &str, x: &Tensor) -> Tensor {
        if self.total == 1 { x.clone() } else { self.all_reduce_sum(name, x) * (1.0 / self.total as f64) }
    }

    /// Runs `build` inside a scope: names of tensors and variables made there begin with `name/`.
    #[track_caller]
    #[doc(alias = "variable_scope")]
    pub fn scope<R>(&self, name: &str, build: impl FnOnce(&TowerContext) -> R) -> R {
        self.graph.scope(name, true, false, || build(self))
    }

    /// Runs `build` inside a scope for names of tensors alone: variables are named as outside.
    #[track_caller]
    pub fn name_scope<R>(&self, name: &str, build: impl FnOnce(&TowerContext) -> R) -> R {
        self.graph.scope(name, false, false, || build(self))
    }

    /// Runs `build` so that variables that exist are shared instead of being an error.
    pub fn reuse<R>(&self, build: impl FnOnce(&TowerContext) -> R) -> R {
        build(&TowerContext { sharing: Sharing::Share, ..self.clone() })
    }

    /// Runs `build` so that variables that exist are shared and, where this tower makes variables, the others made: for
    /// what is called several times, such as one step of a recurrent net.
    #[doc(alias = "auto_reuse_variable_scope")]
    pub fn auto_reuse<R>(&self, build: impl FnOnce(&TowerContext) -> R) -> R {
        build(&self.auto_reusing())
    }

    /// The context of [`TowerContext::auto_reuse`].
    pub(crate) fn auto_reusing(&self) -> TowerContext {
        let sharing = if self.sharing == Sharing::Make { Sharing::Either } else { self.sharing };
        TowerContext { sharing, ..self.clone() }
    }

    /// Runs `build` with variables that are not trained: what is computed from them has no gradient with respect to
    /// them, and [`minimize`](crate::optim::minimize) leaves them as they are.
    pub fn freeze_variables<R>(&self, build: impl FnOnce(&TowerContext) -> R) -> R {
        build(&TowerContext { frozen: true, ..self.clone() })
    }

    /// Runs `build` as a layer called `name`, applied to `x`: in a scope of that name, with errors pointing at the line
    /// that called the function this is called in (which is `#[track_caller]`). How the layer changes the shape is
    /// logged, once for all towers, with the layers it is made of indented below.
    #[track_caller]
    pub fn layer(&self, name: &str, x: &Tensor, build: impl FnOnce(&TowerContext) -> Tensor) -> Tensor {
        let inside = TowerContext { depth: self.depth + 1, ..self.clone() };
        let place = self.lines.borrow().len();
        let y = self.graph.called_from(Location::caller(), || self.scope(name, |_| build(&inside)));
        let line = || format!("{:1$}{name}: {x} -> {y}", "", 2 * self.depth, x = x.shape(), y = y.shape());
        if y.id().is_some() && self.graph.first_time(&format!("layer {}", self.graph.name_in_towers(name))) {
            self.lines.borrow_mut().insert(place, line());
        }
        // A model that is built again to be used has nothing new to say.
        if self.depth == 0 && !self.is_training() {
            self.lines.borrow_mut().clear();
        }
        if self.depth == 0 {
            self.lines.borrow_mut().drain(..).for_each(|line| log::info!("{line}"));
        }
        y
    }

    /// The variable of this spec in the current scope: made here, or shared if this tower shares.
    #[track_caller]
    #[doc(alias = "get_variable")]
    pub fn variable(&self, spec: VariableSpec) -> Variable {
        let variable = self.graph.variable(spec, self.sharing);
        let variable = match self.averaged {
            true => Ema::of(&variable).unwrap_or(variable),
            false => variable,
        };
        match self.frozen {
            true => Variable { value: variable.value.stop_gradient(), ..variable },
            false => variable,
        }
    }

    /// A number that steers training and may be set while it runs: the scalar `name` in the current
    /// scope, `value` at first, not trained, in [`HYPER_PARAMS`]. Towers share it. It is f64 if all
    /// trainable variables made so far are, or, before there is one, all float inputs; else f32.
    #[track_caller]
    #[doc(alias = "GraphVarParam")]
    pub fn hyper_param(&self, name: &str, value: f64) -> Variable {
        let spec = VariableSpec::new(name, []).init(Init::Constant(value)).non_trainable();
        let spec = spec.dtype(self.graph.float_type());
        self.graph.variable(spec.also_in(HYPER_PARAMS), Sharing::Either)
    }

    /// Keeps a moving average of scalars for the monitors. Only the main training tower's count.
    #[doc(alias = "add_moving_summary")]
    pub fn moving_summary(&self, scalars: &[&Tensor]) {
        if self.is_main_training_tower() {
            scalars.iter().for_each(|t| self.graph.add_to_collection(MOVING_SUMMARIES, t));
        }
    }

    /// Shows tensors to the monitors once an epoch: scalars as they are, others as histograms of their elements. Only the
    /// main training tower's count.
    #[doc(alias = "add_tensor_summary")]
    pub fn summary(&self, tensors: &[&Tensor]) {
        if self.is_main_training_tower() {
            tensors.iter().for_each(|t| self.graph.add_to_collection(SUMMARIES, t));
        }
    }

    /// Shows images `[batch, height, width, channels]` of 0..255 to the monitors once an epoch. Only the main training
    /// tower's count.
    pub fn image_summary(&self, images: &Tensor) {
        if self.is_main_training_tower() {
            self.graph.add_to_collection(IMAGE_SUMMARIES, images);
        }
    }
}
