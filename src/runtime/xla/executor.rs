//! The executor: variables that stay on devices, and programs that run there.

use super::copy_room::{LargestPlan, Room};
use super::device_profiler::XlaProfiler;
use super::fork::{Access, ForkState};
use super::initial_values::initial_values;
use super::module::Purpose;
use super::program::{XlaProgram, lock};
use super::spmd::merge_towers;
use super::staging::StagedFeeds;
use super::steps_loop::StepsPerLaunch;
use super::steps_program::XlaStepsProgram;
use super::target::{Target, XlaOptions};
use super::variables::{Variables, shard};
use crate::distributed::ProcessGroup;
use crate::graph::{GLOBAL_STEP, Sharding, VariableInfo};
use crate::kir::Shards;
use crate::runtime::device_profiler::DeviceProfiler;
use crate::runtime::executor::{
    DeviceMemory, Executable, Executor, Feed, Fork, RunInfo, SavedValue, StepsExecutable, check_value,
};
use crate::runtime::shard_updates::stored_shards;
use crate::runtime::{Interrupt, Lowered, Platform, Source, Staging, Turns};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result, element_count};

/// An executor on the devices of a platform.
pub(in crate::runtime) struct XlaExecutor {
    pub(super) target: Target,
    pub(super) variables: Arc<Mutex<Variables>>,
    pub(super) staged: Arc<StagedFeeds>,
    pub(super) access: Access,
    /// Set if this is a fork.
    pub(super) fork: Option<Arc<ForkState>>,
    /// How the devices divide variables and their updates; `None` if there is one device.
    shards: Option<Shards>,
    infos: Vec<VariableInfo>,
    largest_plan: Arc<LargestPlan>,
    /// Whether the log says that copies do not fit.
    said_no_room: AtomicBool,
}

impl XlaExecutor {
    /// Opens an executor whose tower `i` runs on device `index + i` of the platform.
    pub(in crate::runtime) fn open(
        platform: Platform,
        index: usize,
        options: XlaOptions,
        group: Option<&Arc<ProcessGroup>>,
        towers: usize,
        interrupt: &Interrupt,
        turns: &Turns,
    ) -> Result<XlaExecutor> {
        let target = Target::open(platform, index, options, group, towers, interrupt)?;
        let one_process = target.replicas(1).is_none();
        Ok(XlaExecutor {
            staged: StagedFeeds::new(&target),
            target,
            variables: Arc::default(),
            access: Access::of_owner(turns),
            fork: None,
            shards: (towers > 1 && one_process).then_some(Shards { count: towers, own: None }),
            infos: Vec::new(),
            largest_plan: Arc::default(),
            said_no_room: AtomicBool::new(false),
        })
    }

    /// Returns an executor for a tower that shares the variables.
    pub(super) fn forked(&self, fork: &Fork) -> Result<XlaExecutor> {
        if self.target.replicas(1).is_some() {
            let why = "the towers of several processes cannot train asynchronously";
            return Err(Error::new(ErrorKind::Unsupported, why)
                .note("use a synchronous trainer, or the devices of one process"));
        }
        if fork.tower > 0 {
            // The first tower shares its device, and buffers, with the variables themselves.
            let bytes = lock(&self.variables).bytes()?;
            self.target.check_memory(bytes, "the snapshot of the variables", fork.tower)?;
        }
        Ok(XlaExecutor {
            target: self.target.clone(),
            variables: self.variables.clone(),
            staged: self.staged.clone(),
            access: self.access.of_tower(fork.tower),
            fork: Some(Arc::new(ForkState::new(fork))),
            shards: self.shards,
            infos: self.infos.clone(),
            largest_plan: self.largest_plan.clone(),
            said_no_room: AtomicBool::new(false),
        })
    }

    /// Returns how the devices divide variables and their updates, if any are divided.
    pub(super) fn divided(&self) -> Option<(&[VariableInfo], Shards)> {
        let some = self.infos.iter().any(|v| v.sharding != Sharding::None);
        self.shards.filter(|_| some).map(|shards| (&self.infos[..], shards))
    }

    pub(super) fn program(&self, lowered: &Lowered, purpose: Purpose) -> Result<XlaProgram> {
        let program = XlaProgram::new(lowered, purpose, self);
        if let Some(fork) = &self.fork {
            // The compiler has made progress, though no kernel has.
            fork.at.set(None);
        }
        program
    }
}

impl XlaExecutor {
    /// Compiles a program that is to be run.
    fn runnable(&self, lowered: &Lowered, purpose: Purpose) -> Result<XlaProgram> {
        let program = self.program(lowered, purpose)?;
        let planned = program.launches.iter().filter_map(|launch| launch.planned_memory().ok());
        planned.for_each(|planned| self.largest_plan.add(&planned));
        Ok(program)
    }
}

impl Executor for XlaExecutor {
    fn platform(&self) -> Option<String> {
        let client = &self.target.client;
        Some(format!("{} {}", client.platform_name().ok()?, client.platform_version().ok()?))
    }

