//! Tensors in host memory, used to feed, fetch, save and load values.

use crate::{DType, Element, Error, ErrorKind, Result, element_count};
use half::{bf16, f16};
use std::fmt;
use std::sync::Arc;

/// A dense, row-major tensor in host memory.
///
/// Clones share the elements and are copy-on-write.
#[derive(Clone, PartialEq)]
pub struct HostTensor {
    sizes: Vec<usize>,
    storage: Arc<Storage>,
}

/// The elements, one variant per type.
#[doc(hidden)]
#[derive(Clone, PartialEq)]
pub enum Storage {
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    U8(Vec<u8>),
    Bool(Vec<bool>),
}

/// Runs `$body` with `$v` bound to the typed vector inside the storage.
macro_rules! dispatch_storage {
    ($storage:expr, $v:ident => $body:expr) => {
        match $storage {
            Storage::F32($v) => $body,
            Storage::F64($v) => $body,
            Storage::Bf16($v) => $body,
            Storage::F16($v) => $body,
            Storage::I32($v) => $body,
            Storage::I64($v) => $body,
            Storage::U8($v) => $body,
            Storage::Bool($v) => $body,
        }
    };
}

impl HostTensor {
    /// Creates a tensor from `values` in row-major order.
    pub fn new<T: Element>(sizes: impl Into<Vec<usize>>, values: Vec<T>) -> Result<HostTensor> {
        let sizes = sizes.into();
        let n = element_count(&sizes)?;
        if n != values.len() {
            return Err(Error::shape(format!(
                "a tensor of shape {sizes:?} has {n} elements, but {} were given",
                values.len()
            )));
        }
        Ok(HostTensor { sizes, storage: Arc::new(T::wrap(values)) })
    }

    /// Creates a scalar.
    pub fn scalar<T: Element>(value: T) -> HostTensor {
        HostTensor { sizes: Vec::new(), storage: Arc::new(T::wrap(vec![value])) }
    }

    /// Creates a tensor of zeros.
    pub fn zeros(dtype: DType, sizes: impl Into<Vec<usize>>) -> Result<HostTensor> {
        let sizes = sizes.into();
        let n = element_count(&sizes)?;
        let bytes = n.saturating_mul(dtype.size());
        if !can_allocate(bytes) {
            let why = format!("cannot allocate {bytes} bytes for a tensor of shape {sizes:?}");
            return Err(Error::new(ErrorKind::Memory, why));
        }
        let storage = match dtype {
            DType::F32 => Storage::F32(vec![0.0; n]),
            DType::F64 => Storage::F64(vec![0.0; n]),
            DType::Bf16 => Storage::Bf16(vec![bf16::ZERO; n]),
            DType::F16 => Storage::F16(vec![f16::ZERO; n]),
            DType::I32 => Storage::I32(vec![0; n]),
            DType::I64 => Storage::I64(vec![0; n]),
            DType::U8 => Storage::U8(vec![0; n]),
            DType::Bool => Storage::Bool(vec![false; n]),
        };
        Ok(HostTensor { sizes, storage: Arc::new(storage) })
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        match &*self.storage {
            Storage::F32(_) => DType::F32,
            Storage::F64(_) => DType::F64,
            Storage::Bf16(_) => DType::Bf16,
            Storage::F16(_) => DType::F16,
            Storage::I32(_) => DType::I32,
            Storage::I64(_) => DType::I64,
            Storage::U8(_) => DType::U8,
            Storage::Bool(_) => DType::Bool,
        }
    }

