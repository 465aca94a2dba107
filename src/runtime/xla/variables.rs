//! The variables of a session, with a copy on the device of every tower. Copies are equal between
//! runs. Of variables that are divided over the devices, each has its shard.

use super::target::Target;
use crate::kir::Shards;
use crate::runtime::executor::SavedValue;
use std::sync::Arc;
use tensorpack_pjrt::Buffer;
use tensorpack_tensor::{DType, Error, HostTensor, Result, element_count};

/// The buffers of all variables, with one copy per tower.
#[derive(Debug, Default)]
pub(super) struct Variables {
    copies: Vec<Vec<Arc<Buffer>>>,
    /// Dtype and sizes of each variable.
    specs: Vec<(DType, Vec<usize>)>,
    /// The shards of variables that are divided.
    divided: Vec<Option<Shards>>,
    /// A flag per tower: whether all runs so far succeeded. A run that finds it false changes no
    /// variable, so runs can be launched before the outcome of the last one is known.
    prior_steps_ok: Vec<Buffer>,
    /// The number of updates, counted once there are forks.
    pub(super) version: u64,
}

/// The value that a variable had, still on the device of the first tower, or in shards on all.
pub(super) struct SavedBuffer {
    pub(super) buffers: Vec<Arc<Buffer>>,
    spec: (DType, Vec<usize>),
    shards: Option<Shards>,
    target: Target,
}

impl SavedValue for SavedBuffer {
    fn read(&self) -> Result<HostTensor> {
        let Some(shards) = self.shards else {
            return self.target.wait(self.buffers[0].start_download()?);
        };
        let (dtype, sizes) = &self.spec;
        let mut whole = HostTensor::zeros(*dtype, sizes.as_slice())?;
        let mut bytes = Vec::with_capacity(whole.as_bytes().len());
        for (index, buffer) in self.buffers.iter().enumerate() {
            let part = shards.part(whole.len(), index).len() * dtype.size();
            bytes.extend_from_slice(&self.target.wait(buffer.start_download()?)?.as_bytes()[..part]);
        }
        whole.copy_from_bytes(&bytes)?;
        Ok(whole)
    }
}

/// Returns a shard of a value.
pub(super) fn shard(value: &HostTensor, shards: Shards, index: usize) -> Result<HostTensor> {
    let (start, len) = (shards.start(value.len(), index), shards.len(value.len()));
    let size = value.dtype().size();
    let mut shard = HostTensor::zeros(value.dtype(), [len])?;
    shard.copy_from_bytes(&value.as_bytes()[start * size..(start + len) * size])?;
    Ok(shard)
}

impl Variables {
    /// Creates the variables from buffers on the device of the first tower.
    pub(super) fn new(
        first: Vec<Buffer>,
        specs: Vec<(DType, Vec<usize>)>,
        divided: Vec<Option<Shards>>,
        target: &Target,
    ) -> Result<Variables> {
        let prior_steps_ok = vec![target.upload(&HostTensor::scalar(true), 0)?];
        let first = first.into_iter().map(Arc::new).collect();
        Ok(Variables { copies: vec![first], specs, divided, prior_steps_ok, version: 0 })
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

    /// Waits for the runs that were launched on the devices of all towers.
    pub(super) fn wait(&self, target: &Target) -> Result<()> {
        // Every run writes the flags.
        self.prior_steps_ok.iter().try_for_each(|ok| target.wait(ok.start_download()?).map(|_| ()))
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
        self.save(variable, target).read()
    }

    /// Keeps the current buffer of a variable. A write replaces the buffer, and a run does not
    /// donate one that is saved, so its elements do not change.
    pub(super) fn save(&self, variable: usize, target: &Target) -> SavedBuffer {
        let shards = self.divided[variable];
        let copies = self.copies.iter().take(shards.map_or(1, |shards| shards.count));
        let buffers = copies.map(|copy| copy[variable].clone()).collect();
        SavedBuffer { buffers, spec: self.specs[variable].clone(), shards, target: target.clone() }
    }

    /// Returns the current value of a variable on the device of a tower: the buffer itself on the first
    /// device, where no run donates it as long as it is shared, or else a copy.
    pub(super) fn share(&self, variable: usize, tower: usize, target: &Target) -> Result<Arc<Buffer>> {
        let current = &self.copies[0][variable];
        match tower {
            0 => Ok(current.clone()),
            _ => Ok(Arc::new(current.copy_to(target.device(tower)?)?)),
        }
    }

    /// Returns the size of all variables in bytes.
    pub(super) fn bytes(&self) -> Result<usize> {
        let mut bytes = 0usize;
        for (dtype, sizes) in &self.specs {
            bytes = bytes.saturating_add(element_count(sizes)?.saturating_mul(dtype.size()));
        }
        Ok(bytes)
    }

    /// Returns the size in bytes of what a device has of all variables.
    pub(super) fn device_bytes(&self) -> usize {
        let of_variable = |((dtype, sizes), divided): (&(DType, Vec<usize>), &Option<Shards>)| {
            let len = element_count(sizes).unwrap_or(usize::MAX);
            divided.map_or(len, |shards| shards.len(len)).saturating_mul(dtype.size())
        };
        self.specs.iter().zip(&self.divided).map(of_variable).fold(0, usize::saturating_add)
    }

    /// Returns the number of towers that have a copy.
    pub(super) fn towers(&self) -> usize {
        self.copies.len()
    }

    /// Returns whether the current value of a variable is saved, so that a run must not donate it.
    pub(super) fn is_saved(&self, variable: usize) -> bool {
        Arc::strong_count(&self.copies[0][variable]) > 1
    }

    pub(super) fn write(&mut self, variable: usize, value: &HostTensor, target: &Target) -> Result<()> {
        // Create all buffers before replacing the first, so that copies stay equal after an error.
        let upload = |tower: usize| match self.divided[variable] {
            Some(shards) => target.upload(&shard(value, shards, tower)?, tower),
            None => target.upload(value, tower),
        };
        let made = (0..self.copies.len()).map(upload);
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
