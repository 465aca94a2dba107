//! Hyper-parameters by plan.

use super::hyper_param::{HyperParam, Setter};
use super::{Callback, GraphCx, TrainCx};
use serde_json::Value;
use tensorpack_tensor::{Error, Result};

/// Sets a hyper-parameter to planned values at planned epochs or steps.
///
/// A value is set when the epoch (or step) of its point is done; that of point 0 before training. A run that starts
/// later begins with the value the plan has for that moment; one that is resumed, with what the checkpoint has, and a
/// warning if the plan has another.
///
/// ```
/// use tensorpack::callback::ScheduledHyperParamSetter;
/// // 0.1 from the beginning, 0.01 from epoch 31 on, 0.001 from epoch 61 on.
/// let rate = ScheduledHyperParamSetter::new("learning_rate", [(0, 0.1), (30, 0.01), (60, 0.001)]);
/// // Warms up over 500 steps.
/// let rate = ScheduledHyperParamSetter::new("learning_rate", [(0, 0.0), (500, 0.1)]).linear().step_based();
/// ```
#[derive(Debug)]
pub struct ScheduledHyperParamSetter {
    setter: Setter,
    /// By point, which is an epoch or a step.
    schedule: Vec<(u64, f64)>,
    linear: bool,
    step_based: bool,
    set_at_beginning: bool,
}

impl ScheduledHyperParamSetter {
    /// This parameter, with a value for each of some epochs.
    pub fn new(
        param: impl Into<HyperParam>,
        schedule: impl IntoIterator<Item = (u64, f64)>,
    ) -> ScheduledHyperParamSetter {
        let mut schedule: Vec<(u64, f64)> = schedule.into_iter().collect();
        schedule.sort_by_key(|(point, _)| *point);
        ScheduledHyperParamSetter {
            setter: Setter::of(param.into()),
            schedule,
            linear: false,
            step_based: false,
            set_at_beginning: true,
        }
    }

    /// Between two points, values on the straight line between theirs, set at every epoch (or step).
    #[must_use]
    #[doc(alias = "interp")]
    pub fn linear(self) -> ScheduledHyperParamSetter {
        ScheduledHyperParamSetter { linear: true, ..self }
    }

    /// Points are steps of all training, not epochs.
    #[must_use]
    pub fn step_based(self) -> ScheduledHyperParamSetter {
        ScheduledHyperParamSetter { step_based: true, ..self }
    }

    /// Whether a run that starts late begins with the planned value: it does, unless said. Otherwise it is warned of.
    #[must_use]
    pub fn set_at_beginning(self, set: bool) -> ScheduledHyperParamSetter {
        ScheduledHyperParamSetter { set_at_beginning: set, ..self }
    }

    /// Where training is, in points.
    fn now(&self, cx: &TrainCx<'_>) -> u64 {
        if self.step_based { cx.global_step } else { cx.epoch_num }
    }

    /// What is to be set at a point: nothing where there is none, before the first and after the last.
    fn value_at(&self, point: u64) -> Option<f64> {
        let after = self.schedule.partition_point(|(p, _)| *p <= point);
        let (before, left) = *self.schedule[..after].last()?;
        if before == point {
            return Some(left);
        }
        let (next, right) = *self.schedule.get(after).filter(|_| self.linear)?;
        let share = (point - before) as f64 / (next - before) as f64;
        Some(left + share * (right - left))
    }

    /// What has been set last when a point is reached.
    fn value_since(&self, point: u64) -> Option<f64> {
        let last = || self.schedule.iter().rev().find(|(p, _)| *p <= point).map(|(_, v)| *v);
        self.value_at(point).or_else(last)
    }
}

impl Callback for ScheduledHyperParamSetter {
    fn name(&self) -> String {
        self.setter.name("ScheduledHyperParamSetter")
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        if let Some(w) = self.schedule.windows(2).find(|w| w[0].0 == w[1].0) {
            let (point, one, other) = (w[0].0, w[0].1, w[1].1);
            return Err(Error::argument(format!("point {point} has two values, {one} and {other}")));
        }
        self.setter.setup_graph(g)
    }

    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        // A checkpoint has the value, which nothing changes here.
        if !cx.resumed() {
            self.trigger(cx)?;
        }
        let now = self.now(cx);
        let Some(planned) = self.value_since(now) else { return Ok(()) };
        let actual = self.setter.value(cx)?;
        if (planned - actual).abs() <= 1e-8 + 1e-5 * planned.abs() {
            return Ok(());
        }
        let (name, unit) = (self.setter.param(), if self.step_based { "step" } else { "epoch" });
        let what = format!("{name} is {actual}, but the schedule has {planned} for {unit} {now}");
        if self.set_at_beginning && !cx.resumed() {
            log::warn!("{what}, which is set now");
            self.setter.set(cx, planned)
        } else {
            log::warn!("{what}; it stays until the next point of the schedule");
            Ok(())
        }
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if self.step_based { self.trigger(cx) } else { Ok(()) }
    }

    fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if self.step_based { Ok(()) } else { self.trigger(cx) }
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.value_at(self.now(cx)).map_or(Ok(()), |value| self.setter.set(cx, value))
    }

    fn state(&self) -> Value {
        self.setter.state()
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.setter.load_state(state);
        Ok(())
    }
}
