//! Triggers a callback periodically.

use super::period::Period;
use super::{Callback, GraphCx, ProxyCallback, Statistic, TrainCx, When};
use tensorpack_tensor::{Error, Result};

/// Triggers a callback every few steps or epochs instead of after every epoch. Its other hooks are
/// called as usual.
///
/// If it triggers after steps, the statistics of the callback are produced and read after steps,
/// too.
///
/// ```
/// use tensorpack::callback::{ModelSaver, PeriodicTrigger};
/// let saver = PeriodicTrigger::new(ModelSaver::new()).every_k_steps(1000).every_k_epochs(1);
/// ```
#[derive(Clone, Debug)]
pub struct PeriodicTrigger<C> {
    callback: C,
    period: Period,
    at_start: bool,
}

impl<C: Callback> PeriodicTrigger<C> {
    /// Wraps `callback`. Call `every_k_steps`, `every_k_epochs` or `at_start` to set when it
    /// triggers.
    pub fn new(callback: C) -> PeriodicTrigger<C> {
        PeriodicTrigger { callback, period: Period::default(), at_start: false }
    }

    /// Triggers after every step whose global number is a multiple of `k`.
    #[must_use]
    pub fn every_k_steps(mut self, k: u64) -> PeriodicTrigger<C> {
        self.period.steps = Some(k);
        self
    }

    /// Triggers after every epoch whose number is a multiple of `k`.
    #[must_use]
    pub fn every_k_epochs(mut self, k: u64) -> PeriodicTrigger<C> {
        self.period.epochs = Some(k);
        self
    }

    /// Also triggers once before training, but not in a resumed run.
    #[must_use]
    #[doc(alias = "before_train")]
    pub fn at_start(self) -> PeriodicTrigger<C> {
        PeriodicTrigger { at_start: true, ..self }
    }

    /// Moves the statistics of triggers to steps if the callback triggers after steps.
    fn when(&self, mut statistics: Vec<Statistic>) -> Vec<Statistic> {
        if self.period.steps.is_some() {
            statistics.iter_mut().for_each(|s| s.when = s.when.min(When::Step));
        }
        statistics
    }
}

impl<C: Callback> ProxyCallback for PeriodicTrigger<C> {
    type Inner = C;

    fn inner(&self) -> &C {
        &self.callback
    }

    fn inner_mut(&mut self) -> &mut C {
        &mut self.callback
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        self.period.check()?;
        if self.period == Period::default() && !self.at_start {
            let why = format!("the PeriodicTrigger of {} has no period", self.callback.name());
            return Err(Error::argument(why).note("call every_k_steps(..), every_k_epochs(..) or at_start()"));
        }
        self.callback.setup_graph(g)
    }

    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.callback.before_train(cx)?;
        if self.at_start && !cx.resumed() { self.callback.trigger(cx) } else { Ok(()) }
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.callback.trigger_step(cx)?;
        if self.period.due_by_step(cx) { self.callback.trigger(cx) } else { Ok(()) }
    }

    fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if self.period.due_by_epoch(cx) { self.callback.trigger(cx) } else { Ok(()) }
    }

    fn reads(&self) -> Vec<Statistic> {
        self.when(self.callback.reads())
    }

    fn produces(&self) -> Vec<Statistic> {
        self.when(self.callback.produces())
    }
}
