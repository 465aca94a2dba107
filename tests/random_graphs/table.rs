//! The table of operations and layers that programs are drawn from.
//!
//! Operations that are not defined or not smooth everywhere get operands from where they are.

use crate::draw::{Draw, Info};
use crate::program::{Class, Port, Value};
use crate::rows::{Draft, Row, rows};
use std::sync::OnceLock;
use tensorpack::prelude::*;

/// Returns the rows of operations and layers.
pub(crate) fn op_rows() -> &'static [&'static Row] {
    static ROWS: OnceLock<Vec<&'static Row>> = OnceLock::new();
    ROWS.get_or_init(|| {
        let rows =
            [elementwise(), reductions(), shapes(), products(), images(), integers(), losses(), layers()];
        rows.into_iter().flatten().map(|row| &*Box::leak(Box::new(row))).collect()
    })
}

/// Returns the rows that reduce unused tensors to scalars: the terms of the cost.
pub(crate) fn cost_rows() -> &'static [&'static Row] {
    static ROWS: OnceLock<Vec<&'static Row>> = OnceLock::new();
    ROWS.get_or_init(|| costs().into_iter().map(|row| &*Box::leak(Box::new(row))).collect())
}

/// Returns the row of this name.
pub(crate) fn find(name: &str) -> &'static Row {
    let all = op_rows().iter().chain(cost_rows());
    all.into_iter().find(|r| r.name == name).unwrap_or_else(|| panic!("there is no row {name:?}"))
}

fn draft(inputs: &[Port], values: Vec<Value>) -> Option<Draft> {
    Some(Draft { inputs: inputs.to_vec(), values, scale: None })
}

fn scaled(inputs: &[Port], values: Vec<Value>, scale: f64) -> Option<Draft> {
    Some(Draft { inputs: inputs.to_vec(), values, scale: Some(scale) })
}

fn int(v: usize) -> Value {
    Value::Int(v as i64)
}

/// One float tensor.
fn one(d: &mut Draw) -> Option<Draft> {
    let x = d.float(|_| true)?;
    draft(&[x], vec![])
}

/// One float tensor, whose result is at most about 1.
fn bounded(d: &mut Draw) -> Option<Draft> {
    let x = d.float(|_| true)?;
    scaled(&[x], vec![], 1.0)
}

/// One float tensor, squared.
fn squared(d: &mut Draw) -> Option<Draft> {
    let x = d.float(|_| true)?;
    let scale = d.scale(x).powi(2);
    scaled(&[x], vec![], scale.max(1.0))
}

/// One float tensor and a number.
fn with_real(d: &mut Draw) -> Option<Draft> {
    let x = d.float(|_| true)?;
    let v = Value::Real(d.real(-1.5, 1.5));
    draft(&[x], vec![v])
}

/// Two float tensors of sizes that broadcast.
fn two(d: &mut Draw) -> Option<Draft> {
    let x = d.float(|_| true)?;
    let y = d.partner(x);
    let pair = if d.chance(0.5) { [x, y] } else { [y, x] };
    let scale = d.scale(x) + d.scale(y);
    scaled(&pair, vec![], scale)
}

fn product(d: &mut Draw) -> Option<Draft> {
    let x = d.float(|_| true)?;
    let y = d.partner(x);
    let scale = d.scale(x) * d.scale(y);
    scaled(&[x, y], vec![], scale.max(0.5))
}

/// A non-empty float tensor and some of its axes, over which at least `low` elements are reduced.
fn reduced(d: &mut Draw, low: usize) -> Option<(Port, Vec<i64>, usize)> {
    let x = d.float(|i| i.len() > 0)?;
    let rank = d.info(x).rank();
    let axes = d.axes(rank);
    let sizes = d.sizes(x);
    let count = match axes.is_empty() {
        true => sizes.iter().product(),
        false => axes.iter().map(|&a| sizes[a.rem_euclid(rank as i64) as usize]).product(),
    };
    (count >= low).then_some((x, axes, count))
}

fn over_axes(d: &mut Draw) -> Option<Draft> {
    let (x, axes, _) = reduced(d, 1)?;
    draft(&[x], vec![Value::Ints(axes)])
}

fn summed(d: &mut Draw) -> Option<Draft> {
    let (x, axes, count) = reduced(d, 0)?;
    let scale = d.scale(x) * (count as f64).sqrt();
    scaled(&[x], vec![Value::Ints(axes)], scale)
}

/// Axes with at least two elements to normalize.
fn spread(d: &mut Draw) -> Option<Draft> {
    let (x, axes, _) = reduced(d, 3)?;
    scaled(&[x], vec![Value::Ints(axes)], 1.5)
}

/// One float tensor that is not empty, and one of its axes.
fn along(d: &mut Draw) -> Option<(Port, i64)> {
    let x = d.float(|i| i.rank() > 0 && i.len() > 0)?;
    let rank = d.info(x).rank();
    let axis = d.below(rank) as i64;
    Some((x, if d.chance(0.3) { axis - rank as i64 } else { axis }))
}

fn axis(d: &mut Draw) -> Option<Draft> {
    let (x, axis) = along(d)?;
    draft(&[x], vec![Value::Int(axis)])
}

fn sorted(d: &mut Draw) -> Option<Draft> {
    let (x, axis) = along(d)?;
    let down = d.chance(0.5);
    draft(&[x], vec![Value::Int(axis), Value::Flag(down)])
}

/// Integers or booleans of any shape.
fn of_class(d: &mut Draw, fits: fn(Class) -> bool) -> Option<Port> {
    if let Some(port) = d.pick(|i| fits(i.class))
        && d.chance(0.8)
    {
        return Some(port);
    }
    let like = d.float(|_| true)?;
    let sizes = d.sizes(like);
    let classes = [Class::Int(DType::I32), Class::Int(DType::I64), Class::Int(DType::U8), Class::Bool];
    let class = classes.into_iter().filter(|&c| fits(c)).collect::<Vec<_>>();
    let class = d.of(&class);
    Some(d.input(class, &sizes, Some(5)))
}

fn is_int(class: Class) -> bool {
    matches!(class, Class::Int(_))
}

fn is_signed(class: Class) -> bool {
    matches!(class, Class::Int(DType::I32 | DType::I64))
}

fn is_bool(class: Class) -> bool {
    class == Class::Bool
}

