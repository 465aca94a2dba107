//! Forks: the executors of asynchronous towers. Each runs on its own device and shares the variables,
//! which stay on the device of the first tower.
//!
//! A run of a fork is split: see [`split_at_variables`](super::split_program::split_at_variables). Its
//! first part computes costs and gradients on a snapshot of the variables, which is copied to the
//! fork's device during a short turn. The joint part then updates the variables where they are, during
//! another turn.

use super::module::Argument;
use super::target::Target;
use super::variables::Variables;
use crate::runtime::executor::Fork;
use crate::runtime::update_turns::{Holder, Turn};
use crate::runtime::{KernelProgress, Turns};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tensorpack_pjrt::Buffer;
use tensorpack_tensor::Result;

/// An executor's access to the variables, which it may share with forks.
#[derive(Clone)]
pub(super) struct Access {
    turns: Turns,
    who: Holder,
    /// Whether there are forks.
    forked: Arc<AtomicBool>,
}

impl Access {
    /// Returns the access of the executor that owns the variables.
    pub(super) fn of_owner(turns: &Turns) -> Access {
        Access { turns: turns.clone(), who: Holder::Owner, forked: Arc::default() }
    }

    /// Returns the access of a fork. From now on the owner takes turns, too.
    pub(super) fn of_tower(&self, tower: usize) -> Access {
        self.forked.store(true, Ordering::Release);
        Access { who: Holder::Tower(tower), ..self.clone() }
    }

    /// Returns whether others may change the variables.
    pub(super) fn is_shared(&self) -> bool {
        self.forked.load(Ordering::Acquire)
    }

    /// Waits for a turn, if the variables are shared: without forks, steps take no lock for it.
    pub(super) fn turn(&self) -> Result<Option<Turn<'_>>> {
        match self.is_shared() {
            true => self.turns.take(self.who).map(Some),
            false => Ok(None),
        }
    }
}

/// The state of a fork.
pub(super) struct ForkState {
    pub(super) tower: usize,
    pub(super) at: KernelProgress,
    /// The snapshot of the last run, by variable. A run that fails keeps it for the search.
    snapshot: Mutex<Arc<Snapshot>>,
}

/// Variables on the device of a fork, by index.
pub(super) type Snapshot = HashMap<usize, Arc<Buffer>>;

impl ForkState {
    pub(super) fn new(fork: &Fork) -> ForkState {
        ForkState { tower: fork.tower, at: fork.at.clone(), snapshot: Mutex::default() }
    }

    /// Takes a snapshot of the variables that these arguments read.
    pub(super) fn take_snapshot<'a>(
        &self,
        arguments: impl Iterator<Item = &'a Argument>,
        variables: &Variables,
        target: &Target,
    ) -> Result<()> {
        let mut snapshot = Snapshot::new();
        for argument in arguments {
            if let Argument::Snapshot(v) = argument
                && !snapshot.contains_key(v)
            {
                snapshot.insert(*v, variables.share(*v, self.tower, target)?);
            }
        }
        self.set(snapshot);
        Ok(())
    }

    /// Returns the snapshot of the last run.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Releases the snapshot, so that updates can donate its buffers.
    pub(super) fn forget_snapshot(&self) {
        self.set(Snapshot::new());
    }

    fn set(&self, snapshot: Snapshot) {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }
}

#[cfg(test)]
mod tests {
    use super::super::executor::XlaExecutor;
    use super::super::module::Purpose;
    use super::super::program::XlaProgram;
    use super::super::target::XlaOptions;
    use super::*;
    use crate::graph::{Fetch, Frozen, Graph, Init, TensorSpec, VariableSpec};
    use crate::optim::{Momentum, minimize};
    use crate::runtime::executor::{Executor, Outcome, RunInfo};
    use crate::runtime::session::request;
    use crate::runtime::snapshot::Reading;
    use crate::runtime::{Interrupt, Platform, Source};
    use crate::tower::TowerContext;
    use std::time::Duration;
    use tensorpack_tensor::{ErrorKind, HostTensor};

    const RUN: RunInfo = RunInfo { seed: 0, draw: 0 };

    /// The cost `w^2 x / 2`, and what its update reads besides the gradient.
    fn graph() -> (Arc<Frozen>, Vec<Fetch>) {
        let graph = Graph::new();
        let w = TowerContext::training(&graph).variable(VariableSpec::new("w", []).init(Init::ones()));
        let x = graph.placeholder(&TensorSpec::f32("x", []));
        let cost = w.square() * x * 0.5;
        let step = Fetch::from(&minimize(&cost, &Momentum::new(0.5, 0.5)).unwrap());
        let moved = Fetch::from(&(w.current() - w.value() * 1.5));
        (Arc::new(graph.freeze().unwrap()), vec![step, moved, Fetch::from(&cost)])
    }

    /// An executor of the graph on `xla:cpu` with this deadline of turns.
    fn executor(graph: &Frozen, turns: &Turns) -> Option<XlaExecutor> {
        tensorpack_testing::plugin_for_tests("cpu")?;
        let options = XlaOptions {
            memory_limit: None,
            deadline: Duration::from_secs(300),
            full_precision: true,
            deterministic: true,
            compile_cache_bytes: Some(0),
            profile: false,
        };
        let interrupt = Interrupt::new();
        let mut executor = XlaExecutor::open(Platform::Cpu, 0, options, None, 1, &interrupt, turns).unwrap();
        executor.create_variables(graph.variables(), 0).unwrap();
        Some(executor)
    }

