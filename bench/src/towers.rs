//! A reference model on several devices, built by the synchronous trainer.

use crate::classifier::Classifier;
use crate::models::Model;
use crate::step::Built;
use tensorpack::dataflow::FromList;
use tensorpack::graph::{Fetch, UPDATE_OPS};
use tensorpack::input::{FeedInput, InputSource};
use tensorpack::runtime::Device;
use tensorpack::train::{Strategy, SyncMultiGpuTrainerReplicated};
use tensorpack::{DType, Error, Result};

/// Builds a tower on each device, each with a batch of this size.
pub(crate) fn build(model: Model, batch: usize, dtype: DType, devices: &[Device]) -> Result<Built> {
    let classifier = Classifier::from_model(model).ok_or_else(|| {
        Error::argument(format!("{} supports only one device", model.name()))
            .note("mlp, dqn, mnist, resnet32 and resnet50 support several")
    })?;
    let trained = classifier.clone();
    // Only the names of its inputs are used: the step is fed directly.
    let input = FeedInput::new(FromList::new(Vec::new())).boxed();
    let signature = classifier.inputs();
    let trainer = SyncMultiGpuTrainerReplicated::on(devices.iter().copied()).setup_graph(
        signature,
        input,
        move |t, x| classifier.cost(t, x, dtype),
        move |_| trained.optimizer(),
    )?;
    let graph = trainer.graph().clone();
    let updates = graph.collection_ops(UPDATE_OPS);
    let mut inputs = Vec::new();
    for tower in 0..devices.len() {
        let batch = model.synthetic(batch)?.into_iter();
        inputs.extend(batch.map(|(name, value)| (format!("tower{tower}/{name}"), value)));
    }
    Ok(Built {
        cost: Fetch::from(&graph.tensor("tower0/cost")?),
        step: std::iter::once(trainer.train_op().clone()).chain(updates.iter().map(Fetch::from)).collect(),
        inputs,
        graph,
    })
}
