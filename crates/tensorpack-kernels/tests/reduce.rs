//! Tests of `Reduce` against scalar reference code in f64.

use super::oracle::{self, Input, Memory, Scalar, TestRng, isas, native, unflatten};
use proptest::prelude::*;
use tensorpack_kernels::expr::{Class, Expr, Reg, Step};
use tensorpack_kernels::{Isa, Map, Operand, Reduce, ReduceKind};
use tensorpack_tensor::DType;

const KINDS: [ReduceKind; 7] = [
    ReduceKind::Sum,
    ReduceKind::Prod,
    ReduceKind::Max,
    ReduceKind::Min,
    ReduceKind::ArgMax,
    ReduceKind::ArgMin,
    ReduceKind::Moments,
];

fn run(reduce: &Reduce, isa: Isa, operands: &[*const u8], outputs: &[*mut u8], reversed: bool) {
    let mut shared = Memory::new(reduce.shared_bytes());
    for phase in 0..reduce.phases() {
        let mut chunks: Vec<usize> = (0..reduce.chunks(phase)).collect();
        if reversed {
            chunks.reverse();
        }
        for chunk in chunks {
            let mut scratch = Memory::new(reduce.scratch_bytes());
            // SAFETY: operands, outputs and scratch memory have the sizes that the reduction needs.
            unsafe {
                reduce.run(isa, phase, chunk, operands, outputs, shared.ptr_mut(), scratch.bytes_mut())
            };
        }
    }
}

/// Returns the results of a reduction, and the magnitudes that rounding errors are relative to.
fn expect(kind: ReduceKind, class: Class, dtype: DType, numbers: &[Scalar]) -> Vec<(Scalar, f64)> {
    let ints: Vec<i64> = numbers.iter().map(|n| n.i()).collect();
    let floats: Vec<f64> = numbers.iter().map(|n| n.f()).collect();
    let whole = class == Class::I64;
    let largest = kind == ReduceKind::Max || kind == ReduceKind::ArgMax;
    let size = |f: f64| if f.is_finite() { f.abs() } else { 0.0 };
    let total: f64 = floats.iter().map(|&f| size(f)).sum();
    let mut best = 0;
    for i in 1..numbers.len() {
        let wins = if whole {
            if largest { ints[i] > ints[best] } else { ints[i] < ints[best] }
        } else {
            let better = if largest { floats[i] > floats[best] } else { floats[i] < floats[best] };
            better || floats[i].is_nan() && !floats[best].is_nan()
        };
        if wins {
            best = i;
        }
    }
    match kind {
        ReduceKind::Sum if whole => vec![(Scalar::I(ints.iter().fold(0, |a, &b| a.wrapping_add(b))), 0.0)],
        ReduceKind::Prod if whole => vec![(Scalar::I(ints.iter().fold(1, |a, &b| a.wrapping_mul(b))), 0.0)],
        ReduceKind::Sum => vec![(Scalar::F(floats.iter().sum()), total)],
        ReduceKind::Prod => {
            let p: f64 = floats.iter().product();
            vec![(Scalar::F(p), size(p))]
        }
        ReduceKind::ArgMax | ReduceKind::ArgMin => vec![(Scalar::I(best as i64), 0.0)],
        ReduceKind::Max | ReduceKind::Min => match numbers.get(best) {
            Some(&n) => vec![(n, 0.0)],
            None if !whole => vec![(Scalar::F(if largest { f64::NEG_INFINITY } else { f64::INFINITY }), 0.0)],
            None => {
                let (low, high) = match dtype {
                    DType::I32 => (i32::MIN.into(), i32::MAX.into()),
                    DType::U8 => (0, 255),
                    DType::Bool => (0, 1),
                    _ => (i64::MIN, i64::MAX),
                };
                vec![(Scalar::I(if largest { low } else { high }), 0.0)]
            }
        },
        ReduceKind::Moments => {
            let n = numbers.len() as f64;
            let mean = floats.iter().sum::<f64>() / n;
            let var = floats.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
            let top = floats.iter().fold(0.0, |a: f64, &b| a.max(size(b)));
            // Squares that underflow the class are lost, whatever they are relative to; 1e6 makes
            // up for the 2e-6 of this magnitude that rounding may take.
            let lost = if class == Class::F32 { f64::from(f32::MIN_POSITIVE) } else { f64::MIN_POSITIVE };
            vec![(Scalar::F(mean), total / n), (Scalar::F(var), var + 1e-6 * top * top + 1e6 * lost)]
        }
    }
}

