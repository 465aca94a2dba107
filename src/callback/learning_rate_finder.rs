//! Finds a learning rate.

use super::{Callback, FetchHandle, GraphCx, HyperParam, RunCx, TrainCx};
use crate::callback::hyper_param::Setter;
use crate::runtime::Cadence;
use std::fmt::Write;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// Trains while the learning rate grows exponentially from step to step, logs a table and a plot of the
/// rates and their costs, and suggests the rate at which the cost falls fastest. Training stops when the
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

/// Returns the rate at which the cost falls fastest, before it is lowest; `None` if it falls by no more
/// than costs differ from batch to batch.
///
/// The fall at a step is that from the mean over an eighth of the steps before it to the mean over those
/// after it: single batches differ by more than a step improves, and so do averages of the first few.
fn suggestion(tried: &[(f64, f64)]) -> Option<f64> {
    let smooth = smoothed(tried);
    let lowest = (0..smooth.len()).min_by(|&a, &b| smooth[a].total_cmp(&smooth[b]))?;
    let width = (tried.len() / 8).max(1);
    let mean = |steps: &[(f64, f64)]| steps.iter().map(|(_, cost)| cost).sum::<f64>() / steps.len() as f64;
    let fall = |i: usize| mean(&tried[i - width..i]) - mean(&tried[i..i + width]);
    let candidates = width..(lowest + 1).min(tried.len() + 1 - width);
    let steepest = candidates.max_by(|&a, &b| fall(a).total_cmp(&fall(b)))?;
    // Three times the deviation of the difference of two means.
    let chance = 3.0 * noise(tried) * (2.0 / width as f64).sqrt();
    (fall(steepest) > chance).then(|| tried[steepest].0)
}

/// Returns by how much the costs of neighboring steps differ: the median, which a cost that explodes at
/// the end does not change.
fn noise(tried: &[(f64, f64)]) -> f64 {
    let mut differences: Vec<f64> = tried.windows(2).map(|pair| (pair[1].1 - pair[0].1).abs()).collect();
    differences.sort_by(f64::total_cmp);
    differences.get(differences.len() / 2).copied().unwrap_or(0.0)
}

/// Returns the table of rates and costs, in at most 20 rows, a plot, and the suggestion.
fn report(tried: &[(f64, f64)]) -> String {
    let costs = smoothed(tried);
    let mut text = format!("{:>12}  {:>12}  {:>12}\n", "rate", "cost", "smoothed");
    for ((rate, cost), smooth) in tried.iter().zip(&costs).step_by(tried.len().div_ceil(20).max(1)) {
        let _ = writeln!(text, "{rate:>12.3e}  {cost:>12.5}  {smooth:>12.5}");
    }
    let suggested = suggestion(tried);
    text += &plot(tried, suggested);
    match suggested {
        Some(rate) => text + &format!("the cost falls fastest at a learning rate of {rate:.2e}"),
        None => text + "the cost falls by no more than it varies: no learning rate can be suggested",
    }
}

/// The size of the plot in characters.
const COLUMNS: usize = 60;
const ROWS: usize = 12;