fn elementwise() -> Vec<Row> {
    rows! { (t, float, name)
        Op "tanh" (x) [] => x.tanh(); bounded;
        Exact "negative" (x) [] => -x; one;
        Exact "absolute" (x) [] => x.abs(); one;
        Exact "sign" (x) [] => x.sign(); bounded;
        Op "exp" (x) [] => x.tanh().exp(); |d| { let x = d.float(|_| true)?; scaled(&[x], vec![], 2.0) };
        Op "log" (x) [] => (x.square() + 0.5).log(); one;
        Op "expm1" (x) [] => x.tanh().expm1(); |d| { let x = d.float(|_| true)?; scaled(&[x], vec![], 2.0) };
        Op "log1p" (x) [] => x.square().log1p(); one;
        Op "sqrt" (x) [] => (x.square() + 0.25).sqrt(); one;
        Op "rsqrt" (x) [] => (x.abs() + 0.5).rsqrt(); bounded;
        Op "reciprocal" (x) [] => (x.square() + 0.7).reciprocal(); bounded;
        Op "square" (x) [] => x.square(); squared;
        Op "sigmoid" (x) [] => x.sigmoid(); bounded;
        Op "erf" (x) [] => x.erf(); bounded;
        Op "sine" (x) [] => x.sin(); bounded;
        Op "cosine of" (x) [] => x.cos(); bounded;
        Exact "floor" (x) [] => x.floor(); one;
        Op "round" (x) [] => (x * 1.7).round(); one;
        Exact "relu" (x) [] => x.relu(); one;
        Exact "relu6" (x) [] => x.relu6(); one;
        Op "leaky relu" (x) [v: f64] => x.leaky_relu(v);
            |d| { let x = d.float(|_| true)?; let v = d.real(0.01, 0.4); draft(&[x], vec![Value::Real(v)]) };
        Op "elu" (x) [] => x.elu(); one;
        Op "gelu" (x) [] => x.gelu(); one;
        Op "silu" (x) [] => x.silu(); one;
        Op "softplus" (x) [] => x.softplus(); one;
        Exact "clip" (x) [low: f64, high: f64] => x.clip(low, high);
            |d| { let x = d.float(|_| true)?;
                let values = vec![Value::Real(d.real(-1.2, -0.1)), Value::Real(d.real(0.1, 1.2))];
                draft(&[x], values) };
        Op "add" (x, y) [] => x + y; two;
        Op "subtract" (x, y) [] => x - y; two;
        Op "multiply" (x, y) [] => x * y; product;
        Op "divide" (x, y) [] => x / (y.square() + 0.6); two;
        Op "power" (x, y) [] => (x.square() + 0.5).pow(&y.tanh()); two;
        Exact "maximum" (x, y) [] => x.maximum(y); two;
        Exact "minimum" (x, y) [] => x.minimum(y); two;
        Op "times a constant" (x) [v: f64] => x * v; with_real;
        Op "plus a constant" (x) [v: f64] => x + v; with_real;
        Op "a constant minus" (x) [v: f64] => v - x; with_real;
        Op "a constant over" (x) [v: f64] => v / (x.square() + 0.8); with_real;
        Exact "greater" (x, y) [] => x.greater(y); two;
        Exact "greater or equal" (x, y) [] => x.greater_equal(y); two;
        Exact "less" (x, y) [] => x.less(y); two;
        Exact "less or equal" (x, y) [] => x.less_equal(y); two;
        Exact "equal" (x, y) [] => x.round().equal(&y.round()); two;
        Exact "not equal" (x, y) [] => x.floor().not_equal(&y.floor()); two;
        Exact "finite" (x) [] => x.is_finite(); one;
        Exact "select" (c, x, y) [] => c.select(x, y); |d| {
            let c = of_class(d, is_bool)?;
            let sizes = d.sizes(c);
            let fits = |i: &Info| {
                let mut pairs = i.sizes.iter().rev().zip(sizes.iter().rev());
                pairs.all(|(a, b)| a == b || *a == 1 || *b == 1)
            };
            let x = d.float(fits)?;
            let y = d.partner(x);
            draft(&[c, x, y], vec![])
        };
        Exact "stop gradient" (x) [] => x.stop_gradient(); one;
        Op "with gradient" (x) [v: f64] => x.round().with_gradient(&[x], move |_, dy| vec![Some(dy * v)]); with_real;
        Op "dropout" (x) [v: f64] => x.dropout(v);
            |d| { let x = d.float(|_| true)?; let v = d.of(&[0.25, 0.5]); draft(&[x], vec![Value::Real(v)]) };
        Op "random uniform like" (x) [] => x.random_uniform_like(float); bounded;
        Op "random uniform" (x) [] => x + Random::uniform(-1.0, 0.5).dtype(float).same_on_all_towers().like(x); two_of_one;
        Op "random normal" (x) [] => x * Random::normal(0.5, 0.3).dtype(float).like(x); two_of_one;
        Op "random truncated normal" (x) [] => Random::truncated_normal(0.0, 0.7).dtype(float).batch_axis(0).like(x); one;
        Exact "random bernoulli" (x) [] => Random::bernoulli(0.3).dtype(float).like(x); bounded;
        Op "random of a shape" (x) [n: Vec<usize>] => x.sum() * 0.01 + Random::uniform(-1.0, 1.0).dtype(float).shape(t.graph(), &n);
            |d| { let x = d.float(|_| true)?; let n = (d.size() as i64, d.size() as i64); scaled(&[x], vec![Value::Ints(vec![n.0, n.1])], 1.5) };
    }
}

/// A tensor, and the sum of it and another of its size.
fn two_of_one(d: &mut Draw) -> Option<Draft> {
    let x = d.float(|_| true)?;
    let scale = d.scale(x) + 1.0;
    scaled(&[x], vec![], scale)
}

fn reductions() -> Vec<Row> {
    rows! { (t, float, name)
        Op "sum" (x) [] => x.sum(); |d| { let x = d.float(|_| true)?; let s = d.scale(x) * (d.info(x).len() as f64).sqrt(); scaled(&[x], vec![], s) };
        Op "sum over axes" (x) [axes: Vec<isize>] => x.sum_axes(&axes); summed;
        Op "sum, axes kept" (x) [axes: Vec<isize>] => x.sum_keep(&axes); summed;
        Op "mean" (x) [] => x.mean(); |d| { let x = d.float(|i| i.len() > 0)?; draft(&[x], vec![]) };
        Op "mean over axes" (x) [axes: Vec<isize>] => x.mean_axes(&axes); over_axes;
        Op "mean, axes kept" (x) [axes: Vec<isize>] => x.mean_keep(&axes); over_axes;
        Exact "max over axes" (x) [axes: Vec<isize>] => x.max_axes(&axes); over_axes;
        Exact "max, axes kept" (x) [axes: Vec<isize>] => x.max_keep(&axes); over_axes;
        Exact "min over axes" (x) [axes: Vec<isize>] => x.min_axes(&axes); over_axes;
        Exact "min, axes kept" (x) [axes: Vec<isize>] => x.min_keep(&axes); over_axes;
        Op "prod" (x) [] => (x.tanh() * 0.2 + 1.0).prod(); |d| { let x = d.float(|i| i.len() < 20)?; scaled(&[x], vec![], 2.0) };
        Op "prod over axes" (x) [axes: Vec<isize>] => (x.tanh() * 0.3 + 1.0).prod_axes(&axes);
            |d| { let (x, axes, n) = reduced(d, 1)?; (n < 12).then_some(Draft { inputs: vec![x], values: vec![Value::Ints(axes)], scale: Some(3.0) }) };
        Op "moments" (x) [axes: Vec<isize>] => { let (mean, variance) = x.moments(&axes); vec![mean, variance] }; spread;
        Op "variance" (x) [axes: Vec<isize>] => x.variance_axes(&axes); spread;
        Op "standard deviation" (x) [axes: Vec<isize>] => x.std_axes(&axes); spread;
        Exact "argmax" (x) [a: isize] => x.argmax(a); axis;
        Exact "argmin" (x) [a: isize] => x.argmin(a); axis;
        Op "cumulative sum" (x) [a: isize] => x.cumsum(a); |d| { let (x, a) = along(d)?; let s = d.scale(x) * 2.0; scaled(&[x], vec![Value::Int(a)], s) };
        Op "scan" (x, w) [r: bool] => {
                let first = x.slice_axis(0, 0, Some(1)).squeeze(0).tanh();
                let factor = w.cast(x.dtype());
                let scan = Scan::new(&[&first]).over(&[x]).captured(&[&factor]);
                let scan = if r { scan.reverse() } else { scan };
                let (last, results) = scan.run(|carried, now, constant| {
                    let next = (&carried[0] * &constant[0] + &now[0]).tanh();
                    (vec![next.clone()], vec![&next * &now[0].tanh()])
                });
                vec![last[0].clone(), results[0].clone()]
            }; |d| {
            let x = d.float(|i| i.rank() >= 2 && i.known_last(1) && (1..=6).contains(&i.sizes[0]) && i.known[0])?;
            let width = *d.sizes(x).last()?;
            let w = d.variable(&[width]);
            scaled(&[x, w], vec![Value::Flag(d.chance(0.5))], 1.0)
        };
        Op "cumulative sum with options" (x) [a: isize, e: bool, r: bool] => x.cumsum_with(a, CumsumOptions { exclusive: e, reverse: r });
            |d| { let (x, a) = along(d)?; let s = d.scale(x) * 2.0; let v = vec![Value::Int(a), Value::Flag(d.chance(0.5)), Value::Flag(d.chance(0.5))]; scaled(&[x], v, s) };
        Op "log-sum-exp, axes kept" (x) [axes: Vec<isize>] => x.log_sum_exp_keep(&axes); over_axes;
        Op "log-sum-exp over axes" (x) [axes: Vec<isize>] => x.log_sum_exp_axes(&axes); over_axes;
        Op "log-sum-exp" (x) [] => x.log_sum_exp(); |d| { let (x, _) = along(d)?; draft(&[x], vec![]) };
        Op "log-softmax" (x) [] => x.log_softmax(); |d| { let (x, _) = along(d)?; draft(&[x], vec![]) };
        Op "log-softmax over an axis" (x) [a: isize] => x.log_softmax_axis(a); axis;
        Op "softmax" (x) [] => x.softmax(); |d| { let (x, _) = along(d)?; scaled(&[x], vec![], 1.0) };
        Op "softmax over an axis" (x) [a: isize] => x.softmax_axis(a); axis;
        Op "attention" (x) [s: f64, c: bool] => {
                let options = AttentionOptions::default().scale(s);
                x.attention(x, x, &if c { options.causal() } else { options })
            }; |d| {
            let x = d.ranked(4, |i| i.known[2] && i.known[3] && i.len() > 0)?;
            scaled(&[x], vec![Value::Real(d.real(0.1, 0.6)), Value::Flag(d.chance(0.5))], 1.0)
        };
        Op "attention with masks and a bias" (x) [] => {
                let rows = x.mean_axes(&[2, 3]);
                let [example, key] = [0, 1].map(|axis| rows.iota_like(axis, DType::I64));
                let lengths = x.mean_axes(&[1, 2, 3]).iota_like(0, DType::I64);
                let options = AttentionOptions::default().lengths(&lengths).key_mask(&key.less_equal(&example));
                x.attention(x, x, &options.bias(&rows.expand_dims(1).expand_dims(1)))
            }; |d| { let x = d.ranked(4, |i| i.known[2] && i.known[3] && i.len() > 0)?; scaled(&[x], vec![], 1.0) };
        Op "rotary embedding" (x) [b: f64] => {
                let positions = x.sum_axes(&[2, 3]).iota_like(0, DType::I32);
                x.rotary_embedding(b).rotary_embedding_at(b, &positions)
            }; |d| {
            let x = d.float(|i| i.rank() == 4 && i.known_last(1) && i.sizes[3].is_multiple_of(2))?;
            draft(&[x], vec![Value::Real(d.real(10.0, 100.0))])
        };
        Op "normalize" (x) [axes: Vec<isize>] => x.normalize(&axes, 0.01); spread;
        Op "layer norm of" (x) [] => x.layer_norm(0.01); |d| { let x = d.float(|i| i.rank() >= 2 && i.len() > 2 * i.sizes[0])?; scaled(&[x], vec![], 1.5) };
        Op "instance norm of" (x) [] => x.instance_norm(0.01); |d| { let x = d.ranked(3, |i| i.sizes[1] > 2)?; scaled(&[x], vec![], 1.5) };
        Op "group norm of" (x) [n: usize] => x.group_norm(n, 0.01); |d| {
            let x = d.float(|i| i.rank() >= 2 && i.known_last(1) && i.len() > 0)?;
            let channels = *d.sizes(x).last()?;
            let divisors: Vec<usize> = (1..=channels).filter(|g| channels.is_multiple_of(*g)).collect();
            let groups = d.of(&divisors);
            let i = d.info(x);
            (i.len() / i.sizes[0] / groups > 2).then(|| scaled(&[x], vec![int(groups)], 1.5))?
        };
        Exact "top k" (x) [k: usize] => { let (values, places) = x.top_k(k); vec![values, places] };
            |d| { let x = d.float(|i| i.rank() > 0 && i.len() > 0)?; let n = *d.sizes(x).last()?; let k = d.between(1, n); draft(&[x], vec![int(k)]) };
        Exact "argsort" (x) [a: isize, f: bool] => if f { x.argsort_descending(a) } else { x.argsort(a) }; sorted;
        Exact "sort" (x) [a: isize, f: bool] => if f { x.sort_descending(a) } else { x.sort(a) }; sorted;
    }
}

