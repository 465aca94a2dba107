//! Serialization of samples to bytes, used by the savers.
//!
//! All numbers are little-endian:
//!
//! | bytes | content |
//! |---|---|
//! | 4 | `tps1` |
//! | 4 | number of components |
//! | for each component: | |
//! | 1 | dtype: 0 f32, 1 f64, 2 bf16, 3 i32, 4 i64, 5 u8, 6 bool, 7 f16 |
//! | 1 | rank |
//! | 8 each | sizes |
//! | remaining | elements in row-major order; a bool is 0 or 1 |

use super::RandomAccess;
use super::endian::{Endian, byte_count, little_endian, tensor_from_bytes};
use crate::{DataFlow, Sample, Seed, State};
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

const MAGIC: &[u8] = b"tps1";

/// Dtypes by their code. Codes are stored in files, so new dtypes must be appended.
const TYPES: [DType; 8] =
    [DType::F32, DType::F64, DType::Bf16, DType::I32, DType::I64, DType::U8, DType::Bool, DType::F16];

/// Serializes a sample.
#[doc(alias = "dumps")]
pub fn encode(sample: &[HostTensor]) -> Result<Vec<u8>> {
    let count = u32::try_from(sample.len()).map_err(|_| {
        Error::argument(format!("a sample of {} components is too large to serialize", sample.len()))
    })?;
    let elements: usize = sample.iter().map(|t| 2 + 8 * t.sizes().len() + t.as_bytes().len()).sum();
    let mut bytes = Vec::with_capacity(8 + elements);
    bytes.extend(MAGIC);
    bytes.extend(count.to_le_bytes());
    for tensor in sample {
        let rank = u8::try_from(tensor.sizes().len()).map_err(|_| {
            Error::shape(format!(
                "a tensor of rank {} cannot be serialized; the limit is 255",
                tensor.sizes().len()
            ))
        })?;
        let dtype = TYPES.iter().position(|&t| t == tensor.dtype()).expect("every dtype has a code");
        bytes.extend([dtype as u8, rank]);
        bytes.extend(tensor.sizes().iter().flat_map(|&n| (n as u64).to_le_bytes()));
        bytes.extend(&*little_endian(tensor));
    }
    Ok(bytes)
}

/// Deserializes a sample written by [`encode`].
#[doc(alias = "loads")]
pub fn decode(bytes: &[u8]) -> Result<Sample> {
    let mut rest = bytes;
    let mut take = |n: usize| -> Result<&[u8]> {
        let at = bytes.len() - rest.len();
        let (taken, left) = rest.split_at_checked(n).ok_or_else(|| {
            damaged(at, format!("expected {n} more bytes, but only {} remain", bytes.len() - at))
        })?;
        rest = left;
        Ok(taken)
    };
    if take(4)? != MAGIC {
        return Err(damaged(0, "it does not start with \"tps1\"".into()));
    }
    let count = u32::from_le_bytes(take(4)?.try_into().expect("four bytes"));
    let mut sample = Sample::new();
    for i in 0..count {
        let &[dtype, rank] = take(2)? else { unreachable!("two bytes were taken") };
        let dtype = *TYPES
            .get(usize::from(dtype))
            .ok_or_else(|| damaged(8, format!("component {i} has the unknown dtype code {dtype}")))?;
        let sizes = take(8 * usize::from(rank))?
            .chunks_exact(8)
            .map(|n| usize::try_from(u64::from_le_bytes(n.try_into().expect("eight bytes"))))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| damaged(8, format!("component {i} is too large for this machine")))?;
        let elements = take(byte_count(dtype, &sizes)?)?;
        sample.push(tensor_from_bytes(dtype, sizes, elements, Endian::Little)?);
    }
    match rest.len() {
        0 => Ok(sample),
        n => Err(damaged(bytes.len() - n, format!("{n} bytes follow the last component"))),
    }
}

fn damaged(at: usize, why: String) -> Error {
    Error::new(ErrorKind::Data, format!("not a serialized sample, byte {at}: {why}"))
}

/// Deserializes [encoded](encode) samples from a source whose last component holds their bytes.
#[derive(Clone, Debug)]
pub struct Serialized<S> {
    records: S,
    name: String,
}

impl<S: RandomAccess> Serialized<S> {
    /// Reads the samples in `records`. Errors refer to the source as `name`.
    pub fn new(records: S, name: impl Into<String>) -> Serialized<S> {
        Serialized { records, name: name.into() }
    }
}

impl<S: RandomAccess> RandomAccess for Serialized<S> {
    fn len(&self) -> u64 {
        self.records.len()
    }

    fn get(&self, index: u64) -> Result<Sample> {
        let record = self.records.get(index)?;
        let Some(last) = record.last() else { return Err(damaged(0, "the record is empty".into())) };
        last.as_slice().and_then(decode).map_err(|e| e.within(format!("{}, record {index}", self.name)))
    }
}

/// Calls `keep` with every sample of one pass and returns their number.
pub(super) fn for_each_sample(
    flow: &dyn DataFlow,
    mut keep: impl FnMut(Sample) -> Result<()>,
) -> Result<u64> {
    let mut reader = flow.open(Seed::new(0), &State::start())?;
    let mut count = 0;
    while let Some(sample) = reader.read()? {
        keep(sample)?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::test_samples;

    #[test]
    fn every_dtype_and_shape_round_trips() {
        for sample in test_samples() {
            assert_eq!(decode(&encode(&sample).unwrap()).unwrap(), sample);
        }
    }

    #[test]
    fn bytes_match_the_documented_layout() {
        let sample = [HostTensor::new([2], vec![1i32, -2]).unwrap(), HostTensor::scalar(true)];
        let mut expected = b"tps1\x02\0\0\0\x03\x01\x02\0\0\0\0\0\0\0\x01\0\0\0\xfe\xff\xff\xff".to_vec();
        expected.extend([6, 0, 1]);
        assert_eq!(encode(&sample).unwrap(), expected);
    }

    #[test]
    fn truncated_or_trailing_bytes_are_errors() {
        let sample = [HostTensor::new([2, 1], vec![1.5f64, 2.5]).unwrap()];
        let bytes = encode(&sample).unwrap();
        for cut in 0..bytes.len() {
            assert!(decode(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        let e = decode(&[&bytes[..], &[0]].concat()).unwrap_err();
        assert!(e.kind() == ErrorKind::Data && e.message().contains("byte 42"), "{e}");
        // An impossible size is rejected before anything is allocated.
        let mut huge = bytes;
        huge[16] = 0x10;
        assert!(decode(&huge).is_err());
    }
}
