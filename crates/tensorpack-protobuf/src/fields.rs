//! Reading of protocol buffers: one field after the other, borrowed from the bytes.

use std::error::Error;
use std::fmt;

/// The reason why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// A field ends after the message.
    Truncated,
    /// A varint has more than 64 bits.
    Varint,
    /// A field's number is 0, or its wire type is a group or unknown.
    Tag,
    /// A field has another wire type than its definition.
    WireType,
    /// A string is not UTF-8.
    Text,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::Truncated => "a field ends after its message",
            Malformed::Varint => "a varint has more than 64 bits",
            Malformed::Tag => "a field has an invalid tag",
            Malformed::WireType => "a field has the wrong wire type",
            Malformed::Text => "a string is not UTF-8",
        })
    }
}

impl Error for Malformed {}

/// The value of a field, as far as the encoding describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// An integer, a bool or an enum.
    Varint(u64),
    /// 8 bytes: a double or a fixed-size integer.
    I64([u8; 8]),
    /// A string, bytes, a message or a packed field.
    Len(&'a [u8]),
    /// 4 bytes: a float or a fixed-size integer.
    I32([u8; 4]),
}

impl<'a> Field<'a> {
    /// Returns the value of a field of type `int32`, `int64`, `bool` or of an enum.
    pub fn int64(self) -> Result<i64, Malformed> {
        match self {
            Field::Varint(value) => Ok(value as i64),
            _ => Err(Malformed::WireType),
        }
    }

    /// Returns the value of a field of type `float`.
    pub fn float(self) -> Result<f32, Malformed> {
        match self {
            Field::I32(bytes) => Ok(f32::from_le_bytes(bytes)),
            _ => Err(Malformed::WireType),
        }
    }

    /// Returns the value of a field of type `bytes`, or of one that is a message itself.
    pub fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self {
            Field::Len(bytes) => Ok(bytes),
            _ => Err(Malformed::WireType),
        }
    }

    /// Returns the value of a field of type `string`.
    pub fn string(self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed::Text)
    }

    /// Appends the values of a field of type `repeated int64`, packed or not.
    pub fn extend_int64(self, values: &mut Vec<i64>) -> Result<(), Malformed> {
        match self {
            Field::Len(mut packed) => {
                while !packed.is_empty() {
                    values.push(varint(&mut packed)? as i64);
                }
            }
            one => values.push(one.int64()?),
        }
        Ok(())
    }

    /// Appends the values of a field of type `repeated float`, packed or not.
    pub fn extend_float(self, values: &mut Vec<f32>) -> Result<(), Malformed> {
        match self {
            Field::Len(packed) => {
                let (chunks, rest) = packed.as_chunks::<4>();
                values.extend(chunks.iter().map(|&c| f32::from_le_bytes(c)));
                if rest.is_empty() { Ok(()) } else { Err(Malformed::Truncated) }
            }
            one => one.float().map(|v| values.push(v)),
        }
    }

    /// Appends the values of a field of type `repeated double`, packed or not.
    pub fn extend_double(self, values: &mut Vec<f64>) -> Result<(), Malformed> {
        match self {
            Field::Len(packed) => {
                let (chunks, rest) = packed.as_chunks::<8>();
                values.extend(chunks.iter().map(|&c| f64::from_le_bytes(c)));
                if rest.is_empty() { Ok(()) } else { Err(Malformed::Truncated) }
            }
            Field::I64(bytes) => {
                values.push(f64::from_le_bytes(bytes));
                Ok(())
            }
            _ => Err(Malformed::WireType),
        }
    }
}

