//! Variables in slabs: those of one slab lie one behind the other, in the order they were made, so that an optimizer
//! is one pass over memory, and its slots lie in slabs of the same form.

use super::memory::{Block, padded};
use super::overflow::{Measured, Value, bound};
use crate::graph::VariableInfo;
use crate::kir;
use crate::runtime::executor::check_value;
use crate::runtime::memory_limit;
use tensorpack_kernels::{Isa, extremes};
use tensorpack_tensor::{DType, Error, HostTensor, Result, element_count};

/// Where a variable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) slab: usize,
    /// In bytes from the slab's beginning.
    pub(super) offset: usize,
}

/// All variables of a session.
#[derive(Debug, Default)]
pub(super) struct Variables {
    slabs: Vec<Block>,
    places: Vec<Place>,
    forms: Vec<(DType, Vec<usize>)>,
    /// What is known of each; nothing of a copy.
    pub(super) known: Vec<Value>,
    /// Where passes over variables find the extremes of what they write.
    pub(super) measured: Vec<Measured>,
    /// How often a run has changed them.
    pub(super) version: u64,
}

impl Variables {
    pub(super) fn new(infos: &[VariableInfo], seed: u64, limit: Option<usize>) -> Result<Variables> {
        let mut names: Vec<(&str, DType)> = Vec::new();
        let mut sizes: Vec<usize> = Vec::new();
        let mut places = Vec::new();
        for v in infos {
            let key = (v.slab.as_str(), v.dtype);
            let slab = names.iter().position(|n| *n == key).unwrap_or_else(|| {
                names.push(key);
                sizes.push(0);
                names.len() - 1
            });
            places.push(Place { slab, offset: sizes[slab] });
            let bytes = padded(element_count(&v.sizes)? * v.dtype.size());
            sizes[slab] = sizes[slab].saturating_add(bytes);
        }
        memory_limit::check(sizes.iter().fold(0, |n, &s| n.saturating_add(s)), "the variables", limit)?;
        let slabs = sizes.iter().map(|&n| Block::zeroed(n)).collect::<Result<Vec<Block>>>()?;
        let forms = infos.iter().map(|v| (v.dtype, v.sizes.clone())).collect();
        let measured = infos.iter().map(|_| Measured::default()).collect();
        let known = vec![Value::default(); infos.len()];
        let mut variables = Variables { slabs, places, forms, known, measured, version: 0 };
        for (i, v) in infos.iter().enumerate() {
            variables.write(i, &v.init.value(seed, &v.name, v.dtype, &v.sizes)?)?;
        }
        Ok(variables)
    }

    /// Room for a copy of these, all zero.
    pub(super) fn room(&self) -> Result<Variables> {
        let slabs = self.slabs.iter().map(|b| Block::zeroed(b.len())).collect::<Result<Vec<Block>>>()?;
        let (places, forms) = (self.places.clone(), self.forms.clone());
        Ok(Variables { slabs, places, forms, known: Vec::new(), measured: Vec::new(), version: 0 })
    }

    /// Copies the values of some variables of `others`, which lie as these do.
    pub(super) fn copy_some(&mut self, others: &Variables, some: &[usize]) {
        for &index in some {
            let (place, (dtype, sizes)) = (self.places[index], &self.forms[index]);
            let bytes = kir::elements(sizes) * dtype.size();
            let (from, to) = (others.slab(place.slab), self.slab(place.slab));
            // SAFETY: both slabs were made with room for this variable at its place; they are two pieces of memory, one
            // borrowed for reading and one for writing.
            unsafe { std::ptr::copy_nonoverlapping(from.add(place.offset), to.add(place.offset), bytes) };
        }
        self.version = others.version;
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.forms.len()
    }

    pub(super) fn place(&self, index: usize) -> Place {
        self.places[index]
    }

    pub(super) fn slab(&self, slab: usize) -> *mut u8 {
        self.slabs[slab].as_ptr()
    }

    pub(super) fn read(&self, index: usize) -> Result<HostTensor> {
        let Some((dtype, sizes)) = self.forms.get(index) else {
            return Err(Error::argument(format!("there is no variable number {index}")));
        };
        let mut value = HostTensor::zeros(*dtype, sizes.as_slice())?;
        let place = self.places[index];
        let bytes = value.len() * dtype.size();
        // SAFETY: the slab was made with room for this variable at its place, and nobody writes it meanwhile.
        let there = unsafe { std::slice::from_raw_parts(self.slab(place.slab).add(place.offset), bytes) };
        value.copy_from_bytes(there)?;
        Ok(value)
    }

    /// Overwrites a variable with a value of its own type and sizes.
    pub(super) fn write(&mut self, index: usize, value: &HostTensor) -> Result<()> {
        check_value(self.forms.get(index).map(|(dtype, sizes)| (*dtype, &sizes[..])), index, value)?;
        let place = self.places[index];
        let bytes = value.as_bytes();
        // SAFETY: as in `read`; `value` has this variable's own form, as was just checked.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.slab(place.slab).add(place.offset),
                bytes.len(),
            )
        };
        self.look_at(index);
        Ok(())
    }

    /// Finds the extremes of a variable as it is.
    pub(super) fn look_at(&mut self, index: usize) {
        let (place, (dtype, sizes)) = (self.places[index], &self.forms[index]);
        let len = sizes.iter().product();
        // SAFETY: the slab was made with room for this variable at its place, and nobody writes it
        // meanwhile.
        let of = unsafe { extremes(Isa::detect(), *dtype, self.slab(place.slab).add(place.offset), len) };
        self.known[index] = Value { bound: bound(of, *dtype, len == 1), proven: false };
    }

    /// Takes what a pass has found of a variable that it wrote.
    pub(super) fn take_measured(&mut self, index: usize) {
        let (dtype, sizes) = &self.forms[index];
        let single = sizes.iter().product::<usize>() == 1;
        self.known[index] = Value { bound: bound(self.measured[index].get(), *dtype, single), proven: false };
    }
}
