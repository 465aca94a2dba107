//! The CTC loss: minus the logarithm of the probability of all alignments of a label sequence.
//!
//! It is a loop over time in log space, over the states blank, label, blank, label, ..., blank. Its
//! gradient, the loop in the other direction, is the backward variable of the paper.

use crate::control::Scan;
use crate::graph::Tensor;
use std::panic::Location;
use tensorpack_tensor::{DType, Error};

/// Options of [`Tensor::ctc_loss`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CtcOptions {
    blank: usize,
    zero_infinity: bool,
}

impl CtcOptions {
    /// Sets the class of the blank (default: 0).
    #[must_use]
    pub fn blank(self, blank: usize) -> CtcOptions {
        CtcOptions { blank, ..self }
    }

    /// Gives examples whose labels do not fit into their input a loss of 0 without a gradient. By
    /// default it is infinite, which ends training with an error.
    #[must_use]
    pub fn zero_infinity(self) -> CtcOptions {
        CtcOptions { zero_infinity: true, ..self }
    }
}

/// The logarithm of the probability of what is impossible. It is finite, so that differences of two of
/// them are not NaN.
const IMPOSSIBLE: f64 = -1e30;

impl Tensor {
    /// Returns the CTC loss of each example, `[batch]`, for logits `[batch, time, classes]`, integer
    /// labels `[batch, length]`, and the number of steps and of labels of each example, integers
    /// `[batch]`. Logarithms of probabilities can be passed as logits.
    ///
    /// Labels from an example's number of labels on are ignored. Labels that do not fit into the input
    /// have an infinite loss: a label takes one step, and one more if it equals the one before it. A
    /// label that is no class is an error when the graph runs, and a length outside of its range makes the
    /// loss NaN. Computed in f32 or f64.
    #[track_caller]
    pub fn ctc_loss(
        &self,
        labels: &Tensor,
        input_lengths: &Tensor,
        label_lengths: &Tensor,
        options: &CtcOptions,
    ) -> Tensor {
        let all = [self, labels, input_lengths, label_lengths];
        if all.iter().any(|t| t.is_poison()) {
            return Tensor::poison(self.graph());
        }
        let ints = all[1..].iter().all(|t| t.dtype().is_int());
        if !self.dtype().is_float() || !ints || all.map(Tensor::rank) != [3, 2, 1, 1] {
            let specs = all.map(|t| format!("{}{}", t.dtype(), t.shape()));
            let why = format!(
                "expected float logits [batch, time, classes], integer labels [batch, length] and two integer \
                 lengths [batch], got {}",
                specs.join(", ")
            );
            return self.fail("CtcLoss", Error::shape(why));
        }
        if self.shape()[2].known().is_some_and(|classes| options.blank >= classes) {
            let why =
                format!("the blank is class {}, but there are {} classes", options.blank, self.shape()[2]);
            return self.fail("CtcLoss", Error::argument(why));
        }
        let graph = self.graph();
        graph.called_from(Location::caller(), || {
            graph.scope("CtcLoss", false, true, || self.loss(labels, input_lengths, label_lengths, options))
        })
    }

