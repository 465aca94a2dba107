//! Protocol buffers, as much as event files need: fields written one after the other.

/// A message being written. Fields go in the order of their numbers; those with their default value may be left out.
#[derive(Clone, Debug, Default)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

/// How a field's value lies in the bytes.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Bits64 = 1,
    Counted = 2,
    Bits32 = 5,
}

impl Message {
    pub(super) fn new() -> Message {
        Message::default()
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// An integer; a negative one as its 64 bits.
    pub(super) fn integer(mut self, field: u32, value: i64) -> Message {
        self.key(field, Wire::Varint);
        self.varint(value as u64);
        self
    }

    /// A double. Zero is left out.
    pub(super) fn double(mut self, field: u32, value: f64) -> Message {
        if value.to_bits() != 0 {
            self.key(field, Wire::Bits64);
            self.bytes.extend(value.to_le_bytes());
        }
        self
    }

    pub(super) fn float(mut self, field: u32, value: f32) -> Message {
        self.key(field, Wire::Bits32);
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Text, bytes, or a message's bytes.
    pub(super) fn bytes(mut self, field: u32, value: impl AsRef<[u8]>) -> Message {
        self.key(field, Wire::Counted);
        self.varint(value.as_ref().len() as u64);
        self.bytes.extend(value.as_ref());
        self
    }

    pub(super) fn message(self, field: u32, value: Message) -> Message {
        self.bytes(field, value.bytes)
    }

    /// A list of doubles.
    pub(super) fn doubles(self, field: u32, values: impl Iterator<Item = f64>) -> Message {
        self.bytes(field, values.flat_map(f64::to_le_bytes).collect::<Vec<u8>>())
    }

    fn key(&mut self, field: u32, wire: Wire) {
        self.varint(u64::from(field << 3 | wire as u32));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }
}
