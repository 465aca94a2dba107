//! Common subexpression elimination: equal operations on equal inputs are lowered once.

use crate::graph::OpDef;
use crate::kir::View;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use tensorpack_tensor::DType;

/// How an operation uses an input.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum CseInput {
    /// Its elements, in the order of the view.
    Value(View),
    /// Only its type and sizes.
    Shape(DType, Vec<usize>),
}

/// An operation that was lowered.
#[derive(Debug)]
struct Lowered {
    op: Arc<dyn OpDef>,
    inputs: Vec<CseInput>,
    outputs: Vec<View>,
}

/// The operations lowered so far, by hash.
#[derive(Debug, Default)]
pub(super) struct CommonSubexpressions {
    lowered: HashMap<u64, Vec<Lowered>>,
}

impl CommonSubexpressions {
    /// Returns the results of an equal operation on equal inputs, if there was one.
    ///
    /// Preconditions, checked here: the operation is pure, and its attributes are equal. It reads
    /// the same elements in the same order: views have equal buffers, sizes, strides and offsets.
    /// Inputs of which only the shape is used have equal types and sizes.
    pub(super) fn find(&self, op: &dyn OpDef, inputs: &[CseInput]) -> Option<&[View]> {
        if !op.traits().mergeable {
            return None;
        }
        let candidates = self.lowered.get(&key(op, inputs))?;
        let same = candidates.iter().find(|other| other.op.same(op) && other.inputs == inputs)?;
        Some(&same.outputs)
    }

    /// Records the results of an operation.
    pub(super) fn insert(&mut self, op: &Arc<dyn OpDef>, inputs: Vec<CseInput>, outputs: &[View]) {
        if op.traits().mergeable {
            let lowered = Lowered { op: op.clone(), outputs: outputs.to_vec(), inputs };
            self.lowered.entry(key(op.as_ref(), &lowered.inputs)).or_default().push(lowered);
        }
    }
}

fn key(op: &dyn OpDef, inputs: &[CseInput]) -> u64 {
    let mut h = DefaultHasher::new();
    op.identity_hash().hash(&mut h);
    inputs.hash(&mut h);
    h.finish()
}