fn shapes() -> Vec<Row> {
    rows! { (t, float, name)
        Exact "reshape" (x) [n: Vec<isize>] => x.reshape(&n); |d| {
            let x = d.float(|i| i.all_known())?;
            let (len, rank) = (d.info(x).len(), d.between(1, 4));
            let mut sizes = vec![len as i64];
            for _ in 1..rank {
                let last = sizes.pop()?;
                let divisors: Vec<i64> = (1..=last.max(1)).filter(|n| last % n == 0).collect();
                let n = d.of(&divisors);
                sizes.extend([n, last / n]);
            }
            if len > 0 && d.chance(0.3) {
                let at = d.below(sizes.len());
                sizes[at] = -1;
            }
            draft(&[x], vec![Value::Ints(sizes)])
        };
        Exact "reshape like" (x, y) [] => x.reshape_like(y); |d| {
            let x = d.float(|_| true)?;
            let len = d.info(x).len();
            let y = d.float(|i| i.len() == len)?;
            draft(&[x, y], vec![])
        };
        Exact "flatten" (x) [a: usize] => x.flatten(a);
            |d| { let x = d.float(|_| true)?; let a = d.between(0, d.info(x).rank()); draft(&[x], vec![int(a)]) };
        Exact "expand dims" (x) [a: isize] => x.expand_dims(a);
            |d| { let x = d.float(|i| i.rank() < 5)?; let r = d.info(x).rank(); let a = d.below(r + 1); draft(&[x], vec![int(a)]) };
        Exact "squeeze" (x) [a: isize] => x.squeeze(a); |d| {
            let x = d.float(|i| i.sizes.contains(&1))?;
            let a = d.sizes(x).iter().position(|&n| n == 1)?;
            draft(&[x], vec![int(a)])
        };
        Exact "split a dim" (x) [a: isize, n: Vec<isize>] => x.split_dim(a, &n); |d| {
            let (x, a) = along(d)?;
            let rank = d.info(x).rank() as i64;
            let n = d.sizes(x)[a.rem_euclid(rank) as usize] as i64;
            let divisors: Vec<i64> = (1..=n).filter(|k| n % k == 0).collect();
            let k = d.of(&divisors);
            let sizes = if d.chance(0.4) { vec![-1, k] } else { vec![k, -1] };
            draft(&[x], vec![Value::Int(a), Value::Ints(sizes)])
        };
        Exact "merge dims" (x) [a: isize, n: usize] => x.merge_dims(a, n); |d| {
            let x = d.float(|i| i.rank() >= 2)?;
            let rank = d.info(x).rank();
            let a = d.below(rank);
            let n = d.between(1, rank - a);
            draft(&[x], vec![int(a), int(n)])
        };
        Exact "transpose" (x) [order: Vec<usize>] => x.transpose(&order);
            |d| { let x = d.float(|_| true)?; let order = d.order(d.info(x).rank()); draft(&[x], vec![Value::Ints(order)]) };
        Exact "matrix transpose" (x) [] => x.matrix_transpose(); |d| { let x = d.float(|i| i.rank() >= 2)?; draft(&[x], vec![]) };
        Exact "to channels last" (x) [] => Layout::Nchw.to_nhwc(x); one;
        Exact "to channels first" (x) [] => Layout::Nchw.from_nhwc(x); one;
        Exact "slice an axis" (x) [a: isize, b: usize, e: usize] => x.slice_axis(a, b, Some(e)); |d| {
            let (x, a) = along(d)?;
            let n = d.sizes(x)[a.rem_euclid(d.info(x).rank() as i64) as usize];
            let b = d.below(n);
            let e = if d.chance(0.03) { b } else { d.between(b + 1, n) };
            draft(&[x], vec![Value::Int(a), int(b), int(e)])
        };
        Exact "strided slice" (x) [b: Vec<usize>, e: Vec<Option<usize>>, s: Vec<usize>] => x.strided_slice(&b, &e, &s); |d| {
            let x = d.float(|i| i.len() > 0)?;
            let (mut begin, mut end, mut step) = (vec![], vec![], vec![]);
            for n in d.sizes(x) {
                let b = d.below(n);
                let e = d.between(b + 1, n);
                begin.push(b as i64);
                end.push(d.chance(0.5).then_some(e));
                step.push(d.between(1, 3) as i64);
            }
            draft(&[x], vec![Value::Ints(begin), Value::Ends(end), Value::Ints(step)])
        };
        Exact "split" (x) [n: Vec<usize>, a: isize] => x.split(&n, a); |d| {
            let x = d.float(|i| i.rank() > 0 && i.all_known() && i.len() > 0)?;
            let a = d.below(d.info(x).rank());
            let n = d.sizes(x)[a];
            let first = d.below(n + 1);
            draft(&[x], vec![Value::Ints(vec![first as i64, (n - first) as i64]), int(a)])
        };
        Exact "split equally" (x) [n: usize, a: isize] => x.split_equal(n, a); |d| {
            let x = d.float(|i| i.rank() > 0 && i.all_known() && i.len() > 0)?;
            let a = d.below(d.info(x).rank());
            let n = d.sizes(x)[a];
            let divisors: Vec<usize> = (1..=n.min(6)).filter(|k| n.is_multiple_of(*k)).collect();
            let k = d.of(&divisors);
            draft(&[x], vec![int(k), int(a)])
        };
        Exact "unstack" (x) [a: isize] => x.unstack(a); |d| {
            let x = d.float(|i| i.rank() > 0 && i.all_known() && i.len() > 0)?;
            let a = d.below(d.info(x).rank());
            (d.sizes(x)[a] <= 5).then(|| draft(&[x], vec![int(a)]))?
        };
        Exact "concat" (x, y) [a: isize] => t.graph().concat(&[x, y, x], a);
            |d| { let (x, a) = along(d)?; let y = d.same(x); draft(&[x, y], vec![Value::Int(a)]) };
        Exact "stack" (x, y) [a: isize] => t.graph().stack(&[x, y], a);
            |d| { let x = d.float(|i| i.rank() < 5)?; let y = d.same(x); let a = d.between(0, d.info(x).rank()); draft(&[x, y], vec![int(a)]) };
        Exact "pad" (x) [l: Vec<usize>, h: Vec<usize>, i: Vec<usize>] => x.pad(&l, &h, &i); |d| {
            let x = d.float(|_| true)?;
            let rank = d.info(x).rank();
            let mut some = || Value::Ints((0..rank).map(|_| d.of(&[0, 0, 1, 2])).collect());
            let values = vec![some(), some(), some()];
            draft(&[x], values)
        };
        Exact "reverse" (x) [axes: Vec<isize>] => x.reverse(&axes);
            |d| { let x = d.float(|_| true)?; let axes = d.axes(d.info(x).rank()); draft(&[x], vec![Value::Ints(axes)]) };
        Exact "tile" (x) [n: Vec<usize>] => x.tile(&n);
            |d| { let x = d.float(|_| true)?; let n = (0..d.info(x).rank()).map(|_| d.of(&[1, 1, 2, 3])).collect(); draft(&[x], vec![Value::Ints(n)]) };
        Exact "repeat" (x) [n: usize, a: isize] => x.repeat(n, a);
            |d| { let (x, a) = along(d)?; let n = d.between(1, 3); draft(&[x], vec![int(n), Value::Int(a)]) };
        Exact "broadcast to" (x) [n: Vec<isize>] => x.broadcast_to(&n); |d| {
            let x = d.float(|i| i.rank() < 5)?;
            let mut sizes: Vec<i64> = (0..d.below(2)).map(|_| d.size() as i64).collect();
            for n in d.sizes(x) {
                sizes.push(if n == 1 && d.chance(0.7) { d.size() as i64 } else { -1 });
            }
            draft(&[x], vec![Value::Ints(sizes)])
        };
        Exact "broadcast like" (x, y) [] => x.sum_keep(&[-1]).broadcast_like(y); |d| {
            let x = d.float(|i| i.rank() > 0)?;
            let s = d.scale(x) * 2.0;
            scaled(&[x, x], vec![], s)
        };
        Op "sum like" (x, y) [] => (x * 1.5).sum_like(y); |d| {
            let x = d.float(|i| i.len() > 0)?;
            let sizes = d.sizes(x);
            let y = d.float(|i| {
                let fits = i.sizes.iter().rev().zip(sizes.iter().rev()).all(|(a, b)| a == b || *a == 1);
                i.rank() <= sizes.len() && fits
            })?;
            let s = d.scale(x) * 1.5 * ((d.info(x).len() / d.info(y).len().max(1)) as f64).sqrt();
            scaled(&[x, y], vec![], s)
        };
        Exact "gather" (x, i) [a: isize] => x.gather(i, a); |d| {
            let (x, a) = along(d)?;
            let rows = d.sizes(x)[a.rem_euclid(d.info(x).rank() as i64) as usize];
            let sizes: Vec<usize> = (0..d.below(3)).map(|_| d.size()).collect();
            let i = d.index_input(&sizes, rows);
            draft(&[x, i], vec![Value::Int(a)])
        };
        Exact "take along an axis" (x, i) [a: isize] => x.take_along_axis(i, a); |d| {
            let (x, a) = along(d)?;
            let mut sizes = d.sizes(x);
            let at = a.rem_euclid(sizes.len() as i64) as usize;
            let rows = sizes[at];
            sizes[at] = d.between(1, 4);
            let i = d.index_input(&sizes, rows);
            draft(&[x, i], vec![Value::Int(a)])
        };
        Op "scatter add" (x, i) [n: usize, a: isize] => x.scatter_add(i, n, a); |d| {
            let (x, a) = along(d)?;
            let rank = d.info(x).rank() as i64;
            let at = a.rem_euclid(rank) as usize;
            let (rows, len) = (d.between(1, 5), d.sizes(x)[at]);
            let i = d.index_input(&[len], rows);
            let s = d.scale(x) * 1.7;
            scaled(&[x, i], vec![int(rows), int(at)], s)
        };
    }
}

