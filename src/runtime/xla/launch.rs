//! A compiled module with its arguments: one launch, on one or several devices.

use super::argument_cache::ArgumentCache;
use super::compile::compile;
use super::module::{Argument, Module, Purpose, module};
use super::spmd::{PerTower, SpmdProgram};
use super::staging::StagedFeeds;
use super::target::Target;
use super::variables::Variables;
use crate::kir::GatherKind;
use crate::runtime::executor::{Feed, RunInfo};
use crate::runtime::value_errors;
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{Error, HostTensor, Result};

/// A program that can be launched.
pub(super) struct Launch {
    pub(super) module: Module,
    executable: pjrt::Executable,
    /// The tower of the session that runs on the first of its devices.
    first: usize,
    towers: Vec<PerTower>,
    /// The constant arguments of each tower, in order.
    constants: Vec<Vec<pjrt::Buffer>>,
    cache: Mutex<ArgumentCache>,
}

impl Launch {
    /// Compiles a program for the devices of its towers, the first of which is `first`.
    pub(super) fn new(spmd: &SpmdProgram, purpose: Purpose, target: &Target, first: usize) -> Result<Launch> {
        let module = module(spmd, purpose, target.options.full_precision, target.keeps_barriers())?;
        let towers = first..first + spmd.towers.len();
        let options = target.compile_options(towers.clone())?;
        let executable = compile(target, &module.text, options, &target.name(first))?;
        if let Ok(planned) = executable.memory() {
            // Arguments are allocated already, or small.
            let more = planned.total().saturating_sub(planned.arguments) as usize;
            towers.clone().try_for_each(|tower| target.check_memory(more, "this program", tower))?;
        }
        let constants = |tower: usize| {
            let constants = module.arguments.iter().filter_map(|argument| match argument {
                Argument::Constant(value) => Some(target.upload(value, tower)),
                _ => None,
            });
            constants.collect::<Result<Vec<_>>>()
        };
        let constants = towers.map(constants).collect::<Result<_>>()?;
        Ok(Launch {
            executable,
            first,
            towers: spmd.towers.clone(),
            constants,
            module,
            cache: Mutex::default(),
        })
    }

    /// Launches the program and replaces the variables by their next values. Returns the other
    /// outputs of each tower, which may still be pending.
    pub(super) fn start(
        &self,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        variables: &mut Variables,
        staged: &StagedFeeds,
        target: &Target,
    ) -> Result<Vec<Vec<pjrt::Buffer>>> {
        let uploaded = (0..self.towers.len())
            .map(|t| self.upload_arguments(t, run, feeds, staged, target))
            .collect::<Result<Vec<Vec<Arc<pjrt::Buffer>>>>>()?;
        let arguments: Vec<Vec<&pjrt::Buffer>> = (0..self.towers.len())
            .map(|t| {
                let (mut uploaded, mut constants) = (uploaded[t].iter(), self.constants[t].iter());
                let exists = "there is one buffer for each such argument";
                let argument = |argument: &Argument| match argument {
                    Argument::Variable(v) => variables.buffer(self.first + t, *v),
                    Argument::PriorStepsOk => variables.prior_steps_ok(self.first + t),
                    Argument::Constant(_) => constants.next().expect(exists),
                    _ => &**uploaded.next().expect(exists),
                };
                self.module.arguments.iter().map(argument).collect()
            })
            .collect();
        // A buffer that is saved must not be donated to the variable's next value.
        let is_saved =
            |argument: &Argument| matches!(argument, Argument::Variable(v) if variables.is_saved(*v));
        let kept = self.module.arguments.iter().enumerate().filter(|(_, argument)| is_saved(argument));
        let kept: Vec<usize> = kept.map(|(index, _)| index).collect();
        let mut results = self.executable.execute_without_donating(&arguments, &kept)?.outputs;
        let updated = &self.module.updated;
        let mut rest: Vec<Vec<pjrt::Buffer>> =
            results.iter_mut().map(|outputs| outputs.split_off(updated.len())).collect();
        if !updated.is_empty() {
            let ok = rest.iter_mut().filter_map(Vec::pop).collect();
            variables.update(updated, results, ok, target)?;
        }
        Ok(rest)
    }

    /// Uploads the arguments of a tower that may differ from run to run.
    fn upload_arguments(
        &self,
        tower: usize,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        staged: &StagedFeeds,
        target: &Target,
    ) -> Result<Vec<Arc<pjrt::Buffer>>> {
        let inputs = &self.towers[tower];
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.first + tower;
        let mut upload =
            |at: usize, value: &HostTensor| Some(cache.upload(value, (at, device), staged, target));
        let buffer = |(at, argument): (usize, &Argument)| {
            let number = match argument {
                Argument::Feed(i) => return upload(at, feeds[inputs.feed(*i)]),
                Argument::Seed => run.seed,
                Argument::Draw => run.draw,
                Argument::Zero => 0,
                Argument::RandomOffset(stream) => {
                    inputs.random_offsets.get(stream).copied().unwrap_or(0) as u64
                }
                Argument::Variable(_) | Argument::PriorStepsOk | Argument::Constant(_) => return None,
            };
            upload(at, &HostTensor::scalar(number as i64))
        };
        self.module.arguments.iter().enumerate().filter_map(buffer).collect()
    }

    /// Checks the report of a tower. Returns an error if an index is out of range, and otherwise
    /// whether all checked values are finite.
    pub(super) fn check_report(&self, report: &HostTensor) -> Result<bool> {
        let report = report.as_slice::<i64>()?;
        for (gather, found) in self.module.gathers.iter().zip(report[1..].chunks(2)) {
            if found[0] != i64::MAX {
                let position = found[0] as usize;
                let e = match gather.kind {
                    GatherKind::NonZero => value_errors::division_by_zero(position),
                    _ => value_errors::index_out_of_range(found[1], position, gather.rows),
                };
                return Err(e.within(&gather.origin.name).at(gather.origin.site));
            }
        }
        Ok(report[0] == 1)
    }

    /// Adds the planned memory to an out-of-memory error.
    pub(super) fn explain(&self, error: Error) -> Error {
        self.executable.explain(error)
    }

    /// Returns the module as text, with its planned memory.
    pub(super) fn plan_text(&self) -> String {
        let planned = self.executable.memory().map_or(String::new(), |m| {
            let pjrt::PlannedMemory { arguments, outputs, aliased, temporary, .. } = m;
            format!(
                "// bytes: arguments {arguments}, outputs {outputs} ({aliased} aliased), temporary {temporary}\n"
            )
        });
        planned + &self.module.text
    }
}
