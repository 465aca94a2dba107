//! A reference model on several devices, built by the synchronous trainer.

use crate::classifier::Classifier;
use crate::models::Model;
use crate::step::Built;
use std::ops::Range;
use std::sync::Arc;
use tensorpack::dataflow::FromList;
use tensorpack::distributed::ProcessGroup;
use tensorpack::graph::{Fetch, Precision, UPDATE_OPS};
use tensorpack::input::{FeedInput, InputSource};
use tensorpack::runtime::Device;
use tensorpack::train::{
    DistributedTrainerReplicated, SingleCostTrainer, Strategy, SyncMultiGpuTrainerReplicated,
};
use tensorpack::{Error, Result};

/// Builds a tower on each device, each with a batch of this size, with the synchronous trainer.
pub(crate) fn build(model: Model, batch: usize, precision: Precision, devices: &[Device]) -> Result<Built> {
    let trainer = SyncMultiGpuTrainerReplicated::on(devices.iter().copied());
    build_with(trainer, model, batch, precision, 0..devices.len(), devices.len())
}

/// Like [`build`], in every process of a group, which is returned.
pub(crate) fn build_distributed(
    model: Model,
    batch: usize,
    precision: Precision,
    devices: &[Device],
) -> Result<(Built, Arc<ProcessGroup>)> {
    let trainer = DistributedTrainerReplicated::on(devices.iter().copied());
    let group = trainer.join()?.clone();
    let (first, total) = (group.rank() * devices.len(), group.size() * devices.len());
    let built = build_with(trainer, model, batch, precision, first..first + devices.len(), total)?;
    Ok((built, group))
}

/// Builds the towers `here` of `total`.
fn build_with(
    trainer: impl Strategy + 'static,
    model: Model,
    batch: usize,
    precision: Precision,
    here: Range<usize>,
    total: usize,
) -> Result<Built> {
    let classifier = Classifier::from_model(model).ok_or_else(|| {
        Error::argument(format!("{} supports only one device", model.name()))
            .note("mlp, dqn, mnist, resnet32 and resnet50 support several")
    })?;
    let trained = classifier.clone();
    // Only the names of its inputs are used: the step is fed directly.
    let input = FeedInput::new(FromList::new(Vec::new())).boxed();
    let signature = classifier.inputs();
    let trainer = SingleCostTrainer::from(trainer).precision(precision).setup_graph(
        signature,
        input,
        move |t, x| classifier.cost(t, x),
        move |_| trained.optimizer(),
    )?;
    let graph = trainer.graph().clone();
    let updates = graph.collection_ops(UPDATE_OPS);
    let mut inputs = Vec::new();
    let in_tower = |tower: usize, name: &str| match total {
        1 => name.to_owned(),
        _ => format!("tower{tower}/{name}"),
    };
    for tower in here.clone() {
        let batch = model.synthetic(batch)?.into_iter();
        inputs.extend(batch.map(|(name, value)| (in_tower(tower, name), value)));
    }
    Ok(Built {
        cost: Fetch::from(&graph.tensor(&in_tower(here.start, "cost"))?),
        step: std::iter::once(trainer.train_op().clone()).chain(updates.iter().map(Fetch::from)).collect(),
        inputs,
        graph,
    })
}
