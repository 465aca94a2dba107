//! Conversion between tensors and bytes of either byte order.

use std::borrow::Cow;
use tensorpack_tensor::{DType, HostTensor, Result, element_count};

/// Byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endian {
    Little,
    Big,
}

impl Endian {
    const NATIVE: Endian = if cfg!(target_endian = "big") { Endian::Big } else { Endian::Little };
}

/// Returns the size of a tensor in bytes, or an error on overflow.
pub(super) fn byte_count(dtype: DType, sizes: &[usize]) -> Result<usize> {
    // Cannot overflow: an element count is at most an eighth of the address space.
    Ok(element_count(sizes)? * dtype.size())
}

/// Creates a tensor from exactly these bytes. The caller has read them, so the allocation is
/// bounded by the file.
pub(super) fn tensor_from_bytes(
    dtype: DType,
    sizes: Vec<usize>,
    bytes: &[u8],
    order: Endian,
) -> Result<HostTensor> {
    if dtype == DType::U8 {
        return HostTensor::new(sizes, bytes.to_vec());
    }
    let mut tensor = HostTensor::zeros(dtype, sizes)?;
    tensor.copy_from_bytes(&to_endian(dtype, bytes, order))?;
    Ok(tensor)
}

/// Returns the elements of a tensor in little-endian byte order.
pub(super) fn little_endian(tensor: &HostTensor) -> Cow<'_, [u8]> {
    to_endian(tensor.dtype(), tensor.as_bytes(), Endian::Little)
}

fn to_endian(dtype: DType, bytes: &[u8], order: Endian) -> Cow<'_, [u8]> {
    if order == Endian::NATIVE || dtype.size() == 1 {
        return Cow::Borrowed(bytes);
    }
    let mut bytes = bytes.to_vec();
    bytes.chunks_exact_mut(dtype.size()).for_each(|number| number.reverse());
    Cow::Owned(bytes)
}
