//! Variables that several engines share. One engine at a time has access.

use super::variables::Variables;
use crate::runtime::Turns;
use crate::runtime::update_turns::{Holder, Turn};
use crate::sync::{Arc, Mutex, MutexGuard};
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use tensorpack_tensor::Result;

/// An engine's handle on the variables.
#[derive(Clone, Debug)]
pub(super) struct SharedVariables {
    variables: Arc<Mutex<Variables>>,
    turns: Turns,
    who: Holder,
}

/// Access to the variables for the duration of a turn.
pub(super) struct Taken<'a> {
    // Dropped before the turn, so that the next turn finds the variables unlocked.
    variables: MutexGuard<'a, Variables>,
    _turn: Turn<'a>,
}

impl SharedVariables {
    /// Creates the handle of the owner, without any variables yet.
    pub(super) fn new(turns: &Turns) -> SharedVariables {
        SharedVariables { variables: Arc::default(), turns: turns.clone(), who: Holder::Owner }
    }

    /// Returns a handle for the engine of one tower.
    pub(super) fn of_tower(&self, tower: usize) -> SharedVariables {
        SharedVariables { who: Holder::Tower(tower), ..self.clone() }
    }

    /// Returns whether other towers may change the variables between this engine's turns.
    pub(super) fn are_shared(&self) -> bool {
        self.who != Holder::Owner
    }

    /// Waits for this engine's turn.
    pub(super) fn take(&self) -> Result<Taken<'_>> {
        let turn = self.turns.take(self.who)?;
        // `Turns` gives no turn after a panic, so the lock is never poisoned here.
        let variables = self.variables.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Taken { variables, _turn: turn })
    }
}

impl Deref for Taken<'_> {
    type Target = Variables;
    fn deref(&self) -> &Variables {
        &self.variables
    }
}

impl DerefMut for Taken<'_> {
    fn deref_mut(&mut self) -> &mut Variables {
        &mut self.variables
    }
}

/// loom models. A wait never times out in loom, so a lost wake-up is a deadlock.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use std::time::Duration;

    /// Each tower takes a snapshot in one turn and commits its update in the next, as runs of forks
    /// do, while the owner reads. Every version is committed once, and versions never go back.
    #[test]
    fn every_commit_makes_a_new_version() {
        loom::model(|| {
            let owner = SharedVariables::new(&Turns::new(Duration::from_secs(3600)));
            let towers: Vec<_> = (0..2)
                .map(|tower| {
                    let variables = owner.of_tower(tower);
                    loom::thread::spawn(move || {
                        let snapshot = variables.take().unwrap().version;
                        let mut current = variables.take().unwrap();
                        assert!(current.version >= snapshot);
                        current.version += 1;
                        current.version
                    })
                })
                .collect();
            let before = owner.take().unwrap().version;
            let mut committed: Vec<u64> = towers.into_iter().map(|t| t.join().unwrap()).collect();
            committed.sort();
            assert_eq!(committed, [1, 2]);
            assert!(before <= owner.take().unwrap().version);
            assert_eq!(owner.take().unwrap().version, 2);
        });
    }
}
