//! Writes and reads protocol buffers without generated code.
//!
//! A [`Message`] is written field by field, with the field numbers of its `.proto` file. [`Fields`]
//! reads one in the same way, without copying anything. That is all that TensorBoard's event files,
//! XLA's compile options and ONNX models need; a code generator and its runtime would be many times
//! as large.
//!
//! ```
//! use tensorpack_protobuf::Message;
//!
//! // message Point { int64 x = 1; int64 y = 2; }
//! // message Path { string name = 1; repeated Point points = 2; }
//! let point = |x, y| Message::new().int64(1, x).int64(2, y);
//! let path = Message::new().string(1, "edge").message(2, &point(0, 3)).message(2, &point(4, 0));
//! assert_eq!(path.into_bytes(), b"\x0a\x04edge\x12\x04\x08\x00\x10\x03\x12\x04\x08\x04\x10\x00");
//! ```

mod fields;

pub use fields::{Field, Fields, Malformed};

/// A message that is being written. Fields should be written in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    bytes: Vec<u8>,
}

/// How a value is encoded.
#[derive(Clone, Copy)]
enum WireType {
    Varint = 0,
    I64 = 1,
    Len = 2,
    I32 = 5,
}

impl Message {
    /// A message without fields.
    pub fn new() -> Message {
        Message::default()
    }

    /// The encoded message.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Writes a field of type `int32`, `int64`, `bool` or of an enum.
    pub fn int64(mut self, field: u32, value: i64) -> Message {
        self.tag(field, WireType::Varint);
        // A negative number is written as its 64 bits.
        self.varint(value as u64);
        self
    }

    /// Writes a field of type `float`.
    pub fn float(mut self, field: u32, value: f32) -> Message {
        self.tag(field, WireType::I32);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Writes a field of type `double`.
    pub fn double(mut self, field: u32, value: f64) -> Message {
        self.tag(field, WireType::I64);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Writes a field of type `double` unless it is 0, the default that proto3 leaves out; -0 is
    /// written.
    pub fn nonzero_double(self, field: u32, value: f64) -> Message {
        if value.to_bits() == 0 { self } else { self.double(field, value) }
    }

    /// Writes a field of type `string`.
    pub fn string(self, field: u32, value: &str) -> Message {
        self.bytes(field, value)
    }

    /// Writes a field of type `bytes`.
    pub fn bytes(mut self, field: u32, value: impl AsRef<[u8]>) -> Message {
        let value = value.as_ref();
        self.tag(field, WireType::Len);
        self.varint(value.len() as u64);
        self.bytes.extend(value);
        self
    }

    /// Writes a field that is a message itself.
    pub fn message(self, field: u32, value: &Message) -> Message {
        self.bytes(field, &value.bytes)
    }

    /// Writes a packed field of type `repeated int64`.
    pub fn packed_int64(self, field: u32, values: impl IntoIterator<Item = i64>) -> Message {
        let mut packed = Message::new();
        values.into_iter().for_each(|value| packed.varint(value as u64));
        self.message(field, &packed)
    }

    /// Writes a packed field of type `repeated float`.
    pub fn packed_float(self, field: u32, values: impl IntoIterator<Item = f32>) -> Message {
        self.bytes(field, values.into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>())
    }

    /// Writes a packed field of type `repeated double`.
    pub fn packed_double(self, field: u32, values: impl IntoIterator<Item = f64>) -> Message {
        self.bytes(field, values.into_iter().flat_map(f64::to_le_bytes).collect::<Vec<u8>>())
    }

    fn tag(&mut self, field: u32, wire_type: WireType) {
        self.varint(u64::from(field << 3 | wire_type as u32));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examples from the documentation of the encoding.
    #[test]
    fn documented_examples() {
        assert_eq!(Message::new().int64(1, 150).into_bytes(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::new().string(2, "testing").into_bytes(), *b"\x12\x07testing");
        let inner = Message::new().int64(1, 150);
        assert_eq!(Message::new().message(3, &inner).into_bytes(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        let packed = Message::new().packed_int64(6, [3, 270, 86942]).into_bytes();
        assert_eq!(packed, [0x32, 6, 3, 0x8e, 2, 0x9e, 0xa7, 5]);
        let negative = Message::new().int64(1, -2).into_bytes();
        assert_eq!(negative, [8, 254, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
    }

    #[test]
    fn floating_point_numbers_are_little_endian() {
        assert_eq!(Message::new().double(4, 1.0).into_bytes(), [0x21, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        assert_eq!(Message::new().float(2, 0.25).into_bytes(), [0x15, 0, 0, 0x80, 0x3e]);
        assert_eq!(Message::new().packed_float(6, [0.25]).into_bytes(), [0x32, 4, 0, 0, 0x80, 0x3e]);
        let packed = Message::new().packed_double(6, [1.0]).into_bytes();
        assert_eq!(packed, [0x32, 8, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
    }

    #[test]
    fn only_zero_is_a_default() {
        assert_eq!(Message::new().nonzero_double(1, 0.0).into_bytes(), []);
        assert_eq!(Message::new().nonzero_double(1, -0.0), Message::new().double(1, -0.0));
        assert_eq!(Message::new().double(1, 0.0).into_bytes().len(), 9);
    }
}
