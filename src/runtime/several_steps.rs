//! Several steps in one launch: steps are queued until a launch is full, and collected together.
//!
//! The session launches what is queued before it does anything else with its variables. So a caller
//! that reads or writes one sees the values of the last step, and a launch ends there.

use super::binding::Request;
use super::executor::{Feed, KernelTime, PendingSteps, RunInfo, StepEnd, StepsExecutable, StepsInfo};
use super::session::{Session, State, request, request_matches};
use super::{IntoFetch, Source, fit_memory, overflow_rules};
use crate::graph::Fetch;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tensorpack_tensor::{Error, ErrorKind, HostTensor, Result};

/// How steps are put into launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launches {
    /// The largest number of steps of a launch.
    pub(crate) steps: usize,
    /// The number of steps in a row that may be skipped because a value is not finite.
    pub(crate) skip_limit: u32,
}

/// The programs of several steps, the queue and the launches of a session.
#[derive(Default)]
pub(super) struct SeveralSteps {
    /// Most recently used last.
    programs: Vec<Program>,
    queued: Option<Queue>,
    /// Launches that were not collected, oldest first.
    launched: VecDeque<Launched>,
}

struct Program {
    request: Arc<Request>,
    steps: usize,
    executable: Box<dyn StepsExecutable>,
}

/// Steps of one program that wait for their launch.
struct Queue {
    request: Arc<Request>,
    launches: Launches,
    skipped_before: u32,
    /// The draw number of the first one.
    draw: u64,
    feeds: Vec<Vec<HostTensor>>,
}

struct Launched {
    pending: Box<dyn PendingSteps>,
    info: StepsInfo,
    request: Arc<Request>,
    /// To explain a failure.
    feeds: Vec<Vec<HostTensor>>,
    /// The number of the launch.
    number: u64,
}

impl Session {
    /// Returns whether the engine can run several steps in one launch.
    pub(crate) fn runs_several_steps(&self) -> Result<bool> {
        Ok(self.lock()?.executor.runs_several_steps())
    }

    /// Compiles the program of several steps in advance. Returns false if such a run must be launched
    /// by itself.
    pub(super) fn compile_steps(
        &self,
        fetches: &[Fetch],
        feeds: &[(&str, &HostTensor)],
        steps: usize,
    ) -> Result<bool> {
        self.prepare(&fetches.iter().map(|f| f as &dyn IntoFetch).collect::<Vec<_>>())?;
        Ok(self.lock()?.steps_program(self, fetches, feeds, steps)?.is_some())
    }

    /// Launches the queue if a step needs another program than those queued, and compiles that program
    /// if it is not cached.
    pub(super) fn prepare_queue(
        &self,
        fetches: &[Fetch],
        feeds: &[(&str, &HostTensor)],
        launches: Launches,
    ) -> Result<()> {
        let mut state = self.lock()?;
        let fits = |q: &Queue| q.launches == launches && request_matches(&q.request, fetches, feeds);
        if state.several.queued.as_ref().is_some_and(|queue| !fits(queue)) {
            state.launch_queued(self.options.seed)?;
        }
        state.steps_program(self, fetches, feeds, launches.steps).map(|_| ())
    }

    /// Queues and counts a step run, and launches the queue if it is full. The queue must be
    /// [prepared](Session::prepare_queue). `skipped_before`: the number of steps in a row that were
    /// skipped before the first step in the queue.
    pub(super) fn queue_step(
        &self,
        fetches: &[Fetch],
        feeds: &[(&str, &HostTensor)],
        launches: Launches,
        skipped_before: u32,
    ) -> Result<()> {
        self.graph().take_late_error()?;
        let mut state = self.lock()?;
        let Some(request) = state.steps_program(self, fetches, feeds, launches.steps)? else {
            return Err(Error::new(ErrorKind::Engine, "this step must be launched by itself"));
        };
        let draw = state.run_index;
        let queue = state.several.queued.get_or_insert_with(|| Queue {
            request,
            launches,
            skipped_before,
            draw,
            feeds: Vec::with_capacity(launches.steps),
        });
        queue.feeds.push(feeds.iter().map(|(_, value)| (*value).clone()).collect());
        let is_full = queue.feeds.len() >= launches.steps;
        (state.run_index, state.plain_runs) = (draw + 1, 0);
        if is_full { state.launch_queued(self.options.seed) } else { Ok(()) }
    }

    /// Launches the queued steps, if there are any.
    pub(crate) fn launch_queued(&self) -> Result<()> {
        self.lock()?.launch_queued(self.options.seed)
    }

    /// Returns the number of launches that were not collected.
    pub(crate) fn launched(&self) -> Result<usize> {
        Ok(self.lock()?.several.launched.len())
    }

