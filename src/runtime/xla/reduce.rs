//! Reductions as StableHLO.

use super::stablehlo::{Element, Value, Writer, array};
use crate::kir::{ReduceKind, elements};
use tensorpack_tensor::{DType, HostTensor};

/// Reduces `x`, whose elements have the type of a class, over `dims`. The results are stored as
/// `dtype` later.
pub(super) fn write(w: &mut Writer, kind: ReduceKind, x: &Value, dims: &[usize], dtype: DType) -> Vec<Value> {
    let count = elements(&dims.iter().map(|&d| x.sizes[d]).collect::<Vec<_>>());
    if count == 0 {
        return of_empty(w, kind, x, dims, dtype);
    }
    match kind {
        ReduceKind::Sum => vec![fold(w, "add", 0.0, x, dims)],
        ReduceKind::Prod => vec![fold(w, "multiply", 1.0, x, dims)],
        ReduceKind::Max => vec![extreme(w, true, x, dims)],
        ReduceKind::Min => vec![extreme(w, false, x, dims)],
        ReduceKind::ArgMax => vec![arg_extreme(w, true, x, dims)],
        ReduceKind::ArgMin => vec![arg_extreme(w, false, x, dims)],
        ReduceKind::Moments => moments(w, x, dims, count),
    }
}

fn fold(w: &mut Writer, name: &str, first: f64, x: &Value, dims: &[usize]) -> Value {
    let first = w.splat(first, x.element, &[]);
    w.reduce(name, x, &first, dims)
}

fn extreme(w: &mut Writer, largest: bool, x: &Value, dims: &[usize]) -> Value {
    // Converted to an integer, infinity saturates.
    let first = if largest { f64::NEG_INFINITY } else { f64::INFINITY };
    fold(w, if largest { "maximum" } else { "minimum" }, first, x, dims)
}

/// Argmax or argmin: the first index in row-major order over `dims`. NaN wins over any number.
///
/// This is one reduction of values and indices together. Comparing elements with their maximum
/// afterwards may find none, if the compiler recomputes the elements with different rounding.
fn arg_extreme(w: &mut Writer, largest: bool, x: &Value, dims: &[usize]) -> Value {
    let reduced: Vec<usize> = dims.iter().map(|&d| x.sizes[d]).collect();
    let indices = w.iota(0, DType::I64, &[elements(&reduced)]);
    let indices = w.reshape(&indices, &reduced);
    let indices = w.broadcast(&indices, dims, &x.sizes);
    let never = w.integer(i64::MAX as i128, DType::I64, &[]);
    let worst = w.splat(if largest { f64::NEG_INFINITY } else { f64::INFINITY }, x.element, &[]);
    let kept: Vec<usize> = (0..x.sizes.len()).filter(|d| !dims.contains(d)).map(|d| x.sizes[d]).collect();
    let index = Element::Of(DType::I64);
    let region = w.region(&[x.element, index, x.element, index], |w, v| {
        let (a, b) = ([&v[0], &v[1]], [&v[2], &v[3]]);
        let mut wins = w.compare(if largest { "GT" } else { "LT" }, a[0], b[0]);
        let mut equal = w.compare("EQ", a[0], b[0]);
        if x.element.is_float() {
            let [a_nan, b_nan] = [a[0], b[0]].map(|x| w.compare("NE", x, x));
            let b_number = w.like("not", &[&b_nan]);
            let only_a_nan = w.like("and", &[&a_nan, &b_number]);
            wins = w.like("or", &[&wins, &only_a_nan]);
            let both = w.like("and", &[&a_nan, &b_nan]);
            equal = w.like("or", &[&equal, &both]);
        }
        let earlier = w.compare("LT", a[1], b[1]);
        let first = w.like("and", &[&equal, &earlier]);
        let chosen = w.like("or", &[&wins, &first]);
        vec![w.select(&chosen, a[0], b[0]), w.select(&chosen, a[1], b[1])]
    });
    let attribute = format!("dimensions = {}", array(dims));
    let results = [(x.element, kept.clone()), (index, kept)];
    w.with_region("reduce", &[x, &indices, &worst, &never], &attribute, &region, &results).swap_remove(1)
}

