//! Zeros, infinities and NaN: every instruction set agrees with the reference device.

use crate::graph::{Graph, Tensor};
use crate::ops::{Conv2dOptions, PoolOptions};
use crate::runtime::{Device, Session, SessionOptions};
use tensorpack_kernels::Isa;
use tensorpack_tensor::{DType, HostTensor};

/// Special values, with ordinary ones among them.
const EDGES: [f64; 12] =
    [0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, 3.0, -100.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];

type Build = fn(&Tensor) -> Vec<Tensor>;

/// Returns the outputs of `build` on a constant, because feeds must not be NaN.
fn run(
    options: SessionOptions,
    float: DType,
    sizes: &[usize],
    values: &[f64],
    build: Build,
) -> Vec<Vec<f64>> {
    let graph = Graph::new();
    let x = graph.constant(HostTensor::from_f64(float, sizes, values).unwrap());
    let outputs = build(&x);
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    outputs.iter().map(|y| session.run(&[y], &[]).unwrap()[0].to_f64_vec()).collect()
}

/// Checks that every instruction set agrees with the reference: NaN where it has NaN, the same
/// infinities, and values that are equal up to rounding.
fn check(name: &str, sizes: &[usize], values: &[f64], build: Build) -> Result<(), String> {
    let reference = SessionOptions { device: Device::Reference, ..SessionOptions::default() };
    let right = run(reference, DType::F64, sizes, values, build);
    for (float, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
        for isa in Isa::available() {
            let options = SessionOptions { isa: Some(isa), threads: Some(1), ..SessionOptions::default() };
            let found = run(options, float, sizes, values, build);
            for (k, (found, right)) in found.iter().zip(&right).enumerate() {
                let close = |a: f64, b: f64| b.is_finite() && (a - b).abs() <= tolerance * b.abs().max(1.0);
                let same = |a: f64, b: f64| a == b || (a.is_nan() && b.is_nan()) || close(a, b);
                if let Some(i) = (0..right.len()).find(|&i| !same(found[i], right[i])) {
                    let what = format!("{name}, output {k} in {float} on {isa}");
                    return Err(format!("{what}: element {i} is {}, expected {}", found[i], right[i]));
                }
            }
        }
    }
    Ok(())
}

fn pairs(op: fn(&Tensor, &Tensor) -> Tensor, x: &Tensor) -> Vec<Tensor> {
    vec![op(&x.expand_dims(0), &x.expand_dims(1))]
}

#[test]
fn elementwise_operations_agree_with_the_reference() {
    let each: [(&str, Build); 35] = [
        ("Neg", |x| vec![-x]),
        ("Abs", |x| vec![x.abs()]),
        ("Sign", |x| vec![x.sign()]),
        ("Exp", |x| vec![x.exp()]),
        ("Log", |x| vec![x.log()]),
        ("Log1p", |x| vec![x.log1p()]),
        ("Sqrt", |x| vec![x.sqrt()]),
        ("Rsqrt", |x| vec![x.rsqrt()]),
        ("Reciprocal", |x| vec![x.reciprocal()]),
        ("Square", |x| vec![x.square()]),
        ("Tanh", |x| vec![x.tanh()]),
        ("Sigmoid", |x| vec![x.sigmoid()]),
        ("Erf", |x| vec![x.erf()]),
        ("Sin", |x| vec![x.sin()]),
        ("Cos", |x| vec![x.cos()]),
        ("Floor", |x| vec![x.floor()]),
        ("Round", |x| vec![x.round()]),
        ("Relu", |x| vec![x.relu()]),
        ("IsFinite", |x| vec![x.is_finite()]),
        ("Cast", |x| [DType::I32, DType::I64, DType::U8, DType::Bool].map(|d| x.cast(d)).to_vec()),
        ("Add", |x| pairs(|a, b| a + b, x)),
        ("Sub", |x| pairs(|a, b| a - b, x)),
        ("Mul", |x| pairs(|a, b| a * b, x)),
        ("Div", |x| pairs(|a, b| a / b, x)),
        ("Pow", |x| pairs(|a, b| a.pow(b), x)),
        ("Maximum", |x| pairs(|a, b| a.maximum(b), x)),
        ("Minimum", |x| pairs(|a, b| a.minimum(b), x)),
        ("Equal", |x| pairs(|a, b| a.equal(b), x)),
        ("NotEqual", |x| pairs(|a, b| a.not_equal(b), x)),
        ("Less", |x| pairs(|a, b| a.less(b), x)),
        ("LessEqual", |x| pairs(|a, b| a.less_equal(b), x)),
        ("Greater", |x| pairs(|a, b| a.greater(b), x)),
        ("GreaterEqual", |x| pairs(|a, b| a.greater_equal(b), x)),
        ("Select", |x| vec![x.greater(0.0).select(x, &x.one())]),
        ("Order", |x| vec![x.argsort(0), x.argsort_descending(0), x.top_k(5).1]),
    ];
    let failures: Vec<String> = each
        .into_iter()
        .filter_map(|(name, build)| check(name, &[EDGES.len()], &EDGES, build).err())
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Every pair of special values, with ordinary values before, between and after them.
#[test]
fn reductions_agree_with_the_reference() {
    let rows = EDGES.iter().flat_map(|&a| EDGES.map(|b| [2.0, a, -3.0, b, 0.25, 1.75]));
    let values: Vec<f64> = rows.flatten().collect();
    let sizes = [EDGES.len() * EDGES.len(), 6];
    let each: [(&str, Build); 9] = [
        ("Sum", |x| vec![x.sum_axes(&[1])]),
        ("Prod", |x| vec![x.prod_axes(&[1])]),
        ("Max", |x| vec![x.max_axes(&[1]), x.matrix_transpose().max_axes(&[0])]),
        ("Min", |x| vec![x.min_axes(&[1]), x.matrix_transpose().min_axes(&[0])]),
        ("ArgMax", |x| vec![x.argmax(1), x.matrix_transpose().argmax(0)]),
        ("ArgMin", |x| vec![x.argmin(1), x.matrix_transpose().argmin(0)]),
        ("Cumsum", |x| vec![x.cumsum(1)]),
        ("MatMul", |x| vec![x.matmul(&x.slice_axis(0, 0, Some(5)).matrix_transpose())]),
        ("MaxPool", |x| {
            let image = x.reshape(&[-1, 2, 3, 1]);
            let windows = PoolOptions { window: [2, 2], stride: [1, 1], ..PoolOptions::square(2) };
            vec![image.max_pool_with(windows), image.average_pool_with(windows)]
        }),
    ];
    let failures: Vec<String> =
        each.into_iter().filter_map(|(name, build)| check(name, &sizes, &values, build).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The filter is finite: fast kernels multiply infinite filter taps with the zero padding, plain
/// ones do not.
#[test]
fn convolutions_agree_with_the_reference() {
    let mut image: Vec<f64> = (0..25).map(|i| f64::from(i) - 12.0).collect();
    (image[7], image[18]) = (f64::INFINITY, f64::NAN);
    let build: Build = |x| {
        let filter: Vec<f64> = (0..9).map(|i| f64::from(i) / 4.0 - 1.0).collect();
        let filter = x.graph().constant(HostTensor::from_f64(x.dtype(), [3, 3, 1, 1], &filter).unwrap());
        vec![x.reshape(&[1, 5, 5, 1]).conv2d(&filter, Conv2dOptions::default())]
    };
    check("Conv2d", &[25], &image, build).unwrap();
}
