//! Sliding windows: sizes of convolution, transposed convolution and pooling.

use serde::{Deserialize, Serialize};
use tensorpack_tensor::{Dim, Error, Result};

/// The zero padding around an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Padding {
    /// Makes the output as large as the input divided by the stride, rounded up; an odd zero goes
    /// after.
    #[default]
    Same,
    /// No padding.
    Valid,
    /// Zeros before and after, for height and width.
    Explicit([[usize; 2]; 2]),
}

/// The zero padding around a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Padding3d {
    /// Makes the output as large as the input divided by the stride, rounded up; an odd zero goes
    /// after.
    #[default]
    Same,
    /// No padding.
    Valid,
    /// Zeros before and after, for depth, height and width.
    Explicit([[usize; 2]; 3]),
}

impl Padding3d {
    /// Returns the padding of images whose rows are the depth, one pixel wide.
    pub(super) fn depth(self) -> Padding {
        match self {
            Padding3d::Same => Padding::Same,
            Padding3d::Valid => Padding::Valid,
            Padding3d::Explicit([depth, ..]) => Padding::Explicit([depth, [0, 0]]),
        }
    }

    /// Returns the padding of height and width.
    pub(super) fn image(self) -> Padding {
        match self {
            Padding3d::Same => Padding::Same,
            Padding3d::Valid => Padding::Valid,
            Padding3d::Explicit([_, height, width]) => Padding::Explicit([height, width]),
        }
    }
}

/// Stride, dilation and padding of a sliding window, for convolution and pooling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Window {
    pub(super) stride: [usize; 2],
    pub(super) dilation: [usize; 2],
    pub(super) padding: Padding,
}

/// The maximum reach and stride of a window.
const MAX_REACH: usize = 1 << 31;

impl Window {
    /// Returns the zeros before and after axis `i` of size `n`, for a window of `k` taps.
    fn around(&self, i: usize, n: usize, k: usize) -> Result<[usize; 2]> {
        let reach = self.reach(i, k)?;
        Ok(match self.padding {
            Padding::Valid => [0, 0],
            Padding::Explicit(p) => p[i],
            Padding::Same => {
                let out = n.div_ceil(self.stride[i]);
                let windows = out.saturating_sub(1).saturating_mul(self.stride[i]);
                let total = windows.saturating_add(reach).saturating_sub(n);
                [total / 2, total - total / 2]
            }
        })
    }

    /// Returns ONNX's `pads` for an image of this height and width, or `None` for `SAME_UPPER` of an
    /// unknown size.
    pub(super) fn onnx_pads(&self, size: [Dim; 2], kernel: [usize; 2]) -> Result<Option<[i64; 4]>> {
        let mut pads = [0; 4];
        for i in 0..2 {
            let n = match (size[i].known(), self.padding) {
                (Some(n), _) => n,
                (None, Padding::Same) => return Ok(None),
                (None, _) => 0,
            };
            let [low, high] = self.around(i, n, kernel[i])?;
            (pads[i], pads[i + 2]) = (low as i64, high as i64);
        }
        Ok(Some(pads))
    }

    /// Returns the extent of a window of `k` taps, dilation included.
    pub(super) fn reach(&self, i: usize, k: usize) -> Result<usize> {
        if self.stride[i] == 0 || self.dilation[i] == 0 || k == 0 {
            return Err(Error::argument("stride, dilation and window must be at least 1"));
        }
        let reach = (k - 1).checked_mul(self.dilation[i]).and_then(|r| r.checked_add(1));
        match reach.filter(|&r| r.max(self.stride[i]).max(self.dilation[i]) <= MAX_REACH) {
            Some(reach) => Ok(reach),
            None => Err(Error::argument("the window is too large")),
        }
    }

