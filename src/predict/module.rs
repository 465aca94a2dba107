//! An exported model as a module of another model.

use super::graph_file::{GraphFile, InputEntry, read, take};
use crate::graph::{Init, NamePattern, Tensor, TensorSpec, VariableSpec};
use crate::tower::TowerContext;
use std::collections::HashMap;
use std::panic::Location;
use std::path::Path;
use tensorpack_tensor::{Error, HostTensor, Result};

/// A pretrained module, loaded from a file that
/// [`OfflinePredictor::export`](super::OfflinePredictor::export) wrote.
///
/// Load it outside the tower function and apply it inside, like a layer. Its variables become
/// variables of the model: towers share them, they are initialized with the file's values, trained
/// unless frozen, and saved with the others. The module always computes in inference mode: batch
/// normalization uses its running statistics, and dropout is omitted.
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
    graph: GraphFile,
    inputs: Vec<TensorSpec>,
    tensors: HashMap<String, HostTensor>,
    frozen: Vec<NamePattern>,
}

impl Module {
    /// Loads a module from a file. A damaged file is an error that describes the damage.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<Module> {
        let (path, caller) = (path.as_ref(), Location::caller());
        let module = read(path).and_then(|(graph, tensors)| {
            // Build it once in a graph of its own, so that errors surface at load time.
            graph.rebuild(tensors.clone(), caller)?;
            let inputs = graph.inputs.iter().map(InputEntry::spec).collect();
            Ok(Module { graph, inputs, tensors: tensors.into_iter().collect(), frozen: Vec::new() })
        });
        module.map_err(|e| e.within(path.display()))
    }

    /// Freezes the variables whose whole name in the module matches the regular expression
    /// `pattern`. To freeze the entire module, apply it inside [`TowerContext::freeze_variables`].
    #[must_use]
    #[track_caller]
    pub fn freeze(mut self, pattern: &str) -> Module {
        self.frozen.push(NamePattern::new(pattern));
        self
    }

    /// Returns the input signature, in order.
    pub fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    /// Returns the names of the outputs, in order.
    pub fn outputs(&self) -> impl Iterator<Item = &str> {
        self.graph.outputs.iter().map(|o| o.name.as_str())
    }

    /// Applies a module with one input and one output, creating (or sharing) its variables under
    /// `name/`.
    #[track_caller]
    pub fn apply(&self, t: &TowerContext, name: &str, x: &Tensor) -> Tensor {
        t.layer(name, x, |t| match &self.build(t, &[x])[..] {
            [y] => y.clone(),
            outputs => {
                let why = format!("the module has {} outputs; use apply_all", outputs.len());
                x.fail("Module", Error::argument(why))
            }
        })
    }

    /// Applies the module to all its inputs, creating (or sharing) its variables under `name/`.
    /// Returns all outputs.
    #[track_caller]
    pub fn apply_all(&self, t: &TowerContext, name: &str, inputs: &[&Tensor]) -> Vec<Tensor> {
        t.graph().called_from(Location::caller(), || t.scope(name, |t| self.build(t, inputs)))
    }

    /// Returns the outputs, or a poison tensor for each of them after an error.
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
        let mut nodes: Vec<Vec<Tensor>> = inputs.iter().map(|&x| vec![x.clone()]).collect();
        for name in &self.graph.variables {
            let value = take(&mut tensors, name)?;
            nodes.push(vec![self.variable(t, name, value)]);
        }
        let outputs = self.graph.add_to(t.graph(), nodes, tensors, |_, _| Ok(()))?;
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

    /// Checks that the inputs match the signature and that every pattern matches a variable.
    fn check(&self, inputs: &[&Tensor]) -> Result<()> {
        let names: Vec<&str> = self.inputs.iter().map(|spec| spec.name.as_str()).collect();
        if inputs.len() != names.len() {
            let names = names.join(", ");
            return Err(Error::argument(format!(
                "the module takes {} inputs ({names}), but {} were given",
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
                    "input {} expects {}[{sizes}], got {}{}",
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
