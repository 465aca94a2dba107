//! Attributes of ONNX nodes by name, with their defaults.

use crate::onnx::{Attribute, Node};
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

impl Node {
    fn attribute(&self, name: &str) -> Option<&Attribute> {
        self.attributes.iter().find(|(have, _)| have == name).map(|(_, value)| value)
    }

    fn wrong(&self, name: &str) -> Error {
        Error::new(
            ErrorKind::Io,
            format!("the attribute {name:?} has another type than {} defines", self.op_type),
        )
    }

    /// Returns an integer.
    pub(super) fn int(&self, name: &str, default: i64) -> Result<i64> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::Int(value)) => Ok(*value),
            Some(_) => Err(self.wrong(name)),
        }
    }

    /// Returns whether an integer is not 0.
    pub(super) fn flag(&self, name: &str) -> Result<bool> {
        self.int(name, 0).map(|value| value != 0)
    }

    /// Returns a number.
    pub(super) fn float(&self, name: &str, default: f64) -> Result<f64> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::Float(value)) => Ok(f64::from(*value)),
            Some(_) => Err(self.wrong(name)),
        }
    }

    /// Returns a string.
    pub(super) fn text<'a>(&'a self, name: &str, default: &'a str) -> Result<&'a str> {
        match self.attribute(name) {
            None => Ok(default),
            Some(Attribute::Text(value)) => Ok(value),
            Some(_) => Err(self.wrong(name)),
        }
    }

    /// Returns integers, or `None` if there are none.
    pub(super) fn ints(&self, name: &str) -> Result<Option<&[i64]>> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Ints(values)) => Ok(Some(values)),
            Some(_) => Err(self.wrong(name)),
        }
    }

    /// Returns numbers, or `None` if there are none.
    pub(super) fn floats(&self, name: &str) -> Result<Option<&[f32]>> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Floats(values)) => Ok(Some(values)),
            Some(_) => Err(self.wrong(name)),
        }
    }

    /// Returns strings; none if the attribute is missing.
    pub(super) fn texts(&self, name: &str) -> Result<&[String]> {
        match self.attribute(name) {
            None => Ok(&[]),
            Some(Attribute::Texts(values)) => Ok(values),
            Some(_) => Err(self.wrong(name)),
        }
    }

    /// Returns a tensor, or `None` if there is none.
    pub(super) fn tensor(&self, name: &str) -> Result<Option<&HostTensor>> {
        match self.attribute(name) {
            None => Ok(None),
            Some(Attribute::Tensor(value)) => Ok(Some(value)),
            Some(_) => Err(self.wrong(name)),
        }
    }

    /// Returns the body of a control-flow node.
    pub(super) fn body(&self, name: &str) -> Result<&crate::onnx::OnnxGraph> {
        match self.attribute(name) {
            Some(Attribute::Graph(graph)) => Ok(graph),
            _ => Err(self.wrong(name)),
        }
    }
}
