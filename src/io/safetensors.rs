//! Safetensors files: tensors by name, as other frameworks read and write them. Eight bytes that count the header, the
//! header as JSON, and the elements, little-endian, one tensor behind the other.

use super::disk::{RealDisk, failed, write_whole};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result, element_count};

/// Tensors with their names.
pub type Named = Vec<(String, HostTensor)>;
/// What a file says beside its tensors.
pub type Metadata = BTreeMap<String, String>;

/// No header is longer; what claims to be is no safetensors file.
const MAX_HEADER: u64 = 100 << 20;
/// The one name that is not a tensor's.
const METADATA: &str = "__metadata__";

/// All tensors of a file, in the order they lie in it. f16, which tensors do not have, is read as f32.
pub fn read(path: impl AsRef<Path>) -> Result<Named> {
    Ok(read_with_metadata(path)?.0)
}

/// [`read()`], and what the file says beside its tensors.
pub fn read_with_metadata(path: impl AsRef<Path>) -> Result<(Named, Metadata)> {
    let path = path.as_ref();
    let file = File::open(path).map_err(failed("read", path))?;
    let length = file.metadata().map_err(failed("read", path))?.len();
    parse(&mut BufReader::new(file), length).map_err(|e| e.within(path.display()))
}

/// Writes a file, replacing one of this name. Tensors with large elements come first, so that all are aligned.
pub fn write(path: impl AsRef<Path>, tensors: &[(String, HostTensor)]) -> Result<()> {
    write_with_metadata(path, tensors, &Metadata::new())
}

/// [`write()`], with something to say beside the tensors.
pub fn write_with_metadata(
    path: impl AsRef<Path>,
    tensors: &[(String, HostTensor)],
    metadata: &Metadata,
) -> Result<()> {
    write_whole(&mut RealDisk, path.as_ref(), &encode(tensors, metadata)?)
}

/// The contents of a file that holds these tensors.
pub(super) fn encode<'a>(
    tensors: &'a [(String, HostTensor)],
    metadata: &Metadata,
) -> Result<Vec<Cow<'a, [u8]>>> {
    let mut order: Vec<&(String, HostTensor)> = tensors.iter().collect();
    order.sort_by_key(|(_, t)| std::cmp::Reverse(t.dtype().size()));
    let mut header = Map::new();
    if !metadata.is_empty() {
        header.insert(METADATA.into(), json!(metadata));
    }
    let mut at = 0;
    for (name, t) in &order {
        let end = at + t.as_bytes().len();
        let about = json!({"dtype": code(t.dtype()), "shape": t.sizes(), "data_offsets": [at, end]});
        if name == METADATA || header.insert(name.clone(), about).is_some() {
            let why = format!("a file cannot hold a tensor named {name:?}, or two of one name");
            return Err(Error::new(ErrorKind::Name, why));
        }
        at = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut parts = vec![Cow::Owned((text.len() as u64).to_le_bytes().to_vec()), Cow::Owned(text)];
    parts.extend(order.iter().map(|(_, t)| little_endian(t)));
    Ok(parts)
}

/// The tensors in `length` bytes, and what is said beside them. Nothing is allocated before it is known to be there.
pub(super) fn parse(from: &mut impl Read, length: u64) -> Result<(Named, Metadata)> {
    let mut count = [0; 8];
    from.read_exact(&mut count)?;
    let header = u64::from_le_bytes(count);
    let elements = length.checked_sub(8).and_then(|n| n.checked_sub(header)).filter(|_| header <= MAX_HEADER);
    let Some(elements) = elements else {
        return Err(damaged(format!("a header of {header} bytes in a file of {length}")));
    };
    let mut text = vec![0; header as usize];
    from.read_exact(&mut text)?;
    let header: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|e| damaged(format!("its header is not JSON: {e}")))?;
    let mut entries = Vec::new();
    for (name, about) in header.iter().filter(|(name, _)| *name != METADATA) {
        entries.push(Entry::parse(name, about).map_err(|e| e.within(name))?);
    }
    entries.sort_by_key(|e| (e.begin, e.end));
    let mut at = 0;
    for e in &entries {
        if e.begin != at || e.end > elements {
            let why = format!(
                "{} lies at bytes {} to {}, but {at} is where the next begins and {elements} where they end",
                e.name, e.begin, e.end
            );
            return Err(damaged(why));
        }
        at = e.end;
    }
    if at != elements {
        return Err(damaged(format!("{} bytes belong to no tensor", elements - at)));
    }
    let tensors = entries.into_iter().map(|e| e.read(from)).collect::<Result<Named>>()?;
    let said = header.get(METADATA).and_then(Value::as_object).into_iter().flatten();
    let said = said.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_string())));
    Ok((tensors, said.collect()))
}

