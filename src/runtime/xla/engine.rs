//! The engine: variables that stay on a device, and programs that run there in one launch each.

use super::clients;
use super::compile::compile;
use super::module::{Argument, Module, Purpose, module};
use crate::graph::VariableInfo;
use crate::kir::Program;
use crate::runtime::executor::{Executable, Executor, Feed, Outcome, RunInfo};
use crate::runtime::{Device, Lowered, Platform, faults, memory_limit};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result, element_count};

/// How far the engine may go.
#[derive(Clone, Copy, Debug)]
pub(in crate::runtime) struct Limits {
    /// The most bytes of the device to use; `None`: all it has.
    pub(in crate::runtime) memory: Option<usize>,
    /// The longest wait for a device.
    pub(in crate::runtime) wait: Duration,
}

/// An engine on one device.
pub(in crate::runtime) struct XlaEngine {
    target: Target,
    variables: Arc<Mutex<Vec<pjrt::Buffer>>>,
}

/// The device programs run on.
#[derive(Clone)]
struct Target {
    client: Arc<pjrt::Client>,
    device: pjrt::Device,
    name: String,
    limits: Limits,
}

impl XlaEngine {
    /// An engine on the platform's device `index`.
    pub(in crate::runtime) fn open(platform: Platform, index: usize, limits: Limits) -> Result<XlaEngine> {
        let client = clients::client(platform)?;
        let device = client.devices().get(index).cloned().ok_or_else(|| {
            let (name, n) = (platform.name(), client.devices().len());
            Error::new(
                ErrorKind::Unsupported,
                format!("xla:{name}:{index} is not there: xla:{name} has {n} devices"),
            )
        })?;
        let name = Device::Xla { platform, index }.to_string();
        let target = Target { client, device, name, limits };
        Ok(XlaEngine { target, variables: Arc::default() })
    }

    fn program(&self, lowered: Lowered, purpose: Purpose) -> Result<XlaProgram> {
        let [program] = &lowered.programs[..] else {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{} towers were asked for, but this engine runs one", lowered.programs.len()),
            ));
        };
        XlaProgram::new(program, &lowered.fetches, purpose, self)
    }
}

impl Target {
    fn upload(&self, value: &HostTensor) -> Result<pjrt::Buffer> {
        self.client.upload(value, &self.device)
    }

    /// That a program's memory can be had on the device, which the plugin planned but did not take yet.
    fn check_memory(&self, planned: &pjrt::PlannedMemory) -> Result<()> {
        // Arguments are there already, or are small beside the rest.
        let more = planned.total().saturating_sub(planned.arguments);
        let free = self.device.memory().ok().and_then(|m| Some(m.limit?.saturating_sub(m.in_use)));
        let limit = self.limits.memory.or(free.map(|bytes| bytes as usize));
        memory_limit::check(more as usize, &format!("this program on {}", self.name), limit)
    }
}

