//! The key-value store through which the clients of several processes find each other.

use std::time::Duration;
use tensorpack_tensor::Result;

/// A key-value store that all processes of a run share.
///
/// A client of [several processes](crate::DistributedOptions) exchanges its topology, the ids of
/// NCCL's communicators and results of autotuning through it: keys are text, values are bytes, and
/// each value is written once. A plugin calls it on threads of its own, several at a time, for as
/// long as the client lives.
///
/// Errors end the plugin's call, and the client returns them. An implementation should return an
/// error as soon as it knows that another process is gone, because a plugin may otherwise wait for
/// hours.
pub trait KeyValueStore: Send + Sync {
    /// Returns a value, waiting for it at most for `timeout`. Returns an error of kind
    /// [`ErrorKind::Deadline`](tensorpack_tensor::ErrorKind::Deadline) if there is none by then.
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>>;

    /// Returns a value, or `None` if there is none. Does not wait for one.
    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>>;

    /// Stores a value. Returns false and changes nothing if the key has a value already.
    fn put(&self, key: &str, value: &[u8]) -> Result<bool>;
}
