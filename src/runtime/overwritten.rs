//! Writes to variables while runs are in flight.
//!
//! A run that fails leaves every variable as it was. But it may be known only later, when a callback
//! has written a variable. So the value that a write replaces is kept until all runs that were launched
//! before are known to have succeeded.

use super::executor::{Executor, SavedValue};
use tensorpack_tensor::Result;

/// The values that writes have replaced, and the launches they wait for.
#[derive(Default)]
pub(super) struct OverwrittenValues {
    /// The number of launches so far.
    launched: u64,
    /// The last launch whose outcome is known.
    collected: u64,
    /// In the order of the writes.
    values: Vec<Overwritten>,
}

struct Overwritten {
    /// The last launch before the write.
    launch: u64,
    variable: usize,
    value: Box<dyn SavedValue>,
}

impl OverwrittenValues {
    /// Counts a launch. Returns its number.
    pub(super) fn launch(&mut self) -> u64 {
        self.launched += 1;
        self.launched
    }

    /// Keeps the value of a variable that is about to be written, if a launch is in flight.
    pub(super) fn keep(&mut self, variable: usize, executor: &dyn Executor) -> Result<()> {
        if self.collected < self.launched {
            let value = executor.save(variable)?;
            self.values.push(Overwritten { launch: self.launched, variable, value });
        }
        Ok(())
    }

    /// Forgets what only this launch and earlier ones needed: they succeeded.
    pub(super) fn succeeded(&mut self, launch: u64) {
        self.collected = self.collected.max(launch);
        self.values.retain(|value| value.launch > launch);
    }

    /// Writes the values back after a launch failed. Those launched after it have changed nothing.
    pub(super) fn restore(&mut self, executor: &mut dyn Executor) -> Result<()> {
        self.collected = self.launched;
        // The last one first, so that a variable gets the value that it had before the first write.
        while let Some(Overwritten { variable, value, .. }) = self.values.pop() {
            executor.write(variable, &value.read()?)?;
        }
        Ok(())
    }
}
