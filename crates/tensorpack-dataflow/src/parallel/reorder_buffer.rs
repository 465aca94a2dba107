//! A bounded buffer whose slots are reserved in order, filled in any order and drained in order.

use crate::cancellation;
use crate::sync::{Arc, AtomicBool, Condvar, Mutex, MutexGuard};
use crate::{Sample, State};
use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tensorpack_tensor::Result;

/// A result, and the state of the input after it.
pub(super) struct Item {
    pub(super) read: Result<Option<Sample>>,
    pub(super) state: State,
}

/// A bounded reorder buffer.
pub(super) struct ReorderBuffer {
    capacity: usize,
    keep_order: bool,
    slots: Mutex<Slots>,
    /// Signaled when the first slot is filled.
    front_ready: Condvar,
    /// Signaled when a slot is freed, and in unordered mode when one is filled.
    slot_freed: Condvar,
    cancelled: Arc<AtomicBool>,
}

#[derive(Default)]
struct Slots {
    items: VecDeque<Option<Item>>,
    /// Number of slots drained so far, which is the position of the first slot.
    popped: u64,
    /// Number of slots filled so far.
    filled: u64,
    // A notify without waiters still costs a system call, so waiters are tracked.
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

    /// Returns the flag that is set when the buffer is closed.
    pub(super) fn cancelled(&self) -> Arc<AtomicBool> {
        self.cancelled.clone()
    }

    fn is_closed(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Reserves the next position, waiting for capacity. Returns `None` once the buffer is closed.
    /// Only one thread may call this at a time.
    pub(super) fn reserve(&self) -> Option<u64> {
        let mut slots = self.wait_until(|slots| slots.items.len() < self.capacity)?;
        slots.items.push_back(None);
        Some(slots.popped + slots.items.len() as u64 - 1)
    }

    /// Waits until all positions before `position` are filled. Only the thread that may reserve
    /// calls this.
    pub(super) fn wait_filled_before(&self, position: u64) {
        self.wait_until(|slots| slots.filled == position);
    }

    fn wait_until(&self, condition: impl Fn(&Slots) -> bool) -> Option<MutexGuard<'_, Slots>> {
        let mut slots = self.lock();
        // No timeout: the consumer may take as long as it likes, and workers never wait on each
        // other.
        while !self.is_closed() && !condition(&slots) {
            slots.producer_waiting = true;
            slots = self.slot_freed.wait(slots).unwrap_or_else(PoisonError::into_inner);
            slots.producer_waiting = false;
        }
        if self.is_closed() { None } else { Some(slots) }
    }

    /// Fills `position`, or the first free slot if order does not matter.
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

    /// Removes the first result, waiting for it. Returns `None` after `timeout`, and an error if
    /// this thread's own stage is cancelled.
    pub(super) fn pop_front_within(&self, timeout: Duration) -> Result<Option<Item>> {
        let mut slots = self.lock();
        let mut begun: Option<Instant> = None;
        loop {
            if let Some(item) = slots.items.front_mut().and_then(Option::take) {
                slots.items.pop_front();
                slots.popped += 1;
                // Waking only at half capacity gives the woken thread work for a while.
                let wake = slots.producer_waiting && slots.items.len() <= self.capacity / 2;
                drop(slots);
                if wake {
                    self.slot_freed.notify_one();
                }
                return Ok(Some(item));
            }
            cancellation::check_cancelled()?;
            let left = timeout.saturating_sub(begun.get_or_insert_with(Instant::now).elapsed());
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

    /// Ends all waits for capacity: nothing will be drained any more.
    pub(super) fn close(&self) {
        let slots = self.lock();
        self.cancelled.store(true, Ordering::Relaxed);
        drop(slots);
        self.slot_freed.notify_all();
    }
}
