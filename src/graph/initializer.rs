//! Initializers: the initial value of a variable is a pure function of the seed, the variable's
//! name and its shape.

use tensorpack_tensor::{CounterRng, DType, Error, HostTensor, Result, element_count};

/// An initializer: the distribution of the initial values of a variable.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Every element has this value.
    Constant(f64),
    /// Uniform between the two values.
    Uniform(f64, f64),
    /// Normal with this mean and standard deviation.
    Normal(f64, f64),
    /// Normal with this mean and standard deviation, redrawn (up to 64 times) beyond two standard
    /// deviations from the mean.
    TruncatedNormal(f64, f64),
    /// Truncated normal with variance `scale / fan`, corrected for the truncation.
    VarianceScaling {
        /// 2 for ReLU nets (He), 1 otherwise (Glorot, LeCun).
        scale: f64,
        /// The fan that divides `scale`.
        fan: Fan,
    },
    /// Uniform with variance `scale / fan`.
    UniformScaling {
        /// 2 for ReLU nets (He), 1 otherwise (Glorot, LeCun).
        scale: f64,
        /// The fan that divides `scale`.
        fan: Fan,
    },
    /// A random matrix with orthonormal columns (or rows, if there are more columns than rows),
    /// times this gain. All dims but the last are flattened into the rows (Saxe et al., 2013).
    Orthogonal(f64),
    /// Identity matrix after flattening all but the last dim.
    Identity,
    /// Exactly these values.
    Value(HostTensor),
}

/// The number of connections that scales an initializer, for a weight of shape `[..., in, out]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// Connections into an output.
    In,
    /// Connections out of an input.
    Out,
    /// The mean of both.
    Average,
}

impl Fan {
    /// Returns the number of connections of a weight of these sizes; at least 1.
    fn connections(self, sizes: &[usize]) -> f64 {
        let receptive: f64 = sizes[..sizes.len().saturating_sub(2)].iter().map(|&n| n as f64).product();
        let inner = |k: usize| sizes.len().checked_sub(k).map_or(1.0, |i| sizes[i] as f64) * receptive;
        let (fan_in, fan_out) = (inner(2), inner(1));
        let fan = match self {
            Fan::In => fan_in,
            Fan::Out => fan_out,
            Fan::Average => (fan_in + fan_out) / 2.0,
        };
        fan.max(1.0)
    }
}

impl Init {
    /// Returns whether all initial values of a variable of this type are finite. A variable with
    /// infinite initial values, such as the lowest cost so far, may be infinite later as well.
    pub(crate) fn is_finite(&self, dtype: DType) -> bool {
        match self {
            // In the type of the variable: the largest f16 is 65504.
            Init::Constant(x) => {
                let stored = HostTensor::from_f64(dtype, [], &[*x]).and_then(|value| value.to_scalar());
                stored.is_ok_and(f64::is_finite)
            }
            Init::Value(values) if dtype.is_float() => values.to_f64_vec().into_iter().all(f64::is_finite),
            _ => true,
        }
    }

    /// All zeros.
    pub fn zeros() -> Init {
        Init::Constant(0.0)
    }

    /// All ones.
    pub fn ones() -> Init {
        Init::Constant(1.0)
    }

    /// He et al. 2015, for layers followed by ReLU: truncated normal with variance 2 / fan-in.
    pub fn he() -> Init {
        Init::VarianceScaling { scale: 2.0, fan: Fan::In }
    }

    /// Glorot and Bengio 2010: truncated normal with variance 1 / mean of fan-in and fan-out.
    pub fn xavier() -> Init {
        Init::VarianceScaling { scale: 1.0, fan: Fan::Average }
    }

    /// He et al. 2015: uniform with variance 2 / fan-in.
    pub fn he_uniform() -> Init {
        Init::UniformScaling { scale: 2.0, fan: Fan::In }
    }

    /// Glorot and Bengio 2010: uniform with variance 1 / mean of fan-in and fan-out.
    pub fn xavier_uniform() -> Init {
        Init::UniformScaling { scale: 1.0, fan: Fan::Average }
    }

    /// An orthogonal matrix (gain 1).
    pub fn orthogonal() -> Init {
        Init::Orthogonal(1.0)
    }

    /// Checks that given values have the variable's type and sizes.
    pub(super) fn check(&self, name: &str, dtype: DType, sizes: &[usize]) -> Result<()> {
        match self {
            Init::Value(v) if (v.dtype(), v.sizes()) != (dtype, sizes) => Err(Error::shape(format!(
                "the variable {name} is {dtype}{sizes:?}, but its initial value is {}{:?}",
                v.dtype(),
                v.sizes()
            ))),
            _ => Ok(()),
        }
    }

