//! Transposition of host tensors.

use tensorpack_tensor::{Error, HostTensor, Result};

/// Returns a tensor whose dim `i` is dim `order[i]` of `tensor`.
pub(crate) fn permuted(tensor: &HostTensor, order: &[usize]) -> Result<HostTensor> {
    let from = tensor.sizes();
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if sorted != (0..from.len()).collect::<Vec<_>>() {
        return Err(Error::argument(format!("{order:?} is not a permutation of the dims of {from:?}")));
    }
    let mut strides = vec![1; from.len()];
    for i in (1..from.len()).rev() {
        strides[i - 1] = strides[i] * from[i];
    }
    let sizes: Vec<usize> = order.iter().map(|&i| from[i]).collect();
    let strides: Vec<usize> = order.iter().map(|&i| strides[i]).collect();
    let (size, source) = (tensor.dtype().size(), tensor.as_bytes());
    let mut bytes = Vec::with_capacity(source.len());
    let (mut at, mut index) = (0, vec![0; sizes.len()]);
    for _ in 0..tensor.len() {
        bytes.extend_from_slice(&source[at * size..][..size]);
        for i in (0..sizes.len()).rev() {
            index[i] += 1;
            at += strides[i];
            if index[i] < sizes[i] {
                break;
            }
            at -= strides[i] * sizes[i];
            index[i] = 0;
        }
    }
    let mut result = HostTensor::zeros(tensor.dtype(), sizes)?;
    result.copy_from_bytes(&bytes)?;
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_are_reordered() {
        let x = HostTensor::new([2, 1, 3], vec![1i32, 2, 3, 4, 5, 6]).unwrap();
        let y = permuted(&x, &[2, 0, 1]).unwrap();
        assert_eq!(y, HostTensor::new([3, 2, 1], vec![1i32, 4, 2, 5, 3, 6]).unwrap());
        assert_eq!(permuted(&y, &[1, 2, 0]).unwrap(), x);
        assert!(permuted(&x, &[0, 0, 1]).is_err() && permuted(&x, &[0, 1]).is_err());
        let empty = HostTensor::zeros(tensorpack_tensor::DType::F32, [0, 4]).unwrap();
        assert_eq!(permuted(&empty, &[1, 0]).unwrap().sizes(), [4, 0]);
    }
}
