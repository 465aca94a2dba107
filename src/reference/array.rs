//! Row-major arrays that store every float as f64 and every integer as i64, regardless of the
//! declared dtype.

use tensorpack_tensor::{DType, HostTensor, Result};

/// One element: a float, or an integer or boolean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// An element of a float type, never rounded to that type.
    Float(f64),
    /// An element of an integer type, within its range; a boolean is 0 or 1.
    Int(i64),
}

impl Scalar {
    /// Returns zero of an element type.
    pub fn zero(dtype: DType) -> Scalar {
        if dtype.is_float() { Scalar::Float(0.0) } else { Scalar::Int(0) }
    }

    /// Returns the value as a float; integers beyond 2^53 are rounded.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Float(v) => v,
            Scalar::Int(v) => v as f64,
        }
    }

    /// Returns the value as an integer, converted as Rust's `as` does.
    pub fn as_i64(self) -> i64 {
        match self {
            Scalar::Float(v) => v as i64,
            Scalar::Int(v) => v,
        }
    }
}

/// The elements, in row-major order.
#[derive(Clone, Debug, PartialEq)]
enum Elements {
    Floats(Vec<f64>),
    Ints(Vec<i64>),
}

/// An n-dimensional array of the reference interpreter.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    dtype: DType,
    sizes: Vec<usize>,
    elements: Elements,
}

impl Array {
    /// Creates an array whose elements are a function of the index. Integers wrap to the range of
    /// `dtype`.
    pub fn from_fn(dtype: DType, sizes: &[usize], mut value: impl FnMut(&[usize]) -> Scalar) -> Array {
        let mut index = Indices::new(sizes);
        let mut array = Array::zeros(dtype, sizes);
        for k in 0..array.len() {
            array.put(k, value(&index.current));
            index.advance();
        }
        array
    }

    /// Creates an array of `values` in row-major order. Their number must match `sizes`.
    pub fn from_values(dtype: DType, sizes: &[usize], values: &[Scalar]) -> Array {
        let mut array = Array::zeros(dtype, sizes);
        values.iter().enumerate().for_each(|(k, &v)| array.put(k, v));
        array
    }

    /// Creates an array of zeros.
    pub fn zeros(dtype: DType, sizes: &[usize]) -> Array {
        let len = sizes.iter().product();
        let elements = match dtype.is_float() {
            true => Elements::Floats(vec![0.0; len]),
            false => Elements::Ints(vec![0; len]),
        };
        Array { dtype, sizes: sizes.to_vec(), elements }
    }

    /// Returns the elements of a tensor, widened.
    pub fn from_host(tensor: &HostTensor) -> Array {
        let ints = |values: Vec<i64>| Elements::Ints(values);
        let elements = match tensor.dtype() {
            d if d.is_float() => Elements::Floats(tensor.to_f64_vec()),
            // A conversion through f64 would round large integers.
            DType::I64 => ints(tensor.as_slice::<i64>().unwrap_or_default().to_vec()),
            _ => ints(tensor.to_f64_vec().into_iter().map(|v| v as i64).collect()),
        };
        Array { dtype: tensor.dtype(), sizes: tensor.sizes().to_vec(), elements }
    }

    /// Returns the elements as a tensor of the declared dtype, to which floats are rounded.
    pub fn to_host(&self) -> Result<HostTensor> {
        let sizes = self.sizes.as_slice();
        match (&self.elements, self.dtype) {
            (Elements::Floats(v), dtype) => HostTensor::from_f64(dtype, sizes, v),
            (Elements::Ints(v), DType::I32) => HostTensor::new(sizes, v.iter().map(|&v| v as i32).collect()),
            (Elements::Ints(v), DType::U8) => HostTensor::new(sizes, v.iter().map(|&v| v as u8).collect()),
            (Elements::Ints(v), DType::Bool) => HostTensor::new(sizes, v.iter().map(|&v| v != 0).collect()),
            (Elements::Ints(v), _) => HostTensor::new(sizes, v.clone()),
        }
    }

    /// The declared element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes of the dimensions.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        match &self.elements {
            Elements::Floats(v) => v.len(),
            Elements::Ints(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the element at an index. Panics if the index is out of range.
    pub fn at(&self, index: &[usize]) -> Scalar {
        self.get(self.offset(index))
    }

    /// Returns the element at an index, as a float.
    pub fn float(&self, index: &[usize]) -> f64 {
        self.at(index).as_f64()
    }

    /// Returns the element at an index, as an integer.
    pub fn int(&self, index: &[usize]) -> i64 {
        self.at(index).as_i64()
    }

    /// Returns the element that broadcasting puts at an index of a larger shape: shapes are aligned
    /// at the last dim, and dims of size 1 repeat.
    pub fn broadcast_at(&self, index: &[usize]) -> Scalar {
        let own = &index[index.len() - self.sizes.len()..];
        let own: Vec<usize> =
            own.iter().zip(&self.sizes).map(|(&i, &n)| if n == 1 { 0 } else { i }).collect();
        self.at(&own)
    }

    /// Sets the element at an index. Panics if the index is out of range.
    pub fn set(&mut self, index: &[usize], value: Scalar) {
        let offset = self.offset(index);
        self.put(offset, value);
    }

    /// Returns the array with other sizes, which must have the same number of elements.
    pub fn reshaped(&self, sizes: &[usize]) -> Array {
        Array { sizes: sizes.to_vec(), ..self.clone() }
    }

    /// Applies `f` to every element. The result has elements of `dtype`.
    pub fn map(&self, dtype: DType, f: impl Fn(Scalar) -> Scalar) -> Array {
        let mut array = Array::zeros(dtype, &self.sizes);
        (0..self.len()).for_each(|k| array.put(k, f(self.get(k))));
        array
    }

    /// Whether no element is NaN or infinite.
    pub fn is_finite(&self) -> bool {
        match &self.elements {
            Elements::Floats(v) => v.iter().all(|v| v.is_finite()),
            Elements::Ints(_) => true,
        }
    }

    /// Returns all elements in row-major order.
    pub fn values(&self) -> impl Iterator<Item = Scalar> + '_ {
        (0..self.len()).map(|k| self.get(k))
    }

