//! Constant folding of arithmetic on shapes, in which some sizes may be unknown.

use super::value::{Item, Symbolic, Value};
use crate::onnx::{Node, permuted};
use tensorpack_tensor::{DType, Dim, HostTensor, Result, element_count};

/// The maximum number of integers that are folded: shapes, and vectors of indices.
const MAX_INTS: usize = 1 << 14;
/// The maximum number of floats that are folded. More are weights.
const MAX_FLOATS: usize = 8;
/// Up to here, f64 has all integers.
const MAX_EXACT: f64 = (1u64 << 53) as f64;

/// A small tensor with elements that may be unknown.
#[derive(Clone, Debug)]
pub(super) struct Small {
    pub(super) dtype: DType,
    pub(super) sizes: Vec<usize>,
    pub(super) items: Vec<Item>,
}

impl Small {
    /// Returns a value of which all elements are known or sizes.
    pub(super) fn of(value: &Value) -> Option<Small> {
        match value {
            Value::Host(_, tensor) => {
                let limit = if tensor.dtype().is_float() { MAX_FLOATS } else { MAX_INTS };
                // Items are f64, which does not have all integers. The largest ones stand for the end of
                // an axis.
                let is_exact = |&n: &i64| n as f64 as i64 == n || n.unsigned_abs() > 1 << 62;
                let is_exact = tensor.as_slice::<i64>().map_or(true, |values| values.iter().all(is_exact));
                (tensor.len() <= limit && is_exact).then(|| Small {
                    dtype: tensor.dtype(),
                    sizes: tensor.sizes().to_vec(),
                    items: tensor.to_f64_vec().into_iter().map(Item::Number).collect(),
                })
            }
            Value::Symbolic(Symbolic { dtype, is_scalar, items }) => Some(Small {
                dtype: *dtype,
                sizes: if *is_scalar { Vec::new() } else { vec![items.len()] },
                items: items.clone(),
            }),
            _ => None,
        }
    }

    /// Returns the value, or `None` if it has unknown elements and is not a scalar or a vector.
    fn value(self) -> Result<Option<Value>> {
        let number = |item: &Item| match item {
            Item::Number(n) => Some(*n),
            _ => None,
        };
        let numbers: Option<Vec<f64>> = self.items.iter().map(number).collect();
        if let Some(numbers) = numbers {
            let tensor = HostTensor::from_f64(self.dtype, self.sizes, &numbers)?;
            return Ok(Some(Value::Host("".into(), tensor)));
        }
        let (dtype, is_scalar, items) = (self.dtype, self.sizes.is_empty(), self.items);
        Ok((self.sizes.len() <= 1).then_some(Value::Symbolic(Symbolic { dtype, is_scalar, items })))
    }

    fn with(&self, sizes: Vec<usize>, items: Vec<Item>) -> Option<Small> {
        Some(Small { dtype: self.dtype, sizes, items })
    }

    /// Returns itself, unless a result of arithmetic is out of the range of its type, or of the
    /// integers that f64 has: such a value wraps around when the graph runs.
    fn in_range(self) -> Option<Small> {
        let range = match self.dtype {
            DType::U8 => 0.0..=f64::from(u8::MAX),
            DType::I32 => f64::from(i32::MIN)..=f64::from(i32::MAX),
            DType::I64 => -MAX_EXACT..=MAX_EXACT,
            _ => return Some(self),
        };
        let fits = |item: &Item| match item {
            Item::Number(n) => range.contains(n),
            _ => true,
        };
        self.items.iter().all(fits).then_some(self)
    }

    /// Returns the integers, if all are known.
    fn ints(&self) -> Option<Vec<i64>> {
        let int = |item: &Item| match item {
            Item::Number(n) => Some(*n as i64),
            _ => None,
        };
        self.items.iter().map(int).collect()
    }
}

