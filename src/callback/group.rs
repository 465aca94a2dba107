//! The list of callbacks. Each hook is called on all of them in order.

use super::chief_callback::ChiefCallback;
use super::place::{Doing, Place};
use super::{Callback, CollectCx, GraphCx, ProgressBar, RunCx, Statistic, TrainCx, When};
use crate::graph::nearest_names;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, Result};

/// All callbacks of a trainer.
#[derive(Default)]
pub(crate) struct Callbacks {
    list: Vec<Box<dyn Callback>>,
    /// The name of each, so that no step asks for it.
    names: Vec<Arc<str>>,
    place: Arc<Place>,
}

/// Defines methods that call one hook of every callback and add the callback's name to errors.
macro_rules! hooks {
    ($($hook:ident($cx:ty), $doing:ident;)*) => {$(
        pub(crate) fn $hook(&mut self, cx: &mut $cx) -> Result<()> {
            self.each(Doing::$doing, |c| c.$hook(cx).map_err(|e| e.within(c.name())))
        }
    )*};
}

impl Callbacks {
    /// Removes the callbacks that only rank 0 runs.
    pub(crate) fn remove_chief_only(&mut self) {
        self.list.retain(|callback| !callback.chief_only());
        self.names = self.list.iter().map(|callback| callback.name().into()).collect();
    }

    /// Returns where the training loop is, which hooks set.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Includes the place in reports.
    pub(crate) fn publish_place(&self) {
        self.place.publish(self.names.clone());
    }

    /// Calls a hook of every callback, until one fails.
    fn each(&mut self, hook: Doing, mut call: impl FnMut(&mut dyn Callback) -> Result<()>) -> Result<()> {
        for (i, callback) in self.list.iter_mut().enumerate() {
            let _span = self.place.hook(hook, i, &self.names[i]);
            call(&mut **callback)?;
        }
        self.place.set(Doing::Other);
        Ok(())
    }

    /// Lets the requests of callbacks that only rank 0 runs wait until the end of the epoch, where all
    /// ranks follow its decisions.
    pub(crate) fn postpone_chief_requests(&mut self) {
        let postponed = |callback: Box<dyn Callback>| match callback.chief_only() {
            true => Box::new(ChiefCallback::new(callback)),
            false => callback,
        };
        self.list = self.list.drain(..).map(postponed).collect();
    }

    /// Adds a callback at the end. Of several progress bars only the first is kept, since they
    /// would draw over each other: the user's own one replaces the default, which comes later.
    pub(crate) fn push(&mut self, callback: Box<dyn Callback>) {
        let name: Arc<str> = callback.name().into();
        if *name != *ProgressBar::NAME || !self.names.contains(&name) {
            self.names.push(name);
            self.list.push(callback);
        }
    }

    hooks! {
        setup_graph(GraphCx<'_>), SetupGraph;
        before_train(TrainCx<'_>), BeforeTrain;
        before_epoch(TrainCx<'_>), BeforeEpoch;
        trigger_step(TrainCx<'_>), TriggerStep;
        after_epoch(TrainCx<'_>), AfterEpoch;
    }

    /// Does not add the callback's name to errors: this is called at every step, and names cost
    /// time.
    pub(crate) fn before_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.each(Doing::BeforeRun, |c| c.before_run(cx))
    }

    pub(crate) fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.each(Doing::AfterRun, |c| c.after_run(cx))
    }

    pub(crate) fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        self.each(Doing::Collect, |c| c.collect(values))
    }

    /// Calls `trigger_epoch` and logs slow callbacks.
    pub(crate) fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        const LONG: Duration = Duration::from_secs(2);
        let mut times = Vec::new();
        self.each(Doing::TriggerEpoch, |c| {
            let begun = Instant::now();
            c.trigger_epoch(cx).map_err(|e| e.within(c.name()))?;
            times.push((c.name(), begun.elapsed()));
            Ok(())
        })?;
        let total: Duration = times.iter().map(|(_, t)| *t).sum();
        if total >= LONG {
            let slow = times.iter().filter(|(_, t)| *t > total.mul_f64(0.3) && *t > LONG / 2);
            let slow: Vec<String> = slow.map(|(n, t)| format!("{n}: {:.1} s", t.as_secs_f64())).collect();
            log::info!("callbacks took {:.1} s in total; {}", total.as_secs_f64(), slow.join(", "));
        }
        Ok(())
    }

    /// Calls `after_train` on all callbacks even if some fail. Returns the first error.
    pub(crate) fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let mut first = Ok(());
        let all = self.each(Doing::AfterTrain, |c| {
            if let Err(e) = c.after_train(cx) {
                let e = e.within(c.name());
                log::error!("{e}");
                if first.is_ok() {
                    first = Err(e);
                }
            }
            Ok(())
        });
        all.and(first)
    }

