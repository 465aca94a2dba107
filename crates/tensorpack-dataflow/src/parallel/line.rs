//! A line of results: reserved in order, filled in any, taken in order.

use crate::stop;
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
pub(super) struct Line {
    room_for: usize,
    keep_order: bool,
    places: Mutex<Places>,
    /// The first place was filled.
    ready: Condvar,
    /// A place became free, or was filled.
    moved: Condvar,
    stopped: Arc<AtomicBool>,
}

#[derive(Default)]
struct Places {
    items: VecDeque<Option<Item>>,
    /// How many places have been taken, so the number of the first in line.
    taken: u64,
    /// How many have been filled.
    filled: u64,
    // Waking nobody costs a system call, so it is known whether somebody waits.
    consumer_waits: bool,
    producer_waits: bool,
}

impl Line {
    pub(super) fn new(room_for: usize, keep_order: bool) -> Line {
        Line {
            room_for: room_for.max(1),
            keep_order,
            places: Mutex::default(),
            ready: Condvar::new(),
            moved: Condvar::new(),
            stopped: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is set when the line is closed.
    pub(super) fn stopped(&self) -> Arc<AtomicBool> {
        self.stopped.clone()
    }

    fn is_closed(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// The number of a place at the end of the line, as soon as there is room; `None` once it is closed. One thread at
    /// a time.
    pub(super) fn reserve(&self) -> Option<u64> {
        let mut places = self.wait_until(|places| places.items.len() < self.room_for)?;
        places.items.push_back(None);
        Some(places.taken + places.items.len() as u64 - 1)
    }

    /// Waits until all places before `number` are filled. One thread at a time, the one that may reserve.
    pub(super) fn settle(&self, number: u64) {
        self.wait_until(|places| places.filled == number);
    }

    fn wait_until(&self, holds: impl Fn(&Places) -> bool) -> Option<MutexGuard<'_, Places>> {
        let mut places = self.lock();
        // This waits for the consumer, who may take as long as it likes, or for workers that are never told to wait.
        while !self.is_closed() && !holds(&places) {
            places.producer_waits = true;
            places = self.moved.wait(places).unwrap_or_else(PoisonError::into_inner);
            places.producer_waits = false;
        }
        if self.is_closed() { None } else { Some(places) }
    }

    /// Fills place `number`, or the first free one if the order does not matter.
    pub(super) fn fill(&self, number: u64, item: Item) {
        let mut places = self.lock();
        let number = if self.keep_order { number } else { places.filled };
        places.filled += 1;
        let place = (number - places.taken) as usize;
        places.items[place] = Some(item);
        let wake = (place == 0 && places.consumer_waits, !self.keep_order && places.producer_waits);
        drop(places);
        if wake.0 {
            self.ready.notify_one();
        }
        if wake.1 {
            self.moved.notify_one();
        }
    }

    /// The first in line, once it is there; `None` if that takes longer than `deadline`. An error if this thread's own
    /// stage is stopped meanwhile.
    pub(super) fn take(&self, deadline: Duration) -> Result<Option<Item>> {
        let mut places = self.lock();
        let mut end = None;
        loop {
            if let Some(item) = places.items.front_mut().and_then(Option::take) {
                places.items.pop_front();
                places.taken += 1;
                // Not for every single place: a thread that is woken should find work for a while.
                let wake = places.producer_waits && places.items.len() <= self.room_for / 2;
                drop(places);
                if wake {
                    self.moved.notify_one();
                }
                return Ok(Some(item));
            }
            stop::check()?;
            let end = *end.get_or_insert_with(|| Instant::now() + deadline);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let wait = if stop::has_to_look() { left.min(stop::LOOK) } else { left };
            places.consumer_waits = true;
            places = self.ready.wait_timeout(places, wait).unwrap_or_else(PoisonError::into_inner).0;
            places.consumer_waits = false;
        }
    }

    /// Ends all waits for room: nothing will be taken any more.
    pub(super) fn close(&self) {
        let places = self.lock();
        self.stopped.store(true, Ordering::Relaxed);
        drop(places);
        self.moved.notify_all();
    }
}
