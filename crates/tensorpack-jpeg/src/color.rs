//! Chroma upsampling and YCbCr to RGB conversion.

use crate::scan::Plane;

/// Upsamples a component to the image size, row by row.
pub(crate) struct Upsampler<'a> {
    plane: &'a Plane,
    /// The size of the whole component.
    size: (usize, usize),
    /// Pixels per sample, horizontally and vertically.
    factor: (usize, usize),
    /// Two rows blended 3:1, and the finished row.
    blended: Vec<u16>,
    row: Vec<u8>,
}

impl<'a> Upsampler<'a> {
    pub(crate) fn new(plane: &'a Plane, size: (usize, usize), factor: (usize, usize)) -> Upsampler<'a> {
        Upsampler { plane, size, factor, blended: Vec::new(), row: Vec::new() }
    }

    /// Returns `width` samples of row `y` starting at column `x`.
    ///
    /// A factor of two is interpolated like libjpeg's "fancy upsampling"; other factors repeat
    /// samples.
    pub(crate) fn row(&mut self, x: usize, y: usize, width: usize) -> &[u8] {
        let origin = self.plane.columns.start * self.plane.n;
        match self.factor {
            (1, 1) => &self.plane.row(y)[x - origin..x - origin + width],
            (1 | 2, 1 | 2) => {
                self.blend_rows(x, y, width);
                self.upsample_row(x, y, width)
            }
            (across, down) => {
                let samples = self.plane.row(y / down);
                self.row.clear();
                self.row.extend((x..x + width).map(|x| samples[x / across - origin]));
                &self.row
            }
        }
    }

    /// Computes four times the vertically interpolated samples of row `y`, from the one before `x`
    /// to the one after the last. The two outer ones are unused without horizontal upsampling.
    fn blend_rows(&mut self, x: usize, y: usize, width: usize) {
        let (across, down) = self.factor;
        let near = y / down;
        let far = match down {
            1 => near,
            _ if y.is_multiple_of(2) => near.saturating_sub(1),
            _ => (near + 1).min(self.size.1 - 1),
        };
        let (near, far) = (self.plane.row(near), self.plane.row(far));
        let origin = self.plane.columns.start * self.plane.n;
        let (first, last) = (x / across, (x + width - 1) / across);
        let blend_rows = |i: usize| 3 * u16::from(near[i - origin]) + u16::from(far[i - origin]);
        self.blended.clear();
        self.blended.push(blend_rows(first.saturating_sub(across - 1)));
        let inside = first - origin..last + 1 - origin;
        let pairs = near[inside.clone()].iter().zip(&far[inside]);
        self.blended.extend(pairs.map(|(&near, &far)| 3 * u16::from(near) + u16::from(far)));
        self.blended.push(blend_rows((last + across - 1).min(self.size.0 - 1)));
    }

    /// Builds the output row from the blended samples.
    fn upsample_row(&mut self, x: usize, y: usize, width: usize) -> &[u8] {
        let samples = self.blended.len() - 2;
        if self.factor.0 == 1 {
            // Alternate the rounding direction to keep the mean.
            let rounding = 1 + (y % 2) as u16;
            self.row.clear();
            self.row.extend(self.blended[1..=samples].iter().map(|&w| ((w + rounding) >> 2) as u8));
            return &self.row;
        }
        let (left, right) = if self.factor.1 == 2 { (8, 7) } else { (4, 8) };
        self.row.resize(2 * samples, 0);
        let neighbors = self.blended.iter().zip(&self.blended[1..]).zip(&self.blended[2..]);
        for (pair, ((&before, &here), &behind)) in self.row.chunks_exact_mut(2).zip(neighbors) {
            pair[0] = ((3 * here + before + left) >> 4) as u8;
            pair[1] = ((3 * here + behind + right) >> 4) as u8;
        }
        &self.row[x % 2..x % 2 + width]
    }
}

/// Converts a row of YCbCr to RGB.
pub(crate) fn ycbcr_to_rgb(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 was detected above.
        return unsafe { avx2::ycbcr_to_rgb(y, cb, cr, out) };
    }
    ycbcr_to_rgb_scalar(y, cb, cr, out);
}

fn ycbcr_to_rgb_scalar(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    for (((&y, &cb), &cr), out) in y.iter().zip(cb).zip(cr).zip(out.chunks_exact_mut(3)) {
        out.copy_from_slice(&pixel(y, cb, cr));
    }
}

