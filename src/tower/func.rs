//! Tower functions: user code that builds one replica of a model.

use super::{Mode, TowerContext, TowerHandle, Towers};
use crate::graph::{Graph, MOVING_SUMMARIES, SUMMARIES, Tensor, TensorSpec, UPDATE_OPS};
use std::collections::HashSet;
use std::fmt;
use tensorpack_tensor::{Error, ErrorKind, Result};

type Function = Box<dyn Fn(&TowerContext, &[Tensor]) -> Vec<Tensor>>;

/// A function that adds one replica of a model to the graph, with its input signature and the
/// replicas built so far.
///
/// It is called once for every training tower and again for inference, so it must be stateless:
/// create stateful modules outside and call them inside. Create variables through the
/// [`TowerContext`], which decides whether to create or share them.
#[doc(alias = "TowerFuncWrapper")]
pub struct TowerFunc {
    signature: Vec<TensorSpec>,
    function: Function,
    towers: Vec<TowerHandle>,
}

impl TowerFunc {
    /// Creates a tower function with this input signature. Input names must be unique and must not
    /// contain `/`, `:` or spaces.
    pub fn new(
        signature: Vec<TensorSpec>,
        function: impl Fn(&TowerContext, &[Tensor]) -> Vec<Tensor> + 'static,
    ) -> Result<TowerFunc> {
        let mut seen = HashSet::new();
        for spec in &signature {
            let why = if spec.name.contains(['/', ':', ' ']) {
                "an input name must not contain '/', ':' or spaces"
            } else if !seen.insert(spec.name.as_str()) {
                "another input has the same name"
            } else {
                continue;
            };
            return Err(Error::new(ErrorKind::Name, format!("input {:?}: {why}", spec.name)).at(spec.site));
        }
        Ok(TowerFunc { signature, function: Box::new(function), towers: Vec::new() })
    }

    /// Returns the same function with an empty list of towers.
    pub(crate) fn rebuilt(self) -> TowerFunc {
        TowerFunc { towers: Vec::new(), ..self }
    }

    /// Returns the input signature.
    #[doc(alias = "input_signature")]
    pub fn signature(&self) -> &[TensorSpec] {
        &self.signature
    }

    /// Returns the replicas built so far.
    pub fn towers(&self) -> Towers<'_> {
        Towers(&self.towers)
    }

    /// Builds a training tower on `inputs`.
    #[track_caller]
    pub fn train(&mut self, t: &TowerContext, inputs: &[Tensor]) -> Result<TowerHandle> {
        let scope = t.tower_scope().unwrap_or_default();
        // The summaries of all towers are the same, so keep only those of the first.
        let guarded: &[&str] = if t.is_main_training_tower() { &[] } else { &[SUMMARIES, MOVING_SUMMARIES] };
        self.call(t, scope, guarded, inputs, |t, build| t.build(build))
    }

    /// Builds an inference tower under `scope`, with inputs that are fed as `scope/NAME`, sharing
    /// existing variables.
    #[track_caller]
    pub fn infer(&mut self, graph: &Graph, scope: &str) -> Result<TowerHandle> {
        self.infer_in(&TowerContext::inference(graph), scope)
    }

    /// Like [`TowerFunc::infer`], in this context, such as one that reads moving averages in place
    /// of variables.
    #[track_caller]
    pub fn infer_in(&mut self, t: &TowerContext, scope: &str) -> Result<TowerHandle> {
        let graph = t.graph();
        if self.towers.iter().any(|t| t.scope == scope) {
            return Err(Error::new(ErrorKind::Name, format!("a tower named {scope:?} already exists")));
        }
        let trained = self.towers.iter().any(|t| t.mode == Mode::Training && t.graph.uid() == graph.uid());
        let inputs: Vec<Tensor> = self.signature.iter().map(|s| graph.input(&s.within(scope))).collect();
        let guarded = [SUMMARIES, MOVING_SUMMARIES, UPDATE_OPS];
        let mut build = |t: &TowerContext| {
            self.call(t, scope.to_string(), &guarded, &inputs, |t, build| {
                if scope.is_empty() { build(t) } else { t.graph().scope(scope, false, true, || build(t)) }
            })
        };
        // The training tower created all variables; a new one would never be trained.
        if trained { t.reuse(build) } else { build(t) }
    }

    /// Builds `count` inference towers that can run concurrently, each with its own inputs, under
    /// `scope0`, `scope1` and so on (a single tower is named `scope`). Each is an independent tower
    /// as built by [`TowerFunc::infer_in`].
    #[track_caller]
    pub fn infer_towers(&mut self, t: &TowerContext, scope: &str, count: usize) -> Result<Vec<TowerHandle>> {
        if count == 0 {
            return Err(Error::argument(format!("{scope} needs at least one tower")));
        }
        let name = |i| if count == 1 { scope.to_string() } else { format!("{scope}{i}") };
        let mut towers = Vec::new();
        for i in 0..count {
            // The index is only for the engine, which gives each tower its own thread team.
            towers.push(t.graph().in_tower(i, None, || self.infer_in(t, &name(i)))?);
        }
        Ok(towers)
    }

    /// Calls the function through `within`, which opens its scope, and then restores the `guarded`
    /// collections.
    #[track_caller]
    fn call(
        &mut self,
        t: &TowerContext,
        scope: String,
        guarded: &[&str],
        inputs: &[Tensor],
        within: impl FnOnce(&TowerContext, &mut dyn FnMut(&TowerContext) -> Vec<Tensor>) -> Vec<Tensor>,
    ) -> Result<TowerHandle> {
        if inputs.len() != self.signature.len() {
            return Err(Error::argument(format!(
                "the tower function takes {} inputs, but {} were given",
                self.signature.len(),
                inputs.len()
            )));
        }
        let graph = t.graph();
        let before: Vec<_> = guarded.iter().map(|&key| (key, graph.collection(key))).collect();
        let updates_before = graph.collection(UPDATE_OPS).ops.len();
        let outputs = within(t, &mut |t| graph.autocast(|| (self.function)(t, inputs)));
        let updates = graph.collection_ops(UPDATE_OPS).split_off(updates_before);
        for (key, collection) in before {
            graph.restore_collection(key, collection);
        }
        graph.first_error()?;
        let names = self.signature.iter().map(|s| s.name.clone());
        let handle = TowerHandle {
            graph: graph.clone(),
            scope,
            mode: if t.is_training() { Mode::Training } else { Mode::Inference },
            inputs: names.zip(inputs.iter().cloned()).collect(),
            outputs,
            updates,
        };
        self.towers.push(handle.clone());
        Ok(handle)
    }
}

impl fmt::Debug for TowerFunc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TowerFunc").field("signature", &self.signature).field("towers", &self.towers).finish()
    }
}
