//! The variables of a session, with a copy on the device of every tower. Copies are equal between
//! runs.

use super::target::Target;
use crate::runtime::executor::SavedValue;
use std::sync::Arc;
use tensorpack_pjrt::Buffer;
use tensorpack_tensor::{DType, Error, HostTensor, Result};

/// The buffers of all variables, with one copy per tower.
#[derive(Debug, Default)]
pub(super) struct Variables {
    copies: Vec<Vec<Arc<Buffer>>>,
    /// Dtype and sizes of each variable.
    specs: Vec<(DType, Vec<usize>)>,
    /// A flag per tower: whether all runs so far succeeded. A run that finds it false changes no
    /// variable, so runs can be launched before the outcome of the last one is known.
    prior_steps_ok: Vec<Buffer>,
}

/// The value that a variable had, still on the device of the first tower.
pub(super) struct SavedBuffer {
    pub(super) buffer: Arc<Buffer>,
    target: Target,
}

impl SavedValue for SavedBuffer {
    fn read(&self) -> Result<HostTensor> {
        self.target.wait(self.buffer.start_download()?)
    }
}

impl Variables {
    /// Creates the variables from buffers on the device of the first tower.
    pub(super) fn new(
        first: Vec<Buffer>,
        specs: Vec<(DType, Vec<usize>)>,
        target: &Target,
    ) -> Result<Variables> {
        let prior_steps_ok = vec![target.upload(&HostTensor::scalar(true), 0)?];
        let first = first.into_iter().map(Arc::new).collect();
        Ok(Variables { copies: vec![first], specs, prior_steps_ok })
    }

    /// Copies the variables to the devices of `towers` towers, if they are not there yet.
    pub(super) fn replicate(&mut self, target: &Target, towers: usize) -> Result<()> {
        for tower in self.copies.len()..towers {
            let device = target.device(tower)?;
            let copy = self.copies[0].iter().map(|v| Ok(Arc::new(v.copy_to(device)?)));
            let copy = copy.collect::<Result<_>>()?;
            let prior_steps_ok = self.prior_steps_ok[0].copy_to(device)?;
            // Push both or neither: a tower with variables but without a flag would never get one.
            self.copies.push(copy);
            self.prior_steps_ok.push(prior_steps_ok);
        }
        Ok(())
    }

    pub(super) fn buffer(&self, tower: usize, variable: usize) -> &Buffer {
        &self.copies[tower][variable]
    }

    /// Returns the flag of a tower: whether all runs so far succeeded.
    pub(super) fn prior_steps_ok(&self, tower: usize) -> &Buffer {
        &self.prior_steps_ok[tower]
    }

    /// Resets the flag after a failed run, so that runs change variables again.
    pub(super) fn reset_ok(&mut self, target: &Target) -> Result<()> {
        let fresh =
            (0..self.prior_steps_ok.len()).map(|tower| target.upload(&HostTensor::scalar(true), tower));
        self.prior_steps_ok = fresh.collect::<Result<_>>()?;
        Ok(())
    }

    /// Returns dtype and sizes of a variable, or an error if the index is out of range.
    pub(super) fn spec(&self, variable: usize) -> Result<(DType, &[usize])> {
        let spec = self.specs.get(variable).map(|(dtype, sizes)| (*dtype, &sizes[..]));
        spec.ok_or_else(|| Error::argument(format!("there is no variable with index {variable}")))
    }

    pub(super) fn read(&self, variable: usize, target: &Target) -> Result<HostTensor> {
        target.wait(self.buffer(0, variable).start_download()?)
    }

    /// Keeps the current buffer of a variable. A write replaces the buffer, and a run does not
    /// donate one that is saved, so its elements do not change.
    pub(super) fn save(&self, variable: usize, target: &Target) -> SavedBuffer {
        SavedBuffer { buffer: self.copies[0][variable].clone(), target: target.clone() }
    }

    /// Returns whether the current value of a variable is saved, so that a run must not donate it.
    pub(super) fn is_saved(&self, variable: usize) -> bool {
        Arc::strong_count(&self.copies[0][variable]) > 1
    }

    pub(super) fn write(&mut self, variable: usize, value: &HostTensor, target: &Target) -> Result<()> {
        // Create all buffers before replacing the first, so that copies stay equal after an error.
        let made = (0..self.copies.len()).map(|tower| target.upload(value, tower));
        let made = made.collect::<Result<Vec<Buffer>>>()?;
        for (copy, value) in self.copies.iter_mut().zip(made) {
            copy[variable] = Arc::new(value);
        }
        Ok(())
    }

    /// Replaces variables and flags by the outputs of a run on the devices of its towers. Other
    /// devices get a copy of the first tower's.
    pub(super) fn update(
        &mut self,
        updated: &[usize],
        next: Vec<Vec<Buffer>>,
        prior_steps_ok: Vec<Buffer>,
        target: &Target,
    ) -> Result<()> {
        // Create all buffers before replacing the first, so that copies stay equal after an error.
        let (mut next, mut prior_steps_ok) = (next, prior_steps_ok);
        for tower in next.len()..self.copies.len() {
            let device = target.device(tower)?;
            let copy = next[0].iter().map(|value| value.copy_to(device)).collect::<Result<_>>()?;
            prior_steps_ok.push(prior_steps_ok[0].copy_to(device)?);
            next.push(copy);
        }
        for (ok, next) in self.prior_steps_ok.iter_mut().zip(prior_steps_ok) {
            *ok = next;
        }
        for (copy, next) in self.copies.iter_mut().zip(next) {
            for (&v, value) in updated.iter().zip(next) {
                match Arc::get_mut(&mut copy[v]) {
                    Some(buffer) => *buffer = value,
                    // The current value is saved.
                    None => copy[v] = Arc::new(value),
                }
            }
        }
        Ok(())
    }
}
