//! Work on whole rows as StableHLO: finding them by number, adding them up, ordering them.

use super::text::{Element, Value, Writer};
use crate::kir::{Argsort, Cumsum, GatherKind, GatherScatter};
use tensorpack_tensor::DType;

/// The first number of a lookup that names no row: where it is, `i64::MAX` if there is none, and which it is.
#[derive(Clone, Debug)]
pub(super) struct BadIndex {
    pub(super) place: Value,
    pub(super) index: Value,
}

/// Looks up rows, or adds to them. Numbers that name no row are treated as 0, and reported.
pub(super) fn lookup(
    w: &mut Writer,
    kind: GatherKind,
    k: &GatherScatter,
    rows: &Value,
    indices: &Value,
) -> (Value, Option<BadIndex>) {
    let sizes = match kind {
        GatherKind::Gather | GatherKind::NonZero => [k.batch, k.count, k.width],
        GatherKind::ScatterAdd => [k.batch, k.rows, k.width],
    };
    let indices = w.reshape(indices, &[indices.len()]);
    if indices.is_empty() {
        return (w.splat(0.0, rows.element, &sizes), None);
    }
    if kind == GatherKind::NonZero {
        let zero = w.integer(0, DType::I64, &indices.sizes);
        let one = w.integer(1, DType::I64, &indices.sizes);
        let zeros = w.compare("EQ", &indices, &zero);
        let bad = first_of(w, &indices, &zeros);
        let divisor = w.select(&zeros, &one, &indices);
        return (w.reshape(&divisor, &sizes), Some(bad));
    }
    let (indices, bad) = checked(w, k, &indices);
    if k.rows == 0 || sizes.contains(&0) {
        return (w.splat(0.0, rows.element, &sizes), Some(bad));
    }
    let found = match kind {
        GatherKind::Gather => gather(w, k, rows, &indices),
        _ => scatter_add(w, k, rows, &indices),
    };
    (w.reshape(&found, &sizes), Some(bad))
}

fn checked(w: &mut Writer, k: &GatherScatter, indices: &Value) -> (Value, BadIndex) {
    let zero = w.integer(0, DType::I64, &indices.sizes);
    let end = w.integer(k.rows as i128, DType::I64, &indices.sizes);
    let (below, above) = (w.compare("LT", indices, &zero), w.compare("GE", indices, &end));
    let outside = w.like("or", &[&below, &above]);
    let bad = first_of(w, indices, &outside);
    (w.select(&outside, &zero, indices), bad)
}

/// Finds the first of the numbers marked in `outside`.
fn first_of(w: &mut Writer, indices: &Value, outside: &Value) -> BadIndex {
    let zero = w.integer(0, DType::I64, &indices.sizes);
    let places = w.iota(0, DType::I64, &indices.sizes);
    let never = w.integer(i64::MAX as i128, DType::I64, &indices.sizes);
    let bad_places = w.select(outside, &places, &never);
    let last = w.integer(i64::MAX as i128, DType::I64, &[]);
    let place = w.reduce("minimum", &bad_places, &last, &[0]);
    let first = w.broadcast(&place, &[], &indices.sizes);
    let is_first = w.compare("EQ", &places, &first);
    let there = w.select(&is_first, indices, &zero);
    let none = w.integer(0, DType::I64, &[]);
    // One number and zeros: their sum is that number.
    let index = w.reduce("add", &there, &none, &[0]);
    BadIndex { place, index }
}

/// The numbers of rows of all tables laid one behind the other, as `[n, 1]`.
fn flat_rows(w: &mut Writer, k: &GatherScatter, indices: &Value) -> Value {
    let all = [k.batch, k.count];
    let indices = if k.shared { w.broadcast(indices, &[1], &all) } else { w.reshape(indices, &all) };
    let table = w.iota(0, DType::I64, &all);
    let rows = w.integer(k.rows as i128, DType::I64, &all);
    let before = w.like("multiply", &[&table, &rows]);
    let flat = w.like("add", &[&before, &indices]);
    w.reshape(&flat, &[k.batch * k.count, 1])
}