fn lock(variables: &Mutex<Vec<pjrt::Buffer>>) -> MutexGuard<'_, Vec<pjrt::Buffer>> {
    variables.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Executor for XlaEngine {
    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()> {
        let mut bytes = 0usize;
        for v in variables {
            bytes = bytes.saturating_add(element_count(&v.sizes)?.saturating_mul(v.dtype.size()));
        }
        let free =
            self.target.device.memory().ok().and_then(|m| Some(m.limit?.saturating_sub(m.in_use) as usize));
        memory_limit::check(bytes, "the variables", self.target.limits.memory.or(free))?;
        let first = variables.iter().map(|v| v.init.value(seed, &v.name, v.dtype, &v.sizes));
        let made: Result<Vec<pjrt::Buffer>> = first.map(|value| self.target.upload(&value?)).collect();
        *lock(&self.variables) = made?;
        Ok(())
    }

    fn read(&self, index: usize) -> Result<HostTensor> {
        lock(&self.variables)[index].download(self.target.limits.wait)
    }

    fn write(&mut self, index: usize, value: &HostTensor) -> Result<()> {
        let value = self.target.upload(value)?;
        lock(&self.variables)[index] = value;
        Ok(())
    }

    fn compile(&mut self, lowered: Lowered) -> Result<Box<dyn Executable>> {
        Ok(Box::new(self.program(lowered, Purpose::Run)?))
    }

    fn find_bad(&mut self, lowered: Lowered, run: &RunInfo, feeds: &[Feed<'_>]) -> Result<Option<Error>> {
        let hints = lowered.hints.clone();
        let program = self.program(lowered, Purpose::Search)?;
        let results = program.launch(run, feeds, &mut lock(&self.variables))?;
        let finite = results[0].download(self.target.limits.wait)?;
        let finite = finite.as_slice::<bool>()?;
        let bad = program.module.searched.iter().zip(finite).find(|(_, fine)| !**fine);
        Ok(bad.map(|(origin, _)| faults::not_finite(origin, &hints)))
    }
}

/// A compiled program with the constants it is called with.
struct XlaProgram {
    module: Module,
    executable: pjrt::Executable,
    /// Those of the arguments that never change, in order.
    constants: Vec<pjrt::Buffer>,
    /// For each value the caller gets, which of the module's fetches it is.
    fetches: Vec<usize>,
    target: Target,
    variables: Arc<Mutex<Vec<pjrt::Buffer>>>,
}

impl XlaProgram {
    fn new(
        program: &Program,
        fetches: &[(usize, usize)],
        purpose: Purpose,
        engine: &XlaEngine,
    ) -> Result<XlaProgram> {
        let module = module(program, purpose)?;
        let target = engine.target.clone();
        let options = pjrt::CompileOptions::new().devices([target.device.id()]);
        let executable = compile(&target.client, &module.text, &options, &target.name)?;
        if let Ok(planned) = executable.memory() {
            target.check_memory(&planned)?;
        }
        let constants = module.arguments.iter().filter_map(|a| match a {
            Argument::Constant(value) => Some(target.upload(value)),
            _ => None,
        });
        Ok(XlaProgram {
            constants: constants.collect::<Result<_>>()?,
            executable,
            fetches: fetches.iter().map(|&(_, at)| at).collect(),
            variables: engine.variables.clone(),
            module,
            target,
        })
    }

    /// Starts the program and hands over what it makes, which need not be there yet. Variables have their next values.
    fn launch(
        &self,
        run: &RunInfo,
        feeds: &[Feed<'_>],
        variables: &mut [pjrt::Buffer],
    ) -> Result<Vec<pjrt::Buffer>> {
        let number = |n: u64| self.target.upload(&HostTensor::scalar(n as i64));
        let mut fresh = Vec::new();
        for argument in &self.module.arguments {
            match argument {
                Argument::Feed(i) => fresh.push(self.target.upload(feeds[*i])?),
                Argument::Seed => fresh.push(number(run.seed)?),
                Argument::Draw => fresh.push(number(run.draw)?),
                Argument::Variable(_) | Argument::Constant(_) => {}
            }
        }
        let (mut fresh, mut constants) = (fresh.iter(), self.constants.iter());
        let next = "one buffer was made for each such argument";
        let arguments = self.module.arguments.iter().map(|argument| match argument {
            Argument::Variable(v) => &variables[*v],
            Argument::Constant(_) => constants.next().expect(next),
            Argument::Feed(_) | Argument::Seed | Argument::Draw => fresh.next().expect(next),
        });
        let mut execution = self.executable.execute(&[arguments.collect()])?;
        let mut results = execution.outputs.swap_remove(0);
        let rest = results.split_off(self.module.updated.len());
        for (&v, value) in self.module.updated.iter().zip(results) {
            variables[v] = value;
        }
        Ok(rest)
    }

    /// What the report says: an error if a lookup's number names no row, else whether all that was checked is finite.
    fn judge(&self, report: &HostTensor) -> Result<Outcome> {
        let numbers = report.as_slice::<i64>()?;
        for (lookup, found) in self.module.lookups.iter().zip(numbers[1..].chunks(2)) {
            if found[0] != i64::MAX {
                let e = faults::no_such_row(found[1], found[0] as usize, lookup.rows);
                return Err(e.within(&lookup.origin.name).at(lookup.origin.site));
            }
        }
        Ok(if numbers[0] == 1 { Outcome::Committed } else { Outcome::NotFinite })
    }
}

impl Executable for XlaProgram {
    fn run(&mut self, run: &RunInfo, feeds: &[Feed<'_>], outputs: &mut Vec<HostTensor>) -> Result<Outcome> {
        let results = self.launch(run, feeds, &mut lock(&self.variables))?;
        // All copies start before the first is waited for.
        let downloads = results.iter().map(pjrt::Buffer::start_download).collect::<Result<Vec<_>>>()?;
        let mut values = Vec::with_capacity(downloads.len());
        for download in downloads {
            values.push(download.wait(self.target.limits.wait)?);
        }
        let report = values.split_off(self.module.fetches);
        let outcome = self.judge(&report[0])?;
        if outcome == Outcome::Committed {
            outputs.clear();
            outputs.extend(self.fetches.iter().map(|&at| values[at].clone()));
        }
        Ok(outcome)
    }

    fn plan_text(&self) -> String {
        let planned = match self.executable.memory() {
            Ok(m) => format!(
                "// {} bytes of arguments, {} of results ({} in place), {} in between\n",
                m.arguments, m.outputs, m.aliased, m.temporary
            ),
            Err(_) => String::new(),
        };
        planned + &self.module.text
    }
}
