//! Who may touch the variables, where several towers share them without waiting for each other's steps: one at a time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The turns of those who share variables: the session they belong to, and its forks, one for each tower. Clones are
/// the same turns.
#[derive(Clone, Debug)]
pub struct Turns(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
    /// The longest anybody waits for another's turn to end.
    deadline: Duration,
}

#[derive(Debug)]
struct State {
    /// Whose turn it is, if it is anybody's.
    taken: Option<Who>,
    towers: Towers,
    /// Whether somebody panicked in its turn: who knows what it left behind.
    lost: bool,
}

/// Who shares variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// The session they belong to.
    Owner,
    /// The fork of this tower.
    Tower(usize),
}

/// What towers may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Towers {
    /// Take turns with all others.
    Go,
    /// Wait, however long it takes.
    Wait,
    /// Nothing, ever again.
    End,
}

/// A turn; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// With nobody's turn, and this long for a turn at most.
    pub fn new(deadline: Duration) -> Turns {
        let state = Mutex::new(State { taken: None, towers: Towers::Go, lost: false });
        Turns(Arc::new(Inner { state, changed: Condvar::new(), deadline }))
    }

    /// Keeps towers from taking turns until [`Turns::release`]: what the session's owner sees does not change meanwhile.
    pub fn hold(&self) {
        self.admit(Towers::Wait);
    }

    /// Lets towers take turns again.
    pub fn release(&self) {
        self.admit(Towers::Go);
    }

    /// Makes every turn that a tower asks for an error, now and later: training is over.
    pub fn end(&self) {
        self.admit(Towers::End);
    }

    fn admit(&self, towers: Towers) {
        let mut state = self.lock();
        if state.towers != Towers::End {
            state.towers = towers;
        }
        drop(state);
        self.0.changed.notify_all();
    }

    /// Waits for one's turn. Towers wait without end while they are held; for somebody's turn to end, nobody waits longer
    /// than the deadline.
    pub(super) fn take(&self, who: Who) -> Result<Turn<'_>> {
        let mut state = self.lock();
        let mut begun = Instant::now();
        loop {
            let may = match who {
                Who::Owner if state.lost => {
                    let why = "a kernel panicked while it had the variables; their state is lost";
                    return Err(Error::new(ErrorKind::Engine, why));
                }
                Who::Owner => Towers::Go,
                // Training ends with the panic itself, which is about to be reported.
                Who::Tower(_) if state.lost && state.towers == Towers::Go => Towers::Wait,
                Who::Tower(_) => state.towers,
            };
            match (may, state.taken) {
                (Towers::End, _) => {
                    return Err(Error::new(
                        ErrorKind::Engine,
                        format!("training ended before {who} was done"),
                    ));
                }
                (Towers::Wait, _) => {
                    state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    begun = Instant::now();
                }
                (Towers::Go, None) => {
                    state.taken = Some(who);
                    return Ok(Turn(self));
                }
                (Towers::Go, Some(other)) => {
                    let Some(left) = self.0.deadline.checked_sub(begun.elapsed()) else {
                        let seconds = self.0.deadline.as_secs_f64();
                        let why = format!("{who} waited {seconds:.0} s for the variables, which {other} has");
                        return Err(Error::new(ErrorKind::Deadline, why));
                    };
                    let waited = self.0.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.taken = None;
        state.lost |= std::thread::panicking();
        drop(state);
        self.0.0.changed.notify_all();
    }
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Who::Owner => f.write_str("the trainer"),
            Who::Tower(i) => write!(f, "tower {i}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let turns = Turns::new(Duration::from_secs(100));
        let count = Mutex::new(0);
        std::thread::scope(|s| {
            for tower in 0..3 {
                let (turns, count) = (turns.clone(), &count);
                s.spawn(move || {
                    for _ in 0..100 {
                        let _turn = turns.take(Who::Tower(tower)).unwrap();
                        // Nobody else has it.
                        *count.try_lock().unwrap() += 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock().unwrap(), 300);
    }

    #[test]
    fn a_turn_that_never_ends_is_an_error() {
        let turns = Turns::new(Duration::from_millis(50));
        let _stuck = turns.take(Who::Tower(1)).unwrap();
        let e = turns.take(Who::Tower(0)).unwrap_err();
        assert_eq!(e.message(), "tower 0 waited 0 s for the variables, which tower 1 has");
    }

    #[test]
    fn towers_that_are_held_wait_and_the_owner_does_not() {
        let turns = Turns::new(Duration::from_millis(1));
        turns.hold();
        drop(turns.take(Who::Owner).unwrap());
        std::thread::scope(|s| {
            let waiting = s.spawn(|| turns.take(Who::Tower(1)).map(drop));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            turns.release();
            waiting.join().unwrap().unwrap();
            turns.hold();
            let waiting = s.spawn(|| turns.take(Who::Tower(2)).map(drop));
            turns.end();
            assert!(waiting.join().unwrap().unwrap_err().message().contains("before tower 2 was done"));
        });
    }

    #[test]
    fn after_a_panic_nobody_gets_a_turn() {
        let turns = Turns::new(Duration::from_millis(1));
        std::thread::scope(|s| {
            let panics = s.spawn(|| {
                let _turn = turns.take(Who::Tower(0)).unwrap();
                panic!("in a kernel");
            });
            assert!(panics.join().is_err());
            let waiting = s.spawn(|| turns.take(Who::Tower(1)).map(drop));
            assert!(turns.take(Who::Owner).unwrap_err().message().contains("their state is lost"));
            turns.end();
            assert!(waiting.join().unwrap().is_err());
        });
    }
}
