//! Pixel types and loops over the pixels of an image tensor.

use tensorpack_tensor::{DType, Element, Error, HostTensor, Result};

/// Returns the height, width and channels of an image, or an error if the tensor is not one. An
/// image without a channel axis has one channel.
pub(super) fn image_size(image: &HostTensor) -> Result<(usize, usize, usize)> {
    let size = match *image.sizes() {
        [h, w, c] => Some((h, w, c)),
        [h, w] => Some((h, w, 1)),
        _ => None,
    };
    let is_image = |&(h, w, c): &(usize, usize, usize)| h > 0 && w > 0 && c > 0;
    size.filter(is_image).filter(|_| matches!(image.dtype(), DType::U8 | DType::F32)).ok_or_else(|| {
        let (dtype, sizes) = (image.dtype(), image.sizes());
        let why = format!(
            "expected an image [height, width, channels] or [height, width] of u8 or f32, got {dtype}{sizes:?}"
        );
        Error::shape(why)
    })
}

/// Returns the shape of an image made from `image`: without a channel axis if `image` has none.
pub(super) fn shape_like(image: &HostTensor, height: usize, width: usize, channels: usize) -> Vec<usize> {
    match image.sizes().len() {
        2 if channels == 1 => vec![height, width],
        _ => vec![height, width, channels],
    }
}

/// Returns the height and width of an RGB image.
pub(super) fn rgb_size(image: &HostTensor) -> Result<(usize, usize)> {
    match image_size(image)? {
        (h, w, 3) => Ok((h, w)),
        (.., c) => Err(Error::shape(format!("needs an RGB image with 3 channels, got {c}"))),
    }
}

/// The value type of an image.
pub(super) trait PixelValue: Element + Copy + Default {
    fn to_f32(self) -> f32;
    /// Converts to the nearest representable value.
    fn from_f32(x: f32) -> Self;
}

impl PixelValue for u8 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.into()
    }
    #[inline(always)]
    fn from_f32(x: f32) -> u8 {
        // The cast truncates and saturates; adding 0.5 makes it round.
        (x + 0.5) as u8
    }
}

impl PixelValue for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }
}

/// Runs `$body` with `$T` as the value type of the image.
macro_rules! dispatch_pixel_type {
    ($image:expr, $T:ident => $body:expr) => {
        match $image.dtype() {
            tensorpack_tensor::DType::U8 => {
                type $T = u8;
                $body
            }
            _ => {
                type $T = f32;
                $body
            }
        }
    };
}
pub(super) use dispatch_pixel_type;

/// Builds an image whose pixel (y, x) is pixel `from(y, x)` of `image`.
pub(super) fn remap(
    image: &HostTensor,
    height: usize,
    width: usize,
    from: impl Fn(usize, usize) -> (usize, usize),
) -> Result<HostTensor> {
    let (_, w, c) = image_size(image)?;
    dispatch_pixel_type!(image, T => {
        let values = image.as_slice::<T>()?;
        let mut out = Vec::with_capacity(height * width * c);
        for y in 0..height {
            for x in 0..width {
                let (y, x) = from(y, x);
                out.extend_from_slice(&values[(y * w + x) * c..][..c]);
            }
        }
        HostTensor::new(shape_like(image, height, width, c), out)
    })
}

/// Applies a function of channel and value to every value. `clip` limits f32 values to 0..255; u8
/// values always are.
pub(super) fn map_values(
    mut image: HostTensor,
    clip: bool,
    f: impl Fn(usize, f32) -> f32,
) -> Result<HostTensor> {
    let (_, _, c) = image_size(&image)?;
    match image.dtype() {
        DType::U8 => {
            // A byte has only 256 values, so a lookup table is cheapest.
            let tables: Vec<[u8; 256]> =
                (0..c).map(|c| std::array::from_fn(|x| u8::from_f32(f(c, x as f32)))).collect();
            let values = image.as_mut_slice::<u8>()?;
            match &tables[..] {
                [r, g, b] => values.chunks_exact_mut(3).for_each(|p| {
                    (p[0], p[1], p[2]) = (r[usize::from(p[0])], g[usize::from(p[1])], b[usize::from(p[2])]);
                }),
                _ => values.chunks_exact_mut(c).for_each(|p| {
                    p.iter_mut().zip(&tables).for_each(|(x, table)| *x = table[usize::from(*x)]);
                }),
            }
        }
        _ => {
            for pixel in image.as_mut_slice::<f32>()?.chunks_exact_mut(c) {
                for (c, x) in pixel.iter_mut().enumerate() {
                    let y = f(c, *x);
                    *x = if clip { y.clamp(0.0, 255.0) } else { y };
                }
            }
        }
    }
    Ok(image)
}

/// Returns the mean of each channel.
pub(super) fn channel_means(image: &HostTensor) -> Result<Vec<f64>> {
    let (h, w, c) = image_size(image)?;
    let mut sums = vec![0.0f64; c];
    match image.dtype() {
        DType::U8 => {
            // Summing sixteen pixels side by side vectorizes; 2^24 additions of a byte fit in 32
            // bits.
            for part in image.as_slice::<u8>()?.chunks((c * 16) << 20) {
                let mut lanes = vec![0u32; c * 16];
                let blocks = part.chunks_exact(c * 16);
                let rest = blocks.remainder();
                blocks
                    .chain([rest])
                    .for_each(|b| lanes.iter_mut().zip(b).for_each(|(sum, &x)| *sum += u32::from(x)));
                lanes.iter().enumerate().for_each(|(i, &sum)| sums[i % c] += f64::from(sum));
            }
        }
        _ => image.as_slice::<f32>()?.iter().enumerate().for_each(|(i, &x)| sums[i % c] += f64::from(x)),
    }
    Ok(sums.iter().map(|sum| sum / (h * w) as f64).collect())
}
