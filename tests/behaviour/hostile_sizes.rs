//! Attributes whose products overflow, for every operation with sizes: an error or a result, but
//! never a panic or a hang. `src/op_tests/exported.rs` tests damaged model files.

use std::sync::mpsc::channel;
use std::time::Duration;
use tensorpack::autodiff::gradients;
use tensorpack::graph::{Graph, Tensor, TensorSpec};
use tensorpack::ops::{Conv1dOptions, Conv2dOptions, Padding, PoolOptions, Random};
use tensorpack::runtime::{IntoFetch, Session, SessionOptions};
use tensorpack::{DType, Error, HostTensor, Result};

/// Sizes whose products overflow 32 or 64 bits.
const HOSTILE: [usize; 9] =
    [(1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, 1 << 47, 1 << 48, (1 << 60) - 9, 1 << 62, usize::MAX];

/// The time limit for one operation, generous for a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The inputs of an operation.
struct Inputs {
    graph: Graph,
    /// `[1, 4, 4, 3]`.
    x: Tensor,
    /// `[2, 2, 3, 5]`.
    w: Tensor,
    /// `[6]`.
    v: Tensor,
    /// `[3]`, integers.
    i: Tensor,
    /// `[n, 0]`, where `n` is the hostile size.
    empty: Tensor,
}

/// The size as a signed target of a reshape or broadcast.
fn signed(n: usize) -> isize {
    isize::try_from(n).unwrap_or(isize::MAX)
}

type Build = fn(&Inputs, usize) -> Tensor;

/// Operations with one hostile attribute that always fail.
const ALWAYS_ERRORS: &[(&str, Build)] = &[
    ("conv2d, dilation", |t, n| t.x.conv2d(&t.w, Conv2dOptions { dilation: [n, n], ..Default::default() })),
    ("conv2d, padding", |t, n| {
        let padding = Padding::Explicit([[n, 0], [0, n]]);
        t.x.conv2d(&t.w, Conv2dOptions { padding, ..Default::default() })
    }),
    ("conv2d, groups", |t, n| t.x.conv2d(&t.w, Conv2dOptions { groups: n, ..Default::default() })),
    ("conv1d, padding", |t, n| {
        let w = t.w.reshape(&[4, 3, 5]);
        let padding = Padding::Explicit([[0, 0], [n, n]]);
        t.x.reshape(&[1, 16, 3]).conv1d(&w, Conv1dOptions { padding, ..Default::default() })
    }),
    ("conv2d_transpose, stride", |t, n| {
        let w = t.w.transpose(&[0, 1, 3, 2]);
        t.x.conv2d_transpose(&w, Conv2dOptions { stride: [n, n], ..Default::default() })
    }),
    ("conv2d_transpose, dilation", |t, n| {
        let w = t.w.transpose(&[0, 1, 3, 2]);
        let options = Conv2dOptions { dilation: [n, n], padding: Padding::Valid, ..Default::default() };
        t.x.conv2d_transpose(&w, options)
    }),
    ("depthwise, padding", |t, n| {
        let padding = Padding::Explicit([[n, n], [n, n]]);
        let w = t.w.slice_axis(2, 0, Some(1)).slice_axis(3, 0, Some(3));
        t.x.conv2d(&w, Conv2dOptions { padding, groups: 3, ..Default::default() })
    }),
    ("max_pool, window", |t, n| {
        t.x.max_pool_with(PoolOptions { padding: Padding::Same, ..PoolOptions::square(n) })
    }),
    ("average_pool, padding", |t, n| {
        let padding = Padding::Explicit([[n, n], [0, 0]]);
        t.x.average_pool_with(PoolOptions { padding, ..PoolOptions::square(2) })
    }),
    ("pad, low", |t, n| t.v.pad(&[n], &[0], &[0])),
    ("pad, high", |t, n| t.v.pad(&[0], &[n], &[0])),
    ("pad, interior", |t, n| t.v.pad(&[0], &[0], &[n])),
    ("tile", |t, n| t.v.exp().tile(&[n])),
    ("repeat", |t, n| t.v.repeat(n, 0)),
    ("one_hot", |t, n| t.i.one_hot(n, DType::F32)),
    ("iota", |t, n| t.graph.iota(n, DType::F32).exp()),
    ("random", |t, n| Random::uniform(0.0, 1.0).shape(&t.graph, &[n])),
    ("resize", |t, n| t.x.resize_bilinear([n, n])),
    ("unpool", |t, n| {
        let block = t.v.sum().broadcast_to(&[signed(n), signed(n)]);
        t.x.unpool(&block)
    }),
    ("slice, begin", |t, n| t.v.strided_slice(&[n], &[None], &[1])),
    ("split_equal", |t, n| t.v.split_equal(n, 0).remove(0)),
    ("unstack", |t, n| t.v.sum().broadcast_to(&[signed(n)]).unstack(0).remove(0)),
    ("top_k", |t, n| t.v.top_k(n).0),
    ("cumsum", |t, n| t.v.sum().broadcast_to(&[signed(n)]).cumsum(0)),
    ("argsort", |t, n| t.v.sum().broadcast_to(&[signed(n)]).argsort(0)),
    ("concat", |t, n| {
        let part = t.v.sum().broadcast_to(&[signed(n)]);
        t.graph.concat(&[part.clone(), part], 0)
    }),
    ("matmul", |t, n| {
        let (a, b) = (t.v.reshape(&[6, 1]), t.v.sum().broadcast_to(&[1, signed(n)]));
        a.matmul(&b)
    }),
    ("matmul over an empty axis", |t, n| {
        let none = t.v.slice_axis(0, 0, Some(0));
        none.reshape(&[1, 0]).matmul(&none.sum().broadcast_to(&[0, signed(n)]))
    }),
    ("scatter_add", |t, n| t.v.reshape(&[3, 2]).scatter_add(&t.i, n, 0)),
    ("group_norm", |t, n| t.x.group_norm(n, 1e-5)),
    ("reshape", |t, n| t.v.reshape(&[signed(n), 6])),
    ("einsum", |t, n| {
        let a = t.v.sum().broadcast_to(&[signed(n), 6]);
        t.graph.einsum("ij,j->ij", &[a, t.v.clone()])
    }),
];

/// Operations that accept some hostile sizes, because those cost neither memory nor time.
const SOMETIMES_VALID: &[(&str, Build)] = &[
    ("conv2d, stride", |t, n| t.x.conv2d(&t.w, Conv2dOptions { stride: [n, n], ..Default::default() })),
    ("conv2d, dilation along one axis", |t, n| {
        let w = t.w.slice_axis(1, 0, Some(1));
        t.x.conv2d(&w, Conv2dOptions { dilation: [n, 1], ..Default::default() })
    }),
    ("depthwise, dilation", |t, n| {
        let w = t.w.slice_axis(2, 0, Some(1)).slice_axis(3, 0, Some(3));
        t.x.conv2d(&w, Conv2dOptions { dilation: [n, n], groups: 3, ..Default::default() })
    }),
    ("conv1d, dilation", |t, n| {
        let w = t.w.reshape(&[4, 3, 5]);
        t.x.reshape(&[1, 16, 3]).conv1d(&w, Conv1dOptions { dilation: n, ..Default::default() })
    }),
    ("average_pool, stride", |t, n| {
        t.x.average_pool_with(PoolOptions { stride: [n, n], ..PoolOptions::square(2) })
    }),
    ("slice, step", |t, n| t.v.strided_slice(&[1], &[None], &[n])),
    ("broadcast", |t, n| t.v.sum().broadcast_to(&[signed(n)]).slice_axis(0, 1, Some(4))),
    ("reverse", |t, n| t.v.sum().broadcast_to(&[signed(n)]).reverse(&[0]).slice_axis(0, 1, Some(4))),
    ("gather, empty", |t, _| t.empty.gather(&t.i, 0)),
    ("scatter_add, empty", |t, n| t.empty.gather(&t.i, 0).scatter_add(&t.i, n, 0)),
    ("cumsum, empty", |t, _| t.empty.cumsum(0)),
    ("argsort, empty", |t, _| t.empty.argsort_descending(1)),
    ("matmul, empty", |t, _| t.empty.matmul(&t.empty.matrix_transpose()).sum()),
    ("exp, empty, with two hostile sizes", |t, n| {
        t.empty.expand_dims(0).broadcast_to(&[signed(n), signed(n), 0]).exp()
    }),
    ("pad, empty", |t, n| t.empty.pad(&[n, 0], &[0, 0], &[n, n])),
    ("concat, empty", |t, _| t.graph.concat(&[t.empty.exp(), t.empty.clone()], 0)),
    ("transpose, empty", |t, _| t.empty.expand_dims(1).transpose(&[2, 1, 0]).exp()),
    ("average_pool, empty", |t, _| {
        let images = t.empty.expand_dims(0).expand_dims(2);
        images.average_pool_with(PoolOptions { padding: Padding::Same, ..PoolOptions::square(2) })
    }),
];

/// Builds, differentiates and runs an operation.
fn attempt(build: Build, n: usize) -> Result<Vec<HostTensor>> {
    let graph = Graph::new();
    let placeholder = |name: &str, dtype, sizes: &[usize]| {
        let known: Vec<Option<usize>> = sizes.iter().copied().map(Some).collect();
        graph.placeholder(&TensorSpec::new(name, dtype, known))
    };
    let inputs = Inputs {
        x: placeholder("x", DType::F32, &[1, 4, 4, 3]),
        w: placeholder("w", DType::F32, &[2, 2, 3, 5]),
        v: placeholder("v", DType::F32, &[6]),
        i: placeholder("i", DType::I64, &[3]),
        empty: graph.placeholder(&TensorSpec::f32("empty", [None, Some(0)])),
        graph: graph.clone(),
    };
    let y = build(&inputs, n);
    let mut fetched = vec![y.clone()];
    if y.dtype().is_float() {
        let xs = [&inputs.x, &inputs.w, &inputs.v, &inputs.empty];
        fetched.extend(gradients(&y.square().sum(), &xs)?.into_iter().flatten());
    }
    let options = SessionOptions {
        threads: Some(2),
        memory_limit: Some(256 << 20),
        deadline: TIME_LIMIT,
        ..SessionOptions::default()
    };
    let session = Session::with(graph.freeze()?, options)?;
    let ones = |sizes: &[usize]| {
        HostTensor::new(sizes, vec![1.0f32; sizes.iter().product()]).expect("a small tensor")
    };
    let (x, w, v) = (ones(&[1, 4, 4, 3]), ones(&[2, 2, 3, 5]), ones(&[6]));
    let i = HostTensor::new([3], vec![0i64, 2, 1])?;
    let empty = HostTensor::new([n, 0], Vec::<f32>::new())?;
    let feeds = [("x", &x), ("w", &w), ("v", &v), ("i", &i), ("empty", &empty)];
    session.run(&fetched.iter().map(|t| t as &dyn IntoFetch).collect::<Vec<_>>(), &feeds)
}

/// Returns the result for every operation of a table with every hostile size.
fn outcomes(
    table: &'static [(&str, Build)],
    sizes: &[usize],
) -> Vec<(String, std::result::Result<usize, Error>)> {
    let mut outcomes = Vec::new();
    for &(name, build) in table {
        for &n in sizes {
            let (send, done) = channel();
            std::thread::spawn(move || {
                let caught = std::panic::catch_unwind(|| attempt(build, n));
                // The receiver is gone if this took too long.
                let _ = send.send(caught.map_err(|_| ()));
            });
            let what = format!("{name} {n}");
            let outcome = done.recv_timeout(TIME_LIMIT).unwrap_or_else(|_| panic!("{what} takes too long"));
            let outcome = outcome.unwrap_or_else(|()| panic!("{what} panicked"));
            if let Err(e) = &outcome {
                // A session turns a kernel's panic into an error.
                assert!(!e.message().contains("panicked"), "{what}: {e}");
            }
            outcomes.push((what, outcome.map(|values| values.len())));
        }
    }
    outcomes
}

#[test]
fn sizes_beyond_memory_are_errors() {
    let accepted: Vec<String> =
        outcomes(ALWAYS_ERRORS, &HOSTILE).into_iter().filter(|(_, o)| o.is_ok()).map(|(n, _)| n).collect();
    assert!(accepted.is_empty(), "no errors: {accepted:#?}");
}

#[test]
fn large_sizes_that_need_no_memory_finish_quickly() {
    let outcomes = outcomes(SOMETIMES_VALID, &[&[5][..], &HOSTILE].concat());
    // Each operation accepts at least one of the sizes.
    let works = |name: &str| {
        outcomes.iter().any(|(what, o)| what.rsplit_once(' ').is_some_and(|(w, _)| w == name) && o.is_ok())
    };
    let never: Vec<&str> =
        SOMETIMES_VALID.iter().map(|(name, _)| *name).filter(|name| !works(name)).collect();
    assert!(never.is_empty(), "{never:?} never work: {outcomes:#?}");
}
