//! The translation of an ONNX graph, node by node.

use super::node_cx::NodeCx;
use super::value::{Item, Symbolic, Value, channels_first, channels_last};
use super::{fold, operators, valid_name};
use crate::graph::Tensor;
use crate::onnx::{Node, OnnxGraph, permuted};
use crate::tower::TowerContext;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use tensorpack_tensor::{DType, Dim, Error, ErrorKind, HostTensor, Result};

/// The values of an ONNX graph, and the graph that it is added to.
pub(super) struct Translator<'a> {
    pub(super) t: &'a TowerContext,
    /// The version of the standard operator set.
    pub(super) opset: i64,
    variable: &'a dyn Fn(&str, HostTensor, bool) -> Tensor,
    values: HashMap<String, Value>,
    /// What the names of weights begin with: that of the control-flow node around the current graph.
    scope: String,
    /// The variables by the name of the weight, each with the order of dims in which it is stored.
    variables: HashMap<Rc<str>, (Tensor, Vec<usize>)>,
    /// The names that variables have.
    taken: Vec<String>,
    /// A tensor and its axis of each unknown size.
    sizes: HashMap<Dim, (Tensor, usize)>,
    /// The number of steps of recurrent layers so far.
    pub(super) unrolled: usize,
}

impl<'a> Translator<'a> {
    pub(super) fn new(
        t: &'a TowerContext,
        opset: i64,
        variable: &'a dyn Fn(&str, HostTensor, bool) -> Tensor,
    ) -> Translator<'a> {
        let (values, variables, sizes) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (scope, taken) = (String::new(), Vec::new());
        Translator { t, opset, variable, values, scope, variables, taken, sizes, unrolled: 0 }
    }

    /// Defines a value by name.
    pub(super) fn define(&mut self, name: &str, value: Value) {
        if let Value::Computed(x) | Value::ChannelsLast(x) = &value {
            for (axis, &dim) in x.shape().iter().enumerate().filter(|(_, d)| d.known().is_none()) {
                self.sizes.entry(dim).or_insert_with(|| (x.clone(), axis));
            }
        }
        self.values.insert(name.to_string(), value);
    }

    /// Returns the value of a name; that of an empty name is missing.
    pub(super) fn value(&self, name: &str) -> Result<Value> {
        match (name, self.values.get(name)) {
            ("", _) => Ok(Value::Missing),
            (_, Some(value)) => Ok(value.clone()),
            (_, None) => {
                let why = format!("{name:?} is read before it is computed");
                Err(Error::new(ErrorKind::Io, why))
            }
        }
    }

    /// Translates the body of a control-flow node, which sees the values around it, and returns its
    /// outputs. Its own names end with it: other bodies may have the same ones.
    pub(super) fn body(&mut self, node: &Node, body: &OnnxGraph) -> Result<Vec<Value>> {
        let inner = format!("{}{}/", self.scope, node.outputs.first().map_or("", String::as_str));
        let (values, scope) = (self.values.clone(), std::mem::replace(&mut self.scope, inner));
        self.graph(body)?;
        let outputs = body.outputs.iter().map(|output| self.value(&output.name)).collect();
        (self.values, self.scope) = (values, scope);
        outputs
    }

    /// Translates the initializers and nodes of a graph.
    pub(super) fn graph(&mut self, graph: &OnnxGraph) -> Result<()> {
        let weights: HashSet<&str> = graph.initializers.iter().map(|(name, _)| name.as_str()).collect();
        // Files of old versions list weights among the inputs.
        let inputs = graph.inputs.iter().map(|input| input.name.as_str());
        let mut defined: HashSet<&str> = inputs.filter(|name| !weights.contains(name)).collect();
        let results = graph.nodes.iter().flat_map(|node| &node.outputs).filter(|name| !name.is_empty());
        for name in graph.initializers.iter().map(|(name, _)| name).chain(results) {
            if !defined.insert(name) {
                return Err(Error::new(ErrorKind::Io, format!("{name:?} is defined twice")));
            }
        }
        for (name, tensor) in &graph.initializers {
            self.define(name, self.host(name, tensor.clone()));
        }
        for node in &graph.nodes {
            let described = || match node.name.as_str() {
                "" => format!("{} {}", node.op_type, node.outputs.first().map_or("", String::as_str)),
                name => format!("{} {name}", node.op_type),
            };
            self.node(node).map_err(|e| e.within(described()))?;
        }
        Ok(())
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        let inputs = node.inputs.iter().map(|name| self.value(name)).collect::<Result<Vec<Value>>>()?;
        let outputs = match fold::fold(node, &inputs, self.opset)? {
            Some(value) => vec![value],
            None => {
                let Some(translate) = operators::find(node) else {
                    return Err(Error::new(ErrorKind::Unsupported, "the operation is not supported"));
                };
                translate(&mut NodeCx { translator: self, node, inputs })?
            }
        };
        self.t.graph().first_error()?;
        for (name, value) in node.outputs.iter().zip(outputs).filter(|(name, _)| !name.is_empty()) {
            // A constant is a weight of its own, with the name of the node's output.
            let value = match value {
                Value::Host(_, tensor) => self.host(name, tensor),
                value => value,
            };
            self.define(name, value);
        }
        Ok(())
    }

    /// Returns a weight or constant of the current graph.
    fn host(&self, name: &str, tensor: HostTensor) -> Value {
        Value::Host(format!("{}{name}", self.scope).into(), tensor)
    }

    /// Returns a graph output.
    pub(super) fn output(&mut self, name: &str) -> Result<Tensor> {
        let value = self.value(name).map_err(|_| {
            Error::new(ErrorKind::Io, format!("the output {name:?} is not computed by any node"))
        })?;
        self.tensor(&value).map_err(|e| e.within(name))
    }

    /// Returns a value as a tensor with its dims in ONNX's order.
    pub(super) fn tensor(&mut self, value: &Value) -> Result<Tensor> {
        let tensor = match value {
            Value::Computed(x) => x.clone(),
            Value::ChannelsLast(x) => channels_first(x),
            Value::Host(_, tensor) => self.t.graph().constant(tensor.clone()),
            Value::Symbolic(symbolic) => self.symbolic(symbolic)?,
            Value::Missing => return Err(Error::new(ErrorKind::Io, "a required input is missing")),
        };
        self.t.graph().first_error().map(|()| tensor)
    }

    /// Returns a value as a tensor with its channels last.
    pub(super) fn channels_last(&mut self, value: &Value) -> Result<Tensor> {
        match value {
            Value::ChannelsLast(x) => Ok(x.clone()),
            value => self.tensor(value).map(|x| channels_last(&x)),
        }
    }

    /// Returns a value as a tensor whose dim `i` is dim `order[i]` of the value. A weight becomes a
    /// variable, which is stored in the order in which it is needed first.
    pub(super) fn weight(&mut self, value: &Value, order: &[usize], trainable: bool) -> Result<Tensor> {
        let Value::Host(name, tensor) = value else {
            return Ok(self.tensor(value)?.transpose(order));
        };
        if !tensor.dtype().is_float() {
            return Ok(self.t.graph().constant(permuted(tensor, order)?));
        }
        if let Some((variable, stored)) = self.variables.get(name) {
            let at = |i: &usize| stored.iter().position(|s| s == i).unwrap_or(*i);
            let order: Vec<usize> = order.iter().map(at).collect();
            return Ok(if order.is_sorted() { variable.clone() } else { variable.transpose(&order) });
        }
        let variable =
            (self.variable)(&valid_name(name, &mut self.taken), permuted(tensor, order)?, trainable);
        self.t.graph().first_error()?;
        self.variables.insert(name.clone(), (variable.clone(), order.to_vec()));
        Ok(variable)
    }

    /// Returns integers as a tensor; unknown ones are computed from shapes when the graph runs.
    fn symbolic(&mut self, symbolic: &Symbolic) -> Result<Tensor> {
        let mut parts = Vec::new();
        for item in &symbolic.items {
            let scalar = match *item {
                Item::Number(value) => {
                    self.t.graph().constant(HostTensor::from_f64(symbolic.dtype, [], &[value])?)
                }
                Item::Dim(dim) => self.size(dim)?.cast(symbolic.dtype),
                Item::Unknown => return Err(unknown_size()),
            };
            parts.push(scalar);
        }
        match symbolic.is_scalar {
            true => Ok(parts.swap_remove(0)),
            false => Ok(self.t.graph().stack(&parts, 0)),
        }
    }

    /// Returns a size as a scalar of type f64.
    fn size(&self, dim: Dim) -> Result<Tensor> {
        let (x, axis) = self.sizes.get(&dim).ok_or_else(unknown_size)?;
        let axis = *axis as isize;
        // Only shapes are used: nothing is summed.
        let x = x.cast(DType::F64);
        Ok(x.count_per(&x.sum_keep(&[axis])))
    }

    /// Returns the indices of a dim of unknown size.
    pub(super) fn indices(&self, dim: Dim, dtype: DType) -> Result<Tensor> {
        let (x, axis) = self.sizes.get(&dim).ok_or_else(unknown_size)?;
        let others: Vec<isize> = (0..x.rank()).filter(|i| i != axis).map(|i| i as isize).collect();
        let line = if others.is_empty() { x.clone() } else { x.cast(DType::F32).sum_axes(&others) };
        Ok(line.iota_like(0, dtype))
    }

    /// Returns a tensor of these dims, of which only the shape may be used.
    pub(super) fn shaped(&self, dims: &[Item]) -> Result<Tensor> {
        let mut whole = self.t.graph().constant(HostTensor::zeros(DType::F32, Vec::<usize>::new())?);
        let known: Vec<isize> = dims
            .iter()
            .map(|item| match item {
                Item::Number(n) => *n as isize,
                _ => 1,
            })
            .collect();
        whole = whole.broadcast_to(&known);
        for (axis, item) in dims.iter().enumerate() {
            if let Item::Dim(dim) = item {
                let mut line = self.indices(*dim, DType::F32)?;
                for _ in axis + 1..dims.len() {
                    line = line.expand_dims(-1);
                }
                whole = whole + line;
            } else if *item == Item::Unknown {
                return Err(unknown_size());
            }
        }
        Ok(whole)
    }
}

/// Returns the error of a size that must be known while the graph is built.
pub(super) fn unknown_size() -> Error {
    Error::shape("it depends on a size that is not known while the graph is built")
        .note("give the model inputs of known sizes, such as ExportedModel::load_sized does")
}
