//! Variables, stored in slabs. The variables of a slab are contiguous, in the order they were
//! created, so that an optimizer step is one pass over memory. Optimizer slots are stored in slabs
//! of the same layout.

use super::memory::{Block, padded};
use super::overflow::{Measured, Value, bound};
use crate::graph::VariableInfo;
use crate::kir::{self, Shards};
use crate::runtime::executor::check_value;
use crate::runtime::memory_limit;
use crate::runtime::shard_updates::stored_shards;
use tensorpack_kernels::{Isa, extremes};
use tensorpack_tensor::{DType, Error, HostTensor, Result, element_count};

/// The location of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slab: usize,
    /// Offset in bytes from the start of the slab.
    pub(super) offset: usize,
}

/// All variables of a session.
#[derive(Debug, Default)]
pub(super) struct Variables {
    slabs: Vec<Block>,
    places: Vec<Place>,
    /// Type and sizes of each variable as it is stored.
    types: Vec<(DType, Vec<usize>)>,
    /// The sizes of the whole variable, and the shard that is stored, for those that are divided
    /// over processes.
    divided: Vec<Option<(Vec<usize>, Shards)>>,
    /// The known bounds of each variable; empty in a snapshot.
    pub(super) known: Vec<Value>,
    /// The extremes that fused updates record.
    pub(super) measured: Vec<Measured>,
    /// Number of runs that changed the variables.
    pub(super) version: u64,
    /// Increases whenever a value may change, by a run or otherwise.
    pub(super) revision: u64,
}

impl Variables {
    /// Allocates and initializes variables; of those that are divided, only the own shard.
    pub(super) fn new(
        infos: &[VariableInfo],
        seed: u64,
        limit: Option<usize>,
        shards: Option<Shards>,
    ) -> Result<Variables> {
        let divided = infos.iter().map(|v| Some((v.sizes.clone(), stored_shards(v, shards)?)));
        let divided: Vec<Option<(Vec<usize>, Shards)>> = divided.collect();
        let mut types = Vec::new();
        for (v, divided) in infos.iter().zip(&divided) {
            let elements = element_count(&v.sizes)?;
            let sizes = divided.as_ref().map_or(v.sizes.clone(), |(_, shards)| vec![shards.len(elements)]);
            types.push((v.dtype, sizes));
        }
        let mut names: Vec<(&str, DType)> = Vec::new();
        let mut sizes: Vec<usize> = Vec::new();
        let mut places = Vec::new();
        for (v, (dtype, stored)) in infos.iter().zip(&types) {
            let key = (v.slab.as_str(), v.dtype);
            let slab = names.iter().position(|n| *n == key).unwrap_or_else(|| {
                names.push(key);
                sizes.push(0);
                names.len() - 1
            });
            places.push(Place { slab, offset: sizes[slab] });
            let bytes = padded(element_count(stored)? * dtype.size());
            sizes[slab] = sizes[slab].saturating_add(bytes);
        }
        memory_limit::check(sizes.iter().fold(0, |n, &s| n.saturating_add(s)), "the variables", limit)?;
        let slabs = sizes.iter().map(|&n| Block::zeroed(n)).collect::<Result<Vec<Block>>>()?;
        let measured = infos.iter().map(|_| Measured::default()).collect();
        let known = vec![Value::default(); infos.len()];
        let (version, revision) = (0, 0);
        let mut variables = Variables { slabs, places, types, divided, known, measured, version, revision };
        for (i, v) in infos.iter().enumerate() {
            variables.write(i, &v.init.value(seed, &v.name, v.dtype, &v.sizes)?)?;
        }
        Ok(variables)
    }

    /// Returns zeroed memory for a copy of these variables.
    pub(super) fn zeroed_copy(&self) -> Result<Variables> {
        let slabs = self.slabs.iter().map(|b| Block::zeroed(b.len())).collect::<Result<Vec<Block>>>()?;
        let (places, types, divided) = (self.places.clone(), self.types.clone(), self.divided.clone());
        Ok(Variables { slabs, places, types, divided, ..Variables::default() })
    }

    /// Copies the values of some variables from `others`, which has the same layout.
    pub(super) fn copy_some(&mut self, others: &Variables, some: &[usize]) {
        for &index in some {
            let (place, (dtype, sizes)) = (self.places[index], &self.types[index]);
            let bytes = kir::elements(sizes) * dtype.size();
            let (from, to) = (others.slab(place.slab), self.slab(place.slab));
            // SAFETY: `Variables::new` allocated the slabs with room for this variable at its
            // offset, and `zeroed_copy` slabs of the same sizes. They are distinct: one is borrowed
            // for reading and the other for writing.
            unsafe { std::ptr::copy_nonoverlapping(from.add(place.offset), to.add(place.offset), bytes) };
        }
        self.version = others.version;
    }