    /// Waits for the oldest launch. Returns the results of its steps: the fetches, or the error of a
    /// step that failed. Of several steps in a row that are skipped only the last one may end the
    /// launch; its error names the first result that is not finite. After an error other than a
    /// skipped step, everything that was launched or queued later is dropped: it changed nothing.
    pub(crate) fn collect_launched(&self) -> Result<Vec<Result<Vec<HostTensor>>>> {
        let mut state = self.lock()?;
        let Some(Launched { pending, info, request, feeds, number }) = state.several.launched.pop_front()
        else {
            return Ok(Vec::new());
        };
        let ended = catch_unwind(AssertUnwindSafe(|| pending.collect()));
        let ended = ended.unwrap_or_else(|panic| Err(state.poison(&*panic)));
        let ended = ended.map_err(|e| {
            state.several.drop_steps();
            state.end_if_lost(e)
        })?;
        let mut skipped = info.skipped_before;
        let mut results = Vec::with_capacity(ended.len());
        for (step, result) in ended.into_iter().enumerate() {
            results.push(match result {
                Ok(StepEnd::Committed(values)) => {
                    skipped = 0;
                    Ok(values)
                }
                Ok(StepEnd::Skipped) => Err(overflow_rules::skipped()),
                Ok(StepEnd::NotFinite) => {
                    skipped += 1;
                    let run = RunInfo { draw: info.first.draw + step as u64, ..info.first };
                    let names = request.feeds.iter().map(|(name, ..)| name.as_str());
                    let feeds: Vec<(&str, &HostTensor)> = names.zip(&feeds[step]).collect();
                    Err(match skipped > info.skip_limit {
                        // No step after it changed a variable, so the search finds those of this one.
                        true => {
                            state.several.drop_steps();
                            state.launch_ended(number, false)?;
                            self.explain_non_finite(&mut state, &request.fetches, &feeds, &run)
                        }
                        false => self.skipped_step(&feeds),
                    })
                }
                Err(e) => {
                    state.several.drop_steps();
                    state.launch_ended(number, false)?;
                    Err(e)
                }
            });
        }
        // After a failure there is nothing left to forget.
        state.launch_ended(number, true)?;
        Ok(results)
    }

    /// Returns the error of a step that was skipped in the middle of a launch. The steps after it
    /// have changed the variables, so the result that was not finite cannot be searched.
    fn skipped_step(&self, feeds: &[(&str, &HostTensor)]) -> Error {
        super::session::check_finite_feeds(self.graph(), feeds).err().unwrap_or_else(|| {
            Error::new(
                ErrorKind::NotFinite,
                "a cost or gradient, or the next value of a variable, is not finite",
            )
            .note("train with one step per launch to find the tensor")
        })
    }
}

impl State {
    /// Launches the queued steps, if there are any.
    pub(super) fn launch_queued(&mut self, seed: u64) -> Result<()> {
        let Some(queue) = self.several.queued.take() else { return Ok(()) };
        let Queue { request, launches, skipped_before, draw, feeds } = queue;
        let info =
            StepsInfo { first: RunInfo { seed, draw }, skip_limit: launches.skip_limit, skipped_before };
        let program =
            self.several.programs.iter_mut().find(|p| p.steps == launches.steps && p.request == request);
        let Some(program) = program else {
            return Err(Error::new(ErrorKind::Engine, "the program of queued steps is gone"));
        };
        let values: Vec<Vec<Feed<'_>>> = feeds.iter().map(|step| step.iter().collect()).collect();
        let values: Vec<&[Feed<'_>]> = values.iter().map(Vec::as_slice).collect();
        let executable = &mut program.executable;
        let started = catch_unwind(AssertUnwindSafe(|| executable.start(&info, &values)));
        let started = started.unwrap_or_else(|panic| Err(self.poison(&*panic)));
        let pending = started.map_err(|e| self.end_if_lost(e))?;
        let number = self.count_launch();
        self.several.launched.push_back(Launched { pending, info, request, feeds, number });
        Ok(())
    }

    /// Returns the request of a program of several steps, which is compiled if it is not cached.
    /// Returns `None` if such a run must be launched by itself.
    fn steps_program(
        &mut self,
        session: &Session,
        fetches: &[Fetch],
        feeds: &[(&str, &HostTensor)],
        steps: usize,
    ) -> Result<Option<Arc<Request>>> {
        let programs = &mut self.several.programs;
        let cached =
            programs.iter().position(|p| p.steps == steps && request_matches(&p.request, fetches, feeds));
        let program = match cached {
            Some(at) if at + 1 == programs.len() => return Ok(Some(programs[at].request.clone())),
            Some(at) => programs.remove(at),
            None => {
                let request = Arc::new(request(fetches, feeds));
                let source = Source::new(&session.graph, &request, session.reading);
                let limit = session.options.memory_limit;
                let compiled =
                    fit_memory::compile_within(&mut *self.executor, &source, limit, |executor, source| {
                        executor.compile_steps(source, steps)
                    })?;
                let Some(executable) = compiled else { return Ok(None) };
                if self.several.programs.len() >= session.options.programs.max(2) {
                    self.several.programs.remove(0);
                }
                Program { request, steps, executable }
            }
        };
        let request = program.request.clone();
        self.several.programs.push(program);
        Ok(Some(request))
    }
}

impl SeveralSteps {
    /// Returns the time spent on launches, if profiling is on.
    pub(super) fn profile(&self) -> impl Iterator<Item = KernelTime> {
        self.programs.iter().flat_map(|p| p.executable.profile())
    }

    /// Drops what was launched or queued after a failure.
    fn drop_steps(&mut self) {
        self.queued = None;
        self.launched.clear();
    }
}
