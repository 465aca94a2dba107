//! Simulators: threads that play games, while the model trains.

use super::game::{Episodes, Transition};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use tensorpack::prelude::*;

/// The games of one thread, with the action to take in each.
struct Job {
    games: Vec<Episodes>,
    actions: Vec<usize>,
}

/// The games after their step, with what happened in each.
struct Played {
    games: Vec<Episodes>,
    transitions: Vec<Transition>,
}

struct Simulator {
    /// `None` once the thread was told to end.
    jobs: Option<Sender<Job>>,
    played: Receiver<Played>,
    thread: Option<JoinHandle<()>>,
    /// The games between two steps; empty while the thread plays.
    games: Vec<Episodes>,
}

/// Threads with a few games each. All games take a step at a time; what happens is a function of
/// the actions, whatever the number of threads.
pub(crate) struct Simulators(Vec<Simulator>);

impl Simulators {
    /// Divides the games among `threads` threads.
    pub(crate) fn new(games: Vec<Episodes>, threads: usize) -> Result<Simulators> {
        let share = games.len().div_ceil(threads.max(1)).max(1);
        let mut games = games.into_iter().peekable();
        let mut simulators = Vec::new();
        while games.peek().is_some() {
            let (jobs, inbox) = channel::<Job>();
            let (outbox, played) = channel();
            let thread = std::thread::Builder::new().name(format!("simulator {}", simulators.len()));
            let thread = thread.spawn(move || {
                for Job { mut games, actions } in inbox {
                    let transitions = games.iter_mut().zip(actions).map(|(game, a)| game.step(a)).collect();
                    // The receiver is gone if training has ended.
                    if outbox.send(Played { games, transitions }).is_err() {
                        return;
                    }
                }
            })?;
            let games = games.by_ref().take(share).collect();
            simulators.push(Simulator { jobs: Some(jobs), played, thread: Some(thread), games });
        }
        Ok(Simulators(simulators))
    }

    /// Returns all games, which must not be playing.
    pub(crate) fn games(&self) -> impl Iterator<Item = &Episodes> {
        self.0.iter().flat_map(|s| &s.games)
    }

    /// Like [`Simulators::games`], to change them.
    pub(crate) fn games_mut(&mut self) -> impl Iterator<Item = &mut Episodes> {
        self.0.iter_mut().flat_map(|s| &mut s.games)
    }

    /// Starts a step of every game, with an action for each.
    pub(crate) fn play(&mut self, actions: &[usize]) -> Result<()> {
        let mut rest = actions;
        for simulator in &mut self.0 {
            let games = std::mem::take(&mut simulator.games);
            let (own, others) = rest.split_at(games.len());
            rest = others;
            let sent = simulator.jobs.as_ref().map(|jobs| jobs.send(Job { games, actions: own.to_vec() }));
            if !matches!(sent, Some(Ok(()))) {
                return Err(thread_ended());
            }
        }
        Ok(())
    }

    /// Waits for the step to end. Returns the transitions in the order of the games.
    pub(crate) fn collect(&mut self) -> Result<Vec<Transition>> {
        let mut transitions = Vec::new();
        for simulator in &mut self.0 {
            let played = simulator.played.recv().map_err(|_| thread_ended())?;
            simulator.games = played.games;
            transitions.extend(played.transitions);
        }
        Ok(transitions)
    }
}

impl Drop for Simulators {
    fn drop(&mut self) {
        for simulator in &mut self.0 {
            simulator.jobs = None;
        }
        for thread in self.0.iter_mut().filter_map(|s| s.thread.take()) {
            // A panic was reported when the thread's games were collected.
            let _ = thread.join();
        }
    }
}

fn thread_ended() -> Error {
    Error::argument("a simulator has panicked; its message is above")
}