/// Converts one pixel with 16-bit steps that map to a vector instruction: `x * factor / 2^15`,
/// rounded.
#[inline(always)]
fn pixel(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    let times = |x: i16, factor: i16| ((i32::from(x) * i32::from(factor) + (1 << 14)) >> 15) as i16;
    let (y, cb, cr) = (i16::from(y), i16::from(cb) - 128, i16::from(cr) - 128);
    // 1.402 and 1.772 in units of 2^-14; 0.344136 and 0.714136 in units of 2^-12, summed in 16ths.
    let r = y + times(cr * 2, 22970);
    let g = y - ((times(cb * 128, 1410) + times(cr * 128, 2925) + 8) >> 4);
    let b = y + times(cb * 2, 29032);
    [r, g, b].map(|c| c.clamp(0, 255) as u8)
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::ycbcr_to_rgb_scalar;
    use std::arch::x86_64::*;

    /// Converts sixteen pixels at a time.
    #[target_feature(enable = "avx2")]
    pub(super) fn ycbcr_to_rgb(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
        let n = y.len().min(cb.len()).min(cr.len()).min(out.len() / 3) / 16 * 16;
        for i in (0..n).step_by(16) {
            // SAFETY: i + 16 <= n, no input slice is shorter than n, and `out` has at least 3 n
            // bytes.
            unsafe {
                let load = |p: &[u8]| _mm256_cvtepu8_epi16(_mm_loadu_si128(p.as_ptr().add(i).cast()));
                let pixels = pixels(load(y), load(cb), load(cr));
                for (j, bytes) in interleave(pixels).into_iter().enumerate() {
                    _mm_storeu_si128(out.as_mut_ptr().add(i * 3 + j * 16).cast(), bytes);
                }
            }
        }
        ycbcr_to_rgb_scalar(&y[n..], &cb[n..], &cr[n..], &mut out[n * 3..]);
    }

    /// Like [`super::pixel`] for sixteen pixels.
    #[target_feature(enable = "avx2")]
    fn pixels(y: __m256i, cb: __m256i, cr: __m256i) -> [__m128i; 3] {
        let splat = |x: i16| _mm256_set1_epi16(x);
        let (cb, cr) = (_mm256_sub_epi16(cb, splat(128)), _mm256_sub_epi16(cr, splat(128)));
        let times = |x: __m256i, factor: i16| _mm256_mulhrs_epi16(x, splat(factor));
        let r = _mm256_add_epi16(y, times(_mm256_slli_epi16::<1>(cr), 22970));
        let b = _mm256_add_epi16(y, times(_mm256_slli_epi16::<1>(cb), 29032));
        let green = _mm256_add_epi16(
            times(_mm256_slli_epi16::<7>(cb), 1410),
            times(_mm256_slli_epi16::<7>(cr), 2925),
        );
        let g = _mm256_sub_epi16(y, _mm256_srai_epi16::<4>(_mm256_add_epi16(green, splat(8))));
        [r, g, b].map(|c| _mm_packus_epi16(_mm256_castsi256_si128(c), _mm256_extracti128_si256::<1>(c)))
    }

    /// Interleaves sixteen reds, greens and blues to 48 bytes of RGB.
    #[target_feature(enable = "avx2")]
    fn interleave([r, g, b]: [__m128i; 3]) -> [__m128i; 3] {
        // Byte i of vector j is channel c of pixel p, where 16 j + i = 3 p + c. -128 selects zero.
        const SHUFFLES: [[[i8; 16]; 3]; 3] = {
            let mut shuffles = [[[-128; 16]; 3]; 3];
            let mut at = 0;
            while at < 48 {
                shuffles[at / 16][at % 3][at % 16] = (at / 3) as i8;
                at += 1;
            }
            shuffles
        };
        std::array::from_fn(|j| {
            let pick = |channel: __m128i, c: usize| {
                // SAFETY: a shuffle mask has sixteen bytes.
                let shuffles = unsafe { _mm_loadu_si128(SHUFFLES[j][c].as_ptr().cast()) };
                _mm_shuffle_epi8(channel, shuffles)
            };
            _mm_or_si128(_mm_or_si128(pick(r, 0), pick(g, 1)), pick(b, 2))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ycbcr_to_rgb_matches_the_standard() {
        for i in 0..4096u32 {
            let [y, cb, cr] = [i, i / 16, i / 256].map(|x| (x % 16 * 17) as u8);
            let (fy, fb, fr) = (f64::from(y), f64::from(cb) - 128.0, f64::from(cr) - 128.0);
            let right = [fy + 1.402 * fr, fy - 0.344136 * fb - 0.714136 * fr, fy + 1.772 * fb];
            for (is, right) in pixel(y, cb, cr).into_iter().zip(right) {
                assert!(
                    (f64::from(is) - right.clamp(0.0, 255.0)).abs() < 0.56,
                    "{y} {cb} {cr}: {is}, not {right}"
                );
            }
        }
    }

    #[test]
    fn simd_matches_scalar() {
        let plane = |k: usize| (0..77).map(|i| (i * k) as u8).collect::<Vec<u8>>();
        let (y, cb, cr) = (plane(11), plane(29), plane(83));
        let (mut a, mut b) = (vec![0; 77 * 3], vec![0; 77 * 3]);
        ycbcr_to_rgb_scalar(&y, &cb, &cr, &mut a);
        ycbcr_to_rgb(&y, &cb, &cr, &mut b);
        assert_eq!(a, b);
    }
}
