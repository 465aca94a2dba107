//! Inference requests: JSON, and JSON followed by tensors in binary.

use super::numbers::Numbers;
use super::request_error::RequestError;
use super::tensor_type::{name_of, shape};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};
use tensorpack::HostTensor;
use tensorpack::prelude::TensorSpec;

/// The header that has the length of the JSON part, if tensors in binary follow it.
pub(super) const JSON_LENGTH: &str = "inference-header-content-length";

/// A request, as JSON.
#[derive(Deserialize)]
struct RequestJson {
    id: Option<String>,
    #[serde(default)]
    parameters: Map<String, Value>,
    inputs: Vec<InputJson>,
    #[serde(default)]
    outputs: Vec<OutputJson>,
}

#[derive(Deserialize)]
struct InputJson {
    name: String,
    shape: Vec<usize>,
    datatype: String,
    #[serde(default)]
    parameters: Map<String, Value>,
    data: Option<Numbers>,
}

#[derive(Deserialize)]
struct OutputJson {
    name: String,
    #[serde(default)]
    parameters: Map<String, Value>,
}

/// An output that is wanted.
#[derive(Debug, PartialEq)]
pub(super) struct WantedOutput {
    /// Its index among the outputs of the model.
    pub(super) index: usize,
    pub(super) binary: bool,
}

/// A request that matches the signature of the model.
#[derive(Debug)]
pub(super) struct InferRequest {
    pub(super) id: Option<String>,
    /// The inputs in the order of the model.
    pub(super) inputs: Vec<HostTensor>,
    pub(super) outputs: Vec<WantedOutput>,
}

impl InferRequest {
    /// Parses a body. `json_length` is the length of its JSON part, if tensors follow.
    pub(super) fn parse(
        body: &Bytes,
        json_length: Option<usize>,
        inputs: &[TensorSpec],
        outputs: &[TensorSpec],
    ) -> Result<InferRequest, RequestError> {
        let length = json_length.unwrap_or(body.len());
        let Some((json, mut binary)) = body.split_at_checked(length) else {
            let why = format!("{JSON_LENGTH} is {length}, but the body has {} bytes", body.len());
            return Err(RequestError::bad(why));
        };
        let request: RequestJson = serde_json::from_slice(json)
            .map_err(|e| RequestError::bad(format!("the request is not valid: {e}")))?;
        let mut tensors: Vec<Option<HostTensor>> = inputs.iter().map(|_| None).collect();
        for input in request.inputs {
            let name = input.name.clone();
            let index = index_of(inputs, &name, "input")?;
            let within =
                |e: RequestError| RequestError::new(e.status, format!("input {name:?}: {}", e.message));
            let tensor = input.tensor(&inputs[index], &mut binary).map_err(within)?;
            if tensors[index].replace(tensor).is_some() {
                return Err(RequestError::bad(format!("input {name:?} is given twice")));
            }
        }
        if !binary.is_empty() {
            let why = format!("{} bytes follow the last tensor", binary.len());
            return Err(RequestError::bad(why));
        }
        let missing: Vec<&str> =
            inputs.iter().zip(&tensors).filter(|(_, t)| t.is_none()).map(|(s, _)| s.name.as_str()).collect();
        if !missing.is_empty() {
            return Err(RequestError::bad(format!("missing inputs: {}", missing.join(", "))));
        }
        let all_binary = flag(&request.parameters, "binary_data_output");
        let wanted = match request.outputs.is_empty() {
            true => (0..outputs.len()).map(|index| WantedOutput { index, binary: all_binary }).collect(),
            false => wanted_outputs(&request.outputs, outputs, all_binary)?,
        };
        Ok(InferRequest { id: request.id, inputs: tensors.into_iter().flatten().collect(), outputs: wanted })
    }
}

impl InputJson {
    /// Returns the tensor, which must match `spec`. Takes its bytes from `binary` if it has no data.
    fn tensor(self, spec: &TensorSpec, binary: &mut &[u8]) -> Result<HostTensor, RequestError> {
        let fits = |(want, have): (&Option<usize>, &usize)| want.is_none_or(|n| n == *have);
        let same_shape = self.shape.len() == spec.sizes.len() && spec.sizes.iter().zip(&self.shape).all(fits);
        if self.datatype != name_of(spec.dtype) || !same_shape {
            let (want, have) = (name_of(spec.dtype), &self.datatype);
            let why = format!("the model takes {want}{:?}, got {have}{:?}", shape(&spec.sizes), self.shape);
            return Err(RequestError::bad(why));
        }
        match (self.data, self.parameters.get("binary_data_size")) {
            (Some(data), None) => data.tensor(spec.dtype, &self.shape),
            (None, Some(size)) => {
                let size = size.as_u64().and_then(|n| usize::try_from(n).ok());
                let size = size.ok_or_else(|| RequestError::bad("binary_data_size is not a size"))?;
                let Some((own, rest)) = binary.split_at_checked(size) else {
                    let why = format!("binary_data_size is {size}, but only {} bytes follow", binary.len());
                    return Err(RequestError::bad(why));
                };
                *binary = rest;
                // Checked before anything of this size is allocated.
                let bytes = self.shape.iter().try_fold(spec.dtype.size(), |n, &m| n.checked_mul(m));
                if bytes != Some(size) {
                    let why = format!("{size} bytes do not fill the shape {:?}", self.shape);
                    return Err(RequestError::bad(why));
                }
                let mut tensor = HostTensor::zeros(spec.dtype, self.shape)?;
                tensor.copy_from_bytes(own)?;
                Ok(tensor)
            }
            (Some(_), Some(_)) => Err(RequestError::bad("it has both data and binary_data_size")),
            (None, None) => Err(RequestError::bad("it has neither data nor binary_data_size")),
        }
    }
}

/// Returns the outputs that a request names.
fn wanted_outputs(
    named: &[OutputJson],
    outputs: &[TensorSpec],
    all_binary: bool,
) -> Result<Vec<WantedOutput>, RequestError> {
    let mut wanted = Vec::new();
    for output in named {
        if output.parameters.contains_key("classification") {
            return Err(RequestError::bad("the classification extension is not supported"));
        }
        let index = index_of(outputs, &output.name, "output")?;
        let binary = match output.parameters.get("binary_data") {
            Some(_) => flag(&output.parameters, "binary_data"),
            None => all_binary,
        };
        // A short request must not ask for a long response by repeating a name.
        if wanted.iter().any(|output: &WantedOutput| output.index == index) {
            return Err(RequestError::bad(format!("output {:?} is asked for twice", output.name)));
        }
        wanted.push(WantedOutput { index, binary });
    }
    Ok(wanted)
}

fn flag(parameters: &Map<String, Value>, key: &str) -> bool {
    parameters.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn index_of(specs: &[TensorSpec], name: &str, what: &str) -> Result<usize, RequestError> {
    specs.iter().position(|spec| spec.name == name).ok_or_else(|| {
        let known: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        RequestError::bad(format!("the model has no {what} {name:?}; it has: {}", known.join(", ")))
    })
}
