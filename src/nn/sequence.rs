//! Unrolling of recurrent layers over time.

use super::bias::channels;
use crate::graph::Tensor;
use tensorpack_tensor::Error;

/// Checks the initial state of a recurrent layer: `[batch, units]`, with the batch of `x`.
/// Broadcasting would silently repeat a single row for every example.
#[track_caller]
pub(super) fn initial_state(kind: &str, state: &Tensor, x: &Tensor, units: usize) -> Tensor {
    if state.is_poison() || x.is_poison() {
        return state.clone();
    }
    let takes = format!("a state [batch, units] of {units} units");
    if channels(state, 2..=2) != Some(units) {
        return state.fail(kind, Error::shape(format!("takes {takes}, not {}", state.shape())));
    }
    state.with_dims_of(x, 1, &takes)
}

/// Runs a cell over `x [batch, time, features]`.
///
/// `project`, called with the number of features, computes the input contribution of all time steps
/// in one matmul and returns it with the recurrent weights; every step multiplies by the first of
/// these. `advance` computes the output and the state of one step. Returns the outputs
/// `[batch, time, units]` and the last state.
#[track_caller]
pub(super) fn unroll<S, const N: usize>(
    kind: &str,
    x: &Tensor,
    project: impl FnOnce(usize) -> (Tensor, [Tensor; N]),
    mut state: Option<S>,
    advance: impl Fn(&Tensor, &[Tensor; N], Option<&S>) -> (Tensor, S),
) -> (Tensor, Option<S>) {
    if x.is_poison() {
        return (x.clone(), None);
    }
    let known = channels(x, 3..=3).and_then(|f| Some((f, x.shape()[1].known().filter(|&n| n > 0)?)));
    let Some((features, steps)) = known else {
        let why = format!("expected [batch, time, features] with known time and features, got {}", x.shape());
        return (x.fail(kind, Error::shape(why)), None);
    };
    let (projected, mut weights) = project(features);
    let mut outputs = Vec::with_capacity(steps);
    for (step, recurrent) in projected.cut(steps, 1).iter().zip(weights[0].fan_out(steps)) {
        weights[0] = recurrent;
        let (output, next) = advance(&step.squeeze(1), &weights, state.as_ref());
        outputs.push(output);
        state = Some(next);
    }
    (x.graph().stack(&outputs, 1), state)
}
