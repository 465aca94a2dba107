//! Einsum: sums of products in index notation. `ij,jk->ik` is a matrix product. The gradient of an
//! einsum is another einsum.

use crate::graph::{Autocast, GradCx, Graph, OpDef, Spec, Tensor};
use crate::kir::{Binary, ContractKind, LowerCx, MatMul, ReduceKind, View};
use crate::onnx::{Attr, ExportCx, Value};
use crate::reference::{Array, EvaluateCx, Indices, Scalar};
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::sync::Arc;
use tensorpack_tensor::{DType, Dim, Error, Result};

/// The index labels of one or two inputs and of the output, one per dim.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
struct Einsum {
    inputs: Vec<Vec<char>>,
    output: Vec<char>,
}
crate::exported!(Einsum, 1..=2);

impl From<Einsum> for String {
    fn from(e: Einsum) -> String {
        let inputs: Vec<String> = e.inputs.iter().map(|part| part.iter().collect()).collect();
        format!("{}->{}", inputs.join(","), e.output.iter().collect::<String>())
    }
}

impl TryFrom<String> for Einsum {
    type Error = Error;
    fn try_from(equation: String) -> Result<Einsum> {
        Einsum::parse(&equation, equation.matches(',').count() + 1)
    }
}

impl Einsum {
    /// Parses an equation such as `ij,jk->ik`.
    fn parse(equation: &str, count: usize) -> Result<Einsum> {
        let wrong = |why: String| Err(Error::argument(format!("in the equation {equation:?} {why}")));
        let stripped: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
        let Some((left, right)) = stripped.split_once("->") else {
            return wrong("the output is missing: end it with ->, as in \"ij,jk->ik\"".into());
        };
        let inputs: Vec<Vec<char>> = left.split(',').map(|part| part.chars().collect()).collect();
        let output: Vec<char> = right.chars().collect();
        if inputs.len() != count || !matches!(count, 1 | 2) {
            return wrong(format!(
                "there are {} inputs, but {count} tensors were given; one or two are supported",
                inputs.len()
            ));
        }
        for part in inputs.iter().chain([&output]) {
            if let Some(c) = part.iter().find(|c| !c.is_alphabetic()) {
                return wrong(format!("{c:?} is not a letter; label every dim with one letter"));
            }
            if let Some(c) = (0..part.len()).find(|&i| part[..i].contains(&part[i])) {
                return wrong(format!("{:?} occurs twice in one tensor, which is not supported", part[c]));
            }
        }
        match output.iter().find(|c| !inputs.iter().any(|i| i.contains(c))) {
            Some(c) => wrong(format!("the output has {c:?}, but no input has it")),
            None => Ok(Einsum { inputs, output }),
        }
    }

    fn in_output(&self, label: char) -> bool {
        self.output.contains(&label)
    }

    /// Returns the gradient with respect to input `i`: the equation with that input and the output
    /// exchanged. It is broadcast along labels that only this input has and that were summed.
    fn input_grad(&self, cx: &GradCx<'_>, i: usize) -> Tensor {
        let own = &self.inputs[i];
        let mut parts = vec![(self.output.clone(), cx.dy().clone())];
        parts.extend(
            (0..self.inputs.len()).filter(|&j| j != i).map(|j| (self.inputs[j].clone(), cx.input(j).clone())),
        );
        let reached = |c: &char| parts.iter().any(|(labels, _)| labels.contains(c));
        let output: Vec<char> = own.iter().copied().filter(reached).collect();
        let lost: Vec<usize> = (0..own.len()).filter(|&d| !reached(&own[d])).collect();
        let (inputs, tensors): (Vec<Vec<char>>, Vec<Tensor>) = parts.into_iter().unzip();
        let tensors: Vec<&Tensor> = tensors.iter().collect();
        let dx = Tensor::apply_one(Einsum { inputs, output }, &tensors);
        dx.keep_axes(&lost, false).broadcast_like(cx.input(i))
    }
}

/// A view with a label for each dim.
struct Labeled {
    view: View,
    labels: Vec<char>,
}

impl Labeled {
    /// Returns the view with exactly these labels, in this order; each must exist.
    fn ordered(&self, labels: &[char]) -> View {
        let at = |c: &char| self.labels.iter().position(|l| l == c).expect("a label of this view");
        self.view.permute(&labels.iter().map(at).collect::<Vec<_>>())
    }