fn products() -> Vec<Row> {
    rows! { (t, float, name)
        Op "matmul" (x, y) [] => x.matmul(y); |d| {
            let x = d.float(|i| i.rank() >= 2 && i.known_last(0))?;
            let k = *d.sizes(x).last()?;
            let found = d.float(|i| i.rank() == 2 && i.sizes[0] == k);
            let y = match found { Some(y) if d.chance(0.6) => y, _ => { let n = d.size(); d.variable(&[k, n]) } };
            let s = d.scale(x) * d.scale(y) * (k as f64).sqrt();
            scaled(&[x, y], vec![], s)
        };
        Op "matmul with the transpose" (x, y) [] => x.matmul(&y.matrix_transpose()); |d| {
            let x = d.float(|i| i.rank() >= 2 && i.len() > 0)?;
            let k = *d.sizes(x).last()?;
            let sizes = d.sizes(x);
            let y = d.float(|i| i.sizes == sizes || i.rank() == 2 && i.sizes[1] == k)?;
            let s = d.scale(x) * d.scale(y) * (k as f64).sqrt();
            scaled(&[x, y], vec![], s)
        };
        Op "einsum of two" (x, y) [e: String] => t.graph().einsum(&e, &[x, y]); |d| {
            let x = d.float(|i| (1..=4).contains(&i.rank()) && i.len() > 0)?;
            let (rank, sizes) = (d.info(x).rank(), d.sizes(x));
            let own: Vec<char> = "abcd".chars().take(rank).collect();
            // Some letters of the first tensor, and a new one, in any order.
            let mut other: Vec<(char, usize)> = own.iter().copied().zip(sizes.iter().copied()).filter(|_| d.chance(0.6)).collect();
            if d.chance(0.6) {
                other.push(('e', d.size()));
            }
            let order = d.order(other.len());
            let other: Vec<(char, usize)> = order.iter().map(|&i| other[i as usize]).collect();
            let mut all = own.clone();
            all.extend(other.iter().map(|o| o.0).filter(|c| !own.contains(c)));
            let mut result: Vec<char> = all.into_iter().filter(|_| d.chance(0.6)).collect();
            let by = d.below(result.len() + 1);
            result.rotate_left(by);
            let wanted: Vec<usize> = other.iter().map(|o| o.1).collect();
            let found = d.float(|i| i.sizes == wanted);
            let y = match found { Some(y) if d.chance(0.6) => y, _ => d.variable(&wanted) };
            let text = |c: &[char]| c.iter().collect::<String>();
            let e = format!("{},{}->{}", text(&own), other.iter().map(|o| o.0).collect::<String>(), text(&result));
            let s = d.scale(x) * d.scale(y) * (d.info(x).len() as f64).sqrt();
            scaled(&[x, y], vec![Value::Text(e)], s)
        };
        Op "einsum of one" (x) [e: String] => t.graph().einsum(&e, &[x]); |d| {
            let x = d.float(|i| (1..=4).contains(&i.rank()) && i.len() > 0)?;
            let own: Vec<char> = "abcd".chars().take(d.info(x).rank()).collect();
            let order = d.order(own.len());
            let result: String = order.iter().map(|&i| own[i as usize]).filter(|_| d.chance(0.7)).collect();
            let s = d.scale(x) * (d.info(x).len() as f64).sqrt();
            scaled(&[x], vec![Value::Text(format!("{}->{result}", own.iter().collect::<String>()))], s)
        };
        Op "convolution in one dimension" (x, w) [s: usize, l: usize, p: Padding, g: usize]
            => x.conv1d(w, Conv1dOptions { stride: s, dilation: l, padding: p, groups: g }); |d| {
            let x = d.ranked(3, |i| i.known_last(1) && i.len() > 0)?;
            let c = d.sizes(x)[2];
            let divisors: Vec<usize> = (1..=c).filter(|g| c.is_multiple_of(*g)).collect();
            let (g, k) = (d.of(&divisors), d.between(1, 3));
            let each = d.between(1, 2);
            let w = d.variable(&[k, c / g, each * g]);
            let p = if d.chance(0.7) { Padding::Same } else { Padding::Explicit([[0, 0], [d.below(3), d.below(3)]]) };
            let scale = d.scale(x) * ((k * c / g) as f64).sqrt();
            let values = vec![int(d.between(1, 2)), int(d.between(1, 2)), Value::Padding(p), int(g)];
            scaled(&[x, w], values, scale)
        };
        Op "causal convolution" (x, w) [l: usize, k: usize] => x.conv1d(w, Conv1dOptions { dilation: l, ..Conv1dOptions::default() }.causal(k)); |d| {
            let x = d.ranked(3, |i| i.known_last(1) && i.len() > 0)?;
            let (c, k) = (d.sizes(x)[2], d.between(1, 3));
            let n = d.size();
            let w = d.variable(&[k, c, n]);
            let scale = d.scale(x) * ((k * c) as f64).sqrt();
            let l = d.between(1, 2);
            scaled(&[x, w], vec![int(l), int(k)], scale)
        };
        Op "convolution in three dimensions" (x, w) [s: usize, l: usize, p: usize, g: usize]
            => t.graph().stack(&[x, &(x * 0.5)], 1).conv3d(w, Conv3dOptions { stride: [s, 1, s], dilation: [l, 1, l], padding: Padding3d::Explicit([[p, p]; 3]), groups: g }); |d| {
            let (x, c) = volume(d)?;
            let divisors: Vec<usize> = (1..=c).filter(|g| c.is_multiple_of(*g)).collect();
            let g = d.of(&divisors);
            let (k, each) = (d.between(1, 2), d.between(1, 2));
            let w = d.variable(&[k, 1, k, c / g, each * g]);
            let scale = d.scale(x) * ((k * k * c / g) as f64).sqrt();
            let values = vec![int(d.between(1, 2)), int(d.between(1, 2)), int(1), int(g)];
            scaled(&[x, w], values, scale)
        };
        Op "convolution" (x, w) [s: Vec<usize>, l: Vec<usize>, p: Padding, g: usize, o: Layout]
            => x.conv2d(w, Conv2dOptions { stride: [s[0], s[1]], dilation: [l[0], l[1]], padding: p, groups: g, layout: o }); |d| {
            let o = d.of(&[Layout::Nhwc, Layout::Nchw]);
            let at = if o == Layout::Nhwc { 3 } else { 1 };
            let x = d.ranked(4, |i| i.known[at] && i.len() > 0)?;
            let c = d.sizes(x)[at];
            let divisors: Vec<usize> = (1..=c).filter(|g| c.is_multiple_of(*g)).collect();
            let g = if d.chance(0.6) { 1 } else { d.of(&divisors) };
            let k = [d.between(1, 3), d.between(1, 3)];
            let each = d.between(1, 3);
            let w = d.variable(&[k[0], k[1], c / g, each * g]);
            let scale = d.scale(x) * ((k[0] * k[1] * c / g) as f64).sqrt();
            let (s, l) = (strides(d), strides(d));
            scaled(&[x, w], vec![s, l, padding(d), int(g), Value::Layout(o)], scale)
        };
        Op "transposed convolution" (x, w) [s: Vec<usize>, o: Layout]
            => x.conv2d_transpose(w, Conv2dOptions { stride: [s[0], s[1]], layout: o, ..Conv2dOptions::default() }); |d| {
            let o = d.of(&[Layout::Nhwc, Layout::Nchw]);
            let at = if o == Layout::Nhwc { 3 } else { 1 };
            let x = d.ranked(4, |i| i.known[at] && i.len() > 0)?;
            let c = d.sizes(x)[at];
            let sizes = [d.between(1, 3), d.between(1, 3), d.between(1, 3), c];
            let w = d.variable(&sizes);
            let scale = d.scale(x) * ((sizes[0] * sizes[1] * c) as f64).sqrt();
            let s = strides(d);
            scaled(&[x, w], vec![s, Value::Layout(o)], scale)
        };
    }
}