    fn offset(&self, index: &[usize]) -> usize {
        assert_eq!(index.len(), self.sizes.len(), "an index has one entry per dimension");
        index.iter().zip(&self.sizes).fold(0, |at, (&i, &n)| {
            assert!(i < n, "{index:?} is outside {:?}", self.sizes);
            at * n + i
        })
    }

    fn get(&self, offset: usize) -> Scalar {
        match &self.elements {
            Elements::Floats(v) => Scalar::Float(v[offset]),
            Elements::Ints(v) => Scalar::Int(v[offset]),
        }
    }

    fn put(&mut self, offset: usize, value: Scalar) {
        match &mut self.elements {
            Elements::Floats(v) => v[offset] = value.as_f64(),
            Elements::Ints(v) => v[offset] = narrowed(value, self.dtype),
        }
    }
}

/// Converts a value to an integer of `dtype`. Integers wrap; floats saturate, like Rust's `as`.
fn narrowed(value: Scalar, dtype: DType) -> i64 {
    match (dtype, value) {
        (DType::I32, Scalar::Int(v)) => i64::from(v as i32),
        (DType::I32, Scalar::Float(v)) => i64::from(v as i32),
        (DType::U8, Scalar::Int(v)) => i64::from(v as u8),
        (DType::U8, Scalar::Float(v)) => i64::from(v as u8),
        (DType::Bool, v) => i64::from(v.as_f64() != 0.0),
        (_, v) => v.as_i64(),
    }
}

/// An iterator over the indices of a shape, in row-major order.
#[derive(Clone, Debug)]
pub struct Indices {
    sizes: Vec<usize>,
    current: Vec<usize>,
    left: usize,
}

impl Indices {
    /// Returns the indices of `sizes`.
    pub fn new(sizes: &[usize]) -> Indices {
        Indices { sizes: sizes.to_vec(), current: vec![0; sizes.len()], left: sizes.iter().product() }
    }

    fn advance(&mut self) {
        for d in (0..self.sizes.len()).rev() {
            self.current[d] += 1;
            if self.current[d] < self.sizes[d] {
                return;
            }
            self.current[d] = 0;
        }
    }
}

impl Iterator for Indices {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        self.left = self.left.checked_sub(1)?;
        let index = self.current.clone();
        self.advance();
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_in_row_major_order() {
        let all: Vec<Vec<usize>> = Indices::new(&[2, 3]).collect();
        assert_eq!(all, [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]);
        assert_eq!(Indices::new(&[2, 0, 3]).count(), 0);
        assert_eq!(Indices::new(&[]).collect::<Vec<_>>(), [Vec::<usize>::new()]);
    }

    #[test]
    fn integers_wrap_and_floats_saturate() {
        let large = Scalar::Int(300);
        assert_eq!(Array::from_fn(DType::U8, &[], |_| large).int(&[]), 44);
        assert_eq!(Array::from_fn(DType::U8, &[], |_| Scalar::Float(300.7)).int(&[]), 255);
        assert_eq!(Array::from_fn(DType::I32, &[], |_| Scalar::Int(1 << 31)).int(&[]), -(1 << 31));
        assert_eq!(Array::from_fn(DType::Bool, &[], |_| Scalar::Float(0.5)).int(&[]), 1);
    }

    #[test]
    fn host_tensors_round_trip_exactly() {
        let wide = HostTensor::new([2], vec![(1i64 << 53) + 1, i64::MIN]).unwrap();
        assert_eq!(Array::from_host(&wide).to_host().unwrap(), wide);
        let third = Array::from_fn(DType::F32, &[], |_| Scalar::Float(1.0 / 3.0));
        assert_eq!(third.float(&[]), 1.0 / 3.0);
        assert_eq!(third.to_host().unwrap(), HostTensor::scalar(1.0f32 / 3.0));
    }

    #[test]
    fn smaller_shapes_are_broadcast() {
        let column = Array::from_fn(DType::I64, &[2, 1], |i| Scalar::Int(i[0] as i64));
        assert_eq!(column.broadcast_at(&[7, 1, 5]), Scalar::Int(1));
    }
}
