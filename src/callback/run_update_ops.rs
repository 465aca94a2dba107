//! Runs update operations with every step.

use super::{Callback, GraphCx};
use crate::graph::UPDATE_OPS;
use tensorpack_tensor::Result;

/// Runs the operations of a collection with every step. Defaults to the updates of batch
/// normalization's running statistics.
#[derive(Debug)]
pub struct RunUpdateOps {
    collection: String,
}

impl Default for RunUpdateOps {
    fn default() -> RunUpdateOps {
        RunUpdateOps::of(UPDATE_OPS)
    }
}

impl RunUpdateOps {
    /// Runs the operations of `collection`.
    pub fn of(collection: impl Into<String>) -> RunUpdateOps {
        RunUpdateOps { collection: collection.into() }
    }
}

impl Callback for RunUpdateOps {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        for op in g.graph().collection_ops(&self.collection) {
            g.run_along(&op);
        }
        Ok(())
    }
}
