//! A compiled module with its arguments: one launch, on one or several devices.

use super::argument_cache::ArgumentCache;
use super::compile::compile;
use super::fork::Snapshot;
use super::host_times::{HostPart, HostTimes};
use super::module::{Argument, Module, ModuleOptions, Purpose, module};
use super::spmd::{PerTower, SpmdProgram};
use super::staging::StagedFeeds;
use super::target::Target;
use super::variables::Variables;
use crate::kir::{GatherKind, Origin};
use crate::runtime::executor::{Feed, RunInfo};
use crate::runtime::value_errors;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{Error, ErrorKind, Result};

/// What a launch is given.
pub(super) struct LaunchInputs<'a> {
    /// The key of the random numbers of its first step.
    pub(super) run: RunInfo,
    /// The feeds of each step.
    pub(super) feeds: &'a [&'a [Feed<'a>]],
    /// The number of steps in a row that may be skipped.
    pub(super) skip_limit: u32,
    /// The number of steps in a row that were skipped before.
    pub(super) skipped_before: u32,
}

impl<'a> LaunchInputs<'a> {
    /// Returns the inputs of a launch of one step.
    pub(super) fn one_step(run: &RunInfo, feeds: &'a [&'a [Feed<'a>]]) -> LaunchInputs<'a> {
        LaunchInputs { run: *run, feeds, skip_limit: 0, skipped_before: 0 }
    }
}

/// The arguments of a program in a run that is split, on each of its devices.
#[derive(Default)]
pub(super) struct PartArguments {
    /// The values that the towers pass on to the joint program.
    pub(super) passed: Vec<Vec<Arc<pjrt::Buffer>>>,
    /// Whether each tower's part succeeded.
    pub(super) towers_ok: Vec<Vec<Arc<pjrt::Buffer>>>,
    /// The variables that the part of a fork reads.
    pub(super) snapshot: Option<Arc<Snapshot>>,
}

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
    /// Whether some of its replicas are on devices of other processes.
    spans_processes: bool,
    was_started: AtomicBool,
    /// What the host spends on launches, if it is measured.
    pub(super) times: Option<Arc<HostTimes>>,
}

impl Launch {
    /// Compiles a program for the devices of its towers, the first of which is `first`.
    pub(super) fn new(spmd: &SpmdProgram, purpose: Purpose, target: &Target, first: usize) -> Result<Launch> {
        let towers = first..first + spmd.towers.len();
        let local = target.device_ids(towers.clone())?;
        let replicas = spmd.replicas.as_ref().map_or(&local, |replicas| &replicas.devices);
        let compile = |options: ModuleOptions| -> Result<(Module, Result<pjrt::Executable>)> {
            let module = module(spmd, purpose, options)?;
            let spans_processes = spmd.replicas.is_some();
            let options = target.compile_options(replicas.clone());
            let executable = compile(target, &module.text, options, &target.name(first), spans_processes);
            Ok((module, executable))
        };
        let options = target.module_options();
        let (module, executable) = match compile(options)? {
            (module, Err(e)) if module.fused_attention && e.kind() == ErrorKind::Engine => {
                // GPUs before Ampere lack these kernels.
                log::info!("compiling again without cuDNN's attention: {e}");
                let (module, executable) = compile(ModuleOptions { fused_attention: false, ..options })?;
                (module, executable?)
            }
            (module, executable) => (module, executable?),
        };
        if executable.device_ids() != local {
            let (found, name) = (executable.device_ids(), target.name(first));
            let why = format!("XLA compiled a program for devices {found:?} of this process, not {local:?}");
            return Err(Error::new(ErrorKind::Engine, why).within(name));
        }
        // A search for a bad value returns more results, and a limit must not end it.
        let limited = target.options.memory_limit.is_some();
        if let Ok(planned) = executable.memory()
            && !(limited && purpose == Purpose::FindNonFinite)
        {
            // Arguments are allocated already, or small. A limit holds for them, too.
            let there = if limited { 0 } else { planned.arguments };
            let more = planned.total().saturating_sub(there) as usize;
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
            spans_processes: spmd.replicas.is_some(),
            was_started: AtomicBool::new(false),
            times: HostTimes::new(target.options.profile),
        })
    }

