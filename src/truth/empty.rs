//! What operations do with nothing: as `docs/empty-inputs.md` says, row by row.

use super::completeness::{OF_GRADIENTS, names_in_source};
use crate::graph::{Graph, NodeKind, Tensor, TensorSpec};
use crate::kir::ReduceKind;
use crate::ops::{Conv2dOptions, Padding, PoolOptions};
use crate::runtime::Session;
use std::collections::BTreeSet;
use tensorpack_tensor::{DType, HostTensor, Result};

const TABLE: &str = include_str!("../../docs/empty-inputs.md");

type Call = (&'static str, fn(&[Tensor]) -> Tensor);

/// The calls of the table, as its second column writes them.
const CALLS: &[Call] = &[
    ("-x", |x| -&x[0]),
    ("x.abs()", |x| x[0].abs()),
    ("x.sign()", |x| x[0].sign()),
    ("x.exp()", |x| x[0].exp()),
    ("x.log()", |x| x[0].log()),
    ("x.log1p()", |x| x[0].log1p()),
    ("x.sqrt()", |x| x[0].sqrt()),
    ("x.rsqrt()", |x| x[0].rsqrt()),
    ("x.reciprocal()", |x| x[0].reciprocal()),
    ("x.square()", |x| x[0].square()),
    ("x.tanh()", |x| x[0].tanh()),
    ("x.sigmoid()", |x| x[0].sigmoid()),
    ("x.erf()", |x| x[0].erf()),
    ("x.sin()", |x| x[0].sin()),
    ("x.cos()", |x| x[0].cos()),
    ("x.floor()", |x| x[0].floor()),
    ("x.round()", |x| x[0].round()),
    ("x.relu()", |x| x[0].relu()),
    ("x.is_finite()", |x| x[0].is_finite()),
    ("x.logical_not()", |x| x[0].logical_not()),
    ("x + y", |x| &x[0] + &x[1]),
    ("x - y", |x| &x[0] - &x[1]),
    ("x * y", |x| &x[0] * &x[1]),
    ("x / y", |x| &x[0] / &x[1]),
    ("x.maximum(y)", |x| x[0].maximum(&x[1])),
    ("x.minimum(y)", |x| x[0].minimum(&x[1])),
    ("x.pow(y)", |x| x[0].pow(&x[1])),
    ("x.equal(y)", |x| x[0].equal(&x[1])),
    ("x.not_equal(y)", |x| x[0].not_equal(&x[1])),
    ("x.less(y)", |x| x[0].less(&x[1])),
    ("x.less_equal(y)", |x| x[0].less_equal(&x[1])),
    ("x.greater(y)", |x| x[0].greater(&x[1])),
    ("x.greater_equal(y)", |x| x[0].greater_equal(&x[1])),
    ("x.logical_and(y)", |x| x[0].logical_and(&x[1])),
    ("x.logical_or(y)", |x| x[0].logical_or(&x[1])),
    ("x.select(y, z)", |x| x[0].select(&x[1], &x[2])),
    ("x.cast(I32)", |x| x[0].cast(DType::I32)),
    ("x.all_reduce(key, 1)", |x| x[0].all_reduce("key".into(), 1)),
    ("x.stop_gradient()", |x| x[0].stop_gradient()),
    ("x.random_uniform_like(F32)", |x| x[0].random_uniform_like(DType::F32)),
    ("constant(empty)", |x| x[0].graph().constant(HostTensor::zeros(DType::F32, [0, 3]).unwrap())),
    ("x.one_hot(4, F32)", |x| x[0].one_hot(4, DType::F32)),
    ("x.one_hot(0, F32)", |x| x[0].one_hot(0, DType::F32)),
    ("x.transpose([1, 0])", |x| x[0].transpose(&[1, 0])),
    ("x.reshape([3, 0])", |x| x[0].reshape(&[3, 0])),
    ("x.reshape([-1, 3])", |x| x[0].reshape(&[-1, 3])),
    ("x.reshape([-1, 0])", |x| x[0].reshape(&[-1, 0])),
    ("x.reshape([1])", |x| x[0].reshape(&[1])),
    ("x.flatten(1)", |x| x[0].flatten(1)),
    ("x.reshape_like(y)", |x| x[0].reshape_like(&x[1])),
    ("x.broadcast_like(y)", |x| x[0].broadcast_like(&x[1])),
    ("x.sum_like(y)", |x| x[0].sum_like(&x[1])),
    ("x.strided_slice([0], [None], [2])", |x| x[0].strided_slice(&[0], &[None], &[2])),
    ("x.strided_slice([5], [5], [1])", |x| x[0].strided_slice(&[5], &[Some(5)], &[1])),
    ("x.strided_slice([0], [1], [1])", |x| x[0].strided_slice(&[0], &[Some(1)], &[1])),
    ("x.pad([1], [2], [3])", |x| x[0].pad(&[1], &[2], &[3])),
    ("x.sum()", |x| x[0].sum()),
    ("x.sum_axes([0])", |x| x[0].sum_axes(&[0])),
    ("x.sum_axes([1])", |x| x[0].sum_axes(&[1])),
    ("product over [0]", |x| x[0].reduce(ReduceKind::Prod, &[0], false)),
    ("x.mean()", |x| x[0].mean()),
    ("x.mean_axes([0])", |x| x[0].mean_axes(&[0])),
    ("x.mean_axes([1])", |x| x[0].mean_axes(&[1])),
    ("x.max_axes([0])", |x| x[0].max_axes(&[0])),
    ("x.max_axes([1])", |x| x[0].max_axes(&[1])),
    ("x.min_axes([0])", |x| x[0].min_axes(&[0])),
    ("x.min_axes([1])", |x| x[0].min_axes(&[1])),
    ("x.argmax(0)", |x| x[0].argmax(0)),
    ("x.argmax(1)", |x| x[0].argmax(1)),
    ("x.argmin(0)", |x| x[0].argmin(0)),
    ("x.argmin(1)", |x| x[0].argmin(1)),
    ("x.moments([0]).0", |x| x[0].moments(&[0]).0),
    ("x.moments([1]).1", |x| x[0].moments(&[1]).1),
    ("x.matmul(y)", |x| x[0].matmul(&x[1])),
    ("x.conv2d(y), SAME", |x| x[0].conv2d(&x[1], Conv2dOptions::default())),
    ("x.conv2d(y), VALID", |x| {
        x[0].conv2d(&x[1], Conv2dOptions { padding: Padding::Valid, ..Conv2dOptions::default() })
    }),
    ("x.max_pool(2)", |x| x[0].max_pool(2)),
    ("x.average_pool_with(2)", |x| x[0].average_pool_with(PoolOptions::square(2))),
    ("x.global_average_pool()", |x| x[0].global_average_pool()),
    ("x.softmax()", |x| x[0].softmax()),
    ("x.log_softmax()", |x| x[0].log_softmax()),
    ("x.log_sum_exp()", |x| x[0].log_sum_exp()),
    ("x.sparse_softmax_cross_entropy(y)", |x| x[0].sparse_softmax_cross_entropy(&x[1])),
    ("x.dropout(0.5)", |x| x[0].dropout(0.5)),
];

/// One row of the table.
struct Row {
    op: String,
    call: String,
    inputs: String,
    result: String,
}

fn rows() -> Vec<Row> {
    let lines = TABLE.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| op "));
    lines
        .map(|line| {
            let cells: Vec<String> =
                line.trim_matches('|').split('|').map(|c| c.trim().replace('`', "")).collect();
            let [op, call, inputs, result] =
                cells.try_into().unwrap_or_else(|_| panic!("four cells: {line}"));
            Row { op, call, inputs, result }
        })
        .collect()
}

/// `[0, 3], i32[0]` as types and sizes; the type is f32 where none is written.
fn tensors(text: &str) -> Vec<(DType, Vec<usize>)> {
    let parts = text.split(']').map(|p| p.trim_start_matches(", ")).filter(|p| !p.is_empty());
    let part = |p: &str| {
        let (dtype, sizes) = p.split_once('[').unwrap_or_else(|| panic!("no sizes in {text}"));
        let dtype = DType::ALL.into_iter().find(|d| d.to_string() == dtype).unwrap_or(DType::F32);
        (dtype, sizes.split(", ").filter(|n| !n.is_empty()).map(|n| n.parse().unwrap()).collect())
    };
    parts.map(part).collect()
}

/// Runs a call on inputs full of ones, the first size of the first known late if `open`; returns the result with the
/// operations, and the scopes of several, that were built for it.
fn run(
    call: fn(&[Tensor]) -> Tensor,
    inputs: &[(DType, Vec<usize>)],
    open: bool,
) -> (Result<HostTensor>, Vec<String>) {
    let graph = Graph::new();
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("x{i}")).collect();
    let placeholder = |(i, (dtype, sizes)): (usize, &(DType, Vec<usize>))| {
        let known = |d: usize| !open || i > 0 || d > 0;
        let sizes: Vec<Option<usize>> =
            sizes.iter().enumerate().map(|(d, &n)| known(d).then_some(n)).collect();
        graph.placeholder(&TensorSpec::new(names[i].as_str(), *dtype, sizes))
    };
    let x: Vec<Tensor> = inputs.iter().enumerate().map(placeholder).collect();
    let y = call(&x);
    let frozen = match graph.freeze() {
        Ok(frozen) => frozen,
        Err(e) => return (Err(e), Vec::new()),
    };
    let ops = frozen.nodes().iter().filter(|n| matches!(n.kind, NodeKind::Op(_)));
    let ops = ops.flat_map(|n| n.name.split('/').chain([n.kind.name()])).map(String::from).collect();
    let values: Vec<HostTensor> = inputs
        .iter()
        .map(|(dtype, sizes)| {
            HostTensor::from_f64(*dtype, sizes.clone(), &vec![1.0; sizes.iter().product()]).unwrap()
        })
        .collect();
    let feeds: Vec<(&str, &HostTensor)> = names.iter().map(String::as_str).zip(&values).collect();
    let result = Session::new(frozen).and_then(|session| Ok(session.run(&[&y], &feeds)?.remove(0)));
    (result, ops)
}

