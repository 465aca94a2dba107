//! Reading of models. A file may claim anything: sizes are checked against the bytes that exist
//! before memory is allocated, and nesting is bounded.

use super::data_type::{code, dtype_of};
use super::{Attribute, Dimension, Model, Node, OnnxGraph, ValueInfo};
use half::f16;
use std::borrow::Cow;
use tensorpack_protobuf::{Fields, Malformed};
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result, element_count};

/// The maximum nesting of the bodies of control flow.
const MAX_DEPTH: usize = 16;
/// The maximum number of dims of a tensor or value.
const MAX_RANK: usize = 64;

/// Returns `length` bytes at `offset` of a file of external tensors; all bytes up to the end if the
/// length is `None`.
pub(super) type TensorSource<'s> = dyn Fn(&str, u64, Option<u64>) -> Result<Vec<u8>> + 's;

/// Parses a model. `external` reads tensors that are stored beside it.
pub(crate) fn parse(bytes: &[u8], external: &TensorSource<'_>) -> Result<Model> {
    let mut model = Model::default();
    let (mut is_model, parser) = (false, Parser { external });
    for field in Fields::new(bytes) {
        match field.map_err(malformed)? {
            (2, field) => model.producer[0] = text(field.string())?,
            (3, field) => model.producer[1] = text(field.string())?,
            (7, field) => {
                is_model = true;
                model.graph = parser.graph(field.bytes().map_err(malformed)?, 0)?;
            }
            (8, field) => {
                let (mut domain, mut version) = (String::new(), 0);
                for field in Fields::new(field.bytes().map_err(malformed)?) {
                    match field.map_err(malformed)? {
                        (1, field) => domain = text(field.string())?,
                        (2, field) => version = field.int64().map_err(malformed)?,
                        _ => {}
                    }
                }
                // The standard operator set has two names.
                let domain = if domain == "ai.onnx" { String::new() } else { domain };
                model.opsets.insert(domain, version);
            }
            (14, field) => {
                let (key, value) = pair(field.bytes().map_err(malformed)?)?;
                model.metadata.insert(key, value);
            }
            (25, _) => model.functions += 1,
            _ => {}
        }
    }
    match is_model {
        true => Ok(model),
        false => Err(Error::new(ErrorKind::Io, "the file is not an ONNX model: it contains no graph")),
    }
}

fn malformed(e: Malformed) -> Error {
    Error::new(ErrorKind::Io, format!("the file is not an ONNX model: {e}"))
}

fn corrupted(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Io, why)
}

fn text(text: std::result::Result<&str, Malformed>) -> Result<String> {
    text.map(str::to_string).map_err(malformed)
}

fn pair(bytes: &[u8]) -> Result<(String, String)> {
    let (mut key, mut value) = (String::new(), String::new());
    for field in Fields::new(bytes) {
        match field.map_err(malformed)? {
            (1, field) => key = text(field.string())?,
            (2, field) => value = text(field.string())?,
            _ => {}
        }
    }
    Ok((key, value))
}

struct Parser<'s> {
    external: &'s TensorSource<'s>,
}