/// An image, of which rows make a volume, and its channels.
fn volume(d: &mut Draw) -> Option<(Port, usize)> {
    let x = d.ranked(4, |i| i.known[3] && i.len() > 0)?;
    Some((x, d.sizes(x)[3]))
}

fn volume_pooled(d: &mut Draw) -> Option<Draft> {
    let (x, _) = volume(d)?;
    let sizes: Vec<i64> = (0..3).map(|_| d.between(1, 2) as i64).collect();
    draft(&[x], vec![Value::Ints(sizes)])
}

fn strides(d: &mut Draw) -> Value {
    Value::Ints(vec![d.of(&[1, 1, 1, 2]), d.of(&[1, 1, 1, 2])])
}

fn padding(d: &mut Draw) -> Value {
    let one = d.of(&[[0, 1], [1, 0], [1, 1]]);
    Value::Padding(d.of(&[Padding::Same, Padding::Same, Padding::Valid, Padding::Explicit([one, [1, 1]])]))
}

/// An image and its layout.
fn image(d: &mut Draw) -> Option<(Port, Layout, usize)> {
    let o = d.of(&[Layout::Nhwc, Layout::Nhwc, Layout::Nchw]);
    let at = if o == Layout::Nhwc { 3 } else { 1 };
    let x = d.ranked(4, |i| i.known[at] && i.len() > 0)?;
    Some((x, o, d.sizes(x)[at]))
}

fn pooled(d: &mut Draw) -> Option<Draft> {
    let (x, o, _) = image(d)?;
    let mut two = || Value::Ints(vec![d.between(1, 3) as i64, d.between(1, 3) as i64]);
    let (w, s) = (two(), two());
    let p = d.of(&[Padding::Same, Padding::Valid]);
    draft(&[x], vec![w, s, Value::Padding(p), Value::Layout(o)])
}

fn shrunk(d: &mut Draw) -> Option<Draft> {
    let x = d.ranked(4, |i| i.len() > 0)?;
    let n = d.between(1, 2);
    draft(&[x], vec![int(n)])
}

fn resized(d: &mut Draw) -> Option<Draft> {
    let x = d.ranked(4, |i| i.len() > 0)?;
    let sizes = vec![d.between(1, 6) as i64, d.between(1, 6) as i64];
    draft(&[x], vec![Value::Ints(sizes)])
}

fn sampled(d: &mut Draw) -> Option<Draft> {
    let x = d.ranked(4, |i| i.len() > 0)?;
    let (a, b) = (d.real(-1.2, 0.8), d.real(-1.2, 0.8));
    draft(&[x], vec![Value::Real(a), Value::Real(b)])
}

fn whole_image(d: &mut Draw) -> Option<Draft> {
    let x = d.ranked(4, |i| i.len() > 0)?;
    let o = d.of(&[Layout::Nhwc, Layout::Nchw]);
    draft(&[x], vec![Value::Layout(o)])
}

fn images() -> Vec<Row> {
    rows! { (t, float, name)
        Exact "max pool" (x) [n: usize] => x.max_pool(n); shrunk;
        Exact "max pool with options" (x) [w: Vec<usize>, s: Vec<usize>, p: Padding, o: Layout]
            => x.max_pool_with(PoolOptions { window: [w[0], w[1]], stride: [s[0], s[1]], padding: p, layout: o }); pooled;
        Op "max pool of biased pixels, reshaped" (x, y) [n: Vec<isize>, w: Vec<usize>]
            => (x + y).reshape(&n).max_pool_with(PoolOptions {
                window: [w[0], w[1]], stride: [w[0], w[1]], padding: Padding::Valid, layout: Layout::Nhwc,
            }); |d| {
            let x = d.ranked(4, |i| i.all_known() && i.len() > 0)?;
            let sizes: Vec<i64> = d.sizes(x).iter().map(|&n| n as i64).collect();
            let y = d.variable(&[sizes[3] as usize]);
            // The same pixels, with the channel axis in another position.
            let order = d.of(&[[0, 3, 1, 2], [0, 3, 2, 1], [3, 0, 1, 2], [0, 1, 3, 2]]);
            let n: Vec<i64> = order.iter().map(|&i: &usize| sizes[i]).collect();
            let w = vec![d.between(1, 2.min(n[1] as usize)) as i64, d.between(1, 2.min(n[2] as usize)) as i64];
            let s = d.scale(x) + 1.5;
            scaled(&[x, y], vec![Value::Ints(n), Value::Ints(w)], s)
        };
        Op "average pool" (x) [n: usize] => x.average_pool(n); shrunk;
        Op "average pool with options" (x) [w: Vec<usize>, s: Vec<usize>, p: Padding, o: Layout]
            => x.average_pool_with(PoolOptions { window: [w[0], w[1]], stride: [s[0], s[1]], padding: p, layout: o }); pooled;
        Op "global average pool" (x) [] => x.global_average_pool(); |d| { let x = d.ranked(4, |i| i.len() > 0)?; draft(&[x], vec![]) };
        Op "global average pool of a layout" (x) [o: Layout] => x.global_average_pool_in(o); whole_image;
        Exact "global max pool" (x) [] => x.global_max_pool(); |d| { let x = d.ranked(4, |i| i.len() > 0)?; draft(&[x], vec![]) };
        Exact "global max pool of a layout" (x) [o: Layout] => x.global_max_pool_in(o); whole_image;
        Exact "resize to the nearest" (x) [n: Vec<usize>] => x.resize_nearest([n[0], n[1]]); resized;
        Op "resize bilinearly" (x) [n: Vec<usize>] => x.resize_bilinear([n[0], n[1]]); resized;
        Op "resize bilinearly with options" (x) [n: Vec<usize>]
            => x.resize_bilinear_with([n[0], n[1]], tensorpack::ops::ResizeOptions { align_corners: true }); resized;
        Op "grid sample" (x) [a: f64, b: f64] => {
                let [row, column] = [1, 2].map(|axis| x.mean_axes(&[3]).iota_like(axis, float));
                x.grid_sample(&x.graph().stack(&[column * 0.37 + a, row * 0.41 + b], 3))
            }; sampled;
        Op "grid sample with options" (x) [a: f64, b: f64] => {
                let [row, column] = [1, 2].map(|axis| x.mean_axes(&[3]).iota_like(axis, float));
                let options = tensorpack::ops::GridSampleOptions { align_corners: true, border_padding: true };
                x.grid_sample_with(&x.graph().stack(&[column * 0.37 + a, row * 0.41 + b], 3), options)
            }; sampled;
        Op "regions of images" (x) [a: f64, b: f64] => {
                let index = x.mean_axes(&[1, 2, 3]).iota_like(0, DType::I32);
                let low = index.cast(float).expand_dims(1) * 0.3;
                let boxes = x.graph().concat(&[&low + a, &low + b, &low + 2.3, &low * 0.7 + 1.9], 1);
                let options = tensorpack::ops::RoiAlignOptions { spatial_scale: 0.8, sampling_ratio: 1 };
                x.roi_align(&boxes, &index, [2, 1]) + x.roi_align_with(&boxes, &index, [2, 1], options)
                    + x.crop_and_resize(&boxes.clip_boxes([3.0, 2.5]), &index, [2, 1])
            }; |d| {
            let x = d.ranked(4, |i| i.len() > 0)?;
            let (a, b) = (d.real(-0.9, 1.1), d.real(-0.9, 1.1));
            let s = d.scale(x) * 3.0;
            scaled(&[x], vec![Value::Real(a), Value::Real(b)], s)
        };
        Op "overlap of boxes" (x) [] => {
                let corner = x.tanh();
                let boxes = x.graph().concat(&[&corner, &(&corner + 1.3)], -1);
                boxes.box_iou(&boxes.reverse(&[-2]).encode_boxes(&boxes, [1.0; 4]).decode_boxes(&boxes, [1.0; 4]))
            }; |d| {
            let x = d.float(|i| i.rank() == 2 && i.known[1] && i.sizes[1] == 2 && i.len() > 0)?;
            scaled(&[x], vec![], 1.0)
        };
        Op "unpool" (x, y) [] => x.unpool(y); |d| {
            let x = d.ranked(4, |i| i.len() > 0)?;
            let sizes = [d.between(1, 2), d.between(1, 2)];
            let y = d.variable(&sizes);
            let s = d.scale(x) * 1.5;
            scaled(&[x, y], vec![], s)
        };
        Exact "max pool of volumes" (x) [n: Vec<usize>] => {
                let options = Pool3dOptions { window: [n[0], n[1], n[2]], stride: [1, n[1], 1], padding: Padding3d::Same };
                let volume = t.graph().stack(&[x, &(x * 0.5)], 1);
                volume.max_pool3d_with(Pool3dOptions::cube(1)).max_pool3d(1).max_pool3d_with(options)
            }; volume_pooled;
        Op "average pool of volumes" (x) [n: Vec<usize>] => {
                let options = Pool3dOptions { window: [n[0], n[1], n[2]], stride: [1, n[1], 1], padding: Padding3d::Same };
                t.graph().stack(&[x, &(x * 0.5)], 1).average_pool3d(1).average_pool3d_with(options)
            }; volume_pooled;
        Exact "suppression of boxes" (x) [k: usize] => {
                // Boxes on a coarse grid, whose overlap is never near the threshold.
                let corner = x.graph().stack(&[x.iota_like(-1, float), x.iota_like(-1, float) * 0.0], -1);
                let boxes = x.graph().concat(&[&corner, &(&corner + 2.0)], -1);
                let options = NmsOptions { iou_threshold: 0.2, score_threshold: -9.0, max_outputs: k };
                vec![boxes.nms(x, options), boxes.batched_nms(x, &x.iota_like(-1, DType::I32), options)]
            }; |d| {
            // Among many scores, two may be too close to each other to have an order.
            let x = d.float(|i| i.rank() == 2 && (1..=12).contains(&i.len()))?;
            let k = d.between(1, 4);
            draft(&[x], vec![int(k)])
        };
        Exact "unpool with zeros" (x) [n: usize] => x.unpool_zeros(n); shrunk;
    }
}

