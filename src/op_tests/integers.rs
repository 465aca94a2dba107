//! Integers, booleans, bf16 and f16, whose results are exact.

use crate::graph::{Graph, Tensor, TensorSpec};
use crate::runtime::{Device, Session, SessionOptions};
use tensorpack_kernels::Isa;
use tensorpack_tensor::{CounterRng, DType, HostTensor, bf16, f16};

/// Returns the result of `build` on `inputs`. It must be the same on every instruction set and on
/// the reference device.
fn run(inputs: &[&HostTensor], build: impl Fn(&[Tensor]) -> Tensor) -> HostTensor {
    let found = on_engines(inputs, &build);
    let options = SessionOptions { device: Device::Reference, ..SessionOptions::default() };
    let reference = run_with(options, inputs, &build);
    // The reference device converts floats in one step, without an intermediate dtype.
    let close = match found.dtype() {
        DType::Bf16 => 1e-2,
        DType::F16 => 1e-3,
        DType::F32 => 1e-7,
        _ => 0.0,
    };
    let apart = |(a, b): (f64, f64)| (a - b).abs() > close * a.abs();
    let differ = match found.dtype().is_float() {
        true => reference.to_f64_vec().into_iter().zip(found.to_f64_vec()).any(apart),
        false => reference != found,
    };
    assert!(!differ && reference.sizes() == found.sizes(), "{found:?}, but the reference has {reference:?}");
    found
}

/// Returns the result of `build` on `inputs`. It must be the same on every instruction set.
fn on_engines(inputs: &[&HostTensor], build: impl Fn(&[Tensor]) -> Tensor) -> HostTensor {
    let mut results = Isa::available().map(|isa| {
        let options = SessionOptions { isa: Some(isa), threads: Some(1), ..SessionOptions::default() };
        run_with(options, inputs, &build)
    });
    let first = results.next().expect("the plain loops are always available");
    for other in results {
        assert_eq!(first.as_bytes(), other.as_bytes(), "instruction sets disagree: {first:?} and {other:?}");
    }
    first
}

fn run_with(
    options: SessionOptions,
    inputs: &[&HostTensor],
    build: impl Fn(&[Tensor]) -> Tensor,
) -> HostTensor {
    let graph = Graph::new();
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("x{i}")).collect();
    let tensors: Vec<Tensor> = inputs
        .iter()
        .zip(&names)
        .map(|(v, name)| {
            let sizes: Vec<Option<usize>> = v.sizes().iter().map(|&n| Some(n)).collect();
            graph.placeholder(&TensorSpec::new(name.as_str(), v.dtype(), sizes))
        })
        .collect();
    let y = build(&tensors);
    let session = Session::with(graph.freeze().unwrap(), options).unwrap();
    let feeds: Vec<(&str, &HostTensor)> =
        names.iter().map(String::as_str).zip(inputs.iter().copied()).collect();
    session.run(&[&y], &feeds).unwrap().remove(0)
}

/// Random integers, with the extremes of the dtype among them.
pub(super) fn integers(dtype: DType, stream: &str, n: usize) -> (HostTensor, Vec<i64>) {
    let rng = CounterRng::new(5, stream);
    let word = |i: usize| (i64::from(rng.word(0, i as u64)) << 32) | i64::from(rng.word(1, i as u64));
    let narrow = |v: i64| match dtype {
        DType::I32 => i64::from(v as i32),
        DType::U8 => i64::from(v as u8),
        _ => v,
    };
    let extremes = [0, 1, -1, 2, 255, i64::MIN, i64::MAX, i64::from(i32::MIN), i64::from(i32::MAX)];
    let value = |i: usize| match i % 3 {
        0 => extremes[i / 3 % extremes.len()],
        1 => word(i) >> 56,
        _ => word(i),
    };
    let values: Vec<i64> = (0..n).map(|i| narrow(value(i))).collect();
    (tensor(dtype, &[n], &values), values)
}

fn tensor(dtype: DType, sizes: &[usize], values: &[i64]) -> HostTensor {
    match dtype {
        DType::I32 => HostTensor::new(sizes, values.iter().map(|&v| v as i32).collect()),
        DType::U8 => HostTensor::new(sizes, values.iter().map(|&v| v as u8).collect()),
        DType::Bool => HostTensor::new(sizes, values.iter().map(|&v| v != 0).collect()),
        _ => HostTensor::new(sizes, values.to_vec()),
    }
    .unwrap()
}

/// Replaces zeros with ones.
fn without_zeros(x: &Tensor) -> Tensor {
    x.equal(0.0).select(&x.one(), x)
}

