//! As much of protocol buffers' encoding as compile options need.

/// A message that is being written.
#[derive(Default)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// A whole number or truth value.
    pub(crate) fn int(mut self, field: u32, value: i64) -> Message {
        self.tag(field, 0);
        // A negative number is written as its 64 bits.
        self.varint(value as u64);
        self
    }

    pub(crate) fn double(mut self, field: u32, value: f64) -> Message {
        self.tag(field, 1);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn text(self, field: u32, text: &str) -> Message {
        self.bytes(field, text.as_bytes())
    }

    pub(crate) fn message(self, field: u32, inner: &Message) -> Message {
        self.bytes(field, &inner.bytes)
    }

    /// A list of whole numbers.
    pub(crate) fn ints(self, field: u32, values: impl IntoIterator<Item = i64>) -> Message {
        let mut packed = Message::default();
        values.into_iter().for_each(|value| packed.varint(value as u64));
        self.bytes(field, &packed.bytes)
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> Message {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.bytes.extend(bytes);
        self
    }

    fn tag(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
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

    #[test]
    fn the_examples_of_the_format() {
        assert_eq!(Message::default().int(1, 150).finish(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::default().text(2, "testing").finish(), *b"\x12\x07testing");
        let inner = Message::default().int(1, 150);
        assert_eq!(Message::default().message(3, &inner).finish(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(
            Message::default().ints(6, [3, 270, 86942]).finish(),
            [0x32, 6, 3, 0x8e, 2, 0x9e, 0xa7, 5]
        );
        assert_eq!(
            Message::default().int(1, -2).finish(),
            [8, 254, 255, 255, 255, 255, 255, 255, 255, 255, 1]
        );
        assert_eq!(Message::default().double(4, 1.0).finish(), [0x21, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
    }
}