fn gather(w: &mut Writer, k: &GatherScatter, tables: &Value, indices: &Value) -> Value {
    if k.shared {
        let tables = w.reshape(tables, &[k.batch, k.rows, k.width]);
        let indices = w.reshape(indices, &[k.count, 1]);
        let attributes = format!(
            "dimension_numbers = #stablehlo.gather<offset_dims = [0, 2], collapsed_slice_dims = [1], \
             start_index_map = [1], index_vector_dim = 1>, slice_sizes = array<i64: {}, 1, {}>",
            k.batch, k.width
        );
        return w.op(
            "gather",
            &[&tables, &indices],
            &attributes,
            tables.element,
            &[k.batch, k.count, k.width],
        );
    }
    let tables = w.reshape(tables, &[k.batch * k.rows, k.width]);
    let indices = flat_rows(w, k, indices);
    let attributes = format!(
        "dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], \
         start_index_map = [0], index_vector_dim = 1>, slice_sizes = array<i64: 1, {}>",
        k.width
    );
    w.op("gather", &[&tables, &indices], &attributes, tables.element, &[k.batch * k.count, k.width])
}

fn scatter_add(w: &mut Writer, k: &GatherScatter, rows: &Value, indices: &Value) -> Value {
    let element = rows.element;
    let rows = w.reshape(rows, &[k.batch * k.count, k.width]);
    let rows = w.widened(&rows);
    let indices = flat_rows(w, k, indices);
    let zeros = w.splat(0.0, rows.element, &[k.batch * k.rows, k.width]);
    let region = w.fold("add", rows.element);
    let attributes = "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], \
                      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>";
    let form = (rows.element, zeros.sizes.clone());
    let sums = w.with_region("scatter", &[&zeros, &indices, &rows], attributes, &region, &[form]);
    w.convert(&sums[0], element)
}

/// Running sums.
pub(super) fn cumulate(w: &mut Writer, k: &Cumsum, x: &Value) -> Value {
    let element = x.element;
    let x = w.reshape(x, &[k.outer, k.len, k.inner]);
    if x.is_empty() {
        return x;
    }
    let x = w.widened(&x);
    let before = |n: usize| if k.reverse { [0, n as i64] } else { [n as i64, 0] };
    // Without the element in its own place: as if all had moved one on.
    let x = match (k.exclusive, k.reverse) {
        (false, _) => x,
        (true, false) => w.pad(&x, 0.0, &[[0, 0], [1, -1], [0, 0]], &[0; 3]),
        (true, true) => w.pad(&x, 0.0, &[[0, 0], [-1, 1], [0, 0]], &[0; 3]),
    };
    let zero = w.splat(0.0, x.element, &[]);
    let padding = [[0, 0], before(k.len - 1), [0, 0]];
    let sums = w.reduce_window("add", &x, &zero, &[1, k.len, 1], &[1; 3], &padding);
    w.convert(&sums, element)
}

/// The places of the first `take` elements of every row, in the order of their values.
pub(super) fn order(w: &mut Writer, k: &Argsort, x: &Value) -> Value {
    let x = w.reshape(x, &[k.rows, k.len]);
    if x.is_empty() {
        return w.splat(0.0, DType::I64, &[k.rows, k.take]);
    }
    let x = if x.element == DType::Bool.into() { w.convert(&x, DType::U8) } else { x };
    let places = w.iota(1, DType::I64, &x.sizes);
    let region = w.region(&[x.element, x.element, DType::I64.into(), DType::I64.into()], |w, pair| {
        let (a, b) = (&pair[0], &pair[1]);
        let before = w.compare(if k.descending { "GT" } else { "LT" }, a, b);
        if !a.element.is_float() {
            return vec![before];
        }
        // A NaN is larger than any number.
        let (larger, smaller) = if k.descending { (a, b) } else { (b, a) };
        let (nan, number) = (w.compare("NE", larger, larger), w.compare("EQ", smaller, smaller));
        let by_nan = w.like("and", &[&nan, &number]);
        vec![w.like("or", &[&before, &by_nan])]
    });
    let forms = [(x.element, x.sizes.clone()), (Element::Of(DType::I64), x.sizes.clone())];
    let attributes = "dimension = 1 : i64, is_stable = true";
    let sorted = w.with_region("sort", &[&x, &places], attributes, &region, &forms);
    w.slice(&sorted[1], &[0, 0], &[1, 1], &[k.rows, k.take])
}