    /// Returns the criteria by which callbacks stop training.
    pub(crate) fn stop_criteria(&self) -> Vec<String> {
        self.list.iter().filter_map(|c| c.stop_criterion()).collect()
    }

    /// Returns the states of all callbacks by name. The second callback of a name is `NAME#2`.
    pub(crate) fn state(&self) -> Value {
        let keys = self.keys();
        let states = keys.into_iter().zip(&self.list).map(|(key, c)| (key, c.state()));
        Value::Object(states.filter(|(_, s)| !s.is_null()).collect())
    }

    /// Restores the states. The state of a callback that no longer exists is a warning, not an
    /// error, so that callbacks can be removed from a run.
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
            log::warn!("ignoring the checkpoint's state of {key}: no callback has this name");
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

    /// Checks that every statistic is produced once, and before it is read.
    pub(crate) fn check_statistics(&self) -> Result<()> {
        let made: Vec<(usize, Statistic)> = self
            .list
            .iter()
            .enumerate()
            .flat_map(|(i, c)| c.produces().into_iter().map(move |s| (i, s)))
            .collect();
        let mut makers: HashMap<&str, (usize, When)> = HashMap::new();
        for (maker, Statistic { name, when }) in &made {
            let (first, first_when) = *makers.entry(name).or_insert((*maker, *when));
            // A tensor may be in the collections of two callbacks that summarize runs.
            let both_of_runs = (first_when, *when) == (When::Run, When::Run);
            if first != *maker && !both_of_runs {
                let (first, second) = (self.list[first].name(), self.list[*maker].name());
                let why = format!("{first} and {second} both produce the statistic {name:?}");
                return Err(Error::argument(why).note(
                    "give the statistics of one of them another prefix, such as \
                     ScalarStats::new(\"cost\").prefix(\"test\")",
                ));
            }
        }
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
                        let known = made.iter().map(|(_, s)| s.name.as_str());
                        error.note("no callback produces it").note(nearest_names(
                            "statistics",
                            &read.name,
                            known,
                        ))
                    }
                    Some((maker, s)) => {
                        let (maker, reader) = (self.list[*maker].name(), callback.name());
                        if s.when == read.when {
                            let why = format!("{maker} produces it, but comes later in the list");
                            error.note(why).note(format!("put {maker} before {reader}"))
                        } else {
                            let (made, read) = (s.when.phrase(), read.when.phrase());
                            let why = format!("{maker} produces it {made}, but it is read {read}");
                            error.note(why).note(format!("trigger {reader} {made}, or {maker} {read}"))
                        }
                    }
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callback::{ModelSaver, PeriodicCallback};

    #[test]
    fn only_the_first_progress_bar_is_kept() {
        let mut callbacks = Callbacks::default();
        callbacks.push(Box::new(PeriodicCallback::new(ProgressBar::new(["cost"])).every_k_epochs(2)));
        callbacks.push(Box::new(ModelSaver::new()));
        callbacks.push(Box::new(ProgressBar::default()));
        assert_eq!(callbacks.keys(), ["ProgressBar", "ModelSaver"]);
    }
}
