//! Callbacks that only rank 0 of a distributed run has.

use super::{Callback, ProxyCallback, RunCx, SaveRequest, TrainCx, TrainState};
use tensorpack_tensor::Result;

/// A callback that only rank 0 of several processes runs. If it asks for a checkpoint or stops
/// training in the middle of an epoch, that happens at the end of the epoch: the other ranks do not
/// know of it before, and would go on to the next step.
pub(super) struct ChiefCallback {
    inner: Box<dyn Callback>,
    postponed: Requests,
}

/// What callbacks have asked for.
#[derive(Default)]
struct Requests {
    save: Option<SaveRequest>,
    stop: Option<String>,
}

impl Requests {
    fn take(state: &mut TrainState) -> Requests {
        Requests { save: state.save_request.take(), stop: state.stop_reason.take() }
    }

    /// Adds these requests to those of the state, which come first.
    fn add_to(self, state: &mut TrainState) {
        if let Some(save) = self.save {
            state.save_request.get_or_insert_default().tags.extend(save.tags);
        }
        state.stop_reason = state.stop_reason.take().or(self.stop);
    }
}

impl ChiefCallback {
    pub(super) fn new(inner: Box<dyn Callback>) -> ChiefCallback {
        ChiefCallback { inner, postponed: Requests::default() }
    }

    /// Keeps the requests since `before` was taken.
    fn postpone(&mut self, state: &mut TrainState, before: Requests) {
        let Requests { save, stop } = Requests::take(state);
        if let Some(save) = save {
            self.postponed.save.get_or_insert_default().tags.extend(save.tags);
        }
        self.postponed.stop = self.postponed.stop.take().or(stop);
        before.add_to(state);
    }
}

impl ProxyCallback for ChiefCallback {
    type Inner = dyn Callback + 'static;

    fn inner(&self) -> &(dyn Callback + 'static) {
        &*self.inner
    }

    fn inner_mut(&mut self) -> &mut (dyn Callback + 'static) {
        &mut *self.inner
    }

    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let before = Requests::take(cx.state);
        let done = self.inner.before_epoch(cx);
        self.postpone(cx.state, before);
        done
    }

    fn before_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        let before = Requests::take(cx.state);
        let done = self.inner.before_run(cx);
        self.postpone(cx.state, before);
        done
    }

    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        let before = Requests::take(cx.state);
        let done = self.inner.after_run(cx);
        self.postpone(cx.state, before);
        done
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let before = Requests::take(cx.state);
        let done = self.inner.trigger_step(cx);
        self.postpone(cx.state, before);
        done
    }

    fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        std::mem::take(&mut self.postponed).add_to(cx.state);
        self.inner.trigger_epoch(cx)
    }
}
