//! Finds a learning rate.

use super::{Callback, FetchHandle, GraphCx, HyperParam, RunCx, TrainCx};
use crate::callback::hyper_param::Setter;
use crate::runtime::Cadence;
use std::fmt::Write;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Trains while the learning rate grows exponentially from step to step, logs a table of the rates
/// and their costs, and suggests the rate at which the cost falls fastest. Training stops when the
/// cost has become four times the lowest, when it is not finite, or after the last step.
///
/// This is the learning rate range test of Smith, "Cyclical Learning Rates for Training Neural
/// Networks" (2017). Costs are smoothed by a moving average. The weights are useless afterwards:
/// train without a log directory, as the option `--find-lr` of `TrainArgs` does.
#[derive(Debug)]
#[doc(alias = "lr_find")]
pub struct LearningRateFinder {
    setter: Setter,
    range: (f64, f64),
    steps: u64,
    cost: Option<FetchHandle>,
    /// The rates and their costs, and the cost of the current step.
    tried: Vec<(f64, f64)>,
    current: Option<f64>,
}

impl Default for LearningRateFinder {
    fn default() -> LearningRateFinder {
        LearningRateFinder {
            setter: Setter::new(HyperParam::variable("learning_rate")),
            range: (1e-7, 10.0),
            steps: 200,
            cost: None,
            tried: Vec::new(),
            current: None,
        }
    }
}

impl LearningRateFinder {
    /// Varies the hyper-parameter `learning_rate` from 1e-7 to 10 in 200 steps.
    pub fn new() -> LearningRateFinder {
        LearningRateFinder::default()
    }

    /// Sets the first and the last rate, and the number of steps between them.
    #[must_use]
    pub fn range(self, first: f64, last: f64, steps: u64) -> LearningRateFinder {
        LearningRateFinder { range: (first, last), steps, ..self }
    }

    /// Varies another hyper-parameter.
    #[must_use]
    pub fn param(self, param: impl Into<HyperParam>) -> LearningRateFinder {
        LearningRateFinder { setter: Setter::new(param.into()), ..self }
    }

    /// Returns the rate of a step, counted from 0.
    fn rate(&self, step: u64) -> f64 {
        let (first, last) = self.range;
        first * (last / first).powf(step as f64 / (self.steps - 1) as f64)
    }
}

/// Returns the moving average of the costs, with decay 0.9 and without its bias.
fn smoothed(tried: &[(f64, f64)]) -> Vec<f64> {
    let (mut sum, mut power) = (0.0, 1.0);
    let next = |(_, cost): &(f64, f64)| {
        sum = 0.9 * sum + 0.1 * cost;
        power *= 0.9;
        sum / (1.0 - power)
    };
    tried.iter().map(next).collect()
}

/// Returns the rate at which the smoothed cost falls fastest, before it is lowest; `None` if it
/// never falls.
fn suggestion(tried: &[(f64, f64)]) -> Option<f64> {
    let costs = smoothed(tried);
    let lowest = (0..costs.len()).min_by(|&a, &b| costs[a].total_cmp(&costs[b]))?;
    let fall = |i: usize| costs[i - 1] - costs[i];
    let steepest = (1..=lowest).max_by(|&a, &b| fall(a).total_cmp(&fall(b)))?;
    (fall(steepest) > 0.0).then(|| tried[steepest].0)
}

/// Returns the table of rates and costs, in at most 20 rows, with the suggestion.
fn report(tried: &[(f64, f64)]) -> String {
    let costs = smoothed(tried);
    let mut text = format!("{:>12}  {:>12}  {:>12}\n", "rate", "cost", "smoothed");
    for ((rate, cost), smooth) in tried.iter().zip(&costs).step_by(tried.len().div_ceil(20).max(1)) {
        let _ = writeln!(text, "{rate:>12.3e}  {cost:>12.5}  {smooth:>12.5}");
    }
    match suggestion(tried) {
        Some(rate) => text + &format!("the cost falls fastest at a learning rate of {rate:.2e}"),
        None => text + "the cost never falls: no learning rate can be suggested",
    }
}

impl Callback for LearningRateFinder {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let (first, last) = self.range;
        if !(first > 0.0 && last > first && last.is_finite() && self.steps >= 2) {
            return Err(Error::argument(format!(
                "LearningRateFinder needs a range of positive rates and at least 2 steps, not {first} to {last} in {}",
                self.steps
            )));
        }
        self.setter.setup_graph(g)?;
        let cost = g.cost().ok_or_else(|| {
            Error::new(ErrorKind::Graph, "LearningRateFinder needs a trainer with one cost")
        })?;
        self.cost = Some(g.fetch(&cost, Cadence::EveryRun));
        Ok(())
    }

    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.setter.set(cx, self.rate(0))
    }

    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.current = self.cost.and_then(|cost| cx.scalar(cost)).or(self.current);
        Ok(())
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let step = self.tried.len() as u64;
        // A step whose cost is not finite has none.
        let Some(cost) = self.current.take() else {
            cx.stop("the cost is not finite");
            return Ok(());
        };
        self.tried.push((self.rate(step), cost));
        let costs = smoothed(&self.tried);
        let lowest = costs.iter().copied().fold(f64::INFINITY, f64::min);
        if costs.last().is_some_and(|&last| step > 10 && last > 4.0 * lowest) {
            cx.stop("the cost grows");
        } else if step + 1 == self.steps {
            cx.stop("all learning rates were tried");
        } else {
            self.setter.set(cx, self.rate(step + 1))?;
        }
        Ok(())
    }

    fn after_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
        log::info!("learning rates\n{}", report(&self.tried));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suggestion_is_where_the_cost_falls_fastest() {
        // A cost that falls around 1e-2 and diverges at 1.
        let cost = |rate: f64| match rate {
            r if r < 1.0 => 1.0 / (1.0 + (r / 1e-2).powi(2)) + 0.1,
            r => r * r,
        };
        let finder = LearningRateFinder::new();
        let tried: Vec<(f64, f64)> = (0..200).map(|i| finder.rate(i)).map(|r| (r, cost(r))).collect();
        let rate = suggestion(&tried).unwrap();
        assert!((3e-3..6e-2).contains(&rate), "{rate}");
        assert!(report(&tried).lines().count() <= 22, "{}", report(&tried));
        let rising: Vec<(f64, f64)> = (0..9).map(|i| (i as f64, i as f64)).collect();
        assert_eq!((suggestion(&rising), suggestion(&[])), (None, None));
    }
}
