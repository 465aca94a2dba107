//! Sequences of tokens in the rows of a padded tensor.

use crate::graph::Tensor;
use crate::tower::TowerHandle;
use tensorpack_tensor::{Error, HostTensor, Result};

/// Returns the tensor `name` of the tower. It must have integer elements and one of these ranks.
pub(super) fn token_tensor(tower: &TowerHandle, name: &str, ranks: &[usize]) -> Result<Tensor> {
    let tensor = tower.get_tensor(name)?;
    match tensor.dtype().is_int() && ranks.contains(&tensor.rank()) {
        true => Ok(tensor),
        false => {
            let found = format!("{}{}", tensor.dtype(), tensor.shape());
            Err(Error::shape(format!("{name} is {found}, not integer tokens [batch, time]")))
        }
    }
}

/// Returns the rows along the last axis. Each ends before its first negative element, and before its
/// first `end`.
pub(super) fn sequences(tokens: &HostTensor, end: Option<i64>) -> Vec<Vec<i64>> {
    let elements: Vec<i64> = match tokens.as_slice::<i64>() {
        Ok(tokens) => tokens.to_vec(),
        // Exact in the smaller types.
        Err(_) => tokens.to_f64_vec().into_iter().map(|token| token as i64).collect(),
    };
    let (time, rows) = match tokens.sizes().split_last() {
        Some((&time, before)) => (time, before.iter().product()),
        None => (0, 0),
    };
    let row = |i: usize| {
        let row = &elements[i * time..(i + 1) * time];
        row.iter().copied().take_while(|&token| token >= 0 && Some(token) != end).collect()
    };
    (0..rows).map(row).collect()
}
