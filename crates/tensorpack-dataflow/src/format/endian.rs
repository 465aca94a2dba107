//! Tensors from the bytes of files, which may have another byte order than the machine.

use std::borrow::Cow;
use tensorpack_tensor::{DType, HostTensor, Result, element_count};

/// The order of a number's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endian {
    Little,
    Big,
}

impl Endian {
    const NATIVE: Endian = if cfg!(target_endian = "big") { Endian::Big } else { Endian::Little };
}

/// How many bytes a tensor takes, or an error if they cannot be counted.
pub(super) fn byte_count(dtype: DType, sizes: &[usize]) -> Result<usize> {
    // A count is at most an eighth of what can be addressed.
    Ok(element_count(sizes)? * dtype.size())
}

/// A tensor of exactly these bytes. Whoever calls has checked that they are there, so that nothing is made too large.
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

/// A tensor's bytes, low bytes first.
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
