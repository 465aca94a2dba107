//! Variables that several engines share, one of them at a time.

use super::variables::Variables;
use crate::runtime::Turns;
use crate::runtime::update_turns::{Holder, Turn};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensorpack_tensor::Result;

/// One engine's share in the variables.
#[derive(Clone, Debug)]
pub(super) struct SharedVariables {
    variables: Arc<Mutex<Variables>>,
    turns: Turns,
    who: Holder,
}

/// The variables, while it is one's turn.
pub(super) struct Taken<'a> {
    // Dropped first: whoever has the next turn finds them unlocked.
    variables: MutexGuard<'a, Variables>,
    _turn: Turn<'a>,
}

impl SharedVariables {
    /// None yet, for the engine they will belong to.
    pub(super) fn new(turns: &Turns) -> SharedVariables {
        SharedVariables { variables: Arc::default(), turns: turns.clone(), who: Holder::Owner }
    }

    /// The same, for the engine of one tower.
    pub(super) fn of_tower(&self, tower: usize) -> SharedVariables {
        SharedVariables { who: Holder::Tower(tower), ..self.clone() }
    }

    /// Whether other towers may change them between this engine's turns.
    pub(super) fn are_shared(&self) -> bool {
        self.who != Holder::Owner
    }

    /// Waits for this engine's turn.
    pub(super) fn take(&self) -> Result<Taken<'_>> {
        let turn = self.turns.take(self.who)?;
        // After a panic nobody gets a turn.
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
