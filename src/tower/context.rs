//! The context of a tower function: the replica to build, its mode, and how it gets variables.

use crate::graph::{
    EMA_VARIABLES, Graph, HYPER_PARAMS, IMAGE_SUMMARIES, Init, LOCAL_VARIABLES, MOVING_SUMMARIES, SUMMARIES,
    Sharing, Tensor, Variable, VariableSpec,
};
use crate::optim::Ema;
use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use std::rc::Rc;
use tensorpack_tensor::{DType, Error, ErrorKind};

/// The mode a tower is built in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// For training.
    Training,
    /// For inference.
    Inference,
}

/// A function from a variable to the value that is used instead of its own.
#[derive(Clone)]
struct Remap(Rc<dyn Fn(&Variable) -> Tensor>);

impl fmt::Debug for Remap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Remap")
    }
}

/// The context that is passed to a tower function.
///
/// Only functions that create variables, depend on the mode or write to collections take a context;
/// a function without one is pure.
#[derive(Clone, Debug)]
#[doc(alias = "BaseTowerContext")]
#[doc(alias = "get_current_tower_context")]
pub struct TowerContext {
    graph: Graph,
    mode: Mode,
    index: usize,
    total: usize,
    /// The indices of the towers in this graph; all others are in other processes.
    here: Range<usize>,
    owns_variables: bool,
    sharing: Sharing,
    averaged: bool,
    frozen: bool,
    /// What is done to the value of every variable, outermost scope first.
    remaps: Vec<Remap>,
    /// The defaults of the scopes for types of layers, outermost scope first.
    layer_defaults: Vec<Rc<dyn Any>>,
    /// The nesting depth of layers.
    depth: usize,
    /// Pending log lines of nested layers. They are logged after the line of the enclosing layer.
    lines: Rc<RefCell<Vec<String>>>,
    /// The dtype in which processes send each other gradients, if it is not that of the gradients.
    wire_dtype: Option<DType>,
}

impl TowerContext {
    /// Returns the context of a single training tower, which creates its variables.
    #[doc(alias = "TrainTowerContext")]
    pub fn training(graph: &Graph) -> TowerContext {
        TowerContext::new(graph, Mode::Training, 0, 1)
    }

    /// Returns the context of an inference tower, which shares existing variables and creates
    /// missing ones.
    #[doc(alias = "PredictTowerContext")]
    pub fn inference(graph: &Graph) -> TowerContext {
        TowerContext { sharing: Sharing::Either, ..TowerContext::new(graph, Mode::Inference, 0, 1) }
    }

    /// Returns the same context, except that each variable with a moving average (see [`Ema`]) is
    /// replaced by the average. The averages must exist already.
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

    /// Returns the context of tower `index` of `total`. Tower 0 creates the variables; the others
    /// share them.
    pub fn new(graph: &Graph, mode: Mode, index: usize, total: usize) -> TowerContext {
        let sharing = if index == 0 { Sharing::Make } else { Sharing::Share };
        TowerContext {
            graph: graph.clone(),
            mode,
            index,
            total,
            here: 0..total,
            owns_variables: index == 0,
            sharing,
            averaged: false,
            frozen: false,
            remaps: Vec::new(),
            layer_defaults: Vec::new(),
            depth: 0,
            lines: Rc::default(),
            wire_dtype: None,
        }
    }

    /// Sets the dtype in which processes send each other gradients, if it is not that of the gradients.
    pub(crate) fn wire_dtype(self, dtype: Option<DType>) -> TowerContext {
        TowerContext { wire_dtype: dtype, ..self }
    }

    /// Returns the context of training tower `index` of `total` in a graph that has the towers
    /// `here`; all others are in other processes. The first tower of the graph creates the
    /// variables.
    pub(crate) fn in_process(graph: &Graph, index: usize, total: usize, here: Range<usize>) -> TowerContext {
        graph.set_first_tower(here.start);
        let owns_variables = index == here.start;
        let sharing = if owns_variables { Sharing::Make } else { Sharing::Share };
        TowerContext {
            here,
            owns_variables,
            sharing,
            ..TowerContext::new(graph, Mode::Training, index, total)
        }
    }

    /// Returns the graph under construction.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Returns the mode.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns whether this is a training tower.
    pub fn is_training(&self) -> bool {
        self.mode == Mode::Training
    }

