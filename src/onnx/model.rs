//! An ONNX model in memory.

use std::collections::BTreeMap;
use tensorpack_tensor::{DType, HostTensor};

/// A model: a graph, the versions of the operator sets it uses, and metadata.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    /// The operator sets by domain; the standard one has an empty name.
    pub(crate) opsets: BTreeMap<String, i64>,
    /// The producer's name and version.
    pub(crate) producer: [String; 2],
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) graph: OnnxGraph,
    /// The number of functions, which are operators that the model defines itself.
    pub(crate) functions: usize,
}

/// A graph, or the body of a control-flow node.
#[derive(Clone, Debug, Default)]
pub(crate) struct OnnxGraph {
    pub(crate) name: String,
    /// The nodes, in topological order.
    pub(crate) nodes: Vec<Node>,
    /// The tensors that are part of the model.
    pub(crate) initializers: Vec<(String, HostTensor)>,
    pub(crate) inputs: Vec<ValueInfo>,
    pub(crate) outputs: Vec<ValueInfo>,
}

/// An operation. An input or output with an empty name is omitted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) op_type: String,
    pub(crate) domain: String,
    pub(crate) inputs: Vec<String>,
    pub(crate) outputs: Vec<String>,
    pub(crate) attributes: Vec<(String, Attribute)>,
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub(crate) enum Attribute {
    Int(i64),
    Float(f32),
    Text(String),
    Tensor(HostTensor),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Texts(Vec<String>),
    Graph(Box<OnnxGraph>),
    /// A kind of attribute that no supported operation has.
    Other,
}

/// The name, type and dims of a graph's input or output.
#[derive(Clone, Debug)]
pub(crate) struct ValueInfo {
    pub(crate) name: String,
    /// The element type; `None` if it is missing, or no tensor.
    pub(crate) dtype: Option<DType>,
    /// The dims; `None` if the rank is unknown.
    pub(crate) dims: Option<Vec<Dimension>>,
}

/// One dim of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dimension {
    Size(usize),
    /// A name. Dims of the same name have the same size.
    Named(String),
    Unknown,
}