    /// Returns the output's size along axis `i`.
    pub(super) fn out(&self, i: usize, n: Dim, k: usize) -> Result<Dim> {
        let reach = self.reach(i, k)?;
        let Dim::Known(n) = n else {
            if let Padding::Same = self.padding
                && self.stride[i] == 1
            {
                return Ok(n);
            }
            let p = match self.padding {
                Padding::Same => [usize::MAX; 2],
                Padding::Valid => [0, 0],
                Padding::Explicit(p) => p[i],
            };
            return Ok(Dim::derived("window", &[n], &[self.stride[i], reach, p[0], p[1]]));
        };
        let [low, high] = self.around(i, n, k)?;
        let padded = n.checked_add(low).and_then(|x| x.checked_add(high));
        match padded {
            _ if n == 0 => Ok(Dim::Known(0)),
            Some(padded) if padded >= reach => Ok(Dim::Known((padded - reach) / self.stride[i] + 1)),
            Some(padded) => Err(Error::shape(format!(
                "a window with an extent of {reach} does not fit a size of {n} padded to {padded}"
            ))),
            None => Err(Error::argument(format!("padding by {low} and {high} is too large"))),
        }
    }

    /// Returns the position of tap `k` of output `o` along axis `i` of an image of size `n` with
    /// `pad` zeros before it; `None` in the padding.
    pub(super) fn position(&self, i: usize, o: usize, k: usize, pad: usize, n: usize) -> Option<usize> {
        (o * self.stride[i] + k * self.dilation[i]).checked_sub(pad).filter(|&at| at < n)
    }

    /// Calls `tap` for every pair of an output and a filter tap that lies in the image, with its
    /// height and width in the image, the filter and the output, for the given sizes.
    pub(super) fn taps(
        &self,
        x: &[usize],
        w: &[usize],
        y: &[usize],
        mut tap: impl FnMut([usize; 2], [usize; 2], [usize; 2]),
    ) -> Result<()> {
        let pad = self.pad_low([x[1], x[2]], [w[0], w[1]])?;
        for (k0, k1) in (0..w[0]).flat_map(|k0| (0..w[1]).map(move |k1| (k0, k1))) {
            for (o0, o1) in (0..y[1]).flat_map(|o0| (0..y[2]).map(move |o1| (o0, o1))) {
                let row = self.position(0, o0, k0, pad[0], x[1]);
                if let Some((i0, i1)) = row.zip(self.position(1, o1, k1, pad[1], x[2])) {
                    tap([i0, i1], [k0, k1], [o0, o1]);
                }
            }
        }
        Ok(())
    }

    /// Returns the zeros before both axes; all sizes must be known.
    pub(super) fn pad_low(&self, size: [usize; 2], k: [usize; 2]) -> Result<[usize; 2]> {
        Ok([self.around(0, size[0], k[0])?[0], self.around(1, size[1], k[1])?[0]])
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::op_cases::*;

    /// Draws sizes and a padding under which a window of `reach` fits a volume.
    pub(in crate::ops) fn draw_volume(draw: &mut Draw<'_>, reach: [usize; 3]) -> ([usize; 3], Padding3d) {
        let mut n = [0; 3].map(|_| draw.between(1, 4));
        let padding = match draw.below(3) {
            0 => Padding3d::Valid,
            1 => Padding3d::Same,
            _ => Padding3d::Explicit(reach.map(|k| [0; 2].map(|_| draw.below(k.min(3))))),
        };
        for i in 0..3 {
            n[i] = match padding {
                Padding3d::Same => n[i],
                Padding3d::Valid => n[i].max(reach[i]),
                Padding3d::Explicit(p) => n[i].max(reach[i].saturating_sub(p[i][0] + p[i][1])),
            };
        }
        (n, padding)
    }

    /// Draws a padding under which a window of `reach` fits an image of `n`; enlarges the image if
    /// necessary.
    pub(in crate::ops) fn draw_padding(
        draw: &mut Draw<'_>,
        n: &mut [usize; 2],
        reach: [usize; 2],
        at_most: [usize; 2],
    ) -> Padding {
        let padding = match draw.below(3) {
            0 => Padding::Valid,
            1 => Padding::Same,
            _ => Padding::Explicit([0, 1].map(|i| [0, 1].map(|_| draw.below(at_most[i].min(4))))),
        };
        for i in 0..2 {
            let around = match padding {
                Padding::Same => continue,
                Padding::Valid => 0,
                Padding::Explicit(p) => p[i][0] + p[i][1],
            };
            n[i] = n[i].max(reach[i].saturating_sub(around)).max(1);
        }
        padding
    }
}