/// Draws the smoothed costs over the rates, whose axis is logarithmic, with a line at the suggestion.
/// Empty for less than two costs.
fn plot(tried: &[(f64, f64)], suggested: Option<f64>) -> String {
    let costs = smoothed(tried);
    let (Some(first), Some(last)) = (tried.first(), tried.last()) else { return String::new() };
    let low = costs.iter().copied().fold(f64::INFINITY, f64::min);
    // The last costs may explode; what falls lies below the first.
    let high =
        costs.iter().copied().fold(f64::NEG_INFINITY, f64::max).min(low + 2.0 * (costs[0] - low).abs());
    if !(low < high && first.0 < last.0) {
        return String::new();
    }
    let cell = |part: f64, cells: usize| ((part.clamp(0.0, 1.0) * (cells - 1) as f64).round()) as usize;
    let column = |rate: f64| cell((rate / first.0).ln() / (last.0 / first.0).ln(), COLUMNS);
    let mut picture = vec![[' '; COLUMNS]; ROWS];
    if let Some(rate) = suggested {
        picture.iter_mut().for_each(|row| row[column(rate)] = '|');
    }
    for ((rate, _), cost) in tried.iter().zip(&costs) {
        picture[cell((high - cost) / (high - low), ROWS)][column(*rate)] = '*';
    }
    let mut text = String::new();
    for (i, row) in picture.iter().enumerate() {
        let label = match i {
            0 => format!("{high:.4}"),
            _ if i == ROWS - 1 => format!("{low:.4}"),
            _ => String::new(),
        };
        let row: String = row.iter().collect();
        let _ = writeln!(text, "{label:>12} |{}", row.trim_end());
    }
    let (first, last) = (format!("{:.1e}", first.0), format!("{:.1e}", last.0));
    let _ = writeln!(text, "{:>12} +{}", "", "-".repeat(COLUMNS));
    let _ = writeln!(text, "{:>12}  {first}{last:>1$}", "", COLUMNS - first.len());
    text
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
        // Costs may be negative, so the factor of four is a distance.
        if costs.last().is_some_and(|&last| step > 10 && last - lowest > 3.0 * lowest.abs()) {
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
        assert!(report(&tried).lines().count() <= 22 + ROWS + 2, "{}", report(&tried));
        let rising: Vec<(f64, f64)> = (0..9).map(|i| (i as f64, i as f64)).collect();
        assert_eq!((suggestion(&rising), suggestion(&[])), (None, None));
        for few in 0..5 {
            report(&tried[..few]);
        }
    }

    /// Costs that differ from batch to batch, by up to `noise` in either direction.
    fn noisy(noise: f64, cost: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let finder = LearningRateFinder::new();
        let mut random = 1u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 40) as f64 / (1u64 << 23) as f64 - 1.0
        };
        (0..200).map(|i| finder.rate(i)).map(|rate| (rate, cost(rate) + noise * next())).collect()
    }

    #[test]
    fn differences_of_batches_are_no_fall() {
        // It falls by 2 around 1e-3, and the first batches happen to differ more than that.
        let falling = |rate: f64| 2.3 - 2.0 / (1.0 + (1e-3 / rate).powi(2));
        let mut tried = noisy(0.3, falling);
        (tried[0].1, tried[1].1) = (6.0, 0.5);
        let rate = suggestion(&tried).unwrap();
        assert!((1e-4..1e-2).contains(&rate), "{rate}");
        assert_eq!(suggestion(&noisy(0.3, |_| 2.3)), None);
        // Small batches: the cost varies by almost as much as it falls.
        let rate = suggestion(&noisy(0.35, |rate| 0.45 / (1.0 + (rate / 2e-2).powi(2)))).unwrap();
        assert!((2e-3..2e-1).contains(&rate), "{rate}");
    }

    #[test]
    fn the_plot_shows_the_suggestion() {
        let tried = noisy(0.0, |rate: f64| 1.0 / (1.0 + (rate / 1e-3).powi(2)) - 3.0);
        let lines: Vec<String> = plot(&tried, Some(1e-3)).lines().map(String::from).collect();
        assert_eq!(lines.len(), ROWS + 2);
        assert!(lines[0].contains("-2.0") && lines[ROWS - 1].contains("-3.0"), "{lines:#?}");
        assert!(lines[ROWS + 1].contains("1.0e-7") && lines[ROWS + 1].ends_with("1.0e1"), "{lines:#?}");
        // The curve ends at the lower right; the suggestion is in the middle.
        assert!(lines[ROWS - 1].ends_with('*'), "{lines:#?}");
        assert!(lines[..ROWS - 1].iter().all(|line| line.contains(['|', '*'])));
        assert_eq!(plot(&tried[..1], None), "");
    }
}