/// Returns whether no product of any of these, in any order, overflows or underflows.
fn stays_in_range(class: Class, numbers: &[Scalar]) -> bool {
    let limit = match class {
        Class::F32 => 120.0,
        Class::F64 => 1000.0,
        Class::I64 => return true,
    };
    let logs = || numbers.iter().map(|n| n.f().abs().log2()).filter(|l| l.is_finite());
    logs().filter(|l| *l > 0.0).sum::<f64>() < limit && logs().filter(|l| *l < 0.0).sum::<f64>() > -limit
}

fn dims() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        6 => prop::collection::vec(0usize..7, 0..5),
        2 => prop::collection::vec(1usize..40, 2..4),
        1 => (1usize..4, 900usize..5000).prop_map(|(a, b)| vec![a, b]),
        1 => (900usize..3000, 1usize..5).prop_map(|(a, b)| vec![a, b]),
        1 => (1usize..5, 1500usize..3000, 1usize..4).prop_map(|(a, b, c)| vec![a, b, c]),
        1 => (1usize..4, 1usize..50, 1000usize..3000).prop_map(|(a, b, c)| vec![a, b, c]),
        1 => (70_000usize..200_000).prop_map(|a| vec![a]),
        1 => (7_000usize..9_000, 9usize..20).prop_map(|(a, b)| vec![a, b]),
    ]
}

proptest! {
    #![proptest_config(oracle::cases(400))]

    #[test]
    fn matches_the_reference(dims in dims(), seed: u64) {
        let mut rng = TestRng::new(seed);
        let inputs: Vec<Input> = (0..1 + rng.below(3))
            .map(|_| {
                let (dtype, dense) = (rng.pick(&DType::ALL), rng.chance(2));
                rng.operand(&dims, dtype, dense)
            })
            .collect();
        let steps = rng.below(5);
        let mut expr = rng.expr(&dims, &inputs, steps);
        let kinds: Vec<ReduceKind> = (0..1 + rng.below(3)).map(|_| rng.pick(&KINDS)).collect();
        expr.outputs = kinds.iter().map(|_| Reg(rng.below(expr.steps.len()) as u16)).collect();
        let reduced: Vec<bool> = dims.iter().map(|_| rng.chance(2)).collect();
        let mut dtypes = Vec::new();
        for (&kind, &reg) in kinds.iter().zip(&expr.outputs) {
            let class = expr.class(reg);
            match kind {
                ReduceKind::Moments => dtypes.extend([rng.pick(&[DType::F32, DType::F64]); 2]),
                ReduceKind::ArgMax | ReduceKind::ArgMin => dtypes.push(rng.pick(&[DType::I64, DType::I32])),
                _ if class == Class::I64 => dtypes.push(rng.pick(&[DType::I64, DType::I32, DType::U8])),
                _ => dtypes.push(native(class)),
            }
        }
        let len: usize = dims.iter().product();
        let kept: Vec<usize> = (0..dims.len()).filter(|&d| !reduced[d]).collect();
        let results: usize = kept.iter().map(|&d| dims[d]).product();
        let operands: Vec<Operand> = inputs.iter().map(|i| i.operand.clone()).collect();
        let pointers: Vec<_> = inputs.iter().map(Input::ptr).collect();
        let reduce = Reduce::new(&dims, &reduced, operands.clone(), expr.clone(), kinds.clone(), dtypes.clone());
        let classes: Vec<DType> = expr.outputs.iter().map(|&r| native(expr.class(r))).collect();
        let map = Map::new(&dims, operands, expr.clone(), classes.clone());
        for isa in isas() {
            // The elements to reduce come from `Map`, which has its own tests.
            let mut numbers: Vec<Memory> = classes.iter().map(|d| Memory::new(len * d.size())).collect();
            let outs: Vec<_> = numbers.iter_mut().map(Memory::ptr_mut).collect();
            let mut scratch = Memory::new(map.scratch_bytes());
            for chunk in 0..map.chunks() {
                // SAFETY: operands and outputs have the sizes that the map needs.
                unsafe { map.run(isa, chunk, &pointers, &outs, scratch.bytes_mut()) };
            }
            let mut got: Vec<Memory> = dtypes.iter().map(|d| Memory::new(results * d.size())).collect();
            run(&reduce, isa, &pointers, &got.iter_mut().map(Memory::ptr_mut).collect::<Vec<_>>(), false);
            let mut again: Vec<Memory> = dtypes.iter().map(|d| Memory::new(results * d.size())).collect();
            run(&reduce, isa, &pointers, &again.iter_mut().map(Memory::ptr_mut).collect::<Vec<_>>(), true);
            for (a, b) in got.iter().zip(&again) {
                prop_assert_eq!(a.bytes(), b.bytes(), "the result depends on the order of chunks");
            }
            let mut groups: Vec<Vec<usize>> = vec![Vec::new(); results];
            for at in 0..len {
                let index = unflatten(&dims, at);
                groups[kept.iter().fold(0, |a, &d| a * dims[d] + index[d])].push(at);
            }
            let mut output = 0;
            for (k, &kind) in kinds.iter().enumerate() {
                let class = expr.class(expr.outputs[k]);
                let outputs = if kind == ReduceKind::Moments { 2 } else { 1 };
                for (result, group) in groups.iter().enumerate() {
                    let these: Vec<Scalar> = group.iter().map(|&at| numbers[k].get(classes[k], at)).collect();
                    if these.iter().any(|n| !n.f().is_finite() || n.f().abs() > 1e15) && matches!(kind, ReduceKind::Moments | ReduceKind::Prod | ReduceKind::Sum) {
                        // The order in which infinities combine is unspecified, and squares
                        // overflow f32.
                        continue;
                    }
                    if kind == ReduceKind::Prod && !stays_in_range(class, &these) {
                        continue;
                    }
                    for (o, (want, size)) in expect(kind, class, dtypes[output], &these).into_iter().enumerate() {
                        let dtype = dtypes[output + o];
                        let mut rounded = Memory::new(8);
                        rounded.set(dtype, 0, want);
                        let (want, got) = (rounded.get(dtype, 0), got[output + o].get(dtype, result));
                        let near = match (want, got) {
                            (Scalar::F(a), Scalar::F(b)) if a.is_finite() => (a - b).abs() <= 2e-6 * size.max(a.abs()),
                            _ => want.same(got),
                        };
                        prop_assert!(near, "{isa} {kind:?} of {class:?} as {dtype}, output {o} at {result}: {got:?}, should be {want:?}");
                    }
                }
                output += outputs;
            }
        }
    }
}

