//! Tensors from the bytes of files, which may have another byte order than the machine.

use std::borrow::Cow;
use tensorpack_tensor::{DType, HostTensor, Result, element_count};

/// The order of a number's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    const MACHINE: Order = if cfg!(target_endian = "big") { Order::Big } else { Order::Little };
}

/// How many bytes a tensor takes, or an error if they cannot be counted.
pub(super) fn byte_count(dtype: DType, sizes: &[usize]) -> Result<usize> {
    // A count is at most an eighth of what can be addressed.
    Ok(element_count(sizes)? * dtype.size())
}

/// A tensor of exactly these bytes. Whoever calls has checked that they are there, so that nothing is made too large.
pub(super) fn tensor(dtype: DType, sizes: Vec<usize>, bytes: &[u8], order: Order) -> Result<HostTensor> {
    if dtype == DType::U8 {
        return HostTensor::new(sizes, bytes.to_vec());
    }
    let mut tensor = HostTensor::zeros(dtype, sizes)?;
    tensor.copy_from_bytes(&reorder(dtype, bytes, order))?;
    Ok(tensor)
}

/// A tensor's bytes, low bytes first.
pub(super) fn little_endian(tensor: &HostTensor) -> Cow<'_, [u8]> {
    reorder(tensor.dtype(), tensor.as_bytes(), Order::Little)
}

fn reorder(dtype: DType, bytes: &[u8], order: Order) -> Cow<'_, [u8]> {
    if order == Order::MACHINE || dtype.size() == 1 {
        return Cow::Borrowed(bytes);
    }
    let mut bytes = bytes.to_vec();
    bytes.chunks_exact_mut(dtype.size()).for_each(|number| number.reverse());
    Cow::Owned(bytes)
}
