//! Records scalars over steps.

use super::{Callback, CollectCx, FetchHandle, GraphCx, TrainCx};
use crate::graph::MOVING_SUMMARIES;
use crate::monitor::{CurvePoints, Moment};
use crate::runtime::Cadence;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, Result};

/// Records the cost and every scalar passed to
/// [`TowerContext::moving_summary`](crate::tower::TowerContext::moving_summary) every few steps, as
/// they are: in `steps.jsonl`, and as `steps/NAME` in TensorBoard.
///
/// By default there is a point every 1 % of an epoch, but at least every 100 steps, at the steps
/// whose number is a multiple of that. An accelerator never waits for the values.
#[derive(Debug)]
pub struct StepCurves {
    every: Option<u64>,
    /// The distance of two points in this epoch, in steps.
    distance: u64,
    names: Vec<String>,
    fetched: Vec<FetchHandle>,
    /// The points that the monitors do not have yet.
    moments: Vec<Moment>,
    /// Their values, for each point in the order of the names.
    values: Vec<f64>,
    written: Instant,
}

/// Points are handed to the monitors when there are this many, or after this time, because that
/// formats and writes them.
const MAX_WAITING: usize = 64;
const MAX_WAIT: Duration = Duration::from_secs(1);

impl Default for StepCurves {
    fn default() -> StepCurves {
        StepCurves {
            every: None,
            distance: 1,
            names: Vec::new(),
            fetched: Vec::new(),
            moments: Vec::new(),
            values: Vec::new(),
            written: Instant::now(),
        }
    }
}

impl StepCurves {
    /// Records a point every 1 % of an epoch, but at least every 100 steps.
    pub fn new() -> StepCurves {
        StepCurves::default()
    }

    /// Records a point every `steps` steps.
    #[must_use]
    pub fn every(self, steps: u64) -> StepCurves {
        StepCurves { every: Some(steps), ..self }
    }

    fn write(&mut self, cx: &mut TrainCx<'_>) {
        if !self.moments.is_empty() {
            let points = CurvePoints::new(&self.names, &self.moments, &self.values);
            cx.state.monitors.put_curve_points(&points);
            self.moments.clear();
            self.values.clear();
            self.written = Instant::now();
        }
    }
}

impl Callback for StepCurves {
    fn chief_only(&self) -> bool {
        true
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        if self.every == Some(0) {
            return Err(Error::argument("StepCurves::every: a point every 0 steps is never due"));
        }
        let mut scalars = g.summaries(MOVING_SUMMARIES);
        scalars.retain(|(_, tensor)| tensor.rank() == 0);
        if let Some(cost) = g.cost()
            && scalars.iter().all(|(name, tensor)| tensor.name() != cost.name() && name != "cost")
        {
            scalars.insert(0, ("cost".into(), cost));
        }
        for (name, tensor) in scalars {
            self.fetched.push(g.fetch(&tensor, Cadence::Deferred));
            self.names.push(name);
        }
        self.moments.reserve(MAX_WAITING + 1);
        self.values.reserve((MAX_WAITING + 1) * self.names.len());
        Ok(())
    }

    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.distance = self.every.unwrap_or((cx.steps_per_epoch / 100).clamp(1, 100));
        Ok(())
    }

    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        let global_step = values.global_step + 1;
        if !global_step.is_multiple_of(self.distance) {
            return Ok(());
        }
        let before = self.values.len();
        self.values.extend(self.fetched.iter().map_while(|handle| values.scalar(*handle)));
        if self.values.len() - before < self.fetched.len() || self.fetched.is_empty() {
            // Only the first run of a step has values.
            self.values.truncate(before);
        } else {
            self.moments.push(Moment { epoch_num: values.epoch_num, global_step });
        }
        Ok(())
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let waiting = self.moments.len();
        if waiting >= MAX_WAITING || (waiting > 0 && self.written.elapsed() >= MAX_WAIT) {
            self.write(cx);
        }
        Ok(())
    }

    fn after_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.write(cx);
        Ok(())
    }

    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        // After an error or a signal. A resumed run removes them and writes them again.
        self.write(cx);
        Ok(())
    }

    fn state(&self) -> Value {
        if self.moments.is_empty() {
            return Value::Null;
        }
        let moments: Vec<_> = self.moments.iter().map(|at| (at.epoch_num, at.global_step)).collect();
        let values: Vec<u64> = self.values.iter().map(|x| x.to_bits()).collect();
        json!({"names": self.names, "moments": moments, "values": values})
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        // A program that records other scalars now has no place for these points.
        if state["names"] == json!(self.names) {
            let list = |key: &str| state[key].as_array().into_iter().flatten();
            let moment =
                |at: &Value| Some(Moment { epoch_num: at[0].as_u64()?, global_step: at[1].as_u64()? });
            self.moments.extend(list("moments").filter_map(moment));
            self.values.extend(list("values").filter_map(Value::as_u64).map(f64::from_bits));
        }
        Ok(())
    }
}