fn dense(dims: &[usize]) -> Vec<isize> {
    (0..dims.len()).map(|d| dims[d + 1..].iter().product::<usize>() as isize).collect()
}

/// Checks sums of many f32, whose third digit would be wrong in an f32 accumulator, and variances
/// of numbers far from 0.
#[test]
fn long_sums_and_offset_moments_are_accurate() {
    let mut rng = TestRng::new(1);
    for (dims, reduced) in [
        (vec![1 << 20], vec![true]),
        (vec![1 << 17, 8], vec![true, false]),
        (vec![3, 1 << 17, 2], vec![false, true, false]),
        (vec![2, 3, 1 << 16], vec![true, false, true]),
    ] {
        let len: usize = dims.iter().product();
        let results: usize = dims.iter().zip(&reduced).map(|(&d, &r)| if r { 1 } else { d }).product();
        let mut x = Memory::new(len * 4);
        for i in 0..len {
            x.set(DType::F32, i, Scalar::F(1000.0 + rng.normal()));
        }
        let expr = Expr {
            steps: vec![Step::Operand { index: 0, class: Class::F32 }],
            outputs: vec![Reg(0), Reg(0)],
        };
        let operand = Operand { dtype: DType::F32, strides: dense(&dims) };
        let kinds = vec![ReduceKind::Sum, ReduceKind::Moments];
        let reduce = Reduce::new(&dims, &reduced, vec![operand], expr, kinds, vec![DType::F64; 3]);
        let mut groups: Vec<Vec<f64>> = vec![Vec::new(); results];
        for at in 0..len {
            let index = unflatten(&dims, at);
            let group = (0..dims.len()).filter(|&d| !reduced[d]).fold(0, |a, d| a * dims[d] + index[d]);
            groups[group].push(x.get(DType::F32, at).f());
        }
        for isa in isas() {
            let mut out = [0; 3].map(|_| Memory::new(results * 8));
            let outs: Vec<_> = out.iter_mut().map(Memory::ptr_mut).collect();
            run(&reduce, isa, &[x.ptr()], &outs, false);
            for (i, group) in groups.iter().enumerate() {
                let n = group.len() as f64;
                let mean = group.iter().sum::<f64>() / n;
                let var = group.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
                let got = [0, 1, 2].map(|o| out[o].get(DType::F64, i).f());
                assert!((got[0] / (mean * n) - 1.0).abs() < 1e-6, "{isa} {dims:?} sum");
                assert!((got[1] / mean - 1.0).abs() < 1e-7, "{isa} {dims:?} mean");
                assert!((got[2] / var - 1.0).abs() < 1e-5, "{isa} {dims:?} variance {} {var}", got[2]);
            }
        }
    }
}
