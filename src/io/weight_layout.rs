//! Weight layouts of other frameworks.

use tensorpack_tensor::{Error, HostTensor, Result};

/// A permutation of dimensions that is applied when a tensor is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "Layout")]
pub enum WeightLayout {
    /// PyTorch's filters `[out, in, height, width]` become `[height, width, in, out]`.
    OihwToHwio,
    /// PyTorch's linear weights `[out, in]` become `[in, out]`.
    OutInToInOut,
}

impl WeightLayout {
    /// Returns the permuted tensor.
    pub fn apply(self, t: &HostTensor) -> Result<HostTensor> {
        match self {
            WeightLayout::OihwToHwio => permuted(t, [2, 3, 1, 0]),
            WeightLayout::OutInToInOut => permuted(t, [1, 0]),
        }
    }
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
}
