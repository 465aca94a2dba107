//! Safetensors files: tensors by name, as other frameworks read and write them.
//!
//! A file is the length of the header (8 bytes), the header (JSON) and the elements of the tensors,
//! little-endian, one tensor after the other. The `safetensors` crate parses, validates and
//! serializes headers. Elements are read and written here, one tensor at a time, so that checksums
//! can be computed on the way and no file is held in memory twice.

use super::disk::{RealDisk, failed, write_atomically};
use safetensors::tensor::{Dtype, Metadata as Header, TensorInfo};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufReader, Read};
use std::path::Path;
use tensorpack_dataflow::format::open_regular_file;
use tensorpack_tensor::{DType, Element, Error, ErrorKind, HostTensor, Result};

/// Tensors with their names.
pub type Named = Vec<(String, HostTensor)>;
/// Additional text of a file, by key.
pub type Metadata = BTreeMap<String, String>;

/// The maximum header length. A file that claims a longer one is corrupted.
const MAX_HEADER: u64 = 100 << 20;
/// The header entry for metadata.
const METADATA: &str = "__metadata__";

/// Reads all tensors of a file, in file order.
pub fn read(path: impl AsRef<Path>) -> Result<Named> {
    Ok(read_with_metadata(path)?.0)
}

/// Like [`read()`], and also returns the file's metadata.
pub fn read_with_metadata(path: impl AsRef<Path>) -> Result<(Named, Metadata)> {
    let path = path.as_ref();
    let (file, meta) = open_regular_file(path).map_err(failed("read", path))?;
    parse(&mut BufReader::new(file), meta.len()).map_err(|e| e.within(path.display()))
}

/// Writes a file, replacing an existing one. Tensors with large elements come first, so that all
/// are aligned.
pub fn write(path: impl AsRef<Path>, tensors: &[(String, HostTensor)]) -> Result<()> {
    write_with_metadata(path, tensors, &Metadata::new())
}

/// Like [`write()`], with metadata.
pub fn write_with_metadata(
    path: impl AsRef<Path>,
    tensors: &[(String, HostTensor)],
    metadata: &Metadata,
) -> Result<()> {
    write_atomically(&mut RealDisk, path.as_ref(), &encode(tensors, metadata)?)
}

/// Returns the contents of a file with these tensors, in parts.
pub(super) fn encode<'a>(
    tensors: &'a [(String, HostTensor)],
    metadata: &Metadata,
) -> Result<Vec<Cow<'a, [u8]>>> {
    let mut order: Vec<&(String, HostTensor)> = tensors.iter().collect();
    order.sort_by_key(|(_, t)| std::cmp::Reverse(t.dtype().size()));
    let mut names = BTreeSet::new();
    let mut infos = Vec::with_capacity(order.len());
    let mut at = 0;
    for (name, t) in &order {
        if name == METADATA || !names.insert(name) {
            let why = format!("the tensor name {name:?} is reserved or occurs twice");
            return Err(Error::new(ErrorKind::Name, why));
        }
        let end = at + t.as_bytes().len();
        let info =
            TensorInfo { dtype: stored(t.dtype()), shape: t.sizes().to_vec(), data_offsets: (at, end) };
        infos.push((name.clone(), info));
        at = end;
    }
    let metadata = (!metadata.is_empty()).then(|| metadata.clone().into_iter().collect());
    let header = Header::new(metadata, infos).map_err(|e| Error::argument(e.to_string()))?;
    // Serialized through a `Value`, which sorts keys: the same tensors always yield the same bytes.
    let header = serde_json::to_value(&header).map_err(|e| Error::argument(e.to_string()))?;
    let mut text = header.to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut parts = vec![Cow::Owned((text.len() as u64).to_le_bytes().to_vec()), Cow::Owned(text)];
    parts.extend(order.iter().map(|(_, t)| little_endian(t)));
    Ok(parts)
}

/// Reads the tensors and the metadata of a file of `length` bytes. Nothing is allocated for bytes
/// that the file does not have.
pub(super) fn parse(from: &mut impl Read, length: u64) -> Result<(Named, Metadata)> {
    if length < 8 {
        return Err(corrupted(format!("it has only {length} bytes")));
    }
    let mut count = [0; 8];
    from.read_exact(&mut count)?;
    let header = u64::from_le_bytes(count);
    let elements = length.checked_sub(8).and_then(|n| n.checked_sub(header)).filter(|_| header <= MAX_HEADER);
    let Some(elements) = elements else {
        return Err(corrupted(format!("a header of {header} bytes in a file of {length}")));
    };
    let mut text = vec![0; header as usize];
    from.read_exact(&mut text)?;
    // Checks that the tensors are contiguous, and that each length matches its dtype and shape.
    let header: Header = serde_json::from_slice(&text).map_err(|e| corrupted(format!("its header: {e}")))?;
    let described = header.data_len() as u64;
    if described != elements {
        return Err(corrupted(format!(
            "its header describes {described} bytes of elements, but it has {elements}"
        )));
    }
    let mut infos: Vec<(String, &TensorInfo)> = header.tensors().into_iter().collect();
    // Tensors without elements have the same offsets: the name decides.
    infos.sort_by(|(a, x), (b, y)| (x.data_offsets, a).cmp(&(y.data_offsets, b)));
    let mut tensors = Vec::with_capacity(infos.len());
    for (name, info) in infos {
        let tensor = read_tensor(info, from).map_err(|e| e.within(&name))?;
        tensors.push((name, tensor));
    }
    Ok((tensors, header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect()))
}

