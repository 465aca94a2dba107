//! An exported model as a module of another model.

use super::graph_file::{GraphFile, InputEntry, ModelFile, read, take};
use crate::graph::{Init, NamePattern, Tensor, TensorSpec, VariableSpec};
use crate::io::onnx::{OnnxFile, is_onnx};
use crate::tower::TowerContext;
use std::cell::RefCell;
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
    source: Source,
    inputs: Vec<TensorSpec>,
    outputs: Vec<String>,
    frozen: Vec<NamePattern>,
}

/// The contents of a file.
#[derive(Debug)]
enum Source {
    /// A model that [`OfflinePredictor::export`](super::OfflinePredictor::export) wrote.
    Exported {
        graph: GraphFile,
        tensors: HashMap<String, HostTensor>,
    },
    Onnx(OnnxFile),
}

impl Module {
    /// Loads a module from a file: one that
    /// [`OfflinePredictor::export`](super::OfflinePredictor::export) wrote, or an ONNX model, whose
    /// name ends with `.onnx`. A damaged file is an error that describes the damage. An ONNX model
    /// with unsupported operations is an error that lists them all.
    ///
    /// The float weights of an ONNX model are trainable variables, except the running statistics of
    /// batch normalization. They have the names of the file, with other characters than letters,
    /// digits and `_ - . /` replaced by `_`. Weights of convolutions have their channels last, and
    /// those of linear layers are `[in, out]`, as everywhere here.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<Module> {
        let (path, caller) = (path.as_ref(), Location::caller());
        let module =
            if is_onnx(path) { Module::from_onnx(path) } else { Module::from_exported(path, caller) };
        module.map_err(|e| e.within(path.display()))
    }

    fn from_exported(path: &Path, caller: &'static Location<'static>) -> Result<Module> {
        let ModelFile { graph, tensors, .. } = read(path)?;
        // Build it once in a graph of its own, so that errors surface at load time.
        graph.rebuild(tensors.clone(), caller)?;
        let inputs = graph.inputs.iter().map(InputEntry::spec).collect();
        let outputs = graph.outputs.iter().map(|output| output.name.clone()).collect();
        let source = Source::Exported { graph, tensors: tensors.into_iter().collect() };
        Ok(Module { source, inputs, outputs, frozen: Vec::new() })
    }

    #[track_caller]
    fn from_onnx(path: &Path) -> Result<Module> {
        let file = OnnxFile::read(path)?;
        let (inputs, outputs) = (file.inputs().to_vec(), file.outputs().to_vec());
        Ok(Module { source: Source::Onnx(file), inputs, outputs, frozen: Vec::new() })
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
        self.outputs.iter().map(String::as_str)
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
                vec![Tensor::poison(t.graph()); self.outputs.len()]
            }
        }
    }

    #[track_caller]
    fn try_build(&self, t: &TowerContext, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        t.graph().first_error()?;
        self.check(inputs)?;
        let created = RefCell::new(Vec::new());
        let variable = |name: &str, value: HostTensor, is_trainable: bool| {
            if is_trainable {
                created.borrow_mut().push(name.to_string());
            }
            self.variable(t, name, value, is_trainable)
        };
        let outputs = match &self.source {
            Source::Exported { graph, tensors } => {
                let mut tensors = tensors.clone();
                let mut nodes: Vec<Vec<Tensor>> = inputs.iter().map(|&x| vec![x.clone()]).collect();
                for name in &graph.variables {
                    let is_trainable = graph.trainable.iter().any(|n| n == name);
                    nodes.push(vec![variable(name, take(&mut tensors, name)?, is_trainable)]);
                }
                let outputs = graph.add_to(t.graph(), nodes, tensors, |_, _| Ok(()))?;
                outputs.into_iter().map(|(_, tensor)| tensor).collect()
            }
            Source::Onnx(file) => file.build(t, inputs, &variable)?,
        };
        let created = created.into_inner();
        self.frozen.iter().try_for_each(|pattern| pattern.check(created.iter().map(String::as_str)))?;
        Ok(outputs)
    }

    #[track_caller]
    fn variable(&self, t: &TowerContext, name: &str, value: HostTensor, is_trainable: bool) -> Tensor {
        let spec = VariableSpec::new(name, value.sizes()).dtype(value.dtype());
        let spec = if is_trainable { spec } else { spec.model() }.init(Init::Value(value));
        let is_frozen = self.frozen.iter().any(|pattern| pattern.matches(name));
        let variable = if is_frozen { t.freeze_variables(|t| t.variable(spec)) } else { t.variable(spec) };
        variable.value().clone()
    }

    /// Checks that the inputs match the signature.
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
        Ok(())
    }
}
