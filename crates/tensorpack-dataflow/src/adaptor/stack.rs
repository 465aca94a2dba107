//! Stacking tensors along a new axis.

use crate::Sample;
use tensorpack_tensor::{DType, Element, Error, HostTensor, Result, bf16, f16};

/// Runs `$body` with `$t` as the Rust type of `$dtype`.
macro_rules! dispatch_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $t = f32;
                $body
            }
            DType::F64 => {
                type $t = f64;
                $body
            }
            DType::F16 => {
                type $t = f16;
                $body
            }
            DType::Bf16 => {
                type $t = bf16;
                $body
            }
            DType::I32 => {
                type $t = i32;
                $body
            }
            DType::I64 => {
                type $t = i64;
                $body
            }
            DType::U8 => {
                type $t = u8;
                $body
            }
            DType::Bool => {
                type $t = bool;
                $body
            }
        }
    };
}

/// How to stack tensors of different sizes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Padding {
    /// Not at all: sizes must be equal.
    None,
    /// Pad at the end of every axis to the largest size with this value.
    Constant(f64),
}

/// Stacks every component of `samples` along a new first axis.
pub(crate) fn stack(samples: &[Sample], padding: Padding) -> Result<Sample> {
    let Some(first) = samples.first() else { return Ok(Sample::new()) };
    if let Some(i) = samples.iter().position(|s| s.len() != first.len()) {
        let (n, m) = (first.len(), samples[i].len());
        return Err(Error::shape(format!("sample 0 of the batch has {n} components, sample {i} has {m}")));
    }
    let one = |i: usize| {
        let parts: Vec<&HostTensor> = samples.iter().map(|sample| &sample[i]).collect();
        component(&parts, padding).map_err(|e| e.within(format!("component {i}")))
    };
    (0..first.len()).map(one).collect()
}

fn component(parts: &[&HostTensor], padding: Padding) -> Result<HostTensor> {
    let first = parts[0];
    let matches = |part: &HostTensor| match padding {
        Padding::None => part.sizes() == first.sizes(),
        Padding::Constant(_) => part.sizes().len() == first.sizes().len(),
    };
    if let Some(i) = parts.iter().position(|p| p.dtype() != first.dtype() || !matches(p)) {
        let (a, b) = (parts[0], parts[i]);
        let (a, b) = (format!("{}{:?}", a.dtype(), a.sizes()), format!("{}{:?}", b.dtype(), b.sizes()));
        let what = match padding {
            Padding::None => "use batch_padded to pad them, or batch_by_shape to group equal shapes",
            Padding::Constant(_) => "padding cannot change the dtype or the rank",
        };
        return Err(Error::shape(format!("sample 0 of the batch is {a}, sample {i} is {b}")).note(what));
    }
    dispatch_dtype!(first.dtype(), T => match padding {
        Padding::None => stack_equal::<T>(parts),
        Padding::Constant(value) => stack_padded::<T>(parts, value),
    })
}

fn stack_equal<T: Element>(parts: &[&HostTensor]) -> Result<HostTensor> {
    let mut values = Vec::with_capacity(parts.len() * parts[0].len());
    for part in parts {
        values.extend_from_slice(part.as_slice::<T>()?);
    }
    HostTensor::new([&[parts.len()], parts[0].sizes()].concat(), values)
}

fn stack_padded<T: Element>(parts: &[&HostTensor], value: f64) -> Result<HostTensor> {
    let rank = parts[0].sizes().len();
    let largest: Vec<usize> =
        (0..rank).map(|axis| parts.iter().map(|p| p.sizes()[axis]).max().unwrap_or(0)).collect();
    let padded_len: usize = largest.iter().product();
    let fill = HostTensor::from_f64(T::DTYPE, [], &[value])?.as_slice::<T>()?[0];
    let mut values = vec![fill; parts.len() * padded_len];
    for (part, to) in parts.iter().zip(values.chunks_mut(padded_len.max(1))) {
        copy_into_corner(part.as_slice::<T>()?, part.sizes(), to, &largest);
    }
    HostTensor::new([&[parts.len()], &largest[..]].concat(), values)
}

/// Copies a tensor into the corner of a larger one.
fn copy_into_corner<T: Copy>(from: &[T], sizes: &[usize], to: &mut [T], padded_len: &[usize]) {
    if from.is_empty() {
        return;
    }
    match sizes {
        [] | [_] => to[..from.len()].copy_from_slice(from),
        [_, sizes @ ..] => {
            let (step, padded_step) = (sizes.iter().product(), padded_len[1..].iter().product());
            for (from, to) in from.chunks(step).zip(to.chunks_mut(padded_step)) {
                copy_into_corner(from, sizes, to, &padded_len[1..]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorpack_tensor::ErrorKind;

    fn tensor(sizes: &[usize], values: &[f64]) -> Sample {
        vec![HostTensor::from_f64(DType::I32, sizes, values).unwrap()]
    }

    #[test]
    fn a_new_axis_comes_first() {
        for dtype in DType::ALL {
            let one = HostTensor::from_f64(dtype, [2], &[1.0, 0.0]).unwrap();
            let two = HostTensor::from_f64(dtype, [2], &[0.0, 1.0]).unwrap();
            let both = stack(&[vec![one], vec![two]], Padding::None).unwrap();
            assert_eq!(both, [HostTensor::from_f64(dtype, [2, 2], &[1.0, 0.0, 0.0, 1.0]).unwrap()]);
        }
        let scalars = stack(&[tensor(&[], &[3.0]), tensor(&[], &[4.0])], Padding::None).unwrap();
        assert_eq!(scalars, tensor(&[2], &[3.0, 4.0]));
        assert_eq!(stack(&[tensor(&[0, 3], &[])], Padding::None).unwrap()[0].sizes(), [1, 0, 3]);
    }

    #[test]
    fn padding_fills_every_axis() {
        let a = tensor(&[1, 3], &[1.0, 2.0, 3.0]);
        let b = tensor(&[2, 2], &[4.0, 5.0, 6.0, 7.0]);
        let both = stack(&[a, b, tensor(&[0, 0], &[])], Padding::Constant(-1.0)).unwrap();
        let rows = [1.0, 2.0, 3.0, -1.0, -1.0, -1.0, 4.0, 5.0, -1.0, 6.0, 7.0, -1.0];
        assert_eq!(both, tensor(&[3, 2, 3], &[&rows[..], &[-1.0; 6]].concat()));
        assert_eq!(stack(&[tensor(&[0], &[])], Padding::Constant(0.0)).unwrap()[0].sizes(), [1, 0]);
    }

    #[test]
    fn mismatched_samples_are_reported() {
        let e = stack(&[tensor(&[1], &[1.0]), tensor(&[2], &[1.0, 2.0])], Padding::None).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Shape);
        assert!(["component 0", "i32[1]", "i32[2]"].iter().all(|term| e.message().contains(term)), "{e}");
        assert!(stack(&[tensor(&[1], &[1.0]), tensor(&[], &[2.0])], Padding::Constant(0.0)).is_err());
        assert!(stack(&[tensor(&[1], &[1.0]), Sample::new()], Padding::None).is_err());
    }
}
