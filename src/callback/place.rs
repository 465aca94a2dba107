//! Where a training loop is, for reports of a running process. Setting it costs two relaxed stores.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tensorpack_timeline::{self as timeline, Label, Name, Span};

/// What the thread of the training loop does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Doing {
    Other,
    Input,
    Compute,
    Save,
    SetupGraph,
    BeforeTrain,
    BeforeEpoch,
    BeforeRun,
    AfterRun,
    Collect,
    TriggerStep,
    AfterEpoch,
    TriggerEpoch,
    AfterTrain,
}

/// All activities, in the order of their numbers, with the words for them. Those of hooks are the
/// names of the hooks.
const ALL: [(Doing, &str); 14] = [
    (Doing::Other, "between steps"),
    (Doing::Input, "waiting for input"),
    (Doing::Compute, "computing"),
    (Doing::Save, "saving a checkpoint"),
    (Doing::SetupGraph, "setup_graph"),
    (Doing::BeforeTrain, "before_train"),
    (Doing::BeforeEpoch, "before_epoch"),
    (Doing::BeforeRun, "before_run"),
    (Doing::AfterRun, "after_run"),
    (Doing::Collect, "collect"),
    (Doing::TriggerStep, "trigger_step"),
    (Doing::AfterEpoch, "after_epoch"),
    (Doing::TriggerEpoch, "trigger_epoch"),
    (Doing::AfterTrain, "after_train"),
];

impl Doing {
    /// Returns the words for it.
    pub(crate) fn name(self) -> &'static str {
        ALL[self as usize].1
    }
}

/// The places of all training loops that run.
static PLACES: Mutex<Vec<Weak<Place>>> = Mutex::new(Vec::new());

/// Where a training loop is.
#[derive(Debug, Default)]
pub(crate) struct Place {
    doing: AtomicU32,
    /// The index of the callback whose hook runs.
    callback: AtomicU32,
    /// The number of the step.
    step: AtomicU64,
    callbacks: Mutex<Vec<Arc<str>>>,
}

impl Place {
    /// Includes a place in reports for as long as it lives.
    pub(crate) fn publish(self: &Arc<Place>, callbacks: Vec<Arc<str>>) {
        *self.callbacks.lock().unwrap_or_else(PoisonError::into_inner) = callbacks;
        let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|place| place.strong_count() > 0);
        places.push(Arc::downgrade(self));
    }

    pub(crate) fn set_step(&self, step: u64) {
        self.step.store(step, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, doing: Doing) {
        self.doing.store(doing as u32, Ordering::Relaxed);
    }

    /// Sets the hook that runs, and the index of the callback. Begins its span in timelines.
    pub(super) fn hook(&self, hook: Doing, callback: usize, name: &Arc<str>) -> Span {
        self.callback.store(callback as u32, Ordering::Relaxed);
        self.set(hook);
        timeline::span(|| Label { category: "callback", name: Name::Part(name.clone(), hook.name()) })
    }

    fn text(&self) -> String {
        let step = self.step.load(Ordering::Relaxed);
        let doing = ALL[self.doing.load(Ordering::Relaxed) as usize].0;
        let callbacks = self.callbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let callback = callbacks.get(self.callback.load(Ordering::Relaxed) as usize);
        match callback.filter(|_| doing as u32 >= Doing::SetupGraph as u32) {
            Some(callback) => format!("training is at step {step}: in {} of {callback}", doing.name()),
            None => format!("training is at step {step}: {}", doing.name()),
        }
    }
}

/// Returns a line for each training loop that runs.
#[cfg_attr(not(unix), allow(dead_code))]
pub(crate) fn places() -> Vec<String> {
    let places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    places.iter().filter_map(Weak::upgrade).map(|place| place.text()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_each_activity_at_its_number() {
        for (i, (doing, _)) in ALL.iter().enumerate() {
            assert_eq!(*doing as usize, i);
        }
    }
}
