//! NumPy `.npy` files, one array each.
//!
//! NumPy has no type code for bf16. It is written as `<V2`, as the package `ml_dtypes` does, and
//! two-byte voids are read as bf16.

use super::ByteSource;
use super::atomic_file::AtomicFile;
use super::endian::{Endian, byte_count, little_endian, tensor_from_bytes};
use std::path::Path;
use tensorpack_tensor::{DType, Error, ErrorKind, HostTensor, Result};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Reads the array in the file at `path`.
pub fn read(path: impl AsRef<Path>) -> Result<HostTensor> {
    parse(ByteSource::open(path)?)
}

/// Writes an array to a new file.
pub fn write(path: impl AsRef<Path>, array: &HostTensor) -> Result<()> {
    let mut file = AtomicFile::create(path)?;
    file.append(&header(array))?;
    file.append(&little_endian(array))?;
    file.finish()
}

/// Parses the array in `source`.
pub fn parse(source: ByteSource) -> Result<HostTensor> {
    let bytes = source.read_all()?;
    decode(&bytes).map_err(|e| e.within(source.name()))
}

/// Encodes an array as the bytes of a `.npy` file.
pub fn encode(array: &HostTensor) -> Vec<u8> {
    let mut bytes = header(array);
    bytes.extend(&*little_endian(array));
    bytes
}

/// Decodes the bytes of a `.npy` file.
pub fn decode(bytes: &[u8]) -> Result<HostTensor> {
    let damaged = |why: &str| Error::new(ErrorKind::Data, format!("not a .npy file: {why}"));
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| damaged("it does not start with \\x93NUMPY"))?;
    let (length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err(damaged("unknown version or truncated header")),
    };
    let (text, elements) = rest.split_at_checked(length).ok_or_else(|| damaged("truncated header"))?;
    let text = std::str::from_utf8(text).map_err(|_| damaged("the header is not text"))?;
    let Header { descr, fortran_order, sizes } = Header::parse(text).ok_or_else(|| {
        // A header may be as long as the file.
        let start: String = text.trim().chars().take(200).collect();
        damaged(&format!("invalid header: {start}"))
    })?;
    let (dtype, order) = element_type(&descr)?;
    let needed = byte_count(dtype, &sizes)?;
    if elements.len() != needed {
        let found = elements.len();
        return Err(damaged(&format!(
            "{dtype}{sizes:?} needs {needed} bytes, but {found} follow the header"
        )));
    }
    if fortran_order && sizes.len() > 1 {
        let elements = row_major(&sizes, dtype.size(), elements);
        return tensor_from_bytes(dtype, sizes, &elements, order);
    }
    tensor_from_bytes(dtype, sizes, elements, order)
}

/// Returns the header: magic, version, length and description, padded so that the elements start at
/// a multiple of 64 bytes.
fn header(array: &HostTensor) -> Vec<u8> {
    let descr = match array.dtype() {
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::F16 => "<f2",
        DType::Bf16 => "<V2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::Bool => "|b1",
    };
    let shape: String = array.sizes().iter().map(|n| format!("{n},")).collect();
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    // Version 1 stores the length in two bytes, which is enough for any rank below thousands.
    let (version, prefix) = if text.len() < 65_000 { (1, 10) } else { (2, 12) };
    let padding = 63 - (prefix + text.len()) % 64;
    text.extend(std::iter::repeat_n(' ', padding));
    text.push('\n');
    let mut bytes = [MAGIC, &[version, 0]].concat();
    match version {
        1 => bytes.extend((text.len() as u16).to_le_bytes()),
        _ => bytes.extend((text.len() as u32).to_le_bytes()),
    }
    bytes.extend(text.as_bytes());
    bytes
}

fn element_type(descr: &str) -> Result<(DType, Endian)> {
    let (order, code) = match descr.split_at_checked(1) {
        Some((">", code)) => (Endian::Big, code),
        Some(("<" | "|" | "=", code)) => (Endian::Little, code),
        _ => (Endian::Little, descr),
    };
    let dtype = match code {
        "f4" => DType::F32,
        "f8" => DType::F64,
        "f2" => DType::F16,
        "V2" => DType::Bf16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "b1" => DType::Bool,
        _ => {
            let (name, instead) = match (code, code.split_at_checked(1)) {
                ("i1", _) => ("int8", "int32"),
                ("i2", _) => ("int16", "int32"),
                ("u2", _) => ("uint16", "int32"),
                ("u4", _) => ("uint32", "int64"),
                ("u8", _) => ("uint64", "int64"),
                ("c8" | "c16", _) => ("complex", "float32, with separate real and imaginary parts"),
                (_, Some(("U" | "S", _))) => ("text", "uint8"),
                ("O", _) => ("Python objects", "numbers"),
                _ => (descr, "a supported dtype"),
            };
            let why = format!("unsupported array dtype {name}");
            return Err(Error::dtype(why).note(format!("save it as {instead}")));
        }
    };
    Ok((dtype, order))
}

/// A parsed header: `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`, keys in any
/// order.
struct Header {
    descr: String,
    fortran_order: bool,
    sizes: Vec<usize>,
}

