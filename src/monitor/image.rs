//! Images for monitors.

use tensorpack_tensor::{DType, Error, HostTensor, Result};

/// An 8-bit image with 1 (grayscale), 3 (RGB) or 4 (RGBA) channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The width in pixels.
    pub width: u32,
    /// The height in pixels.
    pub height: u32,
    /// The number of channels.
    pub channels: usize,
    /// The pixels in row-major order, with interleaved channels.
    pub pixels: Vec<u8>,
}

impl Image {
    /// Returns the images in a tensor of shape `[height, width]`, `[height, width, channels]` or
    /// `[batch, height, width, channels]` with values from 0 to 255. Floats are rounded and clamped
    /// to this range.
    pub fn from_tensor(images: &HostTensor) -> Result<Vec<Image>> {
        let (count, height, width, channels) = match *images.sizes() {
            [h, w] => (1, h, w, 1),
            [h, w, c @ (1 | 3 | 4)] => (1, h, w, c),
            [n, h, w, c @ (1 | 3 | 4)] => (n, h, w, c),
            _ => {
                let why = format!("a tensor of shape {:?} is not an image", images.sizes());
                return Err(Error::shape(why).note(
                    "images have shape [height, width], [height, width, channels] or \
                     [batch, height, width, channels], with 1, 3 or 4 channels",
                ));
            }
        };
        let (Ok(h), Ok(w)) = (u32::try_from(height), u32::try_from(width)) else {
            return Err(Error::shape(format!("an image of {height}x{width} pixels is too large")));
        };
        if h == 0 || w == 0 {
            return Err(Error::shape(format!("an image of {h}x{w} pixels is empty")));
        }
        let bytes = match images.dtype() {
            DType::U8 => images.as_slice::<u8>()?.to_vec(),
            // `as` saturates, and converts NaN to 0.
            _ => images.to_f64_vec().iter().map(|x| x.round() as u8).collect(),
        };
        let one = |pixels: &[u8]| Image { width: w, height: h, channels, pixels: pixels.to_vec() };
        Ok(bytes.chunks_exact(height * width * channels).take(count).map(one).collect())
    }

    /// Encodes the image as a PNG file.
    pub fn to_png(&self) -> Result<Vec<u8>> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width, self.height);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_color(match self.channels {
            1 => png::ColorType::Grayscale,
            3 => png::ColorType::Rgb,
            4 => png::ColorType::Rgba,
            n => return Err(Error::argument(format!("an image has 1, 3 or 4 channels, not {n}"))),
        });
        let write = |encoder: png::Encoder<'_, _>| encoder.write_header()?.write_image_data(&self.pixels);
        write(encoder).map_err(|e| Error::argument(format!("cannot encode the image as PNG: {e}")))?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_and_values() {
        let gray = HostTensor::new([1, 5], vec![-3.0f32, 0.4, 99.5, 300.0, f32::NAN]).unwrap();
        let images = Image::from_tensor(&gray).unwrap();
        assert_eq!(images, [Image { width: 5, height: 1, channels: 1, pixels: vec![0, 0, 100, 255, 0] }]);
        let two = HostTensor::new([2, 1, 1, 3], vec![1u8, 2, 3, 4, 5, 6]).unwrap();
        let images = Image::from_tensor(&two).unwrap();
        assert_eq!(images.iter().map(|i| i.pixels.clone()).collect::<Vec<_>>(), [[1, 2, 3], [4, 5, 6]]);
        for sizes in [&[3][..], &[2, 2, 2], &[0, 4], &[1, 1, 1, 1, 1]] {
            assert!(Image::from_tensor(&HostTensor::zeros(DType::U8, sizes).unwrap()).is_err(), "{sizes:?}");
        }
        assert!(Image::from_tensor(&HostTensor::zeros(DType::U8, [0, 2, 2, 3]).unwrap()).unwrap().is_empty());
    }

    #[test]
    fn png_round_trips_pixels() {
        for channels in [1, 3, 4] {
            let pixels: Vec<u8> = (0..6 * channels as u8).collect();
            let image = Image { width: 2, height: 3, channels, pixels };
            let file = image.to_png().unwrap();
            let mut reader = png::Decoder::new(std::io::Cursor::new(file)).read_info().unwrap();
            let mut back = vec![0; reader.output_buffer_size().unwrap()];
            reader.next_frame(&mut back).unwrap();
            assert_eq!(back, image.pixels);
        }
        let truncated = Image { width: 2, height: 3, channels: 1, pixels: vec![0; 5] };
        assert!(truncated.to_png().is_err());
    }
}
