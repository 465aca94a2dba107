//! Towers: replicas of a model in the graph, the function that builds one, and the context it is
//! called with.

mod context;
mod func;
mod handle;
mod inputs;
mod model;
mod model_desc;

pub use context::{Mode, TowerContext};
pub use func::TowerFunc;
pub use handle::{TowerHandle, Towers};
pub use inputs::Inputs;
pub use model::Model;
pub use model_desc::ModelDesc;
pub use tensorpack_derive::Inputs;
