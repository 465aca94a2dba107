//! Weight layouts of other frameworks.

use tensorpack_tensor::{Error, HostTensor, Result};

/// A permutation of elements that is applied when a tensor is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "Layout")]
pub enum WeightLayout {
    /// The same layout on both sides.
    Unchanged,
    /// PyTorch's filters `[out, in, height, width]` become `[height, width, in, out]`. This covers
    /// groups and depthwise convolutions: `in` is the number of input channels of a group.
    OihwToHwio,
    /// PyTorch's 1-D filters `[out, in, width]` become `[width, in, out]`.
    OiwToWio,
    /// PyTorch's linear weights `[out, in]` become `[in, out]`.
    OutInToInOut,
    /// Linear weights `[out, channels * height * width]` after a flattened image of these sizes
    /// (`[channels, height, width]`) become `[height * width * channels, out]`: images are
    /// channels-last here, so they are flattened in another order.
    FlatChwToFlatHwc([usize; 3]),
}

impl WeightLayout {
    /// Returns the permuted tensor.
    pub fn apply(self, t: &HostTensor) -> Result<HostTensor> {
        match self {
            WeightLayout::Unchanged => Ok(t.clone()),
            WeightLayout::OihwToHwio => permuted(t, [2, 3, 1, 0]),
            WeightLayout::OiwToWio => permuted(t, [2, 1, 0]),
            WeightLayout::OutInToInOut => permuted(t, [1, 0]),
            WeightLayout::FlatChwToFlatHwc([c, h, w]) => match *t.sizes() {
                [out, features]
                    if [c, h, w].iter().try_fold(1usize, |n, &d| n.checked_mul(d)) == Some(features) =>
                {
                    let hwco = permuted(&reshaped(t, [out, c, h, w])?, [2, 3, 1, 0])?;
                    reshaped(&hwco, [features, out])
                }
                _ => Err(Error::shape(format!(
                    "expected [out, {c} * {h} * {w}] for a flattened image, got {:?}",
                    t.sizes()
                ))),
            },
        }
    }

    /// Returns the tensor that [`WeightLayout::apply`] turns into `t`.
    pub fn undo(self, t: &HostTensor) -> Result<HostTensor> {
        match self {
            WeightLayout::Unchanged => Ok(t.clone()),
            WeightLayout::OihwToHwio => permuted(t, [3, 2, 0, 1]),
            WeightLayout::OiwToWio => permuted(t, [2, 1, 0]),
            WeightLayout::OutInToInOut => permuted(t, [1, 0]),
            WeightLayout::FlatChwToFlatHwc([c, h, w]) => match *t.sizes() {
                [features, out]
                    if [c, h, w].iter().try_fold(1usize, |n, &d| n.checked_mul(d)) == Some(features) =>
                {
                    let ochw = permuted(&reshaped(t, [h, w, c, out])?, [3, 2, 0, 1])?;
                    reshaped(&ochw, [out, features])
                }
                _ => Err(Error::shape(format!(
                    "expected [{h} * {w} * {c}, out] after a flattened image, got {:?}",
                    t.sizes()
                ))),
            },
        }
    }
}

/// Returns a tensor with the same elements and other sizes.
fn reshaped<const RANK: usize>(t: &HostTensor, sizes: [usize; RANK]) -> Result<HostTensor> {
    let mut result = HostTensor::zeros(t.dtype(), sizes)?;
    result.copy_from_bytes(t.as_bytes())?;
    Ok(result)
}

/// Returns the tensor whose dim `i` is dim `order[i]` of `t`.
fn permuted<const RANK: usize>(t: &HostTensor, order: [usize; RANK]) -> Result<HostTensor> {
    let Ok(sizes) = <[usize; RANK]>::try_from(t.sizes()) else {
        return Err(Error::shape(format!("a layout of rank {RANK} does not apply to shape {:?}", t.sizes())));
    };
    let size = t.dtype().size();
    let mut strides = [size; RANK];
    for i in (1..RANK).rev() {
        strides[i - 1] = strides[i] * sizes[i];
    }
    let to = order.map(|i| sizes[i]);
    let strides = order.map(|i| strides[i]);
    let from = t.as_bytes();
    let mut bytes = Vec::with_capacity(from.len());
    let mut index = [0; RANK];
    for _ in 0..t.len() {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        bytes.extend(&from[at..at + size]);
        for (i, &n) in index.iter_mut().zip(&to).rev() {
            *i += 1;
            if *i < n {
                break;
            }
            *i = 0;
        }
    }
    let mut result = HostTensor::zeros(t.dtype(), to)?;
    result.copy_from_bytes(&bytes)?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_permuted() {
        let sizes @ [o, i, h, w] = [2, 3, 4, 5];
        let t = HostTensor::new(sizes, (0..120i32).collect()).unwrap();
        let r = WeightLayout::OihwToHwio.apply(&t).unwrap();
        assert_eq!(r.sizes(), [h, w, i, o]);
        let (from, to) = (t.as_slice::<i32>().unwrap(), r.as_slice::<i32>().unwrap());
        for (a, b, c, d) in [(0, 0, 0, 0), (1, 2, 3, 4), (0, 2, 1, 3), (1, 0, 2, 0)] {
            assert_eq!(to[((c * w + d) * i + b) * o + a], from[((a * i + b) * h + c) * w + d]);
        }
        let t = HostTensor::new([2, 3], vec![1.0f64, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let expected = HostTensor::new([3, 2], vec![1.0f64, 4.0, 2.0, 5.0, 3.0, 6.0]).unwrap();
        assert_eq!(WeightLayout::OutInToInOut.apply(&t).unwrap(), expected);
        assert!(WeightLayout::OihwToHwio.apply(&t).is_err());
    }

    #[test]
    fn flattened_images_are_reordered() {
        // One output; feature (c, h, w) has the value 100 c + 10 h + w.
        let sizes @ [c, h, w] = [2, 3, 2];
        let value = |c: usize, h: usize, w: usize| (100 * c + 10 * h + w) as f32;
        let chw =
            (0..c).flat_map(|c| (0..h).flat_map(move |h| (0..w).map(move |w| value(c, h, w)))).collect();
        let hwc: Vec<f32> =
            (0..h).flat_map(|h| (0..w).flat_map(move |w| (0..c).map(move |c| value(c, h, w)))).collect();
        let layout = WeightLayout::FlatChwToFlatHwc(sizes);
        let ours = layout.apply(&HostTensor::new([1, 12], chw).unwrap()).unwrap();
        assert_eq!((ours.sizes(), ours.as_slice::<f32>().unwrap()), (&[12, 1][..], &hwc[..]));
        assert_eq!(layout.apply(&ours).unwrap_err().kind(), tensorpack_tensor::ErrorKind::Shape);
    }

    #[test]
    fn undo_is_the_inverse() {
        use WeightLayout::*;
        for (layout, sizes) in [
            (Unchanged, &[3][..]),
            (OihwToHwio, &[2, 3, 4, 5]),
            (OiwToWio, &[2, 3, 4]),
            (OutInToInOut, &[2, 3]),
            (FlatChwToFlatHwc([2, 3, 4]), &[5, 24]),
        ] {
            let n: usize = sizes.iter().product();
            let t = HostTensor::new(sizes, (0..n as i32).collect()).unwrap();
            assert_eq!(layout.undo(&layout.apply(&t).unwrap()).unwrap(), t, "{layout:?}");
        }
    }
}