    /// Returns the index of the tower among all towers of the run, starting at 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Returns the number of towers of the run, in all processes.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Returns whether this is the first training tower of the process, the only one whose
    /// summaries and updates are used. Statistics are written for that of rank 0.
    pub fn is_main_training_tower(&self) -> bool {
        self.is_training() && self.index == self.here.start
    }

    /// Returns whether this is tower `index` of the `towers` towers in its graph.
    pub(crate) fn is_tower_of(&self, index: usize, towers: usize) -> bool {
        (self.index, self.here.len()) == (self.here.start + index, towers)
    }

    /// Returns the name scope of the tower; `None` if there is only one.
    pub(crate) fn tower_scope(&self) -> Option<String> {
        (self.total > 1).then(|| format!("tower{}", self.index))
    }

    /// Returns whether this tower creates variables of its own.
    #[doc(alias = "has_own_variables")]
    pub fn owns_variables(&self) -> bool {
        self.owns_variables
    }

    /// Calls a tower function as this tower. Nodes it builds belong to the tower; if there are
    /// several towers, their names start with the tower's.
    #[track_caller]
    pub fn build<R>(&self, tower_function: impl FnOnce(&TowerContext) -> R) -> R {
        let scope = self.tower_scope();
        let build = || self.graph.autocast(|| tower_function(self));
        self.graph.in_tower(self.index - self.here.start, scope.as_deref(), build)
    }

    /// Returns the sum of `x` over all towers. Every tower must make the same calls with the same
    /// names in the same order.
    #[track_caller]
    pub fn all_reduce_sum(&self, name: &str, x: &Tensor) -> Tensor {
        x.all_reduce(self.graph.name_in_towers(name), self.total, false, None)
    }

    /// Returns the sum of `x` over all towers, which only updates of variables use: it may be
    /// computed while the step goes on.
    #[track_caller]
    pub(crate) fn deferred_sum(&self, name: &str, x: &Tensor) -> Tensor {
        x.all_reduce(self.graph.name_in_towers(name), self.total, true, None)
    }

    /// Returns the mean of `x` over all towers. Every tower must make the same calls with the same
    /// names in the same order.
    #[track_caller]
    pub fn all_reduce_mean(&self, name: &str, x: &Tensor) -> Tensor {
        self.mean_by(x, |x| self.all_reduce_sum(name, x))
    }

    /// Returns the mean of a gradient over all towers, which only updates of variables use. Other
    /// processes get it in the dtype that [`wire_dtype`](TowerContext::wire_dtype) set.
    #[track_caller]
    pub(crate) fn mean_gradient(&self, name: &str, x: &Tensor) -> Tensor {
        let key = || self.graph.name_in_towers(name);
        self.mean_by(x, |x| x.all_reduce(key(), self.total, true, self.wire_dtype))
    }

    #[track_caller]
    fn mean_by(&self, x: &Tensor, sum: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        if self.total == 1 {
            return x.clone();
        }
        // A mean of bf16 or f16 tensors is rounded once, not after the sum and again after the division.
        let wide = x.dtype().widened();
        (sum(&x.cast(wide)) * (1.0 / self.total as f64)).cast(x.dtype())
    }

    /// Runs `build` inside a scope: names of tensors and variables created there start with
    /// `name/`.
    #[track_caller]
    #[doc(alias = "variable_scope")]
    pub fn scope<R>(&self, name: &str, build: impl FnOnce(&TowerContext) -> R) -> R {
        self.graph.scope(name, true, false, || build(self))
    }

    /// Runs `build` inside a scope that applies to names of tensors, but not to names of variables.
    #[track_caller]
    pub fn name_scope<R>(&self, name: &str, build: impl FnOnce(&TowerContext) -> R) -> R {
        self.graph.scope(name, false, false, || build(self))
    }

    /// Returns the current name scope, which the names of new tensors start with: the scope of the
    /// tower and those opened in it, such as `tower1/conv0`. Empty in the outermost scope of a
    /// single training tower.
    #[doc(alias = "ns_name")]
    pub fn current_name_scope(&self) -> String {
        self.graph.current_name_scope()
    }

    /// Returns the current variable scope, which the names of new variables start with, such as
    /// `conv0`. It is the same in all towers.
    #[doc(alias = "vs_name")]
    pub fn current_variable_scope(&self) -> String {
        self.graph.current_variable_scope()
    }

