//! An engine that computes nothing: every result is zeros of the right shape, and variables keep their values. For
//! testing trainers, callbacks and graphs without waiting for arithmetic.

use super::executor::{Executable, Executor, Feed, Fork, Outcome, RunInfo};
use super::lowering::Source;
use super::memory_limit;
use crate::graph::VariableInfo;
use crate::kir::Program;
use tensorpack_tensor::{DType, Error, HostTensor, Result, element_count};

/// The null engine.
#[derive(Debug)]
pub(super) struct NullEngine {
    /// The most bytes to allocate; `None`: what the machine or its cgroup allows.
    limit: Option<usize>,
    variables: Vec<HostTensor>,
}

impl NullEngine {
    pub(super) fn new(limit: Option<usize>) -> NullEngine {
        NullEngine { limit, variables: Vec::new() }
    }
}

struct NullProgram {
    fetches: Vec<(DType, Vec<usize>)>,
    text: String,
}

impl Executor for NullEngine {
    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()> {
        let bytes = total_bytes(variables.iter().map(|v| (v.dtype, v.sizes.as_slice())))?;
        memory_limit::check(bytes, "the variables", self.limit)?;
        let first = variables.iter().map(|v| v.init.value(seed, &v.name, v.dtype, &v.sizes));
        self.variables = first.collect::<Result<_>>()?;
        Ok(())
    }

    fn read(&self, index: usize) -> Result<HostTensor> {
        Ok(self.variables[index].clone())
    }

    fn write(&mut self, index: usize, value: &HostTensor) -> Result<()> {
        self.variables[index] = value.clone();
        Ok(())
    }

    fn compile(&mut self, source: &Source<'_>) -> Result<Box<dyn Executable>> {
        let lowered = source.lower()?;
        let form = |&(tower, at): &(usize, usize)| {
            let v = &lowered.programs[tower].fetches[at];
            (v.dtype, v.sizes.clone())
        };
        let fetches: Vec<(DType, Vec<usize>)> = lowered.fetches.iter().map(form).collect();
        let bytes = total_bytes(fetches.iter().map(|(dtype, sizes)| (*dtype, sizes.as_slice())))?;
        memory_limit::check(bytes, "this program", self.limit)?;
        Ok(Box::new(NullProgram { fetches, text: lowered.programs.iter().map(Program::dump).collect() }))
    }

    fn find_bad(&mut self, _: &Source<'_>, _: &RunInfo, _: &[Feed<'_>]) -> Result<Option<Error>> {
        Ok(None)
    }

    fn fork(&self, _: Fork) -> Result<Box<dyn Executor>> {
        Ok(Box::new(NullEngine { limit: self.limit, variables: self.variables.clone() }))
    }
}

/// The bytes of all these together, or as many as can be counted.
fn total_bytes<'a>(forms: impl Iterator<Item = (DType, &'a [usize])>) -> Result<usize> {
    let mut total = 0usize;
    for (dtype, sizes) in forms {
        total = total.saturating_add(element_count(sizes)?.saturating_mul(dtype.size()));
    }
    Ok(total)
}

impl Executable for NullProgram {
    fn run(&mut self, _: &RunInfo, _: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        let fit = |(output, (dtype, sizes)): (&HostTensor, &(DType, Vec<usize>))| {
            (output.dtype(), output.sizes()) == (*dtype, sizes.as_slice())
        };
        // What is there from the last run is all zeros already.
        if outputs.len() != self.fetches.len() || !outputs.iter().zip(&self.fetches).all(fit) {
            let zeros = self.fetches.iter().map(|(dtype, sizes)| HostTensor::zeros(*dtype, sizes.as_slice()));
            *outputs = zeros.collect::<Result<_>>()?;
        }
        Ok(Outcome::Committed { behind: 0 })
    }

    fn plan_text(&self) -> String {
        self.text.clone()
    }
}
