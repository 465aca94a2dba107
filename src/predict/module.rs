//! A model from its file as a part of another one.

use super::written::{WrittenGraph, WrittenInput, read, take};
use crate::graph::{Init, NamePattern, Tensor, TensorSpec, VariableSpec};
use crate::tower::TowerContext;
use std::collections::HashMap;
use std::panic::Location;
use std::path::Path;
use tensorpack_tensor::{Error, HostTensor, Result};

/// A part of a model that was trained elsewhere, from the file that
/// [`OfflinePredictor::export`](super::OfflinePredictor::export) wrote.
///
/// It is made outside the tower function and called inside it, like a layer. Its variables are the model's from then
/// on: towers share them, they begin with the file's values, they are trained unless they are frozen, and they are saved
/// with the others. It computes what it did in inference: a batch norm in it keeps its statistics, a dropout is gone.
///
/// ```no_run
/// # use tensorpack::prelude::*;
/// # use tensorpack::predict::Module;
/// struct Finetuned {
///     features: Module,
/// }
///
/// impl Finetuned {
///     fn new() -> Result<Finetuned> {
///         let features = Module::load("features.safetensors")?.freeze("conv[01]/.*");
///         Ok(Finetuned { features })
///     }
///
///     fn logits(&self, t: &TowerContext, image: &Tensor) -> Tensor {
///         let x = self.features.apply(t, "features", image); // features/conv0/W and so on
///         Linear::new(10).apply(t, "fc", &x)
///     }
/// }
/// ```
#[doc(alias = "hub.Module")]
#[derive(Debug)]
pub struct Module {
    graph: WrittenGraph,
    inputs: Vec<TensorSpec>,
    tensors: HashMap<String, HostTensor>,
    frozen: Vec<NamePattern>,
}

impl Module {
    /// Reads a file. A damaged one is an error that says what is wrong with it.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<Module> {
        let (path, caller) = (path.as_ref(), Location::caller());
        let module = read(path).and_then(|(graph, tensors)| {
            // Once by itself: what cannot be built is told here.
            graph.rebuild(tensors.clone(), caller)?;
            let inputs = graph.inputs.iter().map(WrittenInput::spec).collect();
            Ok(Module { graph, inputs, tensors: tensors.into_iter().collect(), frozen: Vec::new() })
        });
        module.map_err(|e| e.within(path.display()))
    }

    /// Leaves alone the variables whose whole name in the module matches a regular expression. To freeze all of it, call
    /// it inside [`TowerContext::freeze_variables`].
    #[must_use]
    #[track_caller]
    pub fn freeze(mut self, pattern: &str) -> Module {
        self.frozen.push(NamePattern::new(pattern));
        self
    }

    /// What it takes, in order.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// The names of what it gives, in order.
    pub fn outputs(&self) -> impl Iterator<Item = &str> {
        self.graph.outputs.iter().map(|o| o.name.as_str())
    }

    /// Applies a module of one input and one output, making (or sharing) its variables below `name/`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| match &self.build(t, &[x])[..] {
            [y] => y.clone(),
            outputs => {
                let why = format!("it has {} outputs: call it with apply_all", outputs.len());
                x.fail("Module", Error::argument(why))
            }
        })
    }

    /// Applies the module to all its inputs, making (or sharing) its variables below `name/`; gives all its outputs.
    #[track_caller]
    pub fn apply_all(&self, t: &TowerContext, name: &str, inputs: &[&Tensor]) -> Vec<Tensor> {
        t.graph().called_from(Location::caller(), || t.scope(name, |t| self.build(t, inputs)))
    }

    /// The outputs, or poison for each of them.
    #[track_caller]
    fn build(&self, t: &TowerContext, inputs: &[&Tensor]) -> Vec<Tensor> {
        match self.try_build(t, inputs) {
            Ok(outputs) => outputs,
            Err(e) => {
                t.graph().record("Module", inputs, e);
                vec![Tensor::poison(t.graph()); self.graph.outputs.len()]
            }
        }
    }

    #[track_caller]
    fn try_build(&self, t: &TowerContext, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        t.graph().first_error()?;
        self.check(inputs)?;
        let mut tensors = self.tensors.clone();
        let mut made: Vec<Vec<Tensor>> = inputs.iter().map(|&x| vec![x.clone()]).collect();
        for name in &self.graph.variables {
            let value = take(&mut tensors, name)?;
            made.push(vec![self.variable(t, name, value)]);
        }
        let outputs = self.graph.add_to(t.graph(), made, tensors, |_, _| Ok(()))?;
        Ok(outputs.into_iter().map(|(_, tensor)| tensor).collect())
    }

    #[track_caller]
    fn variable(&self, t: &TowerContext, name: &str, value: HostTensor) -> Tensor {
        let spec = VariableSpec::new(name, value.sizes()).dtype(value.dtype());
        let is_trainable = self.graph.trainable.iter().any(|n| n == name);
        let spec = if is_trainable { spec } else { spec.model() }.init(Init::Value(value));
        let is_frozen = self.frozen.iter().any(|pattern| pattern.matches(name));
        let variable = if is_frozen { t.freeze_variables(|t| t.variable(spec)) } else { t.variable(spec) };
        variable.value().clone()
    }

    /// That inputs and patterns are such as the module knows.
    fn check(&self, inputs: &[&Tensor]) -> Result<()> {
        let names: Vec<&str> = self.inputs.iter().map(|spec| spec.name.as_str()).collect();
        if inputs.len() != names.len() {
            let names = names.join(", ");
            return Err(Error::argument(format!(
                "it takes {} inputs ({names}), but {} were given",
                self.inputs.len(),
                inputs.len()
            )));
        }
        for (spec, x) in self.inputs.iter().zip(inputs) {
            let mut sizes = spec.sizes.iter().zip(x.shape().iter());
            let fits = sizes.all(|(want, have)| want.is_none_or(|n| have.known().is_none_or(|m| m == n)));
            if !fits || (x.dtype(), x.rank()) != (spec.dtype, spec.sizes.len()) {
                let size = |n: &Option<usize>| n.map_or("?".to_string(), |n| n.to_string());
                let sizes = spec.sizes.iter().map(size).collect::<Vec<_>>().join(", ");
                let why = format!(
                    "its input {} is {}[{sizes}], not {}{}",
                    spec.name,
                    spec.dtype,
                    x.dtype(),
                    x.shape()
                );
                return Err(Error::shape(why));
            }
        }
        let trainable = || self.graph.trainable.iter().map(String::as_str);
        self.frozen.iter().try_for_each(|pattern| pattern.check(trainable()))
    }
}
