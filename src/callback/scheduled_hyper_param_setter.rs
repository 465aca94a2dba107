//! Sets a hyper-parameter according to a schedule.

use super::hyper_param::{HyperParam, Setter};
use super::{Callback, GraphCx, TrainCx};
use serde_json::Value;
use tensorpack_tensor::{Error, Result, Site};

/// Sets a hyper-parameter to scheduled values at given epochs or steps.
///
/// A value is set at the end of its epoch (or step); the value of point 0 is set before training. A
/// run with a later starting epoch begins with the value scheduled for it. A resumed run keeps the
/// value of the checkpoint, and warns if the schedule has a different one.
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
    /// Values sorted by point, which is an epoch or a step.
    schedule: Vec<(u64, f64)>,
    linear: bool,
    step_based: bool,
    set_at_beginning: bool,
    site: Site,
}

impl ScheduledHyperParamSetter {
    /// Sets `param` according to a schedule of `(epoch, value)` points. The schedule needs at least
    /// one point, and finite values.
    #[track_caller]
    pub fn new(
        param: impl Into<HyperParam>,
        schedule: impl IntoIterator<Item = (u64, f64)>,
    ) -> ScheduledHyperParamSetter {
        let mut schedule: Vec<(u64, f64)> = schedule.into_iter().collect();
        schedule.sort_by_key(|(point, _)| *point);
        ScheduledHyperParamSetter {
            setter: Setter::new(param.into()),
            schedule,
            linear: false,
            step_based: false,
            set_at_beginning: true,
            site: Site::caller(),
        }
    }

    /// Checks the points of the schedule.
    fn check(&self) -> Result<()> {
        let name = self.setter.param();
        if self.schedule.is_empty() {
            return Err(Error::argument(format!("the schedule of {name} is empty"))
                .note("give it at least one point, such as (0, 0.1)"));
        }
        if let Some((point, value)) = self.schedule.iter().find(|(_, value)| !value.is_finite()) {
            let why = format!("the schedule of {name} has the value {value} at point {point}");
            return Err(Error::argument(why).note("use finite values"));
        }
        if let Some(w) = self.schedule.windows(2).find(|w| w[0].0 == w[1].0) {
            let (point, one, other) = (w[0].0, w[0].1, w[1].1);
            let why = format!("the schedule of {name} has two values at point {point}: {one} and {other}");
            return Err(Error::argument(why).note("keep one of them"));
        }
        Ok(())
    }

    /// Interpolates linearly between points, at every epoch (or step).
    #[must_use]
    #[doc(alias = "interp")]
    pub fn linear(self) -> ScheduledHyperParamSetter {
        ScheduledHyperParamSetter { linear: true, ..self }
    }

    /// Interprets points as global steps instead of epochs.
    #[must_use]
    pub fn step_based(self) -> ScheduledHyperParamSetter {
        ScheduledHyperParamSetter { step_based: true, ..self }
    }

    /// Only warns if a run with a later starting epoch begins with a value other than the scheduled
    /// one. By default the scheduled value is set.
    #[must_use]
    #[doc(alias = "set_at_beginning")]
    pub fn no_set_at_beginning(self) -> ScheduledHyperParamSetter {
        ScheduledHyperParamSetter { set_at_beginning: false, ..self }
    }

    /// Returns the current point.
    fn now(&self, cx: &TrainCx<'_>) -> u64 {
        if self.step_based { cx.global_step } else { cx.epoch_num }
    }

    /// Returns the value to set at `point`, if any. There is none before the first and after the
    /// last point.
    fn value_at(&self, point: u64) -> Option<f64> {
        let after = self.schedule.partition_point(|(p, _)| *p <= point);
        let (before, left) = *self.schedule[..after].last()?;
        if before == point {
            return Some(left);
        }
        let (next, right) = *self.schedule.get(after).filter(|_| self.linear)?;
        let fraction = (point - before) as f64 / (next - before) as f64;
        Some(left + fraction * (right - left))
    }

    /// Returns the value in effect at `point`.
    fn value_in_effect(&self, point: u64) -> Option<f64> {
        let last = || self.schedule.iter().rev().find(|(p, _)| *p <= point).map(|(_, v)| *v);
        self.value_at(point).or_else(last)
    }
}

impl Callback for ScheduledHyperParamSetter {
    fn name(&self) -> String {
        self.setter.name("ScheduledHyperParamSetter")
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        self.check().map_err(|e| e.at(self.site))?;
        self.setter.setup_graph(g)
    }

    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        // A resumed run keeps the value of the checkpoint.
        if !cx.resumed() {
            self.trigger(cx)?;
        }
        let now = self.now(cx);
        let Some(scheduled) = self.value_in_effect(now) else { return Ok(()) };
        let actual = self.setter.value(cx)?;
        if (scheduled - actual).abs() <= 1e-8 + 1e-5 * scheduled.abs() {
            return Ok(());
        }
        let (name, unit) = (self.setter.param(), if self.step_based { "step" } else { "epoch" });
        let what = format!("{name} is {actual}, but the schedule specifies {scheduled} for {unit} {now}");
        if self.set_at_beginning && !cx.resumed() {
            log::warn!("{what}; setting it now");
            self.setter.set(cx, scheduled)
        } else {
            log::warn!("{what}; keeping it until the next point of the schedule");
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
