//! An engine that computes nothing: every result is zeros of the right shape, and variables keep their values. For
//! testing trainers, callbacks and graphs without waiting for arithmetic.

use super::executor::{Executable, Executor, Feed, Outcome, RunInfo};
use super::lowering::Lowered;
use crate::graph::VariableInfo;
use crate::kir::Program;
use tensorpack_tensor::{DType, Error, HostTensor, Result};

/// The null engine.
#[derive(Debug, Default)]
pub(super) struct NullEngine {
    variables: Vec<HostTensor>,
}

struct NullProgram {
    fetches: Vec<(DType, Vec<usize>)>,
    text: String,
}

impl Executor for NullEngine {
    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()> {
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

    fn compile(&mut self, lowered: Lowered) -> Result<Box<dyn Executable>> {
        let form = |&(tower, at): &(usize, usize)| {
            let v = &lowered.programs[tower].fetches[at];
            (v.dtype, v.sizes.clone())
        };
        let fetches = lowered.fetches.iter().map(form).collect();
        Ok(Box::new(NullProgram { fetches, text: lowered.programs.iter().map(Program::dump).collect() }))
    }

    fn find_bad(&mut self, _: Lowered, _: &RunInfo, _: &[Feed<'_>]) -> Result<Option<Error>> {
        Ok(None)
    }
}

impl Executable for NullProgram {
    fn run(&mut self, _: &RunInfo, _: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        outputs.clear();
        for (dtype, sizes) in &self.fetches {
            outputs.push(HostTensor::zeros(*dtype, sizes.as_slice())?);
        }
        Ok(Outcome::Committed)
    }

    fn plan_text(&self) -> String {
        self.text.clone()
    }
}