    /// Returns the view with these labels in order; missing ones become dims of size 1.
    fn spread(&self, cx: &mut LowerCx<'_>, labels: &[char]) -> View {
        let here: Vec<char> = labels.iter().copied().filter(|c| self.labels.contains(c)).collect();
        let ordered = self.ordered(&here);
        let sizes: Vec<usize> =
            labels.iter().map(|&c| if here.contains(&c) { self.size(c) } else { 1 }).collect();
        cx.reshape(&ordered, &sizes)
    }

    fn size(&self, label: char) -> usize {
        self.labels.iter().position(|&l| l == label).map_or(1, |d| self.view.sizes[d])
    }

    fn count(&self, labels: &[char]) -> usize {
        labels.iter().fold(1, |n, &c| n.saturating_mul(self.size(c)))
    }

    /// Sums over all labels that `keep` rejects. The sums are of type `dtype`.
    fn summed(self, cx: &mut LowerCx<'_>, dtype: DType, keep: impl Fn(char) -> bool) -> Labeled {
        let Labeled { view, labels } = self;
        let reduced: Vec<bool> = labels.iter().map(|&c| !keep(c)).collect();
        if !reduced.contains(&true) {
            return Labeled { view, labels };
        }
        let sums = cx.reduce(ReduceKind::Sum, dtype, &view.sizes, &reduced, &[&view], |_, r| r[0]);
        Labeled { view: sums[0].clone(), labels: labels.into_iter().filter(|&c| keep(c)).collect() }
    }

    /// Converts the elements to type `dtype`.
    fn cast(self, cx: &mut LowerCx<'_>, dtype: DType) -> Labeled {
        if self.view.dtype == dtype {
            return self;
        }
        Labeled { view: cx.map_to(dtype, &self.view.sizes, &[&self.view], |_, r| r[0]), ..self }
    }

    /// Returns the view as an operand of a matrix product, `[batch, rows, columns]`, or transposed
    /// (true) if that is its memory layout.
    fn matrix(&self, cx: &mut LowerCx<'_>, batch: &[char], rows: &[char], columns: &[char]) -> (View, bool) {
        let plain = self.ordered(&[batch, rows, columns].concat());
        let transposed = self.ordered(&[batch, columns, rows].concat());
        let sizes = [batch, rows, columns].map(|l| self.count(l));
        match !plain.is_dense() && transposed.is_dense() {
            true => (cx.reshape(&transposed, &[sizes[0], sizes[2], sizes[1]]), true),
            false => (cx.reshape(&plain, &sizes), false),
        }
    }
}

impl OpDef for Einsum {
    fn name(&self) -> &str {
        "Einsum"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        if inputs.len() != self.inputs.len() {
            return Err(Error::argument(format!(
                "expected {} inputs, got {}",
                self.inputs.len(),
                inputs.len()
            )));
        }
        let mut known: Vec<(char, Dim)> = Vec::new();
        for (spec, labels) in inputs.iter().zip(&self.inputs) {
            super::float_input(spec)?;
            if spec.dtype != inputs[0].dtype {
                return Err(Error::dtype(format!(
                    "element types {} and {} differ",
                    inputs[0].dtype, spec.dtype
                )));
            }
            if spec.shape.rank() != labels.len() {
                let labels: String = labels.iter().collect();
                return Err(Error::shape(format!(
                    "the labels {labels:?} do not match the dims of {}",
                    spec.shape
                )));
            }
            for (&c, &d) in labels.iter().zip(spec.shape.iter()) {
                match known.iter_mut().find(|(l, _)| *l == c) {
                    None => known.push((c, d)),
                    Some((_, before)) => match (*before, d) {
                        (Dim::Known(a), Dim::Known(b)) if a != b => {
                            return Err(Error::shape(format!(
                                "{c:?} is {a} in one tensor and {b} in the other"
                            )));
                        }
                        (Dim::Unknown(_), Dim::Known(_)) => *before = d,
                        _ => {}
                    },
                }
            }
        }
        let dim = |c: &char| known.iter().find(|(l, _)| l == c).map_or(Dim::Known(1), |&(_, d)| d);
        Ok(vec![Spec {
            dtype: inputs[0].dtype,
            shape: self.output.iter().map(dim).collect::<Vec<_>>().into(),
        }])
    }