/// Computes a node whose inputs are known while the graph is built. Returns `None` if they are not,
/// or if the node is better translated.
pub(super) fn fold(node: &Node, inputs: &[Value], opset: i64) -> Result<Option<Value>> {
    if !node.domain.is_empty() {
        return Ok(None);
    }
    if let ("Shape", [x]) = (node.op_type.as_str(), inputs) {
        return shape(node, x)?.value();
    }
    if let ("Size", [x]) = (node.op_type.as_str(), inputs) {
        let item = Item::of(Dim::product(&x.shape()));
        return Small { dtype: DType::I64, sizes: Vec::new(), items: vec![item] }.value();
    }
    let Some(small) = inputs.iter().map(Small::of).collect::<Option<Vec<Small>>>() else { return Ok(None) };
    let folded = match (node.op_type.as_str(), &small[..]) {
        ("Identity", [x]) => Some(x.clone()),
        ("Cast", [x]) => cast(x, crate::onnx::dtype_of(node.int("to", 1)?)?),
        ("Unsqueeze" | "Squeeze" | "Reshape" | "Flatten", [x, ..]) => reshape(node, x, small.get(1), opset)?,
        ("Concat", parts) => concat(node, parts)?,
        ("Gather", [x, indices]) => gather(x, indices),
        ("Transpose", [x]) if !x.dtype.is_float() => transpose(node, x)?,
        ("Slice", [x, arguments @ ..]) => slice(node, x, arguments)?,
        ("Range", [start, limit, delta]) => range(start, limit, delta),
        ("ConstantOfShape", [sizes]) => constant_of_shape(node, sizes)?,
        ("Expand", [x, sizes]) => expand(x, sizes),
        ("Where", [condition, a, b]) => choose(condition, a, b),
        ("ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin", [x, ..]) => reduce(node, x)?,
        ("Mod", _) if node.flag("fmod")? => None,
        (op, [x]) => unary(op, x),
        (op, [a, b]) => binary(op, a, b),
        _ => None,
    };
    // Floats that depend on sizes are computed when the graph runs.
    let is_number = |item: &Item| matches!(item, Item::Number(_));
    let kept = |small: &Small| !small.dtype.is_float() || small.items.iter().all(is_number);
    folded.filter(kept).map_or(Ok(None), Small::value)
}

fn shape(node: &Node, x: &Value) -> Result<Small> {
    let dims = x.shape();
    let rank = dims.rank() as i64;
    let at = |n: i64| if n < 0 { n.saturating_add(rank) } else { n }.clamp(0, rank) as usize;
    let (start, end) = (at(node.int("start", 0)?), at(node.int("end", i64::MAX)?));
    let items: Vec<Item> = dims[start..end.max(start)].iter().copied().map(Item::of).collect();
    Ok(Small { dtype: DType::I64, sizes: vec![items.len()], items })
}

fn cast(x: &Small, dtype: DType) -> Option<Small> {
    if x.dtype == dtype {
        return Some(x.clone());
    }
    let convert = |item: &Item| match *item {
        Item::Number(n) if dtype == DType::Bool => Item::Number(f64::from(n != 0.0)),
        Item::Number(n) if !dtype.is_float() => Item::Number(n.trunc()),
        item => item,
    };
    Small { dtype, sizes: x.sizes.clone(), items: x.items.iter().map(convert).collect() }.in_range()
}

fn reshape(node: &Node, x: &Small, argument: Option<&Small>, opset: i64) -> Result<Option<Small>> {
    let given = match argument {
        Some(argument) => argument.ints(),
        None => node.ints("axes")?.or(node.ints("shape")?).map(<[i64]>::to_vec),
    };
    let count = x.items.len();
    let sizes = match (node.op_type.as_str(), given) {
        ("Flatten", _) => {
            let axis = node.int("axis", 1)?;
            let rank = x.sizes.len() as i64;
            let axis = if axis < 0 { axis + rank } else { axis };
            let Some(before) = usize::try_from(axis).ok().and_then(|a| x.sizes.get(..a)) else {
                return Ok(None);
            };
            let before = element_count(before)?;
            vec![before, count.checked_div(before).unwrap_or(0)]
        }
        ("Squeeze", None) => x.sizes.iter().copied().filter(|&n| n != 1).collect(),
        ("Squeeze", Some(axes)) => {
            let rank = x.sizes.len() as i64;
            let removed = |i: &usize| axes.iter().any(|&a| (if a < 0 { a + rank } else { a }) == *i as i64);
            (0..x.sizes.len()).filter(|i| !removed(i)).map(|i| x.sizes[i]).collect()
        }
        ("Unsqueeze", Some(mut axes)) => {
            let rank = (x.sizes.len() + axes.len()) as i64;
            axes.iter_mut().filter(|a| **a < 0).for_each(|a| *a += rank);
            axes.sort_unstable();
            let mut sizes = x.sizes.clone();
            for axis in axes {
                match usize::try_from(axis).ok().filter(|&a| a <= sizes.len()) {
                    Some(axis) => sizes.insert(axis, 1),
                    None => return Ok(None),
                }
            }
            sizes
        }
        ("Reshape", _) if node.flag("allowzero")? => return Ok(None),
        ("Reshape", Some(sizes)) if opset >= 5 || argument.is_none() => {
            let size = |(i, &n): (usize, &i64)| match n {
                0 => x.sizes.get(i).copied(),
                n => usize::try_from(n).ok().or(Some(usize::MAX)),
            };
            let Some(mut sizes) = sizes.iter().enumerate().map(size).collect::<Option<Vec<usize>>>() else {
                return Ok(None);
            };
            let rest: usize = sizes.iter().filter(|&&n| n != usize::MAX).product();
            sizes
                .iter_mut()
                .filter(|n| **n == usize::MAX)
                .for_each(|n| *n = count.checked_div(rest).unwrap_or(0));
            sizes
        }
        _ => return Ok(None),
    };
    Ok((element_count(&sizes)? == count).then(|| Small { sizes, ..x.clone() }))
}