fn read_tensor(info: &TensorInfo, from: &mut impl Read) -> Result<HostTensor> {
    let (begin, end) = info.data_offsets;
    let mut bytes = vec![0; end - begin];
    from.read_exact(&mut bytes)?;
    if let Some(tensor) = widened(info, &bytes) {
        return tensor;
    }
    let dtype = DType::ALL.into_iter().find(|&d| stored(d) == info.dtype);
    let Some(dtype) = dtype else {
        let why = format!("its elements are {}, which has no corresponding dtype", info.dtype);
        return Err(Error::dtype(why).note("save it as F32, F64, BF16, F16, I32, I64, U8 or BOOL"));
    };
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    }
    let mut tensor = HostTensor::zeros(dtype, info.shape.clone())?;
    tensor.copy_from_bytes(&bytes)?;
    Ok(tensor)
}

/// Returns the tensor of integers that no dtype has, in a type that has all of them. Returns `None` for
/// other elements.
fn widened(info: &TensorInfo, bytes: &[u8]) -> Option<Result<HostTensor>> {
    fn each<const N: usize, T: Element>(
        sizes: &[usize],
        bytes: &[u8],
        convert: impl Fn([u8; N]) -> T,
    ) -> Result<HostTensor> {
        let (elements, _) = bytes.as_chunks::<N>();
        HostTensor::new(sizes, elements.iter().map(|&element| convert(element)).collect::<Vec<T>>())
    }
    let sizes = &info.shape;
    Some(match info.dtype {
        Dtype::I8 => each(sizes, bytes, |b| i32::from(i8::from_le_bytes(b))),
        Dtype::I16 => each(sizes, bytes, |b| i32::from(i16::from_le_bytes(b))),
        Dtype::U16 => each(sizes, bytes, |b| i32::from(u16::from_le_bytes(b))),
        Dtype::U32 => each(sizes, bytes, |b| i64::from(u32::from_le_bytes(b))),
        _ => return None,
    })
}

/// Returns the dtype of the file format.
fn stored(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::Bool => Dtype::BOOL,
    }
}

fn little_endian(t: &HostTensor) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        return Cow::Borrowed(t.as_bytes());
    }
    let mut bytes = t.as_bytes().to_vec();
    bytes.chunks_exact_mut(t.dtype().size()).for_each(<[u8]>::reverse);
    Cow::Owned(bytes)
}