    /// Returns the initial value of the variable `name`.
    pub fn value(&self, seed: u64, name: &str, dtype: DType, sizes: &[usize]) -> Result<HostTensor> {
        self.check(name, dtype, sizes)?;
        let n = element_count(sizes)?;
        let rng = CounterRng::new(seed, name);
        let values: Vec<f64> = match *self {
            Init::Constant(c) => vec![c; n],
            Init::Uniform(low, high) => {
                (0..n as u64).map(|i| low + (high - low) * rng.uniform(0, i)).collect()
            }
            Init::Normal(mean, std) => (0..n as u64).map(|i| mean + std * rng.normal(0, i)).collect(),
            Init::TruncatedNormal(mean, std) => {
                (0..n as u64).map(|i| mean + std * truncated(&rng, i)).collect()
            }
            Init::VarianceScaling { scale, fan } => {
                // 0.8796 is the standard deviation of a standard normal truncated at two.
                let std = (scale / fan.connections(sizes)).sqrt() / 0.879_625_661_034_239_8;
                (0..n as u64).map(|i| std * truncated(&rng, i)).collect()
            }
            Init::UniformScaling { scale, fan } => {
                let limit = (3.0 * scale / fan.connections(sizes)).sqrt();
                (0..n as u64).map(|i| limit * (2.0 * rng.uniform(0, i) - 1.0)).collect()
            }
            Init::Orthogonal(gain) => {
                let cols = sizes.last().copied().unwrap_or(1);
                orthogonal(&rng, n / cols.max(1), cols).iter().map(|v| v * gain).collect()
            }
            Init::Identity => {
                let cols = sizes.last().copied().unwrap_or(1).max(1);
                (0..n).map(|i| f64::from(u8::from(i / cols == i % cols))).collect()
            }
            Init::Value(ref value) => return Ok(value.clone()),
        };
        HostTensor::from_f64(dtype, sizes, &values)
    }
}

fn truncated(rng: &CounterRng, i: u64) -> f64 {
    // Each attempt is a separate draw, so element i never depends on how often its neighbors were
    // redrawn.
    (0..64).map(|draw| rng.normal(draw, i)).find(|z| z.abs() <= 2.0).unwrap_or(0.0)
}

/// Returns a matrix with orthonormal rows or columns, whichever are fewer, by Gram-Schmidt on
/// normal vectors. Orthogonalizing twice is enough (Giraud et al., 2005).
fn orthogonal(rng: &CounterRng, rows: usize, cols: usize) -> Vec<f64> {
    let (count, size) = (rows.min(cols), rows.max(cols));
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
    let mut basis: Vec<Vec<f64>> = Vec::with_capacity(count);
    for i in 0..count {
        let mut v: Vec<f64> = (0..size).map(|j| rng.normal(0, (i * size + j) as u64)).collect();
        for u in basis.iter().chain(&basis) {
            let along = dot(u, &v);
            v.iter_mut().zip(u).for_each(|(x, y)| *x -= along * y);
        }
        let length = dot(&v, &v).sqrt();
        v.iter_mut().for_each(|x| *x /= length);
        basis.push(v);
    }
    let at = |i: usize| if rows <= cols { basis[i / cols][i % cols] } else { basis[i % cols][i / cols] };
    (0..rows * cols).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_finite_in_the_dtype_of_the_variable() {
        let finite = |x: f64| {
            let floats = DType::ALL.into_iter().filter(|dtype| dtype.is_float());
            floats.filter(|&dtype| Init::Constant(x).is_finite(dtype)).collect::<Vec<_>>()
        };
        assert_eq!(finite(65504.0), [DType::F32, DType::F64, DType::Bf16, DType::F16]);
        assert_eq!(finite(65520.0), [DType::F32, DType::F64, DType::Bf16]);
        assert_eq!(finite(f64::from(f32::MAX)), [DType::F32, DType::F64]);
        assert_eq!(finite(1e39), [DType::F64]);
    }

    #[test]
    fn orthogonal_has_orthogonal_rows_or_columns() {
        for sizes in [vec![12, 7], vec![7, 12], vec![3, 2, 5, 8], vec![9, 9], vec![4], vec![0, 3]] {
            let v = Init::Orthogonal(2.0).value(1, "w", DType::F64, &sizes).unwrap().to_f64_vec();
            let cols = *sizes.last().unwrap();
            let rows = v.len() / cols;
            let across = |i: usize, k: usize| if rows <= cols { v[i * cols + k] } else { v[k * cols + i] };
            for (i, j) in (0..rows.min(cols)).flat_map(|i| (0..=i).map(move |j| (i, j))) {
                let product: f64 = (0..rows.max(cols)).map(|k| across(i, k) * across(j, k)).sum();
                let expected = if i == j { 4.0 } else { 0.0 };
                assert!(
                    (product - expected).abs() < 1e-12,
                    "{sizes:?}: the product of {i} and {j} is {product}"
                );
            }
        }
    }

    #[test]
    fn uniform_scaling_has_the_documented_variance() {
        let v = Init::xavier_uniform().value(1, "w", DType::F64, &[60, 140]).unwrap().to_f64_vec();
        let limit = (3.0f64 / 100.0).sqrt();
        assert!(v.iter().all(|x| x.abs() <= limit) && v.iter().any(|x| x.abs() > 0.99 * limit));
        let var = v.iter().map(|x| x * x).sum::<f64>() / v.len() as f64;
        assert!((var * 100.0 - 1.0).abs() < 0.05, "variance {var}");
    }

    #[test]
    fn identity_has_ones_on_the_diagonal() {
        let v = Init::Identity.value(0, "w", DType::F64, &[2, 3]).unwrap().to_f64_vec();
        assert_eq!(v, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    }

    #[test]
    fn he_has_the_documented_variance_and_is_deterministic() {
        let draw = |seed| Init::he().value(seed, "w", DType::F64, &[3, 3, 50, 40]).unwrap();
        let v = draw(1).to_f64_vec();
        let var = v.iter().map(|x| x * x).sum::<f64>() / v.len() as f64;
        assert!((var / (2.0 / 450.0) - 1.0).abs() < 0.03, "variance {var}");
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn truncated_normal_stays_within_two_standard_deviations() {
        let v = Init::TruncatedNormal(1.0, 0.5).value(3, "w", DType::F64, &[10_000]).unwrap().to_f64_vec();
        assert!(v.iter().all(|x| (x - 1.0).abs() <= 1.0));
    }
}