    fn device_memory(&self) -> Result<Vec<DeviceMemory>> {
        let towers = 0..lock(&self.variables).towers();
        let memory = towers.map(|tower| self.target.device_memory(tower)).collect::<Result<Vec<_>>>()?;
        Ok(memory.into_iter().flatten().collect())
    }

    fn start_profiler(&self) -> Result<Option<Box<dyn DeviceProfiler>>> {
        match XlaProfiler::start(&self.variables, &self.target)? {
            Some(profiler) => Ok(Some(Box::new(profiler))),
            None => {
                let why = format!("the plugin {} has no profiler", self.target.client.plugin().name());
                Err(Error::new(ErrorKind::Unsupported, why))
            }
        }
    }

    fn create_variables(&mut self, variables: &[VariableInfo], seed: u64) -> Result<()> {
        let mut bytes = 0usize;
        for v in variables {
            bytes = bytes.saturating_add(element_count(&v.sizes)?.saturating_mul(v.dtype.size()));
        }
        self.target.check_memory(bytes, "the variables", 0)?;
        let made =
            initial_values(variables, seed, |i, value| match stored_shards(&variables[i], self.shards) {
                Some(shards) => self.target.upload(&shard(&value, shards, 0)?, 0),
                None => self.target.upload(&value, 0),
            })?;
        let specs = variables.iter().map(|v| (v.dtype, v.sizes.clone())).collect();
        let divided: Vec<Option<Shards>> = variables.iter().map(|v| stored_shards(v, self.shards)).collect();
        let mut all = Variables::new(made, specs, divided.clone(), &self.target)?;
        for (i, v) in variables.iter().enumerate() {
            if let Some(shards) = divided[i] {
                all.replicate(&self.target, shards.count)?;
                all.write(i, &v.init.value(seed, &v.name, v.dtype, &v.sizes)?, &self.target)?;
            }
        }
        *lock(&self.variables) = all;
        self.infos = variables.to_vec();
        Ok(())
    }

    fn read(&self, index: usize) -> Result<HostTensor> {
        let _turn = self.access.turn()?;
        let variables = lock(&self.variables);
        variables.spec(index)?;
        variables.read(index, &self.target)
    }

    fn save(&self, index: usize) -> Result<Box<dyn SavedValue>> {
        let _turn = self.access.turn()?;
        let variables = lock(&self.variables);
        variables.spec(index)?;
        Ok(Box::new(variables.save(index, &self.target)))
    }

    fn keeps_saved_on_device(&self) -> bool {
        let variables = lock(&self.variables);
        let no_room = |tower: usize| {
            let free = self.target.free_memory(tower).ok().flatten();
            let room = Room { limit: self.target.options.memory_limit, free };
            let why = self.largest_plan.no_room(variables.device_bytes(), room)?;
            Some(format!("{why} on {}", self.target.name(tower)))
        };
        let why = (0..variables.towers()).find_map(no_room);
        if let Some(why) = &why
            && !self.said_no_room.swap(true, Ordering::Relaxed)
        {
            log::info!("checkpoints are copied to the host before the next step starts: {why}");
        }
        why.is_none()
    }

    fn write(&mut self, index: usize, value: &HostTensor) -> Result<()> {
        let _turn = self.access.turn()?;
        let mut variables = lock(&self.variables);
        check_value(Some(variables.spec(index)?), index, value)?;
        variables.write(index, value, &self.target)
    }

    fn compile(&mut self, source: &Source<'_>) -> Result<Box<dyn Executable>> {
        let lowered = source.lower()?;
        Ok(Box::new(self.runnable(&lowered, Purpose::Run)?))
    }

    fn compile_steps(
        &mut self,
        source: &Source<'_>,
        most: usize,
    ) -> Result<Option<Box<dyn StepsExecutable>>> {
        let lowered = source.lower()?;
        if merge_towers(&lowered).is_err() {
            return Ok(None);
        }
        let is_counter =
            |v: &VariableInfo| v.name == GLOBAL_STEP && v.dtype == DType::I64 && v.sizes.is_empty();
        let counter = source.graph().variables().iter().position(is_counter);
        let steps = StepsPerLaunch { most, counter };
        Ok(Some(Box::new(XlaStepsProgram(self.runnable(&lowered, Purpose::RunSteps(steps))?))))
    }

    fn planned_bytes(&mut self, source: &Source<'_>) -> Result<usize> {
        let lowered = source.lower()?;
        let limit = self.target.options.memory_limit.take();
        let program = self.program(&lowered, Purpose::Run);
        self.target.options.memory_limit = limit;
        let program = program?;
        program.launches.iter().try_fold(0, |most, launch| Ok(launch.planned_bytes()?.max(most)))
    }

    /// With forks, a run ends before the next turn begins.
    fn runs_ahead(&self) -> bool {
        !self.access.is_shared()
    }

