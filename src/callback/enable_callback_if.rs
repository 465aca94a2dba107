//! Enables a callback conditionally.

use super::{Callback, CollectCx, Progress, ProxyCallback, RunCx, TrainCx};
use std::fmt;
use tensorpack_tensor::Result;

/// Calls the run, step and epoch hooks of a callback only while a condition holds. `before_train`,
/// `after_train` and `trigger` are always forwarded.
///
/// The condition is evaluated before a run, and the result also applies to that run's `after_run`.
pub struct EnableCallbackIf<C> {
    callback: C,
    pub(super) condition: Box<dyn Fn(&Progress) -> bool>,
    in_run: bool,
}

impl<C: Callback> EnableCallbackIf<C> {
    /// Enables `callback` while `condition` holds.
    pub fn new(callback: C, condition: impl Fn(&Progress) -> bool + 'static) -> EnableCallbackIf<C> {
        EnableCallbackIf { callback, condition: Box::new(condition), in_run: false }
    }
}

impl<C: Callback> ProxyCallback for EnableCallbackIf<C> {
    type Inner = C;

    fn inner(&self) -> &C {
        &self.callback
    }

    fn inner_mut(&mut self) -> &mut C {
        &mut self.callback
    }

    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if (self.condition)(cx) { self.callback.before_epoch(cx) } else { Ok(()) }
    }

    fn before_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.in_run = (self.condition)(cx);
        if self.in_run { self.callback.before_run(cx) } else { Ok(()) }
    }

    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        if self.in_run { self.callback.after_run(cx) } else { Ok(()) }
    }

    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        if (self.condition)(values) { self.callback.collect(values) } else { Ok(()) }
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if (self.condition)(cx) { self.callback.trigger_step(cx) } else { Ok(()) }
    }

    fn after_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if (self.condition)(cx) { self.callback.after_epoch(cx) } else { Ok(()) }
    }

    fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        if (self.condition)(cx) { self.callback.trigger_epoch(cx) } else { Ok(()) }
    }
}

impl<C: fmt::Debug> fmt::Debug for EnableCallbackIf<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnableCallbackIf").field("callback", &self.callback).finish_non_exhaustive()
    }
}
