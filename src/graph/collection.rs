//! Collections: named lists through which parts of a program find each other's variables, tensors and operations.

use super::{NodeId, TensorId, VariableId};
use std::collections::BTreeMap;

/// Variables trained by gradient descent.
pub const TRAINABLE_VARIABLES: &str = "trainable_variables";
/// Variables that inference needs: the trainable ones and, say, running averages of normalisation.
pub const MODEL_VARIABLES: &str = "model_variables";
/// Variables that a checkpoint holds.
pub const GLOBAL_VARIABLES: &str = "global_variables";
/// Variables of one tower alone.
pub const LOCAL_VARIABLES: &str = "local_variables";
/// Tensors to be summarised for monitors.
pub const SUMMARIES: &str = "summaries";
/// Images to be shown by monitors.
pub const IMAGE_SUMMARIES: &str = "image_summaries";
/// Scalars whose moving average is summarised.
pub const MOVING_SUMMARIES: &str = "moving_summaries";
/// Operations to run with every step, such as those that keep running averages.
pub const UPDATE_OPS: &str = "update_ops";
/// Losses that regularisers made.
pub const REGULARIZATION_LOSSES: &str = "regularization_losses";

/// Operations to run once after the last step, such as applying gradients that were only accumulated so far.
pub const FLUSH_OPS: &str = "flush_ops";
/// Scalars that steer training and may be set while it runs, such as learning rates.
pub const HYPER_PARAMS: &str = "hyper_params";
/// Moving averages of trainable variables.
pub const EMA_VARIABLES: &str = "ema_variables";

/// One collection.
#[derive(Clone, Debug, Default)]
pub struct Collection {
    /// Tensors, in the order they were added.
    pub tensors: Vec<TensorId>,
    /// Operations.
    pub ops: Vec<NodeId>,
    /// Variables.
    pub variables: Vec<VariableId>,
}

/// All collections by name.
pub(super) type Collections = BTreeMap<String, Collection>;
