//! Random numbers, a pure function of the seed, the op's name and the run: see
//! [`CounterRng`](tensorpack_tensor::CounterRng).

use super::composed;
use crate::graph::{GradCx, Graph, OpDef, OpTraits, Spec, Tensor, split_tower};
use crate::kir::{LowerCx, View};
use crate::onnx::{ExportCx, Value};
use crate::reference::{Array, EvaluateCx};
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;
use std::panic::Location;
use std::sync::Arc;
use tensorpack_tensor::{DType, Error, Result};

/// Uniform numbers in `[0, 1)`, in the shape of the input or else of these sizes.
#[derive(Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct RandomUniform {
    dtype: DType,
    sizes: Vec<usize>,
    /// The axis along which the sequence continues from tower to tower; without one, all towers
    /// draw the same numbers.
    batch_axis: Option<usize>,
}
crate::exported!(RandomUniform, 0..=1);

impl OpDef for RandomUniform {
    fn name(&self) -> &str {
        "RandomUniform"
    }

    fn infer(&self, inputs: &[Spec]) -> Result<Vec<Spec>> {
        let shape = inputs.first().map_or_else(|| (&self.sizes).into(), |x| x.shape.clone());
        // A scalar counts as a batch, so axis 0 is valid.
        if let Some(axis) = self.batch_axis.filter(|&a| a > 0 && a >= shape.rank()) {
            return Err(Error::argument(format!("{shape} has no batch axis {axis}")));
        }
        match self.dtype {
            DType::F32 | DType::F64 => Ok(vec![Spec { dtype: self.dtype, shape }]),
            d => Err(Error::dtype(format!("expected f32 or f64, got {d}"))),
        }
    }

    fn shape_only(&self, _: usize) -> bool {
        true
    }

    fn grad(&self, cx: &GradCx<'_>) -> Result<Vec<Option<Tensor>>> {
        Ok(vec![None; cx.input_count()])
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<Vec<View>> {
        let stream = split_tower(cx.node_name()).1.to_string();
        // Draw with the batch axis first, so that each tower's numbers follow those of the tower
        // before.
        let out = cx.output_sizes(0);
        let axis = self.batch_axis.unwrap_or(0);
        let (first, others): (Vec<usize>, Vec<usize>) = (0..out.len()).partition(|&d| d == axis);
        let order = [first, others].concat();
        let sizes: Vec<usize> = order.iter().map(|&d| out[d]).collect();
        let drawn = cx.random(&stream, &sizes, self.batch_axis.is_some());
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(i, &d)| back[d] = i);
        Ok(vec![drawn.permute(&back)])
    }

    fn evaluate(&self, cx: &EvaluateCx<'_>) -> Result<Vec<Array>> {
        let draw = cx.uniform(split_tower(cx.node_name()).1);
        let (sizes, axis) = (cx.output_sizes(0), self.batch_axis.unwrap_or(0));
        let first = if self.batch_axis.is_some() { cx.elements_before() } else { 0 };
        Ok(cx.float_output(|i| {
            // Elements are numbered with the batch axis first.
            let own = i.iter().zip(sizes).enumerate();
            let number = |at: usize, (_, (&i, &n)): (usize, (&usize, &usize))| at * n + i;
            let rows = own.clone().filter(|(d, _)| *d == axis).fold(0, number);
            draw(first + own.filter(|(d, _)| *d != axis).fold(rows, number))
        }))
    }

    fn onnx(&self, cx: &mut ExportCx<'_>) -> Result<Vec<Value>> {
        let (dtype, shape) = (cx.output_dtype(0), cx.output_shape(0).clone());
        let zeros = cx.dims(&shape, &(0..cx.input_count()).map(|i| cx.input(i)).collect::<Vec<_>>())?;
        let zero = cx.scalar(0.0, dtype)?;
        let like = cx.node("Expand", &[&zero, &zeros], &[], dtype, shape.clone())?;
        Ok(vec![cx.node("RandomUniformLike", &[&like], &[], dtype, shape)?])
    }

    fn traits(&self) -> OpTraits {
        OpTraits::UNIQUE
    }
}

/// A distribution to draw from, with an element type and a rule for towers. Every run draws new
/// numbers.
///
/// ```
/// # use tensorpack::prelude::*;
/// # let graph = Graph::new();
/// # let x = graph.placeholder(&TensorSpec::f32("x", [None, Some(3)]));
/// let noisy = &x + Random::normal(0.0, 0.1).like(&x);
/// let z = Random::uniform(-1.0, 1.0).shape(&graph, &[64, 100]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Random {
    distribution: Distribution,
    dtype: DType,
    batch_axis: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Distribution {
    Uniform(f64, f64),
    Normal(f64, f64),
    TruncatedNormal(f64, f64),
    Bernoulli(f64),
}

