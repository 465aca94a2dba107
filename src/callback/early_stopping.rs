//! Ending training when it no longer helps.

use super::{Callback, Statistic, TrainCx, When};
use serde_json::{Value, json};
use tensorpack_tensor::Result;

/// Ends training when a statistic has not become better for a number of values. Which checkpoint was the best,
/// [`MinSaver`](super::MinSaver) and [`MaxSaver`](super::MaxSaver) know.
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
    /// Of a statistic that should become smaller.
    pub fn min(statistic: impl Into<String>) -> EarlyStopping {
        EarlyStopping::of(statistic.into(), -1.0)
    }

    /// Of a statistic that should become larger.
    pub fn max(statistic: impl Into<String>) -> EarlyStopping {
        EarlyStopping::of(statistic.into(), 1.0)
    }

    fn of(statistic: String, sign: f64) -> EarlyStopping {
        EarlyStopping { statistic, sign, patience: 5, min_delta: 0.0, best: None, waited: 0, seen: None }
    }

    /// How many values in a row may be no better: 5 unless said.
    #[must_use]
    pub fn patience(self, values: u64) -> EarlyStopping {
        EarlyStopping { patience: values, ..self }
    }

    /// By how much a value must be better to count: more than 0 unless said.
    #[must_use]
    pub fn min_delta(self, delta: f64) -> EarlyStopping {
        EarlyStopping { min_delta: delta, ..self }
    }

    /// Takes in a value; says whether patience is over.
    fn over(&mut self, value: f64) -> bool {
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
        // What was looked at before is not looked at again.
        let Some((step, value)) = newest.filter(|(step, _)| Some(*step) != self.seen) else { return Ok(()) };
        self.seen = Some(step);
        if self.over(value) {
            let best = self.best.map_or_else(|| "a number".into(), |b| b.to_string());
            let (name, waited) = (&self.statistic, self.waited);
            cx.stop(format!("{name} was no better than {best} for {waited} values in a row"));
        }
        Ok(())
    }

    fn reads(&self) -> Vec<Statistic> {
        vec![Statistic::new(self.statistic.as_str(), When::Epoch)]
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

    /// After how many of these values it ends training.
    fn ends_after(mut stop: EarlyStopping, values: &[f64]) -> Option<usize> {
        values.iter().position(|v| stop.over(*v)).map(|i| i + 1)
    }

    #[test]
    fn patience_and_the_least_difference() {
        let falling = [5.0, 4.0, 4.5, 4.2, 3.9, 3.95, 3.85];
        let stop = |patience| EarlyStopping::min("x").patience(patience);
        assert_eq!(ends_after(stop(1), &falling), Some(4));
        assert_eq!(ends_after(stop(2), &falling), None);
        assert_eq!(ends_after(stop(2).min_delta(0.5), &falling), Some(5));
        assert_eq!(ends_after(stop(0), &[1.0, 1.0]), Some(2));
        assert_eq!(ends_after(EarlyStopping::max("x").patience(1), &falling), Some(3));
        assert_eq!(ends_after(stop(1), &[f64::NAN, f64::NAN]), Some(2));
    }
}
