//! Whether devices have room for a second copy of the variables.
//!
//! A checkpoint keeps the buffers of the variables until they are downloaded. A launch meanwhile cannot
//! donate them to the next values, so it allocates these in addition to what it was planned with.

use crate::runtime::memory_limit::human_pair;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorpack_pjrt::PlannedMemory;

/// The largest plans of the programs that were compiled so far, in bytes per device.
#[derive(Debug, Default)]
pub(super) struct LargestPlan {
    /// With arguments.
    total: AtomicUsize,
    /// Without arguments, which are allocated between launches, too.
    more: AtomicUsize,
}

/// What is known of a device's memory, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// The limit that the user has set.
    pub(super) limit: Option<usize>,
    /// Free memory between launches, if the plugin reports it.
    pub(super) free: Option<usize>,
}

impl LargestPlan {
    pub(super) fn add(&self, planned: &PlannedMemory) {
        let total = planned.total() as usize;
        self.total.fetch_max(total, Ordering::Relaxed);
        self.more.fetch_max(total.saturating_sub(planned.arguments as usize), Ordering::Relaxed);
    }

    /// Returns why a launch and copies of this many bytes do not fit together, or `None` if they do or
    /// if nothing is known.
    pub(super) fn no_room(&self, copies: usize, room: Room) -> Option<String> {
        let [total, more] = [&self.total, &self.more].map(|bytes| bytes.load(Ordering::Relaxed));
        let with_copies = |bytes: usize| bytes.saturating_add(copies);
        if let Some(limit) = room.limit.filter(|limit| with_copies(total) > *limit) {
            let [needed, limit] = human_pair(with_copies(total), limit);
            return Some(format!("a step with a second copy of the variables takes {needed} of {limit}"));
        }
        // Free memory may be in pieces.
        let needed = with_copies(more).saturating_add(with_copies(more) / 8);
        let free = room.free.filter(|free| needed > *free)?;
        let [needed, free] = human_pair(needed, free);
        Some(format!("a step with a second copy of the variables takes {needed} more, and {free} are free"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: usize = 1_000_000;

    #[test]
    fn copies_are_counted_with_the_largest_program() {
        let plan = LargestPlan::default();
        let planned = |arguments: usize, temporary: usize| PlannedMemory {
            arguments: (arguments * MB) as u64,
            outputs: (arguments * MB) as u64,
            aliased: (arguments * MB) as u64,
            temporary: (temporary * MB) as u64,
            code: 0,
        };
        let free = |free: usize| Room { limit: None, free: Some(free * MB) };
        let limit = |limit: usize| Room { limit: Some(limit * MB), free: None };
        // 100 MB of variables, and 60 MB beside them. Validation is smaller.
        plan.add(&planned(100, 60));
        plan.add(&planned(100, 5));
        assert_eq!(plan.no_room(100 * MB, Room::default()), None);
        assert_eq!(plan.no_room(100 * MB, free(180)), None);
        let why = plan.no_room(100 * MB, free(179)).unwrap();
        assert!(why.contains("180.0 MB more") && why.contains("179.0 MB are free"), "{why}");
        assert_eq!(plan.no_room(100 * MB, limit(260)), None);
        let why = plan.no_room(100 * MB, limit(259)).unwrap();
        assert!(why.contains("260.0 MB of 259.0 MB"), "{why}");
        // A limit does not stand for what others use of the device.
        let both = Room { limit: Some(300 * MB), free: Some(100 * MB) };
        assert!(plan.no_room(100 * MB, both).is_some());
        assert!(LargestPlan::default().no_room(usize::MAX, free(1)).is_some());
    }
}
