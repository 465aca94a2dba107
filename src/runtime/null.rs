//! The null engine computes nothing: every result is zeros of the right shape, and variables keep
//! their values. For testing trainers, callbacks and graphs without computation.

use super::engine::Engine;
use super::executor::{Executable, Executor, Feed, Fork, Outcome, RunInfo, check_value};
use super::lowering::Source;
use super::{Device, SessionOptions, Turns, memory_limit};
use crate::graph::{Frozen, VariableInfo};
use crate::kir::Program;
use tensorpack_tensor::{DType, Error, HostTensor, Result, element_count};

/// The null engine.
pub(super) struct NullEngine;

impl Engine for NullEngine {
    fn name(&self) -> &'static str {
        "null"
    }

    fn device_names(&self) -> String {
        "null".into()
    }

    fn description(&self) -> String {
        "computes nothing, for tests (device null)".into()
    }

    fn parse_device(&self, parts: &[&str]) -> Option<Device> {
        parts.is_empty().then_some(Device::Null)
    }

    fn supports_forks(&self) -> bool {
        true
    }

    fn create(&self, _: &Frozen, options: &SessionOptions, _: &Turns) -> Result<Box<dyn Executor>> {
        Ok(Box::new(NullExecutor { limit: options.memory_limit, variables: Vec::new() }))
    }
}

#[derive(Debug)]
struct NullExecutor {
    /// The memory limit in bytes; defaults to the available memory.
    limit: Option<usize>,
    variables: Vec<HostTensor>,
}

struct NullProgram {
    fetches: Vec<(DType, Vec<usize>)>,
    text: String,
}

impl Executor for NullExecutor {
    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()> {
        let bytes = total_bytes(variables.iter().map(|v| (v.dtype, v.sizes.as_slice())))?;
        memory_limit::check(bytes, "the variables", self.limit)?;
        let first = variables.iter().map(|v| v.init.value(seed, &v.name, v.dtype, &v.sizes));
        self.variables = first.collect::<Result<_>>()?;
        Ok(())
    }

    fn read(&self, index: usize) -> Result<HostTensor> {
        let value = self.variables.get(index);
        value.cloned().ok_or_else(|| Error::argument(format!("there is no variable with index {index}")))
    }

    fn write(&mut self, index: usize, value: &HostTensor) -> Result<()> {
        let variable = self.variables.get_mut(index);
        check_value(variable.as_deref().map(|v| (v.dtype(), v.sizes())), index, value)?;
        variable.into_iter().for_each(|variable| *variable = value.clone());
        Ok(())
    }

    fn compile(&mut self, source: &Source<'_>) -> Result<Box<dyn Executable>> {
        let lowered = source.lower()?;
        let spec = |&(tower, at): &(usize, usize)| {
            let v = &lowered.programs()[tower].fetches[at];
            (v.dtype, v.sizes.clone())
        };
        let fetches: Vec<(DType, Vec<usize>)> = lowered.fetches().iter().map(spec).collect();
        let bytes = total_bytes(fetches.iter().map(|(dtype, sizes)| (*dtype, sizes.as_slice())))?;
        memory_limit::check(bytes, "this program", self.limit)?;
        Ok(Box::new(NullProgram { fetches, text: lowered.programs().iter().map(Program::dump).collect() }))
    }

    fn find_non_finite(&mut self, _: &Source<'_>, _: &RunInfo, _: &[Feed<'_>]) -> Result<Option<Error>> {
        Ok(None)
    }

    fn fork(&self, _: Fork) -> Result<Box<dyn Executor>> {
        Ok(Box::new(NullExecutor { limit: self.limit, variables: self.variables.clone() }))
    }
}

/// Returns the total size in bytes, saturating.
fn total_bytes<'a>(specs: impl Iterator<Item = (DType, &'a [usize])>) -> Result<usize> {
    let mut total = 0usize;
    for (dtype, sizes) in specs {
        total = total.saturating_add(element_count(sizes)?.saturating_mul(dtype.size()));
    }
    Ok(total)
}

impl Executable for NullProgram {
    fn run(&mut self, _: &RunInfo, _: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        let matches = |(output, (dtype, sizes)): (&HostTensor, &(DType, Vec<usize>))| {
            (output.dtype(), output.sizes()) == (*dtype, sizes.as_slice())
        };
        // Outputs of the last run are zeros already.
        if outputs.len() != self.fetches.len() || !outputs.iter().zip(&self.fetches).all(matches) {
            let zeros = self.fetches.iter().map(|(dtype, sizes)| HostTensor::zeros(*dtype, sizes.as_slice()));
            *outputs = zeros.collect::<Result<_>>()?;
        }
        Ok(Outcome::Committed { staleness: 0 })
    }

    fn plan_text(&self) -> String {
        self.text.clone()
    }
}
