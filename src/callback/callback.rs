//! The callback trait.

use super::{CollectCx, GraphCx, RunCx, TrainCx};
use serde_json::Value;
use tensorpack_tensor::Result;

/// Work outside the training step: before training, around each run, after each step or epoch, at
/// the end. Each hook is called on all callbacks in list order.
///
/// An `Err` from any hook ends training. Every `after_train` still runs, and the first error is
/// returned.
pub trait Callback {
    /// Returns the name used in messages and checkpoints. Defaults to the type name.
    fn name(&self) -> String {
        short_type_name(std::any::type_name_of_val(self))
    }

    /// Returns whether only rank 0 runs this callback when several processes train together, because
    /// it prints, writes files or talks to other programs. Its `setup_graph` is called in all of
    /// them, so that they have the same graph. If it asks for a checkpoint or stops training, all
    /// ranks do so, at the end of the epoch. Defaults to `false`: the callback runs everywhere, and
    /// must do the same everywhere.
    fn chief_only(&self) -> bool {
        false
    }

    /// Called while the graph can still change: creates tensors, declares fetches, builds inference
    /// towers.
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let _ = g;
        Ok(())
    }

    /// Called once, after variables are initialized or restored. See [`TrainCx::resumed`].
    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Called before the first step of an epoch.
    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Called before every step run (`StepCx::run`). Must be fast.
    fn before_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Called after every step run, with the fetched values. Must be fast.
    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Called after every successful step run, in run order, with the
    /// [`Cadence::Deferred`](crate::runtime::Cadence::Deferred) fetches. On an accelerator it is
    /// called after the next two runs have been launched, or those of the next launch if a launch runs
    /// several steps (`TrainConfig::steps_per_launch`). All steps have been collected at the end of an
    /// epoch and before a checkpoint is written. Must be fast.
    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        let _ = values;
        Ok(())
    }

    /// Called after every step.
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Called after the last step of an epoch. Must be fast: it counts towards the epoch's time.
    fn after_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Called after every epoch. Calls [`Callback::trigger`] by default.
    fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.trigger(cx)
    }

    /// Does the callback's work once: after every epoch, or as often as a
    /// [`PeriodicTrigger`](super::PeriodicTrigger) specifies.
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Called at the end, whether training succeeded or failed.
    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Returns the statistics this callback reads, and when. Before training, the trainer checks
    /// that each is produced by then.
    fn reads(&self) -> Vec<Statistic> {
        Vec::new()
    }

    /// Returns the statistics this callback produces, and when. Called after `setup_graph`.
    #[doc(alias = "makes")]
    fn produces(&self) -> Vec<Statistic> {
        Vec::new()
    }

    /// Returns a description of the settings that decide when this callback stops training, if it
    /// does so. A run that was stopped stays stopped when its program is started again, unless one
    /// of these descriptions or `max_epoch` has changed.
    fn stop_criterion(&self) -> Option<String> {
        None
    }

    /// Returns the state to store in a checkpoint, as JSON: `tensorpack::serde_json` has the macro
    /// `json!`.
    fn state(&self) -> Value {
        Value::Null
    }

    /// Restores a state that [`Callback::state`] returned. Called before `before_train`.
    fn load_state(&mut self, state: &Value) -> Result<()> {
        let _ = state;
        Ok(())
    }
}

/// A statistic, and when it is produced or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// Its name.
    pub name: String,
    /// When it is produced or read.
    pub when: When,
}

impl Statistic {
    /// Creates the statistic `name`, produced or read at `when`.
    pub fn new(name: impl Into<String>, when: When) -> Statistic {
        Statistic { name: name.into(), when }
    }
}

/// When a statistic is produced or read, earliest first. A statistic of a run is available to every
/// trigger of its step; a statistic of a step is available at the end of the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum When {
    /// With a run.
    Run,
    /// After a step.
    Step,
    /// After an epoch.
    Epoch,
}

impl When {
    /// Returns the phrase used in messages.
    pub(super) fn phrase(self) -> &'static str {
        match self {
            When::Run => "with runs",
            When::Step => "after steps",
            When::Epoch => "after epochs",
        }
    }
}

/// Strips module paths from a type name: `a::PeriodicTrigger<b::MaxSaver>` becomes
/// `PeriodicTrigger<MaxSaver>`.
fn short_type_name(full: &str) -> String {
    let word = |w: &str| w.rsplit("::").next().unwrap_or(w).to_string();
    full.split('<').map(word).collect::<Vec<_>>().join("<")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn type_names_lose_their_paths() {
        assert_eq!(short_type_name("a::b::Saver"), "Saver");
        assert_eq!(short_type_name("a::Periodic<b::c::Saver>"), "Periodic<Saver>");
    }
}
