//! A reference model on several devices, built by the synchronous trainer.

use crate::Trainer;
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
use tensorpack::tower::ModelDesc;
use tensorpack::train::{
    DistributedTrainerParameterServer, DistributedTrainerReplicated, SingleCostTrainer,
    SyncMultiGpuTrainerParameterServer, SyncMultiGpuTrainerReplicated,
};
use tensorpack::{Error, Result};

/// Builds a tower on each device, each with a batch of this size. A distributed trainer builds its part
/// in every process of a group, which is returned.
pub(crate) fn build(
    trainer: Trainer,
    model: Model,
    batch: usize,
    precision: Precision,
    devices: &[Device],
) -> Result<(Built, Option<Arc<ProcessGroup>>)> {
    let (on, count) = (devices.iter().copied(), devices.len());
    let alone = |trainer| Ok((build_with(trainer, model, batch, precision, 0..count, count)?, None));
    let together = |trainer, group: Arc<ProcessGroup>| {
        let (first, total) = (group.rank() * count, group.size() * count);
        let built = build_with(trainer, model, batch, precision, first..first + count, total)?;
        Ok((built, Some(group)))
    };
    match trainer {
        Trainer::SyncReplicated => alone(SyncMultiGpuTrainerReplicated::on(on).into()),
        Trainer::SyncPs => alone(SyncMultiGpuTrainerParameterServer::on(on).into()),
        Trainer::DistReplicated => {
            let trainer = DistributedTrainerReplicated::on(on);
            let group = trainer.join()?.clone();
            together(trainer.into(), group)
        }
        Trainer::DistPs => {
            let trainer = DistributedTrainerParameterServer::on(on);
            let group = trainer.join()?.clone();
            together(trainer.into(), group)
        }
    }
}

/// Builds the towers `here` of `total`.
fn build_with(
    trainer: SingleCostTrainer,
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
    let trainer = trainer.precision(precision).setup_graph(
        signature,
        input,
        move |t, x| classifier.build_graph(t, x),
        move |t| trained.optimizer(t),
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