    fn autocast(&self, _i: usize) -> Autocast {
        Autocast::Narrow
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok((0..self.inputs.len()).map(|i| cx.needs(i).then(|| self.input_grad(cx, i))).collect())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let labeled =
            |cx: &LowerCx<'_>, i: usize| Labeled { view: cx.input(i), labels: self.inputs[i].clone() };
        let a = labeled(cx, 0);
        if self.inputs.len() == 1 {
            let dtype = a.view.dtype;
            let sum = a.summed(cx, dtype, |c| self.in_output(c));
            return Ok(vec![sum.ordered(&self.output)]);
        }
        let b = labeled(cx, 1);
        // Sum what only one input has first. Only the result of bf16 or f16 is rounded,
        // so the sums are f32.
        let dtype = a.view.dtype;
        let wide = dtype.widened();
        let a = a.summed(cx, wide, |c| self.in_output(c) || b.labels.contains(&c));
        let b = b.summed(cx, wide, |c| self.in_output(c) || a.labels.contains(&c));
        let of = |from: &[char], test: &dyn Fn(char) -> bool| -> Vec<char> {
            from.iter().copied().filter(|&c| test(c)).collect()
        };
        let in_both = |c: char| a.labels.contains(&c) && b.labels.contains(&c);
        let batch = of(&self.output, &in_both);
        let rows = of(&a.labels, &|c| !in_both(c));
        let columns = of(&b.labels, &|c| !in_both(c));
        let inner = of(&a.labels, &|c| in_both(c) && !self.in_output(c));
        if inner.is_empty() {
            let (a, b) = (a.spread(cx, &self.output), b.spread(cx, &self.output));
            return Ok(vec![cx.map(&[&a, &b], |e, r| e.binary(Binary::Mul, r[0], r[1]))]);
        }
        if rows.is_empty() && columns.is_empty() {
            let all = [batch.as_slice(), &inner].concat();
            let (a, b) = (a.ordered(&all), b.ordered(&all));
            let reduced: Vec<bool> = (0..all.len()).map(|i| i >= batch.len()).collect();
            let sizes = a.sizes.clone();
            return Ok(cx.reduce(ReduceKind::Sum, dtype, &sizes, &reduced, &[&a, &b], |e, r| {
                e.binary(Binary::Mul, r[0], r[1])
            }));
        }
        let product_dtype = if a.view.dtype == b.view.dtype { a.view.dtype } else { wide };
        let (a, b) = (a.cast(cx, product_dtype), b.cast(cx, product_dtype));
        let (lhs, lhs_transposed) = a.matrix(cx, &batch, &rows, &inner);
        let (rhs, rhs_transposed) = b.matrix(cx, &batch, &inner, &columns);
        let [count, m, k, n] = [a.count(&batch), a.count(&rows), a.count(&inner), b.count(&columns)];
        let kind = MatMul {
            batch: count,
            m,
            n,
            k,
            lhs_transposed,
            rhs_transposed,
            lhs_shared: false,
            rhs_shared: false,
        };
        // Keep the columns as one dim during the matrix product, so that the following operations
        // can run on its blocks.
        let leading = [batch, rows].concat();
        let mut sizes: Vec<usize> = leading.iter().map(|&c| a.size(c)).collect();
        let product_sizes = [&sizes[..], &[n]].concat();
        let product = cx.contract_in(product_dtype, ContractKind::MatMul(kind), &lhs, &rhs, &product_sizes);
        sizes.extend(columns.iter().map(|&c| b.size(c)));
        let view = cx.reshape(&product, &sizes);
        let labels = [leading, columns].concat();
        Ok(vec![Labeled { view, labels }.cast(cx, dtype).ordered(&self.output)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let mut letters: Vec<(char, usize)> = Vec::new();
        for (i, labels) in self.inputs.iter().enumerate() {
            for (&c, &n) in labels.iter().zip(cx.input_sizes(i)) {
                if letters.iter().all(|(l, _)| *l != c) {
                    letters.push((c, n));
                }
            }
        }
        let mut sums = cx.running_sums(cx.output_dtype(0), cx.output_sizes(0));
        for index in Indices::new(&letters.iter().map(|(_, n)| *n).collect::<Vec<_>>()) {
            let index_of =
                |c: &char| letters.iter().zip(&index).find(|((l, _), _)| l == c).map_or(0, |(_, &i)| i);
            let at = |labels: &[char]| labels.iter().map(index_of).collect::<Vec<usize>>();
            let factors = self.inputs.iter().enumerate().map(|(i, labels)| cx.input(i).float(&at(labels)));
            sums.add(&at(&self.output), Scalar::Float(factors.product()));
        }
        Ok(vec![sums.array()])
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        // Labels may be any letters; ONNX has a to z.
        let mut labels: Vec<char> = self.inputs.iter().flatten().copied().collect();
        labels.sort_unstable();
        labels.dedup();
        let letter =
            |c: &char| labels.iter().position(|l| l == c).and_then(|i| char::from_u32('a' as u32 + i as u32));
        let part = |part: &Vec<char>| part.iter().filter_map(letter).collect::<String>();
        let inputs: Vec<String> = self.inputs.iter().map(part).collect();
        let equation = format!("{}->{}", inputs.join(","), part(&self.output));
        let inputs: Vec<Value> = (0..cx.input_count()).map(|i| cx.input(i)).collect();
        let (dtype, shape) = (cx.output_dtype(0), cx.output_shape(0).clone());
        let inputs: Vec<&Value> = inputs.iter().collect();
        Ok(vec![cx.node("Einsum", &inputs, &[("equation", Attr::Text(&equation))], dtype, shape)?])
    }
}

impl Graph {
    /// Returns a sum of products of one or two tensors, with one letter for each of their dims:
    /// letters that are missing after `->` are summed over.
    ///
    /// `"ij,jk->ik"` is a matrix product, `"bij->bji"` a transposition, `"bi,bi->b"` a row-wise dot
    /// product, `"bqhd,bkhd->bhqk"` computes attention scores.
    #[track_caller]
    pub fn einsum(&self, equation: &str, inputs: &[impl Borrow<Tensor>]) -> Tensor {
        let inputs: Vec<&Tensor> = inputs.iter().map(Borrow::borrow).collect();
        if inputs.iter().any(|t| t.is_poison()) {
            return Tensor::poison(self);
        }
        match Einsum::parse(equation, inputs.len()) {
            Ok(op) => self.add_op(Arc::new(op), &inputs).pop().unwrap_or_else(|| Tensor::poison(self)),
            Err(e) => {
                self.record("Einsum", &inputs, e);
                Tensor::poison(self)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::TensorSpec;
    use crate::op_cases::*;

    const EQUATIONS: [&str; 14] = [
        "ij,jk->ik",
        "ij,kj->ki",
        "ji,jk->ik",
        "bij,bjk->bik",
        "bqhd,bkhd->bhqk",
        "bhqk,bkhd->bqhd",
        "i,i->",
        "i,j->ji",
        "bi,bi->b",
        "ij,i->j",
        "abc,cd->ab",
        "ab,cd->d",
        "abc,abc->ca",
        "ab,bac->c",
    ];

    cases![
        case("Einsum", Twice, |draw| {
            let equation = draw.pick(&EQUATIONS);
            let sizes: Vec<usize> = (0..26).map(|_| draw.pick(&[1, 2, 3, 5, 0])).collect();
            let (left, _) = equation.split_once("->").expect("an arrow");
            let inputs: Vec<Input> = left
                .split(',')
                .map(|labels| {
                    let of: Vec<usize> = labels.bytes().map(|c| sizes[usize::from(c - b'a')]).collect();
                    Input::floats(draw, of, Any)
                })
                .collect();
            Trial::new(inputs, move |x| vec![x[0].graph().einsum(equation, &[x[0].square(), x[1].clone()])])
        })
        .empty("einsum(\"ij,jk->ik\", [x, y])", "[2, 0], [0, 3]", "zeros [2, 3]", |x| {
            x[0].graph().einsum("ij,jk->ik", x)
        })
        .empty("einsum(\"ij,jk->ik\", [x, y])", "[0, 2], [2, 3]", "empty [0, 3]", |x| {
            x[0].graph().einsum("ij,jk->ik", x)
        }),
        case("Einsum of one", Twice, |draw| {
            let equation = draw.pick(&["abc->cab", "abc->b", "abc->", "abc->ca"]);
            let sizes = draw.sizes(3);
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                vec![x[0].graph().einsum(equation, &[x[0].square()])]
            })
        }),
    ];

    #[test]
    fn errors_name_the_label() {
        let message = |equation: &str| {
            let g = Graph::new();
            let a = g.placeholder(&TensorSpec::f32("a", [Some(2), Some(3)]));
            let _ = g.einsum(equation, &[&a, &a]);
            g.freeze().unwrap_err().message().to_string()
        };
        for (equation, expected) in [
            ("ij,jk", "the output is missing"),
            ("ij->i", "there are 1 inputs, but 2 tensors"),
            ("i.,ij->i", "'.' is not a letter"),
            ("ii,ij->i", "'i' occurs twice"),
            ("ij,jk->il", "'l', but no input has it"),
            ("ij,jk->ik", "'j' is 3 in one tensor and 2 in the other"),
            ("ijk,jk->ik", "\"ijk\" do not match the dims of [2, 3]"),
        ] {
            let found = message(equation);
            assert!(found.contains(expected), "{equation}: {found}");
        }
    }
}
