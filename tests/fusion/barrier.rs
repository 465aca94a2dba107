//! An operation that nothing is fused across.

use std::sync::Arc;
use tensorpack::graph::{GradCx, OpDef, Spec, Tensor};
use tensorpack::kir::{CustomKernel, LowerCx, View};
use tensorpack::{HostTensor, Result};

/// The identity as a kernel of its own. Fetching a result does not keep it from being computed once more inside its reader;
/// this does, for its input and for its gradient, and what comes out is dense.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Barrier;

pub(crate) fn barrier(x: &Tensor) -> Tensor {
    Tensor::apply_one(Barrier, &[x])
}

impl OpDef for Barrier {
    fn name(&self) -> &str {
        "Barrier"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![inputs[0].clone()])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![Some(barrier(cx.dy()))])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(cx.custom(Arc::new(Identity)))
    }
}

#[derive(Debug)]
struct Identity;

impl CustomKernel for Identity {
    fn run(&self, inputs: &[HostTensor], outputs: &mut [HostTensor]) -> Result<()> {
        outputs.clone_from_slice(inputs);
        Ok(())
    }
}
