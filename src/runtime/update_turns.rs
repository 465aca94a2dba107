//! Exclusive access to variables that several asynchronous towers share.

use crate::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use tensorpack_tensor::{Error, ErrorKind, Result};

/// The turns of a session and its forks, one per tower, with the variables they share. Clones share
/// the turns.
#[derive(Clone, Debug)]
pub struct Turns(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
    /// The timeout of waits for the end of another turn.
    deadline: Duration,
}

#[derive(Debug)]
struct State {
    /// The current holder of the turn, if any.
    holder: Option<Holder>,
    admission: Admission,
    /// Whether a turn ended in a panic, which may have left invalid values.
    lost: bool,
}

/// A session that shares variables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The session that owns the variables.
    Owner,
    /// The fork of this tower.
    Tower(usize),
}

/// Whether towers are admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    /// They take turns.
    Open,
    /// They wait, without a timeout.
    Held,
    /// They get an error, permanently.
    Closed,
}

/// A turn, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// Creates turns with this timeout.
    pub fn new(deadline: Duration) -> Turns {
        let state = Mutex::new(State { holder: None, admission: Admission::Open, lost: false });
        Turns(Arc::new(Inner { state, changed: Condvar::new(), deadline }))
    }

    /// Holds towers back until [`Turns::release`], so that the variables do not change meanwhile.
    pub fn hold(&self) {
        self.admit(Admission::Held);
    }

    /// Lets towers take turns again.
    pub fn release(&self) {
        self.admit(Admission::Open);
    }

    /// Ends training: from now on, requests of towers return an error.
    pub fn end(&self) {
        self.admit(Admission::Closed);
    }

    fn admit(&self, admission: Admission) {
        let mut state = self.lock();
        if state.admission != Admission::Closed {
            state.admission = admission;
        }
        drop(state);
        self.0.changed.notify_all();
    }

    /// Waits for a turn. Towers wait without a timeout while they are held; a wait for the end of
    /// another turn has the timeout.
    pub(super) fn take(&self, who: Holder) -> Result<Turn<'_>> {
        let mut state = self.lock();
        let mut begun = Instant::now();
        loop {
            let admission = match who {
                Holder::Owner if state.lost => {
                    let why = "a kernel panicked while it updated the variables; their state is lost";
                    return Err(Error::new(ErrorKind::Engine, why));
                }
                Holder::Owner => Admission::Open,
                // Wait: the panic itself ends training and is about to be reported.
                Holder::Tower(_) if state.lost && state.admission == Admission::Open => Admission::Held,
                Holder::Tower(_) => state.admission,
            };
            match (admission, state.holder) {
                (Admission::Closed, _) => {
                    return Err(Error::new(
                        ErrorKind::Engine,
                        format!("training ended before {who} was done"),
                    ));
                }
                (Admission::Held, _) => {
                    state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    begun = Instant::now();
                }
                (Admission::Open, None) => {
                    state.holder = Some(who);
                    return Ok(Turn(self));
                }
                (Admission::Open, Some(other)) => {
                    let Some(left) = self.0.deadline.checked_sub(begun.elapsed()) else {
                        let seconds = self.0.deadline.as_secs_f64();
                        let why =
                            format!("{who} waited {seconds:.0} s for the variables, which {other} holds");
                        return Err(Error::new(ErrorKind::Deadline, why));
                    };
                    let waited = self.0.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }

    /// Ends a turn. `panicked` tells that it may have left invalid values.
    fn end_turn(&self, panicked: bool) {
        let mut state = self.lock();
        state.holder = None;
        state.lost |= panicked;
        drop(state);
        self.0.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.end_turn(std::thread::panicking());
    }
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Holder::Owner => f.write_str("the trainer"),
            Holder::Tower(i) => write!(f, "tower {i}"),
        }
    }
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_exclusive() {
        let turns = Turns::new(Duration::from_secs(100));
        let count = Mutex::new(0);
        std::thread::scope(|s| {
            for tower in 0..3 {
                let (turns, count) = (turns.clone(), &count);
                s.spawn(move || {
                    for _ in 0..100 {
                        let _turn = turns.take(Holder::Tower(tower)).unwrap();
                        // No other thread has it.
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
        let _stuck = turns.take(Holder::Tower(1)).unwrap();
        let e = turns.take(Holder::Tower(0)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Deadline);
        assert!(e.message().contains("tower 0") && e.message().contains("tower 1"), "{e}");
    }

    #[test]
    fn towers_that_are_held_wait_and_the_owner_does_not() {
        let turns = Turns::new(Duration::from_millis(1));
        turns.hold();
        drop(turns.take(Holder::Owner).unwrap());
        std::thread::scope(|s| {
            let waiting = s.spawn(|| turns.take(Holder::Tower(1)).map(drop));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            turns.release();
            waiting.join().unwrap().unwrap();
            turns.hold();
            let waiting = s.spawn(|| turns.take(Holder::Tower(2)).map(drop));
            turns.end();
            assert!(waiting.join().unwrap().unwrap_err().message().contains("before tower 2 was done"));
        });
    }

    #[test]
    fn no_turn_is_granted_after_a_panic() {
        let turns = Turns::new(Duration::from_millis(1));
        std::thread::scope(|s| {
            let panics = s.spawn(|| {
                let _turn = turns.take(Holder::Tower(0)).unwrap();
                panic!("in a kernel");
            });
            assert!(panics.join().is_err());
            let waiting = s.spawn(|| turns.take(Holder::Tower(1)).map(drop));
            assert!(turns.take(Holder::Owner).unwrap_err().message().contains("their state is lost"));
            turns.end();
            assert!(waiting.join().unwrap().is_err());
        });
    }
}

/// loom models. A wait never times out in loom, so a lost wake-up is a deadlock. loom runs all
/// threads of a model on one, so a turn that panics is modelled by `end_turn(true)`.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::thread;

    const HOUR: Duration = Duration::from_secs(3600);

    /// Two words that every update changes together, without atomics, as it does the variables. loom
    /// reports concurrent updates.
    struct Variables(UnsafeCell<(usize, usize)>);

    // SAFETY: loom checks every access.
    unsafe impl Sync for Variables {}
    // SAFETY: as above.
    unsafe impl Send for Variables {}

    impl Variables {
        fn new() -> Arc<Variables> {
            Arc::new(Variables(UnsafeCell::new((0, 0))))
        }

        fn update(&self) {
            self.0.with_mut(|v| {
                // SAFETY: loom reports a concurrent access.
                let v = unsafe { &mut *v };
                assert_eq!(v.0, v.1, "a torn update");
                v.0 += 1;
                v.1 += 1;
            });
        }

        fn read(&self) -> usize {
            // SAFETY: loom reports a concurrent access.
            self.0.with(|v| unsafe { (*v).0 })
        }
    }

    /// Updates of towers and of the owner are exclusive, and none is lost.
    #[test]
    fn no_update_is_torn_or_lost() {
        loom::model(|| {
            let (turns, variables) = (Turns::new(HOUR), Variables::new());
            let towers: Vec<_> = (0..2)
                .map(|tower| {
                    let (turns, variables) = (turns.clone(), variables.clone());
                    thread::spawn(move || {
                        let _turn = turns.take(Holder::Tower(tower)).unwrap();
                        variables.update();
                    })
                })
                .collect();
            {
                let _turn = turns.take(Holder::Owner).unwrap();
                variables.update();
            }
            towers.into_iter().for_each(|tower| tower.join().unwrap());
            assert_eq!(variables.read(), 3);
        });
    }

    /// While towers are held, the variables do not change between two turns of the owner. When they
    /// are released, every tower gets its turn.
    #[test]
    fn held_towers_update_nothing_until_they_are_released() {
        loom::model(|| {
            let (turns, variables) = (Turns::new(HOUR), Variables::new());
            let (of_tower, updated) = (turns.clone(), variables.clone());
            let tower = thread::spawn(move || {
                let _turn = of_tower.take(Holder::Tower(1)).unwrap();
                updated.update();
            });
            turns.hold();
            let read = || {
                let _turn = turns.take(Holder::Owner).unwrap();
                variables.read()
            };
            assert_eq!(read(), read());
            turns.release();
            tower.join().unwrap();
            assert_eq!(read(), 1);
        });
    }

    /// The end of training reaches towers that are held, that wait, and that come later.
    #[test]
    fn the_end_releases_every_tower() {
        loom::model(|| {
            let turns = Turns::new(HOUR);
            turns.hold();
            let towers: Vec<_> = (0..2)
                .map(|tower| {
                    let turns = turns.clone();
                    thread::spawn(move || turns.take(Holder::Tower(tower)).map(drop))
                })
                .collect();
            turns.end();
            for tower in towers {
                assert_eq!(tower.join().unwrap().unwrap_err().kind(), ErrorKind::Engine);
            }
        });
    }

    /// After a turn that panicked, nobody reads or updates the variables, and nobody waits forever.
    #[test]
    fn nobody_gets_a_turn_after_a_panic() {
        loom::model(|| {
            let turns = Turns::new(HOUR);
            let held = turns.take(Holder::Tower(0)).unwrap();
            std::mem::forget(held);
            let of_tower = turns.clone();
            let tower = thread::spawn(move || of_tower.take(Holder::Tower(1)).map(drop));
            let of_panic = turns.clone();
            let panicked = thread::spawn(move || of_panic.end_turn(true));
            assert!(turns.take(Holder::Owner).unwrap_err().message().contains("lost"));
            turns.end();
            panicked.join().unwrap();
            assert_eq!(tower.join().unwrap().unwrap_err().kind(), ErrorKind::Engine);
        });
    }
}