    /// Returns the bytes that the program takes on each of its devices, arguments included.
    pub(super) fn planned_bytes(&self) -> Result<usize> {
        self.planned_memory().map(|planned| planned.total() as usize)
    }

    /// Returns the plan of the program's memory on each of its devices.
    pub(super) fn planned_memory(&self) -> Result<pjrt::PlannedMemory> {
        self.executable.memory()
    }

    /// Launches the program and replaces the variables by their next values. Returns the other
    /// outputs of each tower, which may still be pending.
    pub(super) fn start(
        &self,
        inputs: &LaunchInputs<'_>,
        part: &PartArguments,
        variables: &mut Variables,
        staged: &StagedFeeds,
        target: &Target,
    ) -> Result<Vec<Vec<pjrt::Buffer>>> {
        let mut timer = HostTimes::timer(&self.times);
        let uploaded = (0..self.towers.len())
            .map(|t| self.upload_arguments(t, inputs, staged, target))
            .collect::<Result<Vec<Vec<Arc<pjrt::Buffer>>>>>()?;
        let arguments: Vec<Vec<&pjrt::Buffer>> = (0..self.towers.len())
            .map(|t| {
                let (mut uploaded, mut constants) = (uploaded[t].iter(), self.constants[t].iter());
                let exists = "there is one buffer for each such argument";
                let argument = |argument: &Argument| match argument {
                    Argument::Variable(v) => variables.buffer(self.first + t, *v),
                    Argument::PriorStepsOk => variables.prior_steps_ok(self.first + t),
                    Argument::Constant(_) => constants.next().expect(exists),
                    Argument::Passed(i) => &part.passed[t][*i],
                    Argument::TowerOk(tower) => &part.towers_ok[t][*tower],
                    Argument::Snapshot(v) => &part.snapshot.as_ref().expect(exists)[v],
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
        timer.end(HostPart::Arguments);
        let mut results = self.execute(&arguments, &kept, target)?;
        timer.end(HostPart::Execute);
        let updated = &self.module.updated;
        let mut rest: Vec<Vec<pjrt::Buffer>> =
            results.iter_mut().map(|outputs| outputs.split_off(updated.len())).collect();
        if self.module.draws {
            self.keep_next_draw(inputs.run.draw.wrapping_add(inputs.feeds.len() as u64), &mut rest);
        }
        if !updated.is_empty() {
            let ok = rest.iter_mut().filter_map(Vec::pop).collect();
            variables.update(updated, results, ok, target)?;
        }
        timer.end(HostPart::Variables);
        Ok(rest)
    }

    /// Starts the program. The first start on devices of several processes waits for all of them, so it
    /// is watched.
    fn execute(
        &self,
        arguments: &[Vec<&pjrt::Buffer>],
        kept: &[usize],
        target: &Target,
    ) -> Result<Vec<Vec<pjrt::Buffer>>> {
        let executed = match self.spans_processes && !self.was_started.load(Ordering::Relaxed) {
            false => self.executable.launch(arguments, kept),
            true => {
                let (deadline, check) = (target.options.deadline, || target.check_aborted());
                let execution = self.executable.execute_checking(arguments, kept, deadline, check);
                execution.map(|execution| execution.outputs)
            }
        };
        let executed = executed.map_err(|e| target.explain(e))?;
        self.was_started.store(true, Ordering::Relaxed);
        Ok(executed)
    }

    /// Uploads the arguments of a tower that may differ from run to run.
    fn upload_arguments(
        &self,
        tower: usize,
        inputs: &LaunchInputs<'_>,
        staged: &StagedFeeds,
        target: &Target,
    ) -> Result<Vec<Arc<pjrt::Buffer>>> {
        let LaunchInputs { run, feeds, skip_limit, skipped_before } = inputs;
        let own = &self.towers[tower];
        let last = feeds.len().saturating_sub(1);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.first + tower;
        let buffer = |(at, argument): (usize, &Argument)| {
            let number = match argument {
                Argument::Feed(i) => {
                    return Some(cache.upload(feeds[0][own.feed(*i)], (at, device), staged, target));
                }
                Argument::StepFeed(step, i) => {
                    let value = feeds[last.min(*step)][own.feed(*i)];
                    return Some(cache.upload(value, (at, device), staged, target));
                }
                Argument::Steps => feeds.len() as u64,
                Argument::SkipLimit => u64::from(*skip_limit),
                Argument::SkippedBefore => u64::from(*skipped_before),
                Argument::Seed => run.seed,
                Argument::Draw => run.draw,
                Argument::Zero => 0,
                Argument::RandomOffset(stream) => own.random_offsets.get(stream).copied().unwrap_or(0) as u64,
                Argument::Variable(_)
                | Argument::PriorStepsOk
                | Argument::Constant(_)
                | Argument::Snapshot(_)
                | Argument::Passed(_)
                | Argument::TowerOk(_) => return None,
            };
            Some(cache.upload_number(number, (at, device), target))
        };
        self.module.arguments.iter().enumerate().filter_map(buffer).collect()
    }

    /// Returns the operation of a tower that computes the tested result with this index.
    pub(super) fn tested_origin(&self, tower: usize, index: usize) -> &Origin {
        let (buffer, of_first) = &self.module.tested[index];
        self.towers[tower].origins.get(buffer).unwrap_or(of_first)
    }

    /// Returns the number of its devices in this process.
    pub(super) fn device_count(&self) -> usize {
        self.towers.len()
    }

    /// Takes the draw number of the next run from the results of each tower, so that the next run
    /// need not upload it.
    fn keep_next_draw(&self, next_draw: u64, results: &mut [Vec<pjrt::Buffer>]) {
        let is_draw = |argument: &Argument| matches!(argument, Argument::Draw);
        let Some(at) = self.module.arguments.iter().position(is_draw) else { return };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        for (tower, results) in results.iter_mut().enumerate() {
            if let Some(next) = results.pop() {
                cache.computed(next_draw, (at, self.first + tower), next);
            }
        }
    }

    /// Checks the report of a tower. Returns an error if an index is out of range.
    pub(super) fn check_report(&self, report: &[i64]) -> Result<ReportedCheck> {
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
        Ok(match report[0] {
            0 => ReportedCheck::NotFinite,
            1 => ReportedCheck::Finite,
            _ => ReportedCheck::Skipped,
        })
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

/// The outcome of a check, as one tower of one launch reports it. The outcome of the run is the
/// greatest of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ReportedCheck {
    /// All checked values of this tower are finite.
    Finite,
    /// A checked value is not finite.
    NotFinite,
    /// A value was not finite in some tower, and the step was skipped.
    Skipped,
}

#[cfg(test)]
mod tests {
    use super::super::module::{Purpose, module};
    use super::super::replicas::Replicas;
    use super::super::spmd::merge_towers;
    use super::*;
    use crate::autodiff::gradients;
    use crate::graph::{Fetch, Frozen, Graph, Init, Op, TensorSpec, VariableSpec};
    use crate::runtime::session::request;
    use crate::runtime::snapshot::Reading;
    use crate::runtime::{Device, Platform, Session, SessionOptions, Source};
    use crate::tower::TowerContext;
    use std::ops::Range;
    use std::time::Duration;
    use tensorpack_pjrt::{Client, CompileOptions, OptionValue};
    use tensorpack_tensor::{CounterRng, DType, HostTensor};

    const ROWS: usize = 6;

    /// A step of the towers `here` of `total`: dropout, averaged gradients, variables that the first
    /// tower updates from its cost and from its feed, and one that is random but the same everywhere.
    fn graph(here: Range<usize>, total: usize) -> (Frozen, Vec<Op>) {
        let graph = Graph::new();
        let mut step = Vec::new();
        let noise = graph.constant(HostTensor::new([4], vec![0.0f64; 4]).unwrap());
        let noise = noise.random_uniform_like(DType::F64).mean();
        for (i, index) in here.clone().enumerate() {
            let t = TowerContext::in_process(&graph, index, total, here.clone());
            let x = graph.placeholder(&TensorSpec::new(format!("x{i}"), DType::F64, [None, Some(3)]));
            t.build(|t| {
                let init =
                    Init::Value(HostTensor::new([3, 2], vec![0.5f64, -1.0, 2.0, 0.25, 1.5, -0.75]).unwrap());
                let w = t.variable(VariableSpec::new("w", [3, 2]).dtype(DType::F64).init(init));
                let scalar = |name| t.variable(VariableSpec::new(name, []).dtype(DType::F64).non_trainable());
                let (costs, means, walk) = (scalar("costs"), scalar("means"), scalar("walk"));
                let cost = x.dropout(0.5).matmul(w.value()).square().mean();
                let gradient = gradients(&cost, &[w.value()]).unwrap().remove(0).unwrap();
                let mean = t.all_reduce_mean("mean", &gradient);
                if t.is_main_training_tower() {
                    step.push(w.update(|w| w - &mean * 0.125));
                    step.push(costs.update(|before| before * 0.5 + &cost));
                    step.push(means.update(|before| before * 0.5 + x.mean()));
                    step.push(walk.update(|before| before + &noise));
                }
            });
        }
        (graph.freeze().unwrap(), step)
    }

    fn batch(tower: usize) -> HostTensor {
        let rng = CounterRng::new(3, "rows");
        let first = (tower * ROWS * 3) as u64;
        HostTensor::new([ROWS, 3], (0..ROWS as u64 * 3).map(|i| rng.normal(0, first + i)).collect()).unwrap()
    }

    const RUN: RunInfo = RunInfo { seed: 7, draw: 0 };

    /// The variables after a step of `total` towers of one process.
    fn one_process(total: usize) -> Vec<HostTensor> {
        let (graph, step) = graph(0..total, total);
        let device = Device::Xla { platform: Platform::Cpu, index: 0 };
        let options = SessionOptions { device, seed: RUN.seed, ..SessionOptions::default() };
        let session = Session::with(graph, options).unwrap();
        let fed: Vec<(String, HostTensor)> = (0..total).map(|t| (format!("x{t}"), batch(t))).collect();
        let feeds: Vec<(&str, &HostTensor)> = fed.iter().map(|(name, value)| (&name[..], value)).collect();
        let mut program = crate::runtime::StepProgram::new(&[&step[0], &step[1], &step[2], &step[3]]);
        let clock = crate::runtime::Clock { global_step: 1, last_of_epoch: true };
        program.run(&session, clock, &feeds).unwrap();
        ["w", "costs", "means", "walk"].map(|name| session.read(name).unwrap()).into()
    }

    /// The module of all ranks and the towers of each.
    fn ranks(local: usize, replicas: &Replicas, size: usize) -> (Module, Vec<SpmdProgram>) {
        let spmd = |rank: usize| {
            let (graph, step) = graph(rank * local..(rank + 1) * local, local * size);
            let graph = Arc::new(graph);
            let fetches: Vec<Fetch> = step.iter().map(Fetch::from).collect();
            let fed: Vec<(String, HostTensor)> = (0..local).map(|t| (format!("x{t}"), batch(t))).collect();
            let feeds: Vec<(&str, &HostTensor)> =
                fed.iter().map(|(name, value)| (&name[..], value)).collect();
            let request = request(&fetches, &feeds);
            let lowered = Source::new(&graph, &request, Reading::InPlace).lower().unwrap();
            merge_towers(&lowered).unwrap().on_all_processes(replicas.clone())
        };
        let ranks: Vec<SpmdProgram> = (0..size).map(spmd).collect();
        let options = ModuleOptions { full_precision: true, barriers: false, fused_attention: false };
        let modules: Vec<Module> =
            ranks.iter().map(|spmd| module(spmd, Purpose::Run, options).unwrap()).collect();
        for (rank, module) in modules.iter().enumerate() {
            let lines = module.text.lines().zip(modules[0].text.lines());
            let different: Vec<(&str, &str)> = lines.filter(|(own, first)| own != first).collect();
            assert_eq!(different, [], "rank {rank} compiles another program than rank 0");
            assert_eq!(module.text.len(), modules[0].text.len());
        }
        (modules.into_iter().next().unwrap(), ranks)
    }

    /// Runs the replicas of several ranks on the devices of one process, with the arguments that each
    /// rank would pass, and compares the variables with those of one process with as many towers.
    #[test]
    fn ranks_compute_what_one_process_computes() {
        let Some(plugin) = tensorpack_testing::plugin_for_tests("cpu") else { return };
        let client = Client::new(&plugin, &[("cpu_device_count", OptionValue::Int(4))]).unwrap();
        // The device ids of each rank's towers.
        let cases = [
            vec![vec![0], vec![1]],
            vec![vec![1], vec![0]],
            vec![vec![0, 1], vec![2, 3]],
            vec![vec![2, 3], vec![0, 1]],
            vec![vec![0], vec![2], vec![1], vec![3]],
        ];
        for ids in cases {
            let (size, local) = (ids.len(), ids[0].len());
            let expected = one_process(size * local);
            let mut devices: Vec<i64> = ids.iter().flatten().copied().collect();
            devices.sort_unstable();
            let first = devices.iter().position(|id| *id == ids[0][0]).unwrap();
            let replicas = Replicas { devices: devices.clone(), first };
            let (module, ranks) = ranks(local, &replicas, size);
            let options = CompileOptions::new().replicas(devices.len()).devices(devices.clone());
            let executable = client.compile(&module.text, &options).unwrap();
            let argument = |id: i64, argument: &Argument| {
                let rank = ids.iter().position(|of| of.contains(&id)).unwrap();
                let tower = ids[rank].iter().position(|of| *of == id).unwrap();
                let own = &ranks[rank].towers[tower];
                let number = |n: u64| HostTensor::scalar(n as i64);
                let (graph, _) = graph(rank * local..(rank + 1) * local, local * size);
                let value = match argument {
                    Argument::Variable(v) => {
                        let v = &graph.variables()[*v];
                        v.init.value(RUN.seed, &v.name, v.dtype, &v.sizes).unwrap()
                    }
                    Argument::PriorStepsOk | Argument::TowerOk(_) => HostTensor::scalar(true),
                    Argument::Passed(_) | Argument::Snapshot(_) => panic!("the run is not split"),
                    Argument::Feed(i) => batch(rank * local + own.feed(*i)),
                    Argument::StepFeed(..)
                    | Argument::Steps
                    | Argument::SkipLimit
                    | Argument::SkippedBefore => panic!("{argument:?} in a module of one step"),
                    Argument::Constant(value) => value.clone(),
                    Argument::Seed => number(RUN.seed),
                    Argument::Draw => number(RUN.draw),
                    Argument::Zero => number(0),
                    Argument::RandomOffset(stream) => {
                        number(own.random_offsets.get(stream).copied().unwrap_or(0) as u64)
                    }
                };
                client.upload(&value, &client.devices()[id as usize]).unwrap()
            };
            let uploaded: Vec<Vec<pjrt::Buffer>> = devices
                .iter()
                .map(|&id| module.arguments.iter().map(|a| argument(id, a)).collect())
                .collect();
            let run =
                executable.execute(&uploaded.iter().map(|list| list.iter().collect()).collect::<Vec<_>>());
            for outputs in run.unwrap().outputs {
                let long = Duration::from_secs(120);
                for (&variable, output) in module.updated.iter().zip(&outputs) {
                    let (found, expected) = (output.download(long).unwrap(), &expected[variable]);
                    let pairs = found.to_f64_vec().into_iter().zip(expected.to_f64_vec());
                    let off = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                    assert!(off < 1e-12, "{ids:?}, variable {variable}: {found:?} {expected:?}");
                }
                let report = outputs[module.updated.len() + module.report].download(long).unwrap();
                assert_eq!(report.as_slice::<i64>().unwrap()[0], 1);
            }
        }
    }
}
