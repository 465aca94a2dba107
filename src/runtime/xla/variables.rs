//! The variables of a session, on every device that runs a tower. All copies are equal between runs.

use super::target::Target;
use tensorpack_pjrt::Buffer;
use tensorpack_tensor::{HostTensor, Result};

/// By tower, the buffer of each variable.
#[derive(Debug, Default)]
pub(super) struct Variables {
    copies: Vec<Vec<Buffer>>,
}

impl Variables {
    /// With these values, on the first tower's device.
    pub(super) fn new(first: Vec<Buffer>) -> Variables {
        Variables { copies: vec![first] }
    }

    /// Makes copies for so many towers, if there are not as many yet.
    pub(super) fn spread(&mut self, target: &Target, towers: usize) -> Result<()> {
        for tower in self.copies.len()..towers {
            let device = target.device(tower)?;
            let copy = self.copies[0].iter().map(|v| v.copy_to(device)).collect::<Result<_>>()?;
            self.copies.push(copy);
        }
        Ok(())
    }

    pub(super) fn of(&self, tower: usize, variable: usize) -> &Buffer {
        &self.copies[tower][variable]
    }

    pub(super) fn read(&self, variable: usize, target: &Target) -> Result<HostTensor> {
        self.of(0, variable).download(target.options.deadline)
    }

    pub(super) fn write(&mut self, variable: usize, value: &HostTensor, target: &Target) -> Result<()> {
        for (tower, copy) in self.copies.iter_mut().enumerate() {
            copy[variable] = target.upload(value, tower)?;
        }
        Ok(())
    }

    /// Gives variables the values that a run made for them, on the devices of its towers; other devices get the first's.
    pub(super) fn update(
        &mut self,
        updated: &[usize],
        next: Vec<Vec<Buffer>>,
        target: &Target,
    ) -> Result<()> {
        for tower in next.len()..self.copies.len() {
            let device = target.device(tower)?;
            for (&v, value) in updated.iter().zip(&next[0]) {
                self.copies[tower][v] = value.copy_to(device)?;
            }
        }
        for (copy, next) in self.copies.iter_mut().zip(next) {
            for (&v, value) in updated.iter().zip(next) {
                copy[v] = value;
            }
        }
        Ok(())
    }
}