    /// Returns the bytes of all slabs.
    pub(super) fn bytes(&self) -> usize {
        self.slabs.iter().fold(0, |n, slab| n.saturating_add(slab.len()))
    }

    /// Returns the number of variables.
    pub(super) fn count(&self) -> usize {
        self.types.len()
    }

    pub(super) fn place(&self, index: usize) -> Place {
        self.places[index]
    }

    pub(super) fn slab(&self, slab: usize) -> *mut u8 {
        self.slabs[slab].as_ptr()
    }

    /// Returns how a variable is divided over processes, if it is.
    pub(super) fn shards(&self, index: usize) -> Option<Shards> {
        self.divided.get(index)?.as_ref().map(|(_, shards)| *shards)
    }

    /// Returns the value of a variable as it is stored.
    pub(super) fn read(&self, index: usize) -> Result<HostTensor> {
        let Some((dtype, sizes)) = self.types.get(index) else {
            return Err(Error::argument(format!("there is no variable with index {index}")));
        };
        let mut value = HostTensor::zeros(*dtype, sizes.as_slice())?;
        value.copy_from_bytes(self.stored(index))?;
        Ok(value)
    }

    /// Overwrites `into` with the value of a variable as it is stored, in place if it has its type
    /// and sizes.
    pub(super) fn read_into(&self, index: usize, into: &mut HostTensor) -> Result<()> {
        match self.types.get(index) {
            Some((dtype, sizes)) if (into.dtype(), into.sizes()) == (*dtype, &sizes[..]) => {
                into.copy_from_bytes(self.stored(index))
            }
            _ => {
                *into = self.read(index)?;
                Ok(())
            }
        }
    }

    /// Returns the bytes of a variable.
    fn stored(&self, index: usize) -> &[u8] {
        let (place, (dtype, sizes)) = (self.places[index], &self.types[index]);
        let bytes = sizes.iter().product::<usize>() * dtype.size();
        // SAFETY: `Variables::new` allocated the slab with room for this variable at its offset.
        // Kernels write it only in a turn, while their engine holds `Taken`, as the caller of this
        // does now.
        unsafe { std::slice::from_raw_parts(self.slab(place.slab).add(place.offset), bytes) }
    }

    /// Overwrites a variable with a value of its own type and sizes. Of a variable that is divided,
    /// the own shard is written.
    pub(super) fn write(&mut self, index: usize, value: &HostTensor) -> Result<()> {
        let stored = self.types.get(index).map(|(dtype, sizes)| (*dtype, &sizes[..]));
        let divided = self.divided.get(index).and_then(Option::as_ref);
        let whole = divided.and_then(|(sizes, _)| Some((stored?.0, &sizes[..])));
        check_value(whole.or(stored), index, value)?;
        let place = self.places[index];
        let bytes = match divided {
            None => value.as_bytes(),
            Some((_, shards)) => {
                let size = value.dtype().size();
                let start = shards.start(value.len(), shards.own.unwrap_or(0)) * size;
                &value.as_bytes()[start..start + shards.len(value.len()) * size]
            }
        };
        // SAFETY: as in `read`; `check_value` has just checked the type and sizes of `value`, of
        // which `bytes` are all that is stored.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.slab(place.slab).add(place.offset),
                bytes.len(),
            )
        };
        self.revision += 1;
        self.measure(index);
        Ok(())
    }

    /// Measures the extremes of a variable.
    pub(super) fn measure(&mut self, index: usize) {
        let (place, (dtype, sizes)) = (self.places[index], &self.types[index]);
        let len = sizes.iter().product();
        // SAFETY: as in `read`; `Isa::detect` returns an instruction set of this CPU.
        let of = unsafe { extremes(Isa::detect(), *dtype, self.slab(place.slab).add(place.offset), len) };
        self.known[index] = Value { bound: bound(of, *dtype, len == 1), proven: false };
    }

    /// Takes the extremes that a fused update recorded for a variable that it wrote.
    pub(super) fn take_measured(&mut self, index: usize) {
        let (dtype, sizes) = &self.types[index];
        let single = sizes.iter().product::<usize>() == 1;
        self.known[index] = Value { bound: bound(self.measured[index].get(), *dtype, single), proven: false };
    }
}