impl Random {
    fn new(distribution: Distribution) -> Random {
        Random { distribution, dtype: DType::F32, batch_axis: Some(0) }
    }

    /// Uniform on `[low, high)`; `high` can occur only through rounding.
    pub fn uniform(low: f64, high: f64) -> Random {
        Random::new(Distribution::Uniform(low, high))
    }

    /// Normal with this mean and standard deviation.
    pub fn normal(mean: f64, deviation: f64) -> Random {
        Random::new(Distribution::Normal(mean, deviation))
    }

    /// Normal, truncated at two standard deviations from the mean. `deviation` is that of the
    /// untruncated distribution; the truncated one has 0.88 of it.
    pub fn truncated_normal(mean: f64, deviation: f64) -> Random {
        Random::new(Distribution::TruncatedNormal(mean, deviation))
    }

    /// 1 with probability `p`, else 0.
    pub fn bernoulli(p: f64) -> Random {
        Random::new(Distribution::Bernoulli(p))
    }

    /// Sets the element type; defaults to f32.
    #[must_use]
    pub fn dtype(self, dtype: DType) -> Random {
        Random { dtype, ..self }
    }

    /// Sets the batch axis; defaults to the first. Along it the numbers continue from tower to
    /// tower: several towers together draw the numbers that one tower would draw for all their
    /// examples.
    #[must_use]
    pub fn batch_axis(self, axis: usize) -> Random {
        Random { batch_axis: Some(axis), ..self }
    }

    /// Draws the same numbers on all towers.
    #[must_use]
    pub fn same_on_all_towers(self) -> Random {
        Random { batch_axis: None, ..self }
    }

    /// Draws a tensor of these sizes.
    #[track_caller]
    pub fn shape(self, graph: &Graph, sizes: &[usize]) -> Tensor {
        self.draw(graph, Location::caller(), |op| graph.add_op(Arc::new(op), &[]), sizes)
    }

    /// Draws a tensor of the shape of `like`.
    #[track_caller]
    pub fn like(self, like: &Tensor) -> Tensor {
        let graph = like.graph();
        self.draw(graph, Location::caller(), |op| graph.add_op(Arc::new(op), &[like]), &[])
    }

    fn draw(
        self,
        graph: &Graph,
        caller: &'static Location<'static>,
        add: impl Fn(RandomUniform) -> Vec<Tensor>,
        sizes: &[usize],
    ) -> Tensor {
        let uniform = || {
            let op = RandomUniform {
                dtype: drawn_in(self.dtype),
                sizes: sizes.to_vec(),
                batch_axis: self.batch_axis,
            };
            add(op).pop().unwrap_or_else(|| Tensor::poison(graph))
        };
        let name = match self.distribution {
            Distribution::Uniform(..) => "Uniform",
            Distribution::Normal(..) => "Normal",
            Distribution::TruncatedNormal(..) => "TruncatedNormal",
            Distribution::Bernoulli(_) => "Bernoulli",
        };
        graph.called_from(caller, || {
            graph.scope(name, false, true, || {
                if let Err(e) = self.check() {
                    graph.record(name, &[], e);
                    return Tensor::poison(graph);
                }
                let numbers = match self.distribution {
                    Distribution::Uniform(low, high) => uniform() * (high - low) + low,
                    Distribution::Normal(mean, deviation) => {
                        normal(&uniform(), &uniform()) * deviation + mean
                    }
                    Distribution::TruncatedNormal(mean, deviation) => {
                        truncated(&uniform()) * deviation + mean
                    }
                    Distribution::Bernoulli(p) => {
                        let u = uniform();
                        u.less(p)
                    }
                };
                if numbers.dtype() == self.dtype { numbers } else { numbers.cast(self.dtype) }
            })
        })
    }

