//! From files to pictures.

use super::Rect;
use super::jpeg::{Jpeg, Scratch};
use tensorpack_tensor::{HostTensor, Result};

/// The channels of a decoded picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// One: brightness.
    Grey,
    /// Three: red, green, blue.
    Rgb,
}

impl Channels {
    /// How many.
    pub fn count(self) -> usize {
        match self {
            Channels::Grey => 1,
            Channels::Rgb => 3,
        }
    }
}

/// Decodes a file.
pub fn decode(file: &[u8], channels: Channels) -> Result<HostTensor> {
    let jpeg = Jpeg::open(file)?;
    let (h, w) = jpeg.size();
    let mut out = vec![0; h * w * channels.count()];
    if jpeg.is_divisible() {
        thread_local!(static S: std::cell::RefCell<Scratch> = Default::default());
        S.with(|s| jpeg.decode(8, Rect::all(h, w), channels, &mut s.borrow_mut(), &mut out))?;
    } else {
        out = jpeg.decode_any(channels)?;
    }
    HostTensor::new([h, w, channels.count()], out)
}
