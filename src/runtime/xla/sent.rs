//! What lies on a device already and need not be sent again.

use super::staged::Staged;
use super::target::Target;
use std::collections::HashMap;
use std::sync::Arc;
use tensorpack_pjrt as pjrt;
use tensorpack_tensor::{HostTensor, Result};

/// The value last sent for each argument of each tower. A tensor that is fed again, such as a constant batch, stays
/// where it is. It cannot have changed meanwhile: it is kept here, and who writes to a tensor that others have gets a
/// copy.
#[derive(Default)]
pub(super) struct Sent(HashMap<(usize, usize), (HostTensor, Arc<pjrt::Buffer>)>);

impl Sent {
    /// The value of an argument on the device of a tower: from last time, or sent ahead, or else sent now.
    pub(super) fn send(
        &mut self,
        value: &HostTensor,
        (argument, tower): (usize, usize),
        staged: &Staged,
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
