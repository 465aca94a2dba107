//! How a variable's first value is drawn: a pure function of the seed, the variable's name and its shape.

use tensorpack_tensor::{CounterRng, DType, Error, HostTensor, Result, element_count};

/// An initialiser.
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// Every element is this.
    Constant(f64),
    /// Uniform between the two.
    Uniform(f64, f64),
    /// Normal with this mean and standard deviation.
    Normal(f64, f64),
    /// Normal, drawn again (up to many times) where further than two standard deviations from the mean.
    TruncatedNormal(f64, f64),
    /// Truncated normal with variance `scale / fan`, corrected for the truncation.
    VarianceScaling {
        /// 2 for ReLU nets (He), 1 otherwise (Glorot, LeCun).
        scale: f64,
        /// Which fan divides.
        fan: Fan,
    },
    /// Exactly these values.
    Value(HostTensor),
}

/// The number of connections that scales an initialiser, from the shape `[..., in, out]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// Into an output.
    In,
    /// Out of an input.
    Out,
    /// The mean of both.
    Average,
}

impl Init {
    /// All zeros.
    pub fn zeros() -> Init {
        Init::Constant(0.0)
    }

    /// All ones.
    pub fn ones() -> Init {
        Init::Constant(1.0)
    }

    /// He et al. 2015, for layers followed by ReLU: variance 2 / fan-in.
    pub fn he() -> Init {
        Init::VarianceScaling { scale: 2.0, fan: Fan::In }
    }

    /// Glorot and Bengio 2010: variance 1 / mean of fan-in and fan-out.
    pub fn xavier() -> Init {
        Init::VarianceScaling { scale: 1.0, fan: Fan::Average }
    }

    /// That given values are of a variable's own type and sizes.
    pub(super) fn check(&self, name: &str, dtype: DType, sizes: &[usize]) -> Result<()> {
        match self {
            Init::Value(v) if (v.dtype(), v.sizes()) != (dtype, sizes) => Err(Error::shape(format!(
                "the variable {name} is {dtype}{sizes:?}, but its first value is {}{:?}",
                v.dtype(),
                v.sizes()
            ))),
            _ => Ok(()),
        }
    }

    /// The first value of the variable `name`.
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
                let receptive: usize = sizes[..sizes.len().saturating_sub(2)].iter().product();
                let inner = |k: usize| sizes.len().checked_sub(k).map_or(1, |i| sizes[i]) * receptive;
                let (fan_in, fan_out) = (inner(2) as f64, inner(1) as f64);
                let fan = match fan {
                    Fan::In => fan_in,
                    Fan::Out => fan_out,
                    Fan::Average => (fan_in + fan_out) / 2.0,
                };
                // 0.8796 is the standard deviation of a standard normal cut at two.
                let std = (scale / fan.max(1.0)).sqrt() / 0.879_625_661_034_239_8;
                (0..n as u64).map(|i| std * truncated(&rng, i)).collect()
            }
            Init::Value(ref value) => return Ok(value.clone()),
        };
        HostTensor::from_f64(dtype, sizes, &values)
    }
}

fn truncated(rng: &CounterRng, i: u64) -> f64 {
    // Each try is a draw of its own, so that element i never depends on how often its neighbours tried.
    (0..64).map(|draw| rng.normal(draw, i)).find(|z| z.abs() <= 2.0).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn he_has_the_right_spread_and_repeats() {
        let draw = |seed| Init::he().value(seed, "w", DType::F64, &[3, 3, 50, 40]).unwrap();
        let v = draw(1).to_f64_vec();
        let var = v.iter().map(|x| x * x).sum::<f64>() / v.len() as f64;
        assert!((var / (2.0 / 450.0) - 1.0).abs() < 0.03, "variance {var}");
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn truncated_stays_within_two_deviations() {
        let v = Init::TruncatedNormal(1.0, 0.5).value(3, "w", DType::F64, &[10_000]).unwrap().to_f64_vec();
        assert!(v.iter().all(|x| (x - 1.0).abs() <= 1.0));
    }
}