#[test]
fn the_table_says_what_happens() {
    for row in rows() {
        let what = format!("{}: {} of {}", row.op, row.call, row.inputs);
        let (_, call) =
            CALLS.iter().find(|(c, _)| *c == row.call).unwrap_or_else(|| panic!("{what} is no call"));
        let inputs = tensors(&row.inputs);
        let (found, ops) = run(*call, &inputs, false);
        let found = in_words(&found);
        match row.result.strip_prefix("error: ") {
            Some(text) => assert!(found.starts_with("error: ") && found.contains(text), "{what}: {found}"),
            None => {
                assert_eq!(found, row.result, "{what}");
                assert!(ops.contains(&row.op), "{what} makes no {}: {ops:?}", row.op);
            }
        }
        // A size that is known only when the graph runs ends the same.
        let late = in_words(&run(*call, &inputs, true).0);
        let [early, late] =
            [found, late].map(|f| if f.starts_with("error: ") { "error".to_string() } else { f });
        assert_eq!(early, late, "{what}, its first size known late");
    }
}

/// A result as the table writes it.
fn in_words(result: &Result<HostTensor>) -> String {
    match result {
        Ok(y) if y.is_empty() => format!("empty {:?}", y.sizes()),
        Ok(y) => {
            let values = y.to_f64_vec();
            assert!(values.iter().all(|v| *v == values[0]), "{y:?} has no word in the table");
            let kind = if values[0] == 0.0 { "zeros".into() } else { values[0].to_string() };
            format!("{kind} {:?}", y.sizes())
        }
        Err(e) => format!("error: {}", e.message()),
    }
}

#[test]
fn every_operation_has_a_row() {
    let rows = rows();
    let there: BTreeSet<&str> = rows.iter().map(|r| r.op.as_str()).collect();
    let names = names_in_source();
    let missing: Vec<&String> =
        names.iter().filter(|n| !there.contains(n.as_str()) && !OF_GRADIENTS.contains(&n.as_str())).collect();
    assert!(missing.is_empty(), "operations without a row in docs/empty-inputs.md: {missing:?}");
    let unused: Vec<&str> = CALLS.iter().map(|c| c.0).filter(|c| rows.iter().all(|r| r.call != *c)).collect();
    assert!(unused.is_empty(), "calls without a row: {unused:?}");
}
