//! Passes fetched tensors to a function.

use super::{Callback, FetchHandle, GraphCx, RunCx};
use crate::runtime::Cadence;
use std::fmt;
use tensorpack_tensor::{HostTensor, Result};

/// Fetches tensors with the first run of every step and passes their values to a function.
pub struct ProcessTensors {
    names: Vec<String>,
    fetched: Vec<FetchHandle>,
    function: Function,
}

/// The function. It receives the values in the order of the names.
type Function = Box<dyn FnMut(&mut RunCx<'_>, &[HostTensor]) -> Result<()>>;

impl ProcessTensors {
    /// Fetches the tensors with these names, in the graph or in the first training tower.
    pub fn new<S: Into<String>>(
        names: impl IntoIterator<Item = S>,
        function: impl FnMut(&mut RunCx<'_>, &[HostTensor]) -> Result<()> + 'static,
    ) -> ProcessTensors {
        let names = names.into_iter().map(Into::into).collect();
        ProcessTensors { names, fetched: Vec::new(), function: Box::new(function) }
    }
}

impl Callback for ProcessTensors {
    fn chief_only(&self) -> bool {
        true
    }

    fn setup_graph(&mut self, g: &mut GraphCx<'_>) -> Result<()> {
        for name in &self.names {
            let tensor = g.tensor(name)?;
            self.fetched.push(g.fetch(&tensor, Cadence::EveryRun));
        }
        Ok(())
    }

    fn after_run(&mut self, cx: &mut RunCx<'_>) -> Result<()> {
        // A clone shares the elements.
        let values: Option<Vec<HostTensor>> = self.fetched.iter().map(|f| cx.value(*f).cloned()).collect();
        // Only the first run of a step has values.
        values.map_or(Ok(()), |values| (self.function)(cx, &values))
    }
}

impl fmt::Debug for ProcessTensors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessTensors").field("names", &self.names).finish_non_exhaustive()
    }
}
