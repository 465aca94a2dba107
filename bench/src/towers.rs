//! A reference model on several devices, laid out by the trainer that users would take.

use crate::classifier::Classifier;
use crate::models::Model;
use crate::step::Built;
use tensorpack::dataflow::FromList;
use tensorpack::graph::{Fetch, UPDATE_OPS};
use tensorpack::input::{FeedInput, InputSource};
use tensorpack::runtime::Device;
use tensorpack::train::{SingleCostTrainer, SyncMultiGpuTrainerReplicated};
use tensorpack::{DType, Error, Result};

/// A tower on each device, every one with a batch of this size.
pub(crate) fn build(model: Model, batch: usize, dtype: DType, devices: &[Device]) -> Result<Built> {
    let classifier = Classifier::of(model).ok_or_else(|| {
        Error::argument(format!("{} is measured on one device alone", model.name()))
            .note("on several: mlp, mnist, resnet32, resnet50")
    })?;
    let mut trainer = SingleCostTrainer::from(SyncMultiGpuTrainerReplicated::on(devices.iter().copied()));
    let trained = classifier.clone();
    // Only its names are used: the step is fed by hand.
    let input = FeedInput::new(FromList::new(Vec::new())).boxed();
    let signature = classifier.inputs();
    trainer.setup_graph(
        signature,
        input,
        move |t, x| classifier.cost(t, x, dtype),
        move |_| trained.optimizer(),
    )?;
    let (trainer, step) = trainer.built()?;
    let graph = trainer.graph().clone();
    let updates = graph.collection_ops(UPDATE_OPS);
    let mut inputs = Vec::new();
    for tower in 0..devices.len() {
        let batch = model.synthetic(batch)?.into_iter();
        inputs.extend(batch.map(|(name, value)| (format!("tower{tower}/{name}"), value)));
    }
    Ok(Built {
        cost: Fetch::from(&graph.tensor("tower0/cost")?),
        step: std::iter::once(step).chain(updates.iter().map(Fetch::from)).collect(),
        inputs,
        graph,
    })
}
