//! The synchronization primitives of this crate: those of `std`, or those of the model checker loom
//! in a build with `--cfg loom`.

#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64},
    sync::{Arc, Mutex},
    thread::{Builder, Thread, current, park},
};

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::AtomicPtr,
    sync::{Arc, Mutex},
    thread::{Builder, Thread, current, park},
};
#[cfg(loom)]
pub(crate) use sequentially_consistent::{AtomicBool, AtomicU64};

/// loom treats `SeqCst` accesses as `AcqRel`, which lets a load overtake an earlier store to
/// another location. These atomics put a `SeqCst` fence, which loom does model, after every
/// `SeqCst` store. This is how compilers implement `SeqCst` on x86. Weaker accesses get no fence, so
/// a model still finds an ordering that is too weak.
#[cfg(loom)]
mod sequentially_consistent {
    use loom::sync::atomic::{self, Ordering, fence};

    fn after_store(ordering: Ordering) {
        if ordering == Ordering::SeqCst {
            fence(Ordering::SeqCst);
        }
    }

    macro_rules! atomics {
        ($($name:ident: $value:ty),*) => {$(
            #[derive(Debug, Default)]
            pub(crate) struct $name(atomic::$name);

            impl $name {
                pub(crate) fn new(value: $value) -> $name {
                    $name(atomic::$name::new(value))
                }

                pub(crate) fn load(&self, ordering: Ordering) -> $value {
                    self.0.load(ordering)
                }

                pub(crate) fn store(&self, value: $value, ordering: Ordering) {
                    self.0.store(value, ordering);
                    after_store(ordering);
                }
            }
        )*};
    }

    atomics!(AtomicBool: bool, AtomicU64: u64);

    impl AtomicU64 {
        pub(crate) fn fetch_add(&self, value: u64, ordering: Ordering) -> u64 {
            let before = self.0.fetch_add(value, ordering);
            after_store(ordering);
            before
        }

        pub(crate) fn fetch_update(
            &self,
            set: Ordering,
            fetch: Ordering,
            next: impl FnMut(u64) -> Option<u64>,
        ) -> Result<u64, u64> {
            let before = self.0.fetch_update(set, fetch, next);
            after_store(set);
            before
        }
    }
}