/// Mean and variance in one pass over `x`: sums of the differences from the first element, and of
/// their squares. With two passes the second would wait for the first, and each would take a GPU as
/// long as reading `x`. The first element is about as far from the mean as any other, so the
/// squares lose no more digits than their sum does.
fn moments(w: &mut Writer, x: &Value, dims: &[usize], count: usize) -> Vec<Value> {
    let x = if x.element.is_float() { x.clone() } else { w.convert(x, DType::F64) };
    let rank = x.sizes.len();
    let kept: Vec<usize> = (0..rank).filter(|d| !dims.contains(d)).collect();
    let sizes: Vec<usize> = kept.iter().map(|&d| x.sizes[d]).collect();
    let one_each: Vec<usize> = (0..rank).map(|d| if dims.contains(&d) { 1 } else { x.sizes[d] }).collect();
    let origin = w.slice(&x, &vec![0; rank], &vec![1; rank], &one_each);
    let origin = w.reshape(&origin, &sizes);
    let wide = w.broadcast(&origin, &kept, &x.sizes);
    let off = w.like("subtract", &[&x, &wide]);
    let squares = w.like("multiply", &[&off, &off]);
    let count = w.splat(count as f64, x.element, &sizes);
    let [off, squares] = [off, squares].map(|x| {
        let sum = fold(w, "add", 0.0, &x, dims);
        w.like("divide", &[&sum, &count])
    });
    let mean = w.like("add", &[&origin, &off]);
    let mean_squared = w.like("multiply", &[&off, &off]);
    let variance = w.like("subtract", &[&squares, &mean_squared]);
    // Rounding may make the variance slightly negative.
    let zero = w.splat(0.0, x.element, &sizes);
    vec![mean, w.like("maximum", &[&variance, &zero])]
}

/// Returns the result of reducing no elements.
fn of_empty(w: &mut Writer, kind: ReduceKind, x: &Value, dims: &[usize], dtype: DType) -> Vec<Value> {
    let sizes: Vec<usize> = (0..x.sizes.len()).filter(|d| !dims.contains(d)).map(|d| x.sizes[d]).collect();
    let is_int = !x.element.is_float();
    let (low, high) = match dtype {
        DType::I32 => (i32::MIN as f64, i32::MAX as f64),
        DType::U8 => (0.0, 255.0),
        DType::Bool => (0.0, 1.0),
        _ => (f64::NEG_INFINITY, f64::INFINITY),
    };
    let number = match kind {
        ReduceKind::Sum | ReduceKind::ArgMax | ReduceKind::ArgMin => 0.0,
        ReduceKind::Prod => 1.0,
        ReduceKind::Max if is_int => low,
        ReduceKind::Min if is_int => high,
        ReduceKind::Max => f64::NEG_INFINITY,
        ReduceKind::Min => f64::INFINITY,
        ReduceKind::Moments => f64::NAN,
    };
    let element = match kind {
        ReduceKind::ArgMax | ReduceKind::ArgMin => Element::Of(DType::I64),
        ReduceKind::Moments if is_int => Element::Of(DType::F64),
        _ => x.element,
    };
    let value = w.splat(number, element, &sizes);
    vec![value; if kind == ReduceKind::Moments { 2 } else { 1 }]
}

/// Returns one boolean: whether all of these floats are finite.
pub(super) fn all_finite(w: &mut Writer, x: &Value) -> Value {
    let finite = is_finite(w, x);
    all(w, &finite)
}

/// Returns whether each of these floats is finite.
pub(super) fn is_finite(w: &mut Writer, x: &Value) -> Value {
    w.op("is_finite", &[x], "", DType::Bool, &x.sizes)
}

/// Returns whether each of these floats is a number, possibly infinite.
pub(super) fn is_number(w: &mut Writer, x: &Value) -> Value {
    w.compare("EQ", x, x)
}

/// Returns one boolean: whether all of these are true.
pub(super) fn all(w: &mut Writer, x: &Value) -> Value {
    let yes = w.tensor(&HostTensor::scalar(true));
    let dims: Vec<usize> = (0..x.sizes.len()).collect();
    w.reduce("and", x, &yes, &dims)
}
