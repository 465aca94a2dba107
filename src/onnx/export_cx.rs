//! The context in which an operation writes itself as ONNX nodes.

use super::data_type::code_of;
use super::{Attribute, Node, permuted};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use tensorpack_tensor::{DType, Dim, Error, ErrorKind, HostTensor, Result, Shape};

/// A tensor of the ONNX graph that is being written.
///
/// It may be stored with its dims in another order: convolutions are written in ONNX's layout
/// `[batch, channels, height, width]`, and everything between them stays in it. The transposition
/// is written only where an operation needs the dims in their own order.
#[derive(Clone, Debug)]
pub struct Value {
    source: Source,
    dtype: DType,
    shape: Shape,
    /// Dim `i` of this tensor is dim `order[i]` of the stored one.
    order: Vec<usize>,
}

#[derive(Clone, Debug)]
enum Source {
    /// A graph input, or the output of a node.
    Computed(Rc<str>),
    /// A variable or a constant, which is stored in the order that its readers need.
    Constant(Rc<str>, HostTensor),
}

impl Value {
    fn new(source: Source, dtype: DType, shape: Shape) -> Value {
        let order = (0..shape.rank()).collect();
        Value { source, dtype, shape, order }
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the elements of a variable or a constant.
    pub fn constant(&self) -> Option<Result<HostTensor>> {
        match &self.source {
            Source::Computed(_) => None,
            Source::Constant(_, tensor) => Some(permuted(tensor, &self.order)),
        }
    }

    /// Returns the element of a constant vector of one integer.
    fn one_int(&self) -> Option<i64> {
        match &self.source {
            Source::Constant(_, tensor) => tensor.as_slice::<i64>().ok()?.first().copied(),
            Source::Computed(_) => None,
        }
    }

    fn is_in_order(&self) -> bool {
        self.order.is_sorted()
    }

    /// Returns the axis of the stored tensor that is `axis` of this one.
    fn stored_axis(&self, axis: usize) -> usize {
        self.order[axis]
    }

    /// Returns the stored tensor.
    fn stored(&self) -> Value {
        Value::new(self.source.clone(), self.dtype, stored_dims(&self.shape, &self.order))
    }

    /// Returns the tensor whose dim `i` is dim `order[i]` of this one.
    fn reordered(&self, order: &[usize]) -> Value {
        Value {
            source: self.source.clone(),
            dtype: self.dtype,
            shape: order.iter().map(|&i| self.shape[i]).collect::<Vec<Dim>>().into(),
            order: order.iter().map(|&i| self.order[i]).collect(),
        }
    }
}

/// Returns the inverse of a permutation.
fn inverse(order: &[usize]) -> Vec<usize> {
    let mut inverse = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &at)| inverse[at] = i);
    inverse
}

/// Returns the dims of a tensor of this shape as they are stored.
fn stored_dims(shape: &Shape, order: &[usize]) -> Shape {
    inverse(order).into_iter().map(|i| shape[i]).collect::<Vec<Dim>>().into()
}

/// A tensor's source, its order and, for an initializer, its sizes.
type StoredKey = (Rc<str>, Vec<usize>, Vec<usize>);

/// The nodes and tensors written so far.
#[derive(Debug, Default)]
pub(crate) struct GraphWriter {
    pub(crate) nodes: Vec<Node>,
    pub(crate) initializers: Vec<(String, HostTensor)>,
    names: HashSet<String>,
    /// The names of initializers and transposed tensors.
    stored: HashMap<StoredKey, Rc<str>>,
    /// The input of the graph and its axis that have an unknown size.
    symbols: HashMap<Dim, (Value, usize)>,
    /// The graph outputs by the names that their tensors had before.
    outputs: HashMap<Rc<str>, Rc<str>>,
    /// The constants by their elements, so that equal ones are written once.
    constants: HashMap<(DType, Vec<usize>, Vec<u8>), Rc<str>>,
}

impl GraphWriter {
    /// Reserves a name that no other tensor may have. Returns an error if it is taken.
    pub(crate) fn reserve(&mut self, name: &str) -> Result<()> {
        match self.names.insert(name.to_string()) {
            true => Ok(()),
            false => Err(Error::argument(format!("two tensors of the model are named {name:?}"))),
        }
    }

