//! Runs update operations with every step.

use super::{Callback, GraphCx};
use crate::graph::UPDATE_OPS;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Runs the operations of a collection with every step. Defaults to the updates of batch
/// normalization's running statistics.
#[derive(Debug)]
pub struct RunUpdateOps {
    collection: String,
}

impl Default for RunUpdateOps {
    fn default() -> RunUpdateOps {
        RunUpdateOps::new(UPDATE_OPS)
    }
}

impl RunUpdateOps {
    /// Runs the operations of `collection`.
    #[doc(alias = "of")]
    pub fn new(collection: impl Into<String>) -> RunUpdateOps {
        RunUpdateOps { collection: collection.into() }
    }
}

impl Callback for RunUpdateOps {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        // The default collection may be empty; a collection that the user names exists.
        if self.collection != UPDATE_OPS && !g.graph().has_collection(&self.collection) {
            let why = format!("the graph has no collection named {:?}", self.collection);
            return Err(
                Error::new(ErrorKind::Name, why).note(g.graph().nearest_collections(&self.collection))
            );
        }
        for op in g.graph().collection_ops(&self.collection) {
            g.run_with_step(&op);
        }
        Ok(())
    }
}