fn concat(node: &Node, parts: &[Small]) -> Result<Option<Small>> {
    let Some(first) = parts.first() else { return Ok(None) };
    let axis = node.int("axis", 1)?;
    let axis = if axis < 0 { axis + first.sizes.len() as i64 } else { axis };
    let Some(axis) = usize::try_from(axis).ok().filter(|&a| a < first.sizes.len()) else { return Ok(None) };
    let fits = |part: &Small| {
        let others = |i: usize| i == axis || part.sizes[i] == first.sizes[i];
        part.dtype == first.dtype
            && part.sizes.len() == first.sizes.len()
            && (0..part.sizes.len()).all(others)
    };
    let count: usize = parts.iter().map(|part| part.items.len()).sum();
    if count > MAX_INTS || !parts.iter().all(fits) {
        return Ok(None);
    }
    let outer: usize = first.sizes[..axis].iter().product();
    let mut items = Vec::with_capacity(count);
    for o in 0..outer {
        for part in parts {
            let row = part.items.len() / outer.max(1);
            items.extend_from_slice(&part.items[o * row..(o + 1) * row]);
        }
    }
    let mut sizes = first.sizes.clone();
    sizes[axis] = parts.iter().map(|part| part.sizes[axis]).sum();
    Ok(first.with(sizes, items))
}

fn gather(x: &Small, indices: &Small) -> Option<Small> {
    let [n] = x.sizes[..] else { return None };
    let at = |i: i64| x.items.get(usize::try_from(if i < 0 { i + n as i64 } else { i }).ok()?).copied();
    let items = indices.ints()?.into_iter().map(at).collect::<Option<Vec<Item>>>()?;
    x.with(indices.sizes.clone(), items)
}

fn slice(node: &Node, x: &Small, arguments: &[Small]) -> Result<Option<Small>> {
    let argument = |i: usize, name: &str| -> Result<Option<Vec<i64>>> {
        match (node.ints(name)?, arguments.get(i)) {
            (Some(values), _) => Ok(Some(values.to_vec())),
            (None, Some(given)) => Ok(given.ints()),
            _ => Ok(None),
        }
    };
    let (Some(starts), Some(ends)) = (argument(0, "starts")?, argument(1, "ends")?) else { return Ok(None) };
    let all = |values: std::ops::Range<i64>| values.take(starts.len()).collect::<Vec<i64>>();
    let axes = argument(2, "axes")?.unwrap_or_else(|| all(0..i64::MAX));
    let steps = argument(3, "steps")?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()].iter().any(|&n| n != starts.len()) || steps.contains(&0) {
        return Ok(None);
    }
    let mut x = x.clone();
    for (((&start, &end), &axis), &step) in starts.iter().zip(&ends).zip(&axes).zip(&steps) {
        let axis = if axis < 0 { axis + x.sizes.len() as i64 } else { axis };
        let Some(axis) = usize::try_from(axis).ok().filter(|&a| a < x.sizes.len()) else { return Ok(None) };
        let bounds = extremes(x.sizes[axis], [start, end, step]);
        let step_size = usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX);
        let chosen: Vec<usize> = match bounds {
            Some((first, last)) if step > 0 => (first..=last).step_by(step_size).collect(),
            Some((first, last)) => (last..first + 1).step_by(step_size).rev().collect(),
            None => Vec::new(),
        };
        let inner: usize = x.sizes[axis + 1..].iter().product();
        let outer: usize = x.sizes[..axis].iter().product();
        let mut items = Vec::new();
        for o in 0..outer {
            for &i in &chosen {
                let at = (o * x.sizes[axis] + i) * inner;
                items.extend_from_slice(&x.items[at..at + inner]);
            }
        }
        x.sizes[axis] = chosen.len();
        x.items = items;
    }
    Ok(Some(x))
}