fn ints(d: &mut Draw) -> Option<Draft> {
    let x = of_class(d, is_int)?;
    draft(&[x], vec![])
}

fn signed_pair(d: &mut Draw) -> Option<Draft> {
    let x = of_class(d, is_signed)?;
    let y = d.partner(x);
    draft(&[x, y], vec![])
}

fn integers() -> Vec<Row> {
    rows! { (t, float, name)
        Op "cast to the other precision" (x) [] => x.cast(float); |d| { let x = d.other_float()?; draft(&[x], vec![]) };
        Exact "float of integers" (x) [] => x.cast(float) * 0.125; |d| { let x = of_class(d, is_int)?; scaled(&[x], vec![], 1.0) };
        Exact "float of truth values" (x) [] => x.cast(float); |d| { let x = of_class(d, is_bool)?; scaled(&[x], vec![], 1.0) };
        Exact "integers of floats" (x) [y: DType] => x.clip(-4.0, 4.0).cast(y);
            |d| { let x = d.float(|_| true)?; let y = d.of(&[DType::I32, DType::I64]); draft(&[x], vec![Value::DType(y)]) };
        Exact "bytes of floats" (x) [] => (x.abs() * 3.0).cast(DType::U8); |d| { let x = d.float(|_| true)?; draft(&[x], vec![]) };
        Exact "truth values of integers" (x) [] => x.cast(DType::Bool); ints;
        Exact "sum of integers" (x, y) [] => x + y; signed_pair;
        Exact "difference of integers" (x, y) [] => x - y; signed_pair;
        Exact "product of integers" (x, y) [] => x.clip(-9.0, 9.0) * y.clip(-9.0, 9.0); signed_pair;
        Exact "larger integer" (x, y) [] => x.maximum(y).minimum(&-y); signed_pair;
        Exact "equal integers" (x, y) [] => x.equal(y); signed_pair;
        Exact "less of integers" (x, y) [] => x.less(&y.abs()); signed_pair;
        Exact "sum of integers over an axis" (x) [a: isize] => x.sum_axes(&[a]); int_axis;
        Exact "largest integer over an axis" (x) [a: isize] => x.max_axes(&[a]); int_axis;
        Exact "running sums of integers" (x) [a: isize] => x.cumsum(a); int_axis;
        Exact "argmax of integers" (x) [a: isize] => x.argmax(a); int_axis;
        Exact "clipped integers" (x) [] => x.maximum(&(x * 0.0)).minimum(&(x * 0.0 + 3.0)); |d| { let x = of_class(d, is_signed)?; draft(&[x], vec![]) };
        Exact "one-hot" (x) [n: usize] => x.one_hot(n, float); |d| { let x = of_class(d, is_int)?; let n = d.size(); (d.info(x).rank() < 5).then(|| scaled(&[x], vec![int(n)], 1.0))? };
        Exact "iota" (x) [n: usize] => t.graph().iota(n, float) * 0.1 + x.sum(); |d| { let x = d.float(|i| i.len() < 4)?; let n = d.size(); let s = d.scale(x) + 2.0; scaled(&[x], vec![int(n)], s) };
        Exact "full like" (x) [v: f64] => x.zeros_like() + x * x.ones_like() + x.full_like(v); with_real;
        Exact "iota like" (x) [a: isize] => x.iota_like(a, DType::I32); axis;
        Exact "constant" (x) [n: usize] => x.sum() + t.graph().constant(HostTensor::from_f64(float, [n], &vec![0.3; n]).expect("n values"));
            |d| { let x = d.float(|i| i.len() < 9)?; let n = d.size(); let s = d.scale(x) * 3.0; scaled(&[x], vec![int(n)], s) };
        Exact "and" (x, y) [] => x.logical_and(y); |d| { let x = of_class(d, is_bool)?; let y = d.partner(x); draft(&[x, y], vec![]) };
        Exact "or" (x, y) [] => x.logical_or(y); |d| { let x = of_class(d, is_bool)?; let y = d.partner(x); draft(&[x, y], vec![]) };
        Exact "not" (x) [] => x.logical_not(); |d| { let x = of_class(d, is_bool)?; draft(&[x], vec![]) };
        Exact "any" (x) [axes: Vec<isize>] => x.any_axes(&axes); |d| { let x = of_class(d, is_bool)?; let a = d.axes(d.info(x).rank()); draft(&[x], vec![Value::Ints(a)]) };
        Exact "all" (x) [axes: Vec<isize>] => x.all_axes(&axes); |d| { let x = of_class(d, is_bool)?; let a = d.axes(d.info(x).rank()); draft(&[x], vec![Value::Ints(a)]) };
        Exact "in top k" (x, y) [k: usize] => x.in_top_k(y, k); |d| {
            let x = d.float(|i| i.rank() > 0 && i.len() > 0)?;
            let mut sizes = d.sizes(x);
            let n = sizes.pop()?;
            let y = d.index_input(&sizes, n);
            let k = d.between(1, 3);
            draft(&[x, y], vec![int(k)])
        };
    }
}

/// Signed integers, and one of their axes that is not empty.
fn int_axis(d: &mut Draw) -> Option<Draft> {
    let x = of_class(d, is_signed)?;
    let rank = d.info(x).rank();
    if rank == 0 || d.info(x).len() == 0 {
        return None;
    }
    let a = d.below(rank);
    draft(&[x], vec![int(a)])
}