    fn check(&self) -> Result<()> {
        let (parameters, valid) = match self.distribution {
            Distribution::Uniform(low, high) => (vec![low, high], low <= high),
            Distribution::Normal(mean, deviation) | Distribution::TruncatedNormal(mean, deviation) => {
                (vec![mean, deviation], deviation >= 0.0)
            }
            Distribution::Bernoulli(p) => {
                return match (0.0..=1.0).contains(&p) {
                    true => Ok(()),
                    false => Err(Error::argument(format!("{p} is not a probability"))),
                };
            }
        };
        if !valid || parameters.iter().any(|v| !v.is_finite()) {
            return Err(Error::argument(format!("invalid distribution {:?}", self.distribution)));
        }
        match self.dtype.is_float() {
            true => Ok(()),
            false => Err(Error::dtype(format!("expected a floating-point type, got {}", self.dtype))),
        }
    }
}

/// Returns the type in which uniform numbers are drawn for numbers of type `dtype`: f32 for smaller
/// types.
fn drawn_in(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// Turns two uniform numbers into a standard normal one (Box and Muller, 1958).
fn normal(u: &Tensor, v: &Tensor) -> Tensor {
    ((-u).log1p() * -2.0).sqrt() * (v * TAU).cos()
}

/// Turns a uniform number into a standard normal one truncated at two standard deviations. The
/// inverse of the distribution function is `x` times a smooth function of `-log(1 - x^2)` for `x`
/// in `-1..1`.
fn truncated(u: &Tensor) -> Tensor {
    /// The error function at the square root of 2: the probability of lying within the truncation.
    const LEFT: f64 = 0.954_499_736_103_641_6;
    /// A polynomial interpolated at Chebyshev nodes; its relative error is 1e-12.
    const SMOOTH: [f64; 11] = [
        1.2533141373163625,
        0.328116873783651,
        0.01633323750512269,
        -0.0033023404848026862,
        -0.0001810573983917041,
        6.588389517744716e-05,
        2.880720811570934e-06,
        -1.4303258857447576e-06,
        -6.903736624117769e-08,
        4.512483015166979e-08,
        -3.673466984584033e-09,
    ];
    let x = (u * 2.0 - 1.0) * LEFT;
    let w = -(-x.square()).log1p();
    let (last, others) = SMOOTH.split_last().expect("the polynomial is not empty");
    let smooth = others.iter().rev().fold(w.constant_like(*last), |sum, &term| sum * &w + term);
    x * smooth
}

impl Tensor {
    /// Draws uniform random numbers in `[0, 1)` in this tensor's shape, new ones in every run.
    #[track_caller]
    pub fn random_uniform_like(&self, dtype: DType) -> Tensor {
        Tensor::apply_one(RandomUniform { dtype, sizes: Vec::new(), batch_axis: Some(0) }, &[self])
    }

    /// Dropout: sets every element to zero with probability `rate` and divides the others by
    /// `1 - rate`.
    #[track_caller]
    pub fn dropout(&self, rate: f64) -> Tensor {
        if !(0.0..1.0).contains(&rate) {
            return self.fail("Dropout", Error::argument(format!("the rate is {rate}, but must be in 0..1")));
        }
        if let Err(e) = super::float_input(self.spec()) {
            return if self.is_poison() { self.clone() } else { self.fail("Dropout", e) };
        }
        composed(self, "Dropout", Location::caller(), || {
            let drawn = self.random_uniform_like(drawn_in(self.dtype()));
            let kept = drawn.greater_equal(rate);
            kept.select(&(self * (1.0 / (1.0 - rate))), &self.zero())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    fn drawn(name: &'static str, random: Random) -> Case {
        case(name, Never("only the shape of the input is used"), move |draw| {
            let rank = draw.below(4);
            let (sizes, axis) = (draw.sizes(rank), draw.below(rank.max(1)));
            Trial::new(vec![Input::floats(draw, sizes, Any)], move |x| {
                vec![random.dtype(x[0].dtype()).batch_axis(axis).like(&x[0])]
            })
        })
    }

    cases![
        unary("RandomUniform", Never("only the shape of the input is used"), Any, |x| {
            x.random_uniform_like(DType::F32)
        })
        .empty("x.dropout(0.5)", "[0, 3]", "empty [0, 3]", |x| x[0].dropout(0.5)),
        drawn("Random uniform", Random::uniform(-3.0, 2.0)),
        drawn("Random normal", Random::normal(0.5, 2.0)).empty(
            "Random::normal(0, 1).like(x)",
            "[0, 3]",
            "empty [0, 3]",
            |x| { Random::normal(0.0, 1.0).like(&x[0]) }
        ),
        drawn("Random truncated normal", Random::truncated_normal(0.5, 2.0)),
        drawn("Random bernoulli", Random::bernoulli(0.25)),
    ];
}
