//! Enables a callback periodically.

use super::period::Period;
use super::{Callback, EnableCallbackIf, GraphCx, ProxyCallback};
use tensorpack_tensor::{Error, Result};

/// Enables a callback only in steps or epochs whose number is a multiple of `k`.
///
/// Before and during a run, the number of a step is the number of finished steps. A period in
/// epochs also enables the last step of the last epoch. This wrapper only removes calls; to trigger
/// a callback after steps instead of epochs, use [`PeriodicTrigger`](super::PeriodicTrigger).
#[derive(Debug)]
pub struct PeriodicCallback<C> {
    enabled: EnableCallbackIf<C>,
    period: Period,
}

impl<C: Callback> PeriodicCallback<C> {
    /// Wraps `callback`. Call `every_k_steps` or `every_k_epochs` to set the period.
    pub fn new(callback: C) -> PeriodicCallback<C> {
        PeriodicCallback { enabled: EnableCallbackIf::new(callback, |_| false), period: Period::default() }
    }

    /// Enables the callback while the number of finished steps is a multiple of `k`.
    #[must_use]
    pub fn every_k_steps(self, k: u64) -> PeriodicCallback<C> {
        let period = Period { steps: Some(k), ..self.period };
        self.with(period)
    }

    /// Enables the callback in epochs whose number is a multiple of `k`.
    #[must_use]
    pub fn every_k_epochs(self, k: u64) -> PeriodicCallback<C> {
        let period = Period { epochs: Some(k), ..self.period };
        self.with(period)
    }

    fn with(mut self, period: Period) -> PeriodicCallback<C> {
        self.enabled.condition = Box::new(move |at| {
            let at_the_end = at.last_of_epoch() && at.epoch_num == at.max_epoch;
            period.due_by_step(at) || period.due_by_epoch(at) || (period.epochs.is_some() && at_the_end)
        });
        PeriodicCallback { period, ..self }
    }
}

impl<C: Callback> ProxyCallback for PeriodicCallback<C> {
    type Inner = EnableCallbackIf<C>;

    fn inner(&self) -> &EnableCallbackIf<C> {
        &self.enabled
    }

    fn inner_mut(&mut self) -> &mut EnableCallbackIf<C> {
        &mut self.enabled
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        self.period.check()?;
        if self.period == Period::default() {
            let why = format!("the PeriodicCallback of {} has no period", Callback::name(&self.enabled));
            return Err(Error::argument(why).note("call every_k_steps(..) or every_k_epochs(..)"));
        }
        Callback::setup_graph(&mut self.enabled, g)
    }
}
