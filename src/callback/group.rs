//! The list of callbacks, called in order at each moment.

use super::{Callback, CollectCx, GraphCx, RunCx, Statistic, TrainCx, When};
use serde_json::{Map, Value};
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, Result};

/// All callbacks of a trainer.
#[derive(Default)]
pub(crate) struct Callbacks {
    list: Vec<Box<dyn Callback>>,
}

/// A method that calls one hook of every callback, and says whose error it was.
macro_rules! moments {
    ($($(#[$doc:meta])* $hook:ident($cx:ty);)*) => {$(
        $(#[$doc])*
        pub(crate) fn $hook(&mut self, cx: &mut $cx) -> Result<()> {
            self.list.iter_mut().try_for_each(|c| c.$hook(cx).map_err(|e| e.within(c.name())))
        }
    )*};
}

impl Callbacks {
    pub(crate) fn push(&mut self, callback: Box<dyn Callback>) {
        self.list.push(callback);
    }

    moments! {
        setup_graph(GraphCx<'_>);
        before_train(TrainCx<'_>);
        before_epoch(TrainCx<'_>);
        trigger_step(TrainCx<'_>);
        after_epoch(TrainCx<'_>);
    }

    /// Not named in errors: runs are many, and names cost time.
    pub(crate) fn before_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.list.iter_mut().try_for_each(|c| c.before_run(cx))
    }

    pub(crate) fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.list.iter_mut().try_for_each(|c| c.after_run(cx))
    }

    pub(crate) fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        self.list.iter_mut().try_for_each(|c| c.collect(values))
    }

    /// Says which callbacks took long, if they did.
    pub(crate) fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        const LONG: Duration = Duration::from_secs(2);
        let mut times = Vec::new();
        for c in &mut self.list {
            let begun = Instant::now();
            c.trigger_epoch(cx).map_err(|e| e.within(c.name()))?;
            times.push((c.name(), begun.elapsed()));
        }
        let total: Duration = times.iter().map(|(_, t)| *t).sum();
        if total >= LONG {
            let slow = times.iter().filter(|(_, t)| *t > total.mul_f64(0.3) && *t > LONG / 2);
            let slow: Vec<String> = slow.map(|(n, t)| format!("{n}: {:.1} s", t.as_secs_f64())).collect();
            log::info!("callbacks took {:.1} s in all; {}", total.as_secs_f64(), slow.join(", "));
        }
        Ok(())
    }

    /// Runs them all, whatever happens in one; returns the first error.
    pub(crate) fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let mut first = Ok(());
        for c in &mut self.list {
            if let Err(e) = c.after_train(cx) {
                let e = e.within(c.name());
                log::error!("{e}");
                first = first.and(Err(e));
            }
        }
        first
    }

    /// The states of all, by name; the second of one name is `NAME#2`.
    pub(crate) fn state(&self) -> Value {
        let keys = self.keys();
        let states = keys.into_iter().zip(&self.list).map(|(key, c)| (key, c.state()));
        Value::Object(states.filter(|(_, s)| !s.is_null()).collect())
    }

    /// Takes the states back. One that nobody has any more is said, not an error: a callback may be left out later.
    pub(crate) fn load_state(&mut self, states: &Value) -> Result<()> {
        let empty = Map::new();
        let states = states.as_object().unwrap_or(&empty);
        let keys = self.keys();
        for (key, callback) in keys.iter().zip(&mut self.list) {
            if let Some(state) = states.get(key) {
                callback.load_state(state).map_err(|e| e.within(key))?;
            }
        }
        for key in states.keys().filter(|k| !keys.contains(k)) {
            log::warn!("the checkpoint has state of {key}, which is not among the callbacks");
        }
        Ok(())
    }

    fn keys(&self) -> Vec<String> {
        let names: Vec<String> = self.list.iter().map(|c| c.name()).collect();
        let key = |i: usize| match names[..i].iter().filter(|n| **n == names[i]).count() {
            0 => names[i].clone(),
            n => format!("{}#{}", names[i], n + 1),
        };
        (0..names.len()).map(key).collect()
    }

    /// That every statistic which is read is made, and early enough.
    pub(crate) fn check_statistics(&self) -> Result<()> {
        let made: Vec<(usize, Statistic)> = self
            .list
            .iter()
            .enumerate()
            .flat_map(|(i, c)| c.makes().into_iter().map(move |s| (i, s)))
            .collect();
        for (reader, callback) in self.list.iter().enumerate() {
            for read in callback.reads() {
                let makers: Vec<&(usize, Statistic)> =
                    made.iter().filter(|(_, s)| s.name == read.name).collect();
                let early = |(maker, s): &&(usize, Statistic)| {
                    s.when < read.when || (s.when == read.when && *maker < reader) || s.when == When::Run
                };
                if makers.iter().any(early) {
                    continue;
                }
                let error =
                    Error::argument(format!("{} reads the statistic {:?}", callback.name(), read.name));
                return Err(match makers.first() {
                    None => {
                        let mut known: Vec<&str> = made.iter().map(|(_, s)| s.name.as_str()).collect();
                        known.sort_unstable();
                        error.note("no callback makes it").note(format!("there are: {}", known.join(", ")))
                    }
                    Some((maker, s)) => {
                        let (maker, reader) = (self.list[*maker].name(), callback.name());
                        if s.when == read.when {
                            let why = format!("{maker} makes it, but stands later in the list");
                            error.note(why).note(format!("put {maker} before {reader}"))
                        } else {
                            let (made, read) = (s.when.in_words(), read.when.in_words());
                            let why = format!("{maker} makes it {made}, but it is read {read}");
                            error.note(why).note(format!("trigger {reader} {made}, or {maker} {read}"))
                        }
                    }
                });
            }
        }
        Ok(())
    }
}
