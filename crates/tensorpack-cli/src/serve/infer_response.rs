//! Inference responses: JSON, and JSON followed by tensors in binary.

use super::infer_request::WantedOutput;
use super::request_error::RequestError;
use super::tensor_type::name_of;
use hyper::StatusCode;
use serde::Serialize;
use tensorpack::{DType, HostTensor};

/// A response, as JSON.
#[derive(Serialize)]
struct ResponseJson<'a> {
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    outputs: Vec<OutputJson<'a>>,
}

#[derive(Serialize)]
struct OutputJson<'a> {
    name: &'a str,
    shape: &'a [usize],
    datatype: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinaryParameters>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Elements<'a>>,
}

#[derive(Serialize)]
struct BinaryParameters {
    binary_data_size: usize,
}

/// The elements of a tensor.
#[derive(Serialize)]
#[serde(untagged)]
enum Elements<'a> {
    F32(&'a [f32]),
    F64(&'a [f64]),
    /// Of the types that JSON has no numbers of.
    Narrow(Vec<f64>),
    I32(&'a [i32]),
    I64(&'a [i64]),
    U8(&'a [u8]),
    Bool(&'a [bool]),
}

/// The body of a response.
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    /// The length of the JSON part, if tensors follow it.
    pub(super) json_length: Option<usize>,
}

/// What a response is about.
pub(super) struct Answered<'a> {
    pub(super) model_name: &'a str,
    pub(super) model_version: &'a str,
    pub(super) id: Option<&'a str>,
}

impl Answered<'_> {
    /// Writes the outputs that are wanted. `names` and `outputs` are those of the model.
    pub(super) fn body(
        &self,
        wanted: &[WantedOutput],
        names: &[&str],
        outputs: &[HostTensor],
    ) -> Result<Body, RequestError> {
        let mut json = Vec::new();
        for &WantedOutput { index, binary } in wanted {
            let (name, tensor) = (names[index], &outputs[index]);
            json.push(OutputJson {
                name,
                shape: tensor.sizes(),
                datatype: name_of(tensor.dtype()),
                parameters: binary.then(|| BinaryParameters { binary_data_size: tensor.as_bytes().len() }),
                data: if binary { None } else { Some(elements(name, tensor)?) },
            });
        }
        let Answered { model_name, model_version, id } = *self;
        let response = ResponseJson { model_name, model_version, id, outputs: json };
        let mut bytes = serde_json::to_vec(&response)
            .map_err(|e| RequestError::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
        let json_length = wanted.iter().any(|output| output.binary).then_some(bytes.len());
        for output in wanted.iter().filter(|output| output.binary) {
            bytes.extend_from_slice(outputs[output.index].as_bytes());
        }
        Ok(Body { bytes, json_length })
    }
}

/// Returns the elements of an output, all of which JSON must be able to write.
fn elements<'a>(name: &str, tensor: &'a HostTensor) -> Result<Elements<'a>, RequestError> {
    let elements = match tensor.dtype() {
        DType::F32 => Elements::F32(tensor.as_slice()?),
        DType::F64 => Elements::F64(tensor.as_slice()?),
        DType::F16 | DType::Bf16 => Elements::Narrow(tensor.to_f64_vec()),
        DType::I32 => Elements::I32(tensor.as_slice()?),
        DType::I64 => Elements::I64(tensor.as_slice()?),
        DType::U8 => Elements::U8(tensor.as_slice()?),
        DType::Bool => Elements::Bool(tensor.as_slice()?),
    };
    let is_finite = match &elements {
        Elements::F32(v) => v.iter().all(|x| x.is_finite()),
        Elements::F64(v) => v.iter().all(|x| x.is_finite()),
        Elements::Narrow(v) => v.iter().all(|x| x.is_finite()),
        _ => true,
    };
    match is_finite {
        true => Ok(elements),
        false => {
            let why = format!("output {name:?} has infinite elements, which JSON cannot write");
            Err(RequestError::bad(format!("{why}: ask for it with \"binary_data\": true")))
        }
    }
}