pub(super) type Pair = (&'static str, fn(&Tensor, &Tensor) -> Tensor, fn(i64, i64) -> i64);
pub(super) type Single = (&'static str, fn(&Tensor) -> Tensor, fn(i64) -> i64);

pub(super) const PAIRS: [Pair; 12] = [
    ("Add", |a, b| a + b, i64::wrapping_add),
    ("Sub", |a, b| a - b, i64::wrapping_sub),
    ("Mul", |a, b| a * b, i64::wrapping_mul),
    // Division by zero is an error; `tests/numerics` tests it.
    ("Div", |a, b| a / without_zeros(b), |a, b| if b == 0 { a } else { a.wrapping_div(b) }),
    ("Maximum", |a, b| a.maximum(b), |a, b| a.max(b)),
    ("Minimum", |a, b| a.minimum(b), |a, b| a.min(b)),
    ("Equal", |a, b| a.equal(b), |a, b| i64::from(a == b)),
    ("NotEqual", |a, b| a.not_equal(b), |a, b| i64::from(a != b)),
    ("Less", |a, b| a.less(b), |a, b| i64::from(a < b)),
    ("LessEqual", |a, b| a.less_equal(b), |a, b| i64::from(a <= b)),
    ("Greater", |a, b| a.greater(b), |a, b| i64::from(a > b)),
    ("GreaterEqual", |a, b| a.greater_equal(b), |a, b| i64::from(a >= b)),
];

pub(super) const SINGLES: [Single; 5] = [
    ("Neg", |x| -x, i64::wrapping_neg),
    ("Abs", Tensor::abs, i64::wrapping_abs),
    ("Sign", Tensor::sign, i64::signum),
    ("Square", Tensor::square, |x| x.wrapping_mul(x)),
    ("Relu", Tensor::relu, |x| x.max(0)),
];

#[test]
fn arithmetic_is_exact_and_wraps() {
    for dtype in [DType::I32, DType::I64, DType::U8] {
        let ((a, xs), (b, ys)) = (integers(dtype, "a", 83), integers(dtype, "b", 83));
        for (name, op, right) in PAIRS {
            let found = run(&[&a, &b], |t| op(&t[0], &t[1]));
            let right: Vec<i64> = xs.iter().zip(&ys).map(|(&x, &y)| right(x, y)).collect();
            assert_eq!(found, tensor(found.dtype(), &[83], &right), "{name} of {dtype}");
        }
        for (name, op, right) in SINGLES {
            let found = run(&[&a], |t| op(&t[0]));
            let right: Vec<i64> = xs.iter().map(|&x| right(x)).collect();
            assert_eq!(found, tensor(dtype, &[83], &right), "{name} of {dtype}");
        }
    }
}

#[test]
fn fused_arithmetic_wraps_at_every_step() {
    let chain = |x: &Tensor, y: &Tensor| ((x * y).maximum(&(x + y)) / without_zeros(&(y - x))).less(&(x * x));
    for dtype in [DType::I32, DType::I64, DType::U8] {
        let ((a, xs), (b, ys)) = (integers(dtype, "c", 83), integers(dtype, "d", 83));
        let narrow = |v: i64| match dtype {
            DType::I32 => i64::from(v as i32),
            DType::U8 => i64::from(v as u8),
            _ => v,
        };
        let right = xs.iter().zip(&ys).map(|(&x, &y)| {
            let largest = narrow(x.wrapping_mul(y)).max(narrow(x.wrapping_add(y)));
            let by = narrow(y.wrapping_sub(x));
            let ratio = if by == 0 { largest } else { narrow(largest.wrapping_div(by)) };
            i64::from(ratio < narrow(x.wrapping_mul(x)))
        });
        let right: Vec<i64> = right.collect();
        assert_eq!(run(&[&a, &b], |t| chain(&t[0], &t[1])), tensor(DType::Bool, &[83], &right), "{dtype}");
    }
}

#[test]
fn reductions_are_exact() {
    for dtype in [DType::I32, DType::I64, DType::U8] {
        let (flat, values) = integers(dtype, "e", 84);
        let x = tensor(dtype, &[7, 12], &values);
        let columns = |fold: fn(i64, i64) -> i64, from: i64| -> Vec<i64> {
            (0..12).map(|c| (0..7).map(|r| values[r * 12 + c]).fold(from, fold)).collect()
        };
        // Sums and products of any integer dtype are i64.
        let sums = tensor(DType::I64, &[12], &columns(i64::wrapping_add, 0));
        assert_eq!(run(&[&x], |t| t[0].sum_axes(&[0])), sums, "sum of {dtype}");
        let products = tensor(DType::I64, &[12], &columns(i64::wrapping_mul, 1));
        assert_eq!(run(&[&x], |t| t[0].prod_axes(&[0])), products, "product of {dtype}");
        assert_eq!(run(&[&x], |t| t[0].max_axes(&[0])), tensor(dtype, &[12], &columns(i64::max, i64::MIN)));
        assert_eq!(run(&[&x], |t| t[0].min_axes(&[0])), tensor(dtype, &[12], &columns(i64::min, i64::MAX)));
        let top = values.iter().max().unwrap();
        let place = values.iter().position(|v| v == top).unwrap() as i64;
        assert_eq!(run(&[&flat], |t| t[0].argmax(0)), HostTensor::new([], vec![place]).unwrap());
    }
}

#[test]
fn large_integer_constants_keep_all_their_digits() {
    let large = (1i64 << 53) + 1;
    let x = tensor(DType::I64, &[2], &[0, 5]);
    let found = run(&[&x], |t| &t[0] + t[0].graph().constant(HostTensor::scalar(large)));
    assert_eq!(found, tensor(DType::I64, &[2], &[large, large + 5]));
}

/// Casts one value to each element type with Rust's `as`.
fn cast(from: &HostTensor, to: DType) -> HostTensor {
    macro_rules! every {
        ($values:expr) => {{
            let values = $values;
            let sizes = from.sizes();
            match to {
                DType::F32 => HostTensor::new(sizes, values.iter().map(|&v| v as f32).collect()),
                DType::F64 => HostTensor::new(sizes, values.iter().map(|&v| v as f64).collect()),
                DType::Bf16 => {
                    HostTensor::new(sizes, values.iter().map(|&v| bf16::from_f32(v as f32)).collect())
                }
                DType::F16 => {
                    HostTensor::new(sizes, values.iter().map(|&v| f16::from_f32(v as f32)).collect())
                }
                DType::I32 => HostTensor::new(sizes, values.iter().map(|&v| v as i32).collect()),
                DType::I64 => HostTensor::new(sizes, values.iter().map(|&v| v as i64).collect()),
                DType::U8 => HostTensor::new(sizes, values.iter().map(|&v| v as u8).collect()),
                DType::Bool => HostTensor::new(sizes, values.iter().map(|&v| v as f64 != 0.0).collect()),
            }
            .unwrap()
        }};
    }
    match from.dtype() {
        DType::F32 => every!(from.as_slice::<f32>().unwrap()),
        DType::F64 => every!(from.as_slice::<f64>().unwrap()),
        DType::I32 => every!(from.as_slice::<i32>().unwrap()),
        DType::I64 => every!(from.as_slice::<i64>().unwrap()),
        DType::U8 => every!(from.as_slice::<u8>().unwrap()),
        DType::Bf16 => {
            let wide: Vec<f32> = from.as_slice::<bf16>().unwrap().iter().map(|v| v.to_f32()).collect();
            every!(&wide)
        }
        DType::F16 => {
            let wide: Vec<f32> = from.as_slice::<f16>().unwrap().iter().map(|v| v.to_f32()).collect();
            every!(&wide)
        }
        DType::Bool => {
            let wide: Vec<u8> = from.as_slice::<bool>().unwrap().iter().map(|&v| u8::from(v)).collect();
            every!(&wide)
        }
    }
}

/// Values of a dtype, some outside the range of most other dtypes.
pub(super) fn samples(dtype: DType) -> HostTensor {
    let floats = [
        0.0, -0.0, 1.0, -1.0, 0.5, -1.5, 2.5, 100.7, 255.4, 256.0, 300.0, -7.9, 1e6, 3e9, -3e9, 1e-3, 1.0009,
    ];
    match dtype {
        d if d.is_float() => {
            // f16 ends at 65504, and inputs must be finite.
            let fit = |v: &f64| d != DType::F16 || v.abs() < 65504.0;
            let floats: Vec<f64> = floats.into_iter().filter(fit).collect();
            HostTensor::from_f64(d, [floats.len()], &floats).unwrap()
        }
        d => integers(d, "samples", 40).0,
    }
}

#[test]
fn casts_behave_like_rust_casts() {
    for from in DType::ALL {
        for to in DType::ALL {
            let x = samples(from);
            assert_eq!(run(&[&x], |t| t[0].cast(to)), cast(&x, to), "{from} as {to}");
        }
    }
}

#[test]
fn chains_of_casts_round_at_every_step() {
    for from in DType::ALL {
        for by in DType::ALL {
            for to in DType::ALL {
                let x = samples(from);
                // The reference keeps digits that the narrower float in between loses.
                let found = match by {
                    DType::Bf16 | DType::F16 | DType::F32 => on_engines(&[&x], |t| t[0].cast(by).cast(to)),
                    _ => run(&[&x], |t| t[0].cast(by).cast(to)),
                };
                assert_eq!(found, cast(&cast(&x, by), to), "{from} as {by} as {to}");
            }
        }
    }
}

#[test]
fn bf16_survives_a_round_trip_through_wider_types() {
    // Subnormal values count as zero.
    let all = (0..=u16::MAX).map(bf16::from_bits);
    let kept: Vec<bf16> = all.filter(|v| v.is_normal() || *v == bf16::ZERO).collect();
    assert_eq!(kept.len(), 2 * (254 * 128 + 1));
    let x = HostTensor::new([kept.len()], kept).unwrap();
    for by in [DType::F32, DType::F64] {
        assert_eq!(run(&[&x], |t| t[0].cast(by).cast(DType::Bf16)).as_bytes(), x.as_bytes(), "through {by}");
    }
}

#[test]
fn f16_survives_a_round_trip_through_wider_types() {
    // Subnormal f16 are normal f32, so they are kept.
    let all = (0..=u16::MAX).map(f16::from_bits);
    let kept: Vec<f16> = all.filter(|v| v.is_finite()).collect();
    assert_eq!(kept.len(), 2 * 31 * 1024);
    let x = HostTensor::new([kept.len()], kept).unwrap();
    for by in [DType::F32, DType::F64] {
        assert_eq!(run(&[&x], |t| t[0].cast(by).cast(DType::F16)).as_bytes(), x.as_bytes(), "through {by}");
    }
}

#[test]
fn the_gradient_of_a_cast_is_cast_back() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(3)]));
    let cost = x.cast(DType::F64).square().sum();
    let dx = crate::autodiff::gradients(&cost, &[&x]).unwrap().remove(0).unwrap();
    assert_eq!(dx.dtype(), DType::F32);
    let session = Session::new(graph.freeze().unwrap()).unwrap();
    let at = HostTensor::new([3], vec![1.0f32, -2.0, 0.5]).unwrap();
    let found = session.run(&[&dx], &[("x", &at)]).unwrap();
    assert_eq!(found[0], HostTensor::new([3], vec![2.0f32, -4.0, 1.0]).unwrap());
}

