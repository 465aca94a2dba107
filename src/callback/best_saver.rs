//! Checkpoints of the best there was.

use super::{Callback, GraphCx, Statistic, TrainCx, When};
use serde_json::{Value, json};
use tensorpack_tensor::Result;

/// Keeps the checkpoint with the smallest value of a statistic, under the tag `min-NAME`.
#[derive(Debug)]
pub struct MinSaver(BestSaver);

/// Keeps the checkpoint with the largest value of a statistic, under the tag `max-NAME`.
#[derive(Debug)]
pub struct MaxSaver(BestSaver);

#[derive(Debug)]
struct BestSaver {
    statistic: String,
    tag: String,
    /// 1 if larger is better, else -1.
    sign: f64,
    best: Option<f64>,
}

impl MinSaver {
    /// Of this statistic.
    pub fn new(statistic: impl Into<String>) -> MinSaver {
        MinSaver(BestSaver::new("min", statistic.into(), -1.0))
    }

    /// Under another tag.
    #[must_use]
    #[doc(alias = "filename")]
    pub fn tag(mut self, tag: impl Into<String>) -> MinSaver {
        self.0.tag = tag.into();
        self
    }
}

impl MaxSaver {
    /// Of this statistic.
    pub fn new(statistic: impl Into<String>) -> MaxSaver {
        MaxSaver(BestSaver::new("max", statistic.into(), 1.0))
    }

    /// Under another tag.
    #[must_use]
    #[doc(alias = "filename")]
    pub fn tag(mut self, tag: impl Into<String>) -> MaxSaver {
        self.0.tag = tag.into();
        self
    }
}

impl BestSaver {
    fn new(kind: &str, statistic: String, sign: f64) -> BestSaver {
        BestSaver { tag: format!("{kind}-{statistic}"), statistic, sign, best: None }
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) {
        let Some(value) = cx.monitors().latest(&self.statistic) else { return };
        // NaN is never better.
        if self.best.is_none_or(|best| (value - best) * self.sign > 0.0) && !value.is_nan() {
            self.best = Some(value);
            cx.tag_save(self.tag.as_str());
        }
    }

    fn reads(&self) -> Vec<Statistic> {
        vec![Statistic::new(self.statistic.as_str(), When::Epoch)]
    }

    fn state(&self) -> Value {
        self.best.map_or(Value::Null, |b| json!(b.to_bits()))
    }

    fn load_state(&mut self, state: &Value) {
        self.best = state.as_u64().map(f64::from_bits);
    }
}

macro_rules! callback {
    ($saver:ident) => {
        impl Callback for $saver {
            fn name(&self) -> String {
                format!("{}({})", stringify!($saver), self.0.statistic)
            }

            fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
                g.need_logdir(stringify!($saver)).map(|_| ())
            }

            fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
                self.0.trigger(cx);
                Ok(())
            }

            fn reads(&self) -> Vec<Statistic> {
                self.0.reads()
            }

            fn state(&self) -> Value {
                self.0.state()
            }

            fn load_state(&mut self, state: &Value) -> Result<()> {
                self.0.load_state(state);
                Ok(())
            }
        }
    };
}
callback!(MinSaver);
callback!(MaxSaver);
