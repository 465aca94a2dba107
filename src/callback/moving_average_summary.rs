//! Reports moving averages of scalars.

use super::{Callback, CollectCx, FetchHandle, GraphCx, RunCx, Statistic, When};
use crate::graph::MOVING_SUMMARIES;
use crate::runtime::Cadence;
use serde_json::{Map, Value, json};
use tensorpack_tensor::{Error, Result};

/// Maintains an exponential moving average of every scalar passed to
/// [`TowerContext::moving_summary`](crate::tower::TowerContext::moving_summary), and reports it
/// once per epoch. Scalars of
/// [`moving_summary_with_decay`](crate::tower::TowerContext::moving_summary_with_decay) have their own
/// decay.
///
/// After `t` values `x` the average with decay `d` is
/// `(1 - d) * sum(d^(t - i) * x_i) / (1 - d^t)`: bias-corrected, so that the weights sum to one.
#[derive(Debug)]
pub struct MovingAverageSummary {
    decay: f64,
    averages: Vec<Average>,
    /// Whether the last values of an epoch have been collected but not reported yet.
    ends_epoch: bool,
}

#[derive(Debug)]
struct Average {
    name: String,
    fetched: FetchHandle,
    decay: f64,
    sum: f64,
    /// `d^t`.
    power: f64,
}

impl Default for MovingAverageSummary {
    fn default() -> MovingAverageSummary {
        MovingAverageSummary { decay: 0.95, averages: Vec::new(), ends_epoch: false }
    }
}

impl MovingAverageSummary {
    /// Sets the decay. Defaults to 0.95.
    #[must_use]
    pub fn decay(self, decay: f64) -> MovingAverageSummary {
        MovingAverageSummary { decay, ..self }
    }
}

impl Callback for MovingAverageSummary {
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        for (name, tensor) in g.summaries(MOVING_SUMMARIES) {
            if tensor.rank() > 0 {
                return Err(Error::shape(format!("{name} is {}, not a scalar", tensor.shape())));
            }
            let fetched = g.fetch(&tensor, Cadence::Deferred);
            let decay = tensor.graph().summary_decay(&tensor).unwrap_or(self.decay);
            self.averages.push(Average { name, fetched, decay, sum: 0.0, power: 1.0 });
        }
        Ok(())
    }

    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        for a in &mut self.averages {
            let Some(x) = values.scalar(a.fetched) else { return Ok(()) };
            a.sum = a.decay * a.sum + (1.0 - a.decay) * x;
            a.power *= a.decay;
        }
        self.ends_epoch = values.last_of_epoch();
        Ok(())
    }

    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        if std::mem::take(&mut self.ends_epoch) {
            for a in &self.averages {
                cx.put_scalar(&a.name, a.sum / (1.0 - a.power));
            }
        }
        Ok(())
    }

    fn produces(&self) -> Vec<Statistic> {
        self.averages.iter().map(|a| Statistic::new(a.name.as_str(), When::Run)).collect()
    }

    fn state(&self) -> Value {
        self.averages
            .iter()
            .map(|a| (a.name.clone(), json!([a.sum.to_bits(), a.power.to_bits()])))
            .collect::<Map<_, _>>()
            .into()
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        for a in &mut self.averages {
            let bits = |i: usize| state[&a.name][i].as_u64().map(f64::from_bits);
            if let (Some(sum), Some(power)) = (bits(0), bits(1)) {
                (a.sum, a.power) = (sum, power);
            }
        }
        Ok(())
    }
}
