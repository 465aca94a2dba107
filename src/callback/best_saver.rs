//! Keeps the best checkpoints.

use super::{Callback, GraphCx, Statistic, TrainCx, When};
use crate::io::check_tag;
use serde_json::{Value, json};
use tensorpack_tensor::{Error, Result, Site};

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
    /// The value behind each of the top-k tags, unordered. Empty unless `best(k)` was called.
    top: Vec<Option<f64>>,
    /// A setting that is out of range.
    error: Option<Error>,
}

/// The most checkpoints that `best(k)` keeps.
const MAX_TOP: usize = 10_000;

impl MinSaver {
    /// Minimizes `statistic`.
    pub fn new(statistic: impl Into<String>) -> MinSaver {
        MinSaver(BestSaver::new("min", statistic.into(), -1.0))
    }

    /// Sets the tag. A tag that is empty or reserved (`latest`, or one that starts with `.` or
    /// `step-`) is an error when training starts.
    #[must_use]
    #[track_caller]
    #[doc(alias = "filename")]
    pub fn tag(mut self, tag: impl Into<String>) -> MinSaver {
        self.0.set_tag(tag.into());
        self
    }

    /// Keeps the `k` best checkpoints, under the tags `TAG-1` to `TAG-k` in no particular order.
    /// The best one also has the plain tag. `k` is 1 to 10,000; another one is an error when
    /// training starts.
    #[must_use]
    #[track_caller]
    pub fn best(mut self, k: usize) -> MinSaver {
        self.0.set_top(k);
        self
    }
}

impl MaxSaver {
    /// Maximizes `statistic`.
    pub fn new(statistic: impl Into<String>) -> MaxSaver {
        MaxSaver(BestSaver::new("max", statistic.into(), 1.0))
    }

    /// Sets the tag. A tag that is empty or reserved (`latest`, or one that starts with `.` or
    /// `step-`) is an error when training starts.
    #[must_use]
    #[track_caller]
    #[doc(alias = "filename")]
    pub fn tag(mut self, tag: impl Into<String>) -> MaxSaver {
        self.0.set_tag(tag.into());
        self
    }

    /// Keeps the `k` best checkpoints, under the tags `TAG-1` to `TAG-k` in no particular order.
    /// The best one also has the plain tag. `k` is 1 to 10,000; another one is an error when
    /// training starts.
    #[must_use]
    #[track_caller]
    pub fn best(mut self, k: usize) -> MaxSaver {
        self.0.set_top(k);
        self
    }
}

impl BestSaver {
    fn new(kind: &str, statistic: String, sign: f64) -> BestSaver {
        let tag = format!("{kind}-{statistic}");
        BestSaver { tag, statistic, sign, best: None, top: Vec::new(), error: None }
    }

    #[track_caller]
    fn set_tag(&mut self, tag: String) {
        let site = Site::caller();
        self.error = self.error.take().or(check_tag(&tag).err().map(|e| e.at(site)));
        self.tag = tag;
    }

    #[track_caller]
    fn set_top(&mut self, k: usize) {
        let site = Site::caller();
        if (1..=MAX_TOP).contains(&k) {
            self.top = vec![None; k];
        } else {
            let why =
                format!("best({k}) of {} must keep at least 1 checkpoint and at most {MAX_TOP}", self.tag);
            let e = Error::argument(why).at(site).note("leave it out to keep the best checkpoint only");
            self.error.get_or_insert(e);
        }
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) {
        if let Some(value) = cx.monitors().latest(&self.statistic) {
            self.tags(value).into_iter().for_each(|tag| cx.tag_save(tag));
        }
    }

    /// Records a value and returns the tags its checkpoint gets.
    fn tags(&mut self, value: f64) -> Vec<String> {
        // NaN is never better.
        let better = |than: Option<f64>| than.map_or(!value.is_nan(), |t| (value - t) * self.sign > 0.0);
        let mut tags = Vec::new();
        if better(self.best) {
            self.best = Some(value);
            tags.push(self.tag.clone());
        }
        let rank = |v: Option<f64>| v.map_or(f64::NEG_INFINITY, |v| v * self.sign);
        let worst = (0..self.top.len()).min_by(|&i, &j| rank(self.top[i]).total_cmp(&rank(self.top[j])));
        if let Some(i) = worst.filter(|&i| better(self.top[i])) {
            self.top[i] = Some(value);
            tags.push(format!("{}-{}", self.tag, i + 1));
        }
        tags
    }

    fn reads(&self) -> Vec<Statistic> {
        vec![Statistic::new(self.statistic.as_str(), When::Epoch)]
    }

    fn state(&self) -> Value {
        let top: Vec<Option<u64>> = self.top.iter().map(|v| v.map(f64::to_bits)).collect();
        json!({"best": self.best.map(f64::to_bits), "top": top})
    }

    fn load_state(&mut self, state: &Value) {
        self.best = state["best"].as_u64().map(f64::from_bits);
        let top = state["top"].as_array().into_iter().flatten();
        for (slot, saved) in self.top.iter_mut().zip(top) {
            *slot = saved.as_u64().map(f64::from_bits);
        }
    }
}

macro_rules! callback {
    ($saver:ident) => {
        impl Callback for $saver {
            fn name(&self) -> String {
                format!("{}({})", stringify!($saver), self.0.statistic)
            }

            fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
                g.need_logdir(stringify!($saver))?;
                self.0.error.clone().map_or(Ok(()), Err)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_and_top_k_are_tagged() {
        let mut saver = MaxSaver::new("a").best(2).0;
        let mut tags = |value| saver.tags(value).join(" ");
        assert_eq!(tags(1.0), "max-a max-a-1");
        assert_eq!(tags(f64::NAN), "");
        assert_eq!(tags(0.5), "max-a-2");
        assert_eq!(tags(0.5), "");
        assert_eq!(tags(0.7), "max-a-2");
        assert_eq!(tags(2.0), "max-a max-a-2");
        assert_eq!(tags(1.5), "max-a-1");
        let mut saver = MinSaver::new("a").tag("least").0;
        assert_eq!([3.0, 4.0, 2.0].map(|v| saver.tags(v).join(" ")), ["least", "", "least"]);
    }

    #[test]
    fn best_values_survive_a_restart() {
        let mut saver = MinSaver::new("a").best(2).0;
        for value in [3.0, 2.0, 2.5] {
            saver.tags(value);
        }
        let mut again = MinSaver::new("a").best(2).0;
        again.load_state(&saver.state());
        for value in [2.6, 2.2, 1.0, 2.1] {
            assert_eq!(again.tags(value), saver.tags(value), "{value}");
        }
    }
}
