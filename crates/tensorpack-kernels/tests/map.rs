//! Tests of `Map` against scalar reference code in f64.

use super::oracle::{self, Input, Memory, Scalar, TestRng, isas, native, step, unflatten};
use proptest::prelude::*;
use tensorpack_kernels::expr::{Binary, Class, Expr, Reg, Step, Unary};
use tensorpack_kernels::{Block, Isa, Map, Operand};
use tensorpack_tensor::DType;

fn dims() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        4 => prop::collection::vec(0usize..7, 0..5),
        1 => prop::collection::vec(1usize..60, 2..4),
        1 => (1usize..4, 900usize..3000).prop_map(|(a, b)| vec![a, b]),
        1 => (1usize..40_000).prop_map(|a| vec![a]),
    ]
}

fn run(map: &Map, isa: Isa, operands: &[*const u8], outputs: &[*mut u8], reversed: bool) {
    let mut scratch = Memory::new(map.scratch_bytes());
    let mut chunks: Vec<usize> = (0..map.chunks()).collect();
    if reversed {
        chunks.reverse();
    }
    for chunk in chunks {
        // SAFETY: operands and outputs have the sizes that the map needs.
        unsafe { map.run(isa, chunk, operands, outputs, scratch.bytes_mut()) };
    }
}

fn outputs(len: usize, dtypes: &[DType]) -> Vec<Memory> {
    dtypes.iter().map(|d| Memory::new(len * d.size())).collect()
}

fn random_case(dims: &[usize], seed: u64) -> (Vec<Input>, Expr, TestRng) {
    let mut rng = TestRng::new(seed);
    let inputs: Vec<Input> = (0..1 + rng.below(4))
        .map(|_| {
            let (dtype, dense) = (rng.pick(&DType::ALL), rng.chance(2));
            rng.operand(dims, dtype, dense)
        })
        .collect();
    let steps = rng.below(14);
    let expr = rng.expr(dims, &inputs, steps);
    (inputs, expr, rng)
}