fn transpose(node: &Node, x: &Small) -> Result<Option<Small>> {
    let Some(values) = x.ints() else { return Ok(None) };
    let order: Vec<usize> = match node.ints("perm")? {
        Some(perm) => perm.iter().map(|&axis| axis as usize).collect(),
        None => (0..x.sizes.len()).rev().collect(),
    };
    let moved = permuted(&HostTensor::new(x.sizes.clone(), values)?, &order)?;
    let items = moved.to_f64_vec().into_iter().map(Item::Number).collect();
    Ok(x.with(moved.sizes().to_vec(), items))
}

/// Returns the first and the last index of a slice of an axis of size `n`, or `None` if it is empty.
/// Negative positions count from the end.
pub(super) fn extremes(n: usize, [start, end, step]: [i64; 3]) -> Option<(usize, usize)> {
    let n = i128::try_from(n).ok()?;
    let position = |p: i64| if p < 0 { i128::from(p) + n } else { p.into() };
    let (low, high) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let (start, end) = (position(start).clamp(low, high), position(end).clamp(low, high));
    let step = i128::from(step);
    let distance = if step > 0 { end - start } else { start - end };
    if distance <= 0 {
        return None;
    }
    let last = start + (distance - 1) / step.abs() * step;
    Some((usize::try_from(start).ok()?, usize::try_from(last).ok()?))
}

fn range(start: &Small, limit: &Small, delta: &Small) -> Option<Small> {
    let number = |s: &Small| match s.items[..] {
        [Item::Number(n)] => Some(n),
        _ => None,
    };
    let (from, to, by) = (number(start)?, number(limit)?, number(delta)?);
    let count = ((to - from) / by).ceil();
    if !(0.0..=MAX_INTS as f64).contains(&count) {
        return None;
    }
    let items: Vec<Item> = (0..count as usize).map(|i| Item::Number(from + i as f64 * by)).collect();
    start.with(vec![items.len()], items)
}

fn constant_of_shape(node: &Node, sizes: &Small) -> Result<Option<Small>> {
    let Some(sizes) = sizes.ints() else { return Ok(None) };
    let sizes: Option<Vec<usize>> = sizes.into_iter().map(|n| usize::try_from(n).ok()).collect();
    let Some(sizes) = sizes else { return Ok(None) };
    let (dtype, value) = match node.tensor("value")? {
        Some(value) => (value.dtype(), value.to_scalar()?),
        None => (DType::F32, 0.0),
    };
    let count = element_count(&sizes)?;
    let limit = if dtype.is_float() { MAX_FLOATS } else { MAX_INTS };
    Ok((count <= limit).then(|| Small { dtype, sizes, items: vec![Item::Number(value); count] }))
}

fn expand(x: &Small, sizes: &Small) -> Option<Small> {
    let sizes: Option<Vec<usize>> = sizes.ints()?.into_iter().map(|n| usize::try_from(n).ok()).collect();
    let like = Small { dtype: x.dtype, items: Vec::new(), sizes: sizes? };
    broadcast([x, &like], |[x, _]| x)
}

/// Applies a function to pairs of elements, with broadcasting. Elements of an operand without any,
/// which gives only its sizes, are unknown.
fn broadcast(operands: [&Small; 2], f: impl Fn([Item; 2]) -> Item) -> Option<Small> {
    let rank = operands.iter().map(|x| x.sizes.len()).max()?;
    let size = |x: &Small, i: usize| (i + x.sizes.len()).checked_sub(rank).map_or(1, |d| x.sizes[d]);
    let mut sizes = Vec::new();
    for i in 0..rank {
        sizes.push(match operands.map(|x| size(x, i)) {
            [a, b] if a == b || b == 1 => a,
            [1, b] => b,
            _ => return None,
        });
    }
    let count = element_count(&sizes).ok().filter(|&n| n <= MAX_INTS)?;
    let item = |x: &Small, mut n: usize| {
        let (mut at, mut stride) = (0, 1);
        for i in (0..rank).rev() {
            let own = size(x, i);
            at += if own == 1 { 0 } else { n % sizes[i] } * stride;
            stride *= own;
            n /= sizes[i].max(1);
        }
        x.items.get(at).copied().unwrap_or(Item::Unknown)
    };
    let items = (0..count).map(|n| f(operands.map(|x| item(x, n)))).collect();
    operands[0].with(sizes, items)
}

