//! Concatenation along an axis, and stacking along a new one.

use crate::graph::{GradCx, Graph, OpDef, Spec, Tensor, axis_in};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::panic::Location;
use std::sync::Arc;
use tensorpack_tensor::{Dim, Error, Result};

/// The inputs concatenated along an axis.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Concat {
    axis: usize,
}
crate::exported!(Concat, 1..=usize::MAX);

impl OpDef for Concat {
    fn name(&self) -> &str {
        "Concat"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let first = &inputs[0];
        super::axis_of(&first.shape, self.axis)?;
        let mut dims: Vec<Dim> = first.shape.to_vec();
        for part in &inputs[1..] {
            if part.dtype != first.dtype {
                return Err(Error::dtype(format!("element types {} and {} differ", first.dtype, part.dtype)));
            }
            let differ = || {
                Error::shape(format!(
                    "{} and {} cannot be concatenated along axis {}: their other sizes differ",
                    first.shape, part.shape, self.axis
                ))
            };
            if part.shape.rank() != dims.len() {
                return Err(differ());
            }
            for (i, (mine, &other)) in dims.iter_mut().zip(part.shape.iter()).enumerate() {
                match (*mine, other) {
                    _ if i == self.axis => {}
                    (Dim::Known(a), Dim::Known(b)) if a != b => return Err(differ()),
                    (Dim::Unknown(_), Dim::Known(_)) => *mine = other,
                    _ => {}
                }
            }
        }
        let along: Vec<Dim> = inputs.iter().map(|s| s.shape[self.axis]).collect();
        let known = along.iter().filter_map(|d| d.known()).try_fold(0usize, usize::checked_add);
        let unknown: Vec<Dim> = along.iter().copied().filter(|d| d.known().is_none()).collect();
        dims[self.axis] = match (known, unknown.as_slice()) {
            (None, _) => return Err(Error::shape("the concatenated tensor is too large")),
            (Some(n), []) => Dim::Known(n),
            (Some(0), [one]) => *one,
            (Some(n), _) => Dim::derived("concat", &unknown, &[n]),
        };
        Ok(vec![Spec { dtype: first.dtype, shape: dims.into() }])
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let dx = |i: usize| {
            let all: Vec<&Tensor> = (0..cx.input_count()).map(|j| cx.input(j)).collect();
            let inputs: Vec<&Tensor> = [cx.dy()].into_iter().chain(all).collect();
            Tensor::apply_one(PartOf { axis: self.axis, part: i }, &inputs)
        };
        Ok((0..cx.input_count()).map(|i| cx.needs(i).then(|| dx(i))).collect())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let parts: Vec<View> = (0..cx.input_count()).map(|i| cx.input(i)).collect();
        Ok(vec![if parts.len() == 1 { parts[0].clone() } else { cx.concat(&parts, self.axis) }])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        Ok(cx.output(|i| {
            let (mut part, mut at) = (0, i.to_vec());
            while at[self.axis] >= cx.input_sizes(part)[self.axis] {
                at[self.axis] -= cx.input_sizes(part)[self.axis];
                part += 1;
            }
            cx.input(part).at(&at)
        }))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let parts: Vec<Value> = (0..cx.input_count()).map(|i| cx.input(i)).collect();
        let shape = cx.output_shape(0).clone();
        Ok(vec![cx.concat(&parts, self.axis, shape)?])
    }
}

/// The part of input 0, a concatenation of tensors shaped like the other inputs, that corresponds
/// to input `part`.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct PartOf {
    axis: usize,
    part: usize,
}
crate::exported!(PartOf, 2..=usize::MAX);

impl OpDef for PartOf {
    fn name(&self) -> &str {
        "PartOf"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let (whole, parts) = (&inputs[0], &inputs[1..]);
        let Some(part) = parts.get(self.part) else {
            return Err(Error::argument(format!(
                "part {} is out of range: there are {}",
                self.part,
                parts.len()
            )));
        };
        super::same_spec(whole, &Concat { axis: self.axis }.infer(parts)?[0])?;
        Ok(vec![Spec { dtype: whole.dtype, shape: part.shape.clone() }])
    }

    fn shape_only(&self, i: usize) -> bool {
        i > 0
    }

