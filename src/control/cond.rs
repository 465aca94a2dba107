//! One of two computations, chosen by a condition.

use super::body::Body;
use crate::graph::{Graph, Spec, Tensor};
use std::panic::Location;
use tensorpack_tensor::{DType, Error, Result};

/// Returns the results of `then` if `condition`, a bool scalar, is true, and those of `otherwise` if it
/// is false.
///
/// Both functions get the `inputs` and return equally many tensors of the same types and shapes. Like
/// the body of a [loop](super::Scan) they have no variables, random numbers or sums over towers, and
/// use no other tensors from outside.
///
/// A name that a branch gives to a tensor is one in the scope of the call.
///
/// Both are computed, whatever the condition is, so this saves no work. Unlike a plain
/// [`select`](Tensor::select), what is not chosen has no effect on gradients: not even where its
/// derivatives are infinite or NaN. A division of integers by zero and an index out of range are errors
/// in both.
///
/// ```
/// use tensorpack::control::cond;
/// use tensorpack::prelude::*;
///
/// # fn main() -> Result<()> {
/// let graph = Graph::new();
/// let x = graph.placeholder(&TensorSpec::f32("x", []));
/// let positive = x.greater(0.0);
/// let root = cond(&positive, &[&x], |x| vec![x[0].sqrt()], |x| vec![x[0].zeros_like()]).remove(0);
/// let slope = gradients(&root, &[&x])?[0].clone().expect("it depends on x");
/// let session = Session::new(graph.freeze()?)?;
/// let run = |x: f32| session.run(&[&root, &slope], &[("x", &HostTensor::scalar(x))]);
/// assert_eq!([run(4.0)?[0].to_scalar()?, run(4.0)?[1].to_scalar()?], [2.0, 0.25]);
/// assert_eq!([run(0.0)?[0].to_scalar()?, run(0.0)?[1].to_scalar()?], [0.0, 0.0]);
/// # Ok(())
/// # }
/// ```
#[track_caller]
#[doc(alias = "if")]
pub fn cond(
    condition: &Tensor,
    inputs: &[&Tensor],
    then: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    otherwise: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let caller = Location::caller();
    let graph = condition.graph();
    let foreign = inputs.iter().find(|t| !graph.owns(t));
    if let Some(foreign) = foreign {
        condition.fail("cond", foreign.belongs_elsewhere());
    }
    let is_poison = foreign.is_some() || condition.is_poison() || inputs.iter().any(|t| t.is_poison());
    let is_scalar = condition.dtype() == DType::Bool && condition.rank() == 0;
    let [then, otherwise] = if is_poison || !is_scalar {
        // Only a branch knows how many results there are.
        let results = then(&vec![Tensor::poison(&Graph::new()); inputs.len()]).len();
        let why = format!("the condition is {}{}, not a bool scalar", condition.dtype(), condition.shape());
        if !is_poison {
            condition.fail("cond", Error::shape(why));
        }
        return vec![Tensor::poison(graph); results];
    } else {
        [Branch::new(caller, inputs, then), Branch::new(caller, inputs, otherwise)]
    };
    let results = then.results.len();
    let bodies = same_results(&then, &otherwise).and_then(|()| Ok([then.body?, otherwise.body?]));
    let [then, otherwise] = match bodies {
        Ok(bodies) => bodies,
        Err(e) => {
            condition.fail("cond", e);
            return vec![Tensor::poison(graph); results];
        }
    };
    let inline = |body: &Body, chosen: &Tensor| {
        let inputs: Vec<Tensor> = inputs.iter().map(|x| x.with_gradient_if(chosen)).collect();
        body.inline_named(graph, &inputs)
    };
    graph.called_from(caller, || {
        let then = inline(&then, condition);
        let otherwise = inline(&otherwise, &condition.logical_not());
        let choose = |(a, b): (&Tensor, &Tensor)| {
            condition.select(a, &b.with_dims_of(a, a.rank(), "results of one shape from both branches"))
        };
        then.iter().zip(&otherwise).map(choose).collect()
    })
}

/// One of the two computations, in a graph of its own.
struct Branch {
    body: Result<Body>,
    results: Vec<Spec>,
}

impl Branch {
    fn new(
        caller: &'static Location<'static>,
        inputs: &[&Tensor],
        build: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    ) -> Branch {
        let graph = Graph::new();
        let inputs: Vec<Tensor> =
            graph.called_from(caller, || inputs.iter().map(|t| graph.input_of(t.spec().clone())).collect());
        let results = build(&inputs);
        let specs = results.iter().map(|t| t.spec().clone()).collect();
        let body = graph.first_error().and_then(|()| Body::new(graph, &inputs, 0, &results));
        Branch { body, results: specs }
    }
}

/// Checks that the results of both branches have the same types, and shapes as far as they are known.
fn same_results(then: &Branch, otherwise: &Branch) -> Result<()> {
    let [(a, then), (b, otherwise)] = [then, otherwise].map(|b| (&b.results, b.body.as_ref()));
    if then.is_err() || otherwise.is_err() {
        return Ok(());
    }
    if a.len() != b.len() {
        let why = format!("one branch returned {} tensors, the other {}", a.len(), b.len());
        return Err(Error::argument(why));
    }
    let differ = |(a, b): &(&Spec, &Spec)| a.dtype != b.dtype || a.shape.rank() != b.shape.rank();
    match a.iter().zip(b).enumerate().find(|(_, pair)| differ(pair)) {
        None => Ok(()),
        Some((i, (a, b))) => Err(Error::shape(format!(
            "result {i} is {}{} in one branch and {}{} in the other",
            a.dtype, a.shape, b.dtype, b.shape
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![
        // A product with a matrix in one branch, a broadcast in the other.
        case("Cond", Twice, |draw| {
            let (rows, units) = (draw.pick(&[1, 2, 3, 0]), draw.pick(&[1, 2, 4]));
            let inputs = vec![
                Input::floats(draw, [rows, units], Any),
                Input::floats(draw, [units, units], Any),
                Input::new(draw, [], Elements::Bools),
            ];
            Trial::new(inputs, |x| {
                cond(
                    &x[2],
                    &[&x[0], &x[1]],
                    |x| vec![x[0].matmul(&x[1]), x[1].sum_axes(&[0])],
                    |x| vec![x[0].sin(), x[0].sum_axes(&[0]) + x[1].square().sum_axes(&[0])],
                )
            })
        })
        .empty("cond(x.sum() > 0, [x], x, 2 x)", "[0, 3]", "empty [0, 3]", |x| {
            cond(&x[0].sum().greater(0.0), &[&x[0]], |x| x.to_vec(), |x| vec![&x[0] * 2.0]).remove(0)
        }),
    ];
}