    fn fork(executor: &XlaExecutor, tower: usize) -> (XlaExecutor, Arc<ForkState>) {
        let fork = executor.forked(&Fork { tower, towers: 2, at: KernelProgress::new() }).unwrap();
        let state = fork.fork.clone().unwrap();
        (fork, state)
    }

    fn program(executor: &XlaExecutor, graph: &Arc<Frozen>, fetches: &[Fetch]) -> XlaProgram {
        let request = request(fetches, &[("x", &HostTensor::scalar(0f32))]);
        let lowered = Source::new(graph, &request, Reading::Snapshot).lower().unwrap();
        executor.program(&lowered, Purpose::Run).unwrap()
    }

    /// Gradients use the weights of the snapshot; the update uses the momentum and weights at its time.
    /// The numbers are those of the CPU engine (`tests/forks.rs`).
    #[test]
    fn a_run_computes_on_a_snapshot_and_loses_no_update() {
        let (graph, fetches) = graph();
        for [slow, fast] in [[0, 1], [1, 0], [1, 2]] {
            let Some(mut owner) = executor(&graph, &Turns::new(Duration::from_secs(300))) else { return };
            let ((slow, slow_state), (fast, fast_state)) = (fork(&owner, slow), fork(&owner, fast));
            let [slow, fast] = [slow, fast].map(|fork| program(&fork, &graph, &fetches));
            let (one, two) = (HostTensor::scalar(1f32), HostTensor::scalar(2f32));
            let mut outputs = Vec::new();
            let apart = slow.run_apart(&slow_state, &RUN, &[&two]).unwrap().unwrap();
            // Gradient 1: v = 1, w = 1 - 0.5. Then gradient 0.5: v = 1, w = 0.
            for _ in 0..2 {
                let apart = fast.run_apart(&fast_state, &RUN, &[&one]).unwrap().unwrap();
                let outcome = fast.run_joint(&fast_state, apart, &RUN, &[&one], &mut outputs).unwrap();
                assert_eq!(outcome, Outcome::Committed { staleness: 0 });
            }
            assert_eq!(owner.read(0).unwrap(), HostTensor::scalar(0f32));
            owner.write(0, &HostTensor::scalar(0.25f32)).unwrap();
            let outcome = slow.run_joint(&slow_state, apart, &RUN, &[&two], &mut outputs).unwrap();
            assert_eq!(outcome, Outcome::Committed { staleness: 2 });
            // From 0.25 by 1.25: both weights in the update are current. The cost is of the weight 1.
            assert_eq!(outputs, [HostTensor::scalar(-1f32 - 0.375), HostTensor::scalar(1f32)]);
            // The gradient is 2, of the weight 1 that it began with: v = 0.5 + 2, w = 0.25 - 0.5 * 2.5.
            let values = [0, 1].map(|v| owner.read(v).unwrap().to_f64_vec()[0]);
            assert!(values == [-1.0, 2.5] || values == [2.5, -1.0], "{values:?}");
            assert!(slow_state.snapshot().is_empty(), "a run that succeeded keeps no snapshot");
        }
    }

    /// A turn that never ends is an error of the fork that waits for it.
    #[test]
    fn waiting_for_a_turn_has_a_deadline() {
        let (graph, fetches) = graph();
        let turns = Turns::new(Duration::from_millis(100));
        let Some(owner) = executor(&graph, &turns) else { return };
        let (fork, state) = fork(&owner, 1);
        let program = program(&fork, &graph, &fetches);
        let one = HostTensor::scalar(1f32);
        let apart = program.run_apart(&state, &RUN, &[&one]).unwrap().unwrap();
        let stuck = turns.take(Holder::Tower(0)).unwrap();
        let e = program.run_joint(&state, apart, &RUN, &[&one], &mut Vec::new()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Deadline);
        assert!(e.message().contains("tower 1") && e.message().contains("tower 0"), "{e}");
        assert_eq!(owner.read(0).unwrap_err().kind(), ErrorKind::Deadline);
        drop(stuck);
        assert_eq!(owner.read(0).unwrap(), HostTensor::scalar(1f32));
    }

    /// Without forks there are no turns; with forks, no run is launched before the last one ended.
    #[test]
    fn the_owner_takes_turns_once_there_are_forks() {
        let (graph, _) = graph();
        let turns = Turns::new(Duration::from_millis(50));
        let Some(owner) = executor(&graph, &turns) else { return };
        let _other = turns.take(Holder::Tower(7)).unwrap();
        owner.read(0).unwrap();
        assert!(owner.runs_ahead());
        let (fork, _) = fork(&owner, 1);
        assert!(!owner.runs_ahead() && !fork.runs_ahead());
        assert_eq!(owner.read(0).unwrap_err().kind(), ErrorKind::Deadline);
        let e = owner.forked(&Fork { tower: 99, towers: 100, at: KernelProgress::new() }).err().unwrap();
        assert!(e.message().contains("xla:cpu:99 does not exist"), "{e}");
    }
}
