//! Shapes with possibly unknown dimensions, and broadcasting.

use crate::{Dim, Error, Result};
use std::fmt;
use std::ops::Deref;

/// The shape of a tensor while a graph is built. The rank is always known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(Vec<Dim>);

impl Shape {
    /// Returns the shape of a scalar.
    pub fn scalar() -> Shape {
        Shape(Vec::new())
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the sizes if all of them are known.
    pub fn known(&self) -> Option<Vec<usize>> {
        self.0.iter().map(|d| d.known()).collect()
    }

    /// Returns the number of elements, which is unknown if any dimension is.
    pub fn element_count(&self) -> Dim {
        Dim::product(&self.0)
    }

    /// Broadcasts two shapes, aligned at the last dimension.
    ///
    /// Sizes must be equal, or one of them 1. An unknown size paired with a known size other than 1
    /// takes the known size; this is verified when the unknown one becomes concrete.
    pub fn broadcast(&self, other: &Shape) -> Result<Shape> {
        let rank = self.rank().max(other.rank());
        let aligned = |s: &Shape, i: usize| {
            let missing = rank - s.rank();
            if i < missing { Dim::Known(1) } else { s.0[i - missing] }
        };
        (0..rank)
            .map(|i| match (aligned(self, i), aligned(other, i)) {
                (a, b) if a == b => Ok(a),
                (Dim::Known(1), d) | (d, Dim::Known(1)) => Ok(d),
                (Dim::Known(_), Dim::Known(_)) => {
                    Err(Error::shape(format!("shapes {self} and {other} cannot be broadcast together")))
                }
                (Dim::Known(n), Dim::Unknown(_)) | (Dim::Unknown(_), Dim::Known(n)) => Ok(Dim::Known(n)),
                (a, b) => Ok(Dim::derived("broadcast", &[a, b], &[])),
            })
            .collect::<Result<Vec<Dim>>>()
            .map(Shape)
    }

    /// Returns whether the concrete shape `sizes` is compatible with this shape.
    pub fn allows(&self, sizes: &[usize]) -> bool {
        self.rank() == sizes.len() && self.0.iter().zip(sizes).all(|(d, &n)| d.known().is_none_or(|k| k == n))
    }
}

/// Returns the number of elements of a tensor with these sizes, or an error on overflow.
pub fn element_count(sizes: &[usize]) -> Result<usize> {
    // A zero makes the tensor empty, even if the other sizes would overflow.
    if sizes.contains(&0) {
        return Ok(0);
    }
    sizes
        .iter()
        .try_fold(1usize, |n, &s| n.checked_mul(s))
        .filter(|&n| n <= isize::MAX as usize / 8)
        .ok_or_else(|| {
            Error::shape(format!("a tensor of shape {sizes:?} has more elements than can be addressed"))
        })
}

impl Deref for Shape {
    type Target = [Dim];
    fn deref(&self) -> &[Dim] {
        &self.0
    }
}

impl From<Vec<Dim>> for Shape {
    fn from(dims: Vec<Dim>) -> Shape {
        Shape(dims)
    }
}

impl From<&[usize]> for Shape {
    fn from(sizes: &[usize]) -> Shape {
        Shape(sizes.iter().map(|&n| Dim::Known(n)).collect())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(sizes: [usize; N]) -> Shape {
        Shape::from(&sizes[..])
    }
}

impl From<&Vec<usize>> for Shape {
    fn from(sizes: &Vec<usize>) -> Shape {
        Shape::from(&sizes[..])
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Symbol;
    use proptest::prelude::*;

    #[test]
    fn unknown_dim_takes_the_known_size() {
        let b = Dim::Unknown(Symbol::new(0));
        let x = Shape::from(vec![b, Dim::Known(3)]);
        assert_eq!(x.broadcast(&[4, 1].into()).unwrap(), [4, 3].into());
        assert_eq!(x.broadcast(&[1, 3].into()).unwrap(), x);
        assert!(x.broadcast(&[2].into()).is_err());
    }

    #[test]
    fn overflowing_sizes_are_errors() {
        assert!(element_count(&[usize::MAX, 2]).is_err());
        assert!(element_count(&[1 << 40, 1 << 40]).is_err());
        assert_eq!(element_count(&[usize::MAX, 2, 0]).unwrap(), 0);
        assert_eq!(element_count(&[]).unwrap(), 1);
    }

    proptest! {
        #[test]
        fn broadcast_is_symmetric_and_idempotent(
            a in prop::collection::vec(prop_oneof![Just(1usize), 0..4usize], 0..4),
            b in prop::collection::vec(prop_oneof![Just(1usize), 0..4usize], 0..4),
        ) {
            let (a, b) = (Shape::from(&a), Shape::from(&b));
            let ab = a.broadcast(&b);
            prop_assert_eq!(ab.is_ok(), b.broadcast(&a).is_ok());
            if let Ok(ab) = ab {
                prop_assert_eq!(&ab, &b.broadcast(&a).unwrap());
                prop_assert_eq!(&ab.broadcast(&a).unwrap(), &ab);
            }
        }
    }
}