fn choose(condition: &Small, a: &Small, b: &Small) -> Option<Small> {
    let whole = broadcast([&broadcast([a, b], |[a, _]| a)?, condition], |[a, _]| a)?;
    let spread = |x: &Small| broadcast([x, &whole], |[x, _]| x);
    let (condition, a, b) = (spread(condition)?, spread(a)?, spread(b)?);
    let pick = |i: usize| match condition.items[i] {
        Item::Number(0.0) => b.items[i],
        Item::Number(_) => a.items[i],
        _ => Item::Unknown,
    };
    a.with(whole.sizes.clone(), (0..whole.items.len()).map(pick).collect())
}

fn reduce(node: &Node, x: &Small) -> Result<Option<Small>> {
    if x.sizes.len() > 1 || node.flag("noop_with_empty_axes")? {
        return Ok(None);
    }
    let keep = node.int("keepdims", 1)? != 0 && !x.sizes.is_empty();
    let start = match node.op_type.as_str() {
        "ReduceProd" => 1.0,
        "ReduceSum" => 0.0,
        "ReduceMax" => f64::NEG_INFINITY,
        _ => f64::INFINITY,
    };
    let op = match node.op_type.as_str() {
        "ReduceProd" => "Mul",
        "ReduceSum" => "Add",
        "ReduceMax" => "Max",
        _ => "Min",
    };
    let item = x
        .items
        .iter()
        .fold(Item::Number(start), |all, &item| arithmetic(op, all, item, x.dtype).unwrap_or(Item::Unknown));
    let sizes = if keep { vec![1] } else { Vec::new() };
    Ok(x.with(sizes, vec![item]).and_then(Small::in_range))
}

fn unary(op: &str, x: &Small) -> Option<Small> {
    let f: fn(f64) -> f64 = match op {
        "Neg" => |v| -v,
        "Abs" => f64::abs,
        "Floor" => f64::floor,
        "Ceil" => f64::ceil,
        "Sqrt" if x.dtype.is_float() => f64::sqrt,
        "Not" => |v| f64::from(v == 0.0),
        _ => return None,
    };
    let apply = |item: &Item| match *item {
        Item::Number(n) => Item::Number(f(n)),
        _ => Item::Unknown,
    };
    x.with(x.sizes.clone(), x.items.iter().map(apply).collect())?.in_range()
}

fn binary(op: &str, a: &Small, b: &Small) -> Option<Small> {
    arithmetic(op, Item::Number(1.0), Item::Number(1.0), a.dtype)?;
    let dtype = match op {
        "Equal" | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" | "And" | "Or" => DType::Bool,
        _ => a.dtype,
    };
    let result = broadcast([a, b], |[x, y]| arithmetic(op, x, y, a.dtype).unwrap_or(Item::Unknown))?;
    Small { dtype, ..result }.in_range()
}