/// An iterator over the fields of a message, with their numbers. It ends after an error.
///
/// ```
/// use tensorpack_protobuf::{Fields, Message};
///
/// let bytes = Message::new().string(1, "edge").int64(2, -3).into_bytes();
/// let fields = Fields::new(&bytes).collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(fields[0].1.string()?, "edge");
/// assert_eq!((fields[1].0, fields[1].1.int64()?), (2, -3));
/// # Ok::<(), tensorpack_protobuf::Malformed>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Returns the fields of a message.
    pub fn new(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message }
    }

    fn read(&mut self) -> Result<(u32, Field<'a>), Malformed> {
        let tag = varint(&mut self.rest)?;
        let number = u32::try_from(tag >> 3).ok().filter(|&n| n > 0).ok_or(Malformed::Tag)?;
        let field = match tag & 7 {
            0 => Field::Varint(varint(&mut self.rest)?),
            1 => Field::I64(self.take()?),
            2 => {
                let length = usize::try_from(varint(&mut self.rest)?).map_err(|_| Malformed::Truncated)?;
                let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Malformed::Truncated)?;
                self.rest = rest;
                Field::Len(bytes)
            }
            5 => Field::I32(self.take()?),
            _ => return Err(Malformed::Tag),
        };
        Ok((number, field))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (bytes, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Field<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.read();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

/// Reads a varint from the front of `bytes`.
fn varint(bytes: &mut &[u8]) -> Result<u64, Malformed> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(Malformed::Truncated)?;
        *bytes = rest;
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Malformed::Varint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;

    fn only(message: Message) -> Result<Vec<(u32, Vec<u8>)>, Malformed> {
        let bytes = message.into_bytes();
        Fields::new(&bytes).map(|f| f.and_then(|(n, f)| Ok((n, f.bytes()?.to_vec())))).collect()
    }

    #[test]
    fn written_fields_are_read_back() {
        let inner = Message::new().int64(1, -2).float(2, 0.25).double(3, 1.5);
        let bytes = Message::new()
            .message(3, &inner)
            .packed_int64(6, [3, -270, i64::MAX])
            .packed_float(7, [0.5, -1.0])
            .packed_double(8, [2.5])
            .int64(6, 7)
            .into_bytes();
        let (mut ints, mut floats, mut doubles, mut read) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for field in Fields::new(&bytes) {
            match field.unwrap() {
                (3, inner) => read = Fields::new(inner.bytes().unwrap()).map(|f| f.unwrap()).collect(),
                (6, field) => field.extend_int64(&mut ints).unwrap(),
                (7, field) => field.extend_float(&mut floats).unwrap(),
                (8, field) => field.extend_double(&mut doubles).unwrap(),
                (n, _) => panic!("field {n} was not written"),
            }
        }
        assert_eq!((ints, floats, doubles), (vec![3, -270, i64::MAX, 7], vec![0.5, -1.0], vec![2.5]));
        assert_eq!(read[0].1.int64(), Ok(-2));
        assert_eq!(read[1].1.float(), Ok(0.25));
        assert_eq!(read[2], (3, Field::I64(1.5f64.to_le_bytes())));
    }

    #[test]
    fn malformed_messages_are_errors() {
        let read = |bytes: &[u8]| Fields::new(bytes).map(|f| f.map(|_| ())).collect::<Result<Vec<_>, _>>();
        assert_eq!(read(&[0x0a, 5, b'a']), Err(Malformed::Truncated));
        assert_eq!(read(&[0x08]), Err(Malformed::Truncated));
        assert_eq!(read(&[0x15, 0, 0]), Err(Malformed::Truncated));
        assert_eq!(
            read(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            Err(Malformed::Truncated)
        );
        assert_eq!(read(&[[0x08].as_slice(), &[0xff; 10]].concat()), Err(Malformed::Varint));
        assert_eq!(read(&[0x00, 1]), Err(Malformed::Tag));
        assert_eq!(read(&[0x0b]), Err(Malformed::Tag));
        assert_eq!(only(Message::new().int64(1, 1)), Err(Malformed::WireType));
        assert_eq!(Field::Len(&[0xff]).string(), Err(Malformed::Text));
        assert_eq!(Field::Len(&[0, 0, 0]).extend_float(&mut Vec::new()), Err(Malformed::Truncated));
    }

    #[test]
    fn an_iterator_ends_after_an_error() {
        let mut fields = Fields::new(&[0x0b, 0x08, 0x01]);
        assert_eq!(fields.next(), Some(Err(Malformed::Tag)));
        assert_eq!(fields.next(), None);
    }
}