impl Parser<'_> {
    fn graph(&self, bytes: &[u8], depth: usize) -> Result<OnnxGraph> {
        if depth > MAX_DEPTH {
            return Err(corrupted(format!("graphs are nested more than {MAX_DEPTH} deep")));
        }
        let mut graph = OnnxGraph::default();
        for field in Fields::new(bytes) {
            let (number, field) = field.map_err(malformed)?;
            match number {
                1 => graph.nodes.push(self.node(field.bytes().map_err(malformed)?, depth)?),
                2 => graph.name = text(field.string())?,
                5 => graph.initializers.push(self.tensor(field.bytes().map_err(malformed)?)?),
                11 => graph.inputs.push(value_info(field.bytes().map_err(malformed)?)?),
                12 => graph.outputs.push(value_info(field.bytes().map_err(malformed)?)?),
                15 => return Err(corrupted("sparse tensors are not supported")),
                _ => {}
            }
        }
        Ok(graph)
    }

    fn node(&self, bytes: &[u8], depth: usize) -> Result<Node> {
        let mut node = Node::default();
        for field in Fields::new(bytes) {
            let (number, field) = field.map_err(malformed)?;
            match number {
                1 => node.inputs.push(text(field.string())?),
                2 => node.outputs.push(text(field.string())?),
                3 => node.name = text(field.string())?,
                4 => node.op_type = text(field.string())?,
                5 => node.attributes.push(self.attribute(field.bytes().map_err(malformed)?, depth)?),
                7 => node.domain = text(field.string())?,
                _ => {}
            }
        }
        if node.domain == "ai.onnx" {
            node.domain.clear();
        }
        Ok(node)
    }

    fn attribute(&self, bytes: &[u8], depth: usize) -> Result<(String, Attribute)> {
        let (mut name, mut kind) = (String::new(), 0);
        let (mut int, mut float, mut string) = (0, 0.0, Cow::Borrowed(""));
        let (mut tensor, mut graph) = (None, None);
        let (mut ints, mut floats, mut strings) = (Vec::new(), Vec::new(), Vec::new());
        for field in Fields::new(bytes) {
            let (number, field) = field.map_err(malformed)?;
            match number {
                1 => name = text(field.string())?,
                2 => float = field.float().map_err(malformed)?,
                3 => int = field.int64().map_err(malformed)?,
                // A string is bytes of any kind; those that are read here are ASCII.
                4 => string = String::from_utf8_lossy(field.bytes().map_err(malformed)?),
                5 => tensor = Some(field.bytes().map_err(malformed)?),
                6 => graph = Some(field.bytes().map_err(malformed)?),
                7 => field.extend_float(&mut floats).map_err(malformed)?,
                8 => field.extend_int64(&mut ints).map_err(malformed)?,
                9 => {
                    let bytes = field.bytes().map_err(malformed)?;
                    strings.push(String::from_utf8_lossy(bytes).into_owned());
                }
                20 => kind = field.int64().map_err(malformed)?,
                _ => {}
            }
        }
        let value = match (kind, tensor, graph) {
            (1, ..) => Attribute::Float(float),
            (2, ..) => Attribute::Int(int),
            (3, ..) => Attribute::Text(string.into_owned()),
            (4, Some(tensor), _) => Attribute::Tensor(self.tensor(tensor)?.1),
            (5, _, Some(graph)) => Attribute::Graph(Box::new(self.graph(graph, depth + 1)?)),
            (6, ..) => Attribute::Floats(floats),
            (7, ..) => Attribute::Ints(ints),
            (8, ..) => Attribute::Texts(strings),
            _ => Attribute::Other,
        };
        Ok((name, value))
    }

    /// Parses a tensor, and returns its name with it.
    fn tensor(&self, bytes: &[u8]) -> Result<(String, HostTensor)> {
        let (mut name, mut sizes, mut kind) = (String::new(), Vec::new(), 0);
        let (mut raw, mut ints, mut floats, mut doubles) = (None, Vec::new(), Vec::new(), Vec::new());
        let (mut entries, mut is_external) = (Vec::new(), false);
        for field in Fields::new(bytes) {
            let (number, field) = field.map_err(malformed)?;
            match number {
                1 => field.extend_int64(&mut sizes).map_err(malformed)?,
                2 => kind = field.int64().map_err(malformed)?,
                4 => field.extend_float(&mut floats).map_err(malformed)?,
                // 32-bit and 64-bit integers are encoded in the same way.
                5 | 7 | 11 => field.extend_int64(&mut ints).map_err(malformed)?,
                8 => name = text(field.string())?,
                9 => raw = Some(Cow::Borrowed(field.bytes().map_err(malformed)?)),
                10 => field.extend_double(&mut doubles).map_err(malformed)?,
                13 => entries.push(pair(field.bytes().map_err(malformed)?)?),
                14 => is_external = field.int64().map_err(malformed)? == 1,
                _ => {}
            }
        }
        let named = |e: Error| e.within(format!("tensor {name:?}"));
        let sizes = sizes.iter().map(|&n| usize::try_from(n).ok()).collect::<Option<Vec<usize>>>();
        let Some(sizes) = sizes.filter(|sizes| sizes.len() <= MAX_RANK) else {
            return Err(named(corrupted("its dims are not sizes")));
        };
        let count = element_count(&sizes).map_err(named)?;
        if is_external {
            raw = Some(self.external_bytes(&entries).map_err(named)?.into());
        }
        let value = match raw {
            Some(raw) => from_raw(kind, &raw, count),
            None => from_values(kind, &ints, &floats, &doubles, count),
        };
        let value = value.and_then(|elements| elements.tensor(sizes)).map_err(named)?;
        Ok((name, value))
    }

    /// Reads the elements of a tensor that is stored beside the model.
    fn external_bytes(&self, entries: &[(String, String)]) -> Result<Vec<u8>> {
        let entry = |key: &str| entries.iter().find(|(k, _)| k == key).map(|(_, value)| value.as_str());
        let number = |key: &str| {
            entry(key)
                .map(|n| n.parse::<u64>())
                .transpose()
                .map_err(|_| corrupted(format!("its {key} is no number")))
        };
        let location = entry("location").ok_or_else(|| corrupted("its file is not named"))?;
        (self.external)(location, number("offset")?.unwrap_or(0), number("length")?)
    }
}

