//! Values and derivatives at the edges of the number range, at kinks and at ties: what
//! `docs/numerics.md` promises. Expected values are exact or those of PyTorch in f64. Both
//! engines run every test. Without XLA's plugin the XLA half is skipped, or fails if
//! `TENSORPACK_REQUIRE_PLUGIN` is set.

mod feeds;
mod functions;
mod integers;
mod kinks;
mod passes;
mod shapes;
mod softmax;

use tensorpack::autodiff::gradients;
use tensorpack::graph::{Graph, Tensor, TensorSpec};
use tensorpack::runtime::{Device, Session, SessionOptions};
use tensorpack::{DType, Error, ErrorKind, HostTensor, Result};

/// The CPU engine, and XLA's where its plugin is installed.
fn engines() -> Vec<Device> {
    let xla: Device = "xla:cpu:0".parse().unwrap();
    let xla = tensorpack_testing::plugin_for_tests("cpu").map(|_| xla);
    [Device::Cpu(0)].into_iter().chain(xla).collect()
}

/// Both float types that models are written in.
const FLOATS: [DType; 2] = [DType::F32, DType::F64];

/// A session over what was built, on one engine.
fn session(graph: Graph, device: Device) -> Result<Session> {
    Session::with(graph.freeze()?, SessionOptions { device, ..SessionOptions::default() })
}

/// `y = f(x)` for one input of these sizes, and the first and second derivatives of `sum(y)`.
fn derivatives(
    device: Device,
    dtype: DType,
    sizes: &[usize],
    x: &[f64],
    f: impl Fn(&Tensor) -> Tensor,
) -> [Vec<f64>; 3] {
    let graph = Graph::new();
    let spec = TensorSpec::new("x", dtype, sizes.iter().map(|&n| Some(n)).collect::<Vec<_>>());
    let input = graph.placeholder(&spec);
    let y = f(&input);
    let derivative = |y: &Tensor| match gradients(&y.sum(), &[&input]).unwrap().remove(0) {
        Some(dx) => dx,
        None => &input * 0.0,
    };
    let first = derivative(&y);
    let second = derivative(&first);
    let session = session(graph, device).unwrap();
    let fed = HostTensor::from_f64(dtype, sizes.to_vec(), x).unwrap();
    let found = session.run(&[&y, &first, &second], &[("x", &fed)]).unwrap();
    [0, 1, 2].map(|i| found[i].to_f64_vec())
}

/// Checks every element to a few units in the last place of its type.
#[track_caller]
fn assert_close(found: &[f64], wanted: &[f64], dtype: DType, what: &str) {
    let limit = if dtype == DType::F64 { 1e-14 } else { 5e-7 };
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (f, w) in found.iter().zip(wanted) {
        let close = f == w || (f - w).abs() <= limit * w.abs().max(1e-30);
        assert!(close, "{what} in {dtype}: {found:?}, should be {wanted:?}");
    }
}

/// Checks that an error is of this kind, contains the words, and points into this test.
#[track_caller]
fn assert_error<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let e = result.expect_err("this must be refused");
    let text = e.to_string();
    assert_eq!(e.kind(), kind, "{text}");
    assert!(words.iter().all(|w| text.contains(w)), "{text} lacks one of {words:?}");
    let site = e.site().unwrap_or_else(|| panic!("{text} has no line"));
    assert!(site.file.contains("numerics"), "{text} points at {site:?}");
    e
}