/// Applies a function to two elements. Returns `None` if the function is not known.
fn arithmetic(op: &str, a: Item, b: Item, dtype: DType) -> Option<Item> {
    let number = |v: f64| Some(Item::Number(v));
    let truth = |v: bool| Some(Item::Number(f64::from(v)));
    match (op, a, b) {
        ("Add", Item::Number(x), Item::Number(y)) => number(x + y),
        ("Sub", Item::Number(x), Item::Number(y)) => number(x - y),
        ("Mul", Item::Number(x), Item::Number(y)) => number(x * y),
        ("Div", Item::Number(x), Item::Number(y)) if dtype.is_float() => number(x / y),
        ("Div", Item::Number(_), Item::Number(0.0)) => Some(Item::Unknown),
        ("Div", Item::Number(x), Item::Number(y)) => number((x / y).trunc()),
        ("Mod", Item::Number(x), Item::Number(y)) if y != 0.0 => number(x - y * (x / y).floor()),
        ("Pow", Item::Number(x), Item::Number(y)) => number(x.powf(y)),
        ("Max", Item::Number(x), Item::Number(y)) => number(x.max(y)),
        ("Min", Item::Number(x), Item::Number(y)) => number(x.min(y)),
        ("Equal", Item::Number(x), Item::Number(y)) => truth(x == y),
        ("Less", Item::Number(x), Item::Number(y)) => truth(x < y),
        ("Greater", Item::Number(x), Item::Number(y)) => truth(x > y),
        ("LessOrEqual", Item::Number(x), Item::Number(y)) => truth(x <= y),
        ("GreaterOrEqual", Item::Number(x), Item::Number(y)) => truth(x >= y),
        ("And", Item::Number(x), Item::Number(y)) => truth(x != 0.0 && y != 0.0),
        ("Or", Item::Number(x), Item::Number(y)) => truth(x != 0.0 || y != 0.0),
        // A size is never negative.
        ("Equal", Item::Dim(_), Item::Number(x)) | ("Equal", Item::Number(x), Item::Dim(_)) if x < 0.0 => {
            truth(false)
        }
        ("Equal", Item::Dim(x), Item::Dim(y)) if x == y => truth(true),
        ("Add" | "Sub", Item::Dim(_), Item::Number(0.0))
        | ("Mul" | "Div", Item::Dim(_), Item::Number(1.0)) => Some(a),
        ("Add", Item::Number(0.0), Item::Dim(_)) | ("Mul", Item::Number(1.0), Item::Dim(_)) => Some(b),
        ("Mul", Item::Dim(x), Item::Dim(y)) => Some(Item::of(Dim::product(&[x, y]))),
        ("Mul", Item::Dim(x), Item::Number(n)) | ("Mul", Item::Number(n), Item::Dim(x)) if n >= 0.0 => {
            Some(Item::of(Dim::product(&[x, Dim::Known(n as usize)])))
        }
        (
            "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Pow" | "Max" | "Min" | "Equal" | "Less" | "Greater"
            | "LessOrEqual" | "GreaterOrEqual" | "And" | "Or",
            ..,
        ) => Some(Item::Unknown),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_of_slices_are_those_of_python() {
        for (n, slice, wanted) in [
            (10, [0, i64::MAX, 1], Some((0, 9))),
            (10, [2, -2, 3], Some((2, 5))),
            (10, [-3, 100, 2], Some((7, 9))),
            (10, [-1, i64::MIN, -1], Some((9, 0))),
            (10, [8, 1, -3], Some((8, 2))),
            (10, [5, 5, 1], None),
            (10, [5, 2, 1], None),
            (0, [0, i64::MAX, 1], None),
            (3, [-100, 2, i64::MAX], Some((0, 0))),
        ] {
            assert_eq!(extremes(n, slice), wanted, "{n} {slice:?}");
        }
    }

    /// Unknown sizes go through arithmetic that does not need them.
    #[test]
    fn unknown_sizes_are_folded() {
        let batch = Item::Dim(Dim::derived("test", &[], &[]));
        let numbers = |values: &[f64]| values.iter().map(|&v| Item::Number(v)).collect::<Vec<_>>();
        assert_eq!(arithmetic("Mul", batch, Item::Number(1.0), DType::I64), Some(batch));
        assert_eq!(arithmetic("Equal", batch, Item::Number(-1.0), DType::I64), Some(Item::Number(0.0)));
        assert_eq!(arithmetic("Add", batch, Item::Number(1.0), DType::I64), Some(Item::Unknown));
        assert_eq!(arithmetic("Sin", batch, Item::Number(1.0), DType::I64), None);
        let small = |items: Vec<Item>| Small { dtype: DType::I64, sizes: vec![items.len()], items };
        let shape = small(vec![batch, Item::Number(4.0)]);
        let condition = binary("Equal", &shape, &small(numbers(&[-1.0, -1.0]))).unwrap();
        let chosen = choose(&condition, &small(numbers(&[1.0, 1.0])), &shape).unwrap();
        assert_eq!(chosen.items, shape.items);
        assert_eq!(
            binary("Div", &small(numbers(&[7.0])), &small(numbers(&[-2.0]))).unwrap().items,
            numbers(&[-3.0])
        );
    }
}