#[test]
fn stop_gradient_gives_no_gradient() {
    let graph = Graph::new();
    let x = graph.placeholder(&TensorSpec::f32("x", [Some(3)]));
    let found = crate::autodiff::gradients(&x.stop_gradient().sum(), &[&x]).unwrap();
    assert!(found[0].is_none());
}

#[test]
fn gather_and_scatter_add_of_integers() {
    let indices = tensor(DType::I32, &[4], &[2, 0, 2, 1]);
    for dtype in [DType::I32, DType::I64, DType::U8] {
        let x = tensor(dtype, &[3, 2], &[1, 2, 3, 4, 5, 6]);
        let found = run(&[&x, &indices], |t| t[0].gather(&t[1], 0));
        assert_eq!(found, tensor(dtype, &[4, 2], &[5, 6, 1, 2, 5, 6, 3, 4]), "{dtype}");
    }
    for dtype in [DType::I32, DType::I64] {
        let x = tensor(dtype, &[4], &[1, 10, 100, 1000]);
        let found = run(&[&x, &indices], |t| t[0].scatter_add(&t[1], 3, 0));
        assert_eq!(found, tensor(dtype, &[3], &[10, 1000, 101]), "{dtype}");
    }
}

#[test]
fn an_index_out_of_range_is_an_error_with_the_users_line() {
    let x = HostTensor::from_f64(DType::F32, [3, 2], &[0.0; 6]).unwrap();
    let calls: [fn(&Tensor, &Tensor) -> Tensor; 3] = [
        |x, i| x.gather(i, 0),
        |x, i| x.scatter_add(i, 2, 0),
        |x, i| x.take_along_axis(&i.expand_dims(1), 1),
    ];
    let devices = [Device::Cpu(0), Device::Reference];
    for ((call, rows), device) in calls.into_iter().zip([3, 2, 2]).flat_map(|c| devices.map(|d| (c, d))) {
        for bad in [-1, 3, i64::MAX, i64::MIN] {
            let graph = Graph::new();
            let tensor = graph.placeholder(&TensorSpec::f32("x", [None, Some(2)]));
            let indices = graph.placeholder(&TensorSpec::new("i", DType::I64, [None]));
            let y = call(&tensor, &indices);
            let options = SessionOptions { device, ..SessionOptions::default() };
            let session = Session::with(graph.freeze().unwrap(), options).unwrap();
            let run = |indices: Vec<i64>| {
                session.run(&[&y], &[("x", &x), ("i", &HostTensor::new([3], indices).unwrap())])
            };
            let e = run(vec![0, bad, 99]).unwrap_err();
            let right = format!("element 1 of the indices is {bad}, which is outside 0..{rows}");
            assert!(e.to_string().contains(&right), "{e}");
            assert!(e.to_string().contains(file!()), "{e}");
            // The session is still usable.
            run(vec![0, 1, 1]).unwrap();
        }
    }
}
