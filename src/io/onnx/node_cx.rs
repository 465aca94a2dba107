//! The context in which one ONNX node is translated.

use super::fold::Small;
use super::translator::{Translator, unknown_size};
use super::value::{Item, Value};
use crate::graph::{Graph, Tensor, axis_in};
use crate::onnx::Node;
use tensorpack_tensor::{DType, Dim, Error, ErrorKind, HostTensor, Result, Shape};

/// A node with its inputs.
pub(super) struct NodeCx<'a, 't> {
    pub(super) translator: &'a mut Translator<'t>,
    pub(super) node: &'a Node,
    pub(super) inputs: Vec<Value>,
}

impl NodeCx<'_, '_> {
    pub(super) fn graph(&self) -> &Graph {
        self.translator.t.graph()
    }

    pub(super) fn opset(&self) -> i64 {
        self.translator.opset
    }

    /// Returns whether input `i` is given.
    pub(super) fn has(&self, i: usize) -> bool {
        !matches!(self.inputs.get(i), None | Some(Value::Missing))
    }

    pub(super) fn value(&self, i: usize) -> Value {
        self.inputs.get(i).cloned().unwrap_or(Value::Missing)
    }

    pub(super) fn shape(&self, i: usize) -> Shape {
        self.value(i).shape()
    }

    pub(super) fn rank(&self, i: usize) -> usize {
        self.shape(i).rank()
    }

    pub(super) fn dtype(&self, i: usize) -> DType {
        self.value(i).dtype()
    }

    /// Returns input `i` with its dims in ONNX's order.
    pub(super) fn tensor(&mut self, i: usize) -> Result<Tensor> {
        self.translator.tensor(&self.value(i))
    }

    /// Returns input `i`, an image or a sequence, with its channels last.
    pub(super) fn channels_last(&mut self, i: usize) -> Result<Tensor> {
        self.translator.channels_last(&self.value(i))
    }

    pub(super) fn is_channels_last(&self, i: usize) -> bool {
        matches!(self.inputs.get(i), Some(Value::ChannelsLast(_)))
    }

    /// Returns input `i` as a weight: a trainable variable, if it is part of the model.
    pub(super) fn weight(&mut self, i: usize) -> Result<Tensor> {
        let order: Vec<usize> = (0..self.rank(i)).collect();
        self.weight_as(i, &order)
    }

    /// Returns input `i` as a weight whose dim `k` is dim `order[k]` of the input.
    pub(super) fn weight_as(&mut self, i: usize, order: &[usize]) -> Result<Tensor> {
        self.translator.weight(&self.value(i), order, true)
    }

    /// Returns input `i` as a variable that is not trained, such as running statistics.
    pub(super) fn statistic(&mut self, i: usize) -> Result<Tensor> {
        let order: Vec<usize> = (0..self.rank(i)).collect();
        self.translator.weight(&self.value(i), &order, false)
    }

    /// Returns input `i` as an operand of elementwise arithmetic: a tensor of several numbers is a
    /// weight, and a single number is a constant.
    pub(super) fn operand(&mut self, i: usize) -> Result<Tensor> {
        match self.value(i) {
            Value::Host(_, tensor) if tensor.len() > 1 => self.weight(i),
            _ => self.tensor(i),
        }
    }

    /// Returns the elements of input `i`, which must be known while the graph is built.
    pub(super) fn host(&self, i: usize) -> Result<HostTensor> {
        match self.value(i) {
            Value::Host(_, tensor) => Ok(tensor),
            Value::Missing => Err(Error::new(ErrorKind::Io, format!("input {i} is missing"))),
            Value::Symbolic(_) => Err(unknown_size()),
            Value::Computed(_) | Value::ChannelsLast(_) => {
                let why = format!("input {i} must be a constant, but it is computed");
                Err(Error::new(ErrorKind::Unsupported, why))
            }
        }
    }

    /// Returns the integers of input `i`, which must be known while the graph is built.
    pub(super) fn ints(&self, i: usize) -> Result<Vec<i64>> {
        let tensor = self.host(i)?;
        match tensor.dtype() {
            DType::I64 => Ok(tensor.as_slice::<i64>()?.to_vec()),
            _ => Ok(tensor.to_f64_vec().into_iter().map(|v| v as i64).collect()),
        }
    }

    /// Returns integers given by the attribute `name` in old versions, and by input `i` in new ones.
    pub(super) fn ints_or(&self, name: &str, i: usize) -> Result<Option<Vec<i64>>> {
        match self.node.ints(name)? {
            Some(values) => Ok(Some(values.to_vec())),
            None if self.has(i) => self.ints(i).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the number of input `i`, or `None` if it is not given.
    pub(super) fn number(&self, i: usize) -> Result<Option<f64>> {
        match self.has(i) {
            true => self.host(i)?.to_scalar().map(Some),
            false => Ok(None),
        }
    }

    /// Returns the items of a shape that is input `i`.
    pub(super) fn dims(&self, i: usize) -> Result<Vec<Item>> {
        match Small::of(&self.value(i)) {
            Some(small) => Ok(small.items),
            None => Err(self.host(i).err().unwrap_or_else(unknown_size)),
        }
    }

    /// Returns an axis of input 0, which may be negative.
    pub(super) fn axis(&self, axis: i64) -> Result<usize> {
        self.axis_of(axis, self.rank(0))
    }

    pub(super) fn axis_of(&self, axis: i64, rank: usize) -> Result<usize> {
        axis_in(axis as isize, rank)
    }

    /// Returns a scalar constant.
    pub(super) fn scalar(&self, value: f64, dtype: DType) -> Result<Tensor> {
        Ok(self.graph().constant(HostTensor::from_f64(dtype, [], &[value])?))
    }

    /// Returns an error of kind `Unsupported`.
    pub(super) fn unsupported(&self, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Unsupported, format!("{what} is not supported"))
    }

    /// Returns the size of a dim that must be known while the graph is built.
    pub(super) fn known(&self, dim: Dim) -> Result<usize> {
        dim.known().ok_or_else(unknown_size)
    }
}

/// Returns the only output of a node.
pub(super) fn one(x: Tensor) -> Result<Vec<Value>> {
    Ok(vec![Value::Computed(x)])
}

/// Returns the only output of a node, which has its channels last.
pub(super) fn one_channels_last(x: Tensor) -> Result<Vec<Value>> {
    Ok(vec![Value::ChannelsLast(x)])
}
