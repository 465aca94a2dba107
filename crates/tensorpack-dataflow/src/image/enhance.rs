//! Changes of the values of u8 images, as Pillow makes them: those of [`RandAugment`](super::RandAugment).

use super::pixels::image_size;
use tensorpack_tensor::{DType, Error, HostTensor, Result};

/// Returns the height, width and channels of a u8 image that is RGB or gray.
fn size(image: &HostTensor) -> Result<(usize, usize, usize)> {
    let (h, w, c) = image_size(image)?;
    if image.dtype() != DType::U8 || !matches!(c, 1 | 3) {
        let why = format!("needs a u8 image with 1 or 3 channels, got {}{:?}", image.dtype(), image.sizes());
        return Err(Error::argument(why).note("augment before converting to f32, or use ToUint8 first"));
    }
    Ok((h, w, c))
}

/// Pillow's blend: `from + factor * (to - from)`, truncated, and clipped to 0..255.
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    (f32::from(from) + factor * (f32::from(to) - f32::from(from))).clamp(0.0, 255.0) as u8
}

/// Returns the luma of each pixel, with Pillow's 16 fractional bits.
fn luma(values: &[u8], channels: usize) -> Vec<u8> {
    match channels {
        3 => values
            .chunks_exact(3)
            .map(|p| {
                let sum = u32::from(p[0]) * 19595 + u32::from(p[1]) * 38470 + u32::from(p[2]) * 7471;
                ((sum + 0x8000) >> 16) as u8
            })
            .collect(),
        _ => values.to_vec(),
    }
}

/// Multiplies by `factor`: 0 is black, 1 the image.
pub(super) fn brightness(mut image: HostTensor, factor: f32) -> Result<HostTensor> {
    size(&image)?;
    image.as_mut_slice::<u8>()?.iter_mut().for_each(|x| *x = blend(0, *x, factor));
    Ok(image)
}

/// Blends with the mean luma: 0 is gray, 1 the image.
pub(super) fn contrast(mut image: HostTensor, factor: f32) -> Result<HostTensor> {
    let (h, w, c) = size(&image)?;
    let sum: u64 = luma(image.as_slice()?, c).into_iter().map(u64::from).sum();
    let mean = (sum as f64 / (h * w) as f64 + 0.5) as u8;
    image.as_mut_slice::<u8>()?.iter_mut().for_each(|x| *x = blend(mean, *x, factor));
    Ok(image)
}

/// Blends with the luma of each pixel: 0 is black and white, 1 the image.
pub(super) fn color(mut image: HostTensor, factor: f32) -> Result<HostTensor> {
    let (_, _, c) = size(&image)?;
    let gray = luma(image.as_slice()?, c);
    for (pixel, gray) in image.as_mut_slice::<u8>()?.chunks_exact_mut(c).zip(gray) {
        pixel.iter_mut().for_each(|x| *x = blend(gray, *x, factor));
    }
    Ok(image)
}

/// Blends with a blurred image: 0 is blurred, 1 the image, 2 sharpened. Pixels at the edge stay.
pub(super) fn sharpness(mut image: HostTensor, factor: f32) -> Result<HostTensor> {
    let (h, w, c) = size(&image)?;
    let source = image.as_slice::<u8>()?.to_vec();
    let values = image.as_mut_slice::<u8>()?;
    for y in 1..h.saturating_sub(1) {
        for i in y * w * c + c..(y + 1) * w * c - c.min(w * c) {
            // A 3x3 filter of ones around a five.
            let row = |i: usize| [i - c, i, i + c].map(|i| u32::from(source[i])).iter().sum::<u32>();
            let sum = row(i - w * c) + row(i) + row(i + w * c) + 4 * u32::from(source[i]);
            let blurred = (sum as f32 / 13.0 + 0.5) as u8;
            values[i] = blend(blurred, source[i], factor);
        }
    }
    Ok(image)
}

/// Keeps the highest `bits` bits of each value.
pub(super) fn posterize(mut image: HostTensor, bits: u32) -> Result<HostTensor> {
    size(&image)?;
    let mask = (!0u8).checked_shl(8 - bits.min(8)).unwrap_or(0);
    image.as_mut_slice::<u8>()?.iter_mut().for_each(|x| *x &= mask);
    Ok(image)
}

/// Inverts values of at least `threshold`.
pub(super) fn solarize(mut image: HostTensor, threshold: f32) -> Result<HostTensor> {
    size(&image)?;
    let invert = |x: u8| if f32::from(x) < threshold { x } else { 255 - x };
    image.as_mut_slice::<u8>()?.iter_mut().for_each(|x| *x = invert(*x));
    Ok(image)
}

/// Replaces the values of each channel by those of a table, which is made from the channel's histogram.
fn map_by_histogram(
    mut image: HostTensor,
    table: impl Fn(&[u64; 256]) -> Option<[u8; 256]>,
) -> Result<HostTensor> {
    let (_, _, c) = size(&image)?;
    let values = image.as_mut_slice::<u8>()?;
    for channel in 0..c {
        let mut histogram = [0; 256];
        values.iter().skip(channel).step_by(c).for_each(|&x| histogram[usize::from(x)] += 1);
        if let Some(table) = table(&histogram) {
            values.iter_mut().skip(channel).step_by(c).for_each(|x| *x = table[usize::from(*x)]);
        }
    }
    Ok(image)
}

/// Stretches each channel to 0..255.
pub(super) fn autocontrast(image: HostTensor) -> Result<HostTensor> {
    map_by_histogram(image, |histogram| {
        let low = histogram.iter().position(|&n| n > 0)?;
        let high = histogram.iter().rposition(|&n| n > 0).filter(|&high| high > low)?;
        let scale = 255.0 / (high - low) as f64;
        let offset = -(low as f64) * scale;
        Some(std::array::from_fn(|x| (x as f64 * scale + offset).clamp(0.0, 255.0) as u8))
    })
}

/// Equalizes the histogram of each channel.
pub(super) fn equalize(image: HostTensor) -> Result<HostTensor> {
    map_by_histogram(image, |histogram| {
        let last = histogram.iter().rev().find(|&&n| n > 0)?;
        let step = (histogram.iter().sum::<u64>() - last) / 255;
        if step == 0 {
            return None;
        }
        let mut sum = step / 2;
        Some(histogram.map(|n| {
            let level = sum / step;
            sum += n;
            level.min(255) as u8
        }))
    })
}
