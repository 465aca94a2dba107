//! Cumulative sums as StableHLO.

use super::stablehlo::{Value, Writer};
use crate::kir::Cumsum;

/// Cumulative sums along the middle dimension.
pub(super) fn cumsum(w: &mut Writer, k: &Cumsum, x: &Value) -> Value {
    let element = x.element;
    let x = w.reshape(x, &[k.outer, k.len, k.inner]);
    if x.is_empty() {
        return x;
    }
    let x = w.widened(&x);
    let before = |n: usize| if k.reverse { [0, n as i64] } else { [n as i64, 0] };
    // An exclusive sum is the sum of the elements shifted by one.
    let x = match (k.exclusive, k.reverse) {
        (false, _) => x,
        (true, false) => w.pad(&x, 0.0, &[[0, 0], [1, -1], [0, 0]], &[0; 3]),
        (true, true) => w.pad(&x, 0.0, &[[0, 0], [-1, 1], [0, 0]], &[0; 3]),
    };
    let zero = w.splat(0.0, x.element, &[]);
    let padding = [[0, 0], before(k.len - 1), [0, 0]];
    let sums = w.reduce_window("add", &x, &zero, &[1, k.len, 1], &[1; 3], &padding);
    w.convert(&sums, element)
}
