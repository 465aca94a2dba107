//! Stops training when a statistic stops improving.

use super::{Callback, Statistic, TrainCx, When};
use serde_json::{Value, json};
use tensorpack_tensor::Result;

/// Stops training when a statistic stops improving.
///
/// Pair it with [`MinSaver`](super::MinSaver) or [`MaxSaver`](super::MaxSaver) to keep the best
/// checkpoint.
///
/// ```
/// use tensorpack::callback::EarlyStopping;
/// let stop = EarlyStopping::min("validation_error").patience(10).min_delta(1e-3);
/// ```
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    statistic: String,
    /// 1 if larger is better, else -1.
    sign: f64,
    patience: u64,
    min_delta: f64,
    best: Option<f64>,
    /// Values since the best one, and the step of the newest.
    waited: u64,
    seen: Option<u64>,
}

impl EarlyStopping {
    /// Watches a statistic that should decrease.
    pub fn min(statistic: impl Into<String>) -> EarlyStopping {
        EarlyStopping::with_sign(statistic.into(), -1.0)
    }

    /// Watches a statistic that should increase.
    pub fn max(statistic: impl Into<String>) -> EarlyStopping {
        EarlyStopping::with_sign(statistic.into(), 1.0)
    }

    fn with_sign(statistic: String, sign: f64) -> EarlyStopping {
        EarlyStopping { statistic, sign, patience: 5, min_delta: 0.0, best: None, waited: 0, seen: None }
    }

    /// Sets how many consecutive values without improvement are tolerated. Defaults to 5.
    #[must_use]
    pub fn patience(self, values: u64) -> EarlyStopping {
        EarlyStopping { patience: values, ..self }
    }

    /// Sets the threshold that an improvement must exceed to count. Defaults to 0.
    #[must_use]
    pub fn min_delta(self, delta: f64) -> EarlyStopping {
        EarlyStopping { min_delta: delta, ..self }
    }

    /// Records a value and returns whether patience is exhausted.
    fn record(&mut self, value: f64) -> bool {
        // NaN is never better.
        let better = |best: f64| (value - best) * self.sign > self.min_delta;
        if self.best.map_or(!value.is_nan(), better) {
            (self.best, self.waited) = (Some(value), 0);
        } else {
            self.waited += 1;
        }
        self.waited > self.patience
    }
}

impl Callback for EarlyStopping {
    fn name(&self) -> String {
        format!("EarlyStopping({})", self.statistic)
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let newest = cx.monitors().history(&self.statistic).last().copied();
        // Skip a value that was recorded at an earlier trigger.
        let Some((step, value)) = newest.filter(|(step, _)| Some(*step) != self.seen) else { return Ok(()) };
        self.seen = Some(step);
        if self.record(value) {
            let best = self.best.map_or_else(|| "a number".into(), |b| b.to_string());
            let (name, waited) = (&self.statistic, self.waited);
            cx.stop(format!("{name} did not improve on {best} for {waited} consecutive values"));
        }
        Ok(())
    }

    fn reads(&self) -> Vec<Statistic> {
        vec![Statistic::new(self.statistic.as_str(), When::Epoch)]
    }

    fn stop_criterion(&self) -> Option<String> {
        let EarlyStopping { statistic, sign, patience, min_delta, .. } = self;
        Some(format!("EarlyStopping: {statistic}, sign {sign}, patience {patience}, min_delta {min_delta}"))
    }

    fn state(&self) -> Value {
        json!({"best": self.best.map(f64::to_bits), "waited": self.waited, "seen": self.seen})
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.best = state["best"].as_u64().map(f64::from_bits);
        self.waited = state["waited"].as_u64().unwrap_or(0);
        self.seen = state["seen"].as_u64();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of values after which training stops.
    fn stops_after(mut stop: EarlyStopping, values: &[f64]) -> Option<usize> {
        values.iter().position(|v| stop.record(*v)).map(|i| i + 1)
    }

    #[test]
    fn patience_and_min_delta() {
        let falling = [5.0, 4.0, 4.5, 4.2, 3.9, 3.95, 3.85];
        let stop = |patience| EarlyStopping::min("x").patience(patience);
        assert_eq!(stops_after(stop(1), &falling), Some(4));
        assert_eq!(stops_after(stop(2), &falling), None);
        assert_eq!(stops_after(stop(2).min_delta(0.5), &falling), Some(5));
        assert_eq!(stops_after(stop(0), &[1.0, 1.0]), Some(2));
        assert_eq!(stops_after(EarlyStopping::max("x").patience(1), &falling), Some(3));
        assert_eq!(stops_after(stop(1), &[f64::NAN, f64::NAN]), Some(2));
    }
}