impl Header {
    fn parse(text: &str) -> Option<Header> {
        let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim_start();
        let (mut descr, mut fortran_order, mut sizes) = (None, None, None);
        while !rest.is_empty() {
            let (key, value) = quoted(rest)?;
            let value = value.trim_start().strip_prefix(':')?.trim_start();
            rest = match key {
                // Structured arrays have a list here; its text is shown in the error.
                "descr" if value.starts_with('[') => {
                    let (list, rest) = value.split_at(value.rfind(']')? + 1);
                    descr = Some(list.to_string());
                    rest
                }
                "descr" => {
                    let (code, rest) = quoted(value)?;
                    descr = Some(code.to_string());
                    rest
                }
                "fortran_order" => {
                    fortran_order = Some(value.starts_with("True"));
                    value.strip_prefix("True").or_else(|| value.strip_prefix("False"))?
                }
                "shape" => {
                    let (inside, rest) = value.strip_prefix('(')?.split_once(')')?;
                    let numbers = inside.split(',').map(str::trim).filter(|n| !n.is_empty());
                    sizes =
                        Some(numbers.map(|n| n.trim_end_matches('L').parse().ok()).collect::<Option<_>>()?);
                    rest
                }
                _ => return None,
            };
            rest = rest.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
        Some(Header { descr: descr?, fortran_order: fortran_order?, sizes: sizes? })
    }
}

/// Splits off a Python string without escapes.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split_once(quote)
}

/// Converts elements from column-major to row-major order.
fn row_major(sizes: &[usize], size: usize, elements: &[u8]) -> Vec<u8> {
    // The caller checked that `elements` has the size of the array. Dims of size 1 do not affect
    // the order; dropping them bounds the rank by the logarithm of the number of elements, so that
    // an iteration of the loop below takes constant time on average.
    let mut dims = Vec::new();
    let mut stride = size;
    for &n in sizes.iter().filter(|&&n| n != 1) {
        dims.push((n, stride));
        stride = stride.saturating_mul(n);
    }
    let mut bytes = Vec::with_capacity(elements.len());
    let (mut index, mut at) = (vec![0; dims.len()], 0);
    while bytes.len() < elements.len() {
        bytes.extend(&elements[at..at + size]);
        for (i, &(n, stride)) in index.iter_mut().zip(&dims).rev() {
            *i += 1;
            at += stride;
            if *i < n {
                break;
            }
            at -= n * stride;
            *i = 0;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::test_samples;

    #[test]
    fn every_dtype_and_shape_round_trips() {
        for array in test_samples().into_iter().flatten() {
            let bytes = encode(&array);
            assert_eq!((bytes.len() - array.as_bytes().len()) % 64, 0);
            assert_eq!(decode(&bytes).unwrap(), array);
        }
    }

    fn file(text: &str, elements: &[u8]) -> Vec<u8> {
        let mut bytes = [MAGIC, &[1, 0]].concat();
        bytes.extend((text.len() as u16).to_le_bytes());
        [&bytes, text.as_bytes(), elements].concat()
    }

    #[test]
    fn reads_what_numpy_writes() {
        // np.save(np.array([1, 2], ml_dtypes.bfloat16)), without padding.
        let bf16 = file("{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }\n", b"\x80?\0@");
        let expected = HostTensor::from_f64(DType::Bf16, [2], &[1.0, 2.0]).unwrap();
        assert_eq!(decode(&bf16).unwrap(), expected);
        // np.save(np.array([1, -2], np.float16)), in both byte orders.
        let expected = HostTensor::from_f64(DType::F16, [2], &[1.0, -2.0]).unwrap();
        for (descr, elements) in [("<f2", b"\0<\0\xc0"), (">f2", b"<\0\xc0\0")] {
            let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (2,), }}\n");
            assert_eq!(decode(&file(&header, elements)).unwrap(), expected);
        }
        // np.asfortranarray(np.array([[1, 2, 3], [4, 5, 6]], '>i4'))
        let elements: Vec<u8> = [1i32, 4, 2, 5, 3, 6].iter().flat_map(|n| n.to_be_bytes()).collect();
        let fortran = file("{'shape': (2L, 3L), 'fortran_order': True, 'descr': \">i4\"}", &elements);
        let expected = HostTensor::new([2, 3], vec![1, 2, 3, 4, 5, 6]).unwrap();
        assert_eq!(decode(&fortran).unwrap(), expected);
    }

    #[test]
    fn unsupported_dtypes_are_named() {
        for (descr, name) in [("<i2", "int16"), ("|i1", "int8"), ("<U5", "text"), ("|O", "Python objects")] {
            let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (0,), }}");
            let e = decode(&file(&text, b"")).unwrap_err();
            assert!(e.message().contains(name), "{e}");
        }
        let record = "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (0,), }";
        assert!(decode(&file(record, b"")).unwrap_err().message().contains("[('a', '<f4')]"));
    }

    #[test]
    fn corrupt_input_is_an_error() {
        let whole = encode(&HostTensor::new([2], vec![1i64, 2]).unwrap());
        for cut in 0..whole.len() {
            assert!(decode(&whole[..cut]).is_err(), "{cut} bytes");
        }
        let huge = "{'descr': '<f8', 'fortran_order': True, 'shape': (4294967295, 4294967295), }";
        assert!(decode(&file(huge, b"")).is_err());
    }
}
