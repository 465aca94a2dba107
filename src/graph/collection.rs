//! Collections: named lists through which parts of a program find each other's variables, tensors
//! and operations.

use super::{NodeId, TensorId, VariableId};
use std::collections::BTreeMap;

/// Variables trained by gradient descent.
pub const TRAINABLE_VARIABLES: &str = "trainable_variables";
/// Variables that inference needs: the trainable ones and, for example, running averages of
/// normalization layers.
pub const MODEL_VARIABLES: &str = "model_variables";
/// Variables that a checkpoint holds.
pub const GLOBAL_VARIABLES: &str = "global_variables";
/// Variables local to one tower.
pub const LOCAL_VARIABLES: &str = "local_variables";
/// Tensors that monitors record as summaries.
pub const SUMMARIES: &str = "summaries";
/// Images that monitors display.
pub const IMAGE_SUMMARIES: &str = "image_summaries";
/// Scalars of which monitors record the moving average.
pub const MOVING_SUMMARIES: &str = "moving_summaries";
/// Operations to run with every step, such as updates of running averages.
pub const UPDATE_OPS: &str = "update_ops";
/// Losses added by regularizers.
pub const REGULARIZATION_LOSSES: &str = "regularization_losses";

/// Operations to run once after the last step, such as applying gradients that are still being
/// accumulated.
pub const FLUSH_OPS: &str = "flush_ops";
/// Scalars that control training and can be set while it runs, such as learning rates.
pub const HYPER_PARAMS: &str = "hyper_params";
/// The gradients that optimizers receive: averaged over towers, before any processor.
pub const GRADIENTS: &str = "gradients";
/// Moving averages of trainable variables.
pub const EMA_VARIABLES: &str = "ema_variables";

/// A collection: a list of tensors, operations and variables.
#[derive(Clone, Debug, Default)]
pub struct Collection {
    /// Tensors, in the order they were added.
    pub tensors: Vec<TensorId>,
    /// Operations, in the order they were added.
    pub ops: Vec<NodeId>,
    /// Variables, in the order they were added.
    pub variables: Vec<VariableId>,
}

/// All collections, by name.
pub(super) type Collections = BTreeMap<String, Collection>;
