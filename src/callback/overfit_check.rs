//! Checks that a model can learn a few batches by heart.

use super::{Callback, CollectCx, FetchHandle, GraphCx, TrainCx};
use crate::runtime::Cadence;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Checks that the cost of a few batches falls by a factor of 10, which shows that a model and its
/// training work at all. It compares the mean over the first pass over the batches with the mean
/// over each later pass. Training stops when the cost has fallen that far, and ends with an error
/// if it has not at the end. The first mean must be positive.
///
/// Train on these batches only: `dataflow.take(n).cache()`, or the option `--overfit N` of
/// `TrainArgs`.
#[derive(Debug)]
pub struct OverfitCheck {
    batches: u64,
    cost: Option<FetchHandle>,
    sum: f64,
    count: u64,
    /// The mean cost of the first pass.
    first: Option<f64>,
    /// The mean cost of the last pass after the first.
    last: Option<f64>,
    is_done: bool,
}

/// The factor by which the cost must fall.
const FACTOR: f64 = 10.0;

impl OverfitCheck {
    /// Checks the cost over passes of this many steps, each a batch.
    pub fn new(batches: u64) -> OverfitCheck {
        OverfitCheck { batches, cost: None, sum: 0.0, count: 0, first: None, last: None, is_done: false }
    }

    /// Adds the cost of a step. Returns an error if the first mean is not positive: such a cost has no
    /// factor by which it falls.
    fn add(&mut self, cost: f64) -> Result<()> {
        self.sum += cost;
        self.count += 1;
        if self.count < self.batches {
            return Ok(());
        }
        let mean = self.sum / self.count as f64;
        (self.sum, self.count) = (0.0, 0);
        match self.first {
            Some(first) => {
                self.last = Some(mean);
                self.is_done = mean <= first / FACTOR;
            }
            None if mean <= 0.0 => {
                let why = format!("the mean cost of the first pass is {mean:.4}, and must be positive");
                return Err(Error::argument(why)
                    .note("whether a model learns is told from a cost that falls to a tenth, towards 0"));
            }
            None => self.first = Some(mean),
        }
        Ok(())
    }
}

impl Callback for OverfitCheck {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        if self.batches == 0 {
            return Err(Error::argument("a model cannot learn 0 batches: name at least 1"));
        }
        let cost = g
            .cost()
            .ok_or_else(|| Error::new(ErrorKind::Graph, "OverfitCheck needs a trainer with one cost"))?;
        self.cost = Some(g.fetch(&cost, Cadence::Deferred));
        Ok(())
    }

    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        if let Some(cost) = self.cost.and_then(|cost| values.scalar(cost)) {
            self.add(cost)?;
        }
        Ok(())
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if let (true, Some(first), Some(last)) = (self.is_done, self.first, self.last) {
            cx.stop(format!(
                "the model learned {} batches: their cost fell from {first:.4} to {last:.4} in {} steps",
                self.batches, cx.global_step
            ));
        }
        Ok(())
    }

    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if self.is_done {
            return Ok(());
        }
        let (batches, steps) = (self.batches, cx.global_step);
        let (Some(first), Some(last)) = (self.first, self.last) else {
            let why = format!("{steps} steps do not show whether the model learns {batches} batches");
            let needed = batches.saturating_mul(2);
            return Err(Error::argument(why).note(format!(
                "the mean costs of two passes are compared: allow at least {needed} steps (--steps-per-epoch, --max-epoch)"
            )));
        };
        let why = format!(
            "the model did not learn {batches} batches: after {steps} steps their mean cost is {last:.4}, and was \
             {first:.4}; it should fall by a factor of {FACTOR}"
        );
        Err(Error::argument(why).note(
            "check the data, the gradients and the learning rate, or allow more steps (--steps-per-epoch, --max-epoch)",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cost_must_fall_by_a_factor_of_ten() {
        let after = |costs: &[f64]| {
            let mut check = OverfitCheck::new(2);
            costs.iter().for_each(|&cost| check.add(cost).unwrap());
            (check.first, check.is_done)
        };
        assert_eq!(after(&[30.0, 10.0, 2.1]), (Some(20.0), false));
        assert_eq!(after(&[30.0, 10.0, 2.1, 2.0]), (Some(20.0), false));
        assert_eq!(after(&[30.0, 10.0, 2.1, 2.0, 2.0, 2.0]), (Some(20.0), true));
    }

    /// -5 is less than a tenth of -5.
    #[test]
    fn a_cost_that_is_not_positive_is_an_error() {
        for cost in [0.0, -5.0] {
            let mut check = OverfitCheck::new(1);
            assert_eq!(check.add(cost).unwrap_err().kind(), ErrorKind::Argument, "{cost}");
            assert!(!check.is_done);
        }
    }
}
