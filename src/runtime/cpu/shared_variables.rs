//! Variables that several engines share. One engine at a time has access.

use super::variables::Variables;
use crate::runtime::Turns;
use crate::runtime::update_turns::{Holder, Turn};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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
