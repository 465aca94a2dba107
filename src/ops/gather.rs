//! Gather and scatter-add: rows selected by index, and rows added up by index. Each is the other's
//! gradient.

use crate::graph::{GradCx, OpDef, Spec, Tensor, axis_in};
use crate::kir::{GatherKind, GatherScatter, LowerCx, View};
use crate::onnx::{Attr, ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Indices, Scalar};
use serde::{Deserialize, Serialize};
use std::panic::Location;
use tensorpack_tensor::{DType, Dim, Error, Result, Shape, element_count};

/// How indices select elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Along {
    /// The same indices for all: the dims of the indices replace this axis.
    Axis(usize),
    /// Separate indices for every row, along the last axis.
    Last,
}

impl Along {
    /// Returns the axis that is indexed.
    fn axis(self, rank: usize) -> usize {
        match self {
            Along::Axis(axis) => axis,
            Along::Last => rank - 1,
        }
    }

    /// Returns the part of an index into the result that locates its entry in the indices, which
    /// have `rank` dims.
    fn index(self, chosen: &[usize], rank: usize) -> &[usize] {
        match self {
            Along::Axis(axis) => &chosen[axis..axis + rank],
            Along::Last => chosen,
        }
    }

    /// Returns the loop sizes: `tables` are the sizes of the indexed tensor, `chosen` those of the
    /// result.
    fn descriptor(self, tables: &[usize], chosen: &[usize]) -> Result<GatherScatter> {
        let axis = self.axis(tables.len());
        let counted = chosen.len() - (tables.len() - axis - 1);
        Ok(GatherScatter {
            batch: element_count(&tables[..axis])?,
            rows: tables[axis],
            width: element_count(&tables[axis + 1..])?,
            count: element_count(&chosen[axis..counted])?,
            shared: self != Along::Last,
        })
    }
}

fn integer_indices(indices: &Spec) -> Result<()> {
    match indices.dtype.is_int() {
        true => Ok(()),
        false => Err(Error::dtype(format!("expected integer indices, got {}", indices.dtype))),
    }
}

/// Checks that two shapes agree in all dims but the last.
fn equal_but_last(x: &Shape, indices: &Shape) -> Result<()> {
    let n = x.rank();
    let differ = |i: usize| matches!((x[i], indices[i]), (Dim::Known(a), Dim::Known(b)) if a != b);
    match n == 0 || indices.rank() != n || (0..n - 1).any(differ) {
        true => Err(Error::shape(format!(
            "the indices {indices} must have the sizes of {x} in all dims but the indexed one"
        ))),
        false => Ok(()),
    }
}

/// Input 0 at the positions given by input 1.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Gather(Along);
crate::exported!(Gather, 2..=2);