    fn fork(&self, fork: Fork) -> Result<Box<dyn Executor>> {
        Ok(Box::new(self.forked(&fork)?))
    }

    fn runs_several_steps(&self) -> bool {
        self.target.replicas(1).is_none()
    }

    fn staging(&self) -> Option<Staging> {
        Some(Staging::new(self.staged.clone()))
    }

    fn find_non_finite(
        &mut self,
        source: &Source<'_>,
        run: &RunInfo,
        feeds: &[Feed<'_>],
    ) -> Result<Option<Error>> {
        let lowered = source.lower()?;
        let program = self.program(&lowered, Purpose::FindNonFinite)?;
        let _turn = self.access.turn()?;
        let launches = program.launches.iter().zip(program.launch(run, feeds)?);
        // Launches that pass values on to others test nothing.
        for (launch, towers) in launches.filter(|(launch, _)| !launch.module.tested.is_empty()) {
            // A bad result of one tower is bad in all of them after the next collective, so the first
            // result that is bad in any of them is the one to name.
            let mut first: Option<(usize, Error)> = None;
            for (tower, outputs) in towers.iter().enumerate() {
                let finite = self.target.wait(outputs[0].start_download()?)?;
                let bad = finite.as_slice::<bool>()?.iter().enumerate().filter(|(_, finite)| !**finite);
                let before = first.as_ref().map_or(usize::MAX, |(index, _)| *index);
                let named =
                    bad.map(|(index, _)| index).take_while(|index| *index < before).find_map(|index| {
                        let e = lowered.diagnosis().not_finite(launch.tested_origin(tower, index))?;
                        Some((index, e))
                    });
                first = named.or(first);
            }
            if let Some((_, e)) = first {
                return Ok(Some(e));
            }
        }
        Ok(self.target.replicas(1).map(|_| {
            let why =
                "a gradient or cost is not finite in a tower of another process, or in the sum over all";
            Error::new(ErrorKind::NotFinite, why)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Fetch, Graph, Init, VariableSpec};
    use crate::runtime::session::request;
    use crate::runtime::snapshot::Reading;
    use crate::tower::TowerContext;
    use std::time::Duration;

    fn f32s(values: [f32; 2]) -> HostTensor {
        HostTensor::new([2], values.to_vec()).unwrap()
    }

    /// A saved value is the variable's buffer itself, neither copied nor read. Writes replace the
    /// buffer, and runs do not donate it.
    #[test]
    fn a_saved_value_stays_on_the_device() {
        if tensorpack_testing::plugin_for_tests("cpu").is_none() {
            return;
        }
        let graph = Graph::new();
        let t = TowerContext::training(&graph);
        let w = t.variable(VariableSpec::new("w", [2]).init(Init::Value(f32s([1.0, 2.0]))));
        let double = w.update(|w| w * 2.0);
        let graph = Arc::new(graph.freeze().unwrap());
        let options = XlaOptions {
            memory_limit: None,
            deadline: Duration::from_secs(300),
            full_precision: true,
            deterministic: true,
            compile_cache_bytes: Some(0),
            profile: false,
        };
        let mut executor = XlaExecutor::open(
            Platform::Cpu,
            0,
            options,
            None,
            1,
            &Interrupt::new(),
            &Turns::new(options.deadline),
        )
        .unwrap();
        executor.create_variables(graph.variables(), 0).unwrap();
        let request = request(&[Fetch::from(&double)], &[]);
        let mut program = executor.compile(&Source::new(&graph, &request, Reading::InPlace)).unwrap();
        let mut run = || program.run(&RunInfo { seed: 0, draw: 0 }, &[], &mut Vec::new()).unwrap();
        let save = |executor: &XlaExecutor| lock(&executor.variables).save(0, &executor.target);

        let first = save(&executor);
        assert!(lock(&executor.variables).is_saved(0));
        run();
        assert!(!first.buffers[0].is_donated().unwrap());
        assert!(!lock(&executor.variables).is_saved(0));
        assert_eq!(executor.read(0).unwrap(), f32s([2.0, 4.0]));
        let second = save(&executor);
        executor.write(0, &f32s([5.0, 6.0])).unwrap();
        run();
        assert_eq!(executor.read(0).unwrap(), f32s([10.0, 12.0]));
        assert_eq!(first.read().unwrap(), f32s([1.0, 2.0]));
        assert_eq!(second.read().unwrap(), f32s([2.0, 4.0]));

        // Beside a run there is room for saved values, unless a limit says otherwise.
        assert!(executor.keeps_saved_on_device());
        let planned = lock(&executor.variables).device_bytes();
        assert_eq!(planned, 8);
        executor.target.options.memory_limit = Some(planned);
        assert!(!executor.keeps_saved_on_device());
        executor.target.options.memory_limit = None;

        // A value that is no longer saved is donated again.
        drop(save(&executor));
        assert!(!lock(&executor.variables).is_saved(0));
    }
}
