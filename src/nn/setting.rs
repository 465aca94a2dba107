//! A setting of a layer that a scope can have a default for.

use std::ops::Deref;

/// The value of a setting, and whether it was set: a setting that was not takes the default of the
/// scope (see [`TowerContext::argscope`](crate::tower::TowerContext::argscope)).
#[derive(Clone, Copy, Debug)]
pub(super) struct Setting<T> {
    value: T,
    is_set: bool,
}

impl<T> Setting<T> {
    /// A setting that nobody has set, with the value it has then.
    pub(super) fn unset(value: T) -> Setting<T> {
        Setting { value, is_set: false }
    }

    /// A setting that was set.
    pub(super) fn set(value: T) -> Setting<T> {
        Setting { value, is_set: true }
    }
}

impl<T: Clone> Setting<T> {
    /// Returns the setting of `scope`, if only that one was set.
    pub(super) fn or(&self, scope: &Setting<T>) -> Setting<T> {
        if self.is_set || !scope.is_set { self.clone() } else { scope.clone() }
    }
}

impl<T> Deref for Setting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
