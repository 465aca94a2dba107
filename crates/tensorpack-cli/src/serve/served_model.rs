//! The model behind the server.

use super::metrics::Metrics;
use super::tensor_type::{name_of, shape};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use tensorpack::predict::{AsyncPredictor, ExportedModel, Predictor};
use tensorpack::prelude::TensorSpec;
use tensorpack::{HostTensor, Result};

/// The only version of a model.
pub(super) const VERSION: &str = "1";

/// A model that batches the requests of all connections.
pub(super) struct ServedModel {
    name: String,
    inputs: Vec<TensorSpec>,
    outputs: Vec<TensorSpec>,
    batch: usize,
    predictor: AsyncPredictor,
    pub(super) metrics: Arc<Metrics>,
}

impl ServedModel {
    /// Starts the thread that runs the model, on batches of up to `batch` examples. Its queue holds
    /// `queue` requests.
    pub(super) fn new(model: ExportedModel, name: String, batch: usize, queue: usize) -> Result<ServedModel> {
        let (inputs, outputs) = (model.inputs().to_vec(), model.output_signature());
        let batch = if model.is_batched() { batch } else { 1 };
        let metrics = Arc::new(Metrics::new());
        let measured = Measured { model, metrics: metrics.clone() };
        let predictor = AsyncPredictor::with_queue(measured, batch, queue)?;
        Ok(ServedModel { name, inputs, outputs, batch, predictor, metrics })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the most examples that run together.
    pub(super) fn batch(&self) -> usize {
        self.batch
    }

    pub(super) fn inputs(&self) -> &[TensorSpec] {
        &self.inputs
    }

    pub(super) fn outputs(&self) -> &[TensorSpec] {
        &self.outputs
    }

    /// Queues the inputs of a request, and calls `then` with its outputs on another thread.
    pub(super) fn predict(
        &self,
        inputs: Vec<HostTensor>,
        then: impl FnOnce(Result<Vec<HostTensor>>) + Send + 'static,
    ) -> Result<()> {
        self.predictor.predict_batch_then(inputs, then)
    }

    /// Returns the metadata of the model, as the protocol has it.
    pub(super) fn description(&self) -> Value {
        let tensor = |spec: &TensorSpec| json!({"name": spec.name, "datatype": name_of(spec.dtype), "shape": shape(&spec.sizes)});
        json!({
            "name": self.name,
            "versions": [VERSION],
            "platform": "tensorpack",
            "inputs": self.inputs.iter().map(tensor).collect::<Vec<_>>(),
            "outputs": self.outputs.iter().map(tensor).collect::<Vec<_>>(),
        })
    }
}

/// Counts the runs of a model.
struct Measured {
    model: ExportedModel,
    metrics: Arc<Metrics>,
}

impl Predictor for Measured {
    fn predict(&self, inputs: &[&HostTensor]) -> Result<Vec<HostTensor>> {
        let start = Instant::now();
        let outputs = self.model.predict(inputs)?;
        let examples = inputs.first().and_then(|x| x.sizes().first().copied()).unwrap_or(1);
        self.metrics.add_batch(examples, start.elapsed());
        Ok(outputs)
    }
}