impl OpDef for Gather {
    fn name(&self) -> &str {
        match self.0 {
            Along::Axis(_) => "Gather",
            Along::Last => "TakeAlongAxis",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (x, indices) = (&inputs[0], &inputs[1]);
        integer_indices(indices)?;
        let shape = match self.0 {
            Along::Axis(axis) => {
                super::axis_of(&x.shape, axis)?;
                let parts = [&x.shape[..axis], &indices.shape, &x.shape[axis + 1..]];
                parts.concat().into()
            }
            Along::Last => {
                equal_but_last(&x.shape, &indices.shape)?;
                indices.shape.clone()
            }
        };
        Ok(vec![Spec { dtype: x.dtype, shape }])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let op = ScatterAdd { along: self.0, rows: None };
        Ok(vec![Some(Tensor::apply_one(op, &[cx.dy(), cx.input(1), cx.input(0)])), None])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (x, indices) = (cx.input(0), cx.input(1));
        let gather = self.0.descriptor(&x.sizes, &cx.output_sizes(0))?;
        Ok(vec![cx.gather(GatherKind::Gather, gather, &x, &indices)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (x, indices) = (cx.input(0), cx.input(1));
        let axis = self.0.axis(x.sizes().len());
        check_rows(indices, x.sizes()[axis])?;
        Ok(cx.output(|i| {
            let row = indices.int(self.0.index(i, indices.sizes().len())) as usize;
            let after = match self.0 {
                Along::Axis(axis) => &i[axis + indices.sizes().len()..],
                Along::Last => &[],
            };
            x.at(&[&i[..axis], &[row], after].concat())
        }))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let (x, mut indices) = (cx.input(0), cx.input(1));
        if indices.dtype() == DType::U8 {
            indices = cx.cast(&indices, DType::I64)?;
        }
        let (dtype, shape) = (x.dtype(), cx.output_shape(0).clone());
        let y = match self.0 {
            Along::Last => {
                cx.node("GatherElements", &[&x, &indices], &[("axis", Attr::Int(-1))], dtype, shape)?
            }
            Along::Axis(axis) if indices.shape().rank() == 1 => {
                let dims = cx.per_stored_axis(&x, &shape);
                let axis = [("axis", Attr::Int(cx.stored_axis(&x, axis)))];
                let y = cx.node("Gather", &[&cx.stored(&x), &indices], &axis, dtype, dims)?;
                cx.restored(&y, &x)
            }
            Along::Axis(axis) => {
                cx.node("Gather", &[&x, &indices], &[("axis", Attr::Int(axis as i64))], dtype, shape)?
            }
        };
        Ok(vec![y])
    }
}

/// Zeros, with input 0 added at the positions given by input 1. The number of rows is `rows`, or
/// else that of input 2.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct ScatterAdd {
    along: Along,
    rows: Option<usize>,
}
crate::exported!(ScatterAdd, 2..=3);

impl OpDef for ScatterAdd {
    fn name(&self) -> &str {
        match self.along {
            Along::Axis(_) => "ScatterAdd",
            Along::Last => "AddAlongAxis",
        }
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (updates, indices) = (&inputs[0], &inputs[1]);
        integer_indices(indices)?;
        if matches!(updates.dtype, DType::U8 | DType::Bool) {
            return Err(Error::dtype(format!(
                "{} elements cannot be summed; cast them first",
                updates.dtype
            )));
        }
        let shape = match (self.rows, self.along, &inputs[2..]) {
            (Some(rows), Along::Axis(axis), []) => {
                let after = axis.saturating_add(indices.shape.rank());
                let differ = || {
                    Error::shape(format!(
                        "the updates {} must have the indices' dims {} at axis {axis}",
                        updates.shape, indices.shape
                    ))
                };
                let own = updates.shape.get(axis..after).ok_or_else(differ)?;
                let mismatch =
                    |(a, b): (&Dim, &Dim)| matches!((a, b), (Dim::Known(a), Dim::Known(b)) if a != b);
                if own.iter().zip(indices.shape.iter()).any(mismatch) {
                    return Err(differ());
                }
                [&updates.shape[..axis], &[Dim::Known(rows)], &updates.shape[after..]].concat().into()
            }
            (None, along, [like]) => {
                let whole = Spec { dtype: updates.dtype, shape: like.shape.clone() };
                super::same_spec(updates, &Gather(along).infer(&[whole, indices.clone()])?[0])?;
                like.shape.clone()
            }
            _ => {
                return Err(Error::argument(
                    "give the number of rows either as an attribute or by the shape of a tensor",
                ));
            }
        };
        Ok(vec![Spec { dtype: updates.dtype, shape }])
    }

    fn shape_only(&self, i: usize) -> bool {
        i == 2
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let dx = Tensor::apply_one(Gather(self.along), &[cx.dy(), cx.input(1)]);
        Ok([Some(dx)].into_iter().chain((1..cx.input_count()).map(|_| None)).collect())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let (updates, indices) = (cx.input(0), cx.input(1));
        let gather = self.along.descriptor(&cx.output_sizes(0), &updates.sizes)?;
        Ok(vec![cx.gather(GatherKind::ScatterAdd, gather, &updates, &indices)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let (updates, indices, to) = (cx.input(0), cx.input(1), cx.output_sizes(0));
        let axis = self.along.axis(to.len());
        check_rows(indices, to[axis])?;
        let mut sums = cx.running_sums(updates.dtype(), to);
        for i in Indices::new(updates.sizes()) {
            let row = indices.int(self.along.index(&i, indices.sizes().len())) as usize;
            let after = &i[i.len() - (to.len() - axis - 1)..];
            sums.add(&[&i[..axis], &[row], after].concat(), updates.at(&i));
        }
        Ok(vec![sums.array()])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let (updates, indices) = (cx.input(0), cx.cast(&cx.input(1), DType::I64)?);
        let (dtype, shape) = (updates.dtype(), cx.output_shape(0).clone());
        let axis = self.along.axis(shape.rank());
        let (updates, indices) = match self.along {
            Along::Last => (updates, indices),
            Along::Axis(_) => {
                // Every element needs an index of its own.
                let counted = updates.shape().rank() - (shape.rank() - axis - 1);
                let mut dims = shape.to_vec();
                dims[axis] = Dim::product(&updates.shape()[axis..counted]);
                let flat = cx.reshape(&updates, &dims.into(), &[&updates])?;
                let mut dims = vec![Dim::Known(1); shape.rank()];
                dims[axis] = flat.shape()[axis];
                let column = cx.reshape(&indices, &dims.into(), &[])?;
                let whole = cx.shape_of(&flat)?;
                (flat.clone(), cx.node("Expand", &[&column, &whole], &[], DType::I64, flat.shape().clone())?)
            }
        };
        let sizes = cx.dims(&shape, &(0..cx.input_count()).map(|i| cx.input(i)).collect::<Vec<_>>())?;
        let zero = cx.scalar(0.0, dtype)?;
        let zeros = cx.node("Expand", &[&zero, &sizes], &[], dtype, shape.clone())?;
        let attributes = [("axis", Attr::Int(axis as i64)), ("reduction", Attr::Text("add"))];
        Ok(vec![cx.node("ScatterElements", &[&zeros, &indices, &updates], &attributes, dtype, shape)?])
    }
}

/// Checks that every index is in range; the error names the first that is not.
fn check_rows(indices: &Array, rows: usize) -> Result<()> {
    let outside = |v: &Scalar| usize::try_from(v.as_i64()).map_or(true, |row| row >= rows);
    match indices.values().enumerate().find(|(_, v)| outside(v)) {
        Some((position, v)) => {
            let index = v.as_i64();
            let what = match rows {
                0 => "and there are no rows at all".to_string(),
                _ => format!("which is outside 0..{rows}"),
            };
            Err(Error::argument(format!("element {position} of the indices is {index}, {what}")))
        }
        None => Ok(()),
    }
}

impl Tensor {
    /// Returns the rows of `axis` selected by integer `indices` of any shape, whose dims replace
    /// the axis. An index out of range is an error when the graph runs.
    ///
    /// For example, an embedding table `[words, size]` and word indices `[batch, time]` give
    /// vectors `[batch, time, size]`.
    #[track_caller]
    #[doc(alias = "embedding_lookup")]
    pub fn gather(&self, indices: &Tensor, axis: isize) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        match axis_in(axis, self.rank()) {
            Ok(axis) => Tensor::apply_one(Gather(Along::Axis(axis)), &[self, indices]),
            Err(e) => self.fail("Gather", e),
        }
    }

    /// Returns the elements along `axis` selected by integer `indices`, with separate indices for
    /// every position in the other dims: both tensors have the same sizes except along the axis. An
    /// index out of range is an error when the graph runs.
    #[track_caller]
    pub fn take_along_axis(&self, indices: &Tensor, axis: isize) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        let axis = match axis_in(axis, self.rank()) {
            Ok(axis) if indices.rank() == self.rank() => axis,
            Ok(_) => {
                let why = format!("indices {} do not fit {}", indices.shape(), self.shape());
                return self.fail("TakeAlongAxis", Error::shape(why));
            }
            Err(e) => return self.fail("TakeAlongAxis", e),
        };
        let mut order: Vec<usize> = (0..self.rank()).collect();
        order.swap(axis, self.rank() - 1);
        let last = |t: &Tensor| if axis + 1 == t.rank() { t.clone() } else { t.transpose(&order) };
        self.graph().called_from(Location::caller(), || {
            last(&Tensor::apply_one(Gather(Along::Last), &[&last(self), &last(indices)]))
        })
    }

    /// Returns zeros shaped like `like`, with the elements of this tensor added along the last axis at
    /// the positions that `indices` gives: the transpose of [`Tensor::take_along_axis`].
    #[track_caller]
    pub(crate) fn add_along_last(&self, indices: &Tensor, like: &Tensor) -> Tensor {
        Tensor::apply_one(ScatterAdd { along: Along::Last, rows: None }, &[self, indices, like])
    }

    /// Returns zeros with `rows` rows along `axis`, with every row of this tensor added to the row
    /// that `indices` selects: the transpose of [`Tensor::gather`]. Rows with equal indices are
    /// added in the order of the indices, for any number of threads. An index out of range is an
    /// error when the graph runs.
    #[track_caller]
    #[doc(alias = "segment_sum")]
    #[doc(alias = "index_add")]
    pub fn scatter_add(&self, indices: &Tensor, rows: usize, axis: isize) -> Tensor {
        if self.is_poison() {
            return self.clone();
        }
        match axis_in(axis, self.rank().max(1)) {
            Ok(axis) => {
                let op = ScatterAdd { along: Along::Axis(axis), rows: Some(rows) };
                Tensor::apply_one(op, &[self, indices])
            }
            Err(e) => self.fail("ScatterAdd", e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    fn integers(draw: &mut Draw<'_>, sizes: Vec<usize>, below: usize) -> Input {
        let dtype = draw.pick(&[DType::I64, DType::I32, DType::U8]);
        Input::new(draw, sizes, Elements::Below(dtype, below))
    }

    cases![
        case("Gather", Twice, |draw| {
            let (rank, of_indices) = (draw.between(1, 3), draw.below(3));
            let (sizes, axis) = (draw.solid(rank), draw.below(rank));
            let indices = draw.sizes(of_indices);
            let inputs =
                vec![Input::floats(draw, sizes.clone(), Any), integers(draw, indices, sizes[axis].min(200))];
            Trial::new(inputs, move |x| vec![x[0].square().gather(&x[1], axis as isize)])
        })
        .empty("x.gather(y, 0)", "[2, 3], i32[0]", "empty [0, 3]", |x| x[0].gather(&x[1], 0))
        .empty(
            "x.gather(y, 0)",
            "[0, 3], i32[1]",
            "error: element 0 of the indices is 1, and there are no rows at all",
            |x| x[0].gather(&x[1], 0)
        ),
        case("TakeAlongAxis", Twice, |draw| {
            let rank = draw.between(1, 3);
            let (sizes, axis) = (draw.solid(rank), draw.below(rank));
            let mut indices = sizes.clone();
            indices[axis] = draw.pick(&[1, 2, 0, 5]);
            let inputs =
                vec![Input::floats(draw, sizes.clone(), Any), integers(draw, indices, sizes[axis].min(200))];
            Trial::new(inputs, move |x| vec![x[0].square().take_along_axis(&x[1], axis as isize)])
        })
        .empty("x.take_along_axis(y, 1)", "[0, 3], i32[0, 2]", "empty [0, 2]", |x| {
            x[0].take_along_axis(&x[1], 1)
        }),
        case("ScatterAdd", Twice, |draw| {
            let (rank, axis, of_indices) = (draw.below(2), draw.below(2), draw.below(3));
            let (before, indices, after) = (draw.sizes(axis), draw.sizes(of_indices), draw.sizes(rank));
            let sizes = [before, indices.clone(), after].concat();
            // Few rows, so that many are added up.
            let rows = draw.between(1, 5);
            let inputs = vec![Input::floats(draw, sizes.clone(), Any), integers(draw, indices, rows)];
            let axis = if axis < sizes.len() { axis as isize } else { 0 };
            Trial::new(inputs, move |x| vec![x[0].square().scatter_add(&x[1], rows, axis)])
        })
        .empty("x.scatter_add(y, 4, 0)", "[0, 3], i32[0]", "zeros [4, 3]", |x| x[0].scatter_add(&x[1], 4, 0))
        .empty(
            "x.scatter_add(y, 0, 0)",
            "[1, 3], i32[1]",
            "error: element 0 of the indices is 1, and there are no rows at all",
            |x| x[0].scatter_add(&x[1], 0, 0)
        ),
    ];
}