    #[track_caller]
    fn loss(
        &self,
        labels: &Tensor,
        input_lengths: &Tensor,
        label_lengths: &Tensor,
        options: &CtcOptions,
    ) -> Tensor {
        let per_example = |t: &Tensor, what: &str| t.with_dims_of(self, 1, what).cast(DType::I64);
        let labels = per_example(labels, "labels for each example");
        let input_lengths = per_example(input_lengths, "an input length for each example").expand_dims(1);
        let label_lengths = per_example(label_lengths, "a label length for each example").expand_dims(1);
        if [&labels, &input_lengths, &label_lengths].iter().any(|t| t.is_poison()) {
            return Tensor::poison(self.graph());
        }
        let log_probs = self.cast(self.dtype().widened()).log_softmax();
        let impossible = log_probs.constant_like(IMPOSSIBLE);
        // A probability may be zero.
        let log_probs = log_probs.maximum(&impossible);
        let blank = labels.constant_like(options.blank as f64);

        // The class of each state, from the last state to the first, so that the state before another
        // is the one after it here. The padding of a label sequence becomes blanks, which are never
        // reached.
        let is_label = labels.iota_like(1, DType::I64).less(&label_lengths);
        let shifted = is_label.select(&(&labels - &blank), &labels.zero());
        let classes = (shifted.pad(&[0, 1], &[0, 1], &[0, 1]) + &blank).reverse(&[1]);
        let state = classes.iota_like(1, DType::I64).reverse(&[1]);
        let two_before = classes.pad(&[0, 0], &[0, 2], &[0, 0]).slice_axis(1, 2, None);
        let has_one_before = state.greater(0.0);
        let may_skip = classes
            .not_equal(&blank)
            .logical_and(&classes.not_equal(&two_before))
            .logical_and(&state.greater(1.0));

        // The logarithms of the probabilities of the states' classes, [time, batch, states].
        let every_step = classes.expand_dims(1);
        let like = self.slice_axis(2, 0, Some(1)).cast(DType::I64) + &every_step;
        let emitted = log_probs.take_along_axis(&every_step.broadcast_like(&like), -1).transpose(&[1, 0, 2]);
        let step = self.slice_axis(2, 0, Some(1)).iota_like(1, DType::I64);
        let is_step = step.less(&input_lengths.expand_dims(1)).transpose(&[1, 0, 2]);

        // Before the first step only the first state is possible.
        let start = state.equal(0.0).select(&log_probs.zero(), &impossible);
        let scan = Scan::new(&[&start]).over(&[&emitted, &is_step]);
        let (last, _) = scan.captured(&[&has_one_before, &may_skip]).run(|forward, x, allowed| {
            let same = &forward[0];
            let impossible = same.constant_like(IMPOSSIBLE);
            let before = |states: usize, allowed: &Tensor| {
                let moved = same.pad(&[0, 0], &[0, states], &[0, 0]).slice_axis(1, states, None);
                allowed.select(&moved, &impossible)
            };
            let (one, two) = (before(1, &allowed[0]), before(2, &allowed[1]));
            // The maximum cancels, so it has no gradient.
            let top = same.maximum(&one).maximum(&two).stop_gradient();
            let sum = [same, &one, &two].map(|t| (t - &top).exp()).into_iter().reduce(|a, b| a + b);
            let next = sum.map_or_else(|| same.clone(), |sum| sum.log() + &top) + &x[0];
            (vec![x[1].select(&next, same)], Vec::new())
        });

        // An alignment ends in the last label or in the blank after it.
        let end = &label_lengths * 2.0;
        let ends = state.equal(&end).logical_or(&state.equal(&(&end - 1.0)));
        let total = ends.select(&last[0], &impossible).log_sum_exp_axes(&[1]);
        // NaN is not impossible: a wrong probability must not look like labels that do not fit.
        let fails = total.less_equal(IMPOSSIBLE / 2.0);
        let otherwise = if options.zero_infinity { 0.0 } else { f64::INFINITY };
        let loss = fails.select(&total.constant_like(otherwise), &(-&total));
        // Such as lengths in the wrong order: they must not look like a perfect prediction.
        let within = |lengths: &Tensor, positions: &Tensor| {
            let most = positions.ones_like().sum_axes(&[1]);
            let lengths = lengths.squeeze(1);
            lengths.greater_equal(0.0).logical_and(&lengths.less_equal(&most))
        };
        let valid = within(&input_lengths, &step.squeeze(2))
            .logical_and(&within(&label_lengths, &labels.iota_like(1, DType::I64)));
        valid.select(&loss, &loss.constant_like(f64::NAN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op_cases::*;

    cases![case("CtcLoss", Twice, |draw| {
        let (batch, steps, length) = (draw.pick(&[1, 2]), draw.pick(&[4, 3]), draw.pick(&[2, 1, 0]));
        let (classes, blank) = (draw.pick(&[2, 3]), draw.below(2));
        let inputs = vec![
            Input::floats(draw, [batch, steps, classes], Any),
            Input::new(draw, [batch, length], Elements::Below(DType::I32, classes)),
            Input::new(draw, [batch], Elements::Below(DType::I32, 2)),
            Input::new(draw, [batch], Elements::Below(DType::I64, length + 1)),
        ];
        Trial::new(inputs, move |x| {
            // Labels that do not fit have a loss of 0.
            let steps = &x[2] + (steps as f64 - 1.0);
            vec![x[0].ctc_loss(&x[1], &steps, &x[3], &CtcOptions::default().blank(blank).zero_infinity())]
        })
    }),];
}
