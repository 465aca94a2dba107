//! The numbers of a JSON array, nested or flat.

use super::request_error::RequestError;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use std::fmt;
use tensorpack::{DType, HostTensor};

/// The numbers of an array, in row-major order. The protocol allows one array, or nested ones in
/// the shape of the tensor.
#[derive(Debug, PartialEq)]
pub(super) enum Numbers {
    Bools(Vec<bool>),
    /// Integers are kept apart, because f64 does not have all of them.
    Integers(Vec<i64>),
    Floats(Vec<f64>),
}

impl Numbers {
    fn len(&self) -> usize {
        match self {
            Numbers::Bools(v) => v.len(),
            Numbers::Integers(v) => v.len(),
            Numbers::Floats(v) => v.len(),
        }
    }

    /// Returns the numbers as a tensor. Returns an error if their count or one of them does not fit.
    pub(super) fn tensor(self, dtype: DType, sizes: &[usize]) -> Result<HostTensor, RequestError> {
        let count = self.len();
        if sizes.iter().try_fold(1usize, |n, &m| n.checked_mul(m)) != Some(count) {
            return Err(RequestError::bad(format!("{count} numbers do not fill the shape {sizes:?}")));
        }
        let unfit = |what: String| RequestError::bad(format!("{what} does not fit the datatype"));
        let tensor = match (dtype, self) {
            (DType::Bool, Numbers::Bools(v)) => HostTensor::new(sizes, v),
            (DType::Bool, Numbers::Integers(v)) => {
                let bool = |n: &i64| match n {
                    0 | 1 => Ok(*n == 1),
                    _ => Err(unfit(n.to_string())),
                };
                HostTensor::new(sizes, v.iter().map(bool).collect::<Result<Vec<bool>, _>>()?)
            }
            (DType::I64, Numbers::Integers(v)) => HostTensor::new(sizes, v),
            (DType::I32, Numbers::Integers(v)) => {
                let narrow = |&n: &i64| i32::try_from(n).map_err(|_| unfit(n.to_string()));
                HostTensor::new(sizes, v.iter().map(narrow).collect::<Result<Vec<i32>, _>>()?)
            }
            (DType::U8, Numbers::Integers(v)) => {
                let narrow = |&n: &i64| u8::try_from(n).map_err(|_| unfit(n.to_string()));
                HostTensor::new(sizes, v.iter().map(narrow).collect::<Result<Vec<u8>, _>>()?)
            }
            (dtype, Numbers::Integers(v)) if dtype.is_float() => {
                HostTensor::from_f64(dtype, sizes, &v.iter().map(|&n| n as f64).collect::<Vec<_>>())
            }
            // An empty array has no type.
            (dtype, _) if count == 0 => HostTensor::zeros(dtype, sizes),
            (dtype, Numbers::Floats(v)) if dtype.is_float() => {
                let tensor = HostTensor::from_f64(dtype, sizes, &v)?;
                if let Some(i) = tensor.to_f64_vec().iter().position(|x| !x.is_finite()) {
                    return Err(unfit(v[i].to_string()));
                }
                Ok(tensor)
            }
            (_, Numbers::Bools(_)) => return Err(unfit("a truth value".into())),
            (_, Numbers::Floats(_)) => return Err(unfit("a number with a fraction".into())),
            (_, Numbers::Integers(_)) => return Err(unfit("a number".into())),
        };
        Ok(tensor?)
    }
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Numbers, D::Error> {
        let mut numbers = Numbers::Integers(Vec::new());
        deserializer.deserialize_seq(Append(&mut numbers))?;
        Ok(numbers)
    }
}

/// Appends a number, or all of an array.
struct Append<'a>(&'a mut Numbers);

impl<'de> DeserializeSeed<'de> for Append<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Append<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of numbers, or of arrays of them")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Append(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        match self.0 {
            Numbers::Bools(v) => v.push(value),
            other if other.len() == 0 => *other = Numbers::Bools(vec![value]),
            _ => return Err(E::custom("truth values and numbers are mixed")),
        }
        Ok(())
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        match self.0 {
            Numbers::Integers(v) => v.push(value),
            Numbers::Floats(v) => v.push(value as f64),
            Numbers::Bools(_) => return Err(E::custom("truth values and numbers are mixed")),
        }
        Ok(())
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => self.visit_f64(value as f64),
        }
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        match self.0 {
            Numbers::Floats(v) => v.push(value),
            Numbers::Integers(v) => {
                let mut floats: Vec<f64> = v.iter().map(|&n| n as f64).collect();
                floats.push(value);
                *self.0 = Numbers::Floats(floats);
            }
            Numbers::Bools(_) => return Err(E::custom("truth values and numbers are mixed")),
        }
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<(), E> {
        Err(E::custom("strings are not supported"))
    }
}
