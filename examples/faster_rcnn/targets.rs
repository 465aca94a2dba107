//! Annotated objects, and which boxes have to find them.

use tensorpack::prelude::*;

/// The annotated objects of a batch.
pub(crate) struct Objects {
    /// `[batch, n, 4]`.
    pub(crate) boxes: Tensor,
    /// `[batch, n]`, -1 where there is no object.
    pub(crate) classes: Tensor,
    /// 1 where there is an object that must be found, `[batch, n]`.
    pub(crate) exists: Tensor,
    /// 1 where there is a crowd, `[batch, n]`.
    crowd: Tensor,
}

/// The object that overlaps every box of a list most.
pub(crate) struct Matches {
    /// The intersection over union with it, `[batch, boxes]`.
    pub(crate) overlap: Tensor,
    /// Its index, `[batch, boxes]`.
    pub(crate) object: Tensor,
    /// The largest intersection over union with a crowd, `[batch, boxes]`.
    pub(crate) crowd_overlap: Tensor,
    /// Whether a box is the best one of an object, `[batch, boxes]`.
    pub(crate) is_best: Tensor,
}

impl Objects {
    /// Takes the annotations of a batch: boxes, classes and crowds.
    pub(crate) fn new(boxes: &Tensor, classes: &Tensor, crowd: &Tensor) -> Objects {
        let (given, crowd) = (at_least(classes, 0.0).cast(DType::F32), crowd.cast(DType::F32));
        let classes = classes.cast(DType::I64);
        Objects { boxes: boxes.clone(), classes, exists: &given * (1.0 - &crowd), crowd: given * crowd }
    }

    /// Matches boxes `[boxes, 4]` or `[batch, boxes, 4]` with the objects.
    pub(crate) fn matched(&self, boxes: &Tensor) -> Matches {
        let iou = self.boxes.box_iou(boxes);
        let objects = &iou * self.exists.expand_dims(-1);
        let best = objects.max_axes(&[2]);
        let count = iou.shape()[2].known().unwrap_or(0);
        // Without any overlap no box is the best one.
        let is_best = objects.argmax(2).one_hot(count, DType::F32)
            * at_least(&best, 0.1).cast(DType::F32).expand_dims(-1);
        Matches {
            overlap: objects.max_axes(&[1]),
            object: objects.argmax(1),
            crowd_overlap: (iou * self.crowd.expand_dims(-1)).max_axes(&[1]),
            is_best: at_least(&is_best.max_axes(&[1]), 0.5),
        }
    }
}

/// Returns where `x` is at least `value`.
pub(crate) fn at_least(x: &Tensor, value: f64) -> Tensor {
    let bound = HostTensor::from_f64(x.dtype(), [], &[value]).expect("one value fills a scalar");
    x.greater_equal(&x.graph().constant(bound))
}

/// Draws `count` elements at random from those where `mask` is true. Returns their indices, `[batch,
/// count]`, and 1 for each element, or 0 where there were too few.
pub(crate) fn sample(mask: &Tensor, count: usize) -> (Tensor, Tensor) {
    let keys = mask.cast(DType::F32) * (mask.random_uniform_like(DType::F32) + 1.0);
    let (keys, indices) = keys.top_k(count);
    (indices, keys.clip(0.0, 1.0))
}

/// Returns the rows of `x`, `[batch, n, ..]`, with these indices, `[batch, count]`.
pub(crate) fn rows(x: &Tensor, indices: &Tensor) -> Tensor {
    let n = x.shape()[1].known().unwrap_or(0) as f64;
    let flat = indices + indices.iota_like(0, DType::I64) * n;
    x.merge_dims(0, 2).gather(&flat, 0)
}
