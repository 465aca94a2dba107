//! A compiled module with all it is called with: one launch, on one device or on several at once.

use super::compile::compile;
use super::module::{Argument, Module, Purpose, module};
use super::sent::Sent;
use super::spmd::{Own, SpmdProgram};
use super::staged::Staged;
use super::target::Target;
use super::variables::Variables;
use crate::kir::GatherKind;
use crate::runtime::executor::{Feed, RunInfo};
use crate::runtime::faults;
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{Error, HostTensor, Result};

/// A program that can be launched.
pub(super) struct Launch {
    pub(super) module: Module,
    executable: pjrt::Executable,
    /// Which device the first of its towers runs on, counted in towers.
    first: usize,
    towers: Vec<Own>,
    /// By tower, those of the arguments that never change, in order.
    constants: Vec<Vec<pjrt::Buffer>>,
    sent: Mutex<Sent>,
}

impl Launch {
    /// Compiles for the devices of the towers from `first` on.
    pub(super) fn new(spmd: &SpmdProgram, purpose: Purpose, target: &Target, first: usize) -> Result<Launch> {
        let module = module(spmd, purpose, target.options.full_precision, target.keeps_barriers())?;
        let towers = first..first + spmd.towers.len();
        let options = target.compile_options(towers.clone())?;
        let executable = compile(target, &module.text, options, &target.name(first))?;
        if let Ok(planned) = executable.memory() {
            // Arguments are there already, or are small beside the rest.
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
            sent: Mutex::default(),
        })
    }

    /// Starts it. What comes back, by tower, need not be there yet; variables have their next values.
    pub(super) fn start(
        &self,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        variables: &mut Variables,
        staged: &Staged,
        target: &Target,
    ) -> Result<Vec<Vec<pjrt::Buffer>>> {
        let fresh = (0..self.towers.len())
            .map(|t| self.fresh(t, run, feeds, staged, target))
            .collect::<Result<Vec<Vec<Arc<pjrt::Buffer>>>>>()?;
        let arguments: Vec<Vec<&pjrt::Buffer>> = (0..self.towers.len())
            .map(|t| {
                let (mut fresh, mut constants) = (fresh[t].iter(), self.constants[t].iter());
                let next = "one buffer was made for each such argument";
                let argument = |argument: &Argument| match argument {
                    Argument::Variable(v) => variables.of(self.first + t, *v),
                    Argument::PriorStepsOk => variables.prior_steps_ok(self.first + t),
                    Argument::Constant(_) => constants.next().expect(next),
                    _ => &**fresh.next().expect(next),
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
            results.iter_mut().map(|made| made.split_off(updated.len())).collect();
        if !updated.is_empty() {
            let well = rest.iter_mut().filter_map(Vec::pop).collect();
            variables.update(updated, results, well, target)?;
        }
        Ok(rest)
    }

    /// The arguments that may differ from run to run.
    fn fresh(
        &self,
        tower: usize,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        staged: &Staged,
        target: &Target,
    ) -> Result<Vec<Arc<pjrt::Buffer>>> {
        let own = &self.towers[tower];
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.first + tower;
        let mut send = |at: usize, value: &HostTensor| Some(sent.send(value, (at, device), staged, target));
        let buffer = |(at, argument): (usize, &Argument)| {
            let number = match argument {
                Argument::Feed(i) => return send(at, feeds[own.feed(*i)]),
                Argument::Seed => run.seed,
                Argument::Draw => run.draw,
                Argument::Zero => 0,
                Argument::First(stream) => own.firsts.get(stream).copied().unwrap_or(0) as u64,
                Argument::Variable(_) | Argument::PriorStepsOk | Argument::Constant(_) => return None,
            };
            send(at, &HostTensor::scalar(number as i64))
        };
        self.module.arguments.iter().enumerate().filter_map(buffer).collect()
    }

    /// What a tower's report says: an error if a lookup's number names no row, else whether all that was checked is
    /// finite.
    pub(super) fn judge(&self, report: &HostTensor) -> Result<bool> {
        let numbers = report.as_slice::<i64>()?;
        for (lookup, found) in self.module.lookups.iter().zip(numbers[1..].chunks(2)) {
            if found[0] != i64::MAX {
                let place = found[0] as usize;
                let e = match lookup.kind {
                    GatherKind::NonZero => faults::division_by_zero(place),
                    _ => faults::no_such_row(found[1], place, lookup.rows),
                };
                return Err(e.within(&lookup.origin.name).at(lookup.origin.site));
            }
        }
        Ok(numbers[0] == 1)
    }

    /// Adds to a run's error what was planned, if memory ran out.
    pub(super) fn explain(&self, error: Error) -> Error {
        self.executable.explain(error)
    }

    /// The text, with the memory that was planned for it.
    pub(super) fn text(&self) -> String {
        let planned = self.executable.memory().map_or(String::new(), |m| {
            let pjrt::PlannedMemory { arguments, outputs, aliased, temporary, .. } = m;
            format!("// bytes: arguments {arguments}, results {outputs} ({aliased} in place), between {temporary}\n")
        });
        planned + &self.module.text
    }
}
