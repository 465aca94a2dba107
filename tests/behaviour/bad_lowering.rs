//! Operations are safe code: whatever `lower` emits, the engine runs it within its buffers, or
//! rejects it with an error that names the operation and the user's line.

use tensorpack::graph::{GradCx, Graph, OpDef, Spec, Tensor, TensorSpec};
use tensorpack::kir::{
    Argsort, Binary, BufferId, Class, ContractKind, Conv2d, Cumsum, GatherKind, GatherScatter, LowerCx,
    MatMul, Nms, Pool, PoolKind, ReduceKind, View,
};
use tensorpack::runtime::{Session, SessionOptions};
use tensorpack::{DType, ErrorKind, HostTensor, Result};

/// An operation on `f32[2, 3]` with a wrong lowering.
struct Case {
    name: &'static str,
    /// Dtype and sizes of its output.
    output: (DType, &'static [usize]),
    lower: fn(&mut LowerCx<'_>) -> View,
    kind: ErrorKind,
}

const SAME: (DType, &[usize]) = (DType::F32, &[2, 3]);

const MATMUL: MatMul = MatMul {
    batch: 1,
    m: 2,
    n: 3,
    k: 3,
    lhs_transposed: false,
    rhs_transposed: false,
    lhs_shared: false,
    rhs_shared: false,
};

const CONV: Conv2d = Conv2d {
    batch: 1,
    in_size: [2, 3],
    in_channels: 1,
    out_channels: 1,
    kernel: [1, 1],
    stride: [1, 1],
    dilation: [1, 1],
    pad_low: [0, 0],
    out_size: [2, 3],
};

fn pool() -> Pool {
    Pool {
        batch: 1,
        in_size: [2, 3],
        channels: 1,
        window: [1, 1],
        stride: [1, 1],
        pad_low: [0, 0],
        out_size: [2, 3],
    }
}

fn matmul(cx: &mut LowerCx<'_>, matmul: MatMul) -> View {
    let x = cx.input(0);
    cx.contract(ContractKind::MatMul(matmul), &x, &x)
}

fn conv(cx: &mut LowerCx<'_>, conv: Conv2d) -> View {
    let x = cx.input(0);
    let filter = cx.input(0).slice(&[0, 0], &[1, 1], &[1, 1]);
    cx.contract(ContractKind::Conv2d(conv), &x, &filter)
}

fn argsort(cx: &mut LowerCx<'_>, rows: usize, len: usize, take: usize) -> View {
    let x = cx.input(0);
    cx.argsort(Argsort { rows, len, take, descending: false }, &x)
}

fn gather(cx: &mut LowerCx<'_>, kind: GatherKind, gather: GatherScatter) -> View {
    let x = cx.input(0);
    let indices = cx.constant(HostTensor::new([2], vec![0i64, 1]).unwrap());
    cx.gather(kind, gather, &x, &indices)
}

/// A check of two integers with a table of the output's sizes.
fn nonzero(cx: &mut LowerCx<'_>, gather: GatherScatter) -> View {
    let table = cx.constant(HostTensor::zeros(DType::I64, cx.output_sizes(0).as_slice()).unwrap());
    let integers = cx.constant(HostTensor::new([2], vec![1i64, 2]).unwrap());
    cx.gather(GatherKind::NonZero, gather, &table, &integers)
}

const CASES: &[Case] = &[
    Case {
        name: "a view past the end",
        output: SAME,
        lower: |cx| View { offset: 1, ..cx.input(0) },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "a view before the beginning",
        output: SAME,
        lower: |cx| View { strides: vec![-3, 1], ..cx.input(0) },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "strides whose extent overflows 64 bits",
        output: SAME,
        lower: |cx| View { strides: vec![isize::MAX, isize::MAX], ..cx.input(0) },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "an offset of usize::MAX",
        output: SAME,
        lower: |cx| View { offset: usize::MAX, ..cx.input(0) },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "fewer strides than dimensions",
        output: SAME,
        lower: |cx| View { strides: vec![1], ..cx.input(0) },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "a buffer that does not exist",
        output: SAME,
        lower: |cx| View { buffer: BufferId(999), ..cx.input(0) },
        kind: ErrorKind::Argument,
    },
    Case {
        name: "a view of another dtype",
        output: (DType::F64, &[2, 3]),
        lower: |cx| View { dtype: DType::F64, ..cx.input(0) },
        kind: ErrorKind::DType,
    },
    Case {
        name: "a map over a buffer that does not exist",
        output: SAME,
        lower: |cx| {
            let x = View { buffer: BufferId(999), ..cx.input(0) };
            cx.map(&[&x], |_, r| r[0])
        },
        kind: ErrorKind::Argument,
    },
    Case {
        name: "a map over sizes that do not broadcast",
        output: SAME,
        lower: |cx| {
            let x = View { sizes: vec![2, 2], ..cx.input(0) };
            cx.map(&[&x], |_, r| r[0])
        },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "a map over more elements than its operand has",
        output: SAME,
        lower: |cx| {
            let x = View { sizes: vec![20, 3], strides: vec![3, 1], ..cx.input(0) };
            let mapped = cx.map_to(DType::F32, &[20, 3], &[&x], |_, r| r[0]);
            View { sizes: vec![2, 3], ..mapped }
        },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "a map that adds values of different classes",
        output: SAME,
        lower: |cx| {
            let x = cx.input(0);
            cx.map(&[&x], |e, r| {
                let one = e.constant(1.0, Class::F64);
                e.binary(Binary::Add, r[0], one)
            })
        },
        kind: ErrorKind::DType,
    },
    Case {
        name: "a map with the index of a dimension that does not exist",
        output: SAME,
        lower: |cx| cx.map(&[], |e, _| e.index(2, Class::F32)),
        kind: ErrorKind::Argument,
    },
    Case {
        name: "an operand that does not exist",
        output: SAME,
        lower: |cx| cx.map(&[], |e, _| e.operand(0, DType::F32, Class::F32)),
        kind: ErrorKind::Argument,
    },
    Case {
        name: "a reduction with too few flags for its dimensions",
        output: SAME,
        lower: |cx| {
            let x = cx.input(0);
            cx.reduce(ReduceKind::Sum, DType::F32, &[2, 3], &[false], &[&x], |_, r| r[0]);
            x
        },
        kind: ErrorKind::Argument,
    },
    Case {
        name: "a reduction that would take years",
        output: (DType::F32, &[]),
        lower: |cx| {
            let one = cx.input(0).slice(&[0, 0], &[1, 1], &[1, 1]);
            let (sizes, reduced) = ([1 << 30, 1 << 20], [true, true]);
            cx.reduce(ReduceKind::Sum, DType::F32, &sizes, &reduced, &[&one], |_, r| r[0]).remove(0)
        },
        kind: ErrorKind::Memory,
    },
    Case {
        name: "a matmul of more rows than its operand has",
        output: SAME,
        lower: |cx| matmul(cx, MatMul { m: 20, ..MATMUL }),
        kind: ErrorKind::Shape,
    },
    Case {
        name: "a matmul whose sizes overflow 64 bits",
        output: SAME,
        lower: |cx| matmul(cx, MatMul { m: 1 << 40, k: 1 << 40, ..MATMUL }),
        kind: ErrorKind::Memory,
    },
    Case {
        name: "a matmul of integers",
        output: (DType::I32, &[2, 2]),
        lower: |cx| {
            let x = cx.input(0);
            let i = cx.map_to(DType::I32, &[2, 3], &[&x], |e, r| e.cast(Class::I64, r[0]));
            let kind = MatMul { n: 2, rhs_transposed: true, ..MATMUL };
            cx.contract(ContractKind::MatMul(kind), &i, &i)
        },
        kind: ErrorKind::DType,
    },
    Case {
        name: "a convolution of an image larger than its buffer",
        output: SAME,
        lower: |cx| conv(cx, Conv2d { in_size: [20, 30], ..CONV }),
        kind: ErrorKind::Shape,
    },
    Case {
        name: "a convolution with stride 0",
        output: SAME,
        lower: |cx| conv(cx, Conv2d { stride: [0, 1], ..CONV }),
        kind: ErrorKind::Argument,
    },
    Case {
        name: "a convolution whose filter is too small",
        output: SAME,
        lower: |cx| conv(cx, Conv2d { kernel: [3, 3], pad_low: [1, 1], ..CONV }),
        kind: ErrorKind::Shape,
    },
    Case {
        name: "a depthwise convolution that adds channels",
        output: (DType::F32, &[1, 2, 3, 2]),
        lower: |cx| {
            let x = cx.input(0);
            let filter = cx.input(0).slice(&[0, 0], &[1, 1], &[1, 1]);
            let kind = ContractKind::Depthwise(Conv2d { out_channels: 2, ..CONV });
            cx.contract(kind, &x, &filter)
        },
        kind: ErrorKind::Argument,
    },
    Case {
        name: "pooling of an image larger than its buffer",
        output: SAME,
        lower: |cx| {
            let x = cx.input(0);
            cx.pool(PoolKind::Average, Pool { in_size: [200, 300], ..pool() }, &[x]).remove(0)
        },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "pooling with stride 0",
        output: SAME,
        lower: |cx| {
            let x = cx.input(0);
            cx.pool(PoolKind::Average, Pool { stride: [1, 0], ..pool() }, &[x]).remove(0)
        },
        kind: ErrorKind::Argument,
    },
    Case {
        name: "max pooling with one output: values without indices",
        output: SAME,
        lower: |cx| {
            let x = cx.input(0);
            cx.pool(PoolKind::Max, pool(), &[x]).remove(0)
        },
        kind: ErrorKind::Argument,
    },
    Case {
        name: "the gradient of max pooling without inputs",
        output: SAME,
        lower: |cx| cx.pool(PoolKind::MaxGrad, pool(), &[]).remove(0),
        kind: ErrorKind::Argument,
    },
    Case {
        name: "padding to a size other than the declared one",
        output: SAME,
        lower: |cx| {
            let x = cx.input(0);
            cx.pad(&x, &[100, 0], &[0, 0], &[0, 0])
        },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "padding for one dimension of two",
        output: SAME,
        lower: |cx| {
            let x = cx.input(0);
            cx.pad(&x, &[0], &[0], &[0])
        },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "padding that overflows 64 bits",
        output: SAME,
        lower: |cx| {
            let x = cx.input(0);
            cx.pad(&x, &[usize::MAX, 0], &[5, 0], &[0, usize::MAX])
        },
        kind: ErrorKind::Memory,
    },
    Case {
        name: "a concat longer than the declared output",
        output: SAME,
        lower: |cx| {
            let x = cx.input(0);
            cx.concat(&[x.clone(), x], 0)
        },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "a concat of nothing",
        output: SAME,
        lower: |cx| cx.concat(&[], 0),
        kind: ErrorKind::Argument,
    },
    Case {
        name: "a concat along a dimension that does not exist",
        output: SAME,
        lower: |cx| {
            let x = cx.input(0);
            cx.concat(&[x], 2)
        },
        kind: ErrorKind::Argument,
    },
    Case {
        name: "a gather from a table larger than its buffer",
        output: SAME,
        lower: |cx| {
            let sizes = GatherScatter { batch: 1, rows: 1 << 20, width: 3, count: 2, shared: true };
            gather(cx, GatherKind::Gather, sizes)
        },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "a gather of more indices than its operand has",
        output: SAME,
        lower: |cx| {
            let sizes = GatherScatter { batch: 1, rows: 2, width: 3, count: 200, shared: true };
            gather(cx, GatherKind::Gather, sizes)
        },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "a scatter-add into a table larger than the output",
        output: SAME,
        lower: |cx| {
            let sizes = GatherScatter { batch: 1, rows: 1 << 20, width: 3, count: 2, shared: true };
            gather(cx, GatherKind::ScatterAdd, sizes)
        },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "a check of fewer integers than it copies",
        output: (DType::I64, &[4]),
        lower: |cx| nonzero(cx, GatherScatter { batch: 2, rows: 2, width: 1, count: 2, shared: true }),
        kind: ErrorKind::Argument,
    },
    Case {
        name: "a check of integers into an empty output",
        output: (DType::I64, &[0]),
        lower: |cx| nonzero(cx, GatherScatter { batch: 1, rows: 2, width: 0, count: 2, shared: false }),
        kind: ErrorKind::Argument,
    },
    Case {
        name: "a cumsum over more elements than its operand has",
        output: SAME,
        lower: |cx| {
            let x = cx.input(0);
            cx.cumsum(Cumsum { outer: 2, len: 300, inner: 1, exclusive: false, reverse: false }, &x)
        },
        kind: ErrorKind::Shape,
    },
    Case {
        name: "an argsort of rows longer than its operand",
        output: (DType::I64, &[2, 3]),
        lower: |cx| argsort(cx, 2, 300, 3),
        kind: ErrorKind::Shape,
    },
    Case {
        name: "an argsort that returns more indices than elements",
        output: (DType::I64, &[2, 9]),
        lower: |cx| argsort(cx, 2, 3, 9),
        kind: ErrorKind::Argument,
    },
    Case {
        name: "an argsort whose indices are not i64",
        output: SAME,
        lower: |cx| argsort(cx, 2, 3, 3),
        kind: ErrorKind::DType,
    },
    Case {
        name: "a suppression of floats",
        output: (DType::Bool, &[2]),
        lower: |cx| {
            let x = cx.input(0);
            cx.nms(Nms { rows: 1, len: 2 }, &x)
        },
        kind: ErrorKind::DType,
    },
    Case {
        name: "random numbers with an integer output",
        output: (DType::I32, &[2, 3]),
        lower: |cx| cx.random("stream", &[2, 3], false),
        kind: ErrorKind::DType,
    },
    Case {
        name: "an all-reduce of integers",
        output: (DType::I32, &[2, 3]),
        lower: |cx| {
            let x = cx.input(0);
            let i = cx.map_to(DType::I32, &[2, 3], &[&x], |e, r| e.cast(Class::I64, r[0]));
            cx.all_reduce("key", &i)
        },
        kind: ErrorKind::DType,
    },
];

#[derive(Debug, PartialEq, Eq, Hash)]
struct Bad(usize);

impl OpDef for Bad {
    fn name(&self) -> &str {
        "Bad"
    }

    fn infer(&self, _: &[Spec]) -> Result<Vec<Spec>> {
        let (dtype, sizes) = CASES[self.0].output;
        Ok(vec![Spec::new(dtype, sizes)])
    }

    fn grad(&self, _: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        Ok(vec![(CASES[self.0].lower)(cx)])
    }
}

#[test]
fn every_bad_lowering_is_an_error_that_names_the_operation() {
    let mut wrong = Vec::new();
    for (i, case) in CASES.iter().enumerate() {
        let graph = Graph::new();
        let x = graph.placeholder(&TensorSpec::f32("x", [Some(2), Some(3)]));
        let line = line!() + 1;
        let y = Tensor::apply_one(Bad(i), &[&x]);
        // A view of the declared output.
        let order: Vec<usize> = (0..y.rank()).rev().collect();
        let z = y.transpose(&order).cast(DType::F32).sum();
        let options = SessionOptions { memory_limit: Some(1 << 30), ..SessionOptions::default() };
        let session = Session::with(graph.freeze().unwrap(), options).unwrap();
        let fed = HostTensor::new([2, 3], vec![1.0f32; 6]).unwrap();
        match session.run(&[&y, &z], &[("x", &fed)]) {
            Ok(values) => wrong.push(format!("{}: {values:?}", case.name)),
            Err(e) => {
                let site = e.site().is_some_and(|s| s.file.ends_with("bad_lowering.rs") && s.line == line);
                if e.kind() != case.kind || !e.message().starts_with("Bad") || !site {
                    wrong.push(format!("{}: {:?} {e}", case.name, e.kind()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