    /// Returns the shape.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        dispatch_storage!(&*self.storage, v => v.len())
    }

    /// Returns whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the elements in row-major order, or an error if they are not of type `T`.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        T::slice(&self.storage)
            .ok_or_else(|| Error::dtype(format!("the tensor has dtype {}, not {}", self.dtype(), T::DTYPE)))
    }

    /// Returns the elements for writing, or an error if they are not of type `T`. Shared elements
    /// are copied first.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        let dtype = self.dtype();
        T::slice_mut(Arc::make_mut(&mut self.storage))
            .ok_or_else(|| Error::dtype(format!("the tensor has dtype {dtype}, not {}", T::DTYPE)))
    }

    /// Returns whether `other` is a clone of this tensor: the same shape and the same memory.
    pub fn shares_elements(&self, other: &HostTensor) -> bool {
        self.sizes == other.sizes && Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// Returns the elements as bytes in native byte order.
    pub fn as_bytes(&self) -> &[u8] {
        match &*self.storage {
            // SAFETY: bool has size and alignment 1 and no uninitialized bytes, and any bool is a
            // valid u8.
            Storage::Bool(v) => unsafe { std::slice::from_raw_parts(v.as_ptr().cast(), v.len()) },
            Storage::F32(v) => bytemuck::cast_slice(v),
            Storage::F64(v) => bytemuck::cast_slice(v),
            Storage::Bf16(v) => bytemuck::cast_slice(v),
            Storage::F16(v) => bytemuck::cast_slice(v),
            Storage::I32(v) => bytemuck::cast_slice(v),
            Storage::I64(v) => bytemuck::cast_slice(v),
            Storage::U8(v) => v,
        }
    }

    /// Overwrites the elements with `bytes` in native byte order. The lengths must match.
    pub fn copy_from_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.len() * self.dtype().size() {
            return Err(Error::shape(format!(
                "{} bytes do not match a {} tensor of shape {:?}",
                bytes.len(),
                self.dtype(),
                self.sizes
            )));
        }
        match Arc::make_mut(&mut self.storage) {
            Storage::Bool(v) => v.iter_mut().zip(bytes).for_each(|(v, &b)| *v = b != 0),
            Storage::F32(v) => bytemuck::cast_slice_mut(v).copy_from_slice(bytes),
            Storage::F64(v) => bytemuck::cast_slice_mut(v).copy_from_slice(bytes),
            Storage::Bf16(v) => bytemuck::cast_slice_mut(v).copy_from_slice(bytes),
            Storage::F16(v) => bytemuck::cast_slice_mut(v).copy_from_slice(bytes),
            Storage::I32(v) => bytemuck::cast_slice_mut(v).copy_from_slice(bytes),
            Storage::I64(v) => bytemuck::cast_slice_mut(v).copy_from_slice(bytes),
            Storage::U8(v) => v.copy_from_slice(bytes),
        }
        Ok(())
    }

    /// Converts all elements to f64.
    pub fn to_f64_vec(&self) -> Vec<f64> {
        match &*self.storage {
            Storage::F32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Storage::F64(v) => v.clone(),
            Storage::Bf16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Storage::F16(v) => v.iter().map(|x| x.to_f64()).collect(),
            Storage::I32(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Storage::I64(v) => v.iter().map(|&x| x as f64).collect(),
            Storage::U8(v) => v.iter().map(|&x| f64::from(x)).collect(),
            Storage::Bool(v) => v.iter().map(|&x| f64::from(u8::from(x))).collect(),
        }
    }

    /// Creates a tensor of `dtype` from f64 values, converted like Rust's `as`.
    pub fn from_f64(dtype: DType, sizes: impl Into<Vec<usize>>, values: &[f64]) -> Result<HostTensor> {
        let sizes = sizes.into();
        match dtype {
            DType::F32 => HostTensor::new(sizes, values.iter().map(|&x| x as f32).collect()),
            DType::F64 => HostTensor::new(sizes, values.to_vec()),
            // Through f32, like a cast. `bf16::from_f64` drops the last 32 bits before it rounds.
            DType::Bf16 => HostTensor::new(sizes, values.iter().map(|&x| bf16::from_f32(x as f32)).collect()),
            DType::F16 => HostTensor::new(sizes, values.iter().map(|&x| f16::from_f32(x as f32)).collect()),
            DType::I32 => HostTensor::new(sizes, values.iter().map(|&x| x as i32).collect()),
            DType::I64 => HostTensor::new(sizes, values.iter().map(|&x| x as i64).collect()),
            DType::U8 => HostTensor::new(sizes, values.iter().map(|&x| x as u8).collect()),
            DType::Bool => HostTensor::new(sizes, values.iter().map(|&x| x != 0.0).collect()),
        }
    }

    /// Returns the value of a one-element tensor as f64.
    pub fn to_scalar(&self) -> Result<f64> {
        match self.len() {
            1 => Ok(self.to_f64_vec()[0]),
            n => Err(Error::shape(format!("a tensor of shape {:?} has {n} elements, not one", self.sizes))),
        }
    }
}