fn losses() -> Vec<Row> {
    rows! { (t, float, name)
        Op "sparse softmax cross entropy" (x, y) [] => x.sparse_softmax_cross_entropy(y); |d| {
            let x = d.float(|i| i.rank() > 0 && i.known_last(1))?;
            let mut sizes = d.sizes(x);
            let n = sizes.pop()?;
            let y = d.index_input(&sizes, n);
            draft(&[x, y], vec![])
        };
        Op "ctc loss" (x, y, n) [] => x.ctc_loss(y, &(n + 9.0), n, &CtcOptions::default().zero_infinity()) * 0.05; |d| {
            let x = d.ranked(3, |i| i.known_last(1) && i.len() > 0 && i.sizes[1] <= 9)?;
            let (sizes, length) = (d.sizes(x), d.below(4));
            let y = d.index_input(&[sizes[0], length], sizes[2]);
            let n = d.index_input(&[sizes[0]], length + 1);
            scaled(&[x, y, n], vec![], 2.0)
        };
        Op "softmax cross entropy" (x, y) [] => x.softmax_cross_entropy(&y.softmax());
            |d| { let (x, _) = along(d)?; let y = d.same(x); draft(&[x, y], vec![]) };
        Op "sigmoid cross entropy" (x, y) [] => x.sigmoid_cross_entropy(&y.sigmoid()); two;
        Op "squared error" (x, y) [] => x.squared_error(y) * 0.5; two;
        Op "Huber loss" (x, y) [v: f64] => x.huber_loss(y, v);
            |d| { let mut made = two(d)?; made.values.push(Value::Real(d.real(0.3, 1.2))); Some(made) };
    }
}

fn activation(d: &mut Draw) -> Value {
    use Activation::*;
    Value::Activation(d.of(&[
        Identity,
        Identity,
        Relu,
        Relu6,
        LeakyRelu(0.1),
        Elu,
        Gelu,
        Silu,
        Softplus,
        Tanh,
        Sigmoid,
    ]))
}

fn init(d: &mut Draw) -> Value {
    match d.below(4) {
        0 => Value::Init(Init::Normal(0.0, 0.4)),
        1 => Value::Init(Init::Uniform(-0.5, 0.5)),
        _ => Value::he(),
    }
}

/// A tensor for a normalization layer, with at least `low` elements for each that is kept.
fn normed(d: &mut Draw, rank: usize) -> Option<Draft> {
    let o = d.of(&[Layout::Nhwc, Layout::Nchw]);
    let channels = |i: &Info| if o == Layout::Nchw && i.rank() > 2 { 1 } else { i.rank() - 1 };
    let x = d.float(|i| i.rank() >= rank && i.len() > 0 && i.known[channels(i)])?;
    let sizes = d.sizes(x);
    let c = sizes[channels(d.info(x))];
    let each = match rank {
        2 => d.info(x).len() / c,
        _ => d.info(x).len() / c / sizes[0],
    };
    let values = vec![
        Value::Flag(d.chance(0.8)),
        Value::Flag(d.chance(0.8)),
        Value::Layout(o),
        Value::Real(d.of(&[1e-3, 0.01, 0.1])),
    ];
    (each > 2).then(|| scaled(&[x], values, 1.5))?
}