/// What the header says of a tensor.
struct Entry<'a> {
    name: &'a str,
    stored: Stored,
    sizes: Vec<usize>,
    begin: u64,
    end: u64,
}

/// How elements lie in a file.
#[derive(Clone, Copy)]
enum Stored {
    /// As tensors have them.
    Plain(DType),
    /// As 16-bit IEEE floats.
    F16,
}

impl Entry<'_> {
    fn parse<'a>(name: &'a str, about: &Value) -> Result<Entry<'a>> {
        let strange = || damaged(format!("its header says {about}"));
        let stored = match about["dtype"].as_str().ok_or_else(strange)? {
            "F16" => Stored::F16,
            given => {
                let known = DType::ALL.into_iter().find(|&d| code(d) == given);
                Stored::Plain(known.ok_or_else(|| {
                    let why = format!("its elements are {given}, which tensors do not have");
                    Error::dtype(why).note("save it as F32, F64, BF16, F16, I32, I64, U8 or BOOL")
                })?)
            }
        };
        let numbers = |v: &Value| v.as_array()?.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>();
        let sizes = numbers(&about["shape"]).ok_or_else(strange)?;
        let sizes: Vec<usize> =
            sizes.iter().map(|&n| usize::try_from(n).ok()).collect::<Option<_>>().ok_or_else(strange)?;
        let [begin, end] = numbers(&about["data_offsets"]).ok_or_else(strange)?[..] else {
            return Err(strange());
        };
        let size = match stored {
            Stored::Plain(dtype) => dtype.size(),
            Stored::F16 => 2,
        };
        let bytes = (element_count(&sizes)? as u64).checked_mul(size as u64);
        if end.checked_sub(begin).is_none_or(|n| Some(n) != bytes) {
            return Err(strange());
        }
        Ok(Entry { name, stored, sizes, begin, end })
    }

    fn read(self, from: &mut impl Read) -> Result<(String, HostTensor)> {
        let mut bytes = vec![0; (self.end - self.begin) as usize];
        from.read_exact(&mut bytes)?;
        let tensor = match self.stored {
            Stored::F16 => {
                let values =
                    bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect();
                HostTensor::new::<f32>(self.sizes, values)?
            }
            Stored::Plain(dtype) => {
                if cfg!(target_endian = "big") {
                    bytes.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
                }
                let mut tensor = HostTensor::zeros(dtype, self.sizes)?;
                tensor.copy_from_bytes(&bytes)?;
                tensor
            }
        };
        Ok((self.name.to_string(), tensor))
    }
}

fn code(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::Bf16 => "BF16",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
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

fn damaged(why: String) -> Error {
    Error::new(ErrorKind::Io, format!("not a whole safetensors file: {why}"))
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
    fn every_type_comes_back_and_is_aligned() {
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
    fn the_bytes_are_those_of_the_format() {
        let w = HostTensor::new([2], vec![1.0f32, -2.0]).unwrap();
        let header = r#"{"w":{"data_offsets":[0,8],"dtype":"F32","shape":[2]}}  "#;
        assert_eq!(file(&[("w".into(), w)]), with_header(header, &[0, 0, 128, 63, 0, 0, 0, 192]));
    }

    #[test]
    fn what_others_write_is_read() {
        let header =
            r#"{"__metadata__":{"format":"pt"},"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#;
        let back = read_bytes(&with_header(header, &[0, 0x3c, 0, 0xc0])).unwrap();
        assert_eq!(back, [("h".to_string(), HostTensor::new([2], vec![1.0f32, -2.0]).unwrap())]);
    }

    #[test]
    fn what_is_said_beside_the_tensors_comes_back() {
        let said = Metadata::from([("model".to_string(), "{\"a\": [1]}".to_string())]);
        let bytes = encode(&some(), &said).unwrap().concat();
        let (tensors, back) = parse(&mut &bytes[..], bytes.len() as u64).unwrap();
        assert_eq!((tensors.len(), back), (some().len(), said));
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
            entry("I16", "[2]", "[0,4]"),
            r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}"#
                .into(),
        ] {
            assert!(read_bytes(&with_header(&header, &[0; 4])).is_err(), "{header:.80}");
        }
        assert!(read_bytes(&u64::MAX.to_le_bytes()).is_err());
        assert!(read_bytes(&with_header("{}", &[0])).unwrap_err().message().contains("1 bytes belong to no"));
    }

    #[test]
    fn names_that_cannot_be_written_are_errors() {
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