    /// Runs `build` with existing variables shared. Without this, an existing name is an error.
    pub fn reuse<R>(&self, build: impl FnOnce(&TowerContext) -> R) -> R {
        build(&TowerContext { sharing: Sharing::Share, ..self.clone() })
    }

    /// Runs `build` with existing variables shared and, if this tower creates variables, missing
    /// ones created. Use it for code that is called several times, such as one step of a recurrent
    /// network.
    #[doc(alias = "auto_reuse_variable_scope")]
    pub fn auto_reuse<R>(&self, build: impl FnOnce(&TowerContext) -> R) -> R {
        build(&self.auto_reusing())
    }

    /// Returns the context that [`TowerContext::auto_reuse`] passes to `build`.
    pub(crate) fn auto_reusing(&self) -> TowerContext {
        let sharing = if self.sharing == Sharing::Make { Sharing::Either } else { self.sharing };
        TowerContext { sharing, ..self.clone() }
    }

    /// Runs `build` with frozen variables: no gradient flows to them, and
    /// [`minimize`](crate::optim::minimize) does not update them.
    pub fn freeze_variables<R>(&self, build: impl FnOnce(&TowerContext) -> R) -> R {
        build(&TowerContext { frozen: true, ..self.clone() })
    }

    /// Runs `build` with every variable's value replaced by what `remap` returns for it, a tensor of
    /// the same type and shape: for example a quantized weight. Gradients flow through `remap`;
    /// optimizers, checkpoints and [updates](Variable::update) see the variable itself. In nested
    /// calls, the inner function gets the outer one's result as the variable's value.
    ///
    /// ```
    /// use tensorpack::prelude::*;
    ///
    /// # fn main() -> Result<()> {
    /// let graph = Graph::new();
    /// let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(2)]));
    /// let t = TowerContext::training(&graph);
    /// let y = t.remap_variables(
    ///     |variable| if variable.name().ends_with("/W") { variable.sign() } else { variable.value().clone() },
    ///     |t| Linear::new(1).init(Init::Constant(0.3)).apply(t, "fc", &x),
    /// );
    /// let session = Session::new(graph.freeze()?)?;
    /// let x = HostTensor::new([1, 2], vec![2.0f32, 5.0])?;
    /// assert_eq!(session.run(&[&y], &[("x", &x)])?[0].as_slice::<f32>()?, [7.0]);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "custom_getter_scope")]
    pub fn remap_variables<R>(
        &self,
        remap: impl Fn(&Variable) -> Tensor + 'static,
        build: impl FnOnce(&TowerContext) -> R,
    ) -> R {
        let mut remaps = self.remaps.clone();
        remaps.push(Remap(Rc::new(remap)));
        build(&TowerContext { remaps, ..self.clone() })
    }

    /// Returns the context of an inner scope with these defaults for their type of layer.
    pub(crate) fn with_layer_defaults(&self, defaults: Rc<dyn Any>) -> TowerContext {
        let mut t = self.clone();
        t.layer_defaults.push(defaults);
        t
    }

    /// Returns the defaults of the scopes for types of layers, outermost scope first.
    pub(crate) fn layer_defaults(&self) -> &[Rc<dyn Any>] {
        &self.layer_defaults
    }

    /// Returns whether variables are [frozen](TowerContext::freeze_variables).
    pub(crate) fn freezes_variables(&self) -> bool {
        self.frozen
    }

    /// Runs `build` in a scope called `name` as a recompute block: training keeps only what the block
    /// takes in, and its gradient computes everything else inside again. Use it for the blocks of a
    /// deep network, to train with less memory at the cost of a second forward pass through them.
    ///
    /// Results are those of [`TowerContext::scope`], with the same bits on the CPU engine: random
    /// operations draw the same numbers again, and updates in the block, such as those of running
    /// statistics, happen once. Sums over towers are not computed again, but kept. Blocks may be
    /// nested. See `docs/memory.md`.
    ///
    /// ```
    /// use tensorpack::prelude::*;
    ///
    /// # fn main() -> Result<()> {
    /// let graph = Graph::new();
    /// let mut x = graph.placeholder(&TensorSpec::f32("x", [None, Some(4)]));
    /// TowerContext::training(&graph).build(|t| {
    ///     for i in 0..3 {
    ///         x = t.recompute(&format!("block{i}"), |t| {
    ///             let hidden = Linear::new(16).apply(t, "expand", &x).relu();
    ///             Linear::new(4).apply(t, "project", &hidden)
    ///         });
    ///     }
    /// });
    /// # graph.freeze().map(|_| ())
    /// # }
    /// ```
    #[doc(alias = "checkpoint")]
    #[doc(alias = "remat")]
    #[track_caller]
    pub fn recompute<R>(&self, name: &str, build: impl FnOnce(&TowerContext) -> R) -> R {
        self.graph.recompute(|| self.scope(name, build))
    }

