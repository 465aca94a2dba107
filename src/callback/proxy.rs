//! Callbacks that wrap another callback.

use super::{Callback, CollectCx, GraphCx, RunCx, Statistic, TrainCx};
use serde_json::Value;
use tensorpack_tensor::Result;

/// A callback that wraps another one and changes some of its hooks. Every hook is forwarded to the
/// wrapped callback unless the wrapper defines it. Every `ProxyCallback` is a [`Callback`].
///
/// ```
/// use tensorpack::callback::{ProxyCallback, TrainCx};
/// use tensorpack::prelude::*;
///
/// /// Triggers a callback only in the second half of training.
/// struct SecondHalf<C>(C);
///
/// impl<C: Callback> ProxyCallback for SecondHalf<C> {
///     type Inner = C;
///
///     fn inner(&self) -> &C {
///         &self.0
///     }
///
///     fn inner_mut(&mut self) -> &mut C {
///         &mut self.0
///     }
///
///     fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
///         if 2 * cx.epoch_num > cx.max_epoch { self.0.trigger_epoch(cx) } else { Ok(()) }
///     }
/// }
/// ```
///
/// The wrapped callback's own `trigger_epoch` calls its own `trigger`, not the wrapper's.
pub trait ProxyCallback {
    /// The type of the wrapped callback.
    type Inner: Callback + ?Sized;

    /// Returns the wrapped callback.
    fn inner(&self) -> &Self::Inner;

    /// Returns the wrapped callback.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// Forwards [`Callback::name`].
    fn name(&self) -> String {
        self.inner().name()
    }

    /// Forwards [`Callback::chief_only`].
    fn chief_only(&self) -> bool {
        self.inner().chief_only()
    }

    /// Forwards [`Callback::setup_graph`].
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        self.inner_mut().setup_graph(g)
    }

    /// Forwards [`Callback::before_train`].
    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.inner_mut().before_train(cx)
    }

    /// Forwards [`Callback::before_epoch`].
    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.inner_mut().before_epoch(cx)
    }

    /// Forwards [`Callback::before_run`].
    fn before_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.inner_mut().before_run(cx)
    }

    /// Forwards [`Callback::after_run`].
    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        self.inner_mut().after_run(cx)
    }

    /// Forwards [`Callback::collect`].
    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        self.inner_mut().collect(values)
    }

    /// Forwards [`Callback::trigger_step`].
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.inner_mut().trigger_step(cx)
    }

    /// Forwards [`Callback::after_epoch`].
    fn after_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.inner_mut().after_epoch(cx)
    }

    /// Forwards [`Callback::trigger_epoch`].
    fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.inner_mut().trigger_epoch(cx)
    }

    /// Forwards [`Callback::trigger`].
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.inner_mut().trigger(cx)
    }

    /// Forwards [`Callback::after_train`].
    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.inner_mut().after_train(cx)
    }

    /// Forwards [`Callback::reads`].
    fn reads(&self) -> Vec<Statistic> {
        self.inner().reads()
    }

    /// Forwards [`Callback::produces`].
    fn produces(&self) -> Vec<Statistic> {
        self.inner().produces()
    }

    /// Forwards [`Callback::stop_criterion`].
    fn stop_criterion(&self) -> Option<String> {
        self.inner().stop_criterion()
    }

    /// Forwards [`Callback::state`].
    fn state(&self) -> Value {
        self.inner().state()
    }

    /// Forwards [`Callback::load_state`].
    fn load_state(&mut self, state: &Value) -> Result<()> {
        self.inner_mut().load_state(state)
    }
}

// A hook that is missing here would not be forwarded.
#[deny(clippy::missing_trait_methods)]
impl<P: ProxyCallback> Callback for P {
    fn name(&self) -> String {
        ProxyCallback::name(self)
    }

