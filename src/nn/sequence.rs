//! Recurrent layers over time: unrolled in the graph if the number of steps is known, a loop
//! otherwise.

use super::bias::channels;
use crate::control::Scan;
use crate::graph::Tensor;
use tensorpack_tensor::{DType, Error};

/// Options of a recurrent layer.
#[derive(Clone, Debug, Default)]
#[doc(alias = "pack_padded_sequence")]
pub struct RecurrentOptions {
    lengths: Option<Tensor>,
    reverse: bool,
}

impl RecurrentOptions {
    /// Sets the number of steps of each example, integers `[batch]`. From there on the state of an
    /// example stays as it is, and its outputs are zeros. A run in which a length is negative or larger
    /// than the time dim is an error.
    #[must_use]
    pub fn lengths(self, lengths: &Tensor) -> RecurrentOptions {
        RecurrentOptions { lengths: Some(lengths.clone()), ..self }
    }

    /// Runs from the last step of each example to its first. Outputs keep their positions.
    #[must_use]
    #[doc(alias = "go_backwards")]
    pub fn reverse(self) -> RecurrentOptions {
        RecurrentOptions { reverse: true, ..self }
    }

    /// Returns which steps of `x [batch, time, features]` are part of their examples, as booleans
    /// `[batch, time, 1]`.
    #[track_caller]
    fn mask(&self, kind: &str, x: &Tensor) -> Option<Tensor> {
        let lengths = self.lengths.as_ref()?.lengths_within(kind, x);
        if lengths.is_poison() {
            return Some(lengths);
        }
        let step = x.slice_axis(2, 0, Some(1)).iota_like(1, DType::I64);
        Some(step.less(&lengths.expand_dims(1).expand_dims(1)))
    }
}

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

/// A recurrent cell as a layer sees it, with a state of `S` tensors `[batch, units]`, the last of
/// which is the output, and `W` weights.
pub(super) trait Recurrence<const S: usize, const W: usize> {
    /// The layer's name in errors.
    const KIND: &'static str;

    /// Returns the number of units.
    fn units(&self) -> usize;

    /// Returns the state after a step.
    fn advance(&self, projected: &Tensor, weights: &[Tensor; W], state: Option<&[Tensor; S]>) -> [Tensor; S];
}

/// Runs a cell over `x [batch, time, features]`.
///
/// `project`, called with the number of features, computes the input contribution of all time steps
/// in one matmul and returns it with the recurrent weights; every step multiplies by the first of
/// these. Returns the outputs `[batch, time, units]` and the last state.
#[track_caller]
pub(super) fn run<R: Recurrence<S, W>, const S: usize, const W: usize>(
    cell: &R,
    x: &Tensor,
    project: impl FnOnce(usize) -> (Tensor, [Tensor; W]),
    state: Option<[Tensor; S]>,
    options: &RecurrentOptions,
) -> (Tensor, Option<[Tensor; S]>) {
    if x.is_poison() {
        return (x.clone(), None);
    }
    // A loop may have no steps; a list of outputs to stack may not be empty.
    let steps = x.shape().get(1).and_then(|d| d.known()).filter(|&steps| steps > 0);
    let Some(features) = channels(x, 3..=3) else {
        let why = format!("expected [batch, time, features] with known features, got {}", x.shape());
        return (x.fail(R::KIND, Error::shape(why)), None);
    };
    let mask = options.mask(R::KIND, x);
    let (projected, weights) = project(features);
    if projected.is_poison() || mask.as_ref().is_some_and(Tensor::is_poison) {
        return (Tensor::poison(x.graph()), None);
    }
    // Steps that are not part of an example keep its state, so there must be one.
    let zeros = || {
        // Only the shape of this sum is used, so it is never computed.
        let like = projected.sum_axes(&[1]).slice_axis(1, 0, Some(cell.units()));
        std::array::from_fn(|_| projected.zero().broadcast_like(&like))
    };
    let state = if steps.is_none() || mask.is_some() { Some(state.unwrap_or_else(zeros)) } else { state };
    match steps {
        Some(steps) => unroll(cell, &projected, weights, state, mask.as_ref(), steps, options.reverse),
        None => scan(cell, &projected, &weights, state, mask.as_ref(), options.reverse),
    }
}

/// Returns the state and the output of a step that some examples may not take.
fn masked<const S: usize>(mask: &Tensor, next: [Tensor; S], before: &[Tensor; S]) -> ([Tensor; S], Tensor) {
    let output = mask.select(&next[S - 1], &next[S - 1].zero());
    (std::array::from_fn(|i| mask.select(&next[i], &before[i])), output)
}

/// Adds every step to the graph, so that results are stored for gradients.
#[track_caller]
fn unroll<const S: usize, const W: usize>(
    cell: &impl Recurrence<S, W>,
    projected: &Tensor,
    mut weights: [Tensor; W],
    mut state: Option<[Tensor; S]>,
    mask: Option<&Tensor>,
    steps: usize,
    reverse: bool,
) -> (Tensor, Option<[Tensor; S]>) {
    let masks = mask.map(|mask| mask.cut(steps, 1));
    let parts = projected.cut(steps, 1);
    let mut outputs = vec![None; steps];
    for (i, recurrent) in weights[0].fan_out(steps).into_iter().enumerate() {
        let step = if reverse { steps - 1 - i } else { i };
        weights[0] = recurrent;
        let next = cell.advance(&parts[step].squeeze(1), &weights, state.as_ref());
        let (next, output) = match (&masks, &state) {
            (Some(masks), Some(before)) => masked(&masks[step].squeeze(1), next, before),
            _ => {
                let output = next[S - 1].clone();
                (next, output)
            }
        };
        outputs[step] = Some(output);
        state = Some(next);
    }
    let outputs: Vec<Tensor> = outputs.into_iter().flatten().collect();
    (projected.graph().stack(&outputs, 1), state)
}

/// Adds a loop over a number of steps that is not known yet.
#[track_caller]
fn scan<const S: usize, const W: usize>(
    cell: &impl Recurrence<S, W>,
    projected: &Tensor,
    weights: &[Tensor; W],
    state: Option<[Tensor; S]>,
    mask: Option<&Tensor>,
    reverse: bool,
) -> (Tensor, Option<[Tensor; S]>) {
    let time_first = |t: &Tensor| t.transpose(&[1, 0, 2]);
    let over: Vec<Tensor> = [Some(projected), mask].into_iter().flatten().map(time_first).collect();
    // Nothing is cast inside the loop.
    let cast = |t: &Tensor| t.cast(projected.dtype());
    let state: Vec<Tensor> = state.iter().flatten().map(cast).collect();
    let weights = weights.each_ref().map(cast);
    let [state, over, weights] = [&state[..], &over, &weights].map(|ts| ts.iter().collect::<Vec<&Tensor>>());
    let scan = Scan::new(&state).over(&over).captured(&weights);
    let scan = if reverse { scan.reverse() } else { scan };
    let (last, outputs) = scan.run(|state, x, captured| {
        let before: [Tensor; S] = std::array::from_fn(|i| state[i].clone());
        let weights: [Tensor; W] = std::array::from_fn(|i| captured[i].clone());
        let next = cell.advance(&x[0], &weights, Some(&before));
        let (next, output) = match x.get(1) {
            Some(mask) => masked(mask, next, &before),
            None => {
                let output = next[S - 1].clone();
                (next, output)
            }
        };
        (next.into(), vec![output])
    });
    match outputs.first() {
        Some(outputs) => (time_first(outputs), Some(std::array::from_fn(|i| last[i].clone()))),
        None => (Tensor::poison(projected.graph()), None),
    }
}
