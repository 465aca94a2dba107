//! Gather and scatter-add of rows as StableHLO, with checked indices.

use super::stablehlo::{Value, Writer};
use crate::kir::{GatherKind, GatherScatter};
use tensorpack_tensor::DType;

/// The first index that is out of range: its position (`i64::MAX` if all are in range) and value.
#[derive(Clone, Debug)]
pub(super) struct BadIndex {
    pub(super) position: Value,
    pub(super) index: Value,
}

/// Gathers rows, or adds to them. Indices out of range are replaced by 0 and reported.
pub(super) fn write(
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

/// Finds the first of the indices marked in `outside`.
fn first_of(w: &mut Writer, indices: &Value, outside: &Value) -> BadIndex {
    let zero = w.integer(0, DType::I64, &indices.sizes);
    let positions = w.iota(0, DType::I64, &indices.sizes);
    let never = w.integer(i64::MAX as i128, DType::I64, &indices.sizes);
    let bad_positions = w.select(outside, &positions, &never);
    let last = w.integer(i64::MAX as i128, DType::I64, &[]);
    let position = w.reduce("minimum", &bad_positions, &last, &[0]);
    let first = w.broadcast(&position, &[], &indices.sizes);
    let is_first = w.compare("EQ", &positions, &first);
    let there = w.select(&is_first, indices, &zero);
    let none = w.integer(0, DType::I64, &[]);
    // All other elements are zero, so the sum is the index.
    let index = w.reduce("add", &there, &none, &[0]);
    BadIndex { position, index }
}

/// Row indices into all tables concatenated, as `[n, 1]`.
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
    let region = w.binary_region("add", rows.element);
    let attributes = "scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], \
                      inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>";
    let result = (rows.element, zeros.sizes.clone());
    let sums = w.with_region("scatter", &[&zeros, &indices, &rows], attributes, &region, &[result]);
    w.convert(&sums[0], element)
}