/// The elements of a tensor.
enum Elements {
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bf16(Vec<half::bf16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U8(Vec<u8>),
    Bool(Vec<bool>),
}

impl Elements {
    fn tensor(self, sizes: Vec<usize>) -> Result<HostTensor> {
        match self {
            Elements::F32(v) => HostTensor::new(sizes, v),
            Elements::F64(v) => HostTensor::new(sizes, v),
            Elements::Bf16(v) => HostTensor::new(sizes, v),
            Elements::I32(v) => HostTensor::new(sizes, v),
            Elements::I64(v) => HostTensor::new(sizes, v),
            Elements::U8(v) => HostTensor::new(sizes, v),
            Elements::Bool(v) => HostTensor::new(sizes, v),
        }
    }
}

fn wrong_length(found: usize, wanted: usize) -> Error {
    corrupted(format!("there are {found} bytes or elements, but its dims need {wanted}"))
}

/// Converts the little-endian bytes of `count` elements of an ONNX type.
fn from_raw(kind: i64, raw: &[u8], count: usize) -> Result<Elements> {
    fn each<const N: usize, T>(raw: &[u8], count: usize, convert: impl Fn([u8; N]) -> T) -> Result<Vec<T>> {
        let (chunks, rest) = raw.as_chunks::<N>();
        match chunks.len() == count && rest.is_empty() {
            true => Ok(chunks.iter().map(|&c| convert(c)).collect()),
            false => Err(wrong_length(raw.len(), count.saturating_mul(N))),
        }
    }
    Ok(match kind {
        code::FLOAT => Elements::F32(each(raw, count, f32::from_le_bytes)?),
        code::FLOAT16 => Elements::F32(each(raw, count, |b| f16::from_le_bytes(b).to_f32())?),
        code::BFLOAT16 => Elements::Bf16(each(raw, count, half::bf16::from_le_bytes)?),
        code::DOUBLE => Elements::F64(each(raw, count, f64::from_le_bytes)?),
        code::INT8 => Elements::I32(each(raw, count, |b| i32::from(i8::from_le_bytes(b)))?),
        code::INT16 => Elements::I32(each(raw, count, |b| i32::from(i16::from_le_bytes(b)))?),
        code::UINT16 => Elements::I32(each(raw, count, |b| i32::from(u16::from_le_bytes(b)))?),
        code::INT32 => Elements::I32(each(raw, count, i32::from_le_bytes)?),
        code::UINT32 => Elements::I64(each(raw, count, |b| i64::from(u32::from_le_bytes(b)))?),
        code::INT64 => Elements::I64(each(raw, count, i64::from_le_bytes)?),
        code::UINT8 => Elements::U8(each(raw, count, u8::from_le_bytes)?),
        code::BOOL => Elements::Bool(each(raw, count, |b: [u8; 1]| b[0] != 0)?),
        _ => return Err(dtype_of(kind).err().unwrap_or_else(|| wrong_length(raw.len(), count))),
    })
}

/// Converts `count` elements that are stored in one of the typed fields.
fn from_values(kind: i64, ints: &[i64], floats: &[f32], doubles: &[f64], count: usize) -> Result<Elements> {
    let found = match kind {
        code::FLOAT => floats.len(),
        code::DOUBLE => doubles.len(),
        _ => ints.len(),
    };
    if found != count {
        return Err(wrong_length(found, count));
    }
    // 16-bit floats are stored as the bits of integers.
    Ok(match kind {
        code::FLOAT => Elements::F32(floats.to_vec()),
        code::DOUBLE => Elements::F64(doubles.to_vec()),
        code::FLOAT16 => Elements::F32(ints.iter().map(|&v| f16::from_bits(v as u16).to_f32()).collect()),
        code::BFLOAT16 => Elements::Bf16(ints.iter().map(|&v| half::bf16::from_bits(v as u16)).collect()),
        code::BOOL => Elements::Bool(ints.iter().map(|&v| v != 0).collect()),
        code::UINT8 => Elements::U8(ints.iter().map(|&v| v as u8).collect()),
        _ if dtype_of(kind)? == DType::I64 => Elements::I64(ints.to_vec()),
        _ => Elements::I32(ints.iter().map(|&v| v as i32).collect()),
    })
}

fn value_info(bytes: &[u8]) -> Result<ValueInfo> {
    let mut value = ValueInfo { name: String::new(), dtype: None, dims: None };
    for field in Fields::new(bytes) {
        let (number, field) = field.map_err(malformed)?;
        match number {
            1 => value.name = text(field.string())?,
            2 => {
                for field in Fields::new(field.bytes().map_err(malformed)?) {
                    let (number, field) = field.map_err(malformed)?;
                    if number == 1 {
                        tensor_type(field.bytes().map_err(malformed)?, &mut value)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(value)
}

fn tensor_type(bytes: &[u8], value: &mut ValueInfo) -> Result<()> {
    for field in Fields::new(bytes) {
        let (number, field) = field.map_err(malformed)?;
        match number {
            1 => {
                let dtype = dtype_of(field.int64().map_err(malformed)?);
                value.dtype = Some(dtype.map_err(|e| e.within(&value.name))?);
            }
            2 => {
                let mut dims = Vec::new();
                for field in Fields::new(field.bytes().map_err(malformed)?) {
                    let (number, field) = field.map_err(malformed)?;
                    if number == 1 {
                        dims.push(dimension(field.bytes().map_err(malformed)?)?);
                    }
                    if dims.len() > MAX_RANK {
                        return Err(corrupted(format!("{:?} has more than {MAX_RANK} dims", value.name)));
                    }
                }
                value.dims = Some(dims);
            }
            _ => {}
        }
    }
    Ok(())
}

fn dimension(bytes: &[u8]) -> Result<Dimension> {
    let mut dim = Dimension::Unknown;
    for field in Fields::new(bytes) {
        let (number, field) = field.map_err(malformed)?;
        match number {
            // Some exporters write an unknown size as 0 or -1.
            1 => {
                let size = usize::try_from(field.int64().map_err(malformed)?).ok().filter(|&n| n > 0);
                dim = size.map_or(Dimension::Unknown, Dimension::Size);
            }
            2 => dim = Dimension::Named(text(field.string())?),
            _ => {}
        }
    }
    Ok(dim)
}
