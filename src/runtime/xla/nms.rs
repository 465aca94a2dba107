//! Non-maximum suppression as StableHLO.

use super::stablehlo::{Value, Writer};
use crate::kir::Nms;
use tensorpack_tensor::DType;

/// Returns which boxes are kept.
///
/// A loop starts with all boxes and repeats: keep those that no kept box before them suppresses. The
/// first box is right from the beginning, and each iteration makes at least one more right, so the loop
/// ends after at most `len` iterations, and usually after a few, with the only solution.
pub(super) fn nms(w: &mut Writer, k: &Nms, x: &Value) -> Value {
    let (list, matrix) = ([k.rows, k.len], [k.rows, k.len, k.len]);
    let x = w.reshape(x, &matrix);
    if x.is_empty() {
        return w.splat(1.0, DType::Bool, &list);
    }
    let (i, j) = (w.iota(1, DType::I64, &matrix), w.iota(2, DType::I64, &matrix));
    let earlier = w.compare("LT", &i, &j);
    let x = w.like("and", &[&x, &earlier]);

    let outer = w.begin_region();
    let (kept, changes) = (w.argument(DType::Bool, &list), w.argument(DType::Bool, &[]));
    let by = w.broadcast(&kept, &[0, 1], &matrix);
    let hits = w.like("and", &[&x, &by]);
    let no = w.splat(0.0, DType::Bool, &[]);
    let hit = w.reduce("or", &hits, &no, &[1]);
    let next = w.like("not", &[&hit]);
    let differs = w.like("xor", &[&next, &kept]);
    let changed = w.reduce("or", &differs, &no, &[0, 1]);
    let body = w.end_region(outer, &[kept, changes], &[next, changed]);

    let outer = w.begin_region();
    let (kept, changes) = (w.argument(DType::Bool, &list), w.argument(DType::Bool, &[]));
    let condition = w.end_region(outer, &[kept, changes.clone()], &[changes]);

    let (all, yes) = (w.splat(1.0, DType::Bool, &list), w.splat(1.0, DType::Bool, &[]));
    let types = [(all.element, all.sizes.clone()), (yes.element, Vec::new())];
    let regions = format!("{condition}, {body}");
    w.with_region("while", &[&all, &yes], "", &regions, &types).swap_remove(0)
}