fn layers() -> Vec<Row> {
    rows! { (t, float, name)
        Layer "Linear" (x) [n: usize, b: bool, i: Init, a: Activation]
            => { let layer = Linear::new(n).init(i).activation(a); if b { layer } else { layer.no_bias() } }.apply(t, name, x); |d| {
            let x = d.float(|i| i.rank() >= 2 && i.known[1..].iter().all(|&k| k) && i.sizes[1..].iter().product::<usize>() > 0)?;
            let values = vec![int(d.size()), Value::Flag(d.chance(0.8)), init(d), activation(d)];
            scaled(&[x], values, 1.5)
        };
        Layer "Linear over the last axis" (x) [n: usize] => Linear::new(n).last_axis().relu().apply(t, name, x); |d| {
            let x = d.float(|i| i.rank() >= 2 && i.known_last(1))?;
            let n = d.size();
            scaled(&[x], vec![int(n)], 1.5)
        };
        Layer "Conv1d" (x) [n: usize, k: usize, s: usize, l: usize, g: usize, a: Activation]
            => Conv1d::new(n * g, k).stride(s).dilation(l).groups(g).activation(a).apply(t, name, x); |d| {
            let x = d.ranked(3, |i| i.known_last(1) && i.len() > 0)?;
            let c = d.sizes(x)[2];
            let divisors: Vec<usize> = (1..=c).filter(|g| c.is_multiple_of(*g)).collect();
            let g = d.of(&divisors);
            let values = vec![int(d.between(1, 3)), int(d.between(1, 3)), int(d.between(1, 2)), int(d.between(1, 2)), int(g), activation(d)];
            scaled(&[x], values, 1.5)
        };
        Layer "Conv1d, causal" (x) [n: usize, k: usize, i: Init] => Conv1d::new(n, k).causal().no_bias().init(i).relu().apply(t, name, x); |d| {
            let x = d.ranked(3, |i| i.known_last(1) && i.len() > 0)?;
            let values = vec![int(d.between(1, 4)), int(d.between(1, 3)), init(d)];
            scaled(&[x], values, 1.5)
        };
        Layer "Conv3d" (x) [n: usize, k: usize, s: usize, g: usize, a: Activation]
            => Conv3d::new(n * g, 1).kernel(k, 1, k).stride(s).groups(g).activation(a).apply(t, name, &t.graph().stack(&[x, &(x * 0.5)], 1)); |d| {
            let (x, c) = volume(d)?;
            let divisors: Vec<usize> = (1..=c).filter(|g| c.is_multiple_of(*g)).collect();
            let g = d.of(&divisors);
            let values = vec![int(d.between(1, 3)), int(d.between(1, 2)), int(d.between(1, 2)), int(g), activation(d)];
            scaled(&[x], values, 1.5)
        };
        Layer "Conv2d" (x) [n: usize, k: Vec<usize>, s: usize, l: usize, p: Padding, g: usize, o: Layout, b: bool, i: Init, a: Activation]
            => {
                let layer = Conv2d::new(n * g, 1).kernel(k[0], k[1]).stride(s).dilation(l).padding(p).groups(g).layout(o);
                let layer = layer.init(i).activation(a);
                if b { layer } else { layer.no_bias() }
            }.apply(t, name, x); |d| {
            let (x, o, c) = image(d)?;
            let divisors: Vec<usize> = (1..=c).filter(|g| c.is_multiple_of(*g)).collect();
            let g = if d.chance(0.6) { 1 } else { d.of(&divisors) };
            let n = if g == 1 { d.size() } else { d.between(1, 2) };
            let k = vec![d.between(1, 3) as i64, d.between(1, 3) as i64];
            let values = vec![int(n), Value::Ints(k), int(d.between(1, 2)), int(d.between(1, 2)), padding(d), int(g), Value::Layout(o),
                Value::Flag(d.chance(0.7)), init(d), activation(d)];
            scaled(&[x], values, 1.5)
        };
        Layer "Conv2d, 3 by 3" (x) [n: usize] => Conv2d::new(n, 3).relu().apply(t, name, x); |d| {
            let x = d.ranked(4, |i| i.known[3] && i.len() > 0)?;
            let n = d.of(&[1, 3, 8, 16]);
            scaled(&[x], vec![int(n)], 1.5)
        };
        Layer "Conv2dTranspose" (x) [n: usize, k: usize, s: usize, o: Layout, a: Activation]
            => Conv2dTranspose::new(n, k).stride(s).layout(o).activation(a).apply(t, name, x); |d| {
            let (x, o, _) = image(d)?;
            let values = vec![int(d.between(1, 3)), int(d.between(1, 3)), int(d.between(1, 2)), Value::Layout(o), activation(d)];
            scaled(&[x], values, 1.5)
        };
        Layer "DepthwiseConv2d" (x) [k: usize, m: usize, s: usize, o: Layout, a: Activation]
            => DepthwiseConv2d::new(k).multiplier(m).stride(s).layout(o).activation(a).apply(t, name, x); |d| {
            let (x, o, _) = image(d)?;
            let values = vec![int(d.between(1, 3)), int(d.between(1, 2)), int(d.between(1, 2)), Value::Layout(o), activation(d)];
            scaled(&[x], values, 1.5)
        };
        Layer "BatchNorm" (x) [c: bool, s: bool, o: Layout, e: f64, a: Activation]
            => {
                let layer = BatchNorm::new().layout(o).epsilon(e).momentum(0.7).activation(a);
                let layer = if c { layer } else { layer.no_center() };
                if s { layer } else { layer.no_scale() }
            }.apply(t, name, x); |d| { let mut made = normed(d, 2)?; let a = activation(d); made.values.push(a); Some(made) };
        Layer "BatchNorm of groups" (x) [n: usize] => BatchNorm::new().virtual_batch_size(n).synchronized().virtual_batch_size(n).apply(t, name, x); |d| {
            let x = d.float(|i| i.rank() >= 2 && i.known_last(1) && i.len() > 0)?;
            let sizes = d.sizes(x);
            let divisors: Vec<usize> = (1..=sizes[0]).filter(|g| sizes[0].is_multiple_of(*g)).collect();
            let n = d.of(&divisors);
            let rest: usize = sizes[1..sizes.len() - 1].iter().product();
            (n * rest > 2).then(|| scaled(&[x], vec![int(n)], 1.5))?
        };
        Layer "BatchRenorm" (x) [c: bool, s: bool, o: Layout, e: f64, a: Activation]
            => {
                let layer = BatchRenorm::new(1.5, 0.5).layout(o).epsilon(e).momentum(0.7).activation(a);
                let layer = if c { layer } else { layer.no_center() };
                if s { layer.gamma(Init::Constant(0.7)) } else { layer.no_scale() }
            }.apply(t, name, x); |d| { let mut made = normed(d, 2)?; let a = activation(d); made.values.push(a); Some(made) };
        Layer "BatchNorm by running statistics" (x) [] => BatchNorm::new().use_running().gamma(Init::Constant(0.5)).relu().apply(t, name, x);
            |d| { let x = d.float(|i| i.rank() >= 2 && i.known_last(1))?; scaled(&[x], vec![], 1.5) };
        Layer "LayerNorm" (x) [c: bool, s: bool, o: Layout, e: f64]
            => {
                let layer = LayerNorm::new().layout(o).epsilon(e);
                let layer = if c { layer } else { layer.no_center() };
                if s { layer } else { layer.no_scale() }
            }.apply(t, name, x); |d| normed(d, 3);
        Layer "LayerNorm over the last axis" (x) [] => LayerNorm::new().last_axis().epsilon(0.01).apply(t, name, x);
            |d| { let x = d.float(|i| i.rank() >= 2 && i.known_last(3))?; scaled(&[x], vec![], 1.5) };
        Layer "InstanceNorm" (x) [c: bool, s: bool, o: Layout, e: f64]
            => {
                let layer = InstanceNorm::new().layout(o).epsilon(e);
                let layer = if c { layer } else { layer.no_center() };
                if s { layer } else { layer.no_scale() }
            }.apply(t, name, x); |d| normed(d, 3);
        Layer "GroupNorm" (x) [c: bool, s: bool, o: Layout, e: f64, n: usize]
            => {
                let layer = GroupNorm::new(n).layout(o).epsilon(e);
                let layer = if c { layer } else { layer.no_center() };
                if s { layer } else { layer.no_scale() }
            }.apply(t, name, x); |d| {
            let mut made = normed(d, 3)?;
            let i = d.info(made.inputs[0]);
            let channels = if made.values[2] == Value::Layout(Layout::Nchw) { i.sizes[1] } else { *i.sizes.last()? };
            let divisors: Vec<usize> = (1..=channels).filter(|g| channels.is_multiple_of(*g)).collect();
            let n = d.of(&divisors);
            made.values.push(int(n));
            Some(made)
        };
        Layer "PRelu" (x) [v: f64] => PRelu::new().init(v).apply(t, name, x);
            |d| { let x = d.float(|_| true)?; let v = d.real(0.0, 0.4); draft(&[x], vec![Value::Real(v)]) };
        Layer "Maxout" (x) [n: usize] => Maxout::new(n).apply(t, name, x); |d| {
            let x = d.float(|i| i.rank() > 0 && i.known_last(1) && i.len() > 0)?;
            let c = *d.sizes(x).last()?;
            let divisors: Vec<usize> = (1..=c).filter(|g| c.is_multiple_of(*g)).collect();
            let n = d.of(&divisors);
            draft(&[x], vec![int(n)])
        };
        Layer "Dropout" (x) [v: f64] => Dropout::new(v).apply(t, name, x);
            |d| { let x = d.float(|_| true)?; let v = d.of(&[0.0, 0.25, 0.5]); draft(&[x], vec![Value::Real(v)]) };
        Layer "Embedding" (i) [n: usize, f: usize, w: Init] => Embedding::new(n, f).dtype(float).init(w).apply(t, name, i); |d| {
            let sizes: Vec<usize> = (0..d.below(3)).map(|_| d.size()).collect();
            let n = d.size();
            let i = d.index_input(&sizes, n);
            let values = vec![int(n), int(d.size()), Value::Init(Init::Normal(0.0, 0.7))];
            scaled(&[i], values, 1.5)
        };
        Layer "Lstm" (x) [n: usize, b: f64] => {
                let (outputs, state) = Lstm::new(n).forget_bias(b).apply(t, name, x, None);
                vec![outputs, state.c, state.h]
            }; |d| { let x = sequence(d)?; let values = vec![int(d.between(1, 4)), Value::Real(d.real(0.0, 1.0))]; scaled(&[x], values, 1.0) };
        Layer "Lstm of lengths" (x, l) [n: usize, r: bool] => {
                let options = RecurrentOptions::default().lengths(l);
                let options = if r { options.reverse() } else { options };
                let (outputs, state) = Lstm::new(n).apply_with(t, name, x, None, &options);
                vec![outputs, state.h]
            }; |d| {
            // The time may be unknown: then it is a loop.
            let x = d.ranked(3, |i| i.known_last(1) && (1..=5).contains(&i.sizes[1]))?;
            let sizes = d.sizes(x);
            let l = d.index_input(&[sizes[0]], sizes[1] + 1);
            let values = vec![int(d.between(1, 4)), Value::Flag(d.chance(0.5))];
            scaled(&[x, l], values, 1.0)
        };
        Layer "LstmCell" (x, s) [n: usize] => {
                let cell = LstmCell::new(n).init(Init::Normal(0.0, 0.5)).recurrent_init(Init::Normal(0.0, 0.4));
                let state = cell.step(t, name, x, Some(&LstmState { c: s.clone(), h: s.tanh() }));
                cell.step(t, name, x, Some(&state)).h
            }; |d| { let (x, n, s) = step(d)?; scaled(&[x, s], vec![int(n)], 1.0) };
        Layer "Gru" (x) [n: usize] => {
                let (outputs, state) = Gru::new(n).init(Init::Normal(0.0, 0.5)).recurrent_init(Init::Normal(0.0, 0.4)).apply(t, name, x, None);
                vec![outputs, state]
            }; |d| { let x = sequence(d)?; let n = d.between(1, 4); scaled(&[x], vec![int(n)], 1.0) };
        Layer "GruCell" (x, s) [n: usize] => GruCell::new(n).step(t, name, x, Some(s)); |d| { let (x, n, s) = step(d)?; scaled(&[x, s], vec![int(n)], 1.0) };
        Layer "MultiHeadAttention" (x) [h: usize, b: bool, c: bool] => {
                let layer = MultiHeadAttention::new(h).init(Init::Normal(0.0, 0.4));
                let layer = if b { layer } else { layer.no_bias() };
                if c { layer.causal() } else { layer.dropout(0.25) }
            }.apply(t, name, x); |d| { let (x, h) = heads(d)?; let values = vec![int(h), Value::Flag(d.chance(0.7)), Value::Flag(d.chance(0.6))]; scaled(&[x], values, 1.5) };
        Layer "MultiHeadAttention to another" (x, y) [h: usize] => MultiHeadAttention::new(h).apply_to(t, name, x, y); |d| {
            let (x, h) = heads(d)?;
            let batch = d.sizes(x)[0];
            let y = d.float(|i| i.rank() == 3 && i.sizes[0] == batch && i.known_last(1) && i.len() > 0)?;
            scaled(&[x, y], vec![int(h)], 1.5)
        };
    }
}

/// A sequence of a few steps.
fn sequence(d: &mut Draw) -> Option<Port> {
    d.ranked(3, |i| i.known_last(1) && i.known[1] && (1..=5).contains(&i.sizes[1]))
}

/// An input for a step of a cell, the number of units, and a matching state.
fn step(d: &mut Draw) -> Option<(Port, usize, Port)> {
    let x = d.float(|i| i.rank() == 2 && i.known_last(1) && i.known[0])?;
    let batch = d.sizes(x)[0];
    let found = d.float(|i| i.rank() == 2 && i.known_last(1) && i.sizes[0] == batch && i.sizes[1] <= 6);
    let s = match found {
        Some(s) => s,
        None => d.variable(&[batch, 2]),
    };
    Some((x, d.sizes(s)[1], s))
}

fn heads(d: &mut Draw) -> Option<(Port, usize)> {
    let x = d.ranked(3, |i| i.known_last(1) && i.len() > 0)?;
    let features = d.sizes(x)[2];
    let divisors: Vec<usize> = (1..=features).filter(|h| features.is_multiple_of(*h)).collect();
    Some((x, d.of(&divisors)))
}

fn costs() -> Vec<Row> {
    rows! { (t, float, name)
        Op "cost sum" (x) [] => x.sum() * 0.1; one;
        Op "cost mean" (x) [] => x.mean(); one;
        Op "cost square" (x) [] => x.square().mean() * 0.5; one;
        Op "cost of weighted elements" (x) [] => (x.flatten(0) * (x.flatten(0).iota_like(0, float) + 2.0).rsqrt()).sum(); one;
    }
}
