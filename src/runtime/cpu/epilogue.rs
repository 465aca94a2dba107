//! What follows a contraction while its result is in cache.

use super::compiled_kernel::operand;
use crate::kir::{Binary, Epilogue, Expr, Reg, Step, Unary, View};
use tensorpack_kernels::{self as kernels, Contract};

/// What is done to a contraction's result.
#[derive(Debug)]
pub(super) enum CompiledEpilogue {
    None,
    /// A number added to each column, if there is one, and negative results set to zero if asked for: done by the
    /// contraction itself, row by row.
    Bias {
        add: bool,
        relu: bool,
    },
    /// Anything else, on each rectangle while it is in cache.
    Map(Box<kernels::Map>),
}

impl CompiledEpilogue {
    pub(super) fn new(epilogue: Option<&Epilogue>, kernel: &dyn Contract, out: &View) -> CompiledEpilogue {
        let Some(epilogue) = epilogue else { return CompiledEpilogue::None };
        if let Some(bias) = CompiledEpilogue::bias(epilogue, out).filter(|_| kernel.takes_bias()) {
            return bias;
        }
        let operands = [out].into_iter().chain(&epilogue.operands).map(operand).collect();
        let map = kernels::Map::new(&out.sizes, operands, epilogue.expr.clone(), vec![out.dtype]);
        CompiledEpilogue::Map(Box::new(map))
    }

    /// `relu(sum + bias)`, or either half of it.
    fn bias(epilogue: &Epilogue, out: &View) -> Option<CompiledEpilogue> {
        let Expr { steps, outputs } = &epilogue.expr;
        let step = |r: Reg| &steps[r.0 as usize];
        let (relu, sum) = match step(outputs[0]) {
            Step::Unary(Unary::Relu, x) => (true, step(*x)),
            other => (false, other),
        };
        let is = |r: &Reg, i: u16| matches!(step(*r), Step::Operand { index, .. } if *index == i);
        let by_column = |v: &View| {
            let (last, outer) = v.strides.split_last()?;
            (*last == 1 && outer.iter().all(|&s| s == 0) && v.dtype == out.dtype).then_some(())
        };
        match (sum, &epilogue.operands[..]) {
            (Step::Operand { index: 0, .. }, []) => Some(CompiledEpilogue::Bias { add: false, relu }),
            (Step::Binary(Binary::Add, a, b), [bias]) if is(a, 0) && is(b, 1) || is(a, 1) && is(b, 0) => {
                by_column(bias).map(|()| CompiledEpilogue::Bias { add: true, relu })
            }
            _ => None,
        }
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        match self {
            CompiledEpilogue::Map(map) => map.scratch_bytes(),
            _ => 0,
        }
    }
}