/// Returns whether an allocation of this size would succeed. Only large sizes are tried: `vec!`
/// aborts the process when it runs out of memory.
fn can_allocate(bytes: usize) -> bool {
    const LARGE: usize = 1 << 24;
    let mut room = Vec::<u8>::new();
    // `black_box` keeps the compiler from removing the unused allocation.
    bytes < LARGE || std::hint::black_box(&mut room).try_reserve_exact(bytes).is_ok()
}

impl fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "{}{:?} ", self.dtype(), self.sizes)?;
        dispatch_storage!(&*self.storage, v => f.debug_list().entries(v.iter().take(SHOWN)).finish())?;
        if self.len() > SHOWN { write!(f, " and {} more", self.len() - SHOWN) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_copy_on_write() {
        let a = HostTensor::new([2], vec![1.0f32, 2.0]).unwrap();
        let mut b = a.clone();
        assert!(a.shares_elements(&b));
        b.as_mut_slice::<f32>().unwrap()[0] = 9.0;
        assert!(!a.shares_elements(&b));
        assert_eq!(a.as_slice::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(b.as_slice::<f32>().unwrap(), [9.0, 2.0]);
    }

    #[test]
    fn wrong_counts_and_types_are_errors() {
        assert!(HostTensor::new([3], vec![1i32]).is_err());
        let t = HostTensor::scalar(1i64);
        assert_eq!(t.as_slice::<f32>().unwrap_err().kind(), ErrorKind::DType);
        assert!(HostTensor::zeros(DType::U8, [usize::MAX, 3]).is_err());
    }

    #[test]
    fn bytes_round_trip_for_every_type() {
        for dtype in DType::ALL {
            let t = HostTensor::from_f64(dtype, [2, 2], &[0.0, 1.0, 1.0, 0.0]).unwrap();
            let mut u = HostTensor::zeros(dtype, [2, 2]).unwrap();
            u.copy_from_bytes(t.as_bytes()).unwrap();
            assert_eq!(t, u);
            assert!(u.copy_from_bytes(&[0]).is_err());
        }
    }

    #[test]
    fn bf16_is_rounded_to_the_nearest() {
        // The neighbors are 1 and 1 + 2^-7; the middle is 1 + 2^-8.
        let value = 1.0 + 2f64.powi(-8) + 2f64.powi(-22);
        let t = HostTensor::from_f64(DType::Bf16, [2], &[value, -value]).unwrap();
        assert_eq!(t.to_f64_vec(), [1.0 + 2f64.powi(-7), -1.0 - 2f64.powi(-7)]);
    }

    #[test]
    fn f16_is_rounded_to_the_nearest_and_overflows_to_infinity() {
        // The neighbors are 1 and 1 + 2^-10; the middle is 1 + 2^-11.
        let value = 1.0 + 2f64.powi(-11) + 2f64.powi(-22);
        let smallest = 2f64.powi(-24);
        let t = HostTensor::from_f64(DType::F16, [4], &[value, 65504.0, 65520.0, smallest]).unwrap();
        assert_eq!(t.to_f64_vec(), [1.0 + 2f64.powi(-10), 65504.0, f64::INFINITY, smallest]);
    }
}