proptest! {
    #![proptest_config(oracle::cases(400))]

    /// Checks every step's result given the results before it, and that stored values do not depend
    /// on which results an expression keeps.
    #[test]
    fn matches_the_reference(dims in dims(), seed: u64) {
        let (inputs, expr, mut rng) = random_case(&dims, seed);
        let len: usize = dims.iter().product();
        let operands: Vec<Operand> = inputs.iter().map(|i| i.operand.clone()).collect();
        let pointers: Vec<_> = inputs.iter().map(Input::ptr).collect();
        let all: Vec<Reg> = (0..expr.steps.len() as u16).map(Reg).collect();
        let classes: Vec<DType> = all.iter().map(|&r| native(expr.class(r))).collect();
        let map = Map::new(&dims, operands.clone(), Expr { outputs: all, ..expr.clone() }, classes.clone());
        let kept: Vec<Reg> = (0..1 + rng.below(3)).map(|_| Reg(rng.below(expr.steps.len()) as u16)).collect();
        let stored: Vec<DType> = kept
            .iter()
            .map(|&r| if rng.chance(2) { rng.pick(&DType::ALL) } else { native(expr.class(r)) })
            .collect();
        let small = Map::new(&dims, operands, Expr { outputs: kept.clone(), ..expr.clone() }, stored.clone());
        let shown: Vec<usize> = (0..len).filter(|_| len < 3000 || rng.chance(len / 1000)).collect();
        for isa in isas() {
            let mut full = outputs(len, &classes);
            let outs: Vec<_> = full.iter_mut().map(Memory::ptr_mut).collect();
            run(&map, isa, &pointers, &outs, false);
            for &at in &shown {
                let index = unflatten(&dims, at);
                let got: Vec<Scalar> = full.iter().zip(&classes).map(|(m, &d)| m.get(d, at)).collect();
                for i in 0..expr.steps.len() {
                    let (want, limit, floor) = step(&expr, i, &got, &inputs, &index);
                    prop_assert!(want.near(got[i], limit, floor),
                        "{isa}, {:?} at {index:?}: {:?}, should be {want:?}; all {got:?}", expr.steps[i], got[i]);
                }
            }
            let mut some = outputs(len, &stored);
            let outs: Vec<_> = some.iter_mut().map(Memory::ptr_mut).collect();
            run(&small, isa, &pointers, &outs, true);
            for (o, (m, &dtype)) in some.iter().zip(&stored).enumerate() {
                let from = kept[o].0 as usize;
                let mut want = Memory::new(8);
                for &at in &shown {
                    want.set(dtype, 0, full[from].get(classes[from], at));
                    prop_assert!(want.get(dtype, 0).same(m.get(dtype, at)),
                        "{isa}, output {o} ({dtype}) at {at}: {:?}, should be {:?}", m.get(dtype, at), want.get(dtype, 0));
                }
            }
        }
    }

    /// Checks that any tiling into blocks gives the same bits as one run over the whole space.
    #[test]
    fn blocks_match_a_full_run(dims in dims(), seed: u64) {
        let (inputs, mut expr, mut rng) = random_case(&dims, seed);
        expr.outputs = vec![Reg(expr.steps.len() as u16 - 1), Reg(rng.below(expr.steps.len()) as u16)];
        let stored = vec![native(expr.class(expr.outputs[0])), rng.pick(&DType::ALL)];
        let len: usize = dims.iter().product();
        let operands = inputs.iter().map(|i| i.operand.clone()).collect();
        let map = Map::new(&dims, operands, expr, stored.clone());
        let pointers: Vec<_> = inputs.iter().map(Input::ptr).collect();
        let cols = dims.last().copied().unwrap_or(1);
        let rows = len.checked_div(cols).unwrap_or(0);
        let mut cuts = |n: usize| {
            let mut cuts: Vec<usize> = (0..rng.below(4)).map(|_| rng.below(n + 1)).chain([0, n]).collect();
            cuts.sort_unstable();
            cuts
        };
        let (row_cuts, col_cuts) = (cuts(rows), cuts(cols));
        for isa in isas() {
            let mut whole = outputs(len, &stored);
            run(&map, isa, &pointers, &whole.iter_mut().map(Memory::ptr_mut).collect::<Vec<_>>(), false);
            let mut pieces = outputs(len, &stored);
            let outs: Vec<_> = pieces.iter_mut().map(Memory::ptr_mut).collect();
            for r in row_cuts.windows(2) {
                for c in col_cuts.windows(2) {
                    let block = Block { rows: r[0]..r[1], cols: c[0]..c[1] };
                    let mut scratch = Memory::new(map.scratch_bytes());
                    // SAFETY: operands and outputs have the sizes that the map needs.
                    unsafe { map.run_block(isa, &block, &pointers, &outs, scratch.bytes_mut()) };
                }
            }
            for (o, &dtype) in stored.iter().enumerate() {
                for at in 0..len {
                    prop_assert!(whole[o].get(dtype, at).same(pieces[o].get(dtype, at)), "{isa} {o} at {at}");
                }
            }
        }
    }

    /// Checks that outputs in the memory of dense operands get the same results as separate
    /// outputs.
    #[test]
    fn works_in_place(dims in dims(), seed: u64) {
        let mut rng = TestRng::new(seed);
        let types = [DType::F32, DType::F32, DType::F64, DType::I64, DType::I32, DType::Bf16, DType::U8];
        let inputs: Vec<Input> = (0..3)
            .map(|i| { let t = rng.pick(&types); rng.operand(&dims, t, i < 2) })
            .collect();
        let steps = 1 + rng.below(9);
        let mut expr = rng.expr(&dims, &inputs, steps);
        expr.outputs = (0..2).map(|_| Reg(rng.below(expr.steps.len()) as u16)).collect();
        let swap = rng.below(2);
        // Output o shares the memory of dense operand o or of the other one.
        let stored: Vec<DType> = (0..2)
            .map(|o| {
                let size = inputs[o ^ swap].operand.dtype.size();
                let alike: Vec<DType> = DType::ALL.into_iter().filter(|d| d.size() == size).collect();
                rng.pick(&alike)
            })
            .collect();
        let len: usize = dims.iter().product();
        let map = Map::new(&dims, inputs.iter().map(|i| i.operand.clone()).collect(), expr, stored.clone());
        for isa in isas() {
            let mut apart = outputs(len, &stored);
            let pointers: Vec<_> = inputs.iter().map(Input::ptr).collect();
            run(&map, isa, &pointers, &apart.iter_mut().map(Memory::ptr_mut).collect::<Vec<_>>(), false);
            let mut memory: Vec<Memory> = inputs.iter().map(|i| i.memory.clone()).collect();
            let outs: Vec<_> = (0..2).map(|o| memory[o ^ swap].ptr_mut()).collect();
            let pointers = [outs[swap].cast_const(), outs[1 ^ swap].cast_const(), inputs[2].ptr()];
            run(&map, isa, &pointers, &outs, false);
            for (o, &dtype) in stored.iter().enumerate() {
                for at in 0..len {
                    prop_assert!(apart[o].get(dtype, at).same(memory[o ^ swap].get(dtype, at)), "{isa} {o} at {at}");
                }
            }
        }
    }
}

#[test]
fn chunks_partition_the_outputs() {
    for dims in [
        vec![],
        vec![0],
        vec![3, 0, 2],
        vec![5],
        vec![100_000],
        vec![3000, 32],
        vec![7, 33_333],
        vec![1000, 1000],
    ] {
        let expr = Expr {
            steps: vec![Step::Operand { index: 0, class: Class::F32 }, Step::Unary(Unary::Relu, Reg(0))],
            outputs: vec![Reg(1)],
        };
        let operand = Operand { dtype: DType::F32, strides: vec![0; dims.len()] };
        let map = Map::new(&dims, vec![operand], expr, vec![DType::F32]);
        let len: usize = dims.iter().product();
        let mut next = 0;
        for chunk in 0..map.chunks() {
            let range = map.chunk_range(chunk);
            assert_eq!(range.start, next);
            assert!(!range.is_empty() && range.len() <= 64 * 1024);
            next = range.end;
        }
        assert_eq!(next, len);
    }
}

#[test]
fn integers_keep_all_their_bits() {
    let expr = Expr {
        steps: vec![
            Step::Operand { index: 0, class: Class::I64 },
            Step::Const(1.0, Class::I64),
            Step::Binary(Binary::Add, Reg(0), Reg(1)),
        ],
        outputs: vec![Reg(2)],
    };
    let map = Map::new(&[2], vec![Operand { dtype: DType::I64, strides: vec![1] }], expr, vec![DType::I64]);
    let x = [i64::MAX, (1 << 53) + 1];
    for isa in isas() {
        let mut y = [0i64; 2];
        run(&map, isa, &[x.as_ptr().cast()], &[y.as_mut_ptr().cast()], false);
        assert_eq!(y, [i64::MIN, (1 << 53) + 2]);
    }
}
