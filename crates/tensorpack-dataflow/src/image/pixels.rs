//! What makes a tensor a picture, and its values.

use tensorpack_tensor::{DType, Element, Error, HostTensor, Result};

/// Height, width and channels of a picture, or an error if the tensor is none.
pub(super) fn image_size(image: &HostTensor) -> Result<(usize, usize, usize)> {
    match (image.sizes(), image.dtype()) {
        (&[h, w, c], DType::U8 | DType::F32) if h > 0 && w > 0 && c > 0 => Ok((h, w, c)),
        (sizes, dtype) => {
            let why =
                format!("a picture is [height, width, channels] of u8 or f32, not {sizes:?} of {dtype}");
            Err(Error::shape(why))
        }
    }
}

/// A picture's size if it is in RGB.
pub(super) fn rgb_size(image: &HostTensor) -> Result<(usize, usize)> {
    match image_size(image)? {
        (h, w, 3) => Ok((h, w)),
        (.., c) => Err(Error::shape(format!("takes a picture of 3 channels in RGB order, not of {c}"))),
    }
}

/// What a picture is made of.
pub(super) trait PixelValue: Element + Copy + Default {
    fn to_f32(self) -> f32;
    /// The nearest value there is.
    fn from_f32(x: f32) -> Self;
}

impl PixelValue for u8 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self.into()
    }
    #[inline(always)]
    fn from_f32(x: f32) -> u8 {
        // Adding a half before a cast that cuts off, and saturates, rounds.
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

/// Runs `$body` with `$T` as the type of the picture's values.
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

/// Another picture of the same values: its pixel (y, x) is pixel `from(y, x)` of this one.
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
        HostTensor::new([height, width, c], out)
    })
}

/// Every value through a function of its channel and itself. With `clip` numbers are held to 0 to 255; bytes always
/// are.
pub(super) fn map_values(
    mut image: HostTensor,
    clip: bool,
    f: impl Fn(usize, f32) -> f32,
) -> Result<HostTensor> {
    let (_, _, c) = image_size(&image)?;
    match image.dtype() {
        DType::U8 => {
            // A byte has few values: each is computed once.
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

/// The mean of each channel.
pub(super) fn channel_means(image: &HostTensor) -> Result<Vec<f64>> {
    let (h, w, c) = image_size(image)?;
    let mut sums = vec![0.0f64; c];
    match image.dtype() {
        DType::U8 => {
            // Sixteen pixels side by side, so that the compiler adds vectors; 2^24 additions of a byte fit in 32 bits.
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
