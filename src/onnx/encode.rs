//! Encoding of a model as protocol buffers. The numbers are those of `onnx.proto`.

use super::data_type::code_of;
use super::{Attribute, Dimension, Model, Node, OnnxGraph, ValueInfo};
use std::borrow::Cow;
use tensorpack_protobuf::Message;
use tensorpack_tensor::{HostTensor, Result};

/// The version of the format, which `onnx.proto` calls the IR version.
const IR_VERSION: i64 = 10;
/// Tensors beside the model begin at multiples of this, so that they can be mapped into memory.
const ALIGNMENT: usize = 4096;
/// Smaller tensors are always inside the model, so that shape inference can read them.
const SMALL: usize = 1024;

/// The bytes of a model, and the parts of the file of external tensors.
pub(crate) struct Encoded<'a> {
    pub(crate) model: Vec<u8>,
    pub(crate) external: Vec<Cow<'a, [u8]>>,
}

/// Encodes a model. With `external`, the name of a file in the folder of the model, the elements of
/// large tensors are put there.
pub(crate) fn encode<'a>(model: &'a Model, external: Option<&str>) -> Result<Encoded<'a>> {
    let mut beside = external.map(|file| External { file, parts: Vec::new(), length: 0 });
    let graph = graph(&model.graph, &mut beside)?;
    let [producer, version] = &model.producer;
    let mut message = Message::new().int64(1, IR_VERSION).string(2, producer).string(3, version);
    message = message.message(7, &graph);
    for (domain, version) in &model.opsets {
        message = message.message(8, &Message::new().string(1, domain).int64(2, *version));
    }
    for (key, value) in &model.metadata {
        message = message.message(14, &pair(key, value));
    }
    Ok(Encoded { model: message.into_bytes(), external: beside.map_or_else(Vec::new, |e| e.parts) })
}

/// The file of external tensors.
struct External<'a, 'f> {
    file: &'f str,
    parts: Vec<Cow<'a, [u8]>>,
    length: usize,
}

fn pair(key: &str, value: &str) -> Message {
    Message::new().string(1, key).string(2, value)
}

fn graph<'a>(graph: &'a OnnxGraph, external: &mut Option<External<'a, '_>>) -> Result<Message> {
    let mut message = Message::new();
    for written in &graph.nodes {
        message = message.message(1, &node(written)?);
    }
    message = message.string(2, &graph.name);
    for (name, value) in &graph.initializers {
        message = message.message(5, &tensor(Some(name), value, external));
    }
    for input in &graph.inputs {
        message = message.message(11, &value_info(input));
    }
    for output in &graph.outputs {
        message = message.message(12, &value_info(output));
    }
    Ok(message)
}

fn node(node: &Node) -> Result<Message> {
    let mut message = Message::new();
    for input in &node.inputs {
        message = message.string(1, input);
    }
    for output in &node.outputs {
        message = message.string(2, output);
    }
    message = message.string(3, &node.name).string(4, &node.op_type);
    for (name, value) in &node.attributes {
        message = message.message(5, &attribute(name, value)?);
    }
    if !node.domain.is_empty() {
        message = message.string(7, &node.domain);
    }
    Ok(message)
}

fn attribute(name: &str, value: &Attribute) -> Result<Message> {
    let message = Message::new().string(1, name);
    let (message, kind) = match value {
        Attribute::Float(v) => (message.float(2, *v), 1),
        Attribute::Int(v) => (message.int64(3, *v), 2),
        Attribute::Text(v) => (message.string(4, v), 3),
        Attribute::Tensor(v) => (message.message(5, &tensor(None, v, &mut None)), 4),
        Attribute::Graph(v) => (message.message(6, &graph(v, &mut None)?), 5),
        Attribute::Floats(v) => (message.packed_float(7, v.iter().copied()), 6),
        Attribute::Ints(v) => (message.packed_int64(8, v.iter().copied()), 7),
        Attribute::Texts(v) => (v.iter().fold(message, |m, text| m.string(9, text)), 8),
        Attribute::Other => (message, 0),
    };
    Ok(message.int64(20, kind))
}

fn tensor<'a>(name: Option<&str>, value: &'a HostTensor, external: &mut Option<External<'a, '_>>) -> Message {
    let sizes = value.sizes().iter().map(|&n| n as i64);
    let mut message = Message::new().packed_int64(1, sizes).int64(2, code_of(value.dtype()));
    if let Some(name) = name {
        message = message.string(8, name);
    }
    let bytes = little_endian(value);
    match external {
        Some(file) if bytes.len() >= SMALL => {
            let padding = file.length.next_multiple_of(ALIGNMENT) - file.length;
            file.parts.extend((padding > 0).then(|| Cow::Owned(vec![0; padding])));
            let (offset, length) = (file.length + padding, bytes.len());
            file.parts.push(bytes);
            file.length = offset + length;
            let entries =
                [("location", file.file), ("offset", &offset.to_string()), ("length", &length.to_string())];
            message = entries.iter().fold(message, |m, (key, value)| m.message(13, &pair(key, value)));
            message.int64(14, 1)
        }
        _ => message.bytes(9, bytes),
    }
}

/// Returns the elements in the order of bytes that files have.
fn little_endian(value: &HostTensor) -> Cow<'_, [u8]> {
    let bytes = value.as_bytes();
    if cfg!(target_endian = "little") {
        return bytes.into();
    }
    let swap = |element: &[u8]| element.iter().rev().copied().collect::<Vec<u8>>();
    bytes.chunks(value.dtype().size()).flat_map(swap).collect()
}

fn value_info(value: &ValueInfo) -> Message {
    let mut tensor = Message::new();
    if let Some(dtype) = value.dtype {
        tensor = tensor.int64(1, code_of(dtype));
    }
    if let Some(dims) = &value.dims {
        let dim = |dim: &Dimension| match dim {
            Dimension::Size(n) => Message::new().int64(1, *n as i64),
            Dimension::Named(name) => Message::new().string(2, name),
            Dimension::Unknown => Message::new(),
        };
        tensor = tensor.message(2, &dims.iter().fold(Message::new(), |m, d| m.message(1, &dim(d))));
    }
    Message::new().string(1, &value.name).message(2, &Message::new().message(1, &tensor))
}