    fn chief_only(&self) -> bool {
        ProxyCallback::chief_only(self)
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        ProxyCallback::setup_graph(self, g)
    }

    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        ProxyCallback::before_train(self, cx)
    }

    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        ProxyCallback::before_epoch(self, cx)
    }

    fn before_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        ProxyCallback::before_run(self, cx)
    }

    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        ProxyCallback::after_run(self, cx)
    }

    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        ProxyCallback::collect(self, values)
    }

    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        ProxyCallback::trigger_step(self, cx)
    }

    fn after_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        ProxyCallback::after_epoch(self, cx)
    }

    fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        ProxyCallback::trigger_epoch(self, cx)
    }

    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        ProxyCallback::trigger(self, cx)
    }

    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        ProxyCallback::after_train(self, cx)
    }

    fn reads(&self) -> Vec<Statistic> {
        ProxyCallback::reads(self)
    }

    fn produces(&self) -> Vec<Statistic> {
        ProxyCallback::produces(self)
    }

    fn stop_criterion(&self) -> Option<String> {
        ProxyCallback::stop_criterion(self)
    }

    fn state(&self) -> Value {
        ProxyCallback::state(self)
    }

    fn load_state(&mut self, state: &Value) -> Result<()> {
        ProxyCallback::load_state(self, state)
    }
}

#[cfg(test)]
mod tests {
    use crate::callback::callback::Callback;
    use crate::callback::context::{CollectCx, GraphCx, RunCx, TrainCx};
    use crate::callback::train_state::TrainState;
    use crate::callback::{EnableCallbackIf, PeriodicCallback, PeriodicTrigger};
    use crate::callback::{ProxyCallback, Statistic, When};
    use crate::graph::Graph;
    use serde_json::{Value, json};
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::rc::Rc;
    use tensorpack_tensor::Result;

