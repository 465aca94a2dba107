//! Forwards the hooks of a wrapper to the wrapped callback.

/// Defines hooks that forward to `self.$inner`.
macro_rules! forward {
    ($inner:tt: $($hook:ident)*) => { $( $crate::callback::proxy::forward!(@ $hook $inner); )* };
    (@ name $inner:tt) => {
        fn name(&self) -> String {
            self.$inner.name()
        }
    };
    (@ setup_graph $inner:tt) => {
        fn setup_graph(&mut self, g: &mut $crate::callback::GraphCx<'_>) -> tensorpack_tensor::Result<()> {
            self.$inner.setup_graph(g)
        }
    };
    (@ reads $inner:tt) => {
        fn reads(&self) -> Vec<$crate::callback::Statistic> {
            self.$inner.reads()
        }
    };
    (@ makes $inner:tt) => {
        fn makes(&self) -> Vec<$crate::callback::Statistic> {
            self.$inner.makes()
        }
    };
    (@ state $inner:tt) => {
        fn state(&self) -> serde_json::Value {
            self.$inner.state()
        }
    };
    (@ load_state $inner:tt) => {
        fn load_state(&mut self, state: &serde_json::Value) -> tensorpack_tensor::Result<()> {
            self.$inner.load_state(state)
        }
    };
    (@ before_run $inner:tt) => {
        fn before_run(&mut self, cx: &mut $crate::callback::RunCx<'_>) -> tensorpack_tensor::Result<()> {
            self.$inner.before_run(cx)
        }
    };
    (@ after_run $inner:tt) => {
        fn after_run(&mut self, cx: &mut $crate::callback::RunCx<'_>) -> tensorpack_tensor::Result<()> {
            self.$inner.after_run(cx)
        }
    };
    (@ collect $inner:tt) => {
        fn collect(&mut self, values: &$crate::callback::CollectCx<'_>) -> tensorpack_tensor::Result<()> {
            self.$inner.collect(values)
        }
    };
    (@ $hook:ident $inner:tt) => {
        fn $hook(&mut self, cx: &mut $crate::callback::TrainCx<'_>) -> tensorpack_tensor::Result<()> {
            self.$inner.$hook(cx)
        }
    };
}
pub(super) use forward;

#[cfg(test)]
mod tests {
    use crate::callback::callback::Callback;
    use crate::callback::context::{CollectCx, GraphCx, RunCx, TrainCx};
    use crate::callback::train_state::TrainState;
    use crate::callback::{EnableCallbackIf, PeriodicCallback, PeriodicTrigger};
    use crate::callback::{Statistic, When};
    use crate::graph::Graph;
    use serde_json::{Value, json};
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::rc::Rc;
    use tensorpack_tensor::Result;

    /// Records which of its hooks were called. A missing hook fails the test below.
    #[derive(Clone, Default)]
    struct Recorder(Rc<RefCell<BTreeSet<&'static str>>>);

    impl Recorder {
        fn note(&self, hook: &'static str) -> Result<()> {
            self.0.borrow_mut().insert(hook);
            Ok(())
        }
    }

    impl Callback for Recorder {
        fn name(&self) -> String {
            self.0.borrow_mut().insert("name");
            "Recorder".into()
        }
        fn setup_graph(&mut self, _: &mut GraphCx<'_>) -> Result<()> {
            self.note("setup_graph")
        }
        fn before_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
            self.note("before_train")
        }
        fn before_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
            self.note("before_epoch")
        }
        fn before_run(&mut self, _: &mut RunCx<'_>) -> Result<()> {
            self.note("before_run")
        }
        fn after_run(&mut self, _: &mut RunCx<'_>) -> Result<()> {
            self.note("after_run")
        }
        fn collect(&mut self, _: &CollectCx<'_>) -> Result<()> {
            self.note("collect")
        }
        fn trigger_step(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
            self.note("trigger_step")
        }
        fn after_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
            self.note("after_epoch")
        }
        fn trigger_epoch(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
            self.note("trigger_epoch")
        }
        fn trigger(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
            self.note("trigger")
        }
        fn after_train(&mut self, _: &mut TrainCx<'_>) -> Result<()> {
            self.note("after_train")
        }
        fn reads(&self) -> Vec<Statistic> {
            self.0.borrow_mut().insert("reads");
            vec![Statistic::new("read", When::Epoch)]
        }
        fn makes(&self) -> Vec<Statistic> {
            self.0.borrow_mut().insert("makes");
            vec![Statistic::new("made", When::Run), Statistic::new("late", When::Epoch)]
        }
        fn state(&self) -> Value {
            self.0.borrow_mut().insert("state");
            json!(7)
        }
        fn load_state(&mut self, state: &Value) -> Result<()> {
            assert_eq!(*state, json!(7));
            self.note("load_state")
        }
    }

    /// Returns the names of the trait's hooks, parsed from its source.
    fn hooks() -> BTreeSet<&'static str> {
        let text = include_str!("callback.rs");
        let body = text.split("pub trait Callback {").nth(1).unwrap().split("\n}\n").next().unwrap();
        body.lines().filter_map(|l| l.strip_prefix("    fn ")?.split('(').next()).collect()
    }

    /// Calls every hook once, at the end of the first epoch of one step.
    fn call_all(callback: &mut dyn Callback) {
        let graph = Graph::new();
        let (mut declared, mut along) = (Vec::new(), Vec::new());
        let mut g =
            GraphCx { graph: &graph, tower: None, declared: &mut declared, along: &mut along, logdir: None };
        callback.setup_graph(&mut g).unwrap();
        let _ = (callback.name(), callback.reads(), callback.makes());
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
        let plain = Recorder::default();
        call_all(&mut plain.clone());
        assert_eq!(*plain.0.borrow(), hooks(), "the recorder must implement every hook");

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

    /// A wrapper of a single callback type cannot wrap the recorder, so its source is checked
    /// instead.
    #[test]
    fn wrappers_of_one_kind_name_every_hook() {
        let words: BTreeSet<&str> =
            include_str!("sanity_validation.rs").split(|c: char| !c.is_alphabetic() && c != '_').collect();
        assert!(words.is_superset(&hooks()), "{:?}", hooks().difference(&words).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_disabled_still_begins_and_ends() {
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
        assert_eq!(by_steps.reads(), [Statistic::new("read", When::Step)]);
        let made = [Statistic::new("made", When::Run), Statistic::new("late", When::Step)];
        assert_eq!(by_steps.makes(), made);
        let by_epochs = PeriodicTrigger::new(Recorder::default()).every_k_epochs(2);
        assert_eq!(by_epochs.reads(), [Statistic::new("read", When::Epoch)]);
    }
}
