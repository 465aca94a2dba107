//! Integers: sums are i64, and operations that would round silently are rejected.

use super::{assert_error, engines, session};
use tensorpack::graph::{Graph, Tensor, TensorSpec};
use tensorpack::runtime::{Device, Session};
use tensorpack::{DType, ErrorKind, HostTensor, Result};

/// Runs `build` on one input.
fn run(device: Device, x: &HostTensor, build: impl Fn(&Tensor) -> Tensor) -> Result<HostTensor> {
    let graph = Graph::new();
    let sizes: Vec<Option<usize>> = x.sizes().iter().map(|&n| Some(n)).collect();
    let y = build(&graph.placeholder(&TensorSpec::new("x", x.dtype(), sizes)));
    let session = session(graph, device)?;
    Ok(session.run(&[&y], &[("x", x)])?.remove(0))
}

#[test]
fn sums_of_small_integers_are_i64() {
    let bytes = HostTensor::new([3], vec![200u8, 100, 50]).unwrap();
    let large = HostTensor::new([2], vec![i32::MAX, i32::MAX]).unwrap();
    let flags = HostTensor::new([2, 2], vec![true, true, false, true]).unwrap();
    for device in engines() {
        let sum = run(device, &bytes, Tensor::sum).unwrap();
        assert_eq!(sum, HostTensor::scalar(350i64), "{device}");
        let sum = run(device, &large, Tensor::sum).unwrap();
        assert_eq!(sum, HostTensor::scalar(2 * i64::from(i32::MAX)), "{device}");
        let sum = run(device, &flags, |x| x.sum_axes(&[1])).unwrap();
        assert_eq!(sum, HostTensor::new([2], vec![2i64, 1]).unwrap(), "{device}");
        let product = run(device, &bytes, |x| x.prod_axes(&[0])).unwrap();
        assert_eq!(product, HostTensor::scalar(1_000_000i64), "{device}");
        let sums = run(device, &large, |x| x.cumsum(0)).unwrap();
        assert_eq!(sums, HostTensor::new([2], vec![i64::from(i32::MAX), 2 * i64::from(i32::MAX)]).unwrap());
        let sums = run(device, &flags, |x| x.cumsum(1)).unwrap();
        assert_eq!(sums, HostTensor::new([2, 2], vec![1i64, 2, 0, 1]).unwrap(), "{device}");
        // A maximum keeps the dtype of its input.
        let top = run(device, &bytes, |x| x.max_axes(&[])).unwrap();
        assert_eq!(top, HostTensor::scalar(200u8), "{device}");
    }
}

#[test]
fn division_by_zero_is_an_error() {
    for device in engines() {
        for dtype in [DType::I32, DType::I64, DType::U8] {
            let graph = Graph::new();
            let [a, b] = ["a", "b"].map(|n| graph.placeholder(&TensorSpec::new(n, dtype, [Some(3)])));
            let line = line!() + 1;
            let ratio = &a / &b;
            let session = session(graph, device).unwrap();
            let of = |v: [f64; 3]| HostTensor::from_f64(dtype, [3], &v).unwrap();
            let divide = |b: [f64; 3]| {
                session.run(&[&ratio], &[("a", &of([7.0, 8.0, 9.0])), ("b", &of(b))]).map(|mut y| y.remove(0))
            };
            assert_eq!(divide([2.0, 3.0, 4.0]).unwrap(), of([3.0, 2.0, 2.0]), "{device} {dtype}");
            let e = assert_error(divide([2.0, 0.0, 0.0]), ErrorKind::Argument, &["zero", "element 1"]);
            assert_eq!(e.site().unwrap().line, line, "{e}");
            // The session remains usable.
            assert_eq!(divide([1.0, 8.0, 10.0]).unwrap(), of([7.0, 1.0, 0.0]), "{device} {dtype}");
        }
    }
}

/// A broadcast divisor is checked once, wherever its zero is.
#[test]
fn division_by_a_broadcast_zero_is_an_error() {
    for device in engines() {
        let graph = Graph::new();
        let a = graph.placeholder(&TensorSpec::i32("a", [None, Some(2)]));
        let b = graph.placeholder(&TensorSpec::i32("b", [Some(2)]));
        let ratio = &a / &b;
        let session = session(graph, device).unwrap();
        let a = HostTensor::new([2, 2], vec![7i32, 8, 9, 10]).unwrap();
        let run = |b: [i32; 2]| {
            let b = HostTensor::new([2], b.to_vec()).unwrap();
            session.run(&[&ratio], &[("a", &a), ("b", &b)]).map(|mut y| y.remove(0))
        };
        assert_eq!(run([2, -3]).unwrap(), HostTensor::new([2, 2], vec![3i32, -2, 4, -3]).unwrap());
        assert_error(run([2, 0]), ErrorKind::Argument, &["zero"]);
    }
}

