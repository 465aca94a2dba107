//! Where towers meet: each brings its part of a sum, each adds up its share of the elements for all.
//!
//! Every wait has a deadline, and ends at once when another tower failed: a tower that never comes is an error that
//! names what was waited for, not a hang.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tensorpack_tensor::{DType, Error, ErrorKind, Result};

/// How often a tower looks before it sleeps.
const SPINS: u32 = 20_000;

/// The meeting place of a number of towers.
#[derive(Debug)]
pub(super) struct Exchange {
    /// What each tower brings, and where it wants the sum.
    parts: Vec<(AtomicPtr<u8>, AtomicPtr<u8>)>,
    /// How often all have met.
    met: AtomicU64,
    waiting: Mutex<usize>,
    all_here: Condvar,
    failed: AtomicBool,
    deadline: Duration,
    spins: u32,
}

impl Exchange {
    /// For so many towers, each wait at most `deadline` long. They spin while they wait only if every thread has a core.
    pub(super) fn new(towers: usize, deadline: Duration, spin: bool) -> Exchange {
        let nowhere = || AtomicPtr::new(std::ptr::null_mut());
        Exchange {
            parts: (0..towers).map(|_| (nowhere(), nowhere())).collect(),
            met: AtomicU64::new(0),
            waiting: Mutex::new(0),
            all_here: Condvar::new(),
            failed: AtomicBool::new(false),
            deadline,
            spins: if spin { SPINS } else { 0 },
        }
    }

    /// As if nobody had ever waited here; for when all towers have left.
    pub(super) fn reset(&mut self) {
        *self.waiting.get_mut().unwrap_or_else(PoisonError::into_inner) = 0;
        *self.failed.get_mut() = false;
    }

    /// Makes every wait end with an error: a tower cannot go on.
    pub(super) fn fail(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.failed.store(true, Ordering::SeqCst);
        drop(waiting);
        self.all_here.notify_all();
    }

    /// Waits until all towers are here. `what` is what an error says was waited for.
    fn meet(&self, tower: usize, what: &str) -> Result<()> {
        let begun = Instant::now();
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let met = self.met.load(Ordering::SeqCst);
        *waiting += 1;
        if *waiting == self.parts.len() {
            *waiting = 0;
            self.met.store(met + 1, Ordering::SeqCst);
            drop(waiting);
            self.all_here.notify_all();
            return Ok(());
        }
        drop(waiting);
        let here = || self.met.load(Ordering::SeqCst) != met || self.failed.load(Ordering::SeqCst);
        let mut spun = 0;
        while spun < self.spins && !here() {
            std::hint::spin_loop();
            spun += 1;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while !here() {
            let Some(left) = self.deadline.checked_sub(begun.elapsed()) else {
                drop(waiting);
                self.fail();
                return Err(Error::new(
                    ErrorKind::Engine,
                    format!(
                        "tower {tower} waited {:.0} s at {what} for the others",
                        self.deadline.as_secs_f64()
                    ),
                )
                .note("another tower is stuck or far behind"));
            };
            waiting = self.all_here.wait_timeout(waiting, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        match self.met.load(Ordering::SeqCst) != met {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::Engine,
                format!("tower {tower} gave up at {what}: another tower failed"),
            )),
        }
    }

    /// Puts the sum of all towers' `input` into every tower's `output`, element by element in the order of the towers,
    /// so that all get the same bits.
    ///
    /// # Safety
    /// `input` and `output` must be valid for `len` elements of `dtype` (f32 or f64), the same number in all towers, and
    /// may be the same memory; nobody else touches them meanwhile.
    pub(super) unsafe fn all_reduce(
        &self,
        tower: usize,
        what: &str,
        dtype: DType,
        input: *const u8,
        output: *mut u8,
        len: usize,
    ) -> Result<()> {
        self.parts[tower].0.store(input.cast_mut(), Ordering::Relaxed);
        self.parts[tower].1.store(output, Ordering::Relaxed);
        self.meet(tower, what)?;
        let towers = self.parts.len();
        let mine = len * tower / towers..len * (tower + 1) / towers;
        // SAFETY: all towers are here with their pointers, and this range of elements is this tower's alone.
        unsafe {
            match dtype {
                DType::F64 => self.add::<f64>(mine),
                _ => self.add::<f32>(mine),
            }
        }
        // Nobody leaves before all have added: the inputs are needed until then.
        self.meet(tower, what)
    }

    unsafe fn add<T: Copy + std::ops::Add<Output = T>>(&self, mine: std::ops::Range<usize>) {
        const TILE: usize = 1024;
        let mut at = mine.start;
        while at < mine.end {
            let n = TILE.min(mine.end - at);
            // SAFETY: as the caller says; reading all parts of an element comes before writing it anywhere.
            unsafe {
                let from =
                    |p: &(AtomicPtr<u8>, AtomicPtr<u8>)| p.0.load(Ordering::Relaxed).cast::<T>().add(at);
                let mut sum = [*from(&self.parts[0]); TILE];
                std::ptr::copy_nonoverlapping(from(&self.parts[0]), sum.as_mut_ptr(), n);
                for part in &self.parts[1..] {
                    let part = from(part);
                    sum.iter_mut().take(n).enumerate().for_each(|(i, s)| *s = *s + *part.add(i));
                }
                for part in &self.parts {
                    let to = part.1.load(Ordering::Relaxed).cast::<T>().add(at);
                    std::ptr::copy_nonoverlapping(sum.as_ptr(), to, n);
                }
            }
            at += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_get_the_same_sum() {
        let exchange = Exchange::new(3, Duration::from_secs(10), false);
        let mut parts: Vec<Vec<f32>> =
            (0..3).map(|t| (0..5000).map(|i| (i * (t + 1)) as f32).collect()).collect();
        std::thread::scope(|s| {
            for (t, part) in parts.iter_mut().enumerate() {
                let exchange = &exchange;
                s.spawn(move || {
                    for _ in 0..2 {
                        let p = part.as_mut_ptr().cast::<u8>();
                        // SAFETY: each tower brings its own vector of 5000 numbers, in place.
                        unsafe { exchange.all_reduce(t, "sum", DType::F32, p, p, 5000) }.unwrap();
                    }
                });
            }
        });
        let want: Vec<f32> = (0..5000).map(|i| (i * 18) as f32).collect();
        assert!(parts.iter().all(|p| *p == want));
    }

    #[test]
    fn a_tower_that_never_comes_is_an_error() {
        let exchange = Exchange::new(2, Duration::from_millis(50), false);
        let e = exchange.meet(1, "gradients/fc0/W").unwrap_err();
        assert!(e.message().starts_with("tower 1 waited 0 s at gradients/fc0/W"), "{e}");
    }

    #[test]
    fn a_failure_ends_all_waits() {
        let exchange = Exchange::new(2, Duration::from_secs(100), true);
        std::thread::scope(|s| {
            let waiter = s.spawn(|| exchange.meet(0, "sum"));
            std::thread::sleep(Duration::from_millis(20));
            exchange.fail();
            assert!(waiter.join().unwrap().unwrap_err().message().contains("another tower failed"));
        });
    }
}
