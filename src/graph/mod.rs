//! The static graph: the computation, defined before anything runs.
//!
//! One thread builds a [`Graph`] through [`Tensor`] handles, then [freezes](Graph::freeze) it into
//! a [`Frozen`] that engines read. The graph holds initializers, never values, and knows no
//! operation by name: an operation is any type that implements [`OpDef`].

mod call_site;
mod collection;
mod copy_variables;
mod exported;
mod frozen;
mod gate;
#[expect(clippy::module_inception, reason = "the graph of the graph module")]
mod graph;
mod initializer;
mod loss_scale;
mod name;
mod name_pattern;
mod nearest_names;
mod node;
mod op_def;
mod precision;
mod print;
mod scope;
mod tensor;
mod variable;

pub use collection::{
    Collection, EMA_VARIABLES, FLUSH_OPS, GLOBAL_VARIABLES, GRADIENTS, HYPER_PARAMS, IMAGE_SUMMARIES,
    LOCAL_VARIABLES, MODEL_VARIABLES, MOVING_SUMMARIES, REGULARIZATION_LOSSES, SUMMARIES,
    TRAINABLE_VARIABLES, UPDATE_OPS,
};
pub use exported::Exported;
pub use frozen::{Fetch, Frozen};
pub use graph::Graph;
pub use initializer::{Fan, Init};
pub use loss_scale::LossScale;
pub(crate) use name::split_tower;
pub use name_pattern::NamePattern;
pub(crate) use nearest_names::nearest_names;
pub use node::{Node, NodeId, NodeKind, Role, TensorId, VariableId};
pub use op_def::{GradCx, OpDef, OpIdentity, OpTraits, Spec};
pub use precision::{Autocast, Precision};
pub use tensor::{Op, Tensor, TensorSpec};
pub(crate) use tensor::{axis_in, lacks_batch};
pub(crate) use variable::Sharing;
pub use variable::{GLOBAL_STEP, Sharding, Variable, VariableInfo, VariableSpec};
