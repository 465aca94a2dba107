//! What a callback is.

use super::{CollectCx, GraphCx, RunCx, TrainCx};
use serde_json::Value;
use tensorpack_tensor::Result;

/// Something done beside the iterations: at the beginning, around each run, after each step or epoch, at the end. At
/// every moment, callbacks are called in the order of their list.
///
/// An `Err` from any of these ends training; every `after_train` still runs, and the first error is the one reported.
pub trait Callback {
    /// What it is called in messages and checkpoints; the name of its type unless said otherwise.
    fn name(&self) -> String {
        short_type_name(std::any::type_name_of_val(self))
    }

    /// While the graph can still be added to: makes tensors, declares what is to be fetched, builds inference towers.
    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        let _ = g;
        Ok(())
    }

    /// Once, when variables have their first (or restored) values. See [`TrainCx::resumed`].
    fn before_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Before the first step of an epoch.
    fn before_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Before every hooked run. Must be quick.
    fn before_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// After every hooked run, with the values it fetched. Must be quick.
    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// After every hooked run that went well, in their order, with what it fetched as
    /// [`Cadence::Deferred`](crate::runtime::Cadence::Deferred): on an accelerator, when the next run has begun. The values
    /// of all steps are there by the end of an epoch, and before a checkpoint is made. Must be quick.
    fn collect(&mut self, values: &CollectCx<'_>) -> Result<()> {
        let _ = values;
        Ok(())
    }

    /// After every step.
    fn trigger_step(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// After the last step of an epoch. Must be quick: it is within the time of the epoch.
    fn after_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// After every epoch. Does what [`Callback::trigger`] does, unless said otherwise.
    fn trigger_epoch(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        self.trigger(cx)
    }

    /// What it is there for, once; after every epoch, or as a [`PeriodicTrigger`](super::PeriodicTrigger) says.
    fn trigger(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// At the end, however training ended.
    fn after_train(&mut self, cx: &mut TrainCx<'_>) -> Result<()> {
        let _ = cx;
        Ok(())
    }

    /// Statistics it reads, and when. They must be there by then: checked before training begins.
    fn reads(&self) -> Vec<Statistic> {
        Vec::new()
    }

    /// Statistics it makes, and when. Asked after `setup_graph`.
    fn makes(&self) -> Vec<Statistic> {
        Vec::new()
    }

    /// What a checkpoint keeps of it.
    fn state(&self) -> Value {
        Value::Null
    }

    /// Takes back what [`Callback::state`] gave, before `before_train`.
    fn load_state(&mut self, state: &Value) -> Result<()> {
        let _ = state;
        Ok(())
    }
}

/// A statistic, and when it is made or read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistic {
    /// Its name.
    pub name: String,
    /// When.
    pub when: When,
}

impl Statistic {
    /// The statistic `name`, made or read at that moment.
    pub fn new(name: impl Into<String>, when: When) -> Statistic {
        Statistic { name: name.into(), when }
    }
}

/// Moments at which statistics are made and read, earliest first: what is made in a run is there for every trigger of
/// its step, what is made after a step is there when an epoch ends.
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
    /// For messages.
    pub(super) fn in_words(self) -> &'static str {
        match self {
            When::Run => "with runs",
            When::Step => "after steps",
            When::Epoch => "after epochs",
        }
    }
}

/// `MaxSaver` of `tensorpack::callback::max_saver::MaxSaver`, `PeriodicTrigger<MaxSaver>` of what is longer.
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
