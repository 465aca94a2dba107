//! Argsort as StableHLO.

use super::stablehlo::{Element, Value, Writer};
use crate::kir::Argsort;
use tensorpack_tensor::DType;

/// Returns the indices of the first `take` elements of every row, in sorted order.
pub(super) fn argsort(w: &mut Writer, k: &Argsort, x: &Value) -> Value {
    let x = w.reshape(x, &[k.rows, k.len]);
    if x.is_empty() {
        return w.splat(0.0, DType::I64, &[k.rows, k.take]);
    }
    let x = if x.element == DType::Bool.into() { w.convert(&x, DType::U8) } else { x };
    let indices = w.iota(1, DType::I64, &x.sizes);
    let region = w.region(&[x.element, x.element, DType::I64.into(), DType::I64.into()], |w, pair| {
        let (a, b) = (&pair[0], &pair[1]);
        let before = w.compare(if k.descending { "GT" } else { "LT" }, a, b);
        if !a.element.is_float() {
            return vec![before];
        }
        // NaN sorts as the largest value.
        let (larger, smaller) = if k.descending { (a, b) } else { (b, a) };
        let (nan, number) = (w.compare("NE", larger, larger), w.compare("EQ", smaller, smaller));
        let nan_last = w.like("and", &[&nan, &number]);
        vec![w.like("or", &[&before, &nan_last])]
    });
    let results = [(x.element, x.sizes.clone()), (Element::Of(DType::I64), x.sizes.clone())];
    let attributes = "dimension = 1 : i64, is_stable = true";
    let sorted = w.with_region("sort", &[&x, &indices], attributes, &region, &results);
    w.slice(&sorted[1], &[0, 0], &[1, 1], &[k.rows, k.take])
}
