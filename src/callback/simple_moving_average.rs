//! Reports simple moving averages of scalars.

use super::{Callback, FetchHandle, GraphCx, RunCx, Statistic, When};
use crate::runtime::Cadence;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use tensorpack_tensor::{Error, Result};

/// Reports the mean of a scalar over the last `window` steps, every `window` steps, as `NAME/SMA`.
#[derive(Debug)]
pub struct SimpleMovingAverage {
    names: Vec<String>,
    window: usize,
    series: Vec<(FetchHandle, VecDeque<f64>)>,
}

impl SimpleMovingAverage {
    /// Averages the scalars with these names, in the graph or in the first training tower.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>, window: usize) -> SimpleMovingAverage {
        SimpleMovingAverage { names: names.into_iter().map(Into::into).collect(), window, series: Vec::new() }
    }
}

impl Callback for SimpleMovingAverage {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        if self.window == 0 {
            return Err(Error::argument("the window of SimpleMovingAverage must be at least 1 step"));
        }
        for name in &self.names {
            let tensor = g.tensor(name)?;
            if tensor.rank() > 0 {
                return Err(Error::shape(format!("{name} is {}, not a scalar", tensor.shape())));
            }
            self.series.push((g.fetch(&tensor, Cadence::EveryRun), VecDeque::with_capacity(self.window)));
        }
        Ok(())
    }

    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        for (name, (fetched, values)) in self.names.iter().zip(&mut self.series) {
            // Only the first run of a step has values.
            let Some(x) = cx.scalar(*fetched) else { continue };
            if values.len() == self.window {
                values.pop_front();
            }
            values.push_back(x);
            if (cx.global_step + 1).is_multiple_of(self.window as u64) {
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                cx.put_scalar(&format!("{name}/SMA"), mean);
            }
        }
        Ok(())
    }

    fn produces(&self) -> Vec<Statistic> {
        self.names.iter().map(|name| Statistic::new(format!("{name}/SMA"), When::Run)).collect()
    }

    fn state(&self) -> Value {
        let bits = |values: &VecDeque<f64>| values.iter().map(|v| json!(v.to_bits())).collect::<Value>();
        let series = self.names.iter().zip(&self.series);
        series.map(|(name, (_, values))| (name.clone(), bits(values))).collect::<Map<_, _>>().into()
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        for (name, (_, values)) in self.names.iter().zip(&mut self.series) {
            let saved = state[name].as_array().into_iter().flatten();
            *values = saved.filter_map(|v| v.as_u64().map(f64::from_bits)).collect();
            // The window may be smaller than in the saved run.
            values.drain(..values.len().saturating_sub(self.window));
        }
        Ok(())
    }
}
