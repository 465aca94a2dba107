//! A line of results: reserved in order, filled in any, taken in order.

use crate::cancellation;
use crate::{Sample, State};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensorpack_tensor::Result;

/// What a place in line holds: what was read, and where the input stood behind it.
pub(super) struct Item {
    pub(super) read: Result<Option<Sample>>,
    pub(super) state: State,
}

/// A bounded line of results.
pub(super) struct ReorderBuffer {
    capacity: usize,
    keep_order: bool,
    slots: Mutex<Slots>,
    /// The first place was filled.
    front_ready: Condvar,
    /// A place became free, or was filled.
    slot_freed: Condvar,
    cancelled: Arc<AtomicBool>,
}

#[derive(Default)]
struct Slots {
    items: VecDeque<Option<Item>>,
    /// How many places have been taken, so the number of the first in line.
    popped: u64,
    /// How many have been filled.
    filled: u64,
    // Waking nobody costs a system call, so it is known whether somebody waits.
    consumer_waiting: bool,
    producer_waiting: bool,
}

impl ReorderBuffer {
    pub(super) fn new(capacity: usize, keep_order: bool) -> ReorderBuffer {
        ReorderBuffer {
            capacity: capacity.max(1),
            keep_order,
            slots: Mutex::default(),
            front_ready: Condvar::new(),
            slot_freed: Condvar::new(),
            cancelled: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is set when the line is closed.
    pub(super) fn cancelled(&self) -> Arc<AtomicBool> {
        self.cancelled.clone()
    }

    fn is_closed(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// The number of a place at the end of the line, as soon as there is room; `None` once it is closed. One thread at
    /// a time.
    pub(super) fn reserve(&self) -> Option<u64> {
        let mut slots = self.wait_until(|slots| slots.items.len() < self.capacity)?;
        slots.items.push_back(None);
        Some(slots.popped + slots.items.len() as u64 - 1)
    }

    /// Waits until all places before `position` are filled. One thread at a time, the one that may reserve.
    pub(super) fn wait_filled_before(&self, position: u64) {
        self.wait_until(|slots| slots.filled == position);
    }

    fn wait_until(&self, condition: impl Fn(&Slots) -> bool) -> Option<MutexGuard<'_, Slots>> {
        let mut slots = self.lock();
        // This waits for the consumer, who may take as long as it likes, or for workers that are never told to wait.
        while !self.is_closed() && !condition(&slots) {
            slots.producer_waiting = true;
            slots = self.slot_freed.wait(slots).unwrap_or_else(PoisonError::into_inner);
            slots.producer_waiting = false;
        }
        if self.is_closed() { None } else { Some(slots) }
    }

    /// Fills place `position`, or the first free one if the order does not matter.
    pub(super) fn fill(&self, position: u64, item: Item) {
        let mut slots = self.lock();
        let position = if self.keep_order { position } else { slots.filled };
        slots.filled += 1;
        let slot = (position - slots.popped) as usize;
        slots.items[slot] = Some(item);
        let wake = (slot == 0 && slots.consumer_waiting, !self.keep_order && slots.producer_waiting);
        drop(slots);
        if wake.0 {
            self.front_ready.notify_one();
        }
        if wake.1 {
            self.slot_freed.notify_one();
        }
    }

    /// The first in line, once it is there; `None` if that takes longer than `timeout`. An error if this thread's own
    /// stage is stopped meanwhile.
    pub(super) fn pop_front_within(&self, timeout: Duration) -> Result<Option<Item>> {
        let mut slots = self.lock();
        let mut end = None;
        loop {
            if let Some(item) = slots.items.front_mut().and_then(Option::take) {
                slots.items.pop_front();
                slots.popped += 1;
                // Not for every single place: a thread that is woken should find work for a while.
                let wake = slots.producer_waiting && slots.items.len() <= self.capacity / 2;
                drop(slots);
                if wake {
                    self.slot_freed.notify_one();
                }
                return Ok(Some(item));
            }
            cancellation::check_cancelled()?;
            let end = *end.get_or_insert_with(|| Instant::now() + timeout);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let wait =
                if cancellation::is_cancellable() { left.min(cancellation::POLL_INTERVAL) } else { left };
            slots.consumer_waiting = true;
            slots = self.front_ready.wait_timeout(slots, wait).unwrap_or_else(PoisonError::into_inner).0;
            slots.consumer_waiting = false;
        }
    }

    /// Ends all waits for room: nothing will be taken any more.
    pub(super) fn close(&self) {
        let slots = self.lock();
        self.cancelled.store(true, Ordering::Relaxed);
        drop(slots);
        self.slot_freed.notify_all();
    }
}