#[test]
fn fractions_of_integers_are_rejected_at_the_users_line() {
    let build = |op: fn(&Tensor) -> Tensor| {
        let graph = Graph::new();
        op(&graph.placeholder(&TensorSpec::i32("x", [None])));
        graph.freeze().map(|_| ())
    };
    for op in [
        |x: &Tensor| x * 0.5,
        |x: &Tensor| 0.25 + x,
        |x: &Tensor| x - 1.5,
        |x: &Tensor| x / 2.0,
        |x: &Tensor| 2.0 / x,
        |x: &Tensor| x * f64::NAN,
        |x: &Tensor| x + 3e9,
        |x: &Tensor| x.clip(0.5, 2.0),
        |x: &Tensor| x.greater(0.5),
        |x: &Tensor| x.maximum(f64::INFINITY),
        |x: &Tensor| x.full_like(-0.5),
        |x: &Tensor| x.leaky_relu(0.1),
        |x: &Tensor| x.mean(),
        |x: &Tensor| x.mean_axes(&[0]),
        |x: &Tensor| x.mean_keep(&[0]),
    ] {
        assert_error(build(op), ErrorKind::DType, &["i32", "cast to f32 first"]);
    }
    // Exact operations are allowed.
    for op in [
        |x: &Tensor| x * 2.0,
        |x: &Tensor| 1.0 + x,
        |x: &Tensor| x - 7.0,
        |x: &Tensor| x.clip(-3.0, 9.0),
        |x: &Tensor| x.less_equal(-3.0),
        |x: &Tensor| x.ones_like(),
    ] {
        build(op).unwrap();
    }
}

#[test]
fn literals_that_overflow_a_float_type_are_errors() {
    type Op = fn(&Tensor) -> Tensor;
    let build = |dtype: DType, op: Op| {
        let graph = Graph::new();
        op(&graph.placeholder(&TensorSpec::new("x", dtype, [None])));
        graph.freeze().map(|_| ())
    };
    let overflows: [(DType, Op); 4] = [
        (DType::F32, |x| x.full_like(1e39)),
        (DType::F32, |x| x * -1e39),
        (DType::F16, |x| x + 7e4),
        (DType::Bf16, |x| x.minimum(3.4e38)),
    ];
    for (dtype, op) in overflows {
        assert_error(build(dtype, op), ErrorKind::DType, &["overflows", &dtype.to_string(), "f64::INFINITY"]);
    }
    build(DType::F32, |x| x.minimum(f64::INFINITY) + f64::NAN + 3.4e38 + 1e-300).unwrap();
    build(DType::F64, |x| x.full_like(1e39)).unwrap();
    build(DType::F16, |x| x.full_like(65504.0)).unwrap();
}

#[test]
fn tensors_are_compared_with_numbers() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::i32("x", [None]));
    let found = [x.greater(1.0), x.less(1.0), x.equal(1.0), x.not_equal(1.0)];
    let [low, high] = [x.minimum(1.0), x.maximum(1.0)];
    let [zeros, fives] = [x.zeros_like(), x.full_like(5.0)];
    let not = found[0].equal(0.0);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    for values in [vec![0i32, 1, 2], vec![-7], vec![]] {
        let x = HostTensor::new([values.len()], values.clone()).unwrap();
        let bools =
            |of: fn(i32) -> bool| HostTensor::new([values.len()], values.iter().map(|&x| of(x)).collect());
        let ints =
            |of: fn(i32) -> i32| HostTensor::new([values.len()], values.iter().map(|&x| of(x)).collect());
        let [a, b, c, d] = &found;
        let run = session.run(&[a, b, c, d, &not, &low, &high, &zeros, &fives], &[("x", &x)]).unwrap();
        let expected =
            [bools(|x| x > 1), bools(|x| x < 1), bools(|x| x == 1), bools(|x| x != 1), bools(|x| x <= 1)];
        assert_eq!(run[..5], expected.map(Result::unwrap));
        assert_eq!(
            run[5..],
            [ints(|x| x.min(1)), ints(|x| x.max(1)), ints(|_| 0), ints(|_| 5)].map(Result::unwrap)
        );
    }
    let graph = Graph::new();
    let mask = graph.placeholder(&TensorSpec::new("mask", DType::Bool, [None]));
    let _ = mask.equal(2.0);
    assert_error(graph.freeze().map(|_| ()), ErrorKind::DType, &["2", "bool"]);
}
