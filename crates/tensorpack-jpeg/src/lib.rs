//! A JPEG decoder for crops at reduced scale.
//!
//! Training an image classifier decodes a random region of a photograph and shrinks it. This
//! decoder does no more work than that needs: entropy-coded data is read only up to the last block
//! of the region, blocks beside it are skipped without an inverse transform, and scales of 1/2, 1/4
//! and 1/8 use only the low frequencies of each block. Results are bit-identical on every machine,
//! with or without SIMD.
//!
//! Supported are sequential 8-bit files in one scan, grayscale or YCbCr. Everything else
//! (progressive, CMYK) is decoded in full by `zune-jpeg`.
//!
//! ```
//! use tensorpack_jpeg::{Channels, Jpeg, Rect, Scale, Scratch};
//!
//! # let mut file = Vec::new();
//! # let pixels: Vec<u8> = (0..64 * 48 * 3).map(|i| (i / 9) as u8).collect();
//! # let encoder = jpeg_encoder::Encoder::new(&mut file, 90);
//! # encoder.encode(&pixels, 64, 48, jpeg_encoder::ColorType::Rgb).unwrap();
//! let jpeg = Jpeg::open(&file)?;
//! assert_eq!(jpeg.size(), (48, 64));
//!
//! // The center of the image, at half its size.
//! let mut scratch = Scratch::default();
//! let region = Rect { x: 8, y: 6, width: 16, height: 12 };
//! let crop = jpeg.decode_crop(region, Scale::Half, Channels::Rgb, &mut scratch)?;
//! let mut rgb = vec![0; 12 * 16 * 3];
//! crop.write_to(&mut rgb)?;
//! # Ok::<(), tensorpack_tensor::Error>(())
//! ```
//!
//! Files are not trusted: a claimed size is checked against the length of the data before memory is
//! allocated, and malformed data is an error, never a panic.
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | `header`, `exif` | markers before the first scan, EXIF orientation |
//! | `bit_reader`, `huffman` | entropy decoding, one table lookup per coefficient |
//! | `scan` | the blocks of the scan, MCU by MCU |
//! | `idct` | the inverse DCT at four scales, scalar and AVX2 |
//! | `color` | chroma upsampling and YCbCr to RGB |
//! | `decoder` | [`Jpeg`], [`Crop`] and [`Scratch`] |

mod rect;
mod channels;
mod scale;
mod bit_reader;
mod huffman;
mod idct;
mod exif;
mod header;
mod scan;
mod color;
mod decoder;

pub use channels::Channels;
pub use decoder::{Crop, Jpeg, MAX_PIXELS, Scratch};
pub use rect::Rect;
pub use scale::Scale;