    /// Runs `build` with contractions in f32, in a tower that computes in bf16 or f16 (see
    /// [`Precision`](crate::graph::Precision)). Inputs that are narrow already are widened where a
    /// contraction takes them; cast them at the start if everything inside is to be f32.
    #[doc(alias = "autocast")]
    pub fn full_precision<R>(&self, build: impl FnOnce(&TowerContext) -> R) -> R {
        self.graph.full_precision(|| build(self))
    }

    /// Runs `build` as a layer called `name`, applied to `x`, in a scope of that name.
    ///
    /// Call it from a `#[track_caller]` function: errors then point at the line that called that
    /// function. The input and output shapes are logged once for all towers, with nested layers
    /// indented.
    #[track_caller]
    pub fn layer(&self, name: &str, x: &Tensor, build: impl FnOnce(&TowerContext) -> Tensor) -> Tensor {
        let inside = TowerContext { depth: self.depth + 1, ..self.clone() };
        let position = self.lines.borrow().len();
        let y = self.graph.called_from(Location::caller(), || self.scope(name, |_| build(&inside)));
        let line = || format!("{:1$}{name}: {x} -> {y}", "", 2 * self.depth, x = x.shape(), y = y.shape());
        let full = self.graph.name_in_towers(name);
        if let Some(id) = y.id()
            && self.graph.owns(&y)
            && self.graph.first_time(&format!("layer {full}"))
        {
            self.lines.borrow_mut().insert(position, line());
            if self.depth == 0 {
                self.graph.add_layer(full, id);
            }
        }
        // The inference towers repeat the layers of the training towers; do not log them again.
        if self.depth == 0 && !self.is_training() {
            self.lines.borrow_mut().clear();
        }
        if self.depth == 0 {
            self.lines.borrow_mut().drain(..).for_each(|line| log::info!("{line}"));
        }
        y
    }

    /// Creates the variable of this spec in the current scope, or returns the existing one if this
    /// context shares variables.
    #[track_caller]
    #[doc(alias = "get_variable")]
    pub fn variable(&self, mut spec: VariableSpec) -> Variable {
        if spec.collections.contains(&LOCAL_VARIABLES) {
            spec.tower = Some(self.index);
        }
        let variable = self.graph.variable(spec, self.sharing);
        let variable = match self.averaged {
            true => Ema::average_of(&variable).unwrap_or(variable),
            false => variable,
        };
        let variable = match self.frozen {
            true => Variable { value: variable.value.stop_gradient(), ..variable },
            false => variable,
        };
        self.remaps.iter().fold(variable, |variable, Remap(remap)| {
            let value = remap(&variable);
            if value.is_poison() || variable.is_poison() || value.spec() == variable.spec() {
                return Variable { value, ..variable };
            }
            let (found, expected) = (value.spec(), variable.spec());
            let why = format!(
                "{} is {}{}, but remap_variables returned {}{} for it",
                variable.name, expected.dtype, expected.shape, found.dtype, found.shape
            );
            let value = value.fail("remap_variables", Error::shape(why));
            Variable { value, ..variable }
        })
    }

    /// Creates a hyperparameter that can be set during training: a non-trainable scalar variable
    /// `name` in the current scope and in [`HYPER_PARAMS`], with initial value `value`. Towers
    /// share it.
    ///
    /// It is f64 if all trainable variables created so far are f64 or, if there are none, all
    /// floating-point inputs; otherwise f32.
    #[track_caller]
    #[doc(alias = "GraphVarParam")]
    pub fn hyper_param(&self, name: &str, value: f64) -> Variable {
        let spec = VariableSpec::new(name, []).init(Init::Constant(value)).non_trainable();
        let spec = spec.dtype(self.graph.float_type());
        self.graph.variable(spec.also_in(HYPER_PARAMS), Sharing::Either)
    }

