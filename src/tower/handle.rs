//! Handles to the towers that a tower function built.

use super::Mode;
use crate::graph::{Graph, Op, Tensor};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// A handle to one replica that a tower function built.
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
    /// Returns the scope that its tensor names start with; empty for a single training tower.
    #[doc(alias = "ns_name")]
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Returns the mode it was built in.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the input tensors with their names in the signature.
    pub fn inputs(&self) -> &[(String, Tensor)] {
        &self.inputs
    }

    /// Returns the tensors that the tower function returned.
    pub fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }

    /// Returns the operations that the tower function added to
    /// [`UPDATE_OPS`](crate::graph::UPDATE_OPS). Those of a training tower run in every step; those
    /// of an inference tower run only on request.
    pub fn updates(&self) -> &[Op] {
        &self.updates
    }

    /// Returns the input of this name, else the tensor of this name in the tower, else the variable
    /// of this name.
    pub fn get_tensor(&self, name: &str) -> Result<Tensor> {
        if let Some((_, input)) = self.inputs.iter().find(|(n, _)| n == name) {
            return Ok(input.clone());
        }
        let inside = if self.scope.is_empty() { name.to_string() } else { format!("{}/{name}", self.scope) };
        self.graph.find_tensor(&inside).or_else(|| self.graph.find_tensor(name)).ok_or_else(|| {
            let tower = if self.scope.is_empty() { "the tower" } else { self.scope.as_str() };
            Error::new(ErrorKind::Name, format!("{tower} has no input, tensor or variable named {name:?}"))
                .note("name a tensor with `.named(..)`")
                .note(self.graph.nearest_tensors(&inside, inside.strip_suffix(name).unwrap_or_default()))
        })
    }
}

/// The replicas built so far.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "TowerTensorHandles")]
pub struct Towers<'a>(pub(super) &'a [TowerHandle]);

impl<'a> Towers<'a> {
    /// Returns the training towers.
    pub fn training(self) -> Vec<&'a TowerHandle> {
        self.0.iter().filter(|t| t.mode == Mode::Training).collect()
    }

    /// Returns the inference towers.
    pub fn inference(self) -> Vec<&'a TowerHandle> {
        self.0.iter().filter(|t| t.mode == Mode::Inference).collect()
    }

    /// Returns the tower with this scope.
    pub fn get(self, scope: &str) -> Option<&'a TowerHandle> {
        self.0.iter().find(|t| t.scope == scope)
    }

    /// Returns the number of towers.
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Returns whether no tower was built.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}