    /// Zeros, with the gradient of the part at its position.
    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        let parts: Vec<Tensor> = (1..cx.input_count())
            .map(|i| match i - 1 == self.part {
                true => cx.dy().clone(),
                false => cx.dy().zero().broadcast_like(cx.input(i)),
            })
            .collect();
        let whole = cx.dy().graph().concat(&parts, self.axis as isize);
        Ok([Some(whole)].into_iter().chain((1..cx.input_count()).map(|_| None)).collect())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let sizes = cx.output_sizes(0);
        let mut begin = vec![0; sizes.len()];
        begin[self.axis] = (1..=self.part).map(|i| cx.input_sizes(i)[self.axis]).sum();
        Ok(vec![cx.input(0).slice(&begin, &vec![1; sizes.len()], &sizes)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let before: usize = (1..=self.part).map(|i| cx.input_sizes(i)[self.axis]).sum();
        Ok(cx.output(|i| {
            let mut at = i.to_vec();
            at[self.axis] += before;
            cx.input(0).at(&at)
        }))
    }
}

impl Graph {
    /// Concatenates tensors along `axis`; their other sizes must be equal.
    #[track_caller]
    #[doc(alias = "ConcatWith")]
    pub fn concat(&self, parts: &[impl Borrow<Tensor>], axis: isize) -> Tensor {
        self.concat_parts("Concat", parts.iter().map(|p| p.borrow().clone()).collect(), axis, 0)
    }

    /// Stacks tensors of one shape along a new axis.
    #[track_caller]
    pub fn stack(&self, parts: &[impl Borrow<Tensor>], axis: isize) -> Tensor {
        self.concat_parts("Stack", parts.iter().map(|p| p.borrow().clone()).collect(), axis, 1)
    }

    /// Concatenates `parts` along `axis`, after inserting `new` dims of size 1 there.
    #[track_caller]
    fn concat_parts(&self, name: &str, parts: Vec<Tensor>, axis: isize, new: usize) -> Tensor {
        let Some(first) = parts.first() else {
            self.record(name, &[], Error::argument("the list of tensors is empty"));
            return Tensor::poison(self);
        };
        if parts.iter().any(Tensor::is_poison) {
            return Tensor::poison(self);
        }
        let axis = match axis_in(axis, first.rank() + new) {
            Ok(axis) => axis,
            Err(e) => return first.fail(name, e),
        };
        let parts: Vec<Tensor> = match new {
            0 => parts,
            _ => self.called_from(Location::caller(), || {
                parts.iter().map(|p| p.expand_dims(axis.min(p.rank()) as isize)).collect()
            }),
        };
        let inputs: Vec<&Tensor> = parts.iter().collect();
        self.add_op(Arc::new(Concat { axis }), &inputs).pop().unwrap_or_else(|| Tensor::poison(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::TensorSpec;
    use crate::op_cases::*;

    cases![
        case("Concat", Twice, |draw| {
            let rank = draw.between(1, 4);
            let (mut sizes, axis) = (draw.sizes(rank), draw.below(rank));
            let inputs = (0..draw.between(1, 4)).map(|_| {
                sizes[axis] = draw.pick(&[1, 2, 3, 0, 7, 19]);
                Input::floats(draw, sizes.clone(), Any)
            });
            let inputs: Vec<Input> = inputs.collect();
            Trial::new(inputs, move |x| vec![x[0].graph().concat(x, axis as isize).square()])
        })
        .empty("concat([x, y], 0)", "[0, 3], [2, 3]", "1 [2, 3]", |x| x[0].graph().concat(x, 0))
        .empty("concat([x, y], 1)", "[0, 3], [0, 2]", "empty [0, 5]", |x| x[0].graph().concat(x, 1)),
        case("Stack", Twice, |draw| {
            let rank = draw.below(3);
            let (sizes, axis) = (draw.sizes(rank), draw.below(rank + 1) as isize);
            let inputs =
                (0..draw.between(1, 3)).map(|_| Input::floats(draw, sizes.clone(), Any)).collect::<Vec<_>>();
            Trial::new(inputs, move |x| vec![x[0].graph().stack(x, axis).square()])
        })
        .empty("stack([x, y], 0)", "[0, 3], [0, 3]", "empty [2, 0, 3]", |x| x[0].graph().stack(x, 0)),
    ];

    #[test]
    fn errors_name_the_mismatch() {
        let message = |build: fn(&Graph, &[Tensor])| {
            let g = Graph::new();
            let x = [("a", [Some(2), Some(3)]), ("b", [Some(4), Some(5)])];
            let x = x.map(|(name, sizes)| g.placeholder(&TensorSpec::f32(name, sizes)));
            build(&g, &x);
            g.freeze().unwrap_err().message().to_string()
        };
        assert!(message(|g, _| drop(g.concat(&[] as &[Tensor], 0))).contains("is empty"));
        let text = message(|g, x| drop(g.concat(x, 0)));
        assert!(text.contains("[2, 3] and [4, 5] cannot be concatenated along axis 0"), "{text}");
        assert!(message(|g, x| drop(g.concat(x, 2))).contains("axis 2 is out of range"));
    }
}