    /// Reports the moving averages of scalars to the monitors, with the decay of the callback
    /// `MovingAverageSummary`: 0.95 by default. Ignored outside the main training tower.
    #[doc(alias = "add_moving_summary")]
    #[track_caller]
    pub fn moving_summary(&self, scalars: &[&Tensor]) {
        if self.is_main_training_tower() {
            for tensor in scalars {
                self.graph.add_to_collection(MOVING_SUMMARIES, tensor);
            }
        }
    }

    /// Like [`TowerContext::moving_summary`], with a decay of its own for these scalars: at least 0,
    /// which reports the last value, and below 1.
    #[track_caller]
    pub fn moving_summary_with_decay(&self, decay: f64, scalars: &[&Tensor]) {
        if !(0.0..1.0).contains(&decay) {
            let why = format!("the decay of a moving average must be at least 0 and below 1, not {decay}");
            return self.graph.record("moving_summary_with_decay", scalars, Error::argument(why));
        }
        self.moving_summary(scalars);
        scalars.iter().for_each(|scalar| self.graph.set_summary_decay(scalar, decay));
    }

    /// Reports how active each of these tensors is, once per epoch: the fraction of zeros
    /// (`activation-summary/NAME-sparsity`), the root mean square (`activation-summary/NAME-rms`) and
    /// a histogram (`NAME`). Ignored outside the main training tower.
    ///
    /// ```
    /// # use tensorpack::prelude::*;
    /// # let graph = Graph::new();
    /// # let t = &TowerContext::training(&graph);
    /// # let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(4)]));
    /// let hidden = Linear::new(8).relu().apply(t, "fc0", &x).named("hidden");
    /// t.activation_summary(&[&hidden]);
    /// # graph.freeze().unwrap();
    /// ```
    #[doc(alias = "add_activation_summary")]
    #[track_caller]
    pub fn activation_summary(&self, activations: &[&Tensor]) {
        if !self.is_main_training_tower() {
            return;
        }
        for x in activations.iter().filter(|x| !x.is_poison()) {
            if !self.graph.owns(x) {
                self.graph.record("activation_summary", &[], x.belongs_elsewhere());
                continue;
            }
            let full = x.name();
            let scope = self.tower_scope().map(|scope| format!("{scope}/"));
            let name = scope.and_then(|scope| full.strip_prefix(&scope)).unwrap_or(&full);
            if x.rank() == 0 || !x.dtype().is_float() {
                let why = format!("{name} is {}{}, not an activation", x.dtype(), x.shape());
                let e =
                    Error::argument(why).note("it needs floating-point values and at least one dimension");
                self.graph.record("activation_summary", &[x], e);
                continue;
            }
            let scalar = |what: &str| format!("activation-summary/{name}-{what}");
            // Once, even if it is called again for the same tensor.
            if !self.graph.first_time(&format!("activation_summary {:?}", x.id())) {
                continue;
            }
            if self.graph.find_tensor(&scalar("rms")).is_some() {
                let e = Error::new(ErrorKind::Name, format!("another activation is called {name:?}"));
                self.graph.record("activation_summary", &[x], e.note("give each a name with `named`"));
                continue;
            }
            let zeros = x.equal(0.0).cast(DType::F32).mean();
            let rms = x.cast(x.dtype().widened()).square().mean().sqrt();
            self.graph.at_root(|| {
                self.summary(&[&zeros.named(&scalar("sparsity")), &rms.named(&scalar("rms")), x]);
            });
        }
    }

    /// Reports tensors to the monitors once per epoch: scalars as values, others as histograms.
    /// Ignored outside the main training tower.
    #[doc(alias = "add_tensor_summary")]
    #[track_caller]
    pub fn summary(&self, tensors: &[&Tensor]) {
        if self.is_main_training_tower() {
            for tensor in tensors {
                self.graph.add_to_collection(SUMMARIES, tensor);
            }
        }
    }

    /// Reports images `[batch, height, width, channels]` with values in 0..255 to the monitors once
    /// per epoch. Ignored outside the main training tower.
    #[track_caller]
    pub fn image_summary(&self, images: &Tensor) {
        if self.is_main_training_tower() {
            self.graph.add_to_collection(IMAGE_SUMMARIES, images);
        }
    }
}
