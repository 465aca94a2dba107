//! Strided views of buffers.

use super::BufferId;
use tensorpack_tensor::DType;

/// A strided view of a buffer's elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The buffer.
    pub buffer: BufferId,
    /// The type of its elements.
    pub dtype: DType,
    /// The sizes of the dimensions.
    pub sizes: Vec<usize>,
    /// Elements from one index of a dimension to the next. 0 repeats an element; negative strides
    /// run backwards.
    pub strides: Vec<isize>,
    /// The position in the buffer of the element at index zero.
    pub offset: usize,
}

/// Returns the strides of a dense row-major tensor of these sizes.
pub(crate) fn dense_strides(sizes: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; sizes.len()];
    for i in (1..sizes.len()).rev() {
        // Validation rejects sizes that cannot be addressed.
        strides[i - 1] = isize::wrapping_mul(strides[i], sizes[i].max(1) as isize);
    }
    strides
}

/// Returns the product of sizes, saturating at `usize::MAX`, which validation rejects.
pub(crate) fn elements(sizes: &[usize]) -> usize {
    if sizes.contains(&0) {
        return 0;
    }
    sizes.iter().fold(1, |n, &s| n.saturating_mul(s))
}

impl View {
    /// Returns a view of a whole buffer, dense in row-major order.
    pub fn dense(buffer: BufferId, dtype: DType, sizes: &[usize]) -> View {
        View { buffer, dtype, sizes: sizes.to_vec(), strides: dense_strides(sizes), offset: 0 }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        elements(&self.sizes)
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.sizes.contains(&0)
    }

    /// Returns whether the elements are contiguous in row-major order. They may start anywhere in
    /// the buffer.
    pub fn is_dense(&self) -> bool {
        let dense = dense_strides(&self.sizes);
        self.is_empty()
            || self.sizes.iter().zip(&self.strides).zip(&dense).all(|((&n, s), d)| n == 1 || s == d)
    }

    /// Returns whether all indices read the same element.
    pub(crate) fn is_scalar(&self) -> bool {
        self.strides.iter().zip(&self.sizes).all(|(&s, &n)| s == 0 || n == 1)
    }

    /// Returns whether this is a dense view of these sizes from the first element of the buffer on.
    pub fn is_whole(&self, sizes: &[usize]) -> bool {
        self.offset == 0 && self.sizes == sizes && self.is_dense()
    }

    /// Broadcasts this view to `sizes`, aligned at the last dimension. Incompatible sizes give a
    /// view with one stride too many, which validation rejects.
    pub fn broadcast_to(&self, sizes: &[usize]) -> View {
        let missing = sizes.len().saturating_sub(self.sizes.len());
        let (outer, aligned) = sizes.split_at(missing);
        let fits = |(&n, &to): (&usize, &usize)| n == to || n == 1;
        if aligned.len() < self.sizes.len() || !self.sizes.iter().zip(aligned).all(fits) {
            return View { sizes: sizes.to_vec(), strides: vec![0; sizes.len() + 1], ..self.clone() };
        }
        let strides = (0..outer.len() + aligned.len())
            .map(|i| match i.checked_sub(missing) {
                Some(j) if self.sizes[j] == sizes[i] => self.strides[j],
                _ => 0,
            })
            .collect();
        View { sizes: sizes.to_vec(), strides, ..self.clone() }
    }

    /// Permutes the dimensions: dimension `i` of the result is `order[i]` of this view.
    pub fn permute(&self, order: &[usize]) -> View {
        View {
            sizes: order.iter().map(|&i| self.sizes[i]).collect(),
            strides: order.iter().map(|&i| self.strides[i]).collect(),
            ..self.clone()
        }
    }

    /// Returns `sizes[i]` indices of each dimension: every `step[i]`-th one from `begin[i]` on.
    pub fn slice(&self, begin: &[usize], step: &[usize], sizes: &[usize]) -> View {
        let ahead = begin.iter().zip(&self.strides);
        let ahead = ahead.fold(0isize, |n, (&b, &s)| n.wrapping_add((b as isize).wrapping_mul(s)));
        View {
            sizes: sizes.to_vec(),
            // The stride of a single index is never used, and validation rejects views that leave
            // the buffer.
            strides: self.strides.iter().zip(step).map(|(&s, &k)| s.wrapping_mul(k as isize)).collect(),
            // An empty slice may start past the end: keep its offset inside.
            offset: if sizes.contains(&0) { self.offset } else { self.offset.wrapping_add_signed(ahead) },
            ..self.clone()
        }
    }

    /// Reverses some dimensions.
    pub fn reverse(&self, axes: &[usize]) -> View {
        let mut turned = self.clone();
        for &a in axes.iter().filter(|_| !self.is_empty()) {
            let last = ((self.sizes[a] - 1) as isize).wrapping_mul(turned.strides[a]);
            turned.offset = turned.offset.wrapping_add_signed(last);
            turned.strides[a] = turned.strides[a].wrapping_neg();
        }
        turned
    }

    /// Returns the same elements with other sizes, if that needs no copy.
    pub fn reshape(&self, sizes: &[usize]) -> Option<View> {
        if self.is_dense() {
            return Some(View { sizes: sizes.to_vec(), strides: dense_strides(sizes), ..self.clone() });
        }
        // Adding and dropping dimensions of size 1 works for any strides.
        let solid = |s: &[usize]| s.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
        if solid(&self.sizes) != solid(sizes) {
            return None;
        }
        let mut strides = self.sizes.iter().zip(&self.strides).filter(|&(&n, _)| n != 1).map(|(_, &s)| s);
        let strides = sizes.iter().map(|&n| if n == 1 { 0 } else { strides.next().unwrap_or(0) }).collect();
        Some(View { sizes: sizes.to_vec(), strides, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(sizes: &[usize]) -> View {
        View::dense(BufferId(0), DType::F32, sizes)
    }

    #[test]
    fn rearranging() {
        let x = view(&[2, 3, 4]);
        assert_eq!(x.strides, [12, 4, 1]);
        let t = x.permute(&[2, 0, 1]);
        assert_eq!((t.sizes.as_slice(), t.strides.as_slice()), (&[4, 2, 3][..], &[1, 12, 4][..]));
        assert!(!t.is_dense() && t.reshape(&[24]).is_none());
        assert_eq!(t.reshape(&[4, 1, 2, 3]).unwrap().strides, [1, 0, 12, 4]);
        let s = x.slice(&[1, 0, 1], &[1, 2, 1], &[1, 2, 3]);
        assert_eq!((s.offset, s.strides.as_slice()), (13, &[12, 8, 1][..]));
        assert_eq!(view(&[3, 1]).broadcast_to(&[2, 3, 5]).strides, [0, 1, 0]);
    }

    #[test]
    fn sizes_of_one_and_zero_are_dense() {
        assert!(view(&[2, 1, 3]).permute(&[1, 0, 2]).is_dense());
        assert!(view(&[0, 3]).permute(&[1, 0]).is_dense());
    }
}
