//! What a tower function built, to be looked at later.

use super::Mode;
use crate::graph::{Graph, Op, Tensor};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// One replica that a tower function built.
#[derive(Clone, Debug)]
#[doc(alias = "TowerTensorHandle")]
pub struct TowerHandle {
    pub(super) graph: Graph,
    pub(super) scope: String,
    pub(super) mode: Mode,
    pub(super) inputs: Vec<(String, Tensor)>,
    pub(super) outputs: Vec<Tensor>,
    pub(super) updates: Vec<Op>,
}

impl TowerHandle {
    /// The scope that names of its tensors begin with; empty for the only training tower.
    #[doc(alias = "ns_name")]
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// What it was built for.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The tensors the tower function was called with, by the names of the signature.
    pub fn inputs(&self) -> &[(String, Tensor)] {
        &self.inputs
    }

    /// What the tower function returned.
    pub fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }

    /// What the tower function put into [`UPDATE_OPS`](crate::graph::UPDATE_OPS). Those of a training tower run with
    /// every step; those of an inference tower run only where somebody asks for them.
    pub fn updates(&self) -> &[Op] {
        &self.updates
    }

    /// The input of this name, else the tensor of this name in the tower, else the variable of this name.
    pub fn get_tensor(&self, name: &str) -> Result<Tensor> {
        if let Some((_, input)) = self.inputs.iter().find(|(n, _)| n == name) {
            return Ok(input.clone());
        }
        let inside = if self.scope.is_empty() { name.to_string() } else { format!("{}/{name}", self.scope) };
        let found = self.graph.tensor(&inside).or_else(|_| self.graph.tensor(name));
        found.map_err(|_| {
            let place = if self.scope.is_empty() { "the tower" } else { self.scope.as_str() };
            Error::new(ErrorKind::Name, format!("{place} has no input, tensor or variable named {name:?}"))
                .note("tensors get names with `.named(..)`")
        })
    }
}

/// The replicas built so far.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "TowerTensorHandles")]
pub struct Towers<'a>(pub(super) &'a [TowerHandle]);

impl<'a> Towers<'a> {
    /// Those for training.
    pub fn training(self) -> Vec<&'a TowerHandle> {
        self.0.iter().filter(|t| t.mode == Mode::Training).collect()
    }

    /// Those for inference.
    pub fn inference(self) -> Vec<&'a TowerHandle> {
        self.0.iter().filter(|t| t.mode == Mode::Inference).collect()
    }

    /// The one under this scope.
    pub fn get(self, scope: &str) -> Option<&'a TowerHandle> {
        self.0.iter().find(|t| t.scope == scope)
    }

    /// How many there are.
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Whether none was built.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}