    /// Records which of its hooks were called.
    #[derive(Clone, Default)]
    struct Recorder(Rc<RefCell<BTreeSet<&'static str>>>);

    /// Defines hooks that return nothing, and `HOOKS`, which lists all hooks.
    macro_rules! recorder {
        ($($hook:ident($cx:ty))*) => {
            const HOOKS: &[&str] =
                &["name", "chief_only", "collect", "reads", "produces", "stop_criterion", "state", "load_state", $(stringify!($hook)),*];

            // The lint makes sure that no hook is missing here.
            #[deny(clippy::missing_trait_methods)]
            impl Callback for Recorder {
                fn name(&self) -> String {
                    self.0.borrow_mut().insert("name");
                    "Recorder".into()
                }
                fn chief_only(&self) -> bool {
                    self.0.borrow_mut().insert("chief_only");
                    true
                }
                fn collect(&mut self, _: &CollectCx<'_>) -> Result<()> {
                    self.0.borrow_mut().insert("collect");
                    Ok(())
                }
                fn reads(&self) -> Vec<Statistic> {
                    self.0.borrow_mut().insert("reads");
                    vec![Statistic::new("read", When::Epoch)]
                }
                fn produces(&self) -> Vec<Statistic> {
                    self.0.borrow_mut().insert("produces");
                    vec![Statistic::new("produced", When::Run), Statistic::new("late", When::Epoch)]
                }
                fn stop_criterion(&self) -> Option<String> {
                    self.0.borrow_mut().insert("stop_criterion");
                    None
                }
                fn state(&self) -> Value {
                    self.0.borrow_mut().insert("state");
                    json!(7)
                }
                fn load_state(&mut self, state: &Value) -> Result<()> {
                    assert_eq!(*state, json!(7));
                    self.0.borrow_mut().insert("load_state");
                    Ok(())
                }
                $(fn $hook(&mut self, _: &mut $cx) -> Result<()> {
                    self.0.borrow_mut().insert(stringify!($hook));
                    Ok(())
                })*
            }
        };
    }

    recorder! {
        setup_graph(GraphCx<'_>)
        before_train(TrainCx<'_>)
        before_epoch(TrainCx<'_>)
        before_run(RunCx<'_>)
        after_run(RunCx<'_>)
        trigger_step(TrainCx<'_>)
        after_epoch(TrainCx<'_>)
        trigger_epoch(TrainCx<'_>)
        trigger(TrainCx<'_>)
        after_train(TrainCx<'_>)
    }

    fn hooks() -> BTreeSet<&'static str> {
        HOOKS.iter().copied().collect()
    }

    /// A wrapper that changes nothing.
    struct Plain(Recorder);

    impl ProxyCallback for Plain {
        type Inner = Recorder;
        fn inner(&self) -> &Recorder {
            &self.0
        }
        fn inner_mut(&mut self) -> &mut Recorder {
            &mut self.0
        }
    }

    /// Calls every hook once, at the end of the first epoch of one step.
    fn call_all(callback: &mut dyn Callback) {
        let graph = Graph::new();
        let (mut declared, mut step_ops) = (Vec::new(), Vec::new());
        let mut g = GraphCx {
            graph: &graph,
            tower: None,
            declared: &mut declared,
            step_ops: &mut step_ops,
            logdir: None,
            cost: None,
        };
        callback.setup_graph(&mut g).unwrap();
        assert!(callback.chief_only());
        let _ = (callback.name(), callback.reads(), callback.produces(), callback.stop_criterion());
        let state = callback.state();
        callback.load_state(&state).unwrap();
        let mut state = TrainState::empty();
        callback.before_train(&mut TrainCx { state: &mut state }).unwrap();
        state.at_epoch(1);
        let mut hook = RunCx { state: &mut state, program: None };
        callback.before_run(&mut hook).unwrap();
        callback.after_run(&mut hook).unwrap();
        callback.collect(&CollectCx { progress: state.progress.clone(), program: None }).unwrap();
        let mut cx = TrainCx { state: &mut state };
        callback.before_epoch(&mut cx).unwrap();
        callback.trigger_step(&mut cx).unwrap();
        callback.after_epoch(&mut cx).unwrap();
        callback.trigger_epoch(&mut cx).unwrap();
        callback.trigger(&mut cx).unwrap();
        callback.after_train(&mut cx).unwrap();
    }

    #[test]
    fn wrappers_forward_every_hook() {
        let r = Recorder::default();
        call_all(&mut r.clone());
        assert_eq!(*r.0.borrow(), hooks(), "call_all must call every hook");

        let r = Recorder::default();
        call_all(&mut Plain(r.clone()));
        assert_eq!(*r.0.borrow(), hooks());

        let r = Recorder::default();
        call_all(&mut EnableCallbackIf::new(r.clone(), |_| true));
        assert_eq!(*r.0.borrow(), hooks());

        let r = Recorder::default();
        call_all(&mut PeriodicCallback::new(r.clone()).every_k_steps(1));
        assert_eq!(*r.0.borrow(), hooks());

        // `PeriodicTrigger` replaces the callback's own `trigger_epoch`.
        let r = Recorder::default();
        call_all(&mut PeriodicTrigger::new(r.clone()).every_k_epochs(1));
        let but_trigger_epoch = hooks().into_iter().filter(|h| *h != "trigger_epoch").collect();
        assert_eq!(*r.0.borrow(), but_trigger_epoch);
    }

    #[test]
    fn a_disabled_callback_still_gets_before_and_after_train() {
        let r = Recorder::default();
        call_all(&mut EnableCallbackIf::new(r.clone(), |_| false));
        let off = [
            "before_epoch",
            "before_run",
            "after_run",
            "collect",
            "trigger_step",
            "after_epoch",
            "trigger_epoch",
        ];
        assert_eq!(*r.0.borrow(), hooks().into_iter().filter(|h| !off.contains(h)).collect());
    }

    #[test]
    fn statistics_of_triggers_move_to_steps() {
        let by_steps = PeriodicTrigger::new(Recorder::default()).every_k_steps(2);
        assert_eq!(Callback::reads(&by_steps), [Statistic::new("read", When::Step)]);
        let made = [Statistic::new("produced", When::Run), Statistic::new("late", When::Step)];
        assert_eq!(Callback::produces(&by_steps), made);
        let by_epochs = PeriodicTrigger::new(Recorder::default()).every_k_epochs(2);
        assert_eq!(Callback::reads(&by_epochs), [Statistic::new("read", When::Epoch)]);
    }
}
