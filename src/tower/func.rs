//! Tower functions: what a user writes to build one replica of a model.

use super::{Mode, TowerContext, TowerHandle, Towers};
use crate::graph::{Graph, MOVING_SUMMARIES, SUMMARIES, Tensor, TensorSpec, UPDATE_OPS};
use std::collections::HashSet;
use std::fmt;
use tensorpack_tensor::{Error, ErrorKind, Result};

type Function = Box<dyn Fn(&TowerContext, &[Tensor]) -> Vec<Tensor>>;

/// A function that adds one replica of a model to the graph, the inputs it takes, and the replicas built so far.
///
/// It is called once for every training tower and again for inference, so it must not keep state of its own: a module
/// that has state is made outside and called inside. Variables are made through the [`TowerContext`], which knows
/// whether they are to be made or shared.
pub struct TowerFunc {
    signature: Vec<TensorSpec>,
    function: Function,
    towers: Vec<TowerHandle>,
}

impl TowerFunc {
    /// The function, and what it is called with. Names of inputs are unique and have no `/`.
    pub fn new(
        signature: Vec<TensorSpec>,
        function: impl Fn(&TowerContext, &[Tensor]) -> Vec<Tensor> + 'static,
    ) -> Result<TowerFunc> {
        let mut seen = HashSet::new();
        for spec in &signature {
            let why = if spec.name.contains(['/', ':', ' ']) {
                "an input's name has no '/', ':' or space"
            } else if !seen.insert(spec.name.as_str()) {
                "another input has this name"
            } else {
                continue;
            };
            return Err(Error::new(ErrorKind::Name, format!("the input {:?}: {why}", spec.name)));
        }
        Ok(TowerFunc { signature, function: Box::new(function), towers: Vec::new() })
    }

    /// The same function, with nothing built.
    pub(crate) fn rebuilt(self) -> TowerFunc {
        TowerFunc { towers: Vec::new(), ..self }
    }

    /// The inputs it takes.
    #[doc(alias = "input_signature")]
    pub fn signature(&self) -> &[TensorSpec] {
        &self.signature
    }

    /// The replicas built so far.
    pub fn towers(&self) -> Towers<'_> {
        Towers(&self.towers)
    }

    /// Builds a training tower on `inputs`.
    #[track_caller]
    pub fn train(&mut self, t: &TowerContext, inputs: &[Tensor]) -> Result<TowerHandle> {
        let scope = if t.total() > 1 { format!("tower{}", t.index()) } else { String::new() };
        // Every tower would summarise the same: only the first one's count.
        let guarded: &[&str] = if t.index() == 0 { &[] } else { &[SUMMARIES, MOVING_SUMMARIES] };
        self.call(t, scope, guarded, inputs, |t, build| t.build(build))
    }

    /// Builds an inference tower under `scope` on inputs that are fed as `scope/NAME`, sharing the variables there are.
    #[track_caller]
    pub fn infer(&mut self, graph: &Graph, scope: &str) -> Result<TowerHandle> {
        self.infer_in(&TowerContext::inference(graph), scope)
    }

    /// [`TowerFunc::infer`] in this context, such as one that reads averages in place of variables.
    #[track_caller]
    pub fn infer_in(&mut self, t: &TowerContext, scope: &str) -> Result<TowerHandle> {
        let graph = t.graph();
        if self.towers.iter().any(|t| t.scope == scope) {
            return Err(Error::new(ErrorKind::Name, format!("there is a tower named {scope:?} already")));
        }
        let trained = self.towers.iter().any(|t| t.mode == Mode::Training && t.graph.uid() == graph.uid());
        let inputs: Vec<Tensor> =
            self.signature.iter().map(|s| graph.placeholder(&s.within(scope))).collect();
        let guarded = [SUMMARIES, MOVING_SUMMARIES, UPDATE_OPS];
        let mut build = |t: &TowerContext| {
            self.call(t, scope.to_string(), &guarded, &inputs, |t, build| {
                if scope.is_empty() { build(t) } else { t.graph().scope(scope, false, true, || build(t)) }
            })
        };
        // What a training tower made is all there is: another variable would never be trained.
        if trained { t.reuse(build) } else { build(t) }
    }

    /// Builds `count` inference towers that can run at the same time, each on inputs of its own: under `scope0`, `scope1`
    /// and so on, or under `scope` itself if there is one. Each is the tower that [`TowerFunc::infer_in`] builds: it
    /// knows nothing of the others.
    #[track_caller]
    pub fn infer_towers(&mut self, t: &TowerContext, scope: &str, count: usize) -> Result<Vec<TowerHandle>> {
        if count == 0 {
            return Err(Error::argument(format!("{scope} needs at least one tower")));
        }
        let name = |i| if count == 1 { scope.to_string() } else { format!("{scope}{i}") };
        let mut towers = Vec::new();
        for i in 0..count {
            // Numbered for the engine alone, which gives each number a team of its own.
            towers.push(t.graph().in_tower(i, false, || self.infer_in(t, &name(i)))?);
        }
        Ok(towers)
    }

    /// Calls the function through `within`, which opens its scope; `guarded` collections are afterwards as they were.
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
        let outputs = within(t, &mut |t| (self.function)(t, inputs));
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
