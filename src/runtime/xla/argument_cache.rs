//! A cache of arguments on devices, so that unchanged values are not uploaded again.

use super::staging::StagedFeeds;
use super::target::Target;
use std::collections::HashMap;
use std::sync::Arc;
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{HostTensor, Result};

/// The last value uploaded for each argument of each tower. A tensor that is fed again, such as a
/// constant batch, is not uploaded again. It cannot have changed, because the cache holds a
/// reference to it and tensors are copied on write.
#[derive(Default)]
pub(super) struct ArgumentCache(HashMap<(usize, usize), (HostTensor, Arc<pjrt::Buffer>)>);

impl ArgumentCache {
    /// Returns an argument on the device of a tower: cached, staged, or else uploaded now.
    pub(super) fn upload(
        &mut self,
        value: &HostTensor,
        (argument, tower): (usize, usize),
        staged: &StagedFeeds,
        target: &Target,
    ) -> Result<Arc<pjrt::Buffer>> {
        if let Some((last, buffer)) = self.0.get(&(argument, tower))
            && (last.shares_elements(value) || value.len() == 1 && last == value)
        {
            return Ok(buffer.clone());
        }
        let buffer = match staged.find(value, tower) {
            Some(buffer) => buffer,
            None => Arc::new(target.upload(value, tower)?),
        };
        self.0.insert((argument, tower), (value.clone(), buffer.clone()));
        Ok(buffer)
    }
}
