//! The variables of a session, on every device that runs a tower. All copies are equal between runs.

use super::target::Target;
use crate::runtime::executor::SavedValue;
use std::sync::Arc;
use std::time::Duration;
use tensorpack_pjrt::Buffer;
use tensorpack_tensor::{DType, Error, HostTensor, Result};

/// By tower, the buffer of each variable.
#[derive(Debug, Default)]
pub(super) struct Variables {
    copies: Vec<Vec<Arc<Buffer>>>,
    /// Type and sizes of each variable.
    forms: Vec<(DType, Vec<usize>)>,
    /// By tower, whether every run so far went prior_steps_ok, as far as runs know of each other: one that finds it false changes
    /// nothing. So runs can be started before it is known how the last one ended.
    prior_steps_ok: Vec<Buffer>,
}

/// The value that a variable had, still on the device of the first tower.
pub(super) struct SavedBuffer {
    pub(super) buffer: Arc<Buffer>,
    timeout: Duration,
}

impl SavedValue for SavedBuffer {
    fn read(&self) -> Result<HostTensor> {
        self.buffer.download(self.timeout)
    }
}

impl Variables {
    /// With these values, on the first tower's device.
    pub(super) fn new(
        first: Vec<Buffer>,
        forms: Vec<(DType, Vec<usize>)>,
        target: &Target,
    ) -> Result<Variables> {
        let prior_steps_ok = vec![target.upload(&HostTensor::scalar(true), 0)?];
        let first = first.into_iter().map(Arc::new).collect();
        Ok(Variables { copies: vec![first], forms, prior_steps_ok })
    }

    /// Makes copies for so many towers, if there are not as many yet.
    pub(super) fn spread(&mut self, target: &Target, towers: usize) -> Result<()> {
        for tower in self.copies.len()..towers {
            let device = target.device(tower)?;
            let copy = self.copies[0].iter().map(|v| Ok(Arc::new(v.copy_to(device)?)));
            let copy = copy.collect::<Result<_>>()?;
            let prior_steps_ok = self.prior_steps_ok[0].copy_to(device)?;
            // Both or neither: a tower with variables but no flag would never get one.
            self.copies.push(copy);
            self.prior_steps_ok.push(prior_steps_ok);
        }
        Ok(())
    }

    pub(super) fn of(&self, tower: usize, variable: usize) -> &Buffer {
        &self.copies[tower][variable]
    }

    /// Whether every run so far went prior_steps_ok, for the program of a tower.
    pub(super) fn prior_steps_ok(&self, tower: usize) -> &Buffer {
        &self.prior_steps_ok[tower]
    }

    /// From here on runs change variables again, though one did not go prior_steps_ok.
    pub(super) fn reset_ok(&mut self, target: &Target) -> Result<()> {
        let fresh =
            (0..self.prior_steps_ok.len()).map(|tower| target.upload(&HostTensor::scalar(true), tower));
        self.prior_steps_ok = fresh.collect::<Result<_>>()?;
        Ok(())
    }

    /// Type and sizes of a variable; an error if there is none of this number.
    pub(super) fn known(&self, variable: usize) -> Result<(DType, &[usize])> {
        let form = self.forms.get(variable).map(|(dtype, sizes)| (*dtype, &sizes[..]));
        form.ok_or_else(|| Error::argument(format!("there is no variable number {variable}")))
    }

    pub(super) fn read(&self, variable: usize, target: &Target) -> Result<HostTensor> {
        self.of(0, variable).download(target.options.deadline)
    }

    /// Keeps the current buffer of a variable. A write replaces the buffer, and a run does not
    /// donate one that is saved, so its elements do not change.
    pub(super) fn save(&self, variable: usize, target: &Target) -> SavedBuffer {
        SavedBuffer { buffer: self.copies[0][variable].clone(), timeout: target.options.deadline }
    }

    /// Returns whether the current value of a variable is saved, so that a run must not donate it.
    pub(super) fn is_saved(&self, variable: usize) -> bool {
        Arc::strong_count(&self.copies[0][variable]) > 1
    }

    pub(super) fn write(&mut self, variable: usize, value: &HostTensor, target: &Target) -> Result<()> {
        // All are there before the first is replaced: copies stay equal.
        let made = (0..self.copies.len()).map(|tower| target.upload(value, tower));
        let made = made.collect::<Result<Vec<Buffer>>>()?;
        for (copy, value) in self.copies.iter_mut().zip(made) {
            copy[variable] = Arc::new(value);
        }
        Ok(())
    }

    /// Gives variables the values that a run made for them, on the devices of its towers, with whether that went prior_steps_ok;
    /// other devices get the first's.
    pub(super) fn update(
        &mut self,
        updated: &[usize],
        next: Vec<Vec<Buffer>>,
        prior_steps_ok: Vec<Buffer>,
        target: &Target,
    ) -> Result<()> {
        // All are there before the first is replaced: copies stay equal.
        let (mut next, mut prior_steps_ok) = (next, prior_steps_ok);
        for tower in next.len()..self.copies.len() {
            let device = target.device(tower)?;
            let copy = next[0].iter().map(|value| value.copy_to(device)).collect::<Result<_>>()?;
            prior_steps_ok.push(prior_steps_ok[0].copy_to(device)?);
            next.push(copy);
        }
        for (is_well, next) in self.prior_steps_ok.iter_mut().zip(prior_steps_ok) {
            *is_well = next;
        }
        for (copy, next) in self.copies.iter_mut().zip(next) {
            for (&v, value) in updated.iter().zip(next) {
                copy[v] = Arc::new(value);
            }
        }
        Ok(())
    }
}