    /// Returns `name`, or a name derived from it if it is taken.
    fn unique(&mut self, name: &str) -> Rc<str> {
        let mut n = 0;
        let mut candidate = name.to_string();
        while !self.names.insert(candidate.clone()) {
            n += 1;
            candidate = format!("{name}_{n}");
        }
        candidate.into()
    }

    /// Adds a graph input, whose name must be reserved.
    pub(crate) fn input(&mut self, name: &str, dtype: DType, shape: &Shape) -> Value {
        let input = Value::new(Source::Computed(name.into()), dtype, shape.clone());
        for (axis, &dim) in shape.iter().enumerate().filter(|(_, d)| d.known().is_none()) {
            self.symbols.entry(dim).or_insert_with(|| (input.clone(), axis));
        }
        input
    }

    /// Adds a variable.
    pub(crate) fn variable(&mut self, name: &str, tensor: HostTensor) -> Value {
        let (dtype, shape) = (tensor.dtype(), Shape::from(tensor.sizes()));
        Value::new(Source::Constant(name.into(), tensor), dtype, shape)
    }

    /// Returns the name of a tensor with the dims of `value` in their own order, and writes its
    /// initializer or transposition if there is none yet.
    fn materialize(&mut self, value: &Value) -> Result<Rc<str>> {
        let (source, sizes) = match &value.source {
            Source::Computed(name) => (self.outputs.get(name).unwrap_or(name).clone(), Vec::new()),
            Source::Constant(name, tensor) => (name.clone(), tensor.sizes().to_vec()),
        };
        if value.is_in_order() && matches!(value.source, Source::Computed(_)) {
            return Ok(source);
        }
        let key = (source.clone(), value.order.clone(), sizes);
        if let Some(name) = self.stored.get(&key) {
            return Ok(name.clone());
        }
        let name = match &value.source {
            Source::Computed(_) => {
                let name = self.unique(&format!("{source}/transposed"));
                let perm = value.order.iter().map(|&i| i as i64).collect();
                self.nodes.push(Node {
                    name: name.to_string(),
                    op_type: "Transpose".into(),
                    inputs: vec![source.to_string()],
                    outputs: vec![name.to_string()],
                    attributes: vec![("perm".into(), Attribute::Ints(perm))],
                    ..Node::default()
                });
                name
            }
            Source::Constant(_, tensor) => {
                let name = self.unique(&source);
                self.initializers.push((name.to_string(), permuted(tensor, &value.order)?));
                name
            }
        };
        self.stored.insert(key, name.clone());
        Ok(name)
    }

    /// Renames a tensor in the nodes from `first` on.
    fn rename(&mut self, first: usize, from: &str, to: &str) {
        for node in &mut self.nodes[first..] {
            for name in node.inputs.iter_mut().chain(&mut node.outputs).filter(|name| **name == from) {
                *name = to.to_string();
            }
        }
    }

    /// Makes `value` a graph output of this name, which must be reserved.
    pub(crate) fn output(&mut self, name: &str, value: &Value) -> Result<()> {
        let tensor = self.materialize(value)?;
        let is_made = self.nodes.iter().any(|node| node.outputs.iter().any(|output| **output == *tensor));
        if is_made && !self.outputs.values().any(|output| *output == tensor) {
            self.rename(0, &tensor, name);
            self.outputs.insert(tensor, name.into());
            return Ok(());
        }
        self.nodes.push(Node {
            name: name.to_string(),
            op_type: "Identity".into(),
            inputs: vec![tensor.to_string()],
            outputs: vec![name.to_string()],
            ..Node::default()
        });
        Ok(())
    }
}

/// What is known about the graph node that is being written.
pub(crate) struct NodeSpec<'a> {
    /// Its name.
    pub(crate) name: &'a str,
    /// Its inputs.
    pub(crate) inputs: Vec<Value>,
    /// Type and shape of its outputs.
    pub(crate) outputs: Vec<(DType, Shape)>,
    /// Whether each output is read.
    pub(crate) used: Vec<bool>,
}

/// The translation of one graph node to ONNX: its inputs, and methods that write ONNX nodes.
///
/// Methods that take an axis or an order of dims mean the dims of the graph, whatever the order in
/// which a tensor is stored.
pub struct ExportCx<'a> {
    writer: &'a mut GraphWriter,
    spec: NodeSpec<'a>,
}

