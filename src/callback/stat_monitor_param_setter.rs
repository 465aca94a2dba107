//! Changes a hyper-parameter when a statistic stops improving.

use super::hyper_param::{HyperParam, Setter};
use super::{Callback, GraphCx, Statistic, TrainCx, When};
use serde_json::{Value, json};
use std::fmt;
use tensorpack_tensor::{Error, Result};

/// Changes a hyper-parameter when a statistic stops improving.
///
/// Compares the last `k` values. If none is below the first of them by more than a threshold
/// (above, with [`larger_is_better`](StatMonitorParamSetter::larger_is_better)), it changes the
/// hyper-parameter and discards the values.
///
/// ```
/// use tensorpack::callback::StatMonitorParamSetter;
/// // Divides the rate by 5 if the error did not improve for 10 epochs.
/// let rate = StatMonitorParamSetter::new("learning_rate", "validation_error", |rate| rate * 0.2, 0.0, 10);
/// ```
pub struct StatMonitorParamSetter {
    setter: Setter,
    statistic: String,
    function: Box<dyn FnMut(f64) -> f64>,
    threshold: f64,
    last_k: usize,
    /// 1 if larger is better, else -1.
    sign: f64,
    stop_below: Option<f64>,
    /// The last values, and the step of the newest.
    values: Vec<f64>,
    seen: Option<u64>,
}

impl StatMonitorParamSetter {
    /// Sets `param` to `function(value)` when the last `last_k` values of `statistic` did not
    /// improve by more than `threshold`.
    pub fn new(
        param: impl Into<HyperParam>,
        statistic: impl Into<String>,
        function: impl FnMut(f64) -> f64 + 'static,
        threshold: f64,
        last_k: usize,
    ) -> StatMonitorParamSetter {
        StatMonitorParamSetter {
            setter: Setter::new(param.into()),
            statistic: statistic.into(),
            function: Box::new(function),
            threshold,
            last_k,
            sign: -1.0,
            stop_below: None,
            values: Vec::new(),
            seen: None,
        }
    }

    /// Expects the statistic to increase.
    #[must_use]
    #[doc(alias = "reverse")]
    pub fn larger_is_better(self) -> StatMonitorParamSetter {
        StatMonitorParamSetter { sign: 1.0, ..self }
    }

    /// Stops training instead of setting a value below `least`.
    #[must_use]
    pub fn stop_below(self, least: f64) -> StatMonitorParamSetter {
        StatMonitorParamSetter { stop_below: Some(least), ..self }
    }

    /// Records the newest value and returns whether the statistic has reached a plateau.
    fn plateaued(&mut self, newest: Option<(u64, f64)>) -> bool {
        let Some((step, value)) = newest.filter(|(step, _)| Some(*step) != self.seen) else {
            log::warn!("{} has no new value", self.statistic);
            return false;
        };
        self.seen = Some(step);
        if self.values.len() == self.last_k {
            self.values.remove(0);
        }
        self.values.push(value);
        let first = self.values[0];
        let better = |v: &f64| (v - first) * self.sign > self.threshold;
        let plateaued = self.values.len() == self.last_k && !self.values.iter().any(better);
        if plateaued {
            self.values.clear();
        }
        plateaued
    }
}

impl Callback for StatMonitorParamSetter {
    fn name(&self) -> String {
        self.setter.name("StatMonitorParamSetter")
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        if self.last_k == 0 {
            return Err(Error::argument("last_k of StatMonitorParamSetter must be at least 1"));
        }
        self.setter.setup_graph(g)
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if !self.plateaued(cx.monitors().history(&self.statistic).last().copied()) {
            return Ok(());
        }
        let value = (self.function)(self.setter.value(cx)?);
        if self.stop_below.is_some_and(|least| value < least) {
            let (name, statistic) = (self.setter.param(), &self.statistic);
            cx.stop(format!("{statistic} stopped improving, and {name} would be set to {value}"));
            return Ok(());
        }
        self.setter.set(cx, value)
    }

    fn reads(&self) -> Vec<Statistic> {
        vec![Statistic::new(self.statistic.as_str(), When::Epoch)]
    }

    fn stop_criterion(&self) -> Option<String> {
        let StatMonitorParamSetter { statistic, threshold, last_k, sign, .. } = self;
        let least = self.stop_below?;
        let name = self.name();
        Some(format!("{name}: below {least}; {statistic}, sign {sign}, threshold {threshold}, last {last_k}"))
    }

    fn state(&self) -> Value {
        let values: Vec<u64> = self.values.iter().map(|v| v.to_bits()).collect();
        json!({"param": self.setter.state(), "values": values, "seen": self.seen})
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.setter.load_state(&state["param"]);
        let values = state["values"].as_array().into_iter().flatten();
        self.values = values.filter_map(|v| v.as_u64().map(f64::from_bits)).collect();
        self.seen = state["seen"].as_u64();
        Ok(())
    }
}

impl fmt::Debug for StatMonitorParamSetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { setter, statistic, values, .. } = self;
        f.debug_struct("StatMonitorParamSetter")
            .field("setter", setter)
            .field("statistic", statistic)
            .field("values", values)
            .finish_non_exhaustive()
    }
}
