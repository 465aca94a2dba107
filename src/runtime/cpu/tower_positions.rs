//! Where the towers of all CPU engines of the process are, for reports of a running process.

use super::all_reduce::Communicator;
use crate::kir::Origin;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The origin of each step of each tower of a program.
pub(super) type Origins = Vec<Vec<Arc<Origin>>>;

/// The communicators of all teams, with the number of their first tower.
static COMMUNICATORS: Mutex<Vec<(usize, Weak<Communicator>)>> = Mutex::new(Vec::new());

/// Includes the towers of a communicator in reports for as long as it lives.
pub(super) fn watch(first_tower: usize, communicator: &Arc<Communicator>) {
    let mut all = COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|(_, communicator)| communicator.strong_count() > 0);
    all.push((first_tower, Arc::downgrade(communicator)));
}

/// Returns a line for each tower that runs a kernel now. It takes no lock that a running tower
/// holds.
pub(crate) fn tower_positions() -> Vec<String> {
    let all: Vec<(usize, Arc<Communicator>)> = {
        let all = COMMUNICATORS.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(|(first, communicator)| Some((*first, communicator.upgrade()?))).collect()
    };
    all.iter().flat_map(|(first, communicator)| lines(*first, communicator)).collect()
}

fn lines(first: usize, communicator: &Communicator) -> Vec<String> {
    let origins = communicator.origins();
    let line = |(tower, step): (usize, usize)| {
        let at = origins.as_ref().and_then(|origins| origins.get(tower)?.get(step));
        let tower = first + tower;
        match at {
            Some(at) => format!("tower {tower} is in {}, created at {}", at.name, at.site),
            None => format!("tower {tower} runs"),
        }
    };
    communicator.running().into_iter().map(line).collect()
}