fn corrupted(why: String) -> Error {
    Error::new(ErrorKind::Io, format!("not a valid safetensors file: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(tensors: &[(String, HostTensor)]) -> Vec<u8> {
        encode(tensors, &Metadata::new()).unwrap().concat()
    }

    fn read_bytes(bytes: &[u8]) -> Result<Named> {
        parse(&mut &bytes[..], bytes.len() as u64).map(|(tensors, _)| tensors)
    }

    fn with_header(header: &str, elements: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), elements].concat()
    }

    fn some() -> Named {
        let one = |dtype, sizes: &[usize]| {
            let n = sizes.iter().product::<usize>();
            let values: Vec<f64> = (0..n).map(|i| (i % 2) as f64).collect();
            HostTensor::from_f64(dtype, sizes, &values).unwrap()
        };
        let mut all: Named = DType::ALL.iter().map(|&d| (format!("{d}/W"), one(d, &[2, 3]))).collect();
        all.push(("scalar".into(), one(DType::F32, &[])));
        all.push(("empty".into(), one(DType::I64, &[0, 4])));
        all
    }

    #[test]
    fn every_dtype_round_trips_and_is_aligned() {
        let bytes = file(&some());
        let back = read_bytes(&bytes).unwrap();
        assert_eq!(back.len(), some().len());
        for pair in some() {
            assert!(back.contains(&pair), "{}", pair.0);
        }
        assert!(back.windows(2).all(|w| w[0].1.dtype().size() >= w[1].1.dtype().size()));
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(header % 8, 0);
    }

    #[test]
    fn bytes_match_the_format() {
        let w = HostTensor::new([2], vec![1.0f32, -2.0]).unwrap();
        let header = r#"{"w":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}}  "#;
        assert_eq!(file(&[("w".into(), w)]), with_header(header, &[0, 0, 128, 63, 0, 0, 0, 192]));
    }

    /// As version 0.1.0 wrote it; the header must not depend on the order of a hash map.
    #[test]
    fn metadata_is_written_in_the_order_of_its_keys() {
        let metadata: Metadata = (0..9).map(|i| (format!("key{i}"), "value".to_string())).collect();
        let text = encode(&[], &metadata).unwrap()[1].clone().into_owned();
        let entries: Vec<String> = (0..9).map(|i| format!("\"key{i}\":\"value\"")).collect();
        let header = format!("{{\"__metadata__\":{{{}}}}}", entries.join(","));
        assert_eq!(String::from_utf8(text).unwrap().trim_end(), header);
    }

    #[test]
    fn files_of_other_frameworks_are_read() {
        let header =
            r#"{"__metadata__":{"format":"pt"},"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#;
        let back = read_bytes(&with_header(header, &[0, 0x3c, 0, 0xc0])).unwrap();
        assert_eq!(back, [("h".to_string(), HostTensor::from_f64(DType::F16, [2], &[1.0, -2.0]).unwrap())]);
    }

    #[test]
    fn small_integers_are_widened() {
        let read = |dtype: &str, bytes: &[u8]| {
            let header =
                format!(r#"{{"a":{{"dtype":"{dtype}","shape":[2],"data_offsets":[0,{}]}}}}"#, bytes.len());
            let (_, tensor) = read_bytes(&with_header(&header, bytes)).unwrap().remove(0);
            (tensor.dtype(), tensor.to_f64_vec())
        };
        assert_eq!(read("I8", &[5, 250]), (DType::I32, vec![5.0, -6.0]));
        assert_eq!(read("I16", &[5, 0, 250, 255]), (DType::I32, vec![5.0, -6.0]));
        assert_eq!(read("U16", &[5, 0, 250, 255]), (DType::I32, vec![5.0, 65530.0]));
        assert_eq!(read("U32", &[5, 0, 0, 0, 255, 255, 255, 255]), (DType::I64, vec![5.0, 4294967295.0]));
    }

    #[test]
    fn metadata_round_trips() {
        let metadata = Metadata::from([("model".to_string(), "{\"a\": [1]}".to_string())]);
        let bytes = encode(&some(), &metadata).unwrap().concat();
        let (tensors, back) = parse(&mut &bytes[..], bytes.len() as u64).unwrap();
        assert_eq!((tensors.len(), back), (some().len(), metadata));
    }

    #[test]
    fn hostile_headers_are_errors() {
        let entry = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        for header in [
            "[]".into(),
            "{".into(),
            "[".repeat(10_000),
            r#"{"a":3}"#.into(),
            entry("F32", "[1]", "[0]"),
            entry("F32", "[1]", "[4,0]"),
            entry("F32", "[1]", "[1,5]"),
            entry("F32", "[-1]", "[0,4]"),
            entry("F32", "[1.0]", "[0,4]"),
            entry("F32", "[2]", "[0,4]"),
            entry("F32", "[4294967296,4294967296,4294967296]", "[0,4]"),
            entry("U8", "[18446744073709551615]", "[0,18446744073709551615]"),
            entry("U64", "[0]", "[0,4]"),
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#
                .into(),
        ] {
            assert!(read_bytes(&with_header(&header, &[0; 4])).is_err(), "{header:.80}");
        }
        // An unsupported dtype of the format is not reported as corruption.
        let error = read_bytes(&with_header(&entry("F8_E4M3", "[4]", "[0,4]"), &[0; 4])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DType);
        assert!(error.message().starts_with("a: "), "{error}");
        assert!(read_bytes(&u64::MAX.to_le_bytes()).is_err());
        let error = read_bytes(&[1, 2]).unwrap_err();
        assert!(error.message().contains("safetensors"), "{error}");
        assert_eq!(read_bytes(&with_header("{}", &[0])).unwrap_err().kind(), ErrorKind::Io);
    }

    #[test]
    fn reserved_and_duplicate_names_are_errors() {
        let t = HostTensor::scalar(1.0f32);
        let encode = |tensors: &[(String, HostTensor)]| encode(tensors, &Metadata::new()).map(|_| ());
        assert!(encode(&[("__metadata__".into(), t.clone())]).is_err());
        assert!(encode(&[("a".into(), t.clone()), ("a".into(), t)]).is_err());
    }

    proptest! {
        #[test]
        fn damage_never_panics(at in 0usize..700, flip in 1u8..=255, cut in 0usize..700) {
            let mut bytes = file(&some());
            let n = bytes.len();
            prop_assert!(read_bytes(&bytes[..cut % n]).is_err());
            bytes[at % n] ^= flip;
            let _ = read_bytes(&bytes);
        }
    }
}