impl<'a> ExportCx<'a> {
    /// Writes a node with `write`, which returns the values of its outputs.
    pub(crate) fn write(
        writer: &'a mut GraphWriter,
        spec: NodeSpec<'a>,
        write: impl FnOnce(&mut ExportCx<'_>) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let first = writer.nodes.len();
        let mut cx = ExportCx { writer, spec };
        let mut outputs = write(&mut cx)?;
        let ExportCx { writer, spec } = cx;
        if outputs.len() != spec.outputs.len() {
            let (found, wanted) = (outputs.len(), spec.outputs.len());
            return Err(Error::argument(format!("`onnx` returned {found} values for {wanted} outputs")));
        }
        // Its own tensors get the names of the graph.
        for i in 0..outputs.len() {
            let Source::Computed(old) = outputs[i].source.clone() else { continue };
            let own = writer.nodes[first..].iter().any(|node| node.outputs.iter().any(|name| **name == *old));
            if !own {
                continue;
            }
            let wanted = if i == 0 { spec.name.to_string() } else { format!("{}:{i}", spec.name) };
            let new = writer.unique(&wanted);
            writer.rename(first, &old, &new);
            for output in &mut outputs {
                if matches!(&output.source, Source::Computed(name) if *name == old) {
                    output.source = Source::Computed(new.clone());
                }
            }
            let moved: Vec<_> = writer.stored.keys().filter(|key| key.0 == old).cloned().collect();
            for key in moved {
                if let Some(name) = writer.stored.remove(&key) {
                    writer.stored.insert((new.clone(), key.1, key.2), name);
                }
            }
        }
        Ok(outputs)
    }

    /// Returns input `i`.
    pub fn input(&self, i: usize) -> Value {
        self.spec.inputs[i].clone()
    }

    /// Returns the number of inputs.
    pub fn input_count(&self) -> usize {
        self.spec.inputs.len()
    }

    /// Returns the element type of output `i`.
    pub fn output_dtype(&self, i: usize) -> DType {
        self.spec.outputs[i].0
    }

    /// Returns the shape of output `i`.
    pub fn output_shape(&self, i: usize) -> &Shape {
        &self.spec.outputs[i].1
    }

    /// Returns whether output `i` is read.
    pub fn is_used(&self, i: usize) -> bool {
        self.spec.used[i]
    }

    /// Returns a constant.
    pub fn constant(&mut self, tensor: HostTensor) -> Value {
        let key = (tensor.dtype(), tensor.sizes().to_vec(), tensor.as_bytes().to_vec());
        let name = match self.writer.constants.get(&key) {
            Some(name) => name.clone(),
            None => {
                let name: Rc<str> = format!("constant:{}", self.writer.constants.len()).into();
                self.writer.constants.insert(key, name.clone());
                name
            }
        };
        let (dtype, shape) = (tensor.dtype(), Shape::from(tensor.sizes()));
        Value::new(Source::Constant(name, tensor), dtype, shape)
    }

    /// Returns a constant vector of integers.
    pub fn ints(&mut self, values: &[i64]) -> Result<Value> {
        HostTensor::new([values.len()], values.to_vec()).map(|tensor| self.constant(tensor))
    }

    /// Returns a constant scalar.
    pub fn scalar(&mut self, value: f64, dtype: DType) -> Result<Value> {
        HostTensor::from_f64(dtype, [], &[value]).map(|tensor| self.constant(tensor))
    }

    /// Writes an ONNX node, and returns its outputs, which have these types and shapes. The inputs
    /// are brought into the order of their dims.
    pub fn nodes(
        &mut self,
        op_type: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attr<'_>)],
        outputs: &[(DType, Shape)],
    ) -> Result<Vec<Value>> {
        let mut names = Vec::new();
        for input in inputs {
            names.push(self.writer.materialize(input)?.to_string());
        }
        let base = format!("{}/{op_type}", self.spec.name);
        let values: Vec<Value> = outputs
            .iter()
            .map(|(dtype, shape)| {
                Value::new(Source::Computed(self.writer.unique(&base)), *dtype, shape.clone())
            })
            .collect();
        let name_of = |value: &Value| match &value.source {
            Source::Computed(name) | Source::Constant(name, _) => name.to_string(),
        };
        let outputs: Vec<String> = values.iter().map(name_of).collect();
        self.writer.nodes.push(Node {
            name: outputs.first().cloned().unwrap_or_default(),
            op_type: op_type.into(),
            domain: String::new(),
            inputs: names,
            outputs,
            attributes: attributes.iter().map(|(name, value)| (name.to_string(), value.owned())).collect(),
        });
        Ok(values)
    }

    /// Writes an ONNX node with one output of this type and shape.
    pub fn node(
        &mut self,
        op_type: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attr<'_>)],
        dtype: DType,
        shape: impl Into<Shape>,
    ) -> Result<Value> {
        Ok(self.nodes(op_type, inputs, attributes, &[(dtype, shape.into())])?.swap_remove(0))
    }

    /// Returns a tensor whose dim `i` is dim `order[i]` of `x`. No node is written until one needs
    /// the dims in this order.
    pub fn transpose(&self, x: &Value, order: &[usize]) -> Value {
        x.reordered(order)
    }

    /// Applies a function elementwise, with broadcasting. The result is stored like the first input
    /// that is not stored in the order of its dims.
    pub fn elementwise(
        &mut self,
        op_type: &str,
        inputs: &[&Value],
        attributes: &[(&str, Attr<'_>)],
        dtype: DType,
    ) -> Result<Value> {
        let mut shape = Shape::scalar();
        for input in inputs {
            shape = shape.broadcast(&input.shape)?;
        }
        let rank = shape.rank();
        let moved = |v: &&&Value| {
            v.shape.rank() == rank && !v.is_in_order() && matches!(v.source, Source::Computed(_))
        };
        let Some(order) = inputs.iter().find(moved).map(|v| v.order.clone()) else {
            return self.node(op_type, inputs, attributes, dtype, shape);
        };
        let mut stored = Vec::new();
        for input in inputs {
            stored.push(self.stored_like(input, &order)?);
        }
        let stored: Vec<&Value> = stored.iter().collect();
        let y = self.node(op_type, &stored, attributes, dtype, stored_dims(&shape, &order))?;
        Ok(y.reordered(&order))
    }

    /// Returns `x` with dims of size 1 in front, up to the rank of `order`, as it is stored in this
    /// order.
    fn stored_like(&mut self, x: &Value, order: &[usize]) -> Result<Value> {
        let (rank, own) = (order.len(), x.shape.rank());
        let full = match (own, &x.source) {
            (0, _) => return Ok(x.clone()),
            _ if own == rank => x.clone(),
            (1, _) => {
                // The vector's dim is the last one: every other one has size 1.
                let at = order[rank - 1];
                let axes: Vec<usize> = (0..rank).filter(|&i| i != at).collect();
                return self.unsqueeze(x, &axes);
            }
            _ => self.unsqueeze(x, &(0..rank - own).collect::<Vec<_>>())?,
        };
        Ok(full.reordered(&inverse(order)))
    }

    /// Returns the tensor as it is stored, for an operation that treats all dims alike or gets its
    /// axes from [`ExportCx::stored_axis`]. [`ExportCx::restored`] returns from there.
    pub fn stored(&self, x: &Value) -> Value {
        x.stored()
    }

    /// Returns the axis of the stored tensor that is `axis` of `x`.
    pub fn stored_axis(&self, x: &Value, axis: usize) -> i64 {
        x.stored_axis(axis) as i64
    }

    /// Returns the tensor with the order of dims of `x` that is stored as `y`.
    pub fn restored(&self, y: &Value, x: &Value) -> Value {
        y.reordered(&x.order)
    }

    /// Returns values for each axis, given in the order of the dims of `x`, in the order in which
    /// it is stored.
    pub fn per_stored_axis<T: Copy>(&self, x: &Value, values: &[T]) -> Vec<T> {
        inverse(&x.order).into_iter().map(|i| values[i]).collect()
    }

    /// Reduces these axes with an ONNX operation such as `ReduceSum`.
    pub fn reduce(&mut self, op_type: &str, x: &Value, axes: &[usize], keep: bool) -> Result<Value> {
        let stored = x.stored();
        let mut over: Vec<i64> = axes.iter().map(|&a| x.stored_axis(a) as i64).collect();
        over.sort_unstable();
        let (dims, order) = reduced(&stored, x, axes, keep);
        if axes.is_empty() {
            return Ok(x.clone());
        }
        let over = self.ints(&over)?;
        let keep = Attr::Int(i64::from(keep));
        let y = self.node(op_type, &[&stored, &over], &[("keepdims", keep)], x.dtype, dims)?;
        Ok(y.reordered(&order))
    }

    /// Returns the index of an extreme along an axis, with `ArgMax` or `ArgMin`.
    pub fn arg_reduce(&mut self, op_type: &str, x: &Value, axis: usize, keep: bool) -> Result<Value> {
        let stored = x.stored();
        let (dims, order) = reduced(&stored, x, &[axis], keep);
        let attributes =
            [("axis", Attr::Int(x.stored_axis(axis) as i64)), ("keepdims", Attr::Int(i64::from(keep)))];
        let y = self.node(op_type, &[&stored], &attributes, DType::I64, dims)?;
        Ok(y.reordered(&order))
    }

    /// Concatenates tensors along an axis.
    pub fn concat(&mut self, parts: &[Value], axis: usize, shape: Shape) -> Result<Value> {
        let order = parts.iter().find(|p| !p.is_in_order()).unwrap_or(&parts[0]).order.clone();
        let mut stored = Vec::new();
        for part in parts {
            stored.push(self.stored_like(part, &order)?);
        }
        let attributes = [("axis", Attr::Int(order[axis] as i64))];
        let stored: Vec<&Value> = stored.iter().collect();
        let y = self.node("Concat", &stored, &attributes, parts[0].dtype, stored_dims(&shape, &order))?;
        Ok(y.reordered(&order))
    }

    /// Converts elements to another type.
    pub fn cast(&mut self, x: &Value, dtype: DType) -> Result<Value> {
        match x.dtype == dtype {
            true => Ok(x.clone()),
            false => self.elementwise("Cast", &[x], &[("to", Attr::Int(code_of(dtype)))], dtype),
        }
    }

    /// Inserts dims of size 1 at these positions of the result.
    pub fn unsqueeze(&mut self, x: &Value, axes: &[usize]) -> Result<Value> {
        let mut dims = x.shape.to_vec();
        axes.iter().for_each(|&axis| dims.insert(axis, Dim::Known(1)));
        if let Some(constant) = x.constant() {
            let constant = constant?;
            let mut tensor =
                HostTensor::zeros(constant.dtype(), Shape::from(dims.clone()).known().unwrap_or_default())?;
            tensor.copy_from_bytes(constant.as_bytes())?;
            let (Source::Constant(name, _) | Source::Computed(name)) = &x.source;
            return Ok(Value::new(Source::Constant(name.clone(), tensor), x.dtype, dims.into()));
        }
        let at = self.ints(&axes.iter().map(|&a| a as i64).collect::<Vec<_>>())?;
        self.node("Unsqueeze", &[x, &at], &[], x.dtype, dims)
    }

    /// Returns the shape of a tensor as a vector of integers.
    pub fn shape_of(&mut self, x: &Value) -> Result<Value> {
        self.dims(x.shape(), std::slice::from_ref(x))
    }

    /// Returns the size of an axis as a vector of one integer. It is read from an input of the graph
    /// if one has the same size, so that nothing is computed only for its shape.
    pub fn size_of(&mut self, x: &Value, axis: usize) -> Result<Value> {
        let dim = x.shape[axis];
        let (stored, at) = match (dim, self.writer.symbols.get(&dim)) {
            (Dim::Known(n), _) => return self.ints(&[n as i64]),
            (_, Some((input, at))) => (input.clone(), *at),
            _ => (x.stored(), x.stored_axis(axis)),
        };
        let attributes = [("start", Attr::Int(at as i64)), ("end", Attr::Int(at as i64 + 1))];
        self.node("Shape", &[&stored], &attributes, DType::I64, [1])
    }

    /// Returns dims as a vector of integers. Each unknown one must be a dim of a tensor in `like`, or
    /// of an input of the graph.
    pub fn dims(&mut self, dims: &Shape, like: &[Value]) -> Result<Value> {
        if let Some(sizes) = dims.known() {
            return self.ints(&sizes.iter().map(|&n| n as i64).collect::<Vec<_>>());
        }
        let parts = dims.iter().map(|&dim| self.dim(dim, like)).collect::<Result<Option<Vec<Value>>>>()?;
        match parts.as_deref() {
            Some([one]) => Ok(one.clone()),
            Some(parts) => self.concat(parts, 0, [parts.len()].into()),
            None => {
                let why = format!("the sizes of {dims} cannot be computed from other tensors' sizes");
                Err(Error::new(ErrorKind::Unsupported, why))
            }
        }
    }

    /// Returns a dim as a vector of one integer, or `None` if it is unknown and none of the tensors'.
    fn dim(&mut self, dim: Dim, like: &[Value]) -> Result<Option<Value>> {
        let inputs = self.writer.symbols.get(&dim).map(|(input, _)| input);
        let place = |v: &Value| v.shape.iter().position(|&d| d == dim).map(|axis| (v.clone(), axis));
        match (dim, inputs.into_iter().chain(like).find_map(place)) {
            (Dim::Known(n), _) => self.ints(&[n as i64]).map(Some),
            (_, Some((x, axis))) => self.size_of(&x, axis).map(Some),
            (_, None) => Ok(None),
        }
    }

    /// Reshapes a tensor. Each unknown dim of `dims` must be one of `x`, of a tensor in `like` or of
    /// an input of the graph, except one, which is inferred.
    pub fn reshape(&mut self, x: &Value, dims: &Shape, like: &[&Value]) -> Result<Value> {
        // A size of 0 would stand for the size of the input.
        let is_empty = dims.contains(&Dim::Known(0));
        let like: Vec<Value> = [x].into_iter().chain(like.iter().copied()).cloned().collect();
        let unknown = dims.iter().filter(|d| d.known().is_none()).count();
        let (mut parts, mut inferred) = (Vec::new(), is_empty);
        for &dim in dims.iter() {
            let size = match dim {
                Dim::Unknown(_) if unknown == 1 && !is_empty => None,
                _ => self.dim(dim, &like)?,
            };
            parts.push(match size {
                Some(size) => size,
                None if !std::mem::replace(&mut inferred, true) => self.ints(&[-1])?,
                None => {
                    let why = format!("the sizes of {dims} cannot be computed from {}", x.shape);
                    return Err(Error::new(ErrorKind::Unsupported, why));
                }
            });
        }
        let sizes: Option<Vec<i64>> = parts.iter().map(Value::one_int).collect();
        let target = match sizes {
            Some(sizes) => self.ints(&sizes)?,
            None => self.concat(&parts, 0, [parts.len()].into())?,
        };
        let attributes: &[_] = if is_empty { &[("allowzero", Attr::Int(1))] } else { &[] };
        self.node("Reshape", &[x, &target], attributes, x.dtype, dims.clone())
    }
}

/// Returns the dims of a stored tensor after a reduction, and the order that the result has.
fn reduced(stored: &Value, x: &Value, axes: &[usize], keep: bool) -> (Shape, Vec<usize>) {
    let over: Vec<usize> = axes.iter().map(|&a| x.stored_axis(a)).collect();
    let dims = stored.shape.iter().enumerate().filter_map(|(i, &d)| match over.contains(&i) {
        true => keep.then_some(Dim::Known(1)),
        false => Some(d),
    });
    let dims = dims.collect::<Vec<Dim>>().into();
    if keep {
        return (dims, x.order.clone());
    }
    let left: Vec<usize> = x.order.iter().copied().filter(|at| !over.contains(at)).collect();
    let order = left.iter().map(|&at| left.iter().filter(|&&other| other < at).count()).collect();
    (dims, order)
}

/// The value of an attribute of an ONNX node.
#[derive(Clone, Copy, Debug)]
pub enum Attr<'a> {
    /// An integer.
    Int(i64),
    /// A number.
    Float(f32),
    /// A string.
    Text(&'a str),
    /// Several integers.
    Ints(&'a [i64]),
}

impl Attr<'_> {
    fn owned(&self) -> Attribute {
        match *self {
            Attr::Int(v) => Attribute::Int(v),
            Attr::Float(v) => Attribute::Float(v),
            Attr::Text(v) => Attribute::Text(v.to_string()),
            Attr::Ints(v) => Attribute::Ints(v.to_vec()),
        }
    }
}
