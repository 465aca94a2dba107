//! Pictures: decoding, resizing, augmenting.
//!
//! A picture is a tensor `[height, width, channels]` of u8 or f32 from 0 to 255, in RGB order or grey.

mod rect;
mod jpeg;
mod decode;

pub use decode::{Channels, decode};
pub use rect::Rect;
