//! A loop that ends when a condition is false.

use super::Scan;
use crate::graph::Tensor;
use tensorpack_tensor::{DType, Error, HostTensor};

/// Applies `body` to the state while `condition` holds, at most `max_steps` times. Returns the last
/// state.
///
/// `condition` returns a boolean scalar, `body` the next state; both get the state and the `captured`
/// tensors. All `max_steps` steps are computed, whatever the condition says: a step after the end
/// computes `body` of the initial state, selects the old state, and has no effect on gradients, not even
/// where its derivatives are infinite or NaN. So the cost is that of `max_steps` steps, the loop can be
/// differentiated, and it runs on every engine. Only if the condition is false at the beginning, a
/// division of integers by zero or an index out of range that `body` computes then is an error.
///
/// ```
/// use tensorpack::control::while_loop;
/// use tensorpack::prelude::*;
///
/// # fn main() -> Result<()> {
/// let graph = Graph::new();
/// let x = graph.placeholder(&TensorSpec::f32("x", []));
/// let halved = while_loop(&[&x], &[], 20, |s, _| s[0].greater(1.0), |s, _| vec![&s[0] * 0.5]);
/// let session = Session::new(graph.freeze()?)?;
/// let found = session.run(&[&halved[0]], &[("x", &HostTensor::new([], vec![10.0f32])?)])?;
/// assert_eq!(found[0].as_slice::<f32>()?, [0.625]);
/// # Ok(())
/// # }
/// ```
#[track_caller]
#[doc(alias = "while")]
pub fn while_loop(
    init: &[&Tensor],
    captured: &[&Tensor],
    max_steps: usize,
    condition: impl FnOnce(&[Tensor], &[Tensor]) -> Tensor,
    body: impl FnOnce(&[Tensor], &[Tensor]) -> Vec<Tensor>,
) -> Vec<Tensor> {
    let Some(first) = init.first() else { return Vec::new() };
    let going = HostTensor::from_f64(DType::Bool, [], &[1.0]).expect("one value fills a scalar");
    let going = first.graph().constant(going);
    let state: Vec<&Tensor> = [&going].into_iter().chain(init.iter().copied()).collect();
    let all_captured: Vec<&Tensor> = init.iter().chain(captured).copied().collect();
    let scan = Scan::new(&state).captured(&all_captured).length(max_steps);
    let (last, _) = scan.run(|state, _, captured| {
        let (going, state) = (&state[0], &state[1..]);
        let (init, captured) = captured.split_at(state.len());
        let holds = condition(state, captured);
        if !holds.is_poison() && (holds.dtype() != DType::Bool || holds.rank() != 0) {
            let why = format!("the condition is {}{}, not a bool scalar", holds.dtype(), holds.shape());
            holds.fail("while_loop", Error::shape(why));
        }
        let going = going.logical_and(&holds);
        let gated = |x: &[Tensor]| x.iter().map(|x| x.with_gradient_if(&going)).collect::<Vec<Tensor>>();
        // After the end, indices in the state may be out of range; in the initial state they are not.
        let valid: Vec<Tensor> = state.iter().zip(init).map(|(now, init)| going.select(now, init)).collect();
        let mut next = body(&gated(&valid), &gated(captured));
        if next.len() != state.len() {
            let why =
                format!("the body returned {} tensors, but the loop began with {}", next.len(), state.len());
            going.fail("while_loop", Error::argument(why));
            next = state.to_vec();
        }
        let next = state.iter().zip(&next).map(|(old, new)| going.select(new, old));
        ([going.clone()].into_iter().chain(next).collect(), Vec::new())
    });
    last.into_iter().skip(1).collect()
}
