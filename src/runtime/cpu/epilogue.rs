//! Epilogues of contractions, applied while the result is in cache.

use super::compiled_kernel::operand;
use super::contract_kernel::ContractKernel;
use crate::kir::{Binary, Epilogue, Expr, Reg, Step, Unary, View};
use tensorpack_kernels as kernels;

/// The epilogue of a contraction.
#[derive(Debug)]
pub(super) enum CompiledEpilogue {
    None,
    /// An optional bias per column and an optional ReLU, applied by the contraction itself.
    Bias {
        add: bool,
        relu: bool,
    },
    /// Any other map, applied to each block while it is in cache.
    Map(Box<kernels::Map>),
}

impl CompiledEpilogue {
    pub(super) fn new(epilogue: Option<&Epilogue>, kernel: &ContractKernel, out: &View) -> CompiledEpilogue {
        let Some(epilogue) = epilogue else { return CompiledEpilogue::None };
        if let Some(bias) = CompiledEpilogue::bias(epilogue, out).filter(|_| kernel.takes_bias()) {
            return bias;
        }
        // The sums of bf16 are f32.
        let sums = View { dtype: out.dtype.widened(), ..out.clone() };
        let operands = [&sums].into_iter().chain(&epilogue.operands).map(operand).collect();
        let map = kernels::Map::new(&out.sizes, operands, epilogue.expr.clone(), vec![out.dtype]);
        CompiledEpilogue::Map(Box::new(map))
    }

    /// Recognizes `relu(sum + bias)`, or either part of it.
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
