//! Filters of convolutions that were packed once for many runs.
//!
//! A convolution reads its filter in panels. A run that changes no variable, such as a prediction,
//! finds the panels of an earlier run, as long as nothing has changed the variables since. Programs
//! for other batch sizes share them.

use super::memory::{Block, padded};
use super::placement::Loc;
use super::variables::Variables;
use std::collections::HashMap;
use tensorpack_kernels::FilterPacking;
use tensorpack_tensor::Result;

/// A filter in a form that the second phase of a convolution reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PackedFilter {
    /// Where the filter itself is, in a variable.
    pub(super) filter: Loc,
    pub(super) packing: FilterPacking,
    pub(super) bytes: usize,
}

/// The packed filters of an engine, which stay until it is dropped.
#[derive(Debug, Default)]
pub(super) struct PackedFilters {
    kept: HashMap<PackedFilter, Kept>,
}

#[derive(Debug)]
struct Kept {
    block: Block,
    /// The revision of the variables that it was packed from.
    revision: Option<u64>,
}

impl PackedFilters {
    /// Returns the bytes that these filters need in addition.
    pub(super) fn missing(&self, filters: &[PackedFilter]) -> usize {
        let missing = filters.iter().filter(|filter| !self.kept.contains_key(filter));
        missing.fold(0, |n, filter| n.saturating_add(padded(filter.bytes)))
    }

    /// Allocates memory for these filters.
    pub(super) fn make_room(&mut self, filters: &[PackedFilter]) -> Result<()> {
        for filter in filters {
            if !self.kept.contains_key(filter) {
                let kept = Kept { block: Block::zeroed(filter.bytes)?, revision: None };
                self.kept.insert(*filter, kept);
            }
        }
        Ok(())
    }

    /// Returns the memory of a filter, and whether it is packed from the current variables. It is
    /// null for a filter without room.
    pub(super) fn find(&self, filter: &PackedFilter, variables: &Variables) -> (*mut u8, bool) {
        let Some(kept) = self.kept.get(filter) else { return (std::ptr::null_mut(), false) };
        (kept.block.as_ptr(), kept.revision == Some(variables.revision))
    }

    /// Notes that a run has packed these filters.
    pub(super) fn set_packed(&mut self, filters: &[PackedFilter], variables: &Variables) {
        for filter in filters {
            if let Some(kept) = self.kept.get_mut(filter) {
                kept.revision = Some(variables.revision);
            }
        }
    }
}
